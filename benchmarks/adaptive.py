"""Adaptive mechanisms: errors, alternatives, choice of options, ideas that were not taken, and attacks.

python benchmarks/adaptive.py mechanisms    adaptive mechanisms and their alternatives on all 3-way marginals
python benchmarks/adaptive.py ahead         workloads for which `aim-grem` is more accurate than a fixed plan
python benchmarks/adaptive.py leave_out     relative to an earlier commit, options chosen without the table
python benchmarks/adaptive.py pair_ideas    ideas for pairs that are not measured
python benchmarks/adaptive.py audits        lower bounds of μ from attacks
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import combinations, pairwise, product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from unittest import mock

import base
import numpy as np
from base import (
    CONSTRUCTED,
    DATA,
    KEPT,
    LINKED,
    ROOT,
    Names,
    Table,
    add_table_options,
    construct_table,
    load_table,
    load_tables,
    unpack,
    write_generated,
)

from dpscale import Domain, Workload, plan
from dpscale.base.numerics import AttributeSet, Floats
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
from dpscale.reconstruction.fitting_loops import fit_pair
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
from dpscale.runs.stages.preview import mean_share
from dpscale.workload import WorkloadPart
from dpscale.workload.residual import coarsened, non_negative

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
        table, started = write_generated(shape), time.perf_counter()
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
    script, rho = base.ROOT / "benchmarks" / "rivals" / "peer.py", zcdp_rho(1.0, DELTA)
    command = [python, script, "aim", table.name, rho, seed, "--limit", limit, "--data", data]
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


def _is_published(name: str, table: str, epsilon: float) -> bool:
    """Return whether the documentation shows a figure: ours and the product always, others for Adult or ε = 1."""
    if name in ("ours", "product of 1-ways"):
        return True
    return name == "ours, seconds" if "seconds" in name else table == "adult" or epsilon == 1.0


def print_mechanisms() -> None:
    """Adaptive mechanisms and their alternatives: all 3-way marginals of a table, δ = 1e-9.

    Error: mean over the marginals of ‖μ̂ − μ‖₁ / N (at most 2 for a distribution). Prints, for every table and ε, the
    mean over seeds with its spread, and seconds on one core for the run and for all answers (with their comparison with
    the exact counts); counting is excluded. Real tables are in ../shared/data and are not part of dpscale.

        python benchmarks/adaptive.py mechanisms [--tables adult acs salary titanic] [--epsilons 0.1 1 10] [--seeds 3]
            --all                  every table of ../shared/data; those not in --tables with ours and the product only
            --tried                only the settings from which the defaults of `Options` were chosen
            --large                two generated tables: 12,341 marginals with 10⁹ cells; 45,760 marginals
            --lnn                  only GReM-MLE against GReM-LNN on all pairs, with maxent and the product of 1-ways
            --peer-python PATH     also a plain AIM loop on `mbi` (rivals/peer.py), with a Python that has it, at ε = 1
            --save                 save the errors in results/
            --plot FILE            plot the error of every mechanism by ε

    Compare settings on seeds that were not used to choose a default (--first-seed; the defaults of `Options` used 0 to
    20). Published for Adult: AIM with Private-PGM 0.345 in 133 s (ε = 0.1), 0.166 in 349 s (ε = 1).
    """
    parser = base.command_parser(print_mechanisms.__doc__)
    add_table_options(parser)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--peer-python")
    parser.add_argument("--peer-limit", type=float, default=600)
    for flag in ("all", "tried", "large", "lnn", "save"):
        parser.add_argument(f"--{flag}", action="store_true")
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
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


WORKLOADS = (("marginal", 2), ("marginal", 3), ("prefix", 2), ("prefix", 3), ("range", 2))
EDGES = (0, 0.005, 0.01, 0.03, 0.05, 0.1, 0.3, 1, math.inf)
QUERY_KINDS = ("cells", "cumulative")
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
    for (low, high), kind in product(pairwise(EDGES), QUERY_KINDS):
        ratios = [ratio for own, even, ratio in found if low <= even < high and kind == own]
        if ratios:
            mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
            ahead = sum(ratio > 1 for ratio in ratios) / len(ratios)
            figures |= {f"{kind} {low:g}, {name}": value
                     for name, value in (("cases", len(ratios)), ("ratio", mean), ("ahead", ahead))}  # fmt: skip
            print(f"{kind}, from {low:g} to {high:g}: {len(ratios)} cases, geometric mean {mean:.2f}, "
                  f"aim-grem ahead in {100 * ahead:.0f} %")  # fmt: skip
    return figures


def print_ahead() -> None:
    """Workloads for which an adaptive mechanism is more accurate than a fixed plan, predicted without data.

    For marginals, prefixes and ranges over all sets of two and three attributes of every table of ../shared/data: the
    root mean square error of `weighted-residuals` (exact, from its plan) over that of one run of `aim-grem` on the same
    workload (on some sets), by the ratio of the former to the mean count of a query with records spread evenly: for all
    queries, for cells (marginals), and for cumulative queries. Both are public except for the number of records, so
    that `dpscale plan` can say for how many records of a table which mechanism is better.

        python benchmarks/adaptive.py ahead [--tables adult …] [--epsilons 0.1 1 10] [--seed 100] [--save]
    """
    parser = base.command_parser(print_ahead.__doc__)
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


EARLIER = "111f38d"
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "grain 0.6": {"grain": 0.6},
    "penalty 0.2": {"penalty": 0.2},
    "6 rounds": {"rounds": 6},
    "pairs only": {"degree": 2},
}
ALL = (*KEPT, *LINKED, *CONSTRUCTED)
CHOOSING, DOUBT, WORST = 0, 2.0, 1.05
Key = tuple[str, float]

SCRIPT = """
import json, sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from fractions import Fraction
from leave_out_tables import load
from dpscale.adaptive import Options, Setting, run
from dpscale.privacy import zcdp_rho
from dpscale.privacy.streams import seeded_secret
for name, epsilon, seed in json.loads(sys.argv[3]):
    table = load(name, sys.argv[4])
    rho = Fraction(zcdp_rho(epsilon, 1e-9))
    state = run(Setting(table.sizes, table.targets, rho, options=Options()), table.counts, seeded_secret(seed))
    print(json.dumps([name, epsilon, seed, table.error(state.marginal)]), flush=True)
