"""Coverage and widths of conclusions from a release: differences, ratios, trends and tests, at three ε.

    python benchmarks/conclusions.py [--tables adult telco …] [--epsilons 0.1 1 10] [--seeds 30] [--queries 6] [--save]

A release is one of all pairs of the attributes of a table with at most 32 values, by `weighted-residuals` and least
squares, δ = 10⁻⁹. Groups are two values of an attribute, outcomes are values of another one. Shares and ratios are of
"large" groups (each at least 1 % of the records) or "small" ones. Printed for each statistic:

    coverage   share of the 95 % intervals that contain the true value: of the records, or with `population` of the
               table from which the records were drawn again with replacement
    width      median told half width of the finite intervals over that of the true errors, 1.96 · 1.48 · their median
    finite     share of the intervals on a log scale with two finite ends

Trends are over six parts of the records, with weights of a growing table. The size of the test is its rejections at
5 % on draws of 2,000 records from the product of the margins; its power is that on 2,000 records of the table, beside
Pearson's test on the same records. Real tables are in ../shared/data and are not part of dpscale; "weak groups" and
"strong effect" are constructed.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import base
import numpy as np
from base import DATA, Names, Table, load_table
from scipy.stats import chi2_contingency

import dpscale as dp
from dpscale.answers import conclusions
from dpscale.answers.conclusions import SCALES, Contrast
from dpscale.answers.independence import independence_test
from dpscale.answers.statistics import TooFewRecords
from dpscale.answers.tables import Answered
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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


if __name__ == "__main__":
    main()
