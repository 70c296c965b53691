"""The search for axis weights: merged demands, values along the curve, and the search result."""

from dataclasses import replace

import numpy as np
import pytest

from dpscale import Domain, Workload, plan
from dpscale.optimize.axis_weights import along_curve, search
from dpscale.optimize.implicit_workload import merged
from dpscale.optimize.lower_bounds import exact_floor, floor
from dpscale.optimize.residual_grams import MOST_FAMILIES, demands_of, pooled
from dpscale.optimize.weight_objective import WeightObjective

MANY = Domain({f"x{i}": 4 for i in range(36)})  # above the limit of kinds: all attributes are of one kind
SIX = Domain({f"x{i}": 5 for i in range(6)})


def make_weighted_pairs(spread, family="abs"):
    """Return a workload of pairs with individual weights, so that every attribute has its own mix of demands."""
    rng = np.random.default_rng(3)
    workload = Workload(MANY).add("prefix", degree=1)
    return workload.add(family, degree=2, weight=rng.uniform(1, 1 + spread, 630).tolist())


def mixed_demands(demands):
    """Return the demands that are sums of several kinds of terms."""
    return {one: n for one, n in demands.counts.items() if len({type(term) for term, _ in one}) > 1 and len(one) > 1}


@pytest.mark.parametrize("power", [1 / 2, pytest.param(1 / 3, marks=pytest.mark.slow)])
def test_merged_demands_have_nearly_same_value(power):
    noise = "gaussian" if power == 1 / 2 else "laplace"
    demands = demands_of(make_weighted_pairs(4))
    fewer = merged(demands, power)
    rng = np.random.default_rng(1)
    at = [rng.dirichlet(np.full(size, 9.0)) for size in demands.sizes]
    values = [WeightObjective(one, noise, 2600, 1e-10)(at).value for one in (demands, fewer)]
    assert len(fewer.counts) < len(demands.counts)
    assert sum(fewer.counts.values()) == sum(demands.counts.values())
    assert values[1] == pytest.approx(values[0], rel=1e-3)


def test_proportional_demands_are_merged_exactly():
    """φ is homogeneous: demands that differ by a factor are one demand at the mean scale."""
    demands = demands_of(make_weighted_pairs(1))
    demand = max(mixed_demands(demands), key=lambda one: sum(map(float, dict(one).values())))
    scaled = {frozenset((term, factor * weight) for term, weight in demand): n
              for factor, n in ((1.0, 2), (4.0, 1), (9.0, 3))}  # fmt: skip
    separate = replace(demands, counts=scaled)
    together = merged(separate, 1 / 2)
    assert len(together.counts) == 1
    at = [np.full(4, 0.25)]
    values = [WeightObjective(one, "gaussian", 2600, 1e-10)(at).value for one in (separate, together)]
    assert values[1] == pytest.approx(values[0], rel=1e-9)


def test_different_demands_are_not_merged():
    demands = demands_of(Workload(SIX).add("prefix", degree=1).add("abs", degree=2))
    assert mixed_demands(demands)
    assert merged(demands, 1 / 2).counts == demands.counts


@pytest.mark.parametrize("families", [("prefix",), ("range",), ("prefix", "marginal")])
def test_curve_value_equals_solved_problem(families):
    """l = (√P − √(t + s))² at the optimum P of [W; √t·1], against the solved problem of the pieces."""
    workload = Workload(SIX)
    for family in families:
        workload.add(family, degree=2)
    point = along_curve(demands_of(workload))
    solved = WeightObjective(demands_of(workload), "gaussian", 0, 1e-10)(point.profiles)
    assert point.value == pytest.approx(solved.value, rel=3e-6)


@pytest.mark.slow
def test_search_over_merged_demands_equals_full_search():
    demands = demands_of(make_weighted_pairs(1, "affine"))
    found = search(demands, "gaussian", along_curve(demands))
    whole = WeightObjective(demands, "gaussian", 2600, 1e-10)
    plain = whole([np.full(size, 1 / size) for size in demands.sizes]).value
    assert whole(found.profiles).value / plain == pytest.approx(found.value / found.plain, rel=1e-4)
    assert whole(found.profiles).value < plain


def test_unsplit_queries_have_no_weights_to_search():
    """The workload has random queries over an attribute with many cells."""
    built = plan(Workload(Domain({"a": 500})).add("random", degree=1))
    assert built.optimality_gap < 1e-5
    assert built.stationary == 0


def predicates_on_one_axis(number: int) -> tuple[Workload, np.ndarray]:
    """Return products of two attributes, each with different ranges of the first, and the Gram matrix of these."""
    rng, workload = np.random.default_rng(2), Workload(Domain({"a": 9, "b": 3}))
    grams = np.zeros((27, 27))
    for _ in range(number):
        low, high = np.sort(rng.integers(0, 9, (2, rng.integers(1, 4), 1)), axis=0)
        ranges = ((np.arange(9) >= low) & (np.arange(9) <= high)).astype(float)
        workload.add_product({"a": ranges, "b": "identity"})
        grams += np.kron(ranges.T @ ranges, np.eye(3))
    return workload, grams


def test_pooled_families_have_the_gram_matrix_of_all():
    workload, grams = predicates_on_one_axis(MOST_FAMILIES + 10)
    demands = pooled(demands_of(workload))
    (whole,) = [demand for demand in demands.counts if len(next(iter(demand))[0].centred) == 2]
    ((term, weight),) = whole
    axes = [demands.axis(token).gram for token in sorted(term.centred)]
    assert weight * np.kron(*axes) == pytest.approx(grams)
    assert pooled(demands_of(predicates_on_one_axis(5)[0])).families.keys() == {
        *demands_of(predicates_on_one_axis(5)[0]).families
    }


def test_bound_of_products_of_different_families_is_below_the_optimum():
    """That of one product is the optimum; those of several add."""
    for number in (1, 4, MOST_FAMILIES + 10):
        workload, _ = predicates_on_one_axis(number)
        demands = demands_of(workload)
        bound, optimum = floor(workload, along_curve(pooled(demands))), exact_floor(workload)
        assert bound <= optimum * (1 + 1e-9)
        assert number > 1 or bound == pytest.approx(optimum, rel=1e-4)
