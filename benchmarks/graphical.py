"""Graphical models and laws: mechanisms by their rows, and what rows keep of parities.

python benchmarks/graphical.py mechanisms    estimates and rows of mechanisms with a graphical model
python benchmarks/graphical.py laws          parities and other laws in estimates and rows
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import base
import numpy as np
import pandas as pd
from adaptive import cost_of
from base import DATA, Table, load_tables
from rows import MEMORY, draw_rows, release, row_error
from sklearn.ensemble import RandomForestClassifier

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
from dpscale.workload.residual import center

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
        script = base.ROOT / "benchmarks" / "rivals" / "peer.py"
        done = subprocess.run(
            [peer, "-W", "ignore", script, "fit", handed, drawn], capture_output=True, text=True, check=True
        )
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


def print_mechanisms() -> None:
    """Graphical models and rows from them: `mst`, `aim-pgm`, `aim-grem` on all 3-way marginals of a table, δ = 1e-9.

    Prints, for every table and ε, the mean error over seeds (as in adaptive.py) of estimates and of as many rows as
    records, and seconds on one core: of the run (rounds of select, measure, fit), of the last fit, of rows. Rows are
    drawn by the sampler and, from a junction tree, in ancestral order. `independent`: rows of the 1-way marginals only.

        python benchmarks/graphical.py mechanisms [--tables adult] [--epsilons 1] [--seeds 3] [--only mst aim-pgm]
            [--options K=V …]
            --peer-python PATH     also `mbi`'s fit of the same measurements (rivals/peer.py), with a Python that has it
            --save                 save the figures of Adult at ε = 1 in results/

    Published for Adult at ε = 1: AIM with Private-PGM 0.166 (estimates), 0.179 (rows) in 349 s; SWIFT 0.180 (rows) in
    302 s; MST 0.226 (rows) in 41 s.
    """
    parser = base.command_parser(print_mechanisms.__doc__)
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


ROWS, FLIPS, TREES, KEPT = 20_000, 0.05, 100, 0.5
Law = tuple[str, ...]


def parity(degree: int, attributes: int = 11) -> Callable[[int], tuple[pd.DataFrame, list[Law]]]:
    """Return a maker of fair bits, the last of which is the parity of the first `degree` − 1, with errors."""

    def make(seed: int) -> tuple[pd.DataFrame, list[Law]]:
        rng = np.random.default_rng(seed)
        bits = rng.integers(0, 2, (ROWS, attributes - 1))
        y = (bits[:, : degree - 1].sum(axis=1) % 2) ^ (rng.random(ROWS) < FLIPS)
        frame = named(bits).assign(y=y)
        return frame, [(*frame.columns[: degree - 1], "y")]

    return make


def named(columns: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(columns, columns=[f"x{i}" for i in range(columns.shape[1])])


def sums_modulo_four(seed: int) -> tuple[pd.DataFrame, list[Law]]:
    """Four-level attributes; the last is the sum of two others modulo 4, with errors."""
    rng = np.random.default_rng(seed)
    levels = rng.integers(0, 4, (ROWS, 7))
    errors = np.where(rng.random(ROWS) < FLIPS, rng.integers(0, 4, ROWS), 0)
    return named(levels).assign(y=(levels[:, 0] + levels[:, 1] + errors) % 4), [("x0", "x1", "y")]


def shared_attributes(seed: int) -> tuple[pd.DataFrame, list[Law]]:
    """Two parities, of three and of four attributes, that share an attribute."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (ROWS, 9))
    y = bits[:, 0] ^ bits[:, 1] ^ (rng.random(ROWS) < FLIPS)
    z = bits[:, 1] ^ bits[:, 2] ^ bits[:, 3] ^ (rng.random(ROWS) < FLIPS)
    return named(bits).assign(y=y, z=z), [("x0", "x1", "y"), ("x1", "x2", "x3", "z")]


