"""Search for the ends of a number: bins, estimates, the choice on known columns, and runs."""

from fractions import Fraction

import numpy as np
import pytest

from dpscale.base.errors import DomainError
from dpscale.discovery.dyadic_tree import dyadic_bins, estimate_histogram
from dpscale.discovery.ends import choose_ends, found_ends, plan_ends
from dpscale.domain import MOST_PARTS, Domain
from dpscale.privacy.draws import SMOOTHING
from tests.messages import refused

BINS = dyadic_bins()


def histogram(values):
    return np.bincount(np.searchsorted(BINS.first, values, "right") - 1, minlength=len(BINS.first))


def test_bins_divide_all_integers_of_64_bits():
    assert BINS.first[0] == np.iinfo(np.int64).min
    assert BINS.last[-1] == np.iinfo(np.int64).max
    assert (BINS.first[1:] == BINS.last[:-1] + 1).all()
    assert (np.diff(BINS.ends) > 0).all()
    assert BINS.part_first[0] == BINS.first[0]
    assert BINS.part_last[-1] == BINS.last[-1]
    assert (BINS.part_last[:-1] + 1 == BINS.part_first[1:]).all()
    assert set(BINS.first) <= set(BINS.part_first)
    wide = BINS.part_last > 100
    assert (BINS.part_last[wide].astype(float) / BINS.part_first[wide] < 2**0.26).all()
    assert (BINS.last[wide[BINS.bin_of.searchsorted(range(len(BINS.first)))]] > 100).all()


@pytest.mark.parametrize("seed", range(5))
def test_noise_alone_is_not_significant(seed):
    noise = np.random.default_rng(seed).normal(0, 30, (200, len(BINS.first)))
    assert not any(estimate_histogram(one, 30.0).found.any() for one in noise)


def test_estimates_keep_the_total_and_have_a_tail():
    rng = np.random.default_rng(0)
    values = np.round(rng.lognormal(5, 1.5, 50_000)).astype(np.int64)
    estimate = estimate_histogram(histogram(values) + rng.normal(0, 100, len(BINS.first)), 100.0, 1.645)
    counts, found = estimate.counts, estimate.found
    assert counts.min() >= 0
    assert abs(counts[found].sum() - len(values)) < 3000
    top = np.flatnonzero(found).max()
    assert 0 < counts[top + 1 :].sum() < 0.1 * len(values)
    assert (estimate.limits >= counts).all()


def error_of(values, low, high, precision, groups):
    """Expected absolute error of the mean of equal groups with a range."""
    half, mean = (high - low) / 2, np.clip(values, low, high).mean()
    bias = np.hypot(np.maximum(values - high, 0).mean(), np.maximum(low - values, 0).mean())
    size = len(values) / groups
    noise = np.hypot(half, mean - (low + high) / 2) / size / np.sqrt(precision)
    draws = bias + noise * np.random.default_rng(0).normal(size=4000)
    return np.abs(draws).mean()


@pytest.mark.parametrize("epsilon", [0.02, 0.2, 2.0])
@pytest.mark.parametrize("signed", [False, True])
def test_ranges_are_nearly_the_best(epsilon, signed):
    rng = np.random.default_rng(3)
    values = np.round(rng.lognormal(4, 1, 100_000)).astype(np.int64) - (60 if signed else 0)
    precision, low = epsilon**2 / 2, None if signed else 0
    noisy = histogram(values) + rng.normal(0, 3 / epsilon, len(BINS.first))
    chosen = choose_ends(noisy, 3 / epsilon, 16, precision, low)
    lows = BINS.ends[(BINS.ends < 0) & (BINS.ends > -100)][::2] if signed else [0]
    highs = BINS.ends[(BINS.ends > 0) & (BINS.ends < 20_000)]
    best = min(error_of(values, one, other, precision, 16) for one in lows for other in highs)
    assert error_of(values, chosen.low, chosen.high, precision, 16) < 3 * best
    clipped = ((values < chosen.low) | (values > chosen.high)).mean()
    assert abs(chosen.clipped - clipped) < 0.02


def number_of(**table):
    return Domain.from_dict({"attributes": {"b": {"kind": "coded", "size": 2}}, "numbers": {"a": table}})["a"]


def test_nothing_found_and_public_ends():
    empty = np.zeros(len(BINS.first))
    assert choose_ends(empty, 10.0, 4, 1.0) is None
    zeros = histogram(np.zeros(10_000, np.int64)).astype(float)
    assert choose_ends(zeros, 10.0, 4, 1.0, low=0) is None
    assert choose_ends(histogram(np.full(10_000, -50)).astype(float), 1.0, 4, 1.0, low=0) is None
    above = choose_ends(histogram(np.full(10_000, 50)).astype(float), 1.0, 4, 1.0, low=0)
    assert above.low == 0 < 50 <= above.high


