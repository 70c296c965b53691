"""Workloads for which an adaptive mechanism is more accurate than a fixed plan, predicted without data.

For marginals, prefixes and ranges over all sets of two and three attributes of every table of ../shared/data: the root
mean square error of `weighted-residuals` (exact, from its plan) over that of one run of `aim-grem` on the same workload
(on some sets), by the ratio of the former to the mean count of a query with records spread evenly: for all queries, for
cells (marginals), and for cumulative queries. Both are public except for the number of records, so that `dpscale plan`
can say for how many records of a table which mechanism is better.

    python benchmarks/ahead.py [--tables adult …] [--epsilons 0.1 1 10] [--seed 100] [--save]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from itertools import pairwise, product

import base
import numpy as np
from adaptive import cost_of, load_tables
from base import DATA, KEPT, Table

from dpscale import Domain, Workload, plan
from dpscale.measurement.adaptive import run
from dpscale.mechanisms.aim.state import AimState
from dpscale.mechanisms.aim_grem import Options, plan as plan_adaptively
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.privacy.streams import seeded_secret
from dpscale.runs.stages.preview import mean_share
from dpscale.workload import WorkloadPart

WORKLOADS = (("marginal", 2), ("marginal", 3), ("prefix", 2), ("prefix", 3), ("range", 2))
EDGES = (0, 0.005, 0.01, 0.03, 0.05, 0.1, 0.3, 1, math.inf)
KINDS = ("cells", "cumulative")
SETS, MOST_ATTRIBUTES = 60, 30  # all 3-way prefixes of more attributes take minutes to plan


def rms_error(table: Table, part: WorkloadPart, state: AimState, seed: int) -> float:
    """Return the root mean square error over the queries of some sets."""
    sets = list(part.sets)
    some = [sets[i] for i in np.random.default_rng(seed).permutation(len(sets))[:SETS]]
    off = [part.answers(names, state.marginal(names) - table.counts(names)).reshape(-1) for names in some]
    return float(np.sqrt(np.mean(np.concatenate(off) ** 2)))


def run_adaptive_loop(table: Table, workload: Workload, epsilon: float, seed: int) -> AimState:
    """Return the last state of one run of `aim-grem` on a workload."""
    problem = PlanningProblem(workload, Budget(GAUSSIAN, cost_of(epsilon)))
    state: AimState = run(plan_adaptively(problem, Options()), table.counts, seeded_secret(seed))
    return state


def compare_mechanisms(table: Table, epsilons: list[float], seed: int) -> Iterator[tuple[str, float, float]]:
    """Yield, for every family and ε, its kind, the plan's error over the mean count, and over the adaptive error."""
    for family, degree in WORKLOADS:
        workload = Workload(Domain(dict(table.sizes))).add(family, degree=degree)
        made, even = plan(workload, "weighted-residuals"), table.rows * mean_share(workload)
        for epsilon in epsilons:
            own = made.rmse() / cost_of(epsilon) ** 0.5
            other = rms_error(table, workload.parts[0], run_adaptive_loop(table, workload, epsilon, seed), seed)
            print(f"{table.name:12} {degree}-way {family:8} epsilon {epsilon:4g}: plan {own:.4g}, aim-grem {other:.4g},"
                  f" ratio {own / other:.2f}, of an even answer {own / even:.4g}", flush=True)  # fmt: skip
            yield "cells" if family == "marginal" else "cumulative", own / even, own / other


def summarise_by_error(found: list[tuple[str, float, float]]) -> dict[str, float]:
    """Return, by kind and size of the plan's error, the cases, the mean ratio, and how often the loop is better."""
    figures: dict[str, float] = {}
    for (low, high), kind in product(pairwise(EDGES), KINDS):
        ratios = [ratio for own, even, ratio in found if low <= even < high and kind == own]
        if ratios:
            mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
            ahead = sum(ratio > 1 for ratio in ratios) / len(ratios)
            figures |= {f"{kind} {low:g}, {name}": value
                     for name, value in (("cases", len(ratios)), ("ratio", mean), ("ahead", ahead))}  # fmt: skip
            print(f"{kind}, from {low:g} to {high:g}: {len(ratios)} cases, geometric mean {mean:.2f}, "
                  f"aim-grem ahead in {100 * ahead:.0f} %")  # fmt: skip
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=KEPT, choices=KEPT)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    found = [one for table in load_tables(arguments.tables, DATA) if len(table.names) <= MOST_ATTRIBUTES
             for one in compare_mechanisms(table, arguments.epsilons, arguments.seed)]  # fmt: skip
    figures = summarise_by_error(found)
    if arguments.save:
        base.save("ahead", figures)


if __name__ == "__main__":
    main()
