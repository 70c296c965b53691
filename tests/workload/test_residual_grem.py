from functools import reduce
from itertools import combinations

import numpy as np
import pytest

from dpscale.workload.residual import Residuals, center, non_negative, residual_of, subsets

SIZES = {"a": 3, "b": 4, "c": 2}
EVERY = subsets(tuple(SIZES))


def draw_residual(names, rng):
    return center(rng.normal(size=[SIZES[name] for name in names]), range(len(names)))


def draw_measurements(rng, count=12):
    chosen = [EVERY[index] for index in rng.integers(len(EVERY), size=count)]
    return [(names, draw_residual(names, rng), float(rng.uniform(0.1, 3))) for names in chosen]


def test_residuals_are_inverse_variance_averages():
    measurements = draw_measurements(np.random.default_rng(0), 20)
    together, stepwise = Residuals(SIZES).updated(measurements), Residuals(SIZES)
    for one in measurements:
        stepwise = stepwise.updated([one])
    for names in together.values:
        own = [(value, weight) for subset, value, weight in measurements if subset == names]
        expected = sum(v * w for v, w in own) / sum(w for _, w in own)
        np.testing.assert_allclose(together.values[names], expected, atol=1e-12)
        np.testing.assert_allclose(stepwise.values[names], expected, atol=1e-12)
        assert together.precision(names) == pytest.approx(sum(w for _, w in own))


def test_exact_residuals_restore_marginal():
    data = np.random.default_rng(2).normal(size=(3, 4, 2))
    measurements = [(names, residual_of(data, ["abc".index(n) for n in names]), 1.0) for names in EVERY]
    np.testing.assert_allclose(Residuals(SIZES).updated(measurements).marginal(("a", "b", "c")), data, atol=1e-12)


def test_non_negative_is_constrained_least_squares():
    """The oracle is cvxpy over all cells of a table, with explicit marginals and centring."""
    import cvxpy as cp

    rng = np.random.default_rng(3)
    data = rng.poisson(1.0, size=(3, 4, 2)).astype(float)
    noisy_residuals = []
    for names in EVERY[:7]:
        axes = ["abc".index(n) for n in names]
        noisy_residuals.append(
            (names, residual_of(data, axes) + 2 * draw_residual(names, rng), float(rng.uniform(0.2, 2)))
        )
    state, sets = Residuals(SIZES).updated(noisy_residuals), list(combinations("abc", 2))
    found = non_negative(state, sets, 5000)
    assert all(found.marginal(names).min() > -1e-5 for names in sets)
    table = cp.Variable(data.size)
    cost = sum(
        cp.sum_squares(explicit_matrix(names, lambda n: np.eye(n) - 1 / n) @ table - values.ravel()) * weight
        for names, values, weight in noisy_residuals
    )
    limits = [explicit_matrix(names, np.eye) @ table >= 0 for names in sets]
    cp.Problem(cp.Minimize(cost), limits).solve(solver="CLARABEL")
    for names in EVERY[:7]:
        expected = explicit_matrix(names, lambda n: np.eye(n) - 1 / n) @ table.value
        np.testing.assert_allclose(found.values[names].ravel(), expected, atol=2e-4)


def explicit_matrix(names, matrix):
    """Return the product of a matrix on each axis of `names` and sums over the others, over all cells."""
    return reduce(np.kron, [matrix(n) if name in names else np.ones((1, n)) for name, n in SIZES.items()])
