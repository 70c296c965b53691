"""Noise of 128 bits: values against exact arithmetic on the same words, distributions against the continuous laws.

As in `test_noise`, keys are fixed; the correct scale has p > 1e-3, and scales x 1.3 and x 0.7 have p < 1e-9.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from numba import njit
from scipy import stats

from dpscale.privacy import noise, sampling_loops
from dpscale.privacy.noise import (
    Staircase,
    bucket_edges,
    discrete_gaussian,
    discrete_laplace,
    exact_candidate,
    exp_bounds,
    gaussian_staircase,
    laplace_staircase,
    tabulate,
    wide_gaussian,
    wide_laplace,
)
from dpscale.privacy.streams import KeyedStream
from tests.messages import refused
from tests.privacy.test_noise import ScriptedStream, open_test_stream

VARIANCES = [2**106, 2**120, 3**80 + Fraction(1, 7), (2**92 - 5) ** 2, 2**200]
SCALES = [2**53, Fraction(3**50, 7), 2**99]
LAWS = [gaussian_staircase(Fraction(v)) for v in VARIANCES]
LAWS += [laplace_staircase(Fraction(s)) for s in SCALES]
ONES = 2**64 - 1
PINNED = {
    101: [2520561588368600, 1924076188554065],
    120: [1824450329093172629, 559083269992461841, -640487059764459208],
    200: [2006004351137693128355164334982, 614718556251740615051237512262, -704222969651084739426450402435],
    "laplace": [1357865258047530947326606333709, 278699162332309178979947620493, 411159576420014437378933239329],
}


def join_words(high: np.ndarray, low: np.ndarray) -> list[int]:
    return [int(h) * 2**64 + int(lo) for h, lo in zip(high, low, strict=True)]


def join_signed(out: np.ndarray) -> list[int]:
    return join_words(out[0].view(np.int64), out[1])


def candidate_words(law: Staircase, negative: int, bucket: int, offset: int, acceptance: str = "") -> list[int]:
    """Return the words of a candidate, written bit by bit; the acceptance is filled with ones."""
    edges = [0, *bucket_edges(law, 63).lower]
    text = f"{offset:0{law.log_width}b}"
    rest = acceptance.ljust(128 - law.log_width, "1")
    second, third = text[:32] + rest[:32], text[32:] + rest[32:]
    return [(edges[bucket] + edges[bucket + 1]) // 2 << 1 | negative, int(second, 2), int(third, 2)]


def decide_candidate(law: Staircase, words: list[int]) -> tuple[int, list[int]]:
    """Return the number of decided candidates and the values from the compiled loop on one candidate."""
    out = np.zeros((2, 1), dtype=np.uint64)
    done, filled = noise._decide(tabulate(law), np.array(words, dtype=np.uint64), 0, out, 0)
    return done, join_signed(out[:, :filled])


def possible_decisions(law: Staircase, words: list[int]) -> set[bool]:
    """Return the exact decisions at both extremes of the bits that the first two words leave open."""
    offset_rest = (1 << law.log_width - 32) - 1 << 96 - law.log_width
    hardest, easiest = (offset_rest, 0), (ONES - offset_rest, ONES)  # the third word, and all bits after it
    return {
        exact_candidate(law, [*words[:2], third], ScriptedStream([bits] * 8)) is not None
        for third, bits in (hardest, easiest)
    }


# ---- the law ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", VARIANCES)
def test_wide_gaussian_is_normal_to_lowest_bits_and_rejects_other_scales(variance: int | Fraction) -> None:
    high, low = wide_gaussian(open_test_stream(), variance, 200_000)
    sigma = float(variance) ** 0.5
    values = high * 2.0**64 + low
    assert stats.kstest(values / sigma, "norm").pvalue > 1e-3
    assert all(stats.kstest(values / (sigma * wrong), "norm").pvalue < 1e-9 for wrong in (1.3, 0.7))
    for place in range(0, int(np.log2(sigma)) - 8, 8):
        byte = low >> np.uint64(place) if place < 64 else high.view(np.uint64) >> np.uint64(place - 64)
        seen = np.bincount((byte & np.uint64(255)).astype(int), minlength=256)
        assert stats.chisquare(seen).pvalue > 1e-4, place


@pytest.mark.parametrize("scale", SCALES)
def test_wide_laplace_is_continuous_laplace_to_lowest_bits(scale: int | Fraction) -> None:
    high, low = wide_laplace(open_test_stream(), scale, 200_000)
    values = high * 2.0**64 + low
    assert stats.kstest(values / float(scale), "laplace").pvalue > 1e-3
    assert all(stats.kstest(values / (float(scale) * wrong), "laplace").pvalue < 1e-9 for wrong in (1.3, 0.7))
    assert stats.chisquare(np.bincount((low & np.uint64(255)).astype(int), minlength=256)).pvalue > 1e-3


@pytest.mark.parametrize("law", [LAWS[1], LAWS[4]])
def test_law_holds_within_bucket(law: Staircase) -> None:
    """8 million draws show the shape inside a bucket and would reveal a missing acceptance step."""
    drawn = noise._draw(open_test_stream(), tabulate(law), 8_000_000)
    places = np.abs(drawn[0].view(np.int64) * 2.0**64 + drawn[1]) / law.width
    places = places[(places >= 1) & (places < 300)]
    observed = np.bincount((places * 16).astype(int) % 16, minlength=16)
    support = np.arange(16, 4800) / 16
    middle, stepped = support + 1 / 32, np.floor(support)
    for at, taken in ((middle, True), (stepped, False)):
        mass = np.exp(-float(law.square * law.width**2) * at**2)
        due = np.bincount((support * 16).astype(int) % 16, mass / mass.sum() * len(places))
        p = stats.chisquare(observed, due).pvalue
        assert p > 1e-3 if taken else p < 1e-9


@given(st.sampled_from(LAWS), st.integers(0, 1), st.integers(0, 90), st.data())
def test_every_bucket_and_offset_give_one_value(
    law: Staircase, negative: int, bucket: int, data: st.DataObject
) -> None:
    """Every magnitude has one bucket and one offset; a uniform number of all ones accepts it."""
    offset = data.draw(st.one_of(st.integers(0, law.width - 1), st.integers(0, 3), st.just(law.width - 1)))
    words = candidate_words(law, negative, bucket, offset)
    value = (-1 if negative else 1) * (bucket * law.width + offset)
    minus_zero = negative and value == 0
    assert decide_candidate(law, words) == (1, [] if minus_zero else [value])
    assert exact_candidate(law, words, open_test_stream()) == (None if minus_zero else value)


@pytest.mark.parametrize("law", LAWS)
def test_minus_zero_needs_offset_zero(law: Staircase) -> None:
    assert decide_candidate(law, candidate_words(law, 1, 0, 0)) == (1, [])
    assert decide_candidate(law, candidate_words(law, 0, 0, 0)) == (1, [0])
    for low in (1, law.width >> 33, law.width >> 32):
        assert decide_candidate(law, candidate_words(law, 1, 0, low)) == (1, [-low])
    assert decide_candidate(law, candidate_words(law, 1, 1, 0)) == (1, [-law.width])


# ---- the loop and the exact arithmetic -------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("law", LAWS)
def test_loop_decisions_equal_exact_arithmetic(law: Staircase) -> None:
    words = open_test_stream("words").words(3 * 20_000)
    # Acceptances near zero, where some are rejected: as they are, nearly all would be accepted unseen.
    words[1::3] &= np.uint64(0xFFFFFFFF03FFFFFF)
    out = np.zeros((2, 1), dtype=np.uint64)
    outcomes = {"accepted": 0, "rejected": 0}
    for own in words.reshape(-1, 3)[:4000]:
        done, filled = noise._decide(tabulate(law), own, 0, out, 0)
        exact = exact_candidate(law, own.tolist(), open_test_stream("more"))
        assert done == 1
        assert join_signed(out[:, :filled]) == ([] if exact is None else [exact])
        outcomes["accepted" if filled else "rejected"] += 1
    assert min(outcomes.values()) > 100


@settings(max_examples=150)
@given(st.sampled_from(LAWS), st.integers(0, 1), st.integers(1, 90), st.floats(0, 1), st.integers(1, 60), st.booleans())
@example(LAWS[4], 0, 90, 1.0, 31, True)
@example(LAWS[4], 0, 90, 1.0, 31, False)
@example(LAWS[0], 0, 31, 0.34375, 35, False)
def test_loop_is_undecided_only_near_acceptance_probability(
    law: Staircase, negative: int, bucket: int, place: float, agree: int, above: bool
) -> None:
    """Numbers V at a distance of 2^-agree from R = 1 - exp(-x): decided if 32 bits suffice, and left open otherwise.

    The loop knows V and the offset to 32 bits each. R changes by at most 2^-34 with the other bits of the offset (the
    slope is below 1/4), V by 2^-32 with its other bits, and rounding is below 2^-56. All numbers at a distance of 2^-31
    are therefore decided. Nearer numbers are decided if all completions agree. Acceptance allows for 2^-34, of which
    the slopes of these laws, at most 1/16, use 2^-36: no number nearer than 2^-35 is accepted. A rejected number may be
    as near as rounding, if the offset ends in zeros and the known bits of V are the last below R.
    """
    offset = min(int(place * law.width), law.width - 1)
    start = bucket * law.width
    x = law.energy(start + offset) - law.energy(start)
    reject = 2**200 - exp_bounds(x, 200)[0]
    number = reject + (2 ** (200 - agree) if above else -(2 ** (200 - agree)))
    if not 0 <= number < 2**200:
        return
    words = candidate_words(law, negative, bucket, offset, f"{number:0200b}"[: 128 - law.log_width])
    done, values = decide_candidate(law, words)
    assert done == 1 or agree >= 32
    assert done == 0 or agree <= 34 or not above
    if done:
        assert possible_decisions(law, words) == {bool(values)}
        assert (len(values) == 1) == above
        assert exact_candidate(law, words, open_test_stream()) == (values[0] if values else None)


@pytest.mark.parametrize("law", LAWS)
def test_tables_of_few_bits_give_same_values(law: Staircase) -> None:
    """With thresholds of 8 bits and a series error of a quarter, nearly all draws are decided exactly."""
    fast = noise._draw(open_test_stream(), tabulate(law), 3000)
    assert np.array_equal(fast, noise._draw(open_test_stream(), tabulate(law, bits=8, series_error=2**62), 3000))
    assert np.array_equal(fast, noise._draw(open_test_stream(), tabulate(law, bits=20, series_error=2**50), 3000))


@pytest.mark.parametrize("law", LAWS)
def test_undecided_candidates_are_drawn_exactly(law: Staircase) -> None:
    """The candidates are past the last edge, near an edge and near an acceptance probability, between decided ones."""
    edge = bucket_edges(law, 63).lower[5]
    x = law.energy(7 * law.width - 1) - law.energy(6 * law.width)
    acceptance_bits = f"{2**200 - exp_bounds(x, 200)[0]:0200b}"[: 128 - law.log_width]
    doubtful = [[ONES, 5, 7], [2 * edge, ONES, ONES - 1], candidate_words(law, 1, 6, law.width - 1, acceptance_bits)]
    words = [word for own in doubtful for word in (*candidate_words(law, 0, 3, 12), *own)]
    assert all(decide_candidate(law, own) == (0, []) for own in doubtful)
    script = ScriptedStream(words + candidate_words(law, 0, 4, 1) * 3)
    expected = [
        exact_candidate(law, words[i : i + 3], KeyedStream(bytes(32)).continuation(i)) for i in range(0, len(words), 3)
    ]
    drawn = join_signed(noise._draw(script, tabulate(law), 6))
    accepted_values = [value for value in expected if value is not None]
    assert drawn == (accepted_values + [4 * law.width + 1] * 3)[:6]
    assert len(accepted_values) >= 4


def test_wide_loop_uses_no_floats() -> None:
    loop = sampling_loops.draw_widest_steps
    text = next(iter(njit(loop.signatures[0])(loop.py_func).inspect_llvm().values()))
    assert "i64" in text
    assert "double" not in text
    assert "float" not in text


# ---- reproducibility ----


@settings(max_examples=25)
@given(st.sampled_from(LAWS), st.integers(0, 700), st.integers(1, 300))
def test_values_do_not_depend_on_blocks_or_calls(law: Staircase, size: int, block: int) -> None:
    table, at_once = noise.tabulate(law), open_test_stream()
    values = noise._draw(at_once, table, size)
    in_blocks, in_calls = open_test_stream(), open_test_stream()
    assert np.array_equal(noise._draw(in_blocks, table, size, block), values)
    parts = [noise._draw(in_calls, table, n) for n in (size // 3, size - size // 3)]
    assert np.array_equal(np.concatenate(parts, axis=1), values)
    assert at_once.position == in_blocks.position == in_calls.position


@pytest.mark.parametrize("variance", [Fraction(1, 3), 100, 2**60, 2**100])
def test_narrow_noise_is_equal_in_both_forms(variance: int | Fraction) -> None:
    values = discrete_gaussian(open_test_stream(), variance, 5000)
    assert join_words(*wide_gaussian(open_test_stream(), variance, 5000)) == values.tolist()
    scale = min(Fraction(variance), Fraction(2**50))
    assert (
        join_words(*wide_laplace(open_test_stream(), scale, 5000))
        == discrete_laplace(open_test_stream(), scale, 5000).tolist()
    )


def test_values_equal_first_version() -> None:
    """A change needs a new mechanism version: a resumed release would draw different noise."""
    assert join_words(*wide_gaussian(open_test_stream(), 2**101, 2)) == PINNED[101]
    assert join_words(*wide_gaussian(open_test_stream(), 2**120, 3)) == PINNED[120]
    assert join_words(*wide_gaussian(open_test_stream(), 2**200, 3)) == PINNED[200]
    assert join_words(*wide_laplace(open_test_stream(), 2**99, 3)) == PINNED["laplace"]


@pytest.mark.parametrize(("draw", "bits"), [(wide_gaussian, 200), (wide_laplace, 99)])
def test_invalid_parameters_are_refused(draw: Callable, bits: int) -> None:
    for bad in (0, -1, Fraction(-1, 2), 2**bits + 1):
        with refused(ValueError):
            draw(open_test_stream(), bad, 1)
    for bad in (1.0, True, "1"):
        with refused(TypeError):
            draw(open_test_stream(), bad, 1)
    with refused(ValueError):
        draw(open_test_stream(), 2**90, -1)
    high, low = draw(open_test_stream(), 2**bits, 0)
    assert (high.shape, low.shape, high.dtype, low.dtype) == ((0,), (0,), np.int64, np.uint64)


def test_staircase_widths_satisfy_loop_limits() -> None:
    for bits in range(100, 201):
        for variance in (2**bits, Fraction(2**bits * 2 + 1, 3)):
            law = gaussian_staircase(Fraction(variance))
            assert 2**12 <= variance / law.width**2 < 2**14
            assert law.share == (3 if law.log_width > 46 else 2)
            assert law.log_width <= 94
    with pytest.raises(AssertionError):
        tabulate(laplace_staircase(Fraction(2**100)))
