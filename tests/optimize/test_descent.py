"""Descent with few evaluations, on functions with a known minimum: quadratic, narrow valley, kink."""

import numpy as np
import pytest

from dpscale.optimize.axis_weights import lbfgs


def run_descent(function, start, looks, flat=0.0):
    """Return all evaluated values and the best point."""
    values, points = [], []

    def evaluate(point):
        value, slope = function(point)
        values.append(value)
        points.append(point)
        return value, lambda: slope

    lbfgs(evaluate, np.asarray(start, dtype=float), looks, flat)
    return values, points[int(np.argmin(values))]


def quadratic(point):
    scales, center = np.array([1.0, 10.0, 100.0]), np.array([1.0, -2.0, 3.0])
    return float((scales * (point - center) ** 2).sum()), 2 * scales * (point - center)


def valley(point):
    x, y = point
    return (1 - x) ** 2 + 100 * (y - x * x) ** 2, np.array([-2 * (1 - x) - 400 * x * (y - x * x), 200 * (y - x * x)])


def kinked(point):
    return float(np.abs(point).sum() + point[0] ** 2), np.sign(point) + np.array([2 * point[0], 0.0])


@pytest.mark.parametrize(
    ("function", "start", "least", "within"),
    [(quadratic, [0, 0, 0], [1, -2, 3], 1e-6), (valley, [-1.2, 1], [1, 1], 1e-5), (kinked, [0.9, -0.7], [0, 0], 1e-3)],
)
def test_descent_finds_minimum(function, start, least, within):
    _, best = run_descent(function, start, 200)
    assert np.abs(best - least).max() < within


@pytest.mark.parametrize("looks", [1, 2, 7])
def test_descent_respects_evaluation_limit(looks):
    assert len(run_descent(valley, [-1.2, 1], looks)[0]) == looks


def test_descent_ends_at_small_improvement():
    assert len(run_descent(valley, [-1.2, 1], 200, flat=1e-2)[0]) < len(
        run_descent(valley, [-1.2, 1], 200, flat=1e-9)[0]
    )


def test_descent_stops_at_zero_gradient():
    assert len(run_descent(lambda point: (1.0, np.zeros(2)), [0, 0], 50)[0]) == 1
