"""Findings of a release: brute force on a small table, no dependence of independent attributes, words of sentences."""

import math
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest

import dpscale as dp
from dpscale.answers.findings import MeanFinding, findings
from dpscale.answers.tables import Answered
from dpscale.domain import Domain
from tests.answers.exact import estimates, measurement_plan

DOMAIN = dp.Domain({"a": 3, "b": 4, "c": 2})
PAIRS = [("marginal", names) for names in (("a", "b"), ("a", "c"), ("b", "c"))]
PLAN = measurement_plan(DOMAIN, PAIRS, "residual-planner")


def draw_counts(random, records, dependent=0.0):
    """Table of records, a share of which has b = 0 if a = 0."""
    a, c = random.integers(0, 3, records), random.integers(0, 2, records)
    b = np.where((a == 0) & (random.random(records) < dependent), 0, random.integers(0, 4, records))
    counts = np.zeros((3, 4, 2))
    np.add.at(counts, (a, b, c), 1)
    return counts


def answered(counts, random, scale=1.0):
    return Answered(estimates(PLAN, counts, random, scale), "release")


def brute_force(own):
    """Dependences by explicit covariances of all cells of a table, from the errors of all sums of two cells."""
    cells = sum(math.prod(DOMAIN.shape(names)) for _, names in PAIRS) + sum(DOMAIN.shape(["a", "b", "c"]))
    width = NormalDist().inv_cdf(1 - 0.05 / (2 * cells))
    found = []
    for _, names in PAIRS:
        shape, count = DOMAIN.shape(names), math.prod(DOMAIN.shape(names))
        single = np.eye(count).reshape(count, *shape)
        both = [single[i] + single[j] for i, j in product(range(count), repeat=2)]
        values, errors = own.linear(names, single)[0], own.linear(names, np.stack(both))[1].reshape(count, count)
        alone = np.diag(errors) ** 2 / 4  # of twice a cell
        covariance = (errors**2 - alone[:, None] - alone) / 2
        table = values.reshape(shape)
        total, p, q = table.sum(), table.sum(1) / table.sum(), table.sum(0) / table.sum()
        for i, j in np.ndindex(shape):
            query = np.outer(np.eye(shape[0])[i] - p[i], np.eye(shape[1])[j] - q[j]).ravel()
            variance = query @ covariance @ query + total * p[i] * (1 - p[i]) * q[j] * (1 - q[j])
            size = abs(table[i, j] - total * p[i] * q[j]) / math.sqrt(variance)
            found.append((size, names, (i, j), table[i, j] / table[i].sum(), q[j]))
    largest = {names: max(one for one in found if one[1] == names) for _, names in PAIRS}
    return sorted((one for one in largest.values() if one[0] > width), reverse=True)


@pytest.mark.parametrize("seed", range(4))
def test_findings_are_those_of_brute_force(seed):
    random = np.random.default_rng(seed)
    own = answered(draw_counts(random, 3000, 0.4), random, 8.0)
    expected, found = brute_force(own), [one for one in findings(own) if one.group]
    assert expected[0][1:3] == (("a", "b"), (0, 0))
    assert [(one.group[0], one.name) for one in found] == [one[1] for one in expected]
    for one, (size, _, _, share, all_records) in zip(found, expected, strict=True):
        assert one.size == pytest.approx(size, rel=1e-6)
        assert (one.share, one.expected) == pytest.approx((share, all_records))
        assert not one.low <= one.expected <= one.high


@pytest.mark.parametrize("scale", [0.01, 1.0])
def test_independent_attributes_give_no_dependence(scale):
    """At most 5 % of releases have a false one; 400 releases have more than 45 with a probability below 10^-6."""
    random, false = np.random.default_rng(1), 0
    for _ in range(400):
        false += any(one.group for one in findings(answered(draw_counts(random, 2000), random, scale)))
    assert false <= 45


