"""Coverage of 95 % intervals of an adaptive release, by kind of query, table and ε, with weights of other tables.

    python benchmarks/intervals.py [--tables adult acs …] [--epsilons 0.1 1 10] [--seeds 3] [--first-seed 500]
        --fit        fit the weights of `simulated_errors` to all tables, and print them
        --leave-out  report every table with weights that were fitted to the other tables
        --cpu        only the CPU time of `dpscale run` on Adult, with errors and without
        --save       save the figures and this CPU time in results/

A release is one of all 3-way marginals, as a job with `maxent` estimates it. All 1-ways, 40 pairs and 30 sets of three
attributes are sampled. Classes of queries: cells, and cumulative queries (from the first value on along every
attribute, without the total), each of at least 1 % of the records and below; sums of an attribute's codes, for all
records or by the values of another attribute; differences of the cells of two neighbouring groups. Printed for each
class, and summarized with the number of tables that meet the requirement in brackets:

    coverage   mean over sets and seeds of the share of queries within 1.96 standard errors (.9, at ε below 1 .85)
    ratio      root mean square standard error over root mean square error, each set counted once (at most 1.6)
    joint      share of sets of which all queries are inside simultaneous 95 % intervals (.92 to 1)
    width      mean half width of these intervals over Bonferroni's for normal errors of the true size, by sums over
               sets (at most 1.35)

Real tables are in ../shared/data and are not part of dpscale. The weights in `simulated_errors` were fitted to all
tables, seeds 500 to 502, and rounded. Only the weights are left out: the form of the components and the constants of
simultaneous intervals were chosen on all tables.
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import combinations
from pathlib import Path

import base
import numpy as np
from adaptive import complete_model, run_adaptive
from base import DATA, KEPT, LINKED, Names, Table, load_table
from main_job import compare_jobs
from scipy.optimize import minimize

from dpscale import Domain, Workload
from dpscale.mechanisms.aim_grem import Options
from dpscale.reconstruction.joint_intervals import bonferroni
from dpscale.reconstruction.simulated_errors import (
    CALIBRATION,
    Calibration,
    Departures,
    ErrorComponents,
    SetKind,
    SimulatedErrors,
    simulate_errors,
    simultaneous_widths,
    weighted,
)
from dpscale.workload import WorkloadPart

SETS, MOST_CELLS, MOST_SUMS = {1: 100, 2: 40, 3: 30}, 20_000, 2_000
FITTED = 15  # queries of a class of a set to which weights are fitted
MOST_DIFFERENCES = 400
KINDS = ("cells from 1 %", "cells below 1 %", "cumulative from 1 %", "cumulative below 1 %", "sums", "differences")
LARGE = 0.01  # of the records
FIGURES = ("coverage", "ratio", "joint", "width")
REQUIRED = ((0.9, 1.0), (0.0, 1.6), (0.92, 1.0), (0.0, 1.35))
LEAST_AT_NOISE = 0.85  # coverage at ε below 1
Figures = dict[tuple[str, int], tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class Outcome:
    """Errors of all queries of a kind over one set of a release, with what their standard errors follow from.

    `classes` are masks of the queries by the name of their class.
    """

    degree: int
    kind: str
    errors: np.ndarray
    parts: ErrorComponents
    disjoint: float
    classes: Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Case:
    """One release with its outcomes."""

    table: str
    epsilon: float
    simulated: SimulatedErrors
    outcomes: list[Outcome]


def release_errors(table: Table, epsilon: float, seed: int) -> SimulatedErrors:
    """Return the simulated errors of a release of all 3-way marginals."""
    state = run_adaptive(table, epsilon, seed, Options())
    setting, released = state.setting, complete_model(table, state.fit.model, str(seed))
    return simulate_errors(state.fit.model, state.counts, state.residuals, setting.candidates,
                           setting.estimator.chains, seed=seed, released=released)  # fmt: skip


def sampled_sets(table: Table, random: np.random.Generator) -> Iterator[Names]:
    """Yield the sets of a release that are compared with exact counts."""
    for degree, most in SETS.items():
        every = [names for names in combinations(table.names, degree)
                 if np.prod([table.sizes[name] for name in names]) <= MOST_CELLS]  # fmt: skip
        yield from (every[place] for place in random.permutation(len(every))[:most])


def parts_of(table: Table, names: Names) -> Iterator[tuple[str, WorkloadPart]]:
    """Yield the kinds of queries over a set."""
    workload = Workload(Domain({name: table.sizes[name] for name in names}))
    yield "cells", workload.add("marginal", attributes=[names]).parts[-1]
    yield "cumulative", workload.add("prefix", attributes=[names]).parts[-1]
    shape = [table.sizes[name] for name in names]
    if len(names) < 3 and np.prod(shape) <= MOST_SUMS:
        values = np.arange(shape[0], dtype=float)
        groups = np.eye(shape[1]) if len(names) == 2 else np.ones((1, 1))
        queries = np.einsum("x,gy->gxy", values, groups).reshape(-1, *shape)
        yield "sums", workload.add_queries(names, queries).parts[-1]
    if len(names) == 2 and np.prod(shape) <= MOST_DIFFERENCES:
        cells = np.eye(int(np.prod(shape))).reshape(-1, *shape).reshape(*shape, *shape)
        queries = (cells[:, :-1] - cells[:, 1:]).reshape(-1, *shape)
        yield "differences", workload.add_queries(names, queries).parts[-1]


def classes_of(kind: str, exact: np.ndarray, rows: int) -> dict[str, np.ndarray]:
    """Return masks of the queries of a kind by class, given their exact answers."""
    if kind in KINDS:
        return {kind: np.ones(exact.shape, dtype=bool)}
    told = exact < rows if kind == "cumulative" else np.ones(exact.shape, dtype=bool)
    large = exact >= LARGE * rows
    return {f"{kind} from 1 %": large & told, f"{kind} below 1 %": told & ~large}


def outcomes_of(table: Table, simulated: SimulatedErrors, seed: int) -> Iterator[Outcome]:
    """Yield the errors of the sampled queries of a release."""
    for names in sampled_sets(table, np.random.default_rng(seed)):
        exact, estimate = table.counts(names).astype(float), simulated.model.marginal(names)
        for kind, part in parts_of(table, names):
            answers = part.answers(names, estimate)
            parts = simulated.part_components(part, names)
            assert isinstance(parts, ErrorComponents)
            largest = float(np.max(parts.reach))
            disjoint = answers.size * simulated.model.total * largest / max(float(np.abs(answers).sum()), 1e-9)
            true = part.answers(names, exact)
            yield Outcome(len(names), kind, answers - true, parts, disjoint, classes_of(kind, true, table.rows))


def measure(table: Table, epsilon: float, seed: int) -> Case:
    simulated = release_errors(table, epsilon, seed)
    return Case(table.name, epsilon, simulated, list(outcomes_of(table, simulated, seed)))


def sample_of(case: Case, seed: int) -> list[Sample]:
    """Return some queries of every outcome and class, for the fit of weights."""
    random, found = np.random.default_rng(seed), list[Sample]()
    for one in case.outcomes:
        for name, mask in one.classes.items():
            chosen = random.permutation(np.flatnonzero(mask))[:FITTED]
            if name in KINDS[:4] and len(chosen):
                parts = np.stack([np.broadcast_to(part, one.errors.shape).reshape(-1)[chosen]
                                  for part in one.parts.in_order()])  # fmt: skip
                found.append(Sample(case.table, case.epsilon, name, one.parts.kind, case.simulated.departures,
                                    case.simulated.widening, parts, one.errors.reshape(-1)[chosen] ** 2))  # fmt: skip
    return found


def figures_of(cases: Sequence[Case], calibration: Calibration) -> Figures:
    """Return the figures by class and degree."""
    rows = defaultdict[tuple[str, int], list[tuple[float, ...]]](list)
    for case in cases:
        for one in case.outcomes:
            variances = calibration.variances(one.parts, case.simulated.departures, case.simulated.widening)
            own, off = np.sqrt(variances), np.abs(one.errors)
            reach = np.broadcast_to(np.asarray(one.parts.reach, dtype=float), own.shape)
            half = simultaneous_widths(own, reach, one.degree, one.disjoint, 0.95)
            normal = bonferroni(0.95, min(max(one.disjoint, 1.0), float(off.size)))
            for name, mask in one.classes.items():
                if mask.any():
                    rows[name, one.degree].append(
                        (
                            (off <= 1.96 * own + 1e-9)[mask].mean(),
                            variances[mask].mean(),
                            (off**2)[mask].mean(),
                            float((off <= half + 1e-9)[mask].all()),
                            half[mask].mean(),
                            normal * np.sqrt((off**2)[mask].mean()),
                        )
                    )
    found = {}
    for key, some in rows.items():
        inside, stated, true, together, width, error = np.mean(some, axis=0)
        found[key] = (inside, float(np.sqrt(stated / max(true, 1e-9))), together, width / max(error, 1e-9))
    return found


class CaseStore:
    """Cases of a run in a temporary folder: errors of all queries of many releases do not fit in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names = folder, list[tuple[str, float]]()

    def write(self, table: str, epsilon: float, cases: Sequence[Case]) -> None:
        self.names.append((table, epsilon))
        (self.folder / f"{table}-{epsilon:g}").write_bytes(pickle.dumps([stripped(case) for case in cases]))

    def read(self, table: str, epsilon: float) -> list[Case]:
        found: list[Case] = pickle.loads((self.folder / f"{table}-{epsilon:g}").read_bytes())
        return found


