"""Strategies over periods, for units in several of them: the optimum and its bound against a semidefinite program."""

from functools import partial
from itertools import combinations, product

import cvxpy
import numpy as np
import pytest
from scipy.optimize import approx_fprime

from dpscale.optimize import time_strategy
from dpscale.optimize.time_strategy import plan_time, queries_over_time

CASES = [
    (8, 2, ("cumulative",), 0),
    (8, 4, ("cumulative",), 0),
    (8, 8, ("cumulative",), 0),
    (12, 3, ("cumulative",), 0),
    (9, 3, ("window",), 3),
    (9, 4, ("window", "period"), 3),
    (8, 3, ("period", "window", "cumulative"), 4),
]


def optimum(queries, periods: int) -> float:
    """Return the least mean variance at cost 1, by a semidefinite program with a constraint for each set of periods."""
    size = queries.shape[1]
    sets = list(combinations(range(size), periods))
    pairs = np.zeros((len(sets), size, size))
    for number, chosen in enumerate(sets):
        for first, second in product(chosen, chosen):
            pairs[number, first, second] = 1

    gram, sizes = cvxpy.Variable((size, size), PSD=True), cvxpy.Variable((size, size))
    costs = pairs.reshape(len(sets), -1) @ cvxpy.vec(sizes, order="C")
    error = sum(cvxpy.matrix_frac(query, gram) for query in queries)
    problem = cvxpy.Problem(cvxpy.Minimize(error), [sizes >= gram, sizes >= -gram, costs <= 1])
    problem.solve(solver=cvxpy.CLARABEL)
    return float(problem.value) / len(queries)


@pytest.mark.parametrize(("horizon", "periods", "answers", "window"), CASES)
def test_plan_for_several_periods_is_within_a_thousandth_of_the_optimum(horizon, periods, answers, window):
    best = optimum(queries_over_time(horizon, answers, window), periods)
    plan = plan_time(horizon, answers, window, periods)
    assert best * (1 - 1e-6) <= plan.mean_variance() <= best * 1.001
    assert best * 0.999 <= plan.bound <= best * (1 + 1e-6)


def test_bound_is_valid_for_any_slopes():
    """Slopes far from the optimum, some of them indefinite, give a bound below it."""
    queries = queries_over_time(6, ("cumulative",), 0)
    best = optimum(queries, 2) * len(queries)
    sums, rng = time_strategy._sums_over_sets(6, 2), np.random.default_rng(3)
    for _ in range(20):
        shares = rng.dirichlet(np.full(sums.shape[0], 0.3))
        weights = (sums.T @ shares).reshape(6, 6)
        signs = np.tril(rng.uniform(-1, 1, (6, 6)), -1) + np.eye(6)
        slopes = (weights * signs + (weights * signs).T) / 2
        assert time_strategy._dual(queries.T @ queries, slopes, 2) <= best * (1 + 1e-9)


def test_bound_with_a_planted_fault_exceeds_the_optimum():
    """Pairs of periods that weigh more than their sets have inadmissible slopes: the oracle notices them."""
    queries = queries_over_time(6, ("cumulative",), 0)
    gram, best = queries.T @ queries, optimum(queries, 2) * len(queries)
    matrix = plan_time(6, ("cumulative",), 0, 2).matrix.astype(float)
    _, slopes = time_strategy._cost_of_sets(matrix.T @ matrix, time_strategy._sums_over_sets(6, 2), 10_000.0)
    faulty = slopes * (1 - 0.2 * np.eye(6))
    assert time_strategy._dual(gram, slopes, 2) <= best * (1 + 1e-9)
    assert time_strategy._dual(gram, faulty, 2) > best


@pytest.mark.parametrize("power", [3.0, 30.0])
def test_gradients_equal_finite_differences(power):
    queries, rng = queries_over_time(5, ("window", "cumulative"), 3), np.random.default_rng(0)
    point = np.tril(np.eye(5) + 0.2 * rng.normal(size=(5, 5)))[np.tril_indices(5)]
    by_sets = partial(time_strategy._cost_of_sets, sums=time_strategy._sums_over_sets(5, 3), power=power)
    for cost in (by_sets, partial(time_strategy._cost_of_rows, periods=3, power=power)):
        _, gradient = time_strategy._objective(point, queries, cost)
        numerical = approx_fprime(point, lambda at, c=cost: time_strategy._objective(at, queries, c)[0], 1e-7)
        np.testing.assert_allclose(gradient, numerical, atol=1e-5)


def test_row_bounds_replace_sets_when_these_are_many(monkeypatch):
    monkeypatch.setattr(time_strategy, "MOST_PAIRS", 0)
    queries = queries_over_time(8, ("cumulative",), 0)
    plan = plan_time(8, ("cumulative",), 0, 4)
    assert plan.bound == 0
    assert optimum(queries, 4) <= plan.mean_variance() <= 1.2 * optimum(queries, 4)
