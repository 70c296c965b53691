"""Confidence intervals of logistic regression from several synthetic tables, beside those of single rows; δ = 1e-9.

Coefficients of the records are the truth. Every regression has an outcome of two values and four predictors, scaled
codes of attributes. Three kinds of 95 % intervals are compared:

    single    one table of synthetic rows and the standard errors of an ordinary regression, as if it were the records
    replicas  rows of each replica of `simulated_errors`, around the coefficients of the released rows
    multiple  rows of M tables whose pairs are drawn from the estimates with their standard errors, the combining rule

Combining rule: centre q̄ = mean of the M coefficients, variance T = (1 + 1/M) B with their variance B, and quantiles of
Student's t with M − 1 degrees of freedom. B contains the noise, the shrinkage, and unmeasured interactions, because the
perturbation of a pair has the variances of `simulated_errors`. Its direction is random among those that keep the
1-ways. The perturbed tables are fitted to perturbed 1-ways; all pairs are targets of the rows.

Printed: coverage, and the root mean square error of the centre over that of `single`, and the mean half width over the
root mean square error. The form was chosen on Adult; the other tables only report.

    python benchmarks/multiple_tables.py [--tables adult telco acs23] [--epsilons 0.1 1 10] [--seeds 4] [--save]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean

import base
import numpy as np
from adaptive import with_pairs
from base import DATA, Table, load_table
from intervals import release_errors
from rows import MEMORY, draw_rows
from scipy.stats import t as student

from dpscale import Domain, Workload
from dpscale.reconstruction.entropy import LowOrder, proportional_fit
from dpscale.reconstruction.pairwise import PairTargets, PairwiseModel, learn, pair_targets
from dpscale.reconstruction.simulated_errors import SimulatedErrors
from dpscale.synthesis.draw import tree_start
from dpscale.synthesis.set_targets import set_targets

OUTCOMES = {"adult": "income>50K", "telco": "Churn"}
REGRESSIONS, PREDICTORS, TABLES = 12, 4, 6
LEAST_SHARE, MOST_ERROR, RIDGE, STEPS = 0.05, 0.5, 1e-2, 30
SCALINGS, LINEAR, FIT_ROUNDS, TOLERANCE, LEAST = 10, 0.5, 60, 1e-7, 1e-9
KINDS = ("single", "replicas", "multiple")


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
    for _ in range(STEPS):
        mean = 1 / (1 + np.exp(-np.clip(design @ found, -30, 30)))
        information = (design * (mean * (1 - mean))[:, None]).T @ design + RIDGE * np.eye(len(found))
        step = np.linalg.solve(information, design.T @ (outcome - mean) - RIDGE * found)
        found += step * min(1.0, 2.0 / max(float(np.abs(step).max()), LEAST))
        if np.abs(step).max() < TOLERANCE:
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
        own[:] = proportional_fit(changed, margins, FIT_ROUNDS, TOLERANCE)
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
                for i, replica in enumerate(simulated.replicas[:TABLES])]  # fmt: skip
    several = []
    for number in range(TABLES):
        targets = perturbed_targets(simulated, pairwise.targets, rng)
        several.append(rows_of(released, learn(targets, f"{seed} {number}", start=tree_start), f"{seed} {number}"))
    found: dict[str, list[Interval]] = {kind: [] for kind in KINDS}
    quantile = float(student.ppf(0.975, TABLES - 1))
    for one in regressions_of(table):
        centre, errors = one.fit(single)
        found["single"].append(Interval(centre, 1.96 * errors, one.exact))
        for kind, tables in (("replicas", replicas), ("multiple", several)):
            fitted = np.array([one.fit(rows)[0] for rows in tables])
            half = quantile * np.sqrt((1 + 1 / TABLES) * fitted.var(axis=0, ddof=1))
            found[kind].append(Interval(centre if kind == "replicas" else fitted.mean(axis=0), half, one.exact))
    return found


def measure(data: Path, case: tuple[str, float, int]) -> dict[str, list[Interval]]:
    name, epsilon, seed = case
    table = load_table(name, data)
    assert table is not None
    return intervals_of(table, epsilon, seed)


def summarize(found: Sequence[dict[str, list[Interval]]]) -> dict[str, tuple[float, float, float]]:
    """Return coverage, error of the centre over that of `single`, and width over error, by kind."""
    errors = {kind: np.concatenate([one.centre - one.exact for case in found for one in case[kind]]) for kind in KINDS}
    widths = {kind: np.concatenate([one.half_width for case in found for one in case[kind]]) for kind in KINDS}
    norms = {kind: float(np.sqrt(np.mean(errors[kind] ** 2))) for kind in KINDS}
    return {
        kind: (
            float(np.mean(np.abs(errors[kind]) <= widths[kind])),
            norms[kind] / norms["single"],
            float(np.mean(widths[kind])) / norms[kind],
        )
        for kind in KINDS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        runs = {key: pool.map(partial(measure, arguments.data), [(*key, seed) for seed in seeds]) for key in keys}
        for (name, epsilon), of in runs.items():
            for kind, (coverage, error, width) in summarize(list(of)).items():
                print(f"{name}, epsilon {epsilon:g}, {kind}: coverage {coverage:.3f}, error over single {error:.2f}, "
                      f"half width over error {width:.2f}", flush=True)  # fmt: skip
                own = f"{name}, {epsilon:g}, {kind}"
                figures |= {f"{own}, coverage": coverage, f"{own}, error": error, f"{own}, width": width}
    if arguments.save:
        base.save("multiple_tables", figures)


if __name__ == "__main__":
    main()
