"""Sensitivity of every draw from its integers; only the standard library, included in every bundle with recompute.py.

A draw measures m·K·x + noise on the integers. A unit of k records moves it by at most m Δ k in L2, with Δ² the largest
squared norm of a column of the integer matrix K. Gaussian noise of variance v is charged as one of v − 8, for which
μ² = (m Δ k)²/(v − 8). Laplace noise of scale s costs ε = m Δ₁ k / s, with Δ₁ the largest L1 norm. Over several axes K
is a product, and the norms multiply. A selection is an exponential mechanism whose loss lies in an interval of length
`range`: as Gaussian DP it has μ = 2Φ⁻¹(e^{range/2}/(1 + e^{range/2})). If `steps` neighbours of a table connect two of
the release, μ, ε and the range grow by that factor. A component may state an additive δ, the chance of an event that
shows more than its noise allows. Over k steps it is δ_k = δ + Φ(Φ⁻¹(δ_(k−1)) + μ), or δ + e^ε δ_(k−1) for pure ε.
Draws of a link measure sums over links, of which neighbours change `moved`. A unit changes their number by `moved`, and
a histogram of degrees by at most 1 at each of `bound` thresholds for each role of its row, plus, for the rows at the
other end, by `bound` entries of at most `bound`. Sibling sums count each pair of siblings in every contingency table in
steps of 2^-12. Steps count consecutive ones, with weight 2 for an attribute with itself; histories count parents in a
table of weight 3 and in one for each attribute. The sums of features have one cost: a link adds vectors of squared norm
at most U and V and their product, or replaces them by others whose inner products are at least g and h. A cross
marginal changes by 1 at one entry per moved link, or at two if links are replaced.
"""

from __future__ import annotations

import base64
import hashlib
import math
import sys
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import accumulate
from statistics import NormalDist
from typing import Any

SMOOTHING = 8
LEAST = Fraction(9, 10)  # least part of the precision of sums that their noise may have
ABOVE = Fraction(1 + 1e-9)  # tolerance for rounding of floats

Fields = dict[str, Any]
Events = Counter[tuple[str, Fraction]]  # counts by kind and exact cost: μ², ε or ρ


def columns(factor: Fields) -> list[Any]:
    """Return the columns of an integer strategy; one representative for the symmetric kinds identity and center."""
    cells = math.prod(factor["shape"])
    if factor["kind"] == "identity":
        return [[1]]
    if factor["kind"] == "center":
        return [[cells - 1, *[-1] * (cells - 1)]]
    return list(zip(*rows(factor), strict=True))


def rows(factor: Fields) -> list[Any]:
    if "matrix" in factor:
        return factor["matrix"]
    values, cells = unpacked(factor["packed"]), math.prod(factor["shape"])
    return [values[start : start + cells].tolist() for start in range(0, len(values), cells)]


def unpacked(text: str) -> array[int]:
    """Return integers of 64 bits that are compressed in a text."""
    values = array("q", zlib.decompress(base64.b64decode(text)))
    if sys.byteorder == "big":
        values.byteswap()
    return values


def norms(factor: Fields) -> tuple[int, int]:
    """Return the largest squared L2 norm and the largest L1 norm of a column."""
    if factor["kind"] == "tree":
        return of_tree(factor)
    pairs = of_columns(factor) if "levels" not in factor else of_levels(factor)
    return max(one for one, _ in pairs), max(other for _, other in pairs)


def of_columns(factor: Fields) -> list[tuple[int, int]]:
    if factor["kind"] == "toeplitz":
        return of_toeplitz(factor)
    if "columns" in factor:  # too large for a bundle, which contains the digest and the column norms
        return list(zip(map(int, factor["columns"]["squared"]), map(int, factor["columns"]["absolute"]), strict=True))
    return [(sum(v * v for v in column), sum(map(abs, column))) for column in columns(factor)]


def of_toeplitz(factor: Fields) -> list[tuple[int, int]]:
    """Return norms for entries t_(i−j) d_j, j ≤ i < cells − 1, of integers t and then d. The last column is 0."""
    own, (cells,), other = list(unpacked(factor["packed"])), factor["shape"], {"matrix", "columns", "levels"}
    if other & set(factor) or len(own) != 2 * cells - 2 or min(own) < 0 or min(own[cells - 1 :]) < 1:
        raise ValueError("a Toeplitz strategy has other entries than coefficients, and multipliers of at least 1")
    sums = zip(accumulate(t * t for t in own[: cells - 1]), accumulate(own[: cells - 1]), strict=True)
    return [(d * d * squared, d * one) for d, (squared, one) in zip(own[: cells - 2 : -1], sums, strict=True)]


