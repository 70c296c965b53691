"""The search of the axes' weights: what expected for granted of sums that are nearly alike, and of the curve."""

from dataclasses import replace

import numpy as np
import pytest

from dpscale import Domain, Workload, plan
from dpscale.optimize.axis_weights import along_curve, search
from dpscale.optimize.implicit_workload import merged
from dpscale.optimize.residual_grams import demands_of
from dpscale.optimize.weight_objective import WeightObjective

MANY = Domain({f"x{i}": 4 for i in range(36)})  # more kinds than are told apart: all are of one
SIX = Domain({f"x{i}": 5 for i in range(6)})


def by_set(spread, family="abs"):
    """Pairs with weights of their own, so that every attribute leaves another mix."""
    rng = np.random.default_rng(3)
    asked = Workload(MANY).add("prefix", degree=1)
    return asked.add(family, degree=2, weight=rng.uniform(1, 1 + spread, 630).tolist())


def mixes(demands):
    """The demands of sums."""
    return {one: n for one, n in demands.counts.items() if len({type(term) for term, _ in one}) > 1 and len(one) > 1}


@pytest.mark.parametrize("power", [1 / 2, pytest.param(1 / 3, marks=pytest.mark.slow)])
def test_merged_sums_add_up_to_nearly_the_same(power):
    noise = "gaussian" if power == 1 / 2 else "laplace"
    demands = demands_of(by_set(4))
    fewer = merged(demands, power)
    rng = np.random.default_rng(1)
    at = [rng.dirichlet(np.full(size, 9.0)) for size in demands.sizes]
    values = [WeightObjective(one, noise, 2600, 1e-10)(at).value for one in (demands, fewer)]
    assert len(fewer.counts) < len(demands.counts)
    assert sum(fewer.counts.values()) == sum(demands.counts.values())
    assert values[1] == pytest.approx(values[0], rel=1e-3)


def test_the_same_mix_at_other_scales_is_merged_exactly():
    """φ is homogeneous: what differs by a factor alone is one demand, at the mean scale."""
    demands = demands_of(by_set(1))
    demand = max(mixes(demands), key=lambda one: sum(map(float, dict(one).values())))
    scaled = {frozenset((term, factor * weight) for term, weight in demand): n
              for factor, n in ((1.0, 2), (4.0, 1), (9.0, 3))}  # fmt: skip
    apart = replace(demands, counts=scaled)
    together = merged(apart, 1 / 2)
    assert len(together.counts) == 1
    at = [np.full(4, 0.25)]
    values = [WeightObjective(one, "gaussian", 2600, 1e-10)(at).value for one in (apart, together)]
    assert values[1] == pytest.approx(values[0], rel=1e-9)


def test_different_mixes_stay_apart():
    demands = demands_of(Workload(SIX).add("prefix", degree=1).add("abs", degree=2))
    assert mixes(demands)
    assert merged(demands, 1 / 2).counts == demands.counts


@pytest.mark.parametrize("families", [("prefix",), ("range",), ("prefix", "marginal")])
def test_the_curve_tells_its_values_without_solving(families):
    """l = (√P − √(t + s))² at the optimum P of [W; √t·1], against the problem of the pieces itself."""
    asked = Workload(SIX)
    for family in families:
        asked.add(family, degree=2)
    point = along_curve(demands_of(asked))
    solved = WeightObjective(demands_of(asked), "gaussian", 0, 1e-10)(point.profiles)
    assert point.value == pytest.approx(solved.value, rel=3e-6)


@pytest.mark.slow
def test_a_search_over_merged_sums_finds_what_one_over_all_finds():
    demands = demands_of(by_set(1, "affine"))
    found = search(demands, "gaussian", along_curve(demands))
    whole = WeightObjective(demands, "gaussian", 2600, 1e-10)
    plain = whole([np.full(size, 1 / size) for size in demands.sizes]).value
    assert whole(found.profiles).value / plain == pytest.approx(found.value / found.plain, rel=1e-4)
    assert whole(found.profiles).value < plain


def test_queries_that_are_left_unsplit_leave_nothing_to_weigh():
    """Random ones over an attribute of many cells: the search has no error of its own to go by."""
    made = plan(Workload(Domain({"a": 500})).add("random", degree=1))
    assert made.optimality_gap < 1e-5
    assert made.stationary == 0
