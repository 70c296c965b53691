"""Recompute the cost of searches for cells that are not public: python search_costs.py [FOLDER]; exit code 1 if wrong.

The script uses only the standard library and is part of a bundle whose run had a stage `discover`, beside recompute.py.
searches.json has the noise of every search. The ledger's entry NAME-domain must cover their costs, for units of k rows:

    values   μ² = m²k²/(v − 8), and the additive δ of a threshold t: the largest 1 − Π (1 − P(z ≥ t − m r_j)) over all
             ways to divide k rows over values, with a bound of the tail of the discrete Gaussian
    ends     μ² = m²k²/(v − 8)
    nodes    the same for each level of the tree
    edges    the largest sum of m²k²/(v − 8) over the measured nodes of a path from the root to a node

Both entries together must be within ε and δ of the job.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from dpscale.audit.evidence.crosscheck import budget, tomllib
    from dpscale.audit.evidence.recompute import min_epsilon
    from dpscale.audit.evidence.sensitivities import SMOOTHING, delta_of_mu
else:  # in a bundle, in which no files may be created
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path(__file__).parent))
    from crosscheck import budget, tomllib
    from recompute import min_epsilon
    from sensitivities import SMOOTHING, delta_of_mu

Fields = dict[str, Any]
ROUNDING, WITHIN = 1e-8, 1e-6  # relative tolerances: of tails of the noise, and of a claim
LEAST = Fraction(9, 10)  # of the charge that the noise must cost
MOST_SPLIT = 2000


def squared_mu(noise: Fields, rows: int) -> Fraction:
    """Return μ² of a histogram in whose counts a unit has `rows` rows."""
    return Fraction((int(noise["multiplier"]) * rows) ** 2, int(noise["variance"]) - SMOOTHING)


def tail(distance: int, variance: int) -> float:
    """Return a bound of P(z ≥ distance), a geometric series from its first term."""
    if distance < 0:
        return 1.0
    first = math.exp(-float(Fraction(distance * distance, 2 * variance))) / math.sqrt(2 * math.pi * variance)
    return min(1.0, first / -math.expm1(-float(Fraction(2 * distance + 1, 2 * variance))))


def additive_delta(noise: Fields, rows: int) -> float:
    """Return the largest probability that a value of one unit alone passes the threshold."""
    threshold, step, variance = (int(noise[name]) for name in ("threshold", "multiplier", "variance"))
    passing = [tail(threshold - step * own, variance) for own in range(1, min(rows, MOST_SPLIT) + 1)]
    if max(passing) >= 1:
        return 1.0
    losses = [-math.log1p(-one) for one in passing]
    if rows > MOST_SPLIT:  # a lower bound of the largest δ: equal parts of any size
        whole = -math.log1p(-tail(threshold - step * rows, variance))
        return -math.expm1(-max(whole, *(loss * (rows // (at + 1)) for at, loss in enumerate(losses))))
    best = [0.0]
    for total in range(1, rows + 1):
        best.append(max(losses[own - 1] + best[total - own] for own in range(1, total + 1)))
    return -math.expm1(-best[rows])


def dearest_path(nodes: list[Any], rows: int) -> Fraction:
    """Return the largest sum of μ² on a path of a binary tree."""
    own: dict[tuple[int, int], Fraction] = {}
    for level, index, multiplier, variance, _ in nodes:
        place = int(level), int(index)
        cost = squared_mu({"multiplier": multiplier, "variance": variance}, rows)
        own[place] = own.get(place, Fraction(0)) + cost
    sums: dict[tuple[int, int], Fraction] = {}
    for level, index in sorted(own):
        sums[level, index] = own[level, index] + sums.get((level - 1, index >> 1), Fraction(0))
    return max(sums.values(), default=Fraction(0))


def cost_of(search: Fields, rows: int) -> tuple[Fraction, float]:
    """Return μ² and the additive δ of a search."""
    noise = search["measurement"]
    kind = noise["search"]
    if kind == "edges":
        return dearest_path(search["nodes"], rows), 0.0
    levels = int(noise["levels"]) if kind == "nodes" else 1
    return squared_mu(noise, rows) * levels, additive_delta(noise, rows) if kind == "values" else 0.0


def faults(folder: str | Path) -> list[str]:
    """Return the claims about the searches that fail; none if all are correct."""
    names = ("searches", "draws", "ledger", "events", "run-files")
    files = {name: json.loads((Path(folder) / f"{name}.json").read_text("utf-8")) for name in names}
    rows = int(files["draws"]["components"][0]["rows_per_unit"])
    releases = {row["release"]: row for row in files["ledger"]["releases"]}
    own, table = (releases.get(files["draws"]["release"] + end) for end in ("-domain", ""))
    if own is None or table is None:
        return ["the searches are not on the ledger"]
    costs = [cost_of(one, rows) for one in files["searches"].values()]
    squared, delta = sum((one for one, _ in costs), Fraction(0)), sum(one for _, one in costs)
    found = list(_charge_faults(own["cost"], squared, delta, files["searches"]))
    digest = hashlib.sha256((Path(folder) / "searches.json").read_bytes()).hexdigest()
    if files["run-files"].get("domain/searches.json") != digest:
        found.append("searches.json differs from the file of the run")
    return found + (list(_job_faults(Path(folder), files, own, table)) if tomllib is not None else [])


def _charge_faults(cost: Fields, squared: Fraction, delta: float, searches: Fields) -> Iterator[str]:
    """Yield a fault if the searches cost more than was charged, or if their noise is larger than what was charged."""
    paid, added = Fraction(cost.get("gaussian") or 0), float(Fraction(cost.get("delta") or 0))
    if squared > paid * Fraction(1 + 1e-12):
        yield f"the searches cost {float(squared):.9g}, but {float(paid):.9g} was charged"
    if squared < LEAST * paid:
        yield f"the searches cost only {float(squared / paid):.3g} of the charge"
    if delta > added * (1 + ROUNDING):
        yield f"the searches have an additive δ of {delta:.9g}, but {added:.9g} was charged"
    if wrong := [name for name, one in searches.items() if one["measurement"]["attribute"] != name]:
        yield f"searches.json has the search of another attribute under {wrong[0]}"


def _job_faults(folder: Path, files: Fields, own: Fields, table: Fields) -> Iterator[str]:
    """Yield differences from the job and the domain."""
    job, domain = (tomllib.loads((folder / name).read_text("utf-8")) for name in ("job.toml", "domain.toml"))
    if list(domain.get("discovered", [])) != list(files["searches"]):
        yield "domain.toml and searches.json name different attributes"
    if own.get("unit") != table.get("unit") or own.get("relation") != table.get("relation"):
        yield "the searches and the release protect different units"
    privacy, costs = job["privacy"], (own["cost"], table["cost"])
    squared = sum((Fraction(one.get("gaussian") or 0) for one in costs), Fraction(0))
    if squared > budget(privacy) * Fraction(1 + WITHIN):
        yield "the searches and the release cost more than the budget of job.toml"
    if privacy.get("epsilon") is not None:
        left = privacy["delta"] - float(Fraction(own["cost"].get("delta") or 0))
        mu = math.sqrt(squared)
        if left <= 0 or min_epsilon(lambda epsilon: delta_of_mu(mu, epsilon), left) > privacy["epsilon"] * (1 + WITHIN):
            yield "the searches and the release have a larger epsilon than job.toml at its delta"


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    wrong = faults(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    print(*(f"FAULT: {one}" for one in wrong) if wrong else ["all claims about the searches are correct"], sep="\n")
    sys.exit(1 if wrong else 0)