def of_levels(factor: Fields) -> list[tuple[int, int]]:
    """Return norms for a two-level strategy: a cell has the column of its block and its column within the block."""
    top, *inner = factor["levels"]
    blocks, start, pairs, cells = of_columns(top), 0, list[tuple[int, int]](), 0
    for count, level in zip(factor["counts"], inner, strict=True):
        own, within = blocks[start : start + int(count)], norms(level)
        pairs.append((max(one for one, _ in own) + within[0], max(other for _, other in own) + within[1]))
        start, cells = start + int(count), cells + int(count) * math.prod(level["shape"])
    if start != len(blocks) or [cells] != factor["shape"]:
        raise ValueError("the levels do not cover the cells of their strategy")
    return pairs


def of_tree(factor: Fields) -> tuple[int, int]:
    """Return norms for a strategy on the nodes of a tree: a leaf has the multipliers of the nodes on its path.

    A centred one has the rows m (N a − n 1), where a has ones at the leaves below a node, and n of N is its weight.
    """
    parents, own = map(unpacked, factor["parents"]), [list(map(abs, unpacked(one))) for one in factor["multipliers"]]
    tree = [array("q"), *parents]
    weights = [list(unpacked(factor["spread"]))] if factor["spread"] else [[0] * len(own[-1])]
    for level in range(len(own) - 1, 0, -1):
        sums = [0] * len(own[level - 1])
        for node, value in zip(tree[level], weights[-1], strict=True):
            sums[node] += value
        weights.append(sums)
    weights, whole, found = weights[::-1], weights[-1][0] or 1, list[int]()
    for power in (2, 1):
        every = sum((m * n) ** power for pair in zip(own, weights, strict=True) for m, n in zip(*pair, strict=True))
        paths = [0]
        for level, (one, spread) in enumerate(zip(own, weights, strict=True)):
            step = [m**power * (abs(whole - n) ** power - n**power) for m, n in zip(one, spread, strict=True)]
            paths = [paths[node] + value for node, value in zip(tree[level] if level else [0], step, strict=True)]
        found.append(every + max(paths))
    return found[0], found[1]