def stripped(case: Case) -> Case:
    """Return a case without its tables."""
    empty = replace(case.simulated.base, tables={}, measured=frozenset())
    return replace(case, simulated=replace(case.simulated, model=empty, base=empty, replicas=(), known={}))


def print_figures(name: str, figures: Figures) -> None:
    """Print one line for every kind of query of a table and ε."""
    for (kind, degree), (inside, ratio, together, width) in sorted(figures.items()):
        print(f"{name:20} {degree}-way {kind:20} {100 * inside:5.1f} % ratio {ratio:5.2f} joint {100 * together:5.1f} %"
              f" width {width:5.1f}", flush=True)  # fmt: skip


def in_range(figures: Iterable[tuple[float, ...]], noisy: Sequence[bool]) -> dict[str, tuple[float, float, float, int]]:
    """Return least, median and largest value of each figure, and the number of cases that meet its requirement.

    `noisy` tells the cases with ε below 1.
    """
    columns, found = np.array(list(figures)).T, {}
    for name, column, (least, most) in zip(FIGURES, columns, REQUIRED, strict=True):
        lowest = np.where(noisy, LEAST_AT_NOISE, least) if name == "coverage" else least
        within = int(((column >= lowest) & (column <= most)).sum())
        found[name] = (*np.quantile(column, [0, 0.5, 1]).tolist(), within)
    return found


