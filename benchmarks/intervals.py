"""Intervals from adaptive jobs.

python benchmarks/intervals.py queries            coverage and width of intervals of single queries
python benchmarks/intervals.py multiple_tables    intervals of coefficients from several synthetic tables
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import combinations, product
from pathlib import Path
from statistics import fmean

import base
import numpy as np
from adaptive import complete_model, run_adaptive, with_pairs
from base import DATA, KEPT, LINKED, Names, Table, load_table
from main_job import compare_jobs
from rows import MEMORY, draw_rows
from scipy.optimize import minimize
from scipy.stats import t as student

from dpscale import Domain, Workload
from dpscale.mechanisms.aim_grem import Options
from dpscale.reconstruction.entropy import LowOrder, proportional_fit
from dpscale.reconstruction.joint_intervals import bonferroni
from dpscale.reconstruction.pairwise import PairTargets, PairwiseModel, learn, pair_targets
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
from dpscale.synthesis.draw import tree_start
from dpscale.synthesis.set_targets import set_targets
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


def print_queries() -> None:
    """Coverage of 95 % intervals of an adaptive release, by kind of query, table and ε, with weights of other tables.

        python benchmarks/intervals.py queries [--tables adult acs …] [--epsilons 0.1 1 10] [--seeds 3]
            [--first-seed 500]
            --fit        fit the weights of `simulated_errors` to all tables, and print them
            --leave-out  report every table with weights that were fitted to the other tables
            --cpu        only the CPU time of `dpscale run` on Adult, with errors and without
            --save       save the figures and this CPU time in results/

    A release is one of all 3-way marginals, as a job with `maxent` estimates it. All 1-ways, 40 pairs and 30 sets of
    three attributes are sampled. Classes of queries: cells, and cumulative queries (from the first value on along every
    attribute, without the total), each of at least 1 % of the records and below; sums of an attribute's codes, for all
    records or by the values of another attribute; differences of the cells of two neighbouring groups. Printed for each
    class, and summarized with the number of tables that meet the requirement in brackets:

        coverage   mean over sets and seeds of the share of queries within 1.96 standard errors (.9, at ε below 1 .85)
        ratio      root mean square standard error over root mean square error, each set counted once (at most 1.6)
        joint      share of sets of which all queries are inside simultaneous 95 % intervals (.92 to 1)
        width      mean half width of these intervals over Bonferroni's for normal errors of the true size, by sums over
                   sets (at most 1.35)

    Real tables are in ../shared/data and are not part of dpscale. The weights in `simulated_errors` were fitted to all
    tables, seeds 500 to 502, and rounded. Only the weights are left out: the form of the components and the constants
    of simultaneous intervals were chosen on all tables.
    """
    parser = base.command_parser(print_queries.__doc__)
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


OUTCOMES = {"adult": "income>50K", "telco": "Churn"}
REGRESSIONS, PREDICTORS, REPLICAS = 12, 4, 6
LEAST_SHARE, MOST_ERROR, PENALTY, NEWTON_STEPS = 0.05, 0.5, 1e-2, 30
SCALINGS, LINEAR, FIT_ROUNDS, FIT_TOLERANCE, LEAST = 10, 0.5, 60, 1e-7, 1e-9
INFERENCES = ("single", "replicas", "multiple")


@dataclass(frozen=True, eq=False)
class Regression:
    """Columns of the outcome and the predictors, the scaling of the codes, and the fit to the records."""

    outcome: int
    above: int
    predictors: Sequence[int]
    means: np.ndarray
    scales: np.ndarray
    exact: np.ndarray

    def fit(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the coefficients without the intercept, and their standard errors."""
        scaled = (rows[:, self.predictors] - self.means) / self.scales
        return logistic(scaled, (rows[:, self.outcome] >= self.above).astype(float))


@dataclass(frozen=True, eq=False)
class Interval:
    """Centres, half widths and exact values of all coefficients of a regression."""

    centre: np.ndarray
    half_width: np.ndarray
    exact: np.ndarray