def digest_of_tree(factor: Fields) -> str:
    """Return the SHA-256 of a strategy on a tree: of the tree, the multipliers and the weights if it is centred."""
    parts = [zlib.decompress(base64.b64decode(one)) for one in factor["parents"]]
    tree = hashlib.sha256(str((1, *(len(one) // 8 for one in parts))).encode() + b"".join(parts)).hexdigest()
    content = b"".join(zlib.decompress(base64.b64decode(x)) for x in [*factor["multipliers"], factor["spread"]] if x)
    head = f"tree{bool(factor['spread'])}{tree}{factor['known'] if factor['known'] >= 0 else ''}"
    return hashlib.sha256(head.encode() + content).hexdigest()


def digest(factor: Fields) -> str:
    """Return the SHA-256 of a strategy in the records of measurements: of its kind, its shape and its integers."""
    if factor["kind"] == "tree":
        return digest_of_tree(factor)
    if "columns" in factor:
        return factor["columns"]["sha256"]
    if "levels" in factor:
        parts = [factor["kind"], f"({factor['shape'][0]},)", *map(digest, factor["levels"])]
        return hashlib.sha256("".join(parts).encode()).hexdigest()
    entries = [] if factor["kind"] in ("identity", "center") else rows(factor)
    matrix = b"".join(value.to_bytes(8, "little", signed=True) for row in entries for value in row)
    return hashlib.sha256(f"{factor['kind']}{tuple(factor['shape'])}".encode() + matrix).hexdigest()


def components(draws: Fields) -> list[Fields]:
    """Return the components of draws.json."""
    return list(draws["components"])


def label(component: Fields) -> str:
    return f"{component['kind']} {component['name']}"


def check_draws(draws: Fields, factors: dict[str, Fields]) -> tuple[Events, list[str]]:
    """Return the events of the draws, each computed from its integers, and the faults found."""
    faults, events = list[str](), Events()
    norm, known = {key: norms(one) for key, one in factors.items()}, {key: digest(one) for key, one in factors.items()}
    for component in components(draws):
        own, found = table_events(component, norm, known) if component["kind"] == "table" else link_events(component)
        selected, more = selection_events(component)
        events += own + selected + failure_events(component, own + selected)
        faults += found + more
    return events, faults


def failure_events(component: Fields, own: Events) -> Events:
    """Return the stated additive δ of a component as an event; `own` has its other events, over all its steps."""
    delta, steps = Fraction(component.get("delta") or 0), int(component.get("steps", 1))
    if not delta:
        return Events()
    mu = math.sqrt(sum(count * AS_GAUSSIAN[kind](float(cost)) for (kind, cost), count in own.items()))
    laplace = sum(float(cost) * count for (kind, cost), count in own.items() if kind == "laplace")
    pure = laplace / steps if all(kind == "laplace" for kind, _ in own) else math.inf
    return Events({("delta", grown_delta(delta, mu / steps, pure, steps)): 1})


AS_GAUSSIAN: dict[str, Callable[[float], float]] = {  # μ² of the events of draws
    "gaussian": lambda squared: squared,
    "laplace": lambda epsilon: mu_of_pure(epsilon) ** 2,
    "selection": lambda epsilon: mu_of_pure(epsilon / 2) ** 2,
}


def grown_delta(delta: Fraction, mu: float, pure: float, steps: int) -> Fraction:
    """Return an additive δ over `steps` neighbours, each at this μ and, if finite, at this pure ε."""
    if not 0 <= delta <= 1:
        raise ValueError("an additive δ is a probability")
    grown = delta
    for _ in range(steps - 1):
        level = float(grown)
        power = _tail(-NormalDist().inv_cdf(level) - mu) if 0 < level < 1 else level
        grown = min(delta + Fraction(min(power, math.exp(min(pure, 700)) * level)), Fraction(1))
    return grown


def table_events(table: Fields, norm: dict[str, tuple[int, int]], known: dict[str, str]) -> tuple[Events, list[str]]:
    """Return the events of a table's draws, and faults; `norm` and `known` have norms and digests of strategies."""
    faults, events = list[str](), Events()
    for draw in table["draws"]:
        squared, absolute = (math.prod(norm[key][which] for key in draw["factors"]) for which in (0, 1))
        strategy = hashlib.sha256("".join(known[key] for key in draw["factors"]).encode()).hexdigest()
        if [str(squared), str(absolute)] != [draw["squared_l2"], draw["l1"]]:
            faults.append(f"{_place(table, draw)}: the listed sensitivity is wrong")
        if draw["strategy"] not in (None, strategy):
            faults.append(f"{_place(table, draw)}: the strategy differs from that in its record")
        if not _possible(draw) or int(table["rows_per_unit"]) < 1 or int(table["steps"]) < 1:
            faults.append(f"{_place(table, draw)}: invalid noise")
            continue
        events[event_of(draw, squared, absolute, int(table["rows_per_unit"]) * int(table["steps"]))] += 1
    if len({(draw["file"], draw["place"]) for draw in table["draws"]}) != len(table["draws"]):
        faults.append("a draw is listed twice")
    return events, faults


def _place(table: Fields, draw: Fields) -> str:
    return f"draw {draw['place']} in {table['folder']}{draw['file']}"


def selection_events(component: Fields) -> tuple[Events, list[str]]:
    """Return the selections of a component as events, and faults."""
    faults, events, steps = list[str](), Events(), int(component.get("steps", 1))
    for one in component["selections"]:
        if int(one["count"]) < 1 or Fraction(one["mu_squared"]) < 0:
            faults.append(f"round {one['round']}: invalid selection")
        kind, cost = ("gaussian", one["mu_squared"]) if one["range"] is None else ("selection", one["range"])
        if kind == "selection" and mu_of_pure(float(Fraction(cost)) / 2) ** 2 > Fraction(one["mu_squared"]) * ABOVE:
            faults.append(f"round {one['round']}: a selection costs more than is listed")
        events[kind, Fraction(cost) * (steps if kind == "selection" else steps**2)] += int(one["count"])
    return events, faults


SUMS = ("u", "v", "both")
NUMBERED = ("links", "degrees", "siblings", "steps", "histories", *SUMS, "rows", "ones")  # draws by their numbers
BITS, SCALE = 12, 256  # features are integers in steps of 2^-BITS; scores of selections, in steps of 1/SCALE


def link_events(link: Fields) -> tuple[Events, list[str]]:
    """Return the events of a link's draws, and faults. The three sums of features are one event."""
    faults, events, sums = list[str](), Events(), dict[str, Fraction]()
    for draw in link["draws"]:
        name, count, where = draw["statistic"], int(draw["count"]), f"{draw['statistic']} of link {link['name']}"
        squared = squared_of(link, name)
        if str(squared) != draw["squared_l2"]:
            faults.append(f"{where}: the listed sensitivity is wrong")
        if not _possible(draw) or count < 1 or (count > 1 and not is_round(name)):
            faults.append(f"{where}: invalid noise")
            continue
        if draw["file"] != file_of(name):
            faults.append(f"{where}: {draw['file']} is not its file")
        precision = Fraction(int(draw["multiplier"]) ** 2, int(draw["variance"]) - SMOOTHING)
        if name in SUMS:
            sums[name] = precision
        else:
            events["gaussian", precision * squared] += count
    if len({draw["statistic"] for draw in link["draws"]}) != len(link["draws"]):
        faults.append("a draw is listed twice")
    if sums:
        events["gaussian", int(link["moved"]) ** 2 * moved_features(link, sums)] += 1
    return events, faults + _score_faults(link)


def file_of(name: str) -> str:
    """Return the value file of a draw of a link; those of rounds follow the others, each after its selection."""
    number = len(NUMBERED) + 2 * int(name[6:]) + 1 if is_round(name) else NUMBERED.index(name)
    return f"{number:03d}-00000000-00000001.parquet"


def is_round(name: str) -> bool:
    return name.startswith("round-") and name[6:].isdecimal()


def squared_of(link: Fields, name: str) -> Fraction | int:
    """Return the squared sensitivity of a statistic of a link to one unit; of a round, of each marginal."""
    moved, bound, replaced = int(link["moved"]), int(link["bound"]), link["relation"] == "replace"
    if name in SUMS:
        return moved**2 * moved_features(link, {name: Fraction(1)})
    if is_round(name):
        return entries(link) * moved**2
    attributes, parents = len(link["sizes"][1]), int(link["parents"])
    others = 2 * bound**2 if replaced else bound**2 * (len(link["histograms"]) - 1)
    return {"links": moved**2, "degrees": int(link["roles"]) ** 2 * (bound + others),
            "siblings": attributes * (attributes + 1) // 2 * (parents * bound * 2**BITS) ** 2,
            "steps": attributes * (attributes + 3) * (parents * (bound - 1)) ** 2,
            "histories": (attributes + 9) * parents**2}[name]  # fmt: skip


def entries(link: Fields) -> int:
    """Return the number of entries of a cross marginal that one moved link changes by 1."""
    return 2 if link["relation"] == "replace" else 1


def moved_features(link: Fields, precisions: dict[str, Fraction]) -> Fraction:
    """Return the largest squared change of the feature sums by one link, each weighted by its noise precision."""
    (u, g), (v, h) = (feature_bounds(*one) for one in zip(link["sizes"], link["clips"], strict=True))
    a, b, c = (precisions.get(name, Fraction(0)) for name in SUMS)
    added = a * u + b * v + c * u * v
    if link["relation"] != "replace":
        return added
    first = a * (u - g) + c * v * (u - g)  # another row at the first end
    second = b * (v - h) + c * u * (v - h)
    both = a * (u - g) + b * (v - h) + c * (u * v - g * h)
    return max(added, 2 * first, 2 * second, 2 * both)


def feature_bounds(sizes: list[int], clip: float | None) -> tuple[int, int]:
    """Return the largest squared norm of a row's features in steps, and a lower bound of two rows' inner products."""
    if clip is not None:
        squared = math.floor(Fraction(clip) ** 2 * 4**BITS)
        return squared, -squared
    found = [one_hot_bounds(int(size)) for size in sizes]
    return sum(norm for norm, _ in found), sum(inner for _, inner in found)


def one_hot_bounds(size: int) -> tuple[int, int]:
    """Return both for one attribute: a one-hot centred at 1/size, truncated to steps; of two values, one column."""
    step = 2**BITS
    if size <= 2:
        half = math.isqrt(step**2 // 2) * (size - 1)
        return half**2, -(half**2)
    own, other = step * (size - 1) // size, step // size
    return own**2 + (size - 1) * other**2, -2 * own * other + (size - 2) * other**2


def _score_faults(link: Fields) -> list[str]:
    """Return faults of the selections: their range follows from the scale and the sensitivity of the scores."""
    moved = SCALE * entries(link) * int(link["moved"])
    wrong = (one["round"] for one in link["selections"] if int(one["sensitivity"]) != moved
             or Fraction(one["range"]) != 2 * moved * Fraction(one["scale"]))  # fmt: skip
    return [f"round {number} of link {link['name']}: the listed range is wrong" for number in wrong]


def delta_of_mu(mu: float, epsilon: float) -> float:
    """Return δ of the Gaussian mechanism, exactly (Balle & Wang 2018)."""
    far = _tail(epsilon / mu + mu / 2)
    return _tail(epsilon / mu - mu / 2) - (math.exp(min(epsilon, 700)) * far if far else 0.0)


def _tail(x: float) -> float:
    return math.erfc(x / math.sqrt(2)) / 2


def mu_of_epsilon(epsilon: float, delta: float) -> float:
    """Return the μ of the Gaussian mechanism with this ε at δ, by bisection."""
    low, high = 1e-9, 1e3
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of_mu(middle, epsilon) <= delta else (low, middle)
    return low


def statistic_faults(link: Fields, facts: Fields) -> Iterator[str]:
    """Yield statistics of a link that are missing, or that its job does not measure."""
    sums = {name: Fraction(one) for name, one in zip(SUMS, link["precisions"] or [0, 0, 0], strict=True) if one > 0}
    names, rounds = [draw["statistic"] for draw in link["draws"]], list(_rounds(link, facts["loop"]))
    if sorted(names) != sorted([*facts["statistics"], *sums, *(name for name, _ in rounds)]):
        yield f"draws.json lacks a statistic of {label(link)}, or has one that its job does not measure"
    counts = dict(rounds)
    for draw in link["draws"]:
        if int(draw["count"]) != counts.get(draw["statistic"], 1):
            yield f"{draw['statistic']} of {label(link)} has a different number of marginals than its job"
        if draw["statistic"] in sums:
            steps = Fraction(1, 4 ** (BITS * (2 if draw["statistic"] == "both" else 1)))
            wanted, noise = sums[draw["statistic"]] * steps, int(draw["variance"]) - SMOOTHING
            if not LEAST * wanted <= Fraction(int(draw["multiplier"]) ** 2, noise) <= wanted:
                yield f"{draw['statistic']} of {label(link)} has other noise than its precision allows"
    selected = [(one["round"], int(one["count"])) for one in link["selections"]]
    if selected != [(number, count) for number, (_, count) in enumerate(rounds)]:
        yield f"draws.json has other selections of {label(link)} than rounds"


def _rounds(link: Fields, loop: Fields | None) -> Iterator[tuple[str, int]]:
    """Yield the rounds of a published loop and their numbers of marginals; a loop without rows has none."""
    if loop is None or not any(is_round(draw["statistic"]) for draw in link["draws"]):
        return
    (u, v), number = map(len, link["sizes"]), 0
    left = (u * math.comb(v, 2) + math.comb(u, 2) * v) or u * v
    while left > 0 and number < loop["rounds"]:
        yield f"round-{number:02d}", min(loop["marginals"], left)
        left, number = left - loop["marginals"], number + 1


def mu_of_pure(epsilon: float) -> float:
    """Return the μ of ε-DP as Gaussian DP: its trade-off curve touches that of N(0, 1) against N(μ, 1)."""
    return -2 * NormalDist().inv_cdf(1 / (1 + math.exp(epsilon))) if epsilon < 700 else math.inf


def _possible(draw: Fields) -> bool:
    """Return whether the noise is valid: one of two distributions, with more variance than smoothing uses."""
    laplace, variance = draw.get("laplace"), draw["variance"]
    one, both = laplace if variance is None else variance, None not in (laplace, variance)
    return not both and int(one or 0) > (SMOOTHING if laplace is None else 0) and int(draw["multiplier"]) > 0


def event_of(draw: Fields, squared: int, absolute: int, k: int) -> tuple[str, Fraction]:
    m = int(draw["multiplier"])
    if draw["laplace"] is not None:
        return "laplace", Fraction(m * absolute * k, int(draw["laplace"]))
    return "gaussian", Fraction(m * m * squared * k * k, int(draw["variance"]) - SMOOTHING)
