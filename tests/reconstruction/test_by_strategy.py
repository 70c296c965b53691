"""1-way marginals measured by a strategy: solver against brute force, noise against its law, errors against cells."""

from itertools import combinations

import numpy as np
import pytest

from dpscale.plans.factor import cumulative_factor
from dpscale.reconstruction.consistency import NoisyCounts, StrategyCounts, least_squares
from dpscale.reconstruction.fitting_loops import non_negative_least_squares, project_to_simplex
from dpscale.reconstruction.graphical_fit import Observed
from dpscale.workload.residual import Groups, center, coarsened, every_cell


def solve_by_enumeration(weights, pull, total):
    """Return the best stationary point over all sets of positive cells."""
    cells, best = len(pull), (np.inf, np.zeros(0))
    for size in range(1, cells + 1):
        for support in combinations(range(cells), size):
            own, ones = np.ix_(support, support), np.ones((size, 1))
            system = np.block([[weights[own], ones], [ones.T, np.zeros((1, 1))]])
            found = np.linalg.solve(system, np.append(pull[list(support)], total))[:-1]
            if found.min() >= 0:
                x = np.zeros(cells)
                x[list(support)] = found
                best = min(best, (0.5 * x @ weights @ x - pull @ x, x), key=lambda one: one[0])
    return best[1]


@pytest.mark.parametrize("seed", range(5))
def test_non_negative_least_squares_equals_enumeration(seed):
    rng = np.random.default_rng(seed)
    rows = cumulative_factor(6, bool(seed % 2)).matrix / 4096
    weights, pull = rows.T @ rows, rng.normal(20, 60, 6)
    start = np.linalg.solve(weights, pull)
    np.testing.assert_allclose(
        non_negative_least_squares(weights, pull, 100.0, start, 5000, 0.0),
        solve_by_enumeration(weights, pull, 100.0),
        atol=1e-6,
    )
    np.testing.assert_allclose(project_to_simplex(pull, 100.0), solve_by_enumeration(np.eye(6), pull, 100.0), atol=1e-9)


def make_counts(size, seed=0, deviation=60.0):
    """Return exact counts with many empty cells, and their noisy estimates from a strategy."""
    rng = np.random.default_rng(seed)
    true = np.where(rng.random(size) < 0.4, rng.poisson(150, size), 0) + 2000.0 * (np.arange(size) == 2)
    factor = cumulative_factor(size)
    variance = deviation**2 * factor.squared_l2_sensitivity * factor.mean_variance
    exact = StrategyCounts(true, variance, factor)
    return exact, exact.at(true + exact.noise(rng)), rng


def test_drawn_noise_has_stated_variances():
    exact, _, rng = make_counts(8)
    groups = Groups(8, (0, 1, 4, 6))
    drawn = np.array([exact.noise(rng) for _ in range(4000)])
    assert drawn.var() == pytest.approx(exact.variance, rel=0.05)
    assert drawn.sum(axis=1).var() == pytest.approx(exact.sum_variance, rel=0.1)
    grouped = center(coarsened(drawn.T, [groups]), (0,))
    assert (grouped**2).sum(axis=0).mean() / 3 == pytest.approx(exact.grouped_variance(groups), rel=0.1)


def test_linear_form_reproduces_least_squares():
    exact, noisy, _ = make_counts(8)
    rows, values, variance = noisy.linear_form()
    np.testing.assert_allclose(np.linalg.lstsq(rows, values, rcond=None)[0], noisy.values, rtol=1e-9)
    assert (rows**2).sum(axis=0).max() == pytest.approx(1)
    observed = Observed(("a",), (every_cell(8),), (rows,), values, variance)
    assert observed.total[1] == pytest.approx(1 / noisy.sum_variance, rel=1e-6)
    measured = exact.strategy.matrix @ exact.values
    np.testing.assert_allclose(least_squares(exact.strategy, measured), exact.values, atol=1e-8)


def test_non_negative_counts_have_total_and_exact_limit():
    exact, noisy, _ = make_counts(30)
    total = float(exact.values.sum())
    found = noisy.non_negative(total)
    assert found.min() > 0
    assert found.sum() == pytest.approx(total)
    certain = StrategyCounts(exact.values, 1e-6, exact.strategy)
    assert np.abs(certain.non_negative(total) - exact.values).max() < 1e-3 * total


def test_measured_groups_are_weighted_by_precision():
    exact, noisy, _ = make_counts(30)
    total, groups = float(exact.values.sum()), Groups(30, (0, 2, 10, 20))
    residual = center(coarsened(exact.values, [groups]), (0,))
    known = coarsened(noisy.refine(groups, residual, 1e2, total), [groups])
    np.testing.assert_allclose(known, coarsened(exact.values, [groups]), atol=5)
    np.testing.assert_allclose(noisy.refine(groups, residual, 0.0, total), noisy.non_negative(total))


def test_average_is_weighted_by_precision():
    _, noisy, _ = make_counts(8)
    both = noisy.average(noisy.at(noisy.values + 6))
    np.testing.assert_allclose(both.values, noisy.values + 3)
    assert both.unit == pytest.approx(noisy.unit / 2)


def test_strategy_counts_are_nearer_than_cell_counts():
    """At equal cost, over 20 draws of 60 cells."""
    ours, theirs = [], []
    for seed in range(20):
        exact, noisy, rng = make_counts(60, seed)
        total, true = float(exact.values.sum()), np.cumsum(exact.values)
        white = NoisyCounts(exact.values + rng.normal(0, 60.0, 60), 60.0**2)
        ours.append(((np.cumsum(noisy.non_negative(total)) - true) ** 2).mean())
        theirs.append(((np.cumsum(white.non_negative(total)) - true) ** 2).mean())
    assert np.mean(ours) ** 0.5 < 0.7 * np.mean(theirs) ** 0.5


def test_equal_counts_are_shrunk_and_different_ones_are_not():
    """Equal counts have errors far below their noise; different counts are unchanged."""
    factor, missed = cumulative_factor(20), []
    equal = StrategyCounts(np.full(20, 500.0), 100.0**2, factor)
    for seed in range(10):
        noise = equal.noise(np.random.default_rng(seed))
        missed.append(equal.at(equal.values + noise).non_negative(10_000.0) - 500)
        separate = equal.at(np.arange(2, 22) * 5000.0 + noise)
        found = separate.non_negative(float(separate.values.sum()))
        assert np.abs(found - separate.values).max() < 20
    assert np.sqrt(np.mean(np.square(missed))) < 0.4 * 100