def test_intervals_hold_together():
    """All intervals of a release contain the shares of its records in at least 95 % of releases, whatever is told."""
    random, missed = np.random.default_rng(2), 0
    for _ in range(200):
        counts = draw_counts(random, 2000, 0.5)
        for one in findings(answered(counts, random)):
            names = [one.name] if one.group is None else [one.group[0], one.name]
            margin = counts.sum(axis=tuple(i for i, name in enumerate("abc") if name not in names))
            margin = margin if names == sorted(names) else margin.T
            row = margin if one.group is None else margin[one.group[1]]
            if not one.low <= row[one.cell] / row.sum() <= one.high:
                missed += 1
                break
    assert missed <= 28  # above it with a probability below 10^-6


def test_levels_of_one_column_and_rules_are_no_findings():
    values = [f"{letter}{digit}" for letter in "xyz" for digit in range(2)]
    towns = {
        "kind": "categories",
        "values": values,
        "parent": {"region": {one: [f"{one}0", f"{one}1"] for one in "xyz"}},
    }
    domain = dp.Domain(town=towns, part=3, whole=3, rules=["part <= whole"])
    plan = measurement_plan(
        domain, [("marginal", ("town", "region")), ("marginal", ("part", "whole"))], "residual-planner"
    )
    counts = np.zeros(domain.shape(domain.names))
    for town, part, whole in product(range(6), range(3), range(3)):
        counts[town, town // 2, part, whole] = 100 * (part <= whole)
    assert [one for one in findings(Answered(estimates(plan, counts), "release")) if one.group] == []


def test_sentences_have_the_words_of_the_domain():
    domain = dp.Domain(
        year={"kind": "date", "by": "year", "low": 2019, "high": 2021},
        dead={"kind": "coded", "size": 2, "title": "Outcome", "labels": {0: "alive", 1: "dead"}},
        age={"kind": "bins", "edges": [0, 25, 35, 65], "title": "Age", "unit": "years"},
    )
    pairs = [("marginal", names) for names in (("year", "dead"), ("dead", "age"))]
    counts = np.full((3, 2, 3), 1000.0)
    counts[0, 1] += 3000
    counts[:, 1, 1] += 2000
    own = Answered(estimates(measurement_plan(domain, pairs, "residual-planner"), counts), "release")
    told = {one.group[0]: one.sentence(domain) for one in findings(own) if one.group}
    assert told["year"].startswith("In 2019, 82.35 % [")
    assert told["year"].endswith("] of the records have Outcome “dead”; of all records 73 %.")
    assert told["dead"].startswith("Of the records with Outcome “dead”, ")
    assert "] have Age “25 to 34 years”; of all records " in told["dead"]


class Simulated:
    """Estimates whose errors are not those of least squares."""

    def __init__(self, exact):
        self.exact = exact

    def __getattr__(self, name):
        return getattr(self.exact, name)


def test_findings_with_simulated_errors_are_those_beyond_wider_limits():
    random, kept, left = np.random.default_rng(7), 0, 0
    cells = sum(math.prod(DOMAIN.shape(names)) for _, names in PAIRS) + sum(DOMAIN.shape(["a", "b", "c"]))
    least = NormalDist().inv_cdf(1 - 0.05 / (2 * cells)) * (1.18 + 0.06 * math.log(cells))
    for dependent in np.linspace(0.05, 0.3, 20):
        own = estimates(PLAN, draw_counts(random, 3000, dependent), random)
        told = findings(Answered(own, "release"))
        wide = findings(Answered(Simulated(own), "release"))
        assert wide == [one for one in told if one.size > least]
        kept, left = kept + len(wide), left + len(told) - len(wide)
    assert kept
    assert left


def test_estimates_without_errors_have_no_findings():
    class Unknown(Simulated):
        def part_answers(self, part, names):
            values, errors = exact.part_answers(part, names)
            return values, np.full_like(errors, np.nan)

    exact = estimates(PLAN, draw_counts(np.random.default_rng(3), 3000, 0.9))
    assert findings(Answered(exact, "release"))
    assert findings(Answered(Unknown(exact), "release")) == []


PAID = Domain.from_dict({
    "attributes": {"group": {"kind": "coded", "size": 4}},
    "numbers": {"cost": {"low": 0, "high": 100, "unit": "euros", "title": "Cost"}},
})  # fmt: skip
MEANS = dp.plan(dp.Workload(PAID).add("mean", of="cost", attributes=[("group",)]), mechanism="residual-planner")


def draw_costs(random, records, more=0.0):
    """Group and cost of records; those of group 0 cost more."""
    group = random.integers(0, 4, records)
    cost = np.where(random.random(records) < 0.3 + more * (group == 0), 100.0, 0.0)  # the largest variance of a mean
    return group, cost


def answered_costs(group, cost, random, scale=1.0):
    counts = np.zeros((4, 2))
    np.add.at(counts, group, np.stack([1 - cost / 100, cost / 100], axis=1))
    return Answered(estimates(MEANS, counts, random, scale), "release")


def of_means(own):
    return [one for one in findings(own) if isinstance(one, MeanFinding)]


def test_mean_that_depends_on_the_group_is_told():
    random = np.random.default_rng(5)
    group, cost = draw_costs(random, 4000, 0.2)
    (told,) = of_means(answered_costs(group, cost, random))

    assert told.cell == 0
    assert told.expected == pytest.approx(cost.mean(), abs=0.5)
    assert told.mean == pytest.approx(cost[group == 0].mean(), abs=1)
    assert told.low > told.expected
    words = told.sentence(PAID)
    assert words.startswith("The mean of Cost of the records with group “0” is ")
    assert " euros [" in words
    assert "]; of all records " in words


def test_size_of_a_mean_is_that_of_brute_force():
    """The variance of D from all pairs of cells, and the largest variance of values in 0 … 100 with the mean m."""
    random = np.random.default_rng(6)
    group, cost = draw_costs(random, 4000, 0.3)
    own = answered_costs(group, cost, random, 8.0)
    (told,) = of_means(own)

    single = np.eye(8).reshape(8, 4, 2)
    values = own.linear(("group", "cost"), single)[0]
    pairs = np.stack([single[i] + single[j] for i, j in product(range(8), repeat=2)])
    errors = own.linear(("group", "cost"), pairs)[1].reshape(8, 8) ** 2
    alone = np.diag(errors) / 4
    covariance = (errors - alone[:, None] - alone) / 2
    table = values.reshape(4, 2)
    mean, share = 100 * table[:, 1].sum() / table.sum(), table[told.cell].sum() / table.sum()
    query = np.outer(np.eye(4)[told.cell] - share, np.array([0.0, 100.0]) - mean).ravel()
    variance = query @ covariance @ query + table.sum() * share * (1 - share) * (100 - mean) * mean
    assert told.size == pytest.approx(abs(query @ values) / math.sqrt(variance), rel=1e-6)


@pytest.mark.parametrize("scale", [0.01, 1.0])
def test_equal_means_give_no_finding(scale):
    """At most 5 % of releases have a false one; 400 releases have more than 45 with a probability below 10^-6."""
    random, false = np.random.default_rng(7), 0
    for _ in range(400):
        false += bool(of_means(answered_costs(*draw_costs(random, 2000), random, scale)))
    assert false <= 45


def test_cells_outside_the_domain_are_no_finding_and_no_equal_share():
    domain = dp.Domain(smoker={"kind": "categories", "values": ["no", "yes"], "outside": "category"})
    plan = measurement_plan(domain, [("marginal", ("smoker",))], "residual-planner")
    (told,) = findings(Answered(estimates(plan, np.array([3000.0, 1000.0, 900.0])), "release"))
    assert (told.cell, told.expected) == (0, 0.5)
    assert findings(Answered(estimates(plan, np.array([300.0, 300.0, 9000.0])), "release")) == []
