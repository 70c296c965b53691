"""Weights of the components of simulated errors, against the printed formula and errors drawn from it."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from dpscale.reconstruction.simulated_errors import (
    CALIBRATION,
    EVEN,
    LEAST_SPREAD,
    LONGER,
    TAIL,
    Calibration,
    Departures,
    ErrorComponents,
    SetKind,
    simultaneous_widths,
)

WEIGHTS = Calibration(
    one_way=2.0, measured_pair=3.0, other_pair=5.0, larger=7.0, hidden=0.5, pair_level=1.5, pair_slope=0.5,
    larger_level=4.0, larger_slope=2.0, completion=0.25, association=0.125,
)  # fmt: skip
DEPARTURES = Departures(pairs=9.0, larger=3.0)


def components(kind, spread=10.0, hidden=0.0, chance=2.0, completion=8.0, association=16.0, reach=1.0):
    parts = [np.array([one]) for one in (spread, chance, hidden, completion, association)]
    return ErrorComponents(kind, *parts, reach)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (SetKind(1, False, False), 2 * 10 + LEAST_SPREAD),
        (SetKind(2, True, True), 2 * 3 * 10 + 4.5 * (2 + 2 / 3) + 2 + 2 + LEAST_SPREAD),
        (SetKind(2, False, False), 2 * 5 * 10 + 4.5 * (2 + 2 / 3) + 2 + 2 + LEAST_SPREAD),
        (SetKind(3, False, True), 2 * 7 * 10 + 36 * (2 + 2 / 3) + 2 + 2 + LEAST_SPREAD),
        (SetKind(3, False, False), 2 * 7 * 10 + 4.5 * (2 + 2 / 3) + 2 + 2 + LEAST_SPREAD),
        (SetKind(3, True, True), 2 * 7 * 10 + 4.5 * (2 + 2 / 3) + 2 + 2 + LEAST_SPREAD),
    ],
)
def test_variance_is_the_printed_sum(kind, expected):
    assert WEIGHTS.variances(components(kind), DEPARTURES, 4.0) == pytest.approx(expected)


def test_hidden_departure_replaces_a_smaller_spread():
    kind = SetKind(2, True, True)
    large, small = (WEIGHTS.variances(components(kind, hidden=one), DEPARTURES, 4.0) for one in (1000.0, 1.0))
    none = WEIGHTS.variances(components(kind), DEPARTURES, 4.0)
    assert large - none == pytest.approx(0.5 * 1000 - 2 * 3 * 10)
    assert small == pytest.approx(none)


def test_variance_scales_with_the_square_of_a_query():
    kind = SetKind(2, False, False)
    one = components(kind)
    five = components(kind, 250.0, 0.0, 50.0, 200.0, 400.0, reach=5.0)
    assert WEIGHTS.variances(five, DEPARTURES, 4.0) == pytest.approx(25 * WEIGHTS.variances(one, DEPARTURES, 4.0))


def test_unknown_departures_of_larger_sets_count_as_one():
    kind = SetKind(3, False, True)
    unknown = WEIGHTS.variances(components(kind), Departures(9.0), 4.0)
    assert unknown == pytest.approx(WEIGHTS.variances(components(kind), Departures(9.0, 1.0), 4.0))


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.3])
def test_intervals_cover_errors_of_the_stated_variance_only(factor):
    """Errors of 0.7 and 1.3 times the stated size are planted; only the stated size has a coverage of 95 %."""
    rng = np.random.default_rng(1)
    kind = SetKind(2, True, True)
    parts = ErrorComponents(kind, *(rng.gamma(2.0, size=20_000) for _ in range(5)), 1.0)
    own = np.sqrt(CALIBRATION.variances(parts, Departures(3.0), 1.2))
    covered = (np.abs(factor * own * rng.standard_normal(own.size)) <= 1.96 * own).mean()
    assert bool(abs(covered - 0.95) < 0.01) is (factor == 1.0)


def test_simultaneous_width_is_the_printed_formula():
    own = np.array([1.0, 2.0, 4.0, 5.0])
    for degree, disjoint, count in ((1, 4.0, 4.0), (2, 2.0, 2.0), (3, 100.0, 4.0)):
        normal = NormalDist().inv_cdf(1 - 0.05 / (2 * count))
        tail = (degree - 1) * (TAIL + LONGER * math.log(count))
        found = simultaneous_widths(own, np.ones(4), degree, disjoint, 0.95)
        assert found == pytest.approx(normal * (1 + tail) * np.sqrt(own**2 + EVEN**2 * 11.5))


def test_simultaneous_widths_cover_independent_normal_errors():
    rng = np.random.default_rng(2)
    own = rng.gamma(2.0, size=50)
    half = simultaneous_widths(own, np.ones(50), 1, 50.0, 0.95)
    drawn = np.abs(own * rng.standard_normal((4000, 50)))
    assert (drawn <= half).all(axis=1).mean() > 0.94
    assert (drawn <= half / 1.5).all(axis=1).mean() < 0.94
