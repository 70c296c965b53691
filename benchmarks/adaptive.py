"""Adaptive mechanisms and their alternatives: all 3-way marginals of a table, δ = 1e-9.

Error: mean over the marginals of ‖μ̂ − μ‖₁ / N (at most 2 for a distribution). Prints, for every table and ε, the mean
over seeds with its spread, and seconds on one core for the run and for all answers (with their comparison with the
exact counts); counting is excluded. Real tables are in ../shared/data and are not part of dpscale.

    python benchmarks/adaptive.py [--tables adult acs salary titanic] [--epsilons 0.1 1 10] [--seeds 3]
        --all                  every table of ../shared/data; those not in --tables with ours and the product only
        --tried                only the settings from which the defaults of `Options` were chosen
        --large                two generated tables: 12,341 marginals with 10⁹ cells; 45,760 marginals
        --lnn                  only GReM-MLE against GReM-LNN on all pairs, with maxent and the product of 1-ways
        --peer-python PATH     also a plain AIM loop on `mbi` (peer_mbi.py), with a Python that has it, at ε = 1
        --rivals NAME=PYTHON   beside other packages, with limits of time and memory (rivals.py)
        --rivals ... --rows    the same for synthetic rows and their uses (row_rivals.py)
        --leave-out            errors relative to an earlier commit, options chosen without the table (leave_out.py)
        --save                 save the errors in results/
        --plot FILE            plot the error of every mechanism by ε

Compare settings on seeds that were not used to choose a default (--first-seed; the defaults of `Options` used 0 to 20).
Published for Adult: AIM with Private-PGM 0.345 in 133 s (ε = 0.1), 0.166 in 349 s (ε = 1).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest import mock

import base
import numpy as np
from base import DATA, KEPT, LINKED, Names, Table, load_table, write_generated as generate_table

from dpscale import Domain, Workload, plan
from dpscale.counting import ExactMarginal
from dpscale.measurement.adaptive import run
from dpscale.measurement.measurement import measure_block
from dpscale.mechanisms import aim_grem
from dpscale.mechanisms.aim.estimators import EntropyEstimator
from dpscale.mechanisms.aim.setting import BatchedSchedule
from dpscale.mechanisms.aim.state import AimState
from dpscale.mechanisms.aim_grem import Options, plan as plan_adaptively
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.plans.measurement_plan import plan_draws
from dpscale.privacy import gdp_mu, zcdp_rho
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.privacy.streams import seeded_secret
from dpscale.reconstruction.base import PlanEvidence
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.low_order import from_estimates
from dpscale.reconstruction.maxent import LEARNING_BYTES, LEARNING_STEPS
from dpscale.reconstruction.pairwise import (
    PairwiseModel,
    add_triples,
    complete_pairs,
    learn,
    learning_steps,
    missing_triples,
    pair_targets,
)
from dpscale.workload.residual import non_negative

DELTA = 1e-9
Answers = Callable[[Names], np.ndarray]
KNOWN = {("adult", 0.1): "AIM+Private-PGM 0.345, 133 s", ("adult", 1.0): "AIM+Private-PGM 0.166, 349 s"}
SCHEDULE, ESTIMATOR = ("ones", "selecting", "penalty", "patience", "growth"), ("grain", "chains")  # constants
TRIED: dict[str, dict[str, Any]] = {
    "defaults": {},
    "1-ways 1/5": {"ones": 0.2},
    "1-ways 2/5": {"ones": 0.4},
    "selecting 1/20": {"selecting": 0.05},
    "selecting 1/5": {"selecting": 0.2},
    "every cell a group": {"grain": 0.0},
    "grain 0.2": {"grain": 0.2},
    "grain 0.8": {"grain": 0.8},
    "penalty 0.2": {"penalty": 0.2},
    "penalty 0.6": {"penalty": 0.6},
    "patience 0.25": {"patience": 0.25},
    "6 rounds": {"rounds": 6},
    "14 rounds": {"rounds": 14},
    "no chains": {"chains": 0},
    "chains twice": {"chains": 2},
    "growth 4": {"growth": 4},
    "triples too": {"degree": 3},
}


def cost_of(epsilon: float) -> float:
    """Return the squared Gaussian-DP μ of ε."""
    return float(gdp_mu(epsilon, DELTA)) ** 2


@contextmanager
def varied(settings: Mapping[str, Any]) -> Iterator[Options]:
    """Plan with other constants of the schedule and of the estimator, and yield the options among the settings."""
    schedule = {name: settings[name] for name in SCHEDULE if name in settings}
    schedule |= {name: Fraction(str(schedule[name])) for name in ("ones", "selecting") if name in schedule}
    estimator = {name: settings[name] for name in ESTIMATOR if name in settings}
    with (
        mock.patch.object(aim_grem, "BatchedSchedule", partial(BatchedSchedule, **schedule)),
        mock.patch.object(aim_grem, "EntropyEstimator", partial(EntropyEstimator, **estimator)),
    ):
        yield Options(**{name: value for name, value in settings.items() if name not in (*SCHEDULE, *ESTIMATOR)})


def varied_answers(table: Table, epsilon: float, seed: int, settings: Mapping[str, Any]) -> Answers:
    """Return the answers with other constants."""
    with varied(settings) as options:
        return run_adaptive(table, epsilon, seed, options).marginal


def run_adaptive(table: Table, epsilon: float, seed: int, options: Options, alone: bool = False) -> AimState:
    """Run the selection loop and return its last state; `alone` measures the 1-way marginals only."""
    return run_at_cost(table, cost_of(epsilon), seed, options, alone)


def run_at_cost(table: Table, cost: float, seed: int, options: Options, alone: bool = False) -> AimState:
    """Run the selection loop at a squared μ of `cost`; the other arguments are those of `run_adaptive`."""
    targets = tuple((name,) for name in table.names) if alone else table.targets
    workload = Workload(Domain(dict(table.sizes))).add("marginal", attributes=targets)
    made = plan_adaptively(PlanningProblem(workload, Budget(GAUSSIAN, cost)), options)
    state: AimState = run(made, table.counts, seeded_secret(seed))
    return state


def with_pairs(model: LowOrder, release: str) -> tuple[LowOrder, PairwiseModel | None]:
    """Return the model with all pairs from a pairwise model, if that can be learnt in about a minute."""
    pairs = pair_targets(model, LEARNING_BYTES)
    if learning_steps(pairs) > LEARNING_STEPS:
        return model, None
    learnt = learn(pairs, release)
    return complete_pairs(model, learnt), learnt


def with_triples(table: Table, model: LowOrder, learnt: PairwiseModel | None, release: str) -> LowOrder:
    """Return the model of all pairs with the sets of three that a pairwise model implies."""
    missing = [] if learnt is None else missing_triples(model, table.targets)
    return model if learnt is None else add_triples(model, learnt, missing, release)


def complete_model(table: Table, model: LowOrder, release: str) -> LowOrder:
    """Return the `maxent` estimates of a job: unmeasured sets follow a pairwise model of all pairs."""
    return with_triples(table, *with_pairs(model, release), release)


def released_answers(table: Table, epsilon: float, seed: int, options: Options | None = None) -> Answers:
    """Return the answers of a job with `maxent`."""
    model = run_adaptive(table, epsilon, seed, options or Options()).fit.model
    return complete_model(table, model, str(seed)).marginal


def measure_plan(table: Table, epsilon: float, seed: int) -> PlanEvidence:
    """Return the measurements of ResidualPlanner on all targets at the same cost."""
    made = plan(Workload(Domain(table.sizes)).add("marginal", degree=len(table.targets[0])), "residual-planner")
    draws, secret = plan_draws(made, cost_of(epsilon)), seeded_secret(seed)
    values = []
    for index, (block, draw) in enumerate(zip(made.blocks, draws, strict=True)):
        exact = ExactMarginal(block.attributes, np.asarray(table.counts(block.attributes), dtype=np.int64))
        values.append(measure_block(block, draw, exact, secret, {"block": index}) / draw.multiplier)
    return PlanEvidence(made, [draw.lattice_variance for draw in draws], values.__getitem__)


def planned_answers(table: Table, epsilon: float, seed: int, method: str) -> Answers:
    """Return the answers of ResidualPlanner by least squares (GReM-MLE), GReM-LNN or maxent."""
    evidence = measure_plan(table, epsilon, seed)
    if method == "maxent":
        return from_estimates(evidence.least_squares()).marginal
    if method == "LNN":
        return non_negative(evidence.residuals(), table.targets).marginal
    return evidence.least_squares().marginal


def published_answers(table: Table, epsilon: float, seed: int, method: str) -> Answers:
    """Return the answers of AIM+GReM as published, with GReM-MLE or GReM-LNN of the same measurements."""
    state = run_adaptive(table, epsilon, seed, Options(published=True))
    return non_negative(state.residuals, table.targets).marginal if method == "LNN" else state.marginal


class Contenders:
    """The compared mechanisms, each a function from (table, ε, seed) to answers."""

    def __init__(self, tried: bool, quick: bool = False, lnn: bool = False) -> None:
        """Register the mechanisms; `quick`: ours and the product of the 1-ways; `lnn`: GReM by method."""
        self.made: dict[str, Callable[[Table, float, int], Answers]] = {}
        if lnn:
            self._add("product of 1-ways", Options(), alone=True)
            for name, answers in (("AIM+GReM as published", published_answers), ("ResidualPlanner", planned_answers)):
                for method in ("MLE", "LNN"):
                    self.made[f"{name}, {method}"] = partial(answers, method=method)
            self.made["ResidualPlanner, maxent"] = partial(planned_answers, method="maxent")
            return
        if quick:
            self._add("product of 1-ways", Options(), alone=True)
            self.made["ours"] = released_answers
            return
        if tried:
            for name, kwargs in TRIED.items():
                self.made[name] = partial(varied_answers, settings=kwargs)
            return
        self._add("AIM+GReM as published", Options(published=True))
        self._add("product of 1-ways", Options(), alone=True)
        self.made["ResidualPlanner"] = partial(planned_answers, method="MLE")
        self.made["ResidualPlanner, maxent"] = partial(planned_answers, method="maxent")
        self.made["ours"] = released_answers

    def _add(self, name: str, options: Options, alone: bool = False) -> None:
        self.made[name] = lambda table, epsilon, seed: run_adaptive(table, epsilon, seed, options, alone).marginal


def measure_outcome(table: Table, answers_of: Callable[[], Answers]) -> tuple[float, float, float]:
    """Return the error, the seconds until answers are available, and the seconds of all answers."""
    started = time.perf_counter()
    answers = answers_of()
    done = time.perf_counter()
    error = table.error(answers)
    return error, done - started, time.perf_counter() - done


def compare(table: Table, epsilons: Sequence[float], seeds: range, rows: Contenders) -> dict[str, dict[float, float]]:
    """Print all rows and return the mean errors by row and ε."""
    means: dict[str, dict[float, float]] = defaultdict(dict)
    print(f"{table.name}: {table.rows:,} rows, {len(table.names)} attributes, {len(table.targets):,} marginals")
    for names in (*table.targets, *combinations(table.names, 2), *((name,) for name in table.names)):
        table.counts(names)
    for epsilon in epsilons:
        print(f"  epsilon {epsilon:g}   {KNOWN.get((table.name, epsilon), '')}")
        for name, made in rows.made.items():
            found = np.array([measure_outcome(table, partial(made, table, epsilon, seed)) for seed in seeds])
            (error, run_for, answered), spread = found.mean(axis=0), found[:, 0].std()
            means[name][epsilon] = error
            means[f"{name}, seconds"][epsilon] = run_for
            print(
                f"    {name:24} {error:.4f} ± {spread:.4f}   run {run_for:.2f} s, answers {answered:.2f} s", flush=True
            )
    return means


def run_large(seed: int) -> None:
    """Print seconds and memory of the run and of all answers of the generated tables, and the error on a part."""
    for shape in ("census", "loans"):
        table, started = generate_table(shape), time.perf_counter()
        for names in (*combinations(table.names, 2), *((name,) for name in table.names)):
            table.counts(names)
        counted = time.perf_counter()
        state = run_adaptive(table, 1.0, seed, Options())
        done, cells = time.perf_counter(), 0
        for names in table.targets:
            cells += state.marginal(names).size
        end = time.perf_counter()
        some = table.targets[:: len(table.targets) // 300]
        error, alone = table.error(state.marginal, some), run_adaptive(table, 1.0, seed, Options(), alone=True)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{shape}: {table.rows:,} rows, {len(table.targets):,} marginals, {cells:,} cells, epsilon 1")
        print(f"  1- and 2-ways counted in {counted - started:.1f} s, run {done - counted:.1f} s in", end=" ")
        print(f"{len(state.rounds)} rounds, all answers {end - done:.1f} s, {memory:.2f} GiB at most")
        print(f"  error {error:.4f}, product of 1-ways {table.error(alone.marginal, some):.4f}", flush=True)


def compare_with_peer(table: Table, python: str, limit: float, seed: int, data: Path) -> None:
    """Compare a plain AIM loop on mbi, in its own process, with ours at ε = 1."""
    script, rho = Path(__file__).with_name("peer_mbi.py"), zcdp_rho(1.0, DELTA)
    command = [python, script, table.name, rho, seed, "--limit", limit, "--data", data]
    print(f"{table.name}, epsilon 1, against a plain AIM loop on mbi")
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=4 * limit + 300)
    except subprocess.TimeoutExpired:
        print(f"  mbi: no answer within {4 * limit + 300:.0f} s")
        return
    if done.returncode:
        print(f"  mbi: failed: {done.stderr.strip().splitlines()[-1:]}")
        return
    peer = json.loads(done.stdout.splitlines()[-1])
    error, seconds, _ = measure_outcome(table, lambda: run_adaptive(table, 1.0, seed, Options()).marginal)
    note = f"stopped at {100 * peer['spent']:.0f} % of the budget" if peer["stopped"] else "whole budget"
    print(f"  mbi   {peer['error']:.4f} in {peer['seconds']:.1f} s, {peer['rounds']} rounds, {note}")
    print(f"  ours  {error:.4f} in {seconds:.2f} s: {peer['seconds'] / seconds:.0f} times as fast", flush=True)


def plot(found: dict[str, dict[str, dict[float, float]]], file: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(found), figsize=(4.2 * len(found), 3.6), squeeze=False)
    for own, (table, means) in zip(axes[0], found.items(), strict=True):
        for name, by_epsilon in means.items():
            own.loglog(list(by_epsilon), list(by_epsilon.values()), marker="o", label=name)
        own.set(title=table, xlabel="ε")
    axes[0][0].set_ylabel("mean L1 error / N")
    axes[0][-1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, dpi=150)


def load_tables(names: Sequence[str], data: Path) -> Iterator[Table]:
    for name in names:
        table = load_table(name, data)
        if table is None:
            print(f"{name}: its folder is not in {data}: real data does not travel with dpscale; give --data")
        else:
            yield table


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for tables, ε and seeds."""
    parser.add_argument(
        "--tables",
        nargs="+",
        default=["adult", "acs", "salary", "titanic"],
        choices=("all", *KEPT, *LINKED),
    )
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--data", type=Path, default=DATA)


