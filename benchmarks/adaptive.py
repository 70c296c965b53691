"""Adaptive mechanisms and their rivals: all 3-way marginals of a table, δ = 1e-9.

Error: mean over the marginals of ‖μ̂ − μ‖₁ / N (2 is the worst that a distribution can do). Prints, for every table
and ε, the mean over seeds with its spread, and seconds on one core for the run and for all answers (with their
comparison with the truth); counting is left out. Real tables are in ../shared/data and do not travel with dpscale.

    python benchmarks/adaptive.py [--tables adult acs salary titanic] [--epsilons 0.1 1 10] [--seeds 3]
        --all                  every table of ../shared/data; those not in --tables with ours and the product alone
        --tried                the settings that the defaults of `Options` were chosen among, and nothing else
        --large                two generated tables: 12,341 marginals with 10⁹ cells; 45,760 marginals
        --errors               how often estimate ± 1.96 standard errors holds the truth, and nothing else
        --peer-python PATH     also a plain AIM loop on `mbi` (peer_mbi.py), by a Python that has it, at ε = 1
        --save                 keep the errors in results/
        --plot FILE            error by ε of every mechanism, as a picture

For settings use seeds that no default was chosen on (--first-seed; the defaults of `Options` saw 0 to 20).
Reported elsewhere for Adult: AIM with Private-PGM 0.345 in 133 s (ε = 0.1), 0.166 in 349 s (ε = 1).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import results
from intervals import errors
from marginal_tables import DATA, KEPT, LINKED, Names, Table, generated, real

from dpscale import Domain, Workload, plan
from dpscale.counting import ExactMarginal
from dpscale.measurement.adaptive import run
from dpscale.measurement.measurement import measure_block
from dpscale.mechanisms.aim.state import AimState
from dpscale.mechanisms.aim_grem import Options, plan as plan_adaptively
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.plans.requests import make_schedule
from dpscale.privacy import gdp_mu, zcdp_rho
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.privacy.streams import seeded_secret
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.low_order import from_estimates
from dpscale.reconstruction.maxent import LEARNING_BYTES, LEARNING_STEPS
from dpscale.reconstruction.pairwise.learn import add_triples, complete_pairs, learn, learning_steps, missing_triples
from dpscale.reconstruction.pairwise.pairs import pair_targets
from dpscale.reconstruction.simulated_errors import SIMULATION_NOTE

DELTA = 1e-9
Answers = Callable[[Names], np.ndarray]
KNOWN = {("adult", 0.1): "AIM+Private-PGM 0.345, 133 s", ("adult", 1.0): "AIM+Private-PGM 0.166, 349 s"}
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
    """Squared Gaussian-DP μ."""
    return float(gdp_mu(epsilon, DELTA)) ** 2


def adaptive(table: Table, epsilon: float, seed: int, options: Options, alone: bool = False) -> AimState:
    """`alone`: 1-ways and nothing else."""
    asked = tuple((name,) for name in table.names) if alone else table.targets
    workload = Workload(Domain(dict(table.sizes))).add("marginal", attributes=asked)
    problem = PlanningProblem(workload, Budget(GAUSSIAN, cost_of(epsilon)))
    state: AimState = run(plan_adaptively(problem, options), table.counts, seeded_secret(seed))
    return state


def released(table: Table, epsilon: float, seed: int) -> Answers:
    """As a job's `maxent` answers by default: what was not measured is as one model of all pairs has it."""
    model = adaptive(table, epsilon, seed, Options()).fit.model
    asked = pair_targets(model, LEARNING_BYTES)
    if learning_steps(asked) > LEARNING_STEPS:
        return model.marginal
    learnt = learn(asked, str(seed))
    return add_triples(complete_pairs(model, learnt), learnt, missing_triples(model, table.targets), str(seed)).marginal


def measurement_plan(table: Table, epsilon: float, seed: int) -> LeastSquaresEstimates:
    """ResidualPlanner on all targets at the same cost."""
    made = plan(Workload(Domain(table.sizes)).add("marginal", degree=len(table.targets[0])), "residual-planner")
    schedule, secret = make_schedule(made, cost_of(epsilon)), seeded_secret(seed)
    values = []
    for index, (block, draw) in enumerate(zip(made.blocks, schedule.draws, strict=True)):
        exact = ExactMarginal(block.attributes, np.asarray(table.counts(block.attributes), dtype=np.int64))
        values.append(measure_block(block, draw, exact, secret, {"block": index}) / draw.multiplier)
    return LeastSquaresEstimates(made, [draw.lattice_variance for draw in schedule.draws], values.__getitem__)


class Rows:
    """The mechanisms that are compared, each answers from (table, ε, seed)."""

    def __init__(self, tried: bool, quick: bool = False) -> None:
        """`quick`: ours and the product of 1-ways alone."""
        self.made: dict[str, Callable[[Table, float, int], Answers]] = {}
        if quick:
            self._add("product of 1-ways", Options(), alone=True)
            self.made["ours"] = released
            return
        if tried:
            for name, kwargs in TRIED.items():
                self._add(name, Options(**kwargs))
            return
        self._add("AIM+GReM as published", Options(published=True))
        self._add("product of 1-ways", Options(), alone=True)
        self.made["ResidualPlanner"] = lambda *asked: measurement_plan(*asked).marginal
        self.made["ResidualPlanner, maxent"] = lambda *asked: from_estimates(measurement_plan(*asked)).marginal
        self.made["ours"] = released

    def _add(self, name: str, options: Options, alone: bool = False) -> None:
        self.made[name] = lambda table, epsilon, seed: adaptive(table, epsilon, seed, options, alone).marginal


