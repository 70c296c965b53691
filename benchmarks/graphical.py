"""Graphical models and rows from them: `mst`, `aim-pgm`, `aim-grem` on all 3-way marginals of a table, δ = 1e-9.

Prints, for every table and ε, the mean error over seeds (as in adaptive.py) of estimates and of as many rows as
records, and seconds on one core: of the run (rounds of select, measure, fit), of the last fit, of rows.
Rows are drawn by the sampler and, from a junction tree, in ancestral order. `independent`: rows of the 1-way marginals
only.

    python benchmarks/graphical.py [--tables adult] [--epsilons 1] [--seeds 3] [--only mst aim-pgm] [--options K=V …]
        --peer-python PATH     also `mbi`'s fit of the same measurements (peer_fit.py), with a Python that has it
        --save                 save the figures of Adult at ε = 1 in results/

Published for Adult at ε = 1: AIM with Private-PGM 0.166 (estimates), 0.179 (rows) in 349 s; SWIFT 0.180 (rows) in
302 s; MST 0.226 (rows) in 41 s.
"""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import tempfile
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import base
import numpy as np
from adaptive import cost_of, load_tables
from base import DATA, Table
from rows import MEMORY, draw_rows, row_error

from dpscale import Domain, Workload
from dpscale.base.numerics import one_thread
from dpscale.measurement.adaptive import run
from dpscale.mechanisms import aim_grem, aim_pgm, mst
from dpscale.mechanisms.aim.estimators import observed
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.privacy.streams import PublicStream, seeded_secret
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.graphical_fit import FitOptions, Observed, fit
from dpscale.reconstruction.pairwise import learn, pair_targets
from dpscale.synthesis.ancestral import ancestral_sampler
from dpscale.synthesis.draw import RowPart

MECHANISMS = {"mst": mst, "aim-pgm": aim_pgm, "aim-grem": aim_grem}
Figures = dict[str, float]


class Stopwatch:
    """Seconds of calls, by name."""

    def __init__(self) -> None:
        self.seconds: Figures = {}

    def __call__(self, name: str, made: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        with one_thread():
            found = made()
        self.seconds[f"{name}, s"] = time.perf_counter() - began
        return found


def run_mechanism(table: Table, name: str, options: dict[str, Any], epsilon: float, seed: int) -> Any:
    """Return the plan and the last state of a run."""
    workload = Workload(Domain(dict(table.sizes))).add("marginal", degree=len(table.targets[0]))
    problem, module = PlanningProblem(workload, Budget(GAUSSIAN, cost_of(epsilon))), MECHANISMS[name]
    measurement_plan = module.plan(problem, module.Options(**options))
    return measurement_plan, run(measurement_plan, table.counts, seeded_secret(seed))


def measure_outcome(table: Table, name: str, options: dict, epsilon: float, seed: int, peer: str) -> Figures:
    timed = Stopwatch()
    measurement_plan, state = timed("run", lambda: run_mechanism(table, name, options, epsilon, seed))
    low = state.fit.model if name == "aim-grem" else fit_maxent(measurement_plan, state)
    found = sampled_errors(table, low, seed, timed)
    if name == "aim-grem":
        return {"estimates": table.error(low.marginal), **found, **timed.seconds}
    measurements, sizes = observed(state.counts, state.groups, state.residuals), dict(table.sizes)
    model = timed("fit", lambda: fit(sizes, measurements, FitOptions()))
    drawing = timed(
        "ancestral", lambda: ancestral_sampler(model).rows(RowPart(round(model.total), 1, 0), f"seed {seed}")
    )
    found |= {"rows, ancestral": row_error(table, drawing), "estimates": table.error(model.marginal), **timed.seconds}
    found |= {"cells": float(model.tree.cells)}
    return found | (peer_figures(table, measurements, model.total, peer) if peer else {})


def fit_maxent(measurement_plan: Any, state: Any) -> LowOrder:
    """Return the local maximum-entropy model of the same measurements, from which the sampler draws."""
    estimator = measurement_plan.estimating.estimator
    model: LowOrder = estimator.fit(state.counts, state.groups, state.residuals, measurement_plan.candidates).model
    return model


def sampled_errors(table: Table, low: LowOrder, seed: int, timed: Stopwatch) -> Figures:
    """Return the errors of rows from the sampler, and of rows of the same 1-way marginals."""
    count, release = round(low.total), f"seed {seed}"
    drawn = timed("sampler", lambda: draw_rows(low, learn(pair_targets(low, MEMORY), release), release, count, 1))
    chance = PublicStream(release, "independent")
    alone = np.stack([chance.systematic(low.ones[name], count) for name in table.names], axis=1)
    return {"rows, sampler": row_error(table, drawn), "rows, independent": row_error(table, alone)}


def peer_figures(table: Table, measurements: list[Observed], total: float, peer: str) -> Figures:
    """Return the error of mbi's rows from the same measurements, and its seconds."""
    with tempfile.TemporaryDirectory() as place:
        handed, drawn = Path(place) / "measurements.pickle", Path(place) / "rows.npy"
        content = [(one.attributes, axis_matrices(one), one.values, one.variance**0.5) for one in measurements]
        handed.write_bytes(pickle.dumps((dict(table.sizes), content, total)))
        script = Path(__file__).with_name("peer_fit.py")
        done = subprocess.run([peer, "-W", "ignore", script, handed, drawn], capture_output=True, text=True, check=True)
        seconds = json.loads(done.stdout.splitlines()[-1])
        return {
            "rows, mbi": row_error(table, np.load(drawn)),
            **{f"mbi, {name}, s": own for name, own in seconds.items()},
        }


def axis_matrices(one: Observed) -> list[np.ndarray] | None:
    """Return the matrix from cells to measured groups for every axis, or None for a measurement of cells."""
    if all(own is None for own in one.operators):
        return None
    pairs = zip(one.operators, one.groups, strict=True)
    return [(np.eye(groups.count) if own is None else own)[:, groups.labels] for own, groups in pairs]


def published_figures(name: str, means: Figures) -> Figures:
    """Return the figures that the documentation shows."""
    alone = {"aim-grem": "rows, independent", "mst": "mbi, fit again, s"}.get(name)
    pair_targets = ("estimates", "rows, sampler", "rows, ancestral", "rows, mbi", "mbi, fit, s", alone)
    seconds = sum(means.get(f"{part}, s", 0.0) for part in ("run", "fit", "sampler", "ancestral"))
    found = {key: value for key, value in means.items() if key in pair_targets} | {"seconds": seconds}
    return {f"{name}, {key}": value for key, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=["adult"])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--only", nargs="+", default=list(MECHANISMS), choices=list(MECHANISMS))
    parser.add_argument("--options", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    options = {key: json.loads(value) for key, value in (one.split("=") for one in arguments.options)}
    figures: Figures = {}
    for table in load_tables(arguments.tables, arguments.data):
        for degree in (1, 2, 3):
            for names in combinations(table.names, degree):
                table.counts(names)  # so that no time includes counting
        for epsilon in arguments.epsilons:
            print(f"{table.name}, epsilon {epsilon:g}", flush=True)
            for name in arguments.only:
                seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
                found = [measure_outcome(table, name, options, epsilon, seed, arguments.peer_python) for seed in seeds]
                means = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
                print(f"  {name}: {', '.join(f'{key} {value:.4g}' for key, value in means.items())}", flush=True)
                if (table.name, epsilon) == ("adult", 1.0):
                    figures |= published_figures(name, means)
    if arguments.save:
        base.save("graphical", figures)


if __name__ == "__main__":
    main()
