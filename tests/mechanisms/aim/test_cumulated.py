"""aim-grem with cumulative queries: choice of 1-way strategies, their exact cost, and the gain in accuracy."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpscale import Domain, Workload
from dpscale.measurement.adaptive import run
from dpscale.mechanisms.aim.decision import BY_STRATEGY, VERSION, AimDecision, strategies
from dpscale.mechanisms.aim_grem import Options, plan
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.plans.factor import cumulative_factor
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.privacy.streams import seeded_secret
from tests.measurement.small import SIZES, make_counter, make_records, with_states

DOMAIN = {"age": 40, "sex": 2, "income": 600, "code": 7}


def choose_strategies(*requests):
    """Return, by attribute with a cumulative strategy, whether sums run from both ends; `requests`: families with
    keywords.
    """
    workload = Workload(Domain(DOMAIN))
    for family, keywords in requests:
        workload.add(family, **keywords)
    return {name: len(one.matrix) > 2 * one.cells for name, one in strategies(workload).items()}


def make_plan(family="prefix", beta=Fraction(1, 10), **options):
    workload = Workload(Domain(SIZES)).add(family, degree=2)
    return plan(PlanningProblem(workload, Budget(GAUSSIAN, beta)), Options(**options))


def test_only_cumulative_attributes_get_a_strategy():
    """Attributes with two cells or with more than 512 cells are measured cell by cell."""
    pairs = {"degree": 2}
    assert choose_strategies(("marginal", pairs)) == {}
    assert choose_strategies(("prefix", pairs)) == {"age": False, "code": False}
    assert (
        choose_strategies(("range", pairs))
        == choose_strategies(("prefix", pairs), ("circular", pairs))
        == {"age": True, "code": True}
    )
    assert choose_strategies(("hybrid", {**pairs, "numeric": ["age", "income"]})) == {"age": False}
    assert choose_strategies(("prefix", pairs), ("marginal", {"attributes": [["age"]]})) == {"code": False}
    assert choose_strategies(("prefix", pairs), ("affine", {"attributes": [["sex", "code"]]})) == {"age": False}


def test_plans_with_strategies_have_their_own_version():
    for built, version in [(make_plan(), BY_STRATEGY), (make_plan("marginal"), VERSION),
                          (make_plan(published=True), VERSION)]:  # fmt: skip
        assert built.to_dict()["version"] == version
        labels = [order.label for order in built.first_decision().requests]
        assert {label["mechanism"] for label in labels} <= {version, VERSION}
        assert any("strategy" in label for label in labels) == (version == BY_STRATEGY)


@pytest.mark.parametrize("rows", [1, 3])
def test_strategy_cost_covers_every_neighbouring_pair(rows):
    """Brute force: one unit with several records in each cell, against the charged cost of the draw."""
    workload = Workload(Domain(SIZES)).add("prefix", degree=2)
    built = plan(PlanningProblem(workload, Budget(GAUSSIAN, Fraction(1, 10)), rows), Options())
    for order in built.first_decision().requests:
        matrix = order.block.factors[0].explicit().astype(object)
        farthest = max(int(((column * rows * order.draw.multiplier) ** 2).sum()) for column in matrix.T)
        assert order.draw.cost == Fraction(farthest, order.draw.variance - 8)
    spent = sum(order.draw.cost for order in built.first_decision().requests)
    assert built.first_decision().spent * (1 - Fraction(1, 10**4)) < spent <= built.first_decision().spent


def test_planted_charge_of_cells_is_detected():
    """Planted fault: the strategy is applied with the noise of the cells."""
    order = next(one for one in make_plan().first_decision().requests if one.strategy is not None)
    false = replace(order, strategy=None)  # what it would be charged as
    applied = int((order.strategy.explicit().astype(object)[:, 0] ** 2).sum())
    assert false.block.squared_l2_sensitivity < applied == order.block.squared_l2_sensitivity


def test_one_way_decision_round_trips_with_strategies():
    built = make_plan(beta=Fraction(1, 2000))
    built = replace(built, setting=replace(built.setting, schedule=replace(built.setting.schedule, patience=100)))
    counts, state, number = make_counter(make_records()), None, 0
    decisions = []

    recording = with_states(built, lambda decision: decisions.append(decision) or decision)
    state = run(recording, counts, seeded_secret(number))
    again = [decision for decision in decisions if decision.is_one_way]
    assert again
    assert state.left == 0
    for decision in again:
        read = AimDecision.from_dict(json.loads(json.dumps(decision.to_dict())), built.setting)
        assert [one.label for one in read.requests] == [one.label for one in decision.requests]
        assert any(one.strategy is not None for one in read.requests)


def test_estimated_counts_are_unbiased_with_stated_variance():
    order = next(one for one in make_plan().first_decision().requests if one.names == ("c",))
    factor, rng = cumulative_factor(SIZES["c"]), np.random.default_rng(0)
    counts = rng.poisson(50, SIZES["c"])
    scale = order.draw.multiplier
    noise = rng.normal(0, order.draw.variance**0.5, (2000, factor.rows))
    drawn = np.array([order.estimate(scale * factor.matrix @ counts + one) for one in noise])
    np.testing.assert_allclose(drawn.mean(axis=0), counts, atol=5 * (order.variance / 2000) ** 0.5)
    assert drawn.var(axis=0).mean() == pytest.approx(order.variance, rel=0.1)


def test_strategies_reduce_error_of_cumulative_queries():
    """Ten secrets, against the same run with cells measured one by one; both spend the whole budget."""
    rng = np.random.default_rng(0)
    x = np.minimum(rng.poisson(3 + 10 * (rng.random(4000) < 0.3)), 39)
    table = np.stack([x, np.minimum(rng.poisson(6, 4000), 29), rng.integers(0, 3, 4000)], axis=1)
    sizes = {"x": 40, "y": 30, "z": 3}

    def counts(names):
        shape = [sizes[name] for name in names]
        columns = table[:, [list(sizes).index(name) for name in names]]
        return np.histogramdd(columns, bins=shape, range=[(0, size) for size in shape])[0].astype(np.int64)

    workload = Workload(Domain(sizes)).add("prefix", attributes=[["x", "z"], ["y", "z"]])
    built = plan(PlanningProblem(workload, Budget(GAUSSIAN, Fraction(1, 1000))), Options())
    runs = {"ours": built, "cells": replace(built, setting=replace(built.setting, strategies={}))}
    errors, part = dict[str, list](), workload.parts[0]
    for name, one in runs.items():
        for secret in range(10):
            state = run(one, counts, seeded_secret(secret))
            assert state.left == 0
            off = [part.answers(names, state.marginal(names) - counts(names)).reshape(-1) for names in part.sets]
            errors.setdefault(name, []).append((np.concatenate(off) ** 2).mean())
    assert np.mean(errors["ours"]) ** 0.5 < 0.8 * np.mean(errors["cells"]) ** 0.5
