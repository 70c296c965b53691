"""Intervals and tests of statistics that are computed from releases.

python benchmarks/conclusions.py comparisons    differences, shares, risks, odds, trends, and tests of independence
python benchmarks/conclusions.py regression     coefficients of regressions
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import base
import numpy as np
from base import DATA, Names, Table, load_table
from scipy.stats import chi2_contingency

import dpscale as dp
from dpscale.answers import conclusions
from dpscale.answers.conclusions import SCALES, Contrast
from dpscale.answers.independence import independence_test
from dpscale.answers.regression.design import Design, read_design
from dpscale.answers.regression.fit import RegressionFit, RegressionResult, fit_regression
from dpscale.answers.regression.scores import LinearScore
from dpscale.answers.statistics import TooFewRecords
from dpscale.answers.tables import Answered
from dpscale.counting.count import ExactMarginal
from dpscale.domain import Domain
from dpscale.measurement.measurement import measure_block
from dpscale.plans.measurement_plan import plan_draws
from dpscale.plans.time_plan import TimePlan
from dpscale.privacy import gdp_mu
from dpscale.reconstruction.estimates import LeastSquaresEstimates

TABLES = ("adult", "telco", "acs23", "salary", "weak groups", "strong effect")
LARGEST, DELTA, LARGE, TESTED = 32, 1e-9, 0.01, 2000
WIDTH, DRAWS = 1.959964, 399
TIMES = TimePlan(
    tuple(tuple([0] * max(t - 2, 0) + [1] * min(t, 2) + [2]) for t in range(6)), ("period",), 0, 1, "gaussian", 0.0
)
PAIR = np.array([[1.0, -1.0]])
Outcomes = dict[tuple[str, int], list[tuple[float, float, float, float]]]  # truth, estimate, low, high of each seed
Query = tuple[str, str, int, tuple[int, int]]  # outcome, group, value of the outcome, two values of the group


def constructed(name: str, seed: int = 3) -> Table:
    """Return a table of 3,000 records with groups of 3 to 1,600, or one with odds ratios up to 50."""
    random, strong = np.random.default_rng(seed), name == "strong effect"
    groups = random.choice(6, 3000, p=[0.001, 0.01, 0.02, 0.1, 0.33, 0.539])
    chance = np.linspace(0.02, 0.5 if strong else 0.06, 6)[groups]
    columns = [groups, random.random(3000) < chance, random.integers(0, 4, 3000), random.integers(0, 12, 3000)]
    return Table(name, {"group": 6, "event": 2, "region": 4, "month": 12}, np.stack(columns, axis=1).astype(int))


def stream(table: Table, epsilon: float, seed: int, part: int) -> np.random.Generator:
    """Return the random numbers of a part of the benchmark."""
    return np.random.default_rng([*table.name.encode(), int(1000 * epsilon), seed, part])


class Releases:
    """Releases of all pairs of a table at an ε."""

    def __init__(self, table: Table, epsilon: float) -> None:
        self.names = [name for name in table.names if table.sizes[name] <= LARGEST]
        self.domain = dp.Domain({name: table.sizes[name] for name in self.names})
        self.plan = dp.plan(dp.Workload(self.domain).add("marginal", degree=2))
        self.variances = np.asarray(self.plan.blocks.unit_variances, float) / gdp_mu(epsilon, DELTA) ** 2

    def measured(self, table: Table) -> list[np.ndarray]:
        """Return the exact values of all blocks."""
        found = []
        for block in self.plan.blocks:
            values = table.counts(block.attributes).astype(float)
            for axis, factor in enumerate(block.factors):
                values = np.moveaxis(np.tensordot(factor.explicit().astype(float), values, axes=(1, axis)), 0, axis)
            found.append(values.reshape(block.rows))
        return found

    def noise(self, random: np.random.Generator) -> list[np.ndarray]:
        return [random.normal(0, variance**0.5, block.rows)
                for block, variance in zip(self.plan.blocks, self.variances, strict=True)]  # fmt: skip

    def answered(
        self, values: list[np.ndarray], noise: list[np.ndarray], factor: float = 1.0, name: str = ""
    ) -> Answered:
        """Return the estimates from exact values and noise with `factor` times the planned variance."""
        noisy = [one + other for one, other in zip(values, noise, strict=True)]
        return Answered(LeastSquaresEstimates(self.plan, self.variances * factor, noisy.__getitem__), name)


def chosen_queries(table: Table, names: list[str], count: int) -> Iterator[Query]:
    """Yield queries, half of them with small groups."""
    random = np.random.default_rng(1)
    pairs = [(one, other) for one in names for other in names if one != other]
    small = {name: table.counts((name,)) < LARGE * table.rows for name in names}
    wanted = [True, False] * (count // 2)
    for _ in range(1000):
        outcome, group = pairs[random.integers(len(pairs))]
        first, second = random.choice(table.sizes[group], 2, replace=False).tolist()
        counts = table.counts((group,))
        if min(counts[[first, second]]) and any(small[group][[first, second]]) in wanted:
            wanted.remove(any(small[group][[first, second]]))
            yield (
                outcome,
                group,
                int(random.choice(table.sizes[outcome], p=table.counts((outcome,)) / table.rows)),
                (
                    first,
                    second,
                ),
            )
    return


def true_values(counts: np.ndarray, value: int, values: tuple[int, int]) -> dict[str, float]:
    """Return the exact statistics of two groups from the counts by outcome and group."""
    groups = counts[:, list(values)].astype(float)
    shares = groups[value] / groups.sum(axis=0)
    means = np.arange(len(counts)) @ groups / groups.sum(axis=0)
    found = {"count": groups.sum(axis=0)[0] - groups.sum(axis=0)[1], "mean": means[0] - means[1]}
    return found | {scale: convert[0](shares[0]) - convert[0](shares[1]) for scale, convert in SCALES.items()}


def comparisons(release: Answered, query: Query, population: bool) -> dict[str, Contrast]:
    """Return all statistics of a query; ratios on their log scale."""
    outcome, group, value, values = query
    records = conclusions.over(release, (), [outcome, group])
    groups = [records.spread({group: one}) for one in values]
    share, mean = (
        conclusions.share_outcome(records.domain, {outcome: value}),
        conclusions.mean_outcome(release, outcome),
    )
    found = {"count": conclusions.linear(records, groups, PAIR, 0.95, population),
             "mean": conclusions.compared(records, mean, groups, PAIR, 0.95, population)}  # fmt: skip
    plain = conclusions.combined(records, share, groups, PAIR, population, [share.rows[0]] * 2)
    for scale, convert in SCALES.items():
        own = replace(plain, scale=convert)
        found[scale] = Contrast(own.estimate, *own.limits(WIDTH), 0.0, population)
    return found


def drawn_again(table: Table, rows: int, random: np.random.Generator, independent: Names = ()) -> Table:
    """Return records drawn with replacement; independent attributes are drawn each on its own."""
    places = random.integers(0, table.rows, rows)
    codes = [table.columns[name][random.integers(0, table.rows, rows) if name in independent else places]
             for name in table.names]  # fmt: skip
    return Table(table.name, table.sizes, np.stack(codes, axis=1))


LABELS = {"count": "difference of counts", "mean": "difference of means", "difference": "difference of shares",
          "risk": "relative risk", "odds": "odds ratio"}  # fmt: skip


def measure_intervals(table: Table, epsilon: float, seeds: int, queries: int) -> Outcomes:
    """Return the intervals of all statistics of a table."""
    found: Outcomes = defaultdict(list)
    releases = Releases(table, epsilon)
    chosen = list(chosen_queries(table, releases.names, queries))
    exact = releases.measured(table)
    for seed in range(seeds):
        random = stream(table, epsilon, seed, 11)
        again = releases.measured(drawn_again(table, table.rows, random))
        for population, values in ((False, exact), (True, again)):
            release = releases.answered(values, releases.noise(random))
            for number, query in enumerate(chosen):
                counts = table.counts((query[0], query[1]))
                least = min(counts.sum(axis=0)[list(query[3])])
                size = "large" if least >= LARGE * table.rows else "small"
                truths = true_values(counts, query[2], query[3])
                for kind, one in comparisons(release, query, population).items():
                    if population and kind == "count":
                        continue
                    name = LABELS[kind] + (f", {size} groups" if kind != "count" else "")
                    name += ", population" if population else ""
                    found[name, number].append((truths[kind], one.estimate, one.low, one.high))
    return found


def measure_trends(table: Table, epsilon: float, seeds: int, queries: int) -> Outcomes:
    """Return the intervals of slopes of counts and shares over six parts of the records."""
    found: Outcomes = defaultdict(list)
    releases, places = Releases(table, epsilon), np.random.default_rng(2).integers(0, 6, table.rows)
    codes = np.stack([table.columns[name] for name in table.names], axis=1)
    parts = [Table(table.name, table.sizes, codes[places == period]) for period in range(6)]
    exact, shared = [releases.measured(part) for part in parts], TIMES.shared_noise("period", range(6))
    weights = conclusions.slope_weights(shared, np.arange(6.0))[:, None]
    for seed in range(seeds):
        random = stream(table, epsilon, seed, 12)
        drawn = [releases.noise(random) for _ in range(6)]
        answers = []
        for period in range(6):
            mixed = TIMES.coefficients("period", period)
            noise = [
                sum(c * one[block] for c, one in zip(mixed, drawn, strict=False)) for block in range(len(drawn[0]))
            ]
            answers.append(releases.answered(exact[period], noise, float(mixed @ mixed)))
        for number, (outcome, group, value, values) in enumerate(chosen_queries(table, releases.names, queries)):
            records = conclusions.over_periods(answers, shared, (), [outcome, group])
            own, counts = records.spread({group: values[0]}), [part.counts((outcome, group)) for part in parts]
            sizes = np.array([one[:, values[0]].sum() for one in counts])
            hits = np.array([one[value, values[0]] for one in counts])
            slope = conclusions.linear(records, [own], weights, 0.95, False)
            found["trend of counts", number].append((float(weights[:, 0] @ sizes), *slope[:3]))
            if sizes.min() > 0:
                share = conclusions.share_outcome(records.domain, {outcome: value})
                slope = conclusions.compared(records, share, [own], weights, 0.95, False)
                found["trend of shares", number].append((float(weights[:, 0] @ (hits / sizes)), *slope[:3]))
    return found


def measure_tests(table: Table, epsilon: float, seeds: int, queries: int) -> dict[str, list[float]]:
    """Return rejections at 5 % by name."""
    found: dict[str, list[float]] = defaultdict(list)
    releases = Releases(table, epsilon)
    pairs = list(combinations(releases.names, 2))
    chosen = np.random.default_rng(4).permutation(len(pairs))[:queries]
    for seed in range(seeds):
        random = stream(table, epsilon, seed, 13)
        for kind, independent in (("size", tuple(releases.names)), ("power", ())):
            records = drawn_again(table, TESTED, random, independent)
            release = releases.answered(releases.measured(records), releases.noise(random), name=f"{kind} {seed}")
            for place in chosen:
                rejected = 0.0
                with suppress(TooFewRecords):
                    rejected = float(independence_test(release, pairs[place], (), {}, DRAWS).p_value <= 0.05)
                counts = records.counts(pairs[place])
                counts = counts[counts.sum(1) > 0][:, counts.sum(0) > 0]
                on_data = min(counts.shape) > 1 and chi2_contingency(counts, correction=False).pvalue <= 0.05
                found[f"{kind} of the test"].append(rejected)
                found[f"{kind} of Pearson's test on the data"].append(float(on_data))
    return found


def summary(outcomes: Outcomes) -> dict[str, dict[str, float]]:
    """Return coverage, width and share of finite intervals by statistic."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (name, _), rows in outcomes.items():
        truth, estimate, low, high = np.array(rows).T
        if np.isnan(truth).any():  # the ratio of two shares of 0
            continue
        covered = (low <= truth + 1e-9) & (truth - 1e-9 <= high)
        finite = np.isfinite(low) & np.isfinite(high)
        found[name]["coverage"] += covered.tolist()
        found[name]["finite"] += finite.tolist()
        with np.errstate(invalid="ignore"):
            errors = np.abs(estimate - truth)
        true = 1.4826 * np.median(errors[finite]) * WIDTH if finite.sum() > 5 else 0.0
        if np.isfinite(true) and true > 0:
            found[name]["width"].append(float(np.median((high - low)[finite]) / 2 / true))
    return {name: {"coverage": float(np.mean(one["coverage"])), "finite": float(np.mean(one["finite"])),
                   "width": float(np.median(one["width"])) if one["width"] else 0.0, "intervals": len(one["coverage"])}
            for name, one in found.items()}  # fmt: skip