def outcome(table: Table, answers_of: Callable[[], Answers]) -> tuple[float, float, float]:
    """Error, seconds until answers can be had, seconds of all answers."""
    started = time.perf_counter()
    answers = answers_of()
    done = time.perf_counter()
    error = table.error(answers)
    return error, done - started, time.perf_counter() - done


def compare(table: Table, epsilons: Sequence[float], seeds: range, rows: Rows) -> dict[str, dict[float, float]]:
    """Prints all rows; the mean errors by row and ε."""
    means: dict[str, dict[float, float]] = defaultdict(dict)
    print(f"{table.name}: {table.rows:,} rows, {len(table.names)} attributes, {len(table.targets):,} marginals")
    for names in (*table.targets, *combinations(table.names, 2), *((name,) for name in table.names)):
        table.counts(names)
    for epsilon in epsilons:
        print(f"  epsilon {epsilon:g}   {KNOWN.get((table.name, epsilon), '')}")
        for name, made in rows.made.items():
            found = np.array([outcome(table, partial(made, table, epsilon, seed)) for seed in seeds])
            (error, run_for, answered), spread = found.mean(axis=0), found[:, 0].std()
            means[name][epsilon] = error
            means[f"{name}, seconds"][epsilon] = run_for
            print(
                f"    {name:24} {error:.4f} ± {spread:.4f}   run {run_for:.2f} s, answers {answered:.2f} s", flush=True
            )
    return means


def large(seed: int) -> None:
    """The generated tables: seconds and memory of the run and of all answers, the error on a part of them."""
    for shape in ("census", "loans"):
        table, started = generated(shape), time.perf_counter()
        for names in (*combinations(table.names, 2), *((name,) for name in table.names)):
            table.counts(names)
        counted = time.perf_counter()
        state = adaptive(table, 1.0, seed, Options())
        done, cells = time.perf_counter(), 0
        for names in table.targets:
            cells += state.marginal(names).size
        end = time.perf_counter()
        some = table.targets[:: len(table.targets) // 300]
        error, alone = table.error(state.marginal, some), adaptive(table, 1.0, seed, Options(), alone=True)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{shape}: {table.rows:,} rows, {len(table.targets):,} marginals, {cells:,} cells, epsilon 1")
        print(f"  1- and 2-ways counted in {counted - started:.1f} s, run {done - counted:.1f} s in", end=" ")
        print(f"{len(state.rounds)} rounds, all answers {end - done:.1f} s, {memory:.2f} GiB at most")
        print(f"  error {error:.4f}, product of 1-ways {table.error(alone.marginal, some):.4f}", flush=True)


def against_peer(table: Table, python: str, limit: float, seed: int, data: Path) -> None:
    """A plain AIM loop on mbi, in its own process, against ours at ε = 1."""
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
    error, seconds, _ = outcome(table, lambda: adaptive(table, 1.0, seed, Options()).marginal)
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


def tables(names: Sequence[str], data: Path) -> Iterator[Table]:
    for name in names:
        table = real(name, data)
        if table is None:
            print(f"{name}: its folder is not in {data}: real data does not travel with dpscale; give --data")
        else:
            yield table


def which(parser: argparse.ArgumentParser) -> None:
    """Options that say which tables, at which ε, with which seeds."""
    parser.add_argument("--tables", nargs="+", default=["adult", "acs", "salary", "titanic"], choices=(*KEPT, *LINKED))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--data", type=Path, default=DATA)


def _told(name: str, table: str, epsilon: float) -> bool:
    """Whether README shows it: ours and the product everywhere, the others where they are the most told of."""
    if name in ("ours", "product of 1-ways"):
        return True
    return name == "ours, seconds" if "seconds" in name else table == "adult" or epsilon == 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which(parser)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--peer-python")
    parser.add_argument("--peer-limit", type=float, default=600)
    for flag in ("all", "tried", "large", "errors", "save"):
        parser.add_argument(f"--{flag}", action="store_true")
    asked = parser.parse_args()
    if asked.large:
        large(asked.first_seed)
        return
    if asked.errors:
        print(SIMULATION_NOTE)
    found = {}
    for table in tables(KEPT if asked.all else asked.tables, asked.data):
        adaptive(table, 1.0, 0, Options())  # loads the compiled loops
        if asked.errors:
            for epsilon in asked.epsilons:
                print(f"{table.name}, epsilon {epsilon:g}")
                errors(table, adaptive(table, epsilon, asked.first_seed, Options()), asked.first_seed)
            continue
        seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
        rows = Rows(asked.tried, quick=table.name not in asked.tables)
        found[table.name] = compare(table, asked.epsilons, seeds, rows)
        if asked.peer_python:
            against_peer(table, asked.peer_python, asked.peer_limit, asked.first_seed, asked.data)
    if asked.save:
        kept = {(name, table, f"{epsilon:g}"): error for table, means in found.items()
                for name, by_epsilon in means.items() for epsilon, error in by_epsilon.items()
                if _told(name, table, epsilon)}  # fmt: skip
        results.save("adaptive", {", ".join(key): error for key, error in kept.items()})
    if asked.plot and found:
        plot(found, asked.plot)


if __name__ == "__main__":
    main()
