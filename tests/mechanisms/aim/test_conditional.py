import numpy as np
import pytest

from dpscale.workload.residual.in_axis import prices, shares, water_fill


def solve_with_clarabel(worth, price, had):
    import cvxpy as cp

    x = cp.Variable(len(worth), nonneg=True)
    problem = cp.Problem(cp.Minimize(worth @ cp.inv_pos(x + had)), [price @ x <= 1])
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    return problem.value, x.value


def test_water_filling_equals_convex_optimum():
    rng = np.random.default_rng(0)
    for _ in range(40):
        size = int(rng.integers(1, 9))
        worth, price = rng.uniform(0.01, 1, size), rng.uniform(0.1, 1, size)
        had = np.where(rng.random(size) < 0.3, 1e-3, rng.gamma(0.5, 2, size)) + 1e-4
        best, _ = solve_with_clarabel(worth, price, had)
        found = water_fill(worth, price, had)
        assert (found >= 0).all()
        assert price @ found == pytest.approx(1)
        assert (worth / (found + had)).sum() == pytest.approx(best, rel=1e-6)


def test_water_filling_from_zero_equals_residual_planner():
    """x ∝ √(v/p) is the closed form of the relaxed problem."""
    _, price, worth = prices((4, 3, 5))
    found = water_fill(worth, price, np.zeros(8))
    np.testing.assert_allclose(found, np.sqrt(worth / price) / np.sqrt(worth * price).sum())


def test_shares_sum_to_one_without_small_shares():
    had = {(): 1e9, ("a",): 1e9, ("b",): 0.5}
    found = shares(("a", "b"), (10, 20), had, 1.0)
    assert found.sum() == pytest.approx(1)
    assert found[0] == found[1] == 0
    assert ((found == 0) | (found >= 1e-3 * 0.99)).all()
