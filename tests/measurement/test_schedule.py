from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpscale import Domain, PlanError, Workload, plan
from dpscale.plans.blocks import Block
from dpscale.plans.measurement_plan import plan_draws
from dpscale.privacy.draws import SMOOTHING, LaplaceDraw
from tests.messages import refused

WORKLOAD = Workload(Domain({"a": 6, "b": 9, "c": 4})).add("prefix", degree=2).add("marginal", degree=3)
PLANS = {name: plan(WORKLOAD, name) for name in ("query-smasher", "residual-planner", "identity")}


@given(st.sampled_from(sorted(PLANS)), st.floats(1e-3, 1e3), st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_schedule_cost_is_within_budget_and_nearly_all_of_it(name, cost, rows):
    draws = plan_draws(PLANS[name], cost, rows)
    assert draws.amount <= Fraction(cost)
    assert draws.amount >= Fraction(cost) * (1 - Fraction(1, 10**6))


@pytest.mark.parametrize("name", PLANS)
def test_schedule_cost_equals_brute_force(name):
    draws = plan_draws(PLANS[name], 0.7, 3)
    total = brute_force_cost(PLANS[name], draws, 3)
    assert total <= draws.amount <= total * (1 + Fraction(1, 10**12))


def brute_force_cost(built, draws, rows):
    """Return Σ (m Δ k)² / (v − s), with Δ² by brute force over the explicit strategy and `rows` records per unit."""
    total = Fraction(0)
    for block, draw in zip(built.blocks, draws, strict=True):
        largest = 1
        for factor in block.factors:
            columns = factor.explicit().T.tolist()
            largest *= max(sum(value * value for value in column) for column in columns)
        total += Fraction(draw.multiplier**2 * rows**2 * largest, draw.variance - SMOOTHING)
    return total


def test_scheduled_variance_exceeds_smoothing_bound():
    for draw in plan_draws(PLANS["identity"], 5.0):
        assert draw.variance >= 4096**2


@pytest.mark.parametrize("name", ["query-smasher", "residual-planner"])
def test_planted_understated_sensitivity_is_detected(name, monkeypatch):
    """Planted fault: blocks whose squared sensitivity is half the true one get too little noise for their charge."""
    true = Block.squared_l2_sensitivity.fget
    monkeypatch.setattr(Block, "squared_l2_sensitivity", property(lambda self: max(1, true(self) // 2)))
    draws = plan_draws(PLANS[name], 0.7, 3)
    assert brute_force_cost(PLANS[name], draws, 3) > draws.amount * Fraction(3, 2)


def test_too_small_budget_is_refused():
    with refused(PlanError):
        plan_draws(PLANS["query-smasher"], 1e-60)


def test_variance_beyond_64_bits_is_scheduled():
    draws = plan_draws(PLANS["query-smasher"], 1e-28)
    assert max(draw.variance for draw in draws) > 2**100
    assert draws.amount <= Fraction(1e-28)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("epsilon", [0.01, 0.7, 20.0])
@pytest.mark.parametrize("name", sorted(PLANS))
def test_laplace_cost_equals_explicit_l1_sensitivity(name, epsilon, rows):
    built = plan(WORKLOAD, name, noise="laplace")
    draws = plan_draws(built, epsilon, rows)
    total = Fraction(0)
    for block, draw in zip(built.blocks, draws, strict=True):
        matrix = np.ones((1, 1), dtype=object)
        for factor in block.factors:
            matrix = np.kron(matrix, factor.explicit().astype(object))
        total += Fraction(draw.multiplier * rows * int(np.abs(matrix).sum(axis=0).max()), draw.scale)
    assert total <= draws.amount <= Fraction(epsilon)
    assert float(total) > epsilon * (1 - 1e-6)
    assert draws.cost.epsilon(0.0) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("scale", [1, 2, 7, 100])
def test_discrete_laplace_variance_equals_summation(scale):
    values = np.arange(-5000, 5001)
    weights = np.exp(-np.abs(values) / scale)
    assert LaplaceDraw(1, scale, Fraction(1)).variance == pytest.approx((weights * values**2).sum() / weights.sum())


def test_plan_with_both_noise_kinds_is_refused():
    built = PLANS["identity"]
    mixed = replace(built, blocks=(built.blocks[0], *(replace(block, noise="laplace") for block in built.blocks[1:])))
    with refused(PlanError):
        plan_draws(mixed, 1.0)
