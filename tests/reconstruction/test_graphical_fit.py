"""Fitted graphical models against the explicit convex problem, over every kind of clique set."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpscale.reconstruction.graphical_fit import FitOptions, Observed, fit, total_of
from dpscale.workload.residual import Groups, every_cell
from tests.reconstruction.explicit import (
    NAMES,
    SHAPE,
    SHAPES,
    SIZES,
    axes_outside,
    maximise_entropy,
    observe_sets,
    scaled_system,
    solve_least_squares,
)

CLOSE = FitOptions(close=0.0, patience=3, least=1e-5)
TOTAL = 300.0


def draw_table(rng, spread=2.0):
    return TOTAL * rng.dirichlet(np.full(np.prod(SHAPE), spread)).reshape(SHAPE)


@pytest.mark.parametrize("name", SHAPES)
def test_consistent_measurements_are_reproduced(name):
    rng = np.random.default_rng(1)
    joint = draw_table(rng)
    measured = observe_sets(SHAPES[name], joint, 0.0, rng)
    model = fit(SIZES, measured, CLOSE)
    assert model.total == pytest.approx(TOTAL, rel=1e-9)
    for one in measured:
        assert np.abs(model.marginal(one.attributes) - one.values).max() <= 1e-6 * TOTAL
    best = maximise_entropy(measured, scaled_system(measured)[1], TOTAL)
    assert np.abs(model.marginal(NAMES) - best).max() <= 1e-6 * TOTAL


@pytest.mark.parametrize("noise", [10.0])
@pytest.mark.parametrize("name", [name for name in SHAPES if name != "all"])
def test_fit_reaches_least_squares_optimum(name, noise):
    """The noise leaves empty cells, which converge slowly: the loss is near the optimum and within the gap."""
    rng = np.random.default_rng(2)
    measured = observe_sets(SHAPES[name], draw_table(rng, 0.5), noise, rng)
    model = fit(SIZES, measured, CLOSE, total=TOTAL)
    matrix, values = scaled_system(measured)
    numbers = matrix @ model.marginal(NAMES).reshape(-1)
    least, wanted = solve_least_squares(measured, TOTAL)
    found = float(((numbers - values) ** 2).sum()) / 2
    assert -1e-6 <= found - least <= min(model.gap, 1e-3) + 1e-7
    assert np.abs(numbers - wanted).max() <= 2e-5 * TOTAL


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "all"])
def test_fit_has_largest_entropy_among_optima(name):
    rng = np.random.default_rng(3)
    measured = observe_sets(SHAPES[name], draw_table(rng, 5.0), 0.3, rng)
    model = fit(SIZES, measured, CLOSE, total=TOTAL)
    _, wanted = solve_least_squares(measured, TOTAL)
    best = maximise_entropy(measured, wanted, TOTAL)
    assert np.abs(model.marginal(NAMES) - best).max() <= 1e-6 * TOTAL


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
)
def test_any_clique_set_is_fitted(sets, seed):
    rng = np.random.default_rng(seed)
    ordered = [tuple(name for name in NAMES if name in names) for names in sets]
    measured = observe_sets(ordered, draw_table(rng), 0.0, rng)
    model = fit(SIZES, measured, CLOSE)
    for one in measured:
        assert np.abs(model.marginal(one.attributes) - one.values).max() <= 1e-6 * TOTAL


def test_operators_over_groups_and_joint_rows_are_fitted():
    """Residuals over groups, prefix sums, and rows over several attributes, against explicit least squares."""
    rng = np.random.default_rng(4)
    joint = draw_table(rng, 0.7)
    pairs = Groups(4, (0, 2)), Groups(3, (0, 1))
    centring = [np.eye(2) - 0.5, np.eye(2) - 0.5]
    coarse = np.add.reduceat(np.add.reduceat(joint.sum(axis=axes_outside(("c", "e"))), (0, 2), axis=0), (0, 1), axis=1)
    residual = centring[0] @ coarse @ centring[1]
    prefix = np.tril(np.ones((3, 3)))
    rows = rng.integers(-2, 3, (5, 8)).astype(float)
    exact = [
        Observed(("c", "e"), pairs, tuple(centring), residual, 2.0),
        Observed(("a", "d"), (every_cell(3), every_cell(2)), (prefix, None), prefix @ joint.sum(axis=(1, 2, 4)), 1.0),
        Observed(("b", "c"), (every_cell(2), every_cell(4)), (rows,),
                 rows @ joint.sum(axis=(0, 3, 4)).reshape(-1), 3.0),
        Observed(("c",), (every_cell(4),), (None,), joint.sum(axis=(0, 1, 3, 4)), 1.0),
        Observed(("e",), (every_cell(3),), (None,), joint.sum(axis=(0, 1, 2, 3)), 1.0),
    ]  # fmt: skip
    measured = [Observed(one.attributes, one.groups, one.operators,
                         one.values + rng.normal(0, 3, one.values.shape), one.variance) for one in exact]  # fmt: skip
    model = fit(SIZES, measured, CLOSE, total=TOTAL)
    matrix, values = scaled_system(measured)
    numbers = matrix @ model.marginal(NAMES).reshape(-1)
    least, wanted = solve_least_squares(measured, TOTAL)
    assert float(((numbers - values) ** 2).sum()) / 2 <= least + 1e-3
    assert np.abs(numbers - wanted).max() <= 2e-5 * TOTAL


def test_warm_start_gives_same_fit():
    rng = np.random.default_rng(5)
    measured = observe_sets(SHAPES["a square"], draw_table(rng), 2.0, rng)
    begun = fit(SIZES, measured[1:], CLOSE, total=TOTAL)
    fresh, warm = (fit(SIZES, measured, CLOSE, start, total=TOTAL) for start in (None, begun))
    assert np.abs(fresh.marginal(NAMES) - warm.marginal(NAMES)).max() <= 1e-6 * TOTAL


def test_total_is_inverse_variance_average():
    centred, prefix = np.eye(3) - 1 / 3, np.tril(np.ones((3, 3)))
    one = Observed(("a",), (every_cell(3),), (None,), np.array([1.0, 2.0, 3.0]), 2.0)
    other = Observed(("a",), (every_cell(3),), (prefix,), np.array([1.0, 2.0, 9.0]), 4.0)
    none = Observed(("a",), (every_cell(3),), (centred,), np.array([1.0, 2.0, 3.0]), 1.0)
    assert one.total == pytest.approx((6.0, 1 / 6))
    assert other.total == pytest.approx((9.0, 1 / 4))
    assert none.total == (0.0, 0.0)
    assert total_of([one, other, none]) == pytest.approx((6 / 6 + 9 / 4) / (1 / 6 + 1 / 4))


def test_planted_equal_variances_change_fit():
    """Planted fault: the variances of the measurements are ignored."""
    rng = np.random.default_rng(6)
    measured = observe_sets(SHAPES["repeated"], draw_table(rng), 10.0, rng)
    equal = [Observed(one.attributes, one.groups, one.operators, one.values, 1.0) for one in measured]
    found, planted = (fit(SIZES, each, CLOSE, total=TOTAL) for each in (measured, equal))
    _, wanted = solve_least_squares(measured, TOTAL)
    matrix, _ = scaled_system(measured)
    off = [np.abs(matrix @ one.marginal(NAMES).reshape(-1) - wanted).max() for one in (found, planted)]
    assert off[0] <= 1e-6 * TOTAL < off[1]