def print_comparisons() -> None:
    """Coverage and widths of conclusions from a release: differences, ratios, trends and tests, at three ε.

        python benchmarks/conclusions.py comparisons [--tables adult telco …] [--epsilons 0.1 1 10] [--seeds 30]
            [--queries 6] [--save]

    A release is one of all pairs of the attributes of a table with at most 32 values, by `weighted-residuals` and least
    squares, δ = 10⁻⁹. Groups are two values of an attribute, outcomes are values of another one. Shares and ratios are
    of "large" groups (each at least 1 % of the records) or "small" ones. Printed for each statistic:

        coverage   share of the 95 % intervals that contain the true value: of the records, or with `population` of the
                   table from which the records were drawn again with replacement
        width      median told half width of the finite intervals over that of the true errors, 1.96 · 1.48 · their
                   median
        finite     share of the intervals on a log scale with two finite ends

    Trends are over six parts of the records, with weights of a growing table. The size of the test is its rejections at
    5 % on draws of 2,000 records from the product of the margins; its power is that on 2,000 records of the table,
    beside Pearson's test on the same records. Real tables are in ../shared/data and are not part of dpscale; "weak
    groups" and "strong effect" are constructed.
    """
    parser = base.command_parser(print_comparisons.__doc__)
    parser.add_argument("--tables", nargs="+", default=list(TABLES))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--queries", type=int, default=6)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    for epsilon in arguments.epsilons:
        every: dict[str, list[dict[str, float]]] = defaultdict(list)
        for name in arguments.tables:
            table = constructed(name) if name in ("weak groups", "strong effect") else load_table(name, arguments.data)
            if table is None:
                continue
            outcomes = measure_intervals(table, epsilon, arguments.seeds, arguments.queries)
            outcomes |= measure_trends(table, epsilon, arguments.seeds, arguments.queries // 2)
            for statistic, own in summary(outcomes).items():
                every[statistic].append(own)
                print(f"{name} {epsilon:g} {statistic}: coverage {own['coverage']:.3f}, width {own['width']:.2f}, "
                      f"finite {own['finite']:.2f}, {own['intervals']} intervals", flush=True)  # fmt: skip
            for statistic, rejected in measure_tests(table, epsilon, arguments.seeds, arguments.queries).items():
                every[statistic].append({"coverage": float(np.mean(rejected))})
                print(f"{name} {epsilon:g} {statistic}: {np.mean(rejected):.3f} of {len(rejected)}", flush=True)
        for statistic, rows in every.items():
            values = [row["coverage"] for row in rows]
            key = f"{statistic}, {epsilon:g}"
            figures |= {f"{key}, least": min(values), f"{key}, mean": float(np.mean(values))}
            if "width" not in rows[0]:
                figures[f"{key}, most"] = max(values)
            else:
                figures |= {f"{key}, width": float(np.median([row["width"] for row in rows if row["width"]] or [0.0])),
                            f"{key}, finite": float(np.mean([row["finite"] for row in rows]))}  # fmt: skip
    for key, figure in figures.items():
        print(f"{key}: {figure:.3f}")
    if arguments.save:
        base.save("conclusions", figures)


LEVEL, GROUPS = 0.95, 8
EFFECT = 2 * np.log(99)  # range of the logarithm of odds of 1 to 99 %
EPSILONS = ("0.1", "1", "10")
REGRESSION_FIGURES = ("told", "coverage", "width", "due", "due told", "peer")


@dataclass(frozen=True)
class Case:
    """A regression of a table; `sizes` limits the groups of an attribute, of which the last has all larger codes."""

    table: str
    family: str
    formula: str
    sizes: dict[str, int]
    clipped: bool = False


CASES = (
    Case("adult", "linear", "hours ~ age + C(sex) + education", {"age": 8, "hours": 8, "education": 8}),
    Case("adult", "logistic", "income ~ age + C(sex) + education", {"age": 8, "education": 8}),
    Case("telco", "linear", "Charges ~ C(InternetService) + Partner + tenure", {"Charges": 7, "tenure": 5}),
    Case("telco", "logistic", "Churn ~ tenure + C(Contract) + SeniorCitizen", {"tenure": 5}),
    Case("acs23", "linear", "a00 ~ a01 + a02 + a03 + a04", {}),
    Case("acs23", "logistic", "a05 ~ a06 + a07 + a08", {}),
    Case("salary", "linear", "gross ~ regular + C(system)", {}, clipped=True),
    Case("salary", "logistic", "gross > 3 ~ other + C(system)", {"other": 6}, clipped=True),
    Case("salary", "poisson", "other ~ C(system) + regular", {"regular": 6}, clipped=True),
    Case("generated", "linear", "y ~ x + C(g)", {}),
    Case("generated", "logistic", "f ~ x + C(g)", {}),
    Case("generated", "poisson", "c ~ x + C(g)", {}),
)
LINES = (  # with one covariate
    Case("adult", "linear", "hours ~ age", {"age": 8, "hours": 8}),
    Case("telco", "linear", "Charges ~ tenure", {"Charges": 7, "tenure": 5}),
    Case("acs23", "linear", "a00 ~ a01", {}),
    Case("salary", "linear", "gross ~ regular", {}, clipped=True),
    Case("generated", "linear", "y ~ x", {}),
)
CANDIDATES = 400
RENAMED = {"hours-per-week": "hours", "education-num": "education", "income>50K": "income", "ytd-gross": "gross",
           "regular-earnings": "regular", "other-earnings": "other",
           "MonthlyCharges": "Charges"}  # fmt: skip


def generate(rows: int = 5000) -> dict[str, np.ndarray]:
    """Return a table whose outcomes follow a line, a logistic and a Poisson model."""
    rng = np.random.default_rng(7)
    x, g = rng.integers(0, 5, rows), rng.choice(4, rows, p=[0.5, 0.3, 0.15, 0.05])
    effect = np.array([0.0, 0.5, -0.5, 1.0])[g]
    y = np.clip(np.rint(2 + 0.4 * x + effect + rng.normal(0, 1, rows)), 0, 7)
    f = rng.random(rows) < 1 / (1 + np.exp(1 - 0.3 * x - effect))
    return {"x": x, "g": g, "y": y, "f": f, "c": np.minimum(rng.poisson(np.exp(-0.5 + 0.2 * x + effect / 2)), 9)}


def load(case: Case) -> tuple[Domain, dict[str, np.ndarray]] | None:
    """Return the domain and the codes of the attributes of a case; None if the table is absent."""
    if case.table == "generated":
        columns = generate()
        sizes = {name: int(own.max()) + 1 for name, own in columns.items()}
    elif (table := base.load_table(case.table)) is not None:
        columns = {RENAMED.get(name, name): own for name, own in table.columns.items()}
        sizes = {RENAMED.get(name, name): size for name, size in table.sizes.items()}
    else:
        return None
    used = [name for name in sizes if name in base_names(case.formula)]
    groups = {name: min(case.sizes.get(name, GROUPS), sizes[name]) for name in used}
    codes = {name: np.minimum(columns[name].astype(np.int64), groups[name] - 1) if case.clipped
             else columns[name].astype(np.int64) * groups[name] // sizes[name] for name in used}  # fmt: skip
    return Domain(groups), codes


def base_names(formula: str) -> set[str]:
    """Return the words of a formula."""
    return set("".join(letter if letter.isalnum() else " " for letter in formula).split())


class RegressionReleases:
    """Releases of a plan over a table in memory, with the exact noise of the product."""

    def __init__(self, domain: Domain, codes: dict[str, np.ndarray], sets: list[tuple[str, ...]], cost: float) -> None:
        self.plan = dp.plan(dp.Workload(domain).add("marginal", attributes=sets))
        self.draws = plan_draws(self.plan, cost)
        self.variances = [float(draw.variance) / draw.multiplier**2 for draw in map(self.draws.__getitem__, self._all)]
        self.exact = {names: self._counted(domain, codes, names) for names in self.plan.counted_sets}

    @property
    def _all(self) -> range:
        return range(len(self.plan.blocks))

    @staticmethod
    def _counted(domain: Domain, codes: dict[str, np.ndarray], names: tuple[str, ...]) -> ExactMarginal:
        counts = np.zeros(domain.shape(names), np.int64)
        np.add.at(counts, tuple(codes[name] for name in names), 1)
        return ExactMarginal(names, counts, (1,) * len(names))

    def true(self) -> LeastSquaresEstimates:
        """Return the estimates without noise, with the variances of a release."""
        values = [self._values(index, None) for index in self._all]
        return LeastSquaresEstimates(self.plan, self.variances, values.__getitem__)

    def draw(self, number: int) -> LeastSquaresEstimates:
        values = [self._values(index, number) for index in self._all]
        return LeastSquaresEstimates(self.plan, self.variances, values.__getitem__)

    def _values(self, index: int, number: int | None) -> np.ndarray:
        block, draw = self.plan.blocks[index], self.draws[index]
        marginal = self.exact[self.plan.counted_sets[int(self.plan.sources.source[index])]]
        if number is not None:
            key = number.to_bytes(32, "big")
            return measure_block(block, draw, marginal, key, {"block": index}) / draw.multiplier
        others = tuple(axis for axis, name in enumerate(marginal.attributes) if name not in block.attributes)
        values = marginal.counts.sum(axis=others).astype(float)
        if block.joint:
            return np.asarray(block.factors[0].explicit() @ values.reshape(-1)).reshape(block.rows)
        for axis, factor in enumerate(block.factors):
            values = np.moveaxis(np.tensordot(factor.explicit(), values, axes=(1, axis)), 0, axis)
        return values


def sets_of(design: Design, family: str) -> list[tuple[str, ...]]:
    """Return the sets that a regression needs."""
    if family != "linear":
        return [design.names]
    columns = (*design.columns, design.outcome)
    pairs = {design.product(one, other)[0] for one in columns for other in columns}
    pairs -= {()}
    return sorted(names for names in pairs if not any(set(names) < set(other) for other in pairs))


def peer_covariance(design: Design, fit: RegressionFit, cost: float) -> np.ndarray:
    """Return the delta-method covariance of noisy sufficient statistics at the same budget, in scaled columns."""
    assert isinstance(fit.score, LinearScore)
    sizes = [float(np.abs(one.values).max()) or 1.0 for one in (*design.columns, design.outcome)]
    flat = np.stack([design.table(one).reshape(-1) / size
                     for one, size in zip((*design.columns, design.outcome), sizes, strict=True)])  # fmt: skip
    count = len(design.columns)
    pairs = [(i, j) for i in range(count) for j in range(i, count)] + [(i, count) for i in range(count)]
    moments = np.stack([flat[i] * flat[j] for i, j in pairs])
    distinct = np.unique(np.round(moments, 12), axis=0)  # equal statistics are measured once
    sensitivity = float(np.square(distinct).sum(axis=0).max())
    same = (np.abs(moments[:, None] - moments[None]) < 1e-9).all(axis=2)
    noisy = LinearScore(fit.score.moments, same * sensitivity / cost, np.zeros((count, count)), fit.score.places)
    return noisy.delta_covariance(fit.best.beta)


def public_ranges(design: Design, family: str) -> np.ndarray:
    """Return the width of the public range of each coefficient."""
    reach = float(np.ptp(design.outcome.values)) if family == "linear" else EFFECT
    return np.array([2 * reach / (float(np.ptp(one.values)) or 1.0) for one in design.columns])


def measure(case: Case, epsilon: float, releases: int) -> dict[str, float] | None:
    """Return the figures of a case at a budget."""
    if (loaded := load(case)) is None:
        return None
    domain, codes = loaded
    design, cost = read_design(domain, case.formula), dp.privacy.gdp_mu(epsilon, DELTA) ** 2
    drawn = RegressionReleases(domain, codes, sets_of(design, case.family), cost)

    exact = fit_regression(drawn.true(), design, case.family, False)
    true = RegressionResult(design, case.family, exact, "gaussian")
    params = true.params.to_numpy()
    planned = 2 * 1.959964 * np.sqrt(np.diag(true.cov_params()))
    told, inside, widths = (np.zeros((releases, len(params))) for _ in range(3))
    for number in range(releases):
        fit = fit_regression(drawn.draw(number), design, case.family, False)
        ends = RegressionResult(design, case.family, fit, "gaussian").conf_int(LEVEL).to_numpy()
        told[number] = np.isfinite(ends).all(axis=1)
        inside[number] = (ends[:, 0] <= params) & (params <= ends[:, 1])
        widths[number] = np.where(told[number] > 0, ends[:, 1] - ends[:, 0], np.nan)

    seen, due = told.any(axis=0), planned < public_ranges(design, case.family) / 2
    found = {"told": told.mean(), "due": float(due.sum()), "coefficients": float(len(due))}
    if seen.any():
        found["coverage"] = inside[told > 0].mean()
        found["width"] = float(np.median(np.nanmedian(widths[:, seen], axis=0) / planned[seen]))
    if due.any():
        found["due told"] = told[:, due].mean()
    if case.family == "linear":
        peer = np.sqrt(np.diag(peer_covariance(design, exact, cost))) * exact.scale
        found["peer"] = float(np.median(planned / (2 * 1.959964 * peer)))
    return {name: float(value) for name, value in found.items()}


def against_opendp(case: Case, epsilon: float, releases: int) -> tuple[float, float] | None:
    """Return spread and error of OpenDP's slope over the spread of that of a release; None without the table."""
    if (loaded := load(case)) is None:
        return None
    domain, codes = loaded
    design, cost = read_design(domain, case.formula), dp.privacy.gdp_mu(epsilon, DELTA) ** 2
    drawn = RegressionReleases(domain, codes, sets_of(design, case.family), cost)
    exact = RegressionResult(design, case.family, fit_regression(drawn.true(), design, case.family, False), "gaussian")
    deviation = float(np.sqrt(exact.cov_params().iloc[1, 1]))
    slopes = opendp_slopes(case.formula, domain, codes, cost / 2, releases)
    low, high = np.quantile(slopes, [0.25, 0.75])
    error = float(np.sqrt(np.square(slopes - float(exact.params.iloc[1])).mean()))
    return float(high - low) / NORMAL_QUARTILES / deviation, error / deviation


NORMAL_QUARTILES = 1.349  # distance of the quartiles of a standard normal variable


def opendp_slopes(formula: str, domain: Domain, codes: dict[str, np.ndarray], rho: float, count: int) -> np.ndarray:
    """Return the slopes of `count` releases by OpenDP at a cost of ρ zCDP each."""
    import opendp.prelude as odp

    odp.enable_features("contrib", "idealized-numerics", "honest-but-curious")
    outcome, covariate = (domain[name.strip()] for name in formula.split("~"))
    x, y = (np.asarray(codes[attribute.name], float) for attribute in (covariate, outcome))
    ends = (0.0, float(outcome.size - 1))

    def fitter(scale: float) -> odp.sklearn.linear_model.LinearRegression:
        return odp.sklearn.linear_model.LinearRegression(
            odp.zero_concentrated_divergence(), [(0.0, float(covariate.size - 1))], ends, scale,
            candidates_count=CANDIDATES,
        )  # fmt: skip

    scale = odp.binary_search(lambda scale: fitter(scale).measurement.map(1) <= rho, bounds=(1e-6, 1e6))
    rng, slopes = np.random.default_rng(0), []
    for _ in range(count):
        order = rng.permutation(len(x))
        with np.errstate(divide="ignore", invalid="ignore"):  # pairs of equal covariates
            slopes.append(float(fitter(scale).fit(x[order, None], y[order]).coef_[0]))
    return np.array(slopes)


def print_regression() -> None:
    """Coverage and width of the 95 % intervals of regressions from one release that asks only the regression.

        python benchmarks/conclusions.py regression [CASE …] [--epsilons 0.1 1 10] [--releases 100] [--opendp] [--save]

    Tables are Adult, telco, acs23 and salary (../shared/data, not part of dpscale; absent ones are skipped), with their
    codes in at most eight groups, and generated ones whose outcome follows the model. A workload has the sets that the
    regression needs: pairs of attributes for a linear one, the joint table for the others. Its plan is that of the
    default mechanism, and the noise is the exact noise of a release at epsilon and delta 1e-9. The estimand is the
    regression on the whole table.

        told      share of intervals that are finite
        coverage  share of the finite intervals that contain the coefficient of the whole table
        width     their median width over the delta-method width with the true moments, the median over the coefficients
        due       coefficients whose planned interval (delta method, true moments) is narrower than half its public
                  range, -r … r with r the range of the outcome (log odds and log means: of shares from 1 to 99 %) over
                  that of the column; and the share of these that is told
        peer      median over the coefficients of the delta-method width of the release over that of noisy sufficient
                  statistics: XᵀX, Xᵀy in columns of size 1 with Gaussian noise of their exact sensitivity (linear only)

    With --opendp (opendp >= 0.16 on the path) the slopes of lines with one covariate are compared with OpenDP's private
    Theil-Sen regression at the same cost: the robust standard deviation of its slopes, and the root mean square of
    their distance from the least-squares slope of the whole table, over the standard deviation of the slope of a
    release. Its estimand is a median, so the first is its noise alone. It has one pairing of the records and CANDIDATES
    candidates.
    """
    parser = base.command_parser(print_regression.__doc__)
    parser.add_argument("cases", nargs="*", help="tables or families; default: all")
    parser.add_argument("--epsilons", nargs="*", default=list(EPSILONS))
    parser.add_argument("--releases", type=int, default=100)
    parser.add_argument("--opendp", action="store_true")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    figures: dict[str, Any] = {"releases": given.releases}
    print(f"{'case':<20} {'epsilon':>7}" + "".join(f"{name:>10}" for name in REGRESSION_FIGURES))
    for case in CASES:
        if given.cases and not {case.table, case.family} & set(given.cases):
            continue
        for epsilon in given.epsilons:
            if (found := measure(case, float(epsilon), given.releases)) is None:
                print(f"{case.table}: no ../shared/data")
                break
            name = f"{case.table} {case.family}"
            shown = "".join(f"{found[one]:>10.3f}" if one in found else " " * 10 for one in REGRESSION_FIGURES)
            print(f"{name:<20} {epsilon:>7}{shown}", flush=True)
            figures |= {f"{name}, {epsilon}, {one}": value for one, value in found.items()}
    for case in LINES if given.opendp else ():
        for epsilon in given.epsilons:
            if (ratios := against_opendp(case, float(epsilon), given.releases)) is not None:
                print(f"OpenDP, {case.formula} of {case.table}, epsilon {epsilon}: spread {ratios[0]:.1f} times, "
                      f"error {ratios[1]:.1f} times", flush=True)  # fmt: skip
                for kind, value in zip(("spread", "error"), ratios, strict=True):
                    figures[f"opendp {case.table}: {case.formula}, {kind}, {epsilon}"] = value
    if given.save:
        base.save("regression", figures)


COMMANDS = {
    "comparisons": print_comparisons,
    "regression": print_regression,
}

if __name__ == "__main__":
    base.run_command(COMMANDS, __doc__)
