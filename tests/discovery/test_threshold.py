"""Threshold and additive delta against exact probabilities, all splits of a unit's rows, and simulated draws."""

import math
from fractions import Fraction
from itertools import combinations_with_replacement

import numpy as np
import pytest

from dpscale.discovery.value_counts import MOST_SPLIT, Threshold, delta_of, tail_bound, threshold_for
from dpscale.privacy.draws import GaussianDraw, gaussian_draw
from dpscale.privacy.streams import open_stream, seeded_secret

DELTA = Fraction(1, 20)


def exact_tail(distance, variance):
    """P(z >= distance) of the discrete Gaussian, by summation."""
    reach = int(40 * math.sqrt(variance)) + abs(distance) + 10
    steps = np.arange(-reach, reach + 1)
    weights = np.exp(-(steps.astype(float) ** 2) / (2 * variance))
    return weights[steps >= distance].sum() / weights.sum()


def splits(rows):
    """All ways to divide rows over values."""
    return [parts for size in range(1, rows + 1) for parts in combinations_with_replacement(range(1, rows + 1), size)
            if sum(parts) == rows]  # fmt: skip


@pytest.mark.parametrize("variance", [1, 3, 10, 400, 10**6])
def test_tail_bound_is_just_above_the_exact_tail(variance):
    sd = math.sqrt(variance)
    for distance in sorted({0, 1, int(sd), int(2 * sd), int(3 * sd), int(4.5 * sd)}):
        bound, exact = tail_bound(distance, variance), exact_tail(distance, variance)
        assert bound >= exact
        if distance >= 3 * sd >= 9:
            assert bound <= (1.01 if sd > 100 else 1.15) * exact
    assert tail_bound(-1, variance) == 1


@pytest.mark.parametrize(("multiplier", "variance"), [(1, 4), (1, 25), (3, 25), (8, 100)])
@pytest.mark.parametrize("rows", [1, 2, 5, 7])
def test_delta_is_that_of_the_worst_split(multiplier, variance, rows):
    draw = GaussianDraw(multiplier, variance, Fraction(1))
    for threshold in (multiplier * rows + int(2 * variance**0.5), multiplier * rows + int(4 * variance**0.5)):
        passing = [tail_bound(threshold - multiplier * one, variance) for one in range(rows + 1)]
        worst = max(1 - math.prod(1 - passing[one] for one in parts) for parts in splits(rows))
        assert delta_of(threshold, draw, rows) == pytest.approx(worst, rel=1e-6)
        exact = max(1 - math.prod(1 - exact_tail(threshold - multiplier * one, variance) for one in parts)
                    for parts in splits(rows))  # fmt: skip
        assert delta_of(threshold, draw, rows) >= exact


def test_many_rows_have_an_upper_bound():
    draw = gaussian_draw(1, Fraction(1, 1000), MOST_SPLIT + 1, "a test")
    threshold = threshold_for(draw, Fraction(1, 10**9), MOST_SPLIT + 1)
    assert threshold.delta <= Fraction(1, 10**9)
    assert delta_of(threshold.value, draw, MOST_SPLIT) <= delta_of(threshold.value, draw, MOST_SPLIT + 1)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("delta", [Fraction(1, 10), Fraction(1, 10**6), Fraction(1, 10**12)])
def test_threshold_is_the_lowest(rows, delta):
    draw = gaussian_draw(1, Fraction(1, 50), rows, "a test")
    found = threshold_for(draw, delta, rows)
    assert delta_of(found.value, draw, rows) <= delta < delta_of(found.value - 1, draw, rows)
    assert found.delta <= delta


def passing_share(draw, threshold, rows, draws):
    """Share of releases in which one of `rows` values that occur once each passes."""
    noise = draw.words(open_stream(seeded_secret(5), "noise", {"test": "threshold"}), draws * rows)
    return ((draw.multiplier + noise.reshape(draws, rows)) >= threshold).any(axis=1).mean()


@pytest.mark.parametrize("rows", [1, 5])
def test_simulated_draws_reject_a_lower_threshold(rows):
    draw, draws = gaussian_draw(1, Fraction(1, 4), rows, "a test"), 100_000
    found = threshold_for(draw, DELTA, rows)
    noise = 4 * math.sqrt(float(DELTA) / draws)
    assert passing_share(draw, found.value, rows, draws) <= float(DELTA) + noise
    assert passing_share(draw, int(0.9 * found.value), rows, draws) > float(DELTA) + noise


def test_records():
    draw = GaussianDraw(8, 100, Fraction(1))
    assert Threshold(draw, 40, Fraction(0)).records == 5
