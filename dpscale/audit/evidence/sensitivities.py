"""Sensitivity and cost of every record of evidence, from its integers; only the standard library, in every bundle.

A record measures m·K·x + noise on the integers, where x are exact counts. The bound of a record lists by how much a
unit changes x: pairs of a number of counts and their largest change, so that

    |Δx|₁ = Σ n c,   |Δx|₂² = Σ n c²,   |K Δx|₂ ≤ Δ |Δx|₁,   |K Δx|₁ ≤ Δ₁ |Δx|₁,

with Δ² the largest squared norm and Δ₁ the largest L1 norm of a column of K. Over several axes K is a product, and the
norms multiply; without K the first two hold. If `steps` neighbours of a part connect two of the release, sensitivities
grow by that factor. Gaussian noise of variance v is charged as one of v − 8, for which μ² = m² |·|₂²/(v − 8). Laplace
noise of scale s costs ε = m |·|₁/s. A selection is an exponential mechanism whose loss lies in an interval of length
`range`, twice the change of its scores times their scale. As Gaussian DP it has μ = 2Φ⁻¹(e^{r/2}/(1 + e^{r/2})) of this
range r.

A strategy K is a product of factors, integer matrices with a column for each cell of an axis (or of all axes), whose
entries are listed or packed as texts. The norms of a strategy are those two of its columns.

Most records compose by addition. Records of one `group` change together: a unit makes one of the alternative changes of
their bounds, in all of them. Records with a `path` are of nodes of a binary tree: those of which no path begins with
the other have different rows, so a group costs the largest sum along a path. Records with a `row` are one row of the
integer matrix R of their part, whose rows measure K Σ_s R[t, s] x_s with the same noise. A unit that changes k of the
x_s changes all of them together by at most the largest Σ |(RᵀR)[s, s']| over pairs of k columns in μ², and by the k
largest sums of |R[t, s]| over t in ε; so one charge covers all rows.

A value that is released only above a `threshold` shows that a unit is there with a chance δ, which adds. A part may
state such a δ itself. Over k steps it is δ_k = δ + Φ(Φ⁻¹(δ_(k−1)) + μ), or δ + e^ε δ_(k−1) for pure ε.
"""

from __future__ import annotations

import base64
import hashlib
import math
import sys
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import MAX_EMAX, Decimal, localcontext
from fractions import Fraction
from itertools import combinations, pairwise
from operator import mul
from statistics import NormalDist
from typing import Any

SMOOTHING = 8  # part of the variance of Gaussian noise that is not charged: s of dpscale.privacy.draws
ABOVE = Fraction(1 + 1e-9)  # tolerance for rounding of floats
MOST_SETS = 200_000  # sets of columns over which the largest cost of a matrix is computed exactly
MOST_SPLIT = 2000  # rows of a unit of which all divisions over values are compared
MOST_MULTIPLIER, MOST_SPREAD = 1 << 24, 1 << 40  # of strategies on trees
OTHER_FORMS = {"matrix", "columns", "levels"}  # entries that would hide the integers of an implicit strategy

Fields = dict[str, Any]
Events = Counter[tuple[str, Fraction]]  # counts by kind and exact cost: μ², ε or ρ
Owner = tuple[str, str]  # name of a part, and end of the id of the ledger's entry that pays


# ---- strategies ------------------------------------------------------------------------------------------------------


def columns(factor: Fields) -> list[Any]:
    """Return the columns of an integer strategy; one representative for the symmetric kinds identity and center."""
    cells = math.prod(factor["shape"])
    if factor["kind"] == "identity":
        return [[1]]
    if factor["kind"] == "center":
        # a column of cells · I - 1 1ᵀ, the integer matrix that subtracts the mean; all columns are permutations of it
        return [[cells - 1, *[-1] * (cells - 1)]]
    return list(zip(*rows(factor), strict=True))


def rows(factor: Fields) -> list[Any]:
    """Return the rows of a strategy over the cells, as integers, from its listed or compressed matrix."""
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
    return max(squared for squared, _ in pairs), max(absolute for _, absolute in pairs)


def of_columns(factor: Fields) -> list[tuple[int, int]]:
    """Return the squared L2 norm and the L1 norm of each column of a strategy, or of one of several equal columns."""
    if factor["kind"] == "layered":
        return of_layers(factor)
    if factor["kind"] == "spectral":
        return of_spectrum(factor)
    if factor["kind"] == "circulant":  # all columns have the entries of the first
        kernel = unpacked(factor["packed"])
        return [(sum(map(mul, kernel, kernel)), sum(map(abs, kernel)))]
    if "columns" in factor:  # too large for a bundle, which contains the digest and the column norms
        return list(zip(map(int, factor["columns"]["squared"]), map(int, factor["columns"]["absolute"]), strict=True))
    return [(sum(v * v for v in column), sum(map(abs, column))) for column in columns(factor)]


def of_spectrum(factor: Fields) -> list[tuple[int, int]]:
    """Return norms for entries M T_ij d_j − s_i, of integers d, U of sum M, and T, with s_i = Σ_j T_ij d_j U_j.

    T is a sum of two terms of an even sequence t of period N: t_(i−j) − t_(i+j+2) with N = 2 cells + 2, or for an even
    start t_(i−j) + t_(i+j+1) with N = 4 cells + 2 and t_(k+N/2) = −t_k. Column j has the squared norm
    M² d_j² (T²)_jj − 2 M d_j (T s)_j + Σ s². If t does not increase from 0, no entry of T is negative; the second norm
    is a bound of the L1 norm, M d_j times the sum of column j of T, and Σ s.
    """
    multipliers, spread = unpacked(factor["multipliers"]), unpacked(factor["spread"])  # d and U
    whole = sum(spread)  # M
    shift = _root_product(factor, list(map(mul, multipliers, spread)))  # s
    again, sums = _root_product(factor, shift), _root_product(factor, [1] * len(multipliers))  # T s, and sums of T
    known, sign, step = _sequence(factor)
    squares = cyclic_product(known, known)
    squares = _turned(squares) if factor["even"] else squares
    total, square = sum(shift), sum(map(mul, shift, shift))
    pairs = list[tuple[int, int]]()
    for j, d in enumerate(multipliers):
        norm = squares[0] + sign * squares[(2 * j + step) % len(squares)]  # (T²)_jj
        pairs.append(((whole * d) ** 2 * norm - 2 * whole * d * again[j] + square, whole * d * sums[j] + total))
    return pairs