def _is_published(name: str, table: str, epsilon: float) -> bool:
    """Return whether the documentation shows a figure: ours and the product always, others for Adult or ε = 1."""
    if name in ("ours", "product of 1-ways"):
        return True
    return name == "ours, seconds" if "seconds" in name else table == "adult" or epsilon == 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_table_options(parser)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--peer-python")
    parser.add_argument("--peer-limit", type=float, default=600)
    parser.add_argument("--rivals", nargs="*", metavar="NAME=PYTHON")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--minutes", type=float, default=np.inf)
    parser.add_argument("--records", type=Path)
    for flag in ("all", "tried", "large", "lnn", "leave-out", "save"):
        parser.add_argument(f"--{flag}", action="store_true")
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    if arguments.rivals is not None:
        import rivals
        import row_rivals

        of, name = (row_rivals, "row_rivals") if arguments.rows else (rivals, "rivals")
        tables = of.TABLES if arguments.tables == parser.get_default("tables") else arguments.tables
        limits = rivals.Limits(arguments.seconds, arguments.gib, arguments.minutes)
        of.run(arguments.rivals, tables, arguments.epsilons, seeds, arguments.data, limits, arguments.records,
               name if arguments.save else "")  # fmt: skip
        return
    if arguments.leave_out:
        import leave_out

        leave_out.run(arguments.tables, arguments.epsilons, seeds, arguments.data, arguments.save)
        return
    if arguments.large:
        run_large(arguments.first_seed)
        return
    found = {}
    for table in load_tables(KEPT if arguments.all else arguments.tables, arguments.data):
        table.targets = tuple(combinations(table.names, 2)) if arguments.lnn else table.targets
        run_adaptive(table, 1.0, 0, Options())  # loads the compiled loops
        rows = Contenders(arguments.tried, table.name not in arguments.tables, arguments.lnn)
        found[table.name] = compare(table, arguments.epsilons, seeds, rows)
        if arguments.peer_python:
            compare_with_peer(table, arguments.peer_python, arguments.peer_limit, arguments.first_seed, arguments.data)
    if arguments.save:
        figures = {(name, table, f"{epsilon:g}"): error for table, means in found.items()
                for name, by_epsilon in means.items() for epsilon, error in by_epsilon.items()
                if _is_published(name, table, epsilon)}  # fmt: skip
        base.save("adaptive", {", ".join(key): error for key, error in figures.items()})
    if arguments.plot and found:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
