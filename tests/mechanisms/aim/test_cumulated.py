"""aim-grem asked for cumulative queries: which 1-ways a strategy measures, what that costs, and what it gains."""

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
from tests.measurement.small import SIZES, make_counter, make_records

DOMAIN = {"age": 40, "sex": 2, "income": 600, "code": 7}


def chosen(*asked):
    """By attribute, whether from both ends; `asked`: families with keywords."""
    workload = Workload(Domain(DOMAIN))
    for family, keywords in asked:
        workload.add(family, **keywords)
    return {name: len(one.matrix) > 2 * one.cells for name, one in strategies(workload).items()}


def measurement_plan(family="prefix", beta=Fraction(1, 10), **options):
    workload = Workload(Domain(SIZES)).add(family, degree=2)
    return plan(PlanningProblem(workload, Budget(GAUSSIAN, beta)), Options(**options))


def test_attributes_of_which_nothing_but_cumulative_queries_is_asked():
    """Two cells and more than 512 are measured one by one as ever."""
    pairs = {"degree": 2}
    assert chosen(("marginal", pairs)) == {}
    assert chosen(("prefix", pairs)) == {"age": False, "code": False}
    assert chosen(("range", pairs)) == chosen(("prefix", pairs), ("circular", pairs)) == {"age": True, "code": True}
    assert chosen(("hybrid", {**pairs, "numeric": ["age", "income"]})) == {"age": False}
    assert chosen(("prefix", pairs), ("marginal", {"attributes": [["age"]]})) == {"code": False}
    assert chosen(("prefix", pairs), ("affine", {"attributes": [["sex", "code"]]})) == {"age": False}


def test_only_such_runs_are_of_another_version():
    for made, version in [(measurement_plan(), BY_STRATEGY), (measurement_plan("marginal"), VERSION),
                          (measurement_plan(published=True), VERSION)]:  # fmt: skip
        assert made.to_dict()["version"] == version
        labels = [order.label for order in made.first_decision().requests]
        assert {label["mechanism"] for label in labels} <= {version, VERSION}
        assert any("strategy" in label for label in labels) == (version == BY_STRATEGY)


@pytest.mark.parametrize("rows", [1, 3])
def test_the_charge_covers_every_pair_of_neighbours(rows):
    """Brute force: a unit of so many records added to each cell, against what the draw was charged for."""
    workload = Workload(Domain(SIZES)).add("prefix", degree=2)
    made = plan(PlanningProblem(workload, Budget(GAUSSIAN, Fraction(1, 10)), rows), Options())
    for order in made.first_decision().requests:
        matrix = order.block.factors[0].explicit().astype(object)
        farthest = max(int(((column * rows * order.draw.multiplier) ** 2).sum()) for column in matrix.T)
        assert order.draw.cost == Fraction(farthest, order.draw.variance - 8)
    spent = sum(order.draw.cost for order in made.first_decision().requests)
    assert made.first_decision().spent * (1 - Fraction(1, 10**4)) < spent <= made.first_decision().spent


def test_a_draw_charged_for_cells_by_themselves_would_be_caught():
    """Planted: the strategy applied, at the noise of the cells."""
    order = next(one for one in measurement_plan().first_decision().requests if one.strategy is not None)
    false = replace(order, strategy=None)  # what it would be charged as
    applied = int((order.strategy.explicit().astype(object)[:, 0] ** 2).sum())
    assert false.block.squared_l2_sensitivity < applied == order.block.squared_l2_sensitivity


def test_a_decision_that_goes_back_to_the_1_ways_is_read_back_with_its_strategies():
    made = measurement_plan(beta=Fraction(1, 2000), patience=100)
    counts, state, number = make_counter(make_records()), None, 0
    decisions = []

    class Kept(type(made)):
        def make_decision(self, *asked):
            decisions.append(super().make_decision(*asked))
            return decisions[-1]

    kept = Kept(**{name: getattr(made, name) for name in made.__dataclass_fields__})
    state = run(kept, counts, seeded_secret(number))
    again = [decision for decision in decisions if decision.is_one_way]
    assert again
    assert state.left == 0
    for decision in again:
        read = AimDecision.from_dict(json.loads(json.dumps(decision.to_dict())), made.setting)
        assert [one.label for one in read.requests] == [one.label for one in decision.requests]
        assert any(one.strategy is not None for one in read.requests)


def test_values_are_the_counts_with_the_noise_that_is_told():
    order = next(one for one in measurement_plan().first_decision().requests if one.names == ("c",))
    factor, rng = cumulative_factor(SIZES["c"]), np.random.default_rng(0)
    counts = rng.poisson(50, SIZES["c"])
    scale = order.draw.multiplier
    noise = rng.normal(0, order.draw.variance**0.5, (2000, factor.rows))
    drawn = np.array([order.estimate(scale * factor.matrix @ counts + one) for one in noise])
    np.testing.assert_allclose(drawn.mean(axis=0), counts, atol=5 * (order.variance / 2000) ** 0.5)
    assert drawn.var(axis=0).mean() == pytest.approx(order.variance, rel=0.1)


def test_cumulative_answers_are_nearer_than_without():
    """Ten secrets, against the very run that measures each cell by itself; both spend all."""
    rng = np.random.default_rng(0)
    x = np.minimum(rng.poisson(3 + 10 * (rng.random(4000) < 0.3)), 39)
    table = np.stack([x, np.minimum(rng.poisson(6, 4000), 29), rng.integers(0, 3, 4000)], axis=1)
    sizes = {"x": 40, "y": 30, "z": 3}

    def counts(names):
        shape = [sizes[name] for name in names]
        columns = table[:, [list(sizes).index(name) for name in names]]
        return np.histogramdd(columns, bins=shape, range=[(0, size) for size in shape])[0].astype(np.int64)

    workload = Workload(Domain(sizes)).add("prefix", attributes=[["x", "z"], ["y", "z"]])
    made = plan(PlanningProblem(workload, Budget(GAUSSIAN, Fraction(1, 1000))), Options())
    runs = {"ours": made, "cells": replace(made, setting=replace(made.setting, strategies={}))}
    errors, part = dict[str, list](), workload.parts[0]
    for name, one in runs.items():
        for secret in range(10):
            state = run(one, counts, seeded_secret(secret))
            assert state.left == 0
            off = [part.answers(names, state.marginal(names) - counts(names)).reshape(-1) for names in part.sets]
            errors.setdefault(name, []).append((np.concatenate(off) ** 2).mean())
    assert np.mean(errors["ours"]) ** 0.5 < 0.8 * np.mean(errors["cells"]) ** 0.5