def _sequence(factor: Fields) -> tuple[list[int], int, int]:
    """Return t over a period, its positive part for an even start, with the sign and shift of the second term of T."""
    known, (cells,) = list(unpacked(factor["coefficients"])), factor["shape"]
    if factor["even"]:
        return known + [0] * (2 * cells + 1) + known[1:][::-1], 1, 1
    return known + known[1:-1][::-1], -1, 2


def _turned(values: Sequence[int]) -> list[int]:
    """Return a sequence less itself half a period later: that of t from that of its positive part."""
    half = len(values) // 2
    return [value - values[(place + half) % len(values)] for place, value in enumerate(values)]


def _root_product(factor: Fields, values: Sequence[int]) -> list[int]:
    """Return T applied to integers of at least 0, with T as in `of_spectrum`.

    The two terms of T are entries of one cyclic convolution with the sequence t: the entry of a cell, and that of its
    mirror image with a sign.
    """
    (known, sign, step), cells = _sequence(factor), len(values)
    products = cyclic_product(known, [*values, *[0] * (len(known) - cells)])
    products = _turned(products) if factor["even"] else products
    return [products[i] + sign * products[-i - step] for i in range(cells)]


def cyclic_product(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the cyclic convolution of two sequences of integers of at least 0.

    Their values are the digits of two decimal numbers, each digit wide enough for the largest sum. The product of the
    numbers has the sums of the linear convolution as digits, which wrap around at the length of the sequences.
    """
    width, count = len(str(len(first) * max(first) * max(second))), len(first)
    with localcontext() as context:
        context.prec, context.Emax = 2 * count * width + 2, MAX_EMAX
        first_number, second_number = (Decimal("".join(str(value).zfill(width) for value in reversed(values)))
                      for values in (first, second))  # fmt: skip
        text = format(first_number * second_number, "f").zfill(2 * count * width)
    sums = [int(text[end - width : end]) for end in range(len(text), 0, -width)]
    return [low + high for low, high in zip(sums[:count], sums[count : 2 * count], strict=True)]


def of_layers(factor: Fields) -> list[tuple[int, int]]:
    """Return norms by block for rows over blocks and a multiplier for each level: a cell is in one node of a level."""
    values = layers_by_block(factor)
    return [(sum(value * value for value in block), sum(map(abs, block))) for block in values]


def layers_by_block(factor: Fields) -> list[tuple[int, ...]]:
    """Return for each block of cells its entries in the rows over blocks, and then its multiplier on each level.

    A block has `widths[0]` consecutive cells; the last one may have fewer. The multipliers are stored level by level,
    with a number for each block.
    """
    stored, (cells,) = [unpacked(factor["top"]), unpacked(factor["multipliers"])], factor["shape"]
    blocks = -(-cells // factor["widths"][0])
    if any(len(values) % blocks for values in stored):
        raise ValueError("a layered strategy has rows that do not have a number for each block")
    layers = [values[start : start + blocks] for values in stored for start in range(0, len(values), blocks)]
    return list(zip(*layers, strict=True))


def of_levels(factor: Fields) -> list[tuple[int, int]]:
    """Return norms for a two-level strategy: a cell has the column of its block and its column within the block.

    `top` measures blocks of cells; `counts` has, for each further level, the number of consecutive blocks that it
    divides. Norms of both columns add, because their rows are different.
    """
    top, *inner = factor["levels"]
    # norms of the columns of the top; blocks and cells of the levels before
    blocks, start, pairs, cells = of_columns(top), 0, list[tuple[int, int]](), 0
    for count, level in zip(factor["counts"], inner, strict=True):
        group, inside = blocks[start : start + int(count)], norms(level)
        squared, absolute = max(squared for squared, _ in group), max(absolute for _, absolute in group)
        pairs.append((squared + inside[0], absolute + inside[1]))
        start, cells = start + int(count), cells + int(count) * math.prod(level["shape"])
    if start != len(blocks) or [cells] != factor["shape"]:
        raise ValueError("the levels do not cover the cells of their strategy")
    return pairs


def of_tree(factor: Fields) -> tuple[int, int]:
    """Return the largest squared L2 norm and L1 norm of a column of a strategy on the nodes of a tree.

    A leaf has in its column the multipliers m of the nodes on its path. A centred one has the rows m (N a − n 1),
    where a has ones at the leaves below a node, and n of N is its weight: a column has m (N − n) for nodes on its
    path, and −m n for others. So the sum over all nodes is corrected along the path.

    For power p (2, then 1) `every` is Σ |m n|^p over all nodes, and `paths` the largest correction |m|^p (|N − n|^p −
    n^p) summed along a path; without weights n = 0 and N = 1.
    """
    multipliers = [list(map(abs, unpacked(packed))) for packed in factor["multipliers"]]
    parents = [array("q"), *map(unpacked, factor["parents"])]  # of the nodes of each level
    # weights of the nodes of each level, from the leaves up
    weights = [list(unpacked(factor["spread"]))] if factor["spread"] else [[0] * len(multipliers[-1])]
    for level in range(len(multipliers) - 1, 0, -1):
        sums = [0] * len(multipliers[level - 1])
        for parent, value in zip(parents[level], weights[-1], strict=True):
            sums[parent] += value
        weights.append(sums)
    weights, whole, largest = weights[::-1], weights[-1][0] or 1, list[int]()
    for power in (2, 1):
        every, paths = 0, [0]
        for level, (of_level, spread) in enumerate(zip(multipliers, weights, strict=True)):
            every += sum((m * n) ** power for m, n in zip(of_level, spread, strict=True))
            step = [m**power * (abs(whole - n) ** power - n**power) for m, n in zip(of_level, spread, strict=True)]
            above = parents[level] if level else [0]
            paths = [paths[parent] + value for parent, value in zip(above, step, strict=True)]
        largest.append(every + max(paths))
    return largest[0], largest[1]


def digest_of_tree(factor: Fields) -> str:
    """Return the SHA-256 of a strategy on a tree: of the tree, the multipliers and the weights if it is centred."""
    parents = [zlib.decompress(base64.b64decode(packed)) for packed in factor["parents"]]
    sizes = (1, *(len(of_level) // 8 for of_level in parents))  # nodes of each level
    tree = hashlib.sha256(str(sizes).encode() + b"".join(parents)).hexdigest()
    packed_integers = [packed for packed in (*factor["multipliers"], factor["spread"]) if packed]
    content = b"".join(zlib.decompress(base64.b64decode(packed)) for packed in packed_integers)
    head = f"tree{bool(factor['spread'])}{tree}{factor['known'] if factor['known'] >= 0 else ''}"
    return hashlib.sha256(head.encode() + content).hexdigest()


def digest(factor: Fields) -> str:
    """Return the SHA-256 of a strategy in the records of measurements: of its kind, its shape and its integers.

    The text and the order of the integers are those of the packages that write the records. A strategy that is too
    large for the bundle states its digest.
    """
    if factor["kind"] == "tree":
        return digest_of_tree(factor)
    if factor["kind"] in ("layered", "spectral"):
        layered = ("top", "multipliers")
        names = layered if factor["kind"] == "layered" else ("coefficients", "multipliers", "spread")
        head = (
            f"{factor['kind']}{tuple(factor['shape'])}{factor['even'] if 'even' in factor else tuple(factor['widths'])}"
        )
        integers = b"".join(zlib.decompress(base64.b64decode(factor[name])) for name in names)
        return hashlib.sha256(head.encode() + integers).hexdigest()
    if "columns" in factor:
        return factor["columns"]["sha256"]
    if "levels" in factor:
        parts = [factor["kind"], f"({factor['shape'][0]},)", *map(digest, factor["levels"])]
        return hashlib.sha256("".join(parts).encode()).hexdigest()
    entries = [] if factor["kind"] in ("identity", "center") else rows(factor)
    matrix = b"".join(value.to_bytes(8, "little", signed=True) for row in entries for value in row)
    return hashlib.sha256(f"{factor['kind']}{tuple(factor['shape'])}".encode() + matrix).hexdigest()


def strategy_faults(factors: Mapping[str, Fields]) -> Iterator[str]:
    """Yield strategies whose entries contradict their shape."""
    for name, factor in factors.items():
        if fault := misshapen(factor):
            yield f"strategy {name} {fault}"


def misshapen(factor: Fields) -> str:
    """Return why a strategy is no valid one, as the end of a sentence; empty if it is valid.

    `shape` has the cells of each axis. The L1 norm of integers is at most their squared L2 norm, and that at most the
    square of the L1 norm.
    """
    count = math.prod(factor["shape"])
    if not factor["shape"] or min(factor["shape"]) < 1:
        return "has no cells"
    if factor["kind"] == "tree":
        return _misshapen_tree(factor)
    if factor["kind"] == "layered":
        return _misshapen_layers(factor)
    if factor["kind"] == "spectral":
        return _misshapen_spectrum(factor)
    if factor["kind"] == "circulant":
        return _misshapen_kernel(factor)
    if "columns" in factor:
        squared, absolute = (list(map(int, factor["columns"][name])) for name in ("squared", "absolute"))
        if len(squared) != count or len(absolute) != count:
            return f"has norms of {len(squared)} columns for {count} cells"
        if any(
            not 0 <= absolute_norm <= squared_norm <= absolute_norm * absolute_norm
            for squared_norm, absolute_norm in zip(squared, absolute, strict=True)
        ):
            return "has norms that are impossible for columns of integers"
    if "matrix" in factor and any(len(row) != count for row in factor["matrix"]):
        return f"has rows that do not have {count} cells"
    if "levels" in factor:
        return next((fault for level in factor["levels"] if (fault := misshapen(level))), "")
    has_entries = any(form in factor for form in ("matrix", "packed", "columns"))
    return "" if factor["kind"] in ("identity", "center") or has_entries else "has no entries"


def _misshapen_tree(factor: Fields) -> str:
    """Return the fault of a strategy on a tree whose levels do not fit together or do not end at its cells.

    `multipliers` has an integer for each node, level by level from the root, and `parents` the parent of each node
    below it. `known` is the deepest level whose values are public (-1: none), so none of its nodes is measured.
    `spread` has the weights by which a known total is spread over the leaves.
    """
    values = [unpacked(packed) for packed in factor["multipliers"]]
    sizes = [len(multipliers) for multipliers in values]
    parents = [unpacked(packed) for packed in factor["parents"]]
    spread = unpacked(factor["spread"]) if factor["spread"] else [1] * sizes[-1]
    if sizes != [1, *map(len, parents)] or sizes[-1:] != factor["shape"] or len(spread) != sizes[-1] or min(spread) < 1:
        return "has levels that do not match its tree"
    if any(set(level_parents) != set(range(size)) for size, level_parents in zip(sizes, parents, strict=False)):
        return "has a node without children, or a child of no node"
    if min(map(min, values)) < 0 or max(map(max, values)) >= MOST_MULTIPLIER or min(values[-1]) < 1:
        return "has multipliers of a tree that are not whole numbers of at least 0, or 1 for leaves"
    known = factor["known"]
    if (factor["spread"] and (values[0][0] or sum(spread) >= MOST_SPREAD)) or any(map(any, values[: known + 1])):
        return "measures nodes of a tree that are known, or spreads a total by too large weights"
    return "" if -1 <= known < len(parents) and (known < 0 or not factor["spread"]) else "knows no level of its tree"


def _misshapen_spectrum(factor: Fields) -> str:
    """Return the fault of a spectral strategy whose integers are not those of its axis.

    The coefficients belong to distances on the axis, from short to long, and must not increase.
    """
    known, multipliers, spread = (unpacked(factor[name]) for name in ("coefficients", "multipliers", "spread"))
    shape = factor["shape"]
    if (
        len(shape) != 1
        or len(multipliers) != shape[0]
        or len(known) != shape[0] + 2 - factor["even"]
        or len(spread) != shape[0]
    ):
        return "has not a coefficient for each distance, and a multiplier and a weight for each cell"
    if OTHER_FORMS & set(factor):
        return "has entries of another form beside its integers"
    if min(multipliers) < 1 or known[-1] < 0 or any(after > before for before, after in pairwise(known)):
        return "has coefficients that increase or are negative, or multipliers below 1"
    return "has weights below 0, or only 0" if min(spread) < 0 or not any(spread) else ""


def _misshapen_kernel(factor: Fields) -> str:
    """Return why a circulant strategy is no valid one, as the end of a sentence; empty if it is valid.

    A circulant matrix is determined by its first column, the kernel: the other columns are its rotations along the axes
    of the cells. The kernel must have an integer for each cell and sum to 0 along every line of cells that is parallel
    to an axis. The list of cells begins with a line along the last axis, then comes the next line (C order).
    """
    kernel, shape = unpacked(factor["packed"]), factor["shape"]
    if OTHER_FORMS & set(factor) or len(kernel) != math.prod(shape) or not any(kernel):
        return "has not an integer for each cell, or only 0"

    distance = 1  # in the list, between neighbours along the axis
    for size in reversed(shape):
        # cells that differ only on this axis and later ones are consecutive: `size * distance` of them
        for start in range(0, len(kernel), size * distance):
            consecutive = kernel[start : start + size * distance]
            lines = [consecutive[first::distance] for first in range(distance)]  # along this axis
            if any(map(sum, lines)):
                return "has entries that do not sum to 0 along an axis"
        distance *= size
    return ""


def _misshapen_layers(factor: Fields) -> str:
    """Return the fault of a layered strategy whose levels are no division of its cells, from blocks to cells.

    `widths` are the cells of a node at each level; a level divides the nodes above it, and the last one has single
    cells.
    """
    widths, shape = factor["widths"], factor["shape"]
    if OTHER_FORMS & set(factor):
        return "has entries of another form beside its integers"
    if len(shape) != 1 or not widths or min(widths) < 1 or widths[-1] != 1:
        return "has no levels from blocks to cells on one axis"
    if any(above <= below or above % below for above, below in pairwise(widths)):
        return "has nodes of a level that do not divide those of the level above"
    values, blocks = unpacked(factor["multipliers"]), -(-shape[0] // widths[0])
    if len(values) != len(widths) * blocks or len(unpacked(factor["top"])) % blocks:
        return "has rows that do not have a number for each block"
    return "has multipliers below 0, or of a cell below 1" if min(values) < 0 or min(values[-blocks:]) < 1 else ""


# ---- records ---------------------------------------------------------------------------------------------------------


def check_records(
    records: Sequence[Fields], parts: Mapping[str, Fields], factors: Mapping[str, Fields]
) -> tuple[dict[Owner, Events], list[str]]:
    """Return the events of the records by part and entry, each computed from its integers, and the faults found.

    Events are counts of (kind, exact cost); a part with any fault in the records has none.

    Parameters
    ----------
    records : sequence of dict
    parts : mapping of str to dict
        Facts of the parts.
    factors : mapping of str to dict
        Strategies by name.
    """
    faults, owned = list[str](), defaultdict[Owner, list[Fields]](list)
    norms_by_name = {key: norms(factor) for key, factor in factors.items()}
    digests = {key: digest(factor) for key, factor in factors.items()}
    for record in records:
        owned[record["part"], record["entry"]].append(record)
        faults += record_faults(record, parts[record["part"]], norms_by_name, digests)

    events = dict[Owner, Events]()
    for owner, owner_records in owned.items():
        events[owner] = Events() if faults else events_of_part(owner_records, parts[owner[0]], norms_by_name, owner[1])
        faults += [*row_faults(owner_records, parts[owner[0]]), *choice_faults(owner_records, parts[owner[0]])]
    return events, faults


def label(record: Fields) -> str:
    """Return the words by which a fault names a record."""
    where = f"draw {record['place']} in {record['file']}" if "file" in record else f"round {record['decision']}"
    return f"{where} of {record['part']}"


def record_faults(
    record: Fields, part: Fields, norm: Mapping[str, tuple[int, int]], known: Mapping[str, str]
) -> Iterator[str]:
    """Yield what is wrong with a record: its sensitivity, strategy, noise or cost.

    `norm` has the norms of the factors by name, and `known` their digests.
    """
    count = int(record.get("count", 1))
    if is_selection(record):
        yield from _selection_faults(record, part, count)
        return
    if not is_possible(record) or count < 1:
        yield f"{label(record)}: invalid noise"
        return

    group, bound = record.get("group", ""), record["bound"]
    if "path" not in record and isinstance(bound, str) and group and not bound.startswith(f"{group}/"):
        yield f"{label(record)}: its bound is of another group"
    squared, absolute = (max(of_changes) for of_changes in sensitivities(record, part, norm))
    if [str(squared), str(absolute)] != [record["squared_l2"], record["l1"]]:
        yield f"{label(record)}: the listed sensitivity is wrong"
    strategy = hashlib.sha256("".join(known[key] for key in record["factors"]).encode()).hexdigest()
    if record["strategy"] not in (None, strategy):
        yield f"{label(record)}: the strategy differs from that in its record"
    if Fraction(record["cost"]) != noise_cost(record, squared, absolute):
        yield f"{label(record)}: the listed cost is wrong"


def _selection_faults(record: Fields, part: Fields, count: int) -> Iterator[str]:
    """Yield what is wrong with selections; their range follows from scores if the record has them.

    The loss of an exponential mechanism lies in an interval of the length `range`: at most the μ of a pure mechanism
    with half of it. The range is twice the scale times the change of a score.
    """
    squared, extent = Fraction(record["cost"]), record["range"]
    if count < 1 or squared < 0:
        yield f"{label(record)}: invalid selection"
    elif extent is not None and mu_of_pure(float(Fraction(extent)) / 2) ** 2 > squared * ABOVE:
        yield f"{label(record)}: a selection costs more than is listed"
    if "scale" in record:
        moved = int(record["scores"]) * max(changes(bound_of(record, part))[1])
        if Fraction(extent) != 2 * moved * Fraction(record["scale"]):
            yield f"{label(record)}: the listed range is wrong"


def choice_faults(records: Sequence[Fields], part: Fields) -> Iterator[str]:
    """Yield a fault if the draws of a part do not measure what its selections chose, decision by decision.

    A record is a selection or a draw, and `count` is the number of marginals that it selects or measures. Decisions are
    numbered; a selection states in `chooses` for which later decision it chooses what is drawn. The key `selected` of a
    part is the name of a bound, whose draws measure only what was selected: then the numbers of both must agree, and
    every selection states the scale of its scores, from which its cost follows. A part without the key has no such
    fault.
    """
    name_of_bound = part.get("selected")
    if name_of_bound is None:
        return

    number_selected, number_drawn, all_scaled = dict[Any, int](), dict[Any, int](), True
    for record in records:
        if is_selection(record):
            number_selected[record["chooses"]] = int(record["count"])
            all_scaled = all_scaled and "scale" in record
        elif record["bound"] == name_of_bound:
            number_drawn[record["decision"]] = int(record["count"])

    if number_selected != number_drawn or not all_scaled:
        yield f"{records[0]['part']} has other selections than draws of what they select"


def is_selection(record: Fields) -> bool:
    return "range" in record


def is_possible(record: Fields) -> bool:
    """Return whether the noise of a record is valid: Gaussian or Laplace, not both, with a positive multiplier.

    A Gaussian variance must exceed 8, which smoothing takes off; a Laplace scale must be positive.
    """
    laplace, variance = record.get("laplace"), record.get("variance")
    amount, both = laplace if variance is None else variance, None not in (laplace, variance)
    return not both and int(amount or 0) > (SMOOTHING if laplace is None else 0) and int(record["multiplier"]) > 0


def bound_of(record: Fields, part: Fields) -> Fields:
    """Return the bound of a record: that of its part, or one that was decided later and stands in the record."""
    bound = record["bound"]
    return dict(part["bounds"][bound] if isinstance(bound, str) else bound)


def changes(bound: Fields) -> tuple[list[int], list[int]]:
    """Return the squared L2 norm and the L1 norm of each alternative change.

    A pair (number, change) means that so many counts change by at most that much, so it adds number · change² and
    number · change.
    """
    alternatives = [[(int(number), int(change)) for number, change in pairs] for pairs in bound["changes"]]
    if any(number < 0 or change < 0 for pairs in alternatives for number, change in pairs):
        raise ValueError("a bound has negative changes")
    squared = [sum(number * change**2 for number, change in pairs) for pairs in alternatives]
    return squared, [sum(number * change for number, change in pairs) for pairs in alternatives]


def sensitivities(record: Fields, part: Fields, norm: Mapping[str, tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return the squared L2 and the L1 sensitivity of a record for each alternative change, over all steps.

    A record of a strategy measures a product of factors, so the norms of a column multiply. One unit that changes
    counts by at most c in sum moves the result by at most c times a column: squared by the squared L2 norm × c².
    `norm` has both norms by the name of the factor.
    """
    squared, absolute = changes(bound_of(record, part))
    steps, named = int(part["steps"]), record["factors"]
    if steps < 1:
        raise ValueError("a part without steps")
    if named:
        squared_norm, absolute_norm = (math.prod(norm[key][which] for key in named) for which in (0, 1))
        squared = [squared_norm * value**2 for value in absolute]
        absolute = [absolute_norm * value for value in absolute]
    return [value * steps**2 for value in squared], [value * steps for value in absolute]


def noise_cost(record: Fields, squared: int, absolute: int) -> Fraction:
    """Return the cost of a draw of a sensitivity."""
    multiplier = int(record["multiplier"])
    if record.get("laplace") is not None:
        return Fraction(multiplier * absolute, int(record["laplace"]))
    return Fraction(multiplier**2 * squared, int(record["variance"]) - SMOOTHING)


def events_of_part(records: Sequence[Fields], part: Fields, norm: Mapping[str, tuple[int, int]], entry: str) -> Events:
    """Return the events of a part under an entry: counts of (kind, exact cost).

    A part of a growing table has an integer matrix R over periods (`outer`), of which each record measures one row. All
    rows have the same strategies and noise. So the cost of all rows is that of row 0 times `factor_of` R, which
    contains the entries of R and the periods that a unit changes. `norm` has the norms of the strategies by name.
    """
    outer = part.get("outer")
    # `row_faults` refuses evidence in which the draws of another row differ from those of row 0
    drawn = records if outer is None else [record for record in records if record["row"] == 0]
    events = composed(drawn, part, norm)
    if outer is not None:
        factor = factor_of(outer, any(kind == "laplace" for kind, _ in events))
        events = Events({(kind, cost * factor): count for (kind, cost), count in events.items()})
    return events + failure_events(drawn, part, events, entry)


def composed(records: Sequence[Fields], part: Fields, norm: Mapping[str, tuple[int, int]]) -> Events:
    """Return the events of records: one for each draw, and one for a group of draws that a unit changes together.

    An event is (kind, exact cost); the counter has how many draws there are of each. Draws without a group are
    independent events whose costs add up.
    """
    events, groups = Events(), defaultdict[str, list[Fields]](list)
    for record in records:
        if "group" in record:
            groups[record["group"]].append(record)
        elif is_selection(record):
            events[selection_event(record, int(part["steps"]))] += int(record["count"])
        else:
            kind = "gaussian" if record.get("laplace") is None else "laplace"
            events[kind, Fraction(record["cost"])] += int(record.get("count", 1))
    for group in groups.values():
        if any(record.get("laplace") is not None for record in group):
            raise ValueError("draws that change together have Gaussian noise")
        events["gaussian", group_cost(group, part, norm)] += 1
    return events


def selection_event(record: Fields, steps: int) -> tuple[str, Fraction]:
    """Return a selection as an event over some steps: of its range, or of its stated μ² if it has none."""
    if record["range"] is None:
        return "gaussian", Fraction(record["cost"]) * steps**2
    return "selection", Fraction(record["range"]) * steps


def group_cost(records: Sequence[Fields], part: Fields, norm: Mapping[str, tuple[int, int]]) -> Fraction:
    """Return μ² of draws that one unit changes together.

    Draws with paths (of a tree) cost the largest sum along a path. Otherwise a unit makes one of several alternative
    changes, each of which changes all draws: the cost is the largest over the alternatives.
    """
    if "path" in records[0]:
        return largest_path([(record["path"], Fraction(record["cost"])) for record in records])

    by_draw = []  # squared L2 sensitivity of each draw to each alternative
    for record in records:
        squared, _ = sensitivities(record, part, norm)
        by_draw.append(squared)

    largest = Fraction(0)
    for by_record in zip(*by_draw, strict=True):
        pairs = zip(records, by_record, strict=True)
        costs = [noise_cost(record, squared, absolute=0) for record, squared in pairs]  # Gaussian noise needs no L1
        largest = max(largest, sum(costs, Fraction(0)))
    return largest


def largest_path(nodes: Sequence[tuple[str, Fraction]]) -> Fraction:
    """Return the largest sum of costs along a path from the root of a binary tree; nodes are named by their paths.

    A node's path is its bits from the root; nodes without draws are skipped on the way up.
    """
    cost_of = Counter[str]()  # of all draws at a node
    for path, cost in nodes:
        cost_of[path] += cost  # type: ignore[assignment]
    sums = dict[str, Fraction]()  # from the root to a node
    for path in sorted(cost_of, key=len):
        above = next((path[:end] for end in range(len(path) - 1, -1, -1) if path[:end] in sums), None)
        sums[path] = Fraction(cost_of[path]) + (Fraction(0) if above is None else sums[above])
    return max(sums.values())


# ---- records that are rows of a matrix -------------------------------------------------------------------------------


def factor_of(outer: Fields, laplace: bool) -> int:
    """Return the cost of all rows of an integer matrix in units of one row's; it must be lower-triangular.

    `rows` is the matrix R of the module's docstring, row t with the entries of periods 0 to t, and `together` the
    number k of periods that one unit changes. The unit is the cost of one draw of K x_s with the same noise, so the
    result is the factor of R.
    """
    rows, together = outer["rows"], outer["together"]
    whole = all(isinstance(value, int) and not isinstance(value, bool) for row in rows for value in (*row, together))
    if not whole or not rows or together < 1 or any(len(row) != t + 1 or row[t] <= 0 for t, row in enumerate(rows)):
        raise ValueError("no integer matrix, or no number of columns")
    return (largest_column_sums if laplace else largest_cost)(rows, together)


def largest_cost(rows: Sequence[Sequence[int]], together: int) -> int:
    """Return the largest Σ |(RᵀR)[s, s']| over sets of k columns, or an upper bound of it if there are many sets.

    `rows` is the lower triangular matrix R of integers over periods, k = `together` the number of periods with records
    of one unit. The upper bound takes for each column the k − 1 largest products with others.
    """
    number = len(rows)
    # row t ends at period t: the column of period s has entries from row s on
    columns = [[rows[t][s] for t in range(s, number)] for s in range(number)]
    if together == 1:
        return max(sum(value * value for value in column) for column in columns)
    grams = [[0] * number for _ in rows]  # |RᵀR|
    for s, column in enumerate(columns):
        for other in range(s + 1):  # the columns share the entries of the later one
            grams[s][other] = grams[other][s] = abs(sum(map(mul, column, columns[other][s - other :])))
    if together >= number:
        return sum(map(sum, grams))
    bounds = list[int]()  # of each column
    for s, products in enumerate(grams):
        others = sorted((value for other, value in enumerate(products) if other != s), reverse=True)
        bounds.append(grams[s][s] + sum(others[: together - 1]))
    if math.comb(number, together) > MOST_SETS:
        return sum(sorted(bounds, reverse=True)[:together])
    return max(sum(grams[s][other] for s in chosen for other in chosen)
               for chosen in combinations(range(number), together))  # fmt: skip


def largest_column_sums(rows: Sequence[Sequence[int]], together: int) -> int:
    """Return the sum of the k largest Σ_t |R[t, s]|."""
    number = len(rows)
    sums = sorted((sum(abs(rows[t][s]) for t in range(s, number)) for s in range(number)), reverse=True)
    return sum(sums[:together])


def row_faults(records: Sequence[Fields], part: Fields) -> Iterator[str]:
    """Yield a fault if the rows of a matrix that are drawn are not its first ones, or have different draws.

    The rows of the matrix R are periods. Each has the same draws but for its row and its file.
    """
    if (outer := part.get("outer")) is None:
        if wrong := next((record for record in records if "row" in record), None):
            yield f"{label(wrong)} is a row of a matrix that its part does not have"
        return
    rows = defaultdict[int, list[Fields]](list)
    for record in records:
        rows[record["row"]].append({name: value for name, value in record.items() if name not in ("row", "file")})
    if sorted(rows) != list(range(len(rows))) or len(rows) > len(outer["rows"]):
        yield "the drawn rows of a matrix are not its first ones"
    elif others := [row for row, row_records in rows.items() if row_records != rows[0]]:
        yield f"row {others[0]} ({outer['names'][others[0]]}) has other draws than row 0 ({outer['names'][0]})"
    if any(map(is_selection, records)) or "delta" in part:
        yield "rows of a matrix have selections or an additive δ, which have no cost over all rows"


# ---- thresholds ------------------------------------------------------------------------------------------------------


def failure_events(records: Sequence[Fields], part: Fields, events: Events, entry: str) -> Events:
    """Return the additive δ of a part under an entry as an event; `events` are its others, over all its steps.

    The δ of one step grows with the steps (`grown_delta`); μ and ε of one step are those of all divided by their
    number.
    """
    steps = int(part["steps"])
    chances = [threshold_delta(record, part) for record in records if "threshold" in record]
    delta = sum(map(Fraction, chances), Fraction(part.get("delta") or 0) if not entry else Fraction(0))
    if not delta:
        return Events()
    mu = math.sqrt(sum(count * AS_GAUSSIAN[kind](float(cost)) for (kind, cost), count in events.items()))
    laplace = sum(float(cost) * count for (kind, cost), count in events.items() if kind == "laplace")
    # pure ε exists only without Gaussian events and selections
    pure = laplace / steps if all(kind == "laplace" for kind, _ in events) else math.inf
    return Events({("delta", grown_delta(delta, mu / steps, pure, steps)): 1})


AS_GAUSSIAN: dict[str, Callable[[float], float]] = {  # μ² of the events of draws
    "gaussian": lambda squared: squared,
    "laplace": lambda epsilon: mu_of_pure(epsilon) ** 2,
    "selection": lambda epsilon: mu_of_pure(epsilon / 2) ** 2,
}


def grown_delta(delta: Fraction, mu: float, pure: float, steps: int) -> Fraction:
    """Return an additive δ over `steps` neighbours, each at this μ and, if finite, at this pure ε.

    δ_k = δ + min(Φ(Φ⁻¹(δ_(k−1)) + μ), e^ε δ_(k−1)), at most 1: an event of probability δ_(k−1) at one neighbour has at
    most this probability at the next.
    """
    if not 0 <= delta <= 1:
        raise ValueError("an additive δ is a probability")
    grown = delta
    for _ in range(steps - 1):
        level = float(grown)
        power = _tail(-NormalDist().inv_cdf(level) - mu) if 0 < level < 1 else level
        grown = min(delta + Fraction(min(power, math.exp(min(pure, 700)) * level)), Fraction(1))
    return grown


def threshold_delta(record: Fields, part: Fields) -> float:
    """Return the largest probability that a value of one unit alone passes the threshold of a record.

    A unit of k rows divides them over its values. If the record has `votes`, which names the bound of the unit's rows,
    it gives floor(w/√r) to each of r values, where w is the record's bound.
    """
    threshold, step, variance = (int(record[name]) for name in ("threshold", "multiplier", "variance"))
    # L1 norm of the only change: the rows of a unit, or w
    [most] = changes(bound_of(record, part))[1]
    if "votes" in record:
        [rows] = changes(bound_of({"bound": record["votes"]}, part))[1]
        return vote_delta(threshold, step, variance, most, rows)
    return split_delta(threshold, step, variance, most)


def tail(distance: int, variance: int) -> float:
    """Return a bound of P(z ≥ distance): the tail of a normal variable from distance − 1/2, where it is convex."""
    if distance * 2 - 1 < 2 * math.sqrt(variance):
        return 1.0
    return 0.5 * math.erfc((distance - 0.5) / math.sqrt(2 * variance))


def split_delta(threshold: int, step: int, variance: int, rows: int) -> float:
    """Return the largest 1 − Π (1 − P(z ≥ t − m r_j)) over all ways to divide the rows of a unit over values.

    A value with r_j rows of the unit alone passes the threshold t with noise z and multiplier m (`step`). The best
    division is found for 1, 2, … rows in turn, by the sum of the losses −log(1 − P).
    """
    # of a value with 1, 2, … rows
    passing = [tail(threshold - step * of_value, variance) for of_value in range(1, min(rows, MOST_SPLIT) + 1)]
    if max(passing) >= 1:
        return 1.0
    losses = [-math.log1p(-probability) for probability in passing]
    if rows > MOST_SPLIT:  # a lower bound of the largest δ: equal parts of any size
        whole = -math.log1p(-tail(threshold - step * rows, variance))
        return -math.expm1(-max(whole, *(loss * (rows // of_value) for of_value, loss in enumerate(losses, 1))))
    best = [0.0]  # largest sum of losses of 0, 1, … rows
    for total in range(1, rows + 1):
        best.append(max(losses[of_value - 1] + best[total - of_value] for of_value in range(1, total + 1)))
    return -math.expm1(-best[rows])


def vote_delta(threshold: int, step: int, variance: int, vote: int, values: int) -> float:
    """Return the largest probability that one of the values for which one unit alone votes passes the threshold.

    A unit votes for r values with the weight 1/√r; `vote` is the weight of a unit with one value. The probability that
    at least one of r independent values passes is 1 - (1 - p)^r.
    """
    found = 0.0
    for voted in range(1, min(values, vote**2) + 1):
        passing = tail(threshold - step * math.isqrt(vote**2 // voted), variance)
        found = max(found, 1.0 if passing >= 1 else -math.expm1(voted * math.log1p(-passing)))
    if values > vote**2:  # such votes have no weight
        found = max(found, -math.expm1(values * math.log1p(-tail(threshold, variance))))
    return found


# ---- cells -----------------------------------------------------------------------------------------------------------


def shape_faults(record: Fields, part: Fields, factors: Mapping[str, Fields]) -> Iterator[str]:
    """Yield a fault if the strategy of a record does not fit the cells of its attributes, or its numbers.

    A number is divided into R equal parts of 1/R: a record is spread over cells with parts that are at least 0 and sum
    to 1. So columns of a strategy bound its effect as for attributes, and counts are multiples of 1/R, which the
    multiplier must be of R.
    """
    names, axes = record.get("attributes"), part.get("axes", {})
    if names is None:
        return
    if unknown := sorted(set(names) - set(axes)):
        yield f"records.json measures {unknown[0]!r}, which is no attribute of {record['part']}"
        return
    where = f"({', '.join(names)})"
    if wrong := next((name for name in names if not has_classes(axes[name])), ""):
        yield f"the classes of the cells of {wrong} are not one class for each cell"
    elif shape_of(record, factors) != [measured(axes[name]) for name in names] and not is_grouped(
        record, part, factors
    ):
        yield f"the strategy of {where} does not have the shape of its attributes"
    elif int(record["multiplier"]) % math.prod(axes[name].get("parts", 1) for name in names):
        yield f"the measurement of {where} rounds its numbers"
    else:
        yield from _total_faults(record, part, factors)


def has_classes(axis: Fields) -> bool:
    """Return whether each cell of an attribute is in one class of 0 … k − 1, so that a record changes one sum by 1."""
    if "classes" not in axis:
        return True
    labels = unpacked(axis["classes"])
    return len(labels) == axis["cells"] and set(labels) == set(range(len(set(labels))))


def measured(axis: Fields) -> int:
    """Return the number of cells of an attribute, or of the classes over which its cells are summed."""
    return len(set(unpacked(axis["classes"]))) if "classes" in axis else int(axis["cells"])


def _total_faults(record: Fields, part: Fields, factors: Mapping[str, Fields]) -> Iterator[str]:
    """Yield faults of a draw with a number of which the total over a unit is bounded, instead of each value.

    A record of value t is then −t/2 and t/2 beside equal parts of 1/2, with Σ|t| at most the number of rows of a unit.
    So columns bound the effect of a unit if every row of the strategy sums to zero along this axis, and no other one
    has totals.
    """
    names, axes = record["attributes"], part["axes"]
    with_totals = [axis for axis, name in enumerate(names) if "total_of" in axes[name]]
    rows_of_unit = changes(bound_of(record, part))[1]
    if any([axes[names[axis]]["total_of"]] != rows_of_unit for axis in with_totals):
        yield f"the measurement of ({', '.join(names)}) has a total over another number of rows of a unit"
    if len(with_totals) > 1 or any(not is_centred(record["factors"], factors, axis) for axis in with_totals):
        yield f"the measurement of ({', '.join(names)}) is not bounded by the total of a unit"


def shape_of(record: Fields, factors: Mapping[str, Fields]) -> list[int]:
    return [size for name in record["factors"] for size in factors[name]["shape"]]


def is_grouped(record: Fields, part: Fields, factors: Mapping[str, Fields]) -> bool:
    """Return whether a draw of a later decision is over groups of cells, each cell in one: the shape is smaller."""
    if "attributes" not in record:
        return False
    shape, full = shape_of(record, factors), [measured(part["axes"][name]) for name in record["attributes"]]
    smaller = len(shape) == len(full) and all(size <= full_size for size, full_size in zip(shape, full, strict=True))
    return smaller and shape != full and int(record["decision"]) > 0


def is_centred(names: Sequence[str], factors: Mapping[str, Fields], axis: int) -> bool:
    """Return whether every row of a strategy sums to zero along an axis.

    Cells along the axis are `inner` places apart in a row, and successive ranges of `size` such places are independent.
    """
    # a single factor may be over all axes, others are over one axis each
    factor = factors[names[0 if len(names) == 1 else axis]]
    shape, place = factor["shape"], axis if len(names) == 1 else 0
    if factor["kind"] == "center":
        return len(shape) == 1
    if not {"matrix", "packed"} & set(factor):
        return False
    size, inner = shape[place], math.prod(shape[place + 1 :])
    return not any(
        sum(row[first : first + size * inner : inner])
        for row in rows(factor)
        for block in range(0, math.prod(shape), size * inner)
        for first in range(block, block + inner)
    )


# ---- formulas --------------------------------------------------------------------------------------------------------


def delta_of_mu(mu: float, epsilon: float) -> float:
    """Return δ of the Gaussian mechanism, exactly (Balle & Wang 2018)."""
    far = _tail(epsilon / mu + mu / 2)
    return _tail(epsilon / mu - mu / 2) - (math.exp(min(epsilon, 700)) * far if far else 0.0)


def _tail(x: float) -> float:
    return math.erfc(x / math.sqrt(2)) / 2


def mu_of_pure(epsilon: float) -> float:
    """Return the μ of ε-DP as Gaussian DP: its trade-off curve touches that of N(0, 1) against N(μ, 1)."""
    return -2 * NormalDist().inv_cdf(1 / (1 + math.exp(epsilon))) if epsilon < 700 else math.inf