def logistic(predictors: np.ndarray, outcome: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit a logistic regression by Newton's steps, with a small ridge against separation."""
    design = np.column_stack([np.ones(len(predictors)), predictors])
    found = np.zeros(design.shape[1])
    for _ in range(NEWTON_STEPS):
        mean = 1 / (1 + np.exp(-np.clip(design @ found, -30, 30)))
        information = (design * (mean * (1 - mean))[:, None]).T @ design + PENALTY * np.eye(len(found))
        step = np.linalg.solve(information, design.T @ (outcome - mean) - PENALTY * found)
        found += step * min(1.0, 2.0 / max(float(np.abs(step).max()), LEAST))
        if np.abs(step).max() < FIT_TOLERANCE:
            break
    return found[1:], np.sqrt(np.diag(np.linalg.inv(information)))[1:]


def regressions_of(table: Table) -> Iterator[Regression]:
    """Yield the regressions of a table: an outcome that is not rare, predictors that are not collinear."""
    rng, records = np.random.default_rng(17), np.stack([table.columns[name] for name in table.names], axis=1)
    found = 0
    while found < REGRESSIONS:
        order = rng.permutation(len(table.names))
        if named := OUTCOMES.get(table.name):
            first = table.names.index(named)
            order = np.concatenate([[first], order[order != first]])
        outcome, predictors = int(order[0]), [int(i) for i in order[1 : 1 + PREDICTORS]]
        above = max(1, int(np.median(records[:, outcome])))
        chosen = records[:, predictors]
        means, scales = chosen.mean(axis=0), chosen.std(axis=0)
        share = float((records[:, outcome] >= above).mean())
        if not LEAST_SHARE < share < 1 - LEAST_SHARE or scales.min() < LEAST_SHARE:
            continue
        regression = Regression(outcome, above, predictors, means, scales, np.zeros(PREDICTORS))
        exact, errors = regression.fit(records)
        if errors.max() < MOST_ERROR and np.abs(exact).max() < 1 / MOST_ERROR:
            found += 1
            yield replace(regression, exact=exact)


def group_errors(simulated: SimulatedErrors, names: Sequence[str]) -> np.ndarray:
    """Return the standard errors of the cells over groups."""
    groups = [simulated.model.groups[name] for name in names]
    indicators = [np.eye(own.count)[:, own.labels] for own in groups]
    domain = Domain({name: own.size for name, own in zip(names, groups, strict=True)})
    part = Workload(domain).add_product(dict(zip(names, indicators, strict=True))).parts[-1]
    return simulated.part_errors(part, tuple(names)).reshape([own.count for own in groups])


def positive(table: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Return table + change, and a positive value below the table's half."""
    relative = change / np.maximum(table, LEAST)
    falling = LINEAR * np.exp((np.minimum(relative, 0.0) + LINEAR) / LINEAR)
    return table * np.where(relative > -LINEAR, 1 + relative, falling)


def centred(change: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return the change without its projection on changes of the margins, linear proportional fitting."""
    change = change.copy()
    for _ in range(FIT_ROUNDS):
        for axis in range(change.ndim):
            others = tuple(i for i in range(change.ndim) if i != axis)
            shares = table / np.maximum(table.sum(axis=others, keepdims=True), LEAST)
            change -= shares * change.sum(axis=others, keepdims=True)
    return change


def perturbed(table: np.ndarray, errors: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a table with a random change that keeps the margins and has the summed variance of the errors."""
    lengths = [float((centred(rng.normal(size=table.shape) * errors, table) ** 2).sum()) for _ in range(SCALINGS)]
    scale = np.sqrt((errors**2).sum() / max(fmean(lengths), LEAST))
    return positive(table, scale * centred(rng.normal(size=table.shape) * errors, table))


def perturbed_targets(simulated: SimulatedErrors, targets: PairTargets, rng: np.random.Generator) -> PairTargets:
    """Return targets with all 1-ways and pairs perturbed by their standard errors."""
    layout, total = targets.layout, simulated.model.total
    ones, shares = targets.ones.copy(), targets.shares.copy()
    for i, name in enumerate(layout.names):
        own = layout.one(ones, i)
        changed = positive(own, rng.normal(size=own.shape) * group_errors(simulated, (name,)) / total)
        own[:] = changed / changed.sum()
    for i, j in layout.pairs:
        ordered = sorted((layout.names[i], layout.names[j]), key=list(simulated.model.ones).index)
        errors = group_errors(simulated, ordered) / total
        errors = errors if ordered[0] == layout.names[i] else errors.T
        own = layout.of(shares, i, j)
        changed = perturbed(own, errors, rng) + LEAST / own.size
        margins = [((0,), layout.one(ones, i)), ((1,), layout.one(ones, j))]
        own[:] = proportional_fit(changed, margins, FIT_ROUNDS, FIT_TOLERANCE)
    return PairTargets(layout, ones, shares, targets.known | layout.used)


def rows_of(model: LowOrder, learnt: PairwiseModel, release: str) -> np.ndarray:
    """Draw as many rows as records, polished to three-way targets."""
    targets = set_targets(learnt, model, release, MEMORY, model.total)
    return draw_rows(model, learnt, release, round(model.total), 1, targets)


def learnt_rows(model: LowOrder, release: str) -> np.ndarray:
    return rows_of(model, learn(pair_targets(model, MEMORY), release, start=tree_start), release)


def intervals_of(table: Table, epsilon: float, seed: int) -> dict[str, list[Interval]]:
    """Return the intervals of all regressions by kind, of one release."""
    simulated, rng = release_errors(table, epsilon, seed), np.random.default_rng(seed)
    released = simulated.model
    pairwise = learn(pair_targets(released, MEMORY), str(seed), start=tree_start)
    single = rows_of(released, pairwise, str(seed))
    replicas = [learnt_rows(with_pairs(replica, f"{seed} {i}")[0], f"{seed} {i}")
                for i, replica in enumerate(simulated.replicas[:REPLICAS])]  # fmt: skip
    several = []
    for number in range(REPLICAS):
        targets = perturbed_targets(simulated, pairwise.targets, rng)
        several.append(rows_of(released, learn(targets, f"{seed} {number}", start=tree_start), f"{seed} {number}"))
    found: dict[str, list[Interval]] = {kind: [] for kind in INFERENCES}
    quantile = float(student.ppf(0.975, REPLICAS - 1))
    for one in regressions_of(table):
        centre, errors = one.fit(single)
        found["single"].append(Interval(centre, 1.96 * errors, one.exact))
        for kind, tables in (("replicas", replicas), ("multiple", several)):
            fitted = np.array([one.fit(rows)[0] for rows in tables])
            half = quantile * np.sqrt((1 + 1 / REPLICAS) * fitted.var(axis=0, ddof=1))
            found[kind].append(Interval(centre if kind == "replicas" else fitted.mean(axis=0), half, one.exact))
    return found


def measure_regressions(data: Path, case: tuple[str, float, int]) -> dict[str, list[Interval]]:
    name, epsilon, seed = case
    table = load_table(name, data)
    assert table is not None
    return intervals_of(table, epsilon, seed)


def summarize(found: Sequence[dict[str, list[Interval]]]) -> dict[str, tuple[float, float, float]]:
    """Return coverage, error of the centre over that of `single`, and width over error, by kind."""
    errors = {
        kind: np.concatenate([one.centre - one.exact for case in found for one in case[kind]]) for kind in INFERENCES
    }
    widths = {kind: np.concatenate([one.half_width for case in found for one in case[kind]]) for kind in INFERENCES}
    norms = {kind: float(np.sqrt(np.mean(errors[kind] ** 2))) for kind in INFERENCES}
    return {
        kind: (
            float(np.mean(np.abs(errors[kind]) <= widths[kind])),
            norms[kind] / norms["single"],
            float(np.mean(widths[kind])) / norms[kind],
        )
        for kind in INFERENCES
    }


def print_multiple_tables() -> None:
    """Confidence intervals of logistic regression from several synthetic tables, beside those of single rows; δ = 1e-9.

    Coefficients of the records are the truth. Every regression has an outcome of two values and four predictors, scaled
    codes of attributes. Three kinds of 95 % intervals are compared:

        single    one table of synthetic rows and the standard errors of an ordinary regression, as if it were the
                  records
        replicas  rows of each replica of `simulated_errors`, around the coefficients of the released rows
        multiple  rows of M tables whose pairs are drawn from the estimates with their standard errors, the combining
                  rule

    Combining rule: centre q̄ = mean of the M coefficients, variance T = (1 + 1/M) B with their variance B, and
    quantiles of Student's t with M − 1 degrees of freedom. B contains the noise, the shrinkage, and unmeasured
    interactions, because the perturbation of a pair has the variances of `simulated_errors`. Its direction is random
    among those that keep the 1-ways. The perturbed tables are fitted to perturbed 1-ways; all pairs are targets of the
    rows.

    Printed: coverage, and the root mean square error of the centre over that of `single`, and the mean half width over
    the root mean square error. The form was chosen on Adult; the other tables only report.

        python benchmarks/intervals.py multiple_tables [--tables adult telco acs23] [--epsilons 0.1 1 10] [--seeds 4]
            [--save]
    """
    parser = base.command_parser(print_multiple_tables.__doc__)
    parser.add_argument("--tables", nargs="+", default=["adult", "telco", "acs23"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.1, 1.0, 10.0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=700)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    keys = list(product(arguments.tables, arguments.epsilons))
    figures: dict[str, float] = {}
    with ProcessPoolExecutor(arguments.processes) as pool:
        runs = {
            key: pool.map(partial(measure_regressions, arguments.data), [(*key, seed) for seed in seeds])
            for key in keys
        }
        for (name, epsilon), of in runs.items():
            for kind, (coverage, error, width) in summarize(list(of)).items():
                print(f"{name}, epsilon {epsilon:g}, {kind}: coverage {coverage:.3f}, error over single {error:.2f}, "
                      f"half width over error {width:.2f}", flush=True)  # fmt: skip
                own = f"{name}, {epsilon:g}, {kind}"
                figures |= {f"{own}, coverage": coverage, f"{own}, error": error, f"{own}, width": width}
    if arguments.save:
        base.save("multiple_tables", figures)


COMMANDS = {
    "queries": print_queries,
    "multiple_tables": print_multiple_tables,
}

if __name__ == "__main__":
    base.run_command(COMMANDS, __doc__)
