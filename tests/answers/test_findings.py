"""Findings of a release: brute force on a small table, no dependence of independent attributes, words of sentences."""

import math
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest

import dpscale as dp
from dpscale.answers.findings import findings
from dpscale.answers.tables import Answered
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


def test_estimates_without_errors_have_no_findings():
    class Unknown:
        def __getattr__(self, name):
            return getattr(exact, name)

        def part_answers(self, part, names):
            values, errors = exact.part_answers(part, names)
            return values, np.full_like(errors, np.nan)

    exact = estimates(PLAN, draw_counts(np.random.default_rng(3), 3000, 0.9))
    assert findings(Answered(exact, "release"))
    assert findings(Answered(Unknown(), "release")) == []
