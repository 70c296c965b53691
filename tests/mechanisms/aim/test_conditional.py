import numpy as np
import pytest

from dpscale.workload.residual import prices, shares, water_fill


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
    price, worth = map(np.array, prices((4, 3, 5))[1:])
    found = water_fill(worth, price, np.zeros(8))
    np.testing.assert_allclose(found, np.sqrt(worth / price) / np.sqrt(worth * price).sum())


def test_shares_sum_to_one_without_small_shares():
    had = {(): 1e9, ("a",): 1e9, ("b",): 0.5}
    found = shares(("a", "b"), (10, 20), had, 1.0)
    assert sum(found) == pytest.approx(1)
    assert found[0] == found[1] == 0
    assert all(share == 0 or share >= 1e-3 * 0.99 for share in found)


def test_shares_are_those_of_water_filling():
    rng = np.random.default_rng(1)
    for sizes in [(4,), (2, 3), (7, 2, 5), (2, 3, 2, 4)]:
        names = tuple("abcd"[: len(sizes)])
        spaces, price, worth = prices(sizes)
        had = {tuple(names[i] for i in kept): float(rng.gamma(0.5, 2)) for kept in spaces}
        price, worth, before = np.array(price), np.array(worth), np.array(list(had.values())) / 0.7
        expected = price * water_fill(worth, price, before)
        large = expected >= 1e-3
        refilled = price[large] * water_fill(worth[large], price[large], before[large])
        while (refilled < 1e-3).any():
            large[np.flatnonzero(large)[refilled < 1e-3]] = False
            refilled = price[large] * water_fill(worth[large], price[large], before[large])
        expected[:] = 0
        expected[large] = refilled / refilled.sum()
        np.testing.assert_allclose(shares(names, sizes, had, 0.7), expected, rtol=1e-12, atol=1e-15)