def summary(figures: Mapping[tuple[str, float], Figures]) -> dict[str, float]:
    """Return the figures by kind of query and ε, and by table."""
    kinds = sorted({(kind, degree, epsilon) for (_, epsilon), own in figures.items() for kind, degree in own})
    groups = {f"{degree}-way {kind}, {epsilon:g}": [(own[kind, degree], epsilon < 1)
                                                   for (_, other), own in figures.items()
                                                   if other == epsilon and (kind, degree) in own]
              for kind, degree, epsilon in kinds}  # fmt: skip
    for name in dict.fromkeys(name for name, _ in figures):
        groups[name] = [
            (values, epsilon < 1)
            for (table, epsilon), own in figures.items()
            if table == name
            for values in own.values()
        ]
    found: dict[str, float] = {}
    for group, cases in groups.items():
        values, noisy = zip(*cases, strict=True)
        found[f"{group}, cases"] = float(len(values))
        for name, (least, middle, most, within) in in_range(values, noisy).items():
            if group in {table for table, _ in figures} and name not in ("coverage", "ratio"):
                continue
            found |= {f"{group}, {name}, least": least, f"{group}, {name}, median": middle,
                      f"{group}, {name}, most": most, f"{group}, {name}, within": float(within)}  # fmt: skip
    return found


def print_summary(found: Mapping[str, float]) -> None:
    """Print the ranges of the figures by kind of query and ε, and by table."""
    for group in dict.fromkeys(key.rsplit(", ", 1)[0] for key in found if key.endswith(", cases")):
        text = []
        for name in FIGURES:
            if f"{group}, {name}, least" in found:
                least, middle, most = (found[f"{group}, {name}, {end}"] for end in ("least", "median", "most"))
                text.append(f"{name} {least:.2f} {middle:.2f} {most:.2f} ({found[f'{group}, {name}, within']:.0f}"
                            f"/{found[f'{group}, cases']:.0f})")  # fmt: skip
        print(f"{group}: {'; '.join(text)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*KEPT, *LINKED]
    parser.add_argument("--tables", nargs="+", default=every, choices=every)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=500)
    parser.add_argument("--data", type=Path, default=DATA)
    for flag in ("fit", "leave-out", "cpu", "save"):
        parser.add_argument(f"--{flag}", action="store_true")
    arguments = parser.parse_args()
    if arguments.cpu:
        compare_jobs(arguments.data / "adult")
        return
    found, samples = {}, list[Sample]()
    with tempfile.TemporaryDirectory() as folder:
        stored = CaseStore(Path(folder))
        for table in filter(None, (load_table(name, arguments.data) for name in arguments.tables)):
            for epsilon in arguments.epsilons:
                cases = [measure(table, epsilon, arguments.first_seed + seed) for seed in range(arguments.seeds)]
                stored.write(table.name, epsilon, cases)
                samples += [one for number, case in enumerate(cases) for one in sample_of(case, number)]
                if not arguments.leave_out:
                    found[table.name, epsilon] = figures_of(cases, CALIBRATION)
                    print_figures(f"{table.name} {epsilon:g}", found[table.name, epsilon])
        if arguments.fit:
            print(fit(samples))
        if arguments.leave_out:
            for name in dict.fromkeys(name for name, _ in stored.names):
                calibration = fit([one for one in samples if one.table != name])
                for table_name, epsilon in stored.names:
                    if table_name == name:
                        found[name, epsilon] = figures_of(stored.read(name, epsilon), calibration)
                        print_figures(f"{name} {epsilon:g}", found[name, epsilon])
    print_summary(summary(found))
    if arguments.save:
        base.save("intervals", summary(found) | compare_jobs(arguments.data / "adult"))


