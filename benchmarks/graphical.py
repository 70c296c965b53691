"""Graphical models: `mst` and `aim-pgm` on all 3-way marginals of a table, δ = 1e-9; errors as in adaptive.py.

Prints, for every table and ε, the mean error of estimates over seeds with its spread, and seconds on one core: of the
run (rounds of select, measure, fit), and of the last fit with all answers. Counting is left out.

    python benchmarks/graphical.py [--tables adult] [--epsilons 1] [--seeds 3] [--only mst aim-pgm] [--aim KEY=VALUE …]

Reported elsewhere for Adult at ε = 1: AIM with Private-PGM 0.166 in 349 s; MST 0.226 (rows) in 41 s.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from adaptive import cost_of, tables
from marginal_tables import DATA, Table

from dpscale import Domain, Workload
from dpscale.adaptive import run
from dpscale.blas import one_thread
from dpscale.graphical.fit import Effort, fit
from dpscale.mechanisms import aim_grem, aim_pgm, mst
from dpscale.mechanisms.aim.graphical import observed
from dpscale.mechanisms.contract import Question
from dpscale.privacy.budget import GAUSSIAN, Budget
from dpscale.privacy.streams import seeded_secret

MECHANISMS = {"mst": mst, "aim-pgm": aim_pgm, "aim-grem": aim_grem}


def outcome(table: Table, module, options: dict, epsilon: float, seed: int) -> list[float]:
    """Error of the graphical model, of local maximum entropy, seconds of the run, of the fit, of all answers."""
    workload = Workload(Domain(dict(table.sizes))).add("marginal", degree=len(table.targets[0]))
    question = Question(workload, Budget(GAUSSIAN, cost_of(epsilon)))
    planned = module.plan(question, module.Options(**options))
    times = [time.perf_counter()]
    state = run(planned, table.counts, seeded_secret(seed))
    times.append(time.perf_counter())
    told = observed(state.counts, state.groups, state.residuals)
    with one_thread():
        model = fit({name: len(noisy.values) for name, noisy in state.counts.items()}, told, Effort())
    times.append(time.perf_counter())
    error = table.error(model.marginal)
    times.append(time.perf_counter())
    local = planned.estimating.beliefs.belief(state.counts, state.groups, state.residuals, planned.candidates)
    cells, rounds = model.tree.cells, len(state.rounds)
    size = f"{cells:,} cells in {len(model.tree.cliques)} cliques"
    print(f"      seed {seed}: {rounds} rounds, {size}, gap {model.gap:.2g}", flush=True)
    return [error, table.error(local.marginal), *np.diff(times)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=["adult"])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--only", nargs="+", default=["mst", "aim-pgm"], choices=list(MECHANISMS))
    parser.add_argument("--options", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--data", type=Path, default=DATA)
    asked = parser.parse_args()
    options = {key: json.loads(value) for key, value in (one.split("=") for one in asked.options)}
    for table in tables(asked.tables, asked.data):
        for names in planned_counts(table):
            table.counts(names)
        for epsilon in asked.epsilons:
            print(f"{table.name}, epsilon {epsilon:g}")
            for name in asked.only:
                seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
                found = np.array([outcome(table, MECHANISMS[name], options, epsilon, seed) for seed in seeds])
                error, local, ran, fitted, answered = found.mean(axis=0)
                print(f"  {name:10} {error:.4f} ± {found[:, 0].std():.4f} (maxent {local:.4f})   "
                      f"run {ran:.1f} s, fit {fitted:.1f} s, answers {answered:.1f} s", flush=True)  # fmt: skip


def planned_counts(table: Table) -> list[tuple[str, ...]]:
    """Every set that may be counted, so that counting is in no time told."""
    from itertools import combinations

    return [names for degree in (1, 2, 3) for names in combinations(table.names, degree)]


if __name__ == "__main__":
    main()
