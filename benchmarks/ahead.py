"""Where an adaptive mechanism is nearer than a plan settled beforehand, and whether that can be told without data.

For marginals, prefixes and ranges over all sets of two and three attributes of every table of ../shared/data: the root
mean square error of `weighted-residuals` (exact, by its plan) over that of one run of `aim-grem` (on some sets), by how
large the former is against what a query would hold on average, were records spread evenly. Both are public but for the
number of records, so `dpscale plan` can say how many records a table must have for which mechanism.

    python benchmarks/ahead.py [--tables adult …] [--epsilons 0.1 1 10] [--seed 100] [--save]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import results
from adaptive import adaptive, cost_of, tables
from marginal_tables import DATA, KEPT, Table

from dpscale import Domain, Workload, plan
from dpscale.mechanisms.aim.state import State
from dpscale.mechanisms.aim_grem import Options
from dpscale.stages.ahead import evenly
from dpscale.workload import Part

ASKED = (("marginal", 2), ("marginal", 3), ("prefix", 2), ("prefix", 3), ("range", 2))
EDGES = (0, 0.01, 0.03, 0.1, 0.3, 1, math.inf)
SETS, MOST_ATTRIBUTES = 60, 30  # all 3-way prefixes of more attributes take minutes to plan


def error(table: Table, part: Part, state: State, seed: int) -> float:
    """Root mean square over the queries of some sets."""
    sets = list(part.sets)
    some = [sets[i] for i in np.random.default_rng(seed).permutation(len(sets))[:SETS]]
    off = [part.answers(names, state.marginal(names) - table.counts(names)).reshape(-1) for names in some]
    return float(np.sqrt(np.mean(np.concatenate(off) ** 2)))


def compared(table: Table, epsilons: list[float], seed: int) -> Iterator[tuple[float, float]]:
    """For every family and ε: the plan's error against an even answer, and against the adaptive one's error."""
    states = {epsilon: adaptive(table, epsilon, seed, Options()) for epsilon in epsilons}
    for family, degree in ASKED:
        workload = Workload(Domain(dict(table.sizes))).add(family, degree=degree)
        made, even = plan(workload, "weighted-residuals"), table.rows * evenly(workload)
        for epsilon, state in states.items():
            own, other = made.rmse() / cost_of(epsilon) ** 0.5, error(table, workload.parts[0], state, seed)
            print(f"{table.name:12} {degree}-way {family:8} epsilon {epsilon:4g}: plan {own:.4g}, aim-grem {other:.4g},"
                  f" ratio {own / other:.2f}, of an even answer {own / even:.4g}", flush=True)  # fmt: skip
            yield own / even, own / other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=KEPT, choices=KEPT)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    found = [one for table in tables(asked.tables, DATA) if len(table.names) <= MOST_ATTRIBUTES
             for one in compared(table, asked.epsilons, asked.seed)]  # fmt: skip
    kept: dict[str, float] = {}
    for low, high in pairwise(EDGES):
        ratios = [ratio for even, ratio in found if low <= even < high]
        if ratios:
            kept[f"{low:g}, cases"] = len(ratios)
            kept[f"{low:g}, ratio"] = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
            kept[f"{low:g}, ahead"] = sum(ratio > 1 for ratio in ratios) / len(ratios)
            print(f"from {low:g} to {high:g}: {len(ratios)} cases, geometric mean {kept[f'{low:g}, ratio']:.2f}, "
                  f"aim-grem ahead in {100 * kept[f'{low:g}, ahead']:.0f} %")  # fmt: skip
    if asked.save:
        results.save("ahead", kept)


if __name__ == "__main__":
    main()