def beside_pairs_and_triples(seed: int) -> tuple[pd.DataFrame, list[Law]]:
    """A parity of four attributes among attributes that are dependent by pairs and by three."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (ROWS, 9))
    for column in (4, 5):
        bits[:, column] = np.where(rng.random(ROWS) < 0.7, bits[:, column - 4], bits[:, column])
    bits[:, 6] = (bits[:, 4] & bits[:, 5]) ^ (rng.random(ROWS) < 0.2)
    y = bits[:, 0] ^ bits[:, 1] ^ bits[:, 2] ^ (rng.random(ROWS) < FLIPS)
    return named(bits).assign(y=y), [("x0", "x1", "x2", "y")]


LAWS: dict[str, tuple[int, Callable[[int], tuple[pd.DataFrame, list[Law]]]]] = {
    **{f"parity of {degree}": (degree, parity(degree)) for degree in (3, 4, 5)},
    "sums modulo 4": (3, sums_modulo_four),
    "two laws": (4, shared_attributes),
    "beside pairs and triples": (4, beside_pairs_and_triples),
}
UNASKED = "parity of 4"
COMPARED = ("weighted-residuals", "aim-grem", "aim-pgm")


def law_table(frame: pd.DataFrame, law: Law, sizes: dict[str, int]) -> np.ndarray:
    counts = np.zeros([sizes[name] for name in law])
    np.add.at(counts, tuple(frame[name].to_numpy().astype(int) for name in law), 1)
    return counts


def strength(found: np.ndarray, exact: np.ndarray) -> float:
    """Return the slope of a table's residual on the exact one."""
    residual = center(exact, range(exact.ndim))
    return float((center(np.asarray(found, float), range(exact.ndim)) * residual).sum() / (residual**2).sum())


def forest_score(frame: pd.DataFrame, fresh: pd.DataFrame) -> float:
    """Return the accuracy on fresh records of a forest that predicts the last attribute."""
    target = frame.columns[-1]
    forest = RandomForestClassifier(TREES, random_state=0, n_jobs=1)
    forest.fit(frame.drop(columns=target).to_numpy(), frame[target].to_numpy().astype(int))
    return float(forest.score(fresh.drop(columns=target).to_numpy(), fresh[target].to_numpy().astype(int)))


def compare_law(case: str, mechanism: str, epsilon: float, seeds: Sequence[int], targets: int = 0) -> dict[str, float]:
    """Return the least strength over seeds and laws in estimates and rows, and the mean scores of forests."""
    degree, make = LAWS[case]
    estimates, rows, forests, exact = [], [], [], []
    for seed in seeds:
        frame, laws = make(seed)
        fresh, _ = make(seed + 1000)
        sizes = {name: int(frame[name].max()) + 1 for name in frame}
        made, drawn = release(frame, mechanism, degree, epsilon, targets or degree)
        for law in laws:
            counts = law_table(frame, law, sizes)
            rows.append(strength(law_table(drawn, law, sizes), counts))
            if len(law) <= (targets or degree):
                estimates.append(strength(made.marginal(law), counts))
        forests.append(forest_score(drawn, fresh))
        exact.append(forest_score(frame, fresh))

    found = {"rows": min(rows), "kept": float(np.mean(np.array(rows) > KEPT))}
    found |= {"forest on rows": float(np.mean(forests)), "forest on records": float(np.mean(exact))}
    found |= {"estimates": min(estimates)} if estimates else {}
    print(f"{case}, {mechanism}, {targets or degree}-way targets, epsilon {epsilon:g}, {len(seeds)} seeds: "
          + ", ".join(f"{name} {value:.3f}" for name, value in found.items()), flush=True)  # fmt: skip
    return found


def print_laws() -> None:
    """Laws of k attributes in estimates, rows, and a forest that learns from the rows.

    A law is a dependence of k attributes that no smaller set shows, such as a parity. Its strength in a table is the
    slope of the table's residual over these attributes on that of the records: 1 if it is kept, 0 if it is lost.

        python benchmarks/graphical.py laws [--seeds N] [--epsilons E ...] [--cases NAME ...] [--save]
    """
    parser = base.command_parser(print_laws.__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--cases", nargs="+", default=list(LAWS), choices=list(LAWS))
    parser.add_argument("--unasked", type=int, default=10, help="seeds of laws outside the targets; 0: none")
    parser.add_argument("--save", action="store_true")
    chosen = parser.parse_args()
    os.environ["DPSCALE_DATA"] = tempfile.mkdtemp()
    warnings.simplefilter("ignore")

    figures: dict[str, float] = {}
    for case, mechanism, epsilon in product(chosen.cases, COMPARED, chosen.epsilons):
        found = compare_law(case, mechanism, epsilon, range(chosen.seeds))
        left = {"kept"} if mechanism == COMPARED[0] else {"kept", "forest on records"}
        figures |= {
            f"{case}, {mechanism}, epsilon {epsilon:g}: {name}": found[name] for name in found if name not in left
        }
    if chosen.unasked:
        found = compare_law(UNASKED, "aim-grem", 4.0, range(chosen.unasked), targets=3)
        figures |= {f"{UNASKED}, outside the targets: {name}": found[name] for name in ("rows", "kept")}
    if chosen.save:
        base.save("laws", figures)


COMMANDS = {
    "mechanisms": print_mechanisms,
    "laws": print_laws,
}

if __name__ == "__main__":
    base.run_command(COMMANDS, __doc__)