def test_a_search_that_sees_nothing_is_refused_or_uses_the_fallback():
    plan = plan_ends(number_of(low=0, high="private"), Fraction(1, 100), Fraction(1), 1, 1)
    with refused(DomainError):
        found_ends(plan, None)
    plan = plan_ends(number_of(low=0, high="private", step=0.5, fallback=[800]), Fraction(1, 100), Fraction(1), 1, 1)
    assert plan.number.describe()["fallback"] == [800]
    number, released = found_ends(plan, None)
    assert number.ends == (0, 800)
    assert number.clipped == (0, 0)
    assert released["fallback"]
    assert released["clipped"] is None


@pytest.mark.parametrize("table", [{"low": 0, "high": 5, "fallback": [3]}, {"low": 0, "high": "private", "fallback": 3},
                                   {"low": 0, "high": "private", "fallback": [0]},
                                   {"low": 0, "high": "private", "fallback": [1.5]},
                                   {"low": "private", "high": "private", "fallback": [3]},
                                   {"low": 0, "high": 5, "clipped": [1]}, {"low": 0, "high": 5, "clipped": [-1, 0]},
                                   {"low": 0, "high": "private", "clipped": [0, 1]}])  # fmt: skip
def test_wrong_fallbacks_and_limits_are_refused(table):
    with refused(DomainError):
        number_of(**table)


SCALES = np.array([1, 1.3, 0.7, 2, 1.0])


@pytest.mark.parametrize("name", ["lognormal", "pareto", "zeros"])
@pytest.mark.parametrize(("rows", "epsilon"), [(2000, 1.0), (20_000, 0.2), (20_000, 1.0)])
def test_limits_of_the_clipped_part_are_those_of_the_records(name, rows, epsilon):
    error, precision = 1 / (0.24 * epsilon * 0.1**0.5), 0.45 * (0.24 * epsilon) ** 2
    covered, seen = 0, 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        group = rng.choice(5, rows, p=[0.5, 0.25, 0.15, 0.07, 0.03])
        drawn = {"lognormal": rng.lognormal(8, 1.2, rows), "pareto": 100 * (1 + rng.pareto(1.8, rows)),
                 "zeros": np.where(rng.random(rows) < 0.8, 0, rng.lognormal(6, 1, rows))}[name]  # fmt: skip
        values = np.round(SCALES[group] * drawn).astype(np.int64)
        chosen = choose_ends(histogram(values) + rng.normal(0, error, len(BINS.first)), error, 5, precision, 0)
        if chosen is not None:
            seen += 1
            above, beyond = np.maximum(values - chosen.high, 0).mean(), (values > chosen.high).mean()
            covered += above <= chosen.above_limit and beyond <= chosen.clipped_limit
            assert chosen.high > np.median(values)
            assert above < 0.5 * values.mean()
    assert seen == 40
    assert covered >= 34  # limits of 95 % each, with fixed seeds


def test_a_total_has_a_larger_range_than_means_of_groups():
    values = np.round(np.random.default_rng(0).lognormal(8, 1.2, 20_000)).astype(np.int64)
    noisy = histogram(values) + np.random.default_rng(1).normal(0, 13, len(BINS.first))
    total, groups = (choose_ends(noisy, 13.0, count, 0.025, 0) for count in (1, 5))
    assert total.high > groups.high


def test_a_range_of_too_many_steps_has_a_larger_step():
    plan = plan_ends(number_of(low=0, high="private", step=0.01), Fraction(1), Fraction(1), 1, 1)
    noisy = histogram(np.random.default_rng(0).integers(0, 1 << 40, 100_000)).astype(float)
    ends = choose_ends(noisy, 1.0, 1, 1.0, low=0)
    number, released = found_ends(plan, ends)
    assert number.steps <= MOST_PARTS
    assert number.ends[1] >= ends.high * 0.01
    assert released["step"] > 0.01
    assert number.search is None


@pytest.mark.parametrize("rows", [1, 4])
def test_cost_is_that_of_all_rows_of_a_unit(rows):
    content = {"attributes": {"b": {"kind": "coded", "size": 2}}, "numbers": {"a": {"low": 0, "high": "private"}}}
    number = Domain.from_dict(content)["a"]
    draw = plan_ends(number, Fraction(1, 100), Fraction(1), 1, rows).draw
    assert draw.cost == Fraction((draw.multiplier * rows) ** 2, draw.variance - SMOOTHING) <= Fraction(1, 100)