TARGET, TOLERANCE = 0.08, 0.12  # of the log ratio
LEAST_COVERAGE, MOST_COVERAGE = 0.945, 0.972
SOFT = 0.1  # softness of the limit of an interval, in standard errors
RIDGE, STEPS = 1e-3, 30
START = Calibration(1.5, 1.5, 1.5, 1.5, 1.0, 1.0, 0.5, 1.0, 0.5, 0.5, 0.01)  # round numbers


@dataclass(frozen=True, eq=False)
class Sample:
    """Queries of one kind over one set of a release.

    Attributes
    ----------
    table : str
    epsilon : float
    kind : str
    set_kind : SetKind
    departures : Departures
    widening : float
    parts : ndarray, shape (components, queries)
    squared : ndarray
        Squared errors.
    """

    table: str
    epsilon: float
    kind: str
    set_kind: SetKind
    departures: Departures
    widening: float
    parts: np.ndarray
    squared: np.ndarray


class _Fit:
    """Samples as flat arrays; the logarithms of the weights are the parameters."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        sizes = np.array([one.squared.size for one in samples])
        self.starts, self.sizes = np.cumsum(sizes) - sizes, sizes
        self.owner = np.repeat(np.arange(len(samples)), sizes)
        self.parts = np.concatenate([one.parts for one in samples], axis=1)
        self.squared = np.concatenate([one.squared for one in samples])
        keys = [(one.set_kind, one.departures, one.widening) for one in samples]
        self.keys = list(dict.fromkeys(keys))
        places = {key: place for place, key in enumerate(self.keys)}
        self.key_of = np.array([places[key] for key in keys])
        cases = [(one.table, one.epsilon, one.kind, one.set_kind.degree) for one in samples]
        numbers = {case: place for place, case in enumerate(dict.fromkeys(cases))}
        self.case_of, self.cases = np.array([numbers[case] for case in cases]), len(numbers)

    def variances(self, parameters: np.ndarray) -> np.ndarray:
        calibration = calibration_of(parameters)
        weights = np.array([calibration.weights(*key) for key in self.keys])[self.key_of]
        return weighted(list(weights[self.owner].T), self.parts)

    def loss(self, parameters: np.ndarray) -> float:
        variances = self.variances(parameters)
        scaled = np.sqrt(self.squared / variances)
        inside = 1 / (1 + np.exp(np.minimum((scaled - 1.96) / SOFT, 50)))
        coverage, stated, true = (self._by_case(values) for values in (inside, variances, self.squared))
        away = np.abs(np.clip(np.log(stated / np.maximum(true, 1e-9)) / 2, -1.5, 1.5) - TARGET)
        ratio = np.where(away < TOLERANCE, away**2 / (2 * TOLERANCE), away - TOLERANCE / 2)
        low = 0.04 * np.logaddexp(0, (LEAST_COVERAGE - coverage) / 0.01)
        high = 0.032 * np.logaddexp(0, (coverage - MOST_COVERAGE) / 0.004)
        ridge = RIDGE * float(((parameters - parameters_of(START)) ** 2).sum())
        return float((ratio + low + high).mean()) + ridge

    def _by_case(self, values: np.ndarray) -> np.ndarray:
        """Return the means over sets of the means over queries, for every case."""
        means = np.add.reduceat(values, self.starts) / self.sizes
        return np.bincount(self.case_of, means, self.cases) / np.bincount(self.case_of, minlength=self.cases)


SLOPES = (6, 8)  # places of the slopes, which are parameters themselves


def parameters_of(calibration: Calibration) -> np.ndarray:
    values = np.array(astuple(calibration))
    slopes = values[list(SLOPES)]
    logs = np.log(np.maximum(values, 1e-12))
    logs[list(SLOPES)] = slopes
    return logs


def calibration_of(parameters: np.ndarray) -> Calibration:
    values = np.exp(np.clip(parameters, -20, 20))
    values[list(SLOPES)] = parameters[list(SLOPES)]
    return Calibration(*(float(one) for one in values))


def fit(samples: Sequence[Sample]) -> Calibration:
    """Return the weights with the smallest mean loss over tables, ε, kinds of queries and degrees."""
    problem = _Fit(samples)
    found = minimize(problem.loss, parameters_of(START), method="L-BFGS-B", options={"maxiter": STEPS})
    return calibration_of(found.x)


if __name__ == "__main__":
    main()