"""


@dataclass(frozen=True)
class LeftOut:
    """Result of one table and ε: the chosen setting, and the ratio to the baseline with its standard error."""

    setting: str
    error: float
    ratio: float
    deviation: float

    @property
    def is_worse(self) -> bool:
        return self.ratio - DOUBT * self.deviation > WORST


def load_or_construct(name: str, data: Path) -> Table | None:
    return construct_table(name) if name in CONSTRUCTED else load_table(name, data)


def error_of(data: Path, setting: str, case: tuple[str, float, int]) -> float:
    """Return the error of one run with its released answers."""
    name, epsilon, seed = case
    table = load_or_construct(name, data)
    assert table is not None
    with varied(SETTINGS[setting]) as options:
        return table.error(released_answers(table, epsilon, seed, options))


def baseline_errors(data: Path, cases: Sequence[tuple[str, float, int]]) -> dict[tuple[str, float, int], float]:
    """Return the errors of the baseline's own package. Raises SystemExit without the history of the repository."""
    with tempfile.TemporaryDirectory() as place:
        unpack(EARLIER, Path(place))
        (Path(place) / "leave_out_tables.py").write_text(
            "from pathlib import Path\nfrom base import CONSTRUCTED, construct_table, load_table\n"
            "def load(name, data):\n"
            "    return construct_table(name) if name in CONSTRUCTED else load_table(name, Path(data))\n"
        )
        command = [sys.executable, "-c", SCRIPT, place, str(ROOT / "benchmarks"), json.dumps(cases), str(data)]
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean, cwd=place)
    if done.returncode:
        sys.exit(f"the baseline failed: {done.stderr.strip().splitlines()[-1]}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {(name, epsilon, seed): error for name, epsilon, seed, error in rows}


def choose_setting(errors: Mapping[str, Mapping[Key, float]], left_out: str) -> str:
    """Return the setting with the least mean log error over the other tables."""

    def mean(setting: str) -> float:
        return fmean(math.log(error) for (table, _), error in errors[setting].items() if table != left_out)

    return min(SETTINGS, key=mean)


def compare_left_out(setting: str, ours: Sequence[float], theirs: Sequence[float]) -> LeftOut:
    """Return the ratio of means; its standard error is that of a ratio of two independent means."""
    ratio = fmean(ours) / fmean(theirs)
    spread = math.hypot(*(stdev(one) / fmean(one) / math.sqrt(len(one)) for one in (ours, theirs)))
    return LeftOut(setting, fmean(ours), ratio, ratio * spread)


def choose_and_measure(tables: Sequence[str], epsilons: Sequence[float], seeds: range, data: Path) -> dict[str, float]:
    """Choose and measure, print everything and return the figures."""
    names = [name for name in (ALL if list(tables) == ["all"] else tables) if load_or_construct(name, data) is not None]
    keys = list(product(names, epsilons))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        cases = [(name, epsilon, CHOOSING) for name, epsilon in keys]
        errors = {setting: dict(zip(keys, pool.map(partial(error_of, data, setting), cases), strict=True))
                  for setting in SETTINGS}  # fmt: skip
        chosen = {name: choose_setting(errors, name) for name in names}
        for setting in SETTINGS:
            shares = [errors[setting][key] / errors["defaults"][key] for key in keys]
            mean, times = math.exp(fmean(map(math.log, shares))), list(chosen.values()).count(setting)
            print(f"{setting}: {mean:.3f} of the defaults, chosen for {times} of {len(names)} tables", flush=True)
        repeated = [(name, epsilon, seed) for name, epsilon in keys for seed in seeds]
        parts = [repeated[i :: os.cpu_count()] for i in range(os.cpu_count() or 1)]
        theirs = {
            case: error for part in pool.map(partial(baseline_errors, data), parts) for case, error in part.items()
        }
        ours = {case: pool.submit(error_of, data, chosen[case[0]], case) for case in repeated}
        found = {(name, epsilon): compare_left_out(chosen[name], [ours[name, epsilon, seed].result() for seed in seeds],
                                           [theirs[name, epsilon, seed] for seed in seeds])
                 for name, epsilon in keys}  # fmt: skip
    return report_left_out(found, names, epsilons)


def report_left_out(found: Mapping[Key, LeftOut], names: Sequence[str], epsilons: Sequence[float]) -> dict[str, float]:
    """Print all ratios and return the figures."""
    figures: dict[str, float] = {}
    for name in names:
        cells = "  ".join(
            f"{found[name, epsilon].ratio:6.3f} ± {found[name, epsilon].deviation:.3f}" for epsilon in epsilons
        )
        print(f"{name:<14} {found[name, epsilons[0]].setting:<12} {cells}")
    for epsilon in epsilons:
        ratios = [found[name, epsilon].ratio for name in names]
        mean = math.exp(fmean(map(math.log, ratios)))
        worse = [name for name in names if found[name, epsilon].is_worse]
        print(
            f"ε = {epsilon:g}: geometric mean over {len(names)} left-out tables {mean:.3f}, largest {max(ratios):.3f}"
        )
        print(f"    above {WORST} beyond two standard errors: {', '.join(worse) or 'none'}", flush=True)
        figures |= {
            f"mean, ε = {epsilon:g}": mean,
            f"largest, ε = {epsilon:g}": max(ratios),
            f"worse, ε = {epsilon:g}": len(worse),
        }
        figures |= {f"{name}, ε = {epsilon:g}": found[name, epsilon].ratio for name in names}
        figures |= {f"{name}, ε = {epsilon:g}, standard error": found[name, epsilon].deviation for name in names}
    return figures


def print_leave_out() -> None:
    """Accuracy of `aim-grem` relative to commit 111f38d, with options chosen by leave-one-table-out.

    For every table, options are chosen on all other tables: the setting of SETTINGS with the least geometric mean of
    the error over all other tables and ε, on the choosing seeds. The error of the left-out table is then measured with
    that setting on other seeds, beside the baseline. The baseline is the package of commit 111f38d, unpacked from the
    history of this repository and run in its own process. Error: mean over all 3-way marginals of ‖μ̂ − μ‖₁ / N.

        python benchmarks/adaptive.py leave_out [--seeds 5] [--epsilons 0.1 1 10] [--tables all] [--save]
    """
    parser = base.command_parser(print_leave_out.__doc__)
    add_table_options(parser)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    figures = choose_and_measure(given.tables, given.epsilons, seeds, given.data)
    if given.save:
        base.save("leave_out", figures)


Features = Mapping[str, Floats]
IDEAS = ("components", "signs", "halves", "groups")
IDEA_TABLES = ("adult", "salary", "telco", "acs23", "nltcs", "mushroom")
COUNT, FLOOR, LEAST, SCALES = 2, 0.2, 0.02, 12


def idea_functions(model: LowOrder, kind: str, seed: int) -> Features:
    """Return the functions of every attribute, shape (k, groups)."""
    rng, found = np.random.default_rng(seed), {}
    for name in model.ones:
        shares = np.maximum(model.coarse[name] / model.total, 1e-12)
        if kind == "components":
            found[name] = _components(model, name, shares)
        elif kind == "signs":
            found[name] = _normal(rng.choice([-1.0, 1.0], (min(COUNT, len(shares) - 1), len(shares))), shares)
        elif kind == "halves":
            found[name] = _normal((np.cumsum(shares) - shares / 2 < 0.5)[None].astype(float), shares)
        else:
            found[name] = np.eye(len(shares))
    return found


def _components(model: LowOrder, name: str, shares: Floats) -> Floats:
    """Return the leading left singular vectors of all measured pairs of an attribute, standardised."""
    tables = []
    for pair in combinations(model.ones, 2):
        if name in pair and pair in model.measured and pair in model.tables:
            other = np.maximum(model.coarse[pair[1 - pair.index(name)]] / model.total, 1e-12)
            table = (model.tables[pair] if pair[0] == name else model.tables[pair].T) / model.total
            scale = np.sqrt(np.outer(np.maximum(shares, FLOOR), np.maximum(other, FLOOR)))
            tables.append((table - np.outer(shares, other)) / scale)
    stacked = np.concatenate(tables, axis=1) if tables else np.eye(len(shares))
    vectors = np.linalg.svd(stacked, full_matrices=False)[0][:, : min(COUNT, len(shares) - 1)]
    return _normal((vectors / np.sqrt(np.maximum(shares, FLOOR))[:, None]).T, shares)


def _normal(rows: Floats, shares: Floats) -> Floats:
    """Return rows centred and orthonormal under the shares; rows that vanish are dropped."""
    centred = rows - (rows @ shares)[:, None]
    values, vectors = np.linalg.eigh((centred * shares) @ centred.T)
    good = values > 1e-9
    return np.asarray((vectors[:, good] / np.sqrt(values[good])).T @ centred)


def with_moments(table: Table, model: LowOrder, own: Features, cost: float | None, seed: int) -> LowOrder:
    """Return the model with noisy moments of every unmeasured pair; exact ones if `cost` is None."""
    pairs = [pair for pair in combinations(model.ones, 2)
             if pair not in model.measured and len(own[pair[0]]) and len(own[pair[1]])]  # fmt: skip
    if not pairs:
        return model
    noise, rng = _deviations(pairs, own, cost), np.random.default_rng(seed)
    expected = [model.coarse_marginal(pair) for pair in pairs]
    found, deviations = [], []
    for pair, prior, deviation in zip(pairs, expected, noise, strict=True):
        exact = coarsened(table.counts(pair), [model.groups[name] for name in pair])
        moments = own[pair[0]] @ (exact - prior) @ own[pair[1]].T
        found.append((moments + deviation * rng.standard_normal(moments.shape)).reshape(-1))
        deviations.append(np.full(moments.size, deviation))
    departures = np.concatenate(found)
    if cost is not None:
        departures = _shrunk(departures, np.concatenate(deviations))
    parts = np.split(departures, np.cumsum([len(one) for one in found])[:-1])
    moved = {
        pair: _moved(model, pair, prior, part, own) for pair, prior, part in zip(pairs, expected, parts, strict=True)
    }
    return replace(model, tables={**model.tables, **moved})


def _deviations(pairs: list[AttributeSet], own: Features, cost: float | None) -> Floats:
    if cost is None:
        return np.zeros(len(pairs))
    largest = {name: float((rows**2).sum(axis=0).max()) for name, rows in own.items() if len(rows)}
    squares = np.array([largest[a] * largest[b] for a, b in pairs])
    moments = np.array([len(own[a]) * len(own[b]) for a, b in pairs])
    variances = np.sqrt(squares / moments)
    return np.asarray(np.sqrt(variances * (squares / variances).sum() / cost))


def _shrunk(departures: Floats, deviations: Floats) -> Floats:
    """Return posterior means under a scale mixture of normal distributions around 0, learnt by EM."""
    scales = np.concatenate([[0.0], np.geomspace(0.1, 30, SCALES)]) * float(np.median(deviations))
    variances = scales**2 + deviations[:, None] ** 2
    likelihood = np.exp(-(departures[:, None] ** 2) / 2 / variances) / np.sqrt(variances) + 1e-300
    weights = np.full(len(scales), 1 / len(scales))
    for _ in range(50):
        shares = likelihood * weights
        shares /= shares.sum(axis=1, keepdims=True)
        weights = (shares.sum(axis=0) + 0.1) / (shares.sum() + 0.1 * len(scales))
    return np.asarray((shares * scales**2 / variances).sum(axis=1) * departures)


def _moved(model: LowOrder, pair: AttributeSet, prior: Floats, departure: Floats, own: Features) -> Floats:
    """Return the table of a pair with the moments' departure, fitted to its 1-ways."""
    first, second = (own[name] for name in pair)
    step = first.T @ departure.reshape(len(first), len(second)) @ second
    if first.shape[0] < first.shape[1] or second.shape[0] < second.shape[1]:
        step *= np.outer(model.coarse[pair[0]], model.coarse[pair[1]]) / model.total**2
    table = np.ascontiguousarray(np.maximum(prior + step, LEAST * prior + 1e-9))
    ones = [np.ascontiguousarray(model.coarse[name]) for name in pair]
    fit_pair(table, *ones, 20, 1e-6 * model.total)
    return table


def compare_ideas(table: Table, epsilon: float, seeds: range, share: float) -> dict[str, float]:
    """Print and return the errors of all ideas over that of the whole budget without one."""
    errors: dict[str, list[float]] = defaultdict(list)
    for seed in seeds:
        cost, release = cost_of(epsilon), str(seed)
        whole, learnt = with_pairs(run_at_cost(table, cost, seed, Options()).fit.model, release)
        errors["none"].append(table.error(with_triples(table, whole, learnt, release).marginal))
        part, own = with_pairs(run_at_cost(table, cost * (1 - share), seed, Options()).fit.model, release)
        for kind in IDEAS:
            moved = with_moments(table, part, idea_functions(part, kind, seed), cost * share, seed)
            errors[kind].append(table.error(with_triples(table, moved, own, release).marginal))
            free = with_moments(table, whole, idea_functions(whole, kind, seed), None, seed)
            errors[f"{kind}, free"].append(table.error(with_triples(table, free, learnt, release).marginal))
    base = float(np.mean(errors.pop("none")))
    found = {kind: float(np.mean(one)) / base for kind, one in errors.items()}
    print(f"{table.name:<10} ε = {epsilon:<4g} error {base:.4f}  "
          + "  ".join(f"{kind} {ratio:.3f}" for kind, ratio in found.items()), flush=True)  # fmt: skip
    return found


def print_pair_ideas() -> None:
    """Ideas for pairs that `aim-grem` does not measure: a part of the budget measures moments of all of them at the
    end.

    With 1 − κ of the budget the mechanism runs as usual. The rest measures F_a C F_bᵀ of the counts C of every
    unmeasured pair (a, b), where the rows of F_a are few functions of an attribute's groups. The noise of a pair is
    divided so that the sum of the variances is least for the cost Σ M_a M_b / s², M_a = max_x |F_a(x)|². Departures of
    the moments from the model are shrunk by a mixture that is learnt from all of them, the model's table gets the rest
    of the departure, and is fitted to its 1-ways. This is a prototype with floating point noise: it is not part of
    dpscale.

        components   leading singular vectors of the measured pairs of an attribute (correspondence analysis)
        signs        random ±1 vectors, centred
        halves       two groups of about half the records
        groups       every group: all unmeasured pairs at low precision

    Prints the mean L1 error of all 3-way marginals over that of the whole budget without the idea. "free" adds the true
    moments without noise or cost: what the idea could gain at most.

        python benchmarks/adaptive.py pair_ideas [--tables adult …] [--epsilons 0.1 1 10] [--seeds 2] [--share 0.1]
            [--save]
    """
    parser = base.command_parser(print_pair_ideas.__doc__)
    parser.add_argument("--tables", nargs="+", default=list(IDEA_TABLES))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    logs: dict[str, list[float]] = defaultdict(list)
    for table in load_tables(given.tables, given.data):
        for epsilon in given.epsilons:
            seeds = range(given.first_seed, given.first_seed + given.seeds)
            for kind, ratio in compare_ideas(table, epsilon, seeds, given.share).items():
                logs[f"{kind}, ε = {epsilon:g}"].append(np.log(ratio))
    figures: dict[str, Any] = {key: float(np.exp(np.mean(ratios))) for key, ratios in logs.items()}
    for key, mean in figures.items():
        print(f"geometric mean over {len(given.tables)} tables: {key}: {mean:.3f}")
    if given.save:
        base.save("pair_ideas", figures | {"share": given.share})


BOUND = re.compile(r"is at least ([0-9.]+).*claimed ([0-9.]+)")


def print_audits() -> None:
    """Lower bounds of μ from attacks on `aim-grem` and its synthetic rows: the full self-test with its figures saved.

    The attacks and the planted violations are those of `dpscale selftest --full`; takes about twenty minutes on two
    cores.

        python benchmarks/adaptive.py audits [--runs 1.0] [--save]
    """
    from dpscale.audit.adaptive_attack import full_selftest

    parser = base.command_parser(print_audits.__doc__)
    parser.add_argument("--runs", type=float, default=1.0, help="multiple of the numbers of runs")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    figures: dict[str, float | str] = {}
    for name, passed, detail in full_selftest(arguments.runs):
        print(f"{'ok' if passed else 'FAILED':<6} {name}: {detail}", flush=True)
        found = BOUND.search(detail)
        if found is None:
            raise SystemExit(f"no bound in the detail of {name!r}")
        figures |= {f"{name}, bound": float(found[1]), f"{name}, claim": float(found[2])}
        figures[f"{name}, result"] = "passed" if passed else "failed"
    if arguments.save:
        base.save("audits", figures)


COMMANDS = {
    "mechanisms": print_mechanisms,
    "ahead": print_ahead,
    "leave_out": print_leave_out,
    "pair_ideas": print_pair_ideas,
    "audits": print_audits,
}

if __name__ == "__main__":
    base.run_command(COMMANDS, __doc__)
