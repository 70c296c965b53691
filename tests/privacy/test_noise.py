"""Exact noise against closed forms, the published samplers, and bit by bit where 64 bits do not decide.

Goodness-of-fit tests use a fixed key, so that they are deterministic. Each accepts the law with p > 1e-3 and
rejects scales x 1.3 and x 0.7 with p < 1e-9, which shows its power.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numba import njit
from scipy import stats

from dpscale.privacy import noise, sampling_loops
from dpscale.privacy.noise import (
    Staircase,
    bucket_edges,
    discrete_gaussian,
    discrete_laplace,
    exact_acceptance,
    exact_bucket,
    exp_bounds,
    gaussian_staircase,
    laplace_staircase,
    tabulate,
)
from dpscale.privacy.streams import KeyedStream, open_stream, seeded_secret
from tests.messages import refused

Law = Callable[[np.ndarray], np.ndarray]
VARIANCES = [Fraction(1, 10), Fraction(1, 2), 1, 7, 100**2 + Fraction(1, 3), 200**2 + Fraction(1, 3), 600**2]
SCALES = [Fraction(1, 3), 1, Fraction(7, 2), 31, 100 + Fraction(1, 7), 500]
LARGE_VARIANCES = [(2**20) ** 2, (2**37 + 5) ** 2, 2**100]
LARGE_SCALES = [2**20, Fraction(3**26, 5), 2**50]
LAWS = [gaussian_staircase(Fraction(v)) for v in VARIANCES + LARGE_VARIANCES]
LAWS += [laplace_staircase(Fraction(s)) for s in SCALES + LARGE_SCALES]


def open_test_stream(name: str = "test") -> KeyedStream:
    return open_stream(seeded_secret(1), "noise", {"name": name})


# ---- the laws, in floats ---------------------------------------------------------------------------------------------


def gaussian_law(variance: float) -> Law:
    return lambda x: np.exp(-(x.astype(float) ** 2) / (2 * variance))


def laplace_law(scale: float) -> Law:
    return lambda x: np.exp(-np.abs(x) / scale)


def goodness_of_fit(values: np.ndarray, law: Law) -> float:
    """Return the p value of a chi-square test of integers against an unnormalised law, in bins of at least 10."""
    reach = int(np.abs(values).max()) + 200
    support = np.arange(-reach, reach + 1)
    expected = law(support) / law(support).sum() * len(values)
    observed = np.bincount(values + reach, minlength=2 * reach + 1)
    bins = np.floor(np.cumsum(expected) / 10).astype(int)
    seen, due = np.bincount(bins, observed), np.bincount(bins, expected)
    full = due > 5
    # What lies outside the full bins (the far tail of the last one) is one bin more.
    seen = np.append(seen[full], seen[~full].sum())
    due = np.append(due[full], max(due[~full].sum(), 1e-300))
    if seen[-1] == 0 and due[-1] < 5:
        seen, due = seen[:-1], due[:-1]
    return float(stats.chi2.sf(((seen - due) ** 2 / due).sum(), len(due) - 1))


@pytest.mark.parametrize("variance", VARIANCES)
def test_gaussian_fits_law_and_rejects_other_scales(variance: int | Fraction) -> None:
    values = discrete_gaussian(open_test_stream(), variance, 500_000)
    assert goodness_of_fit(values, gaussian_law(float(variance))) > 1e-3
    for wrong in (1.3, 0.7):
        assert goodness_of_fit(values, gaussian_law(float(variance) * wrong**2)) < 1e-9


@pytest.mark.parametrize("scale", SCALES)
def test_laplace_fits_law_and_rejects_other_scales(scale: int | Fraction) -> None:
    values = discrete_laplace(open_test_stream(), scale, 500_000)
    assert goodness_of_fit(values, laplace_law(float(scale))) > 1e-3
    for wrong in (1.3, 0.7):
        assert goodness_of_fit(values, laplace_law(float(scale) * wrong)) < 1e-9


@pytest.mark.parametrize("variance", LARGE_VARIANCES)
def test_large_gaussian_is_normal_to_lowest_bits(variance: int) -> None:
    values = discrete_gaussian(open_test_stream(), variance, 200_000)
    sigma = variance**0.5
    assert stats.kstest(values / sigma, "norm").pvalue > 1e-3
    assert all(stats.kstest(values / (sigma * wrong), "norm").pvalue < 1e-9 for wrong in (1.3, 0.7))
    assert stats.chisquare(np.bincount(values & 255, minlength=256)).pvalue > 1e-3


@pytest.mark.parametrize("scale", LARGE_SCALES)
def test_large_laplace_is_continuous_laplace_to_lowest_bits(scale: int | Fraction) -> None:
    values = discrete_laplace(open_test_stream(), scale, 200_000)
    assert stats.kstest(values / float(scale), "laplace").pvalue > 1e-3
    assert all(stats.kstest(values / (float(scale) * wrong), "laplace").pvalue < 1e-9 for wrong in (1.3, 0.7))
    assert stats.chisquare(np.bincount(values & 255, minlength=256)).pvalue > 1e-3


def test_law_holds_within_bucket() -> None:
    """8 million draws show the shape inside a bucket and would reveal a missing acceptance step."""
    variance, width = 600**2, gaussian_staircase(Fraction(600**2)).width
    magnitudes = np.abs(discrete_gaussian(open_test_stream(), variance, 8_000_000))
    magnitudes = magnitudes[(magnitudes >= width) & (magnitudes < 2400)]
    observed = np.bincount(magnitudes % width, minlength=width)
    support = np.arange(width, 2400)
    stepped = support // width * width
    assert width == 8
    for law, taken in ((gaussian_law(variance)(support), True), (gaussian_law(variance)(stepped), False)):
        due = np.bincount(support % width, law / law.sum() * len(magnitudes))
        p = stats.chisquare(observed, due).pvalue
        assert p > 1e-3 if taken else p < 1e-9


# ---- the samplers of Canonne, Kamath, Steinke (2020), in plain Python ------------------------------------------------


def bernoulli_exp(gamma: Fraction, rng: random.Random) -> bool:
    """Algorithm 1: return true with probability exp(−gamma)."""
    while gamma > 1:
        if not bernoulli_exp(Fraction(1), rng):
            return False
        gamma -= 1
    k = 1
    while rng.randrange(gamma.denominator * k) < gamma.numerator:
        k += 1
    return k % 2 == 1


def paper_laplace(scale: Fraction, rng: random.Random) -> int:
    """Algorithm 2, for scale t / s."""
    t, s = scale.numerator, scale.denominator
    while True:
        u = rng.randrange(t)
        if not bernoulli_exp(Fraction(u, t), rng):
            continue
        v = 0
        while bernoulli_exp(Fraction(1), rng):
            v += 1
        magnitude, negative = (u + t * v) // s, rng.randrange(2)
        if magnitude or not negative:
            return -magnitude if negative else magnitude


def paper_gaussian(variance: Fraction, rng: random.Random) -> int:
    """Algorithm 3."""
    t = int(variance**0.5) + 1
    while True:
        y = paper_laplace(Fraction(t), rng)
        if bernoulli_exp((abs(y) - variance / t) ** 2 / (2 * variance), rng):
            return y


def two_sample_p_value(a: np.ndarray, b: np.ndarray) -> float:
    """Return the p value of a two-sample chi-square test, on bins of at least 20 values of `b`."""
    cuts = np.unique(np.quantile(b, np.linspace(0, 1, 25)[1:-1]))
    table = [np.bincount(np.searchsorted(cuts, x), minlength=len(cuts) + 1) for x in (a, b)]
    return float(stats.chi2_contingency(np.array(table)[:, np.sum(table, axis=0) > 0]).pvalue)


@pytest.mark.parametrize("parameter", [Fraction(1, 2), Fraction(7), Fraction(30001, 3), Fraction(600**2)])
def test_draws_equal_paper_samplers_in_distribution(parameter: Fraction) -> None:
    rng = random.Random(5)
    for ours, theirs, power in ((discrete_gaussian, paper_gaussian, 2), (discrete_laplace, paper_laplace, 1)):
        reference = np.array([theirs(parameter, rng) for _ in range(6000)])
        assert two_sample_p_value(ours(open_test_stream(), parameter, 100_000), reference) > 1e-3
        for wrong in (Fraction(13, 10), Fraction(7, 10)):
            assert two_sample_p_value(ours(open_test_stream(), parameter * wrong**power, 100_000), reference) < 1e-9


# ---- thresholds and bounds against mpmath ----------------------------------------------------------------------------


def exact_edges(law: Staircase, digits: int) -> list[mpmath.mpf]:
    """Return cumulative bucket probabilities by plain summation to `digits` digits."""
    with mpmath.workdps(digits):
        slope = mpmath.mpf((law.linear * law.width).numerator) / (law.linear * law.width).denominator
        bend = mpmath.mpf((law.square * law.width**2).numerator) / (law.square * law.width**2).denominator
        weights = [mpmath.mpf(1) / (2 if law.log_width == 0 else 1)]
        while weights[-1] > mpmath.mpf(10) ** -digits:
            b = len(weights)
            weights.append(mpmath.exp(-(slope * b + bend * b * b)))
        total, part, edges = mpmath.fsum(weights), mpmath.mpf(0), []
        for weight in weights:
            part += weight
            edges.append(part / total)
        return edges


@pytest.mark.parametrize("law", LAWS[::2])
@pytest.mark.parametrize("bits", [8, 63, 127])
def test_edges_bracket_exact_thresholds(law: Staircase, bits: int) -> None:
    edges = bucket_edges(law, bits)
    with mpmath.workdps(60):
        for lower, true in zip(edges.lower, exact_edges(law, 60), strict=False):
            assert lower <= true * 2**bits < lower + edges.slack
    assert edges.slack <= 3


@given(st.fractions(0, 300, max_denominator=10**12), st.integers(20, 250))
def test_exp_bounds_are_valid_and_tight(x: Fraction, bits: int) -> None:
    low, high = exp_bounds(x, bits)
    with mpmath.workdps(200):
        true = mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator) * mpmath.mpf(2) ** bits
        assert low <= true <= high
    assert high - low <= 2


@given(st.integers(0, 2**62))
def test_compiled_series_is_within_its_error(x: int) -> None:
    with mpmath.workdps(60):
        true = (1 - mpmath.exp(-mpmath.mpf(x) / 2**64)) * 2**64
        assert abs(int(sampling_loops.rejection_probability(np.uint64(x))) - true) <= 4


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_compiled_high_product_is_exact(a: int, b: int) -> None:
    assert int(sampling_loops.high_product(np.uint64(a), np.uint64(b))) == a * b >> 64


def test_compiled_loops_use_no_floats() -> None:
    def llvm_code(function: Callable, signature: object) -> str:
        return next(iter(njit(signature)(function).inspect_llvm().values()))

    # Compiled again, because numba does not show the code of cached functions, and a loop that is inlined has none.
    loops = (sampling_loops.draw_unit_steps, sampling_loops.draw_wide_steps, sampling_loops.rejection_probability)
    inlined = (sampling_loops.find_bucket, "uint64(uint64, uint64[::1], uint16[::1], uint64)")
    for loop, signature in (*((loop, loop.signatures[0]) for loop in loops), inlined):
        text = llvm_code(loop.py_func, signature)
        assert "i64" in text
        assert "double" not in text
        assert "float" not in text
    assert "double" in llvm_code(lambda a, b: a / b, "(uint64, uint64)")


# ---- undecided prefixes ----


class ScriptedWords:
    """A uniform number given in advance, read 64 bits at a time."""

    def __init__(self, number: int, bits: int) -> None:
        self.number, self.left = number, bits

    def words(self, n: int) -> np.ndarray:
        self.left -= 64 * n
        assert n == 1
        assert self.left >= 0, "more words were asked for than decide"
        return np.array([self.number >> self.left & (2**64 - 1)], dtype=np.uint64)


def numbers_near(true: mpmath.mpf, start: int, agree: int) -> list[tuple[int, ScriptedWords]]:
    """Return two numbers that differ from `true` by one unit of bit `agree`, below and above, as prefix and remaining
    bits.
    """
    total = start + 64 * (-(-(agree + 8 - start) // 64))
    exact = int(mpmath.floor(true * mpmath.mpf(2) ** total))
    gap = 1 << (total - agree)
    return [(number >> (total - start), ScriptedWords(number, total - start)) for number in (exact - gap, exact + gap)]


@pytest.mark.parametrize("law", [LAWS[0], LAWS[3], LAWS[6], LAWS[9], LAWS[11], LAWS[16]])
@pytest.mark.parametrize("agree", [7, 60, 120, 180])
def test_numbers_near_threshold_get_correct_bucket(law: Staircase, agree: int) -> None:
    with mpmath.workdps(110):
        edges = exact_edges(law, 110)
        for bucket in (0, 1, 2, len(edges) // 8):
            for start in (8, 63):
                (below, rest), (above, more) = numbers_near(edges[bucket], start, max(agree, start))
                if agree < start + 64 and edges[bucket + 1] - edges[bucket] < mpmath.mpf(2) ** (2 - max(agree, start)):
                    continue  # the next threshold is nearer than the gap
                got = exact_bucket(law, below, start, rest), exact_bucket(law, above, start, more)
                assert got == (bucket, bucket + 1)


@pytest.mark.parametrize("law", [LAWS[5], LAWS[7], LAWS[9], LAWS[14], LAWS[18]])
@pytest.mark.parametrize("agree", [40, 120, 180])
def test_numbers_near_acceptance_probability_are_decided_correctly(law: Staircase, agree: int) -> None:
    with mpmath.workdps(110):
        for bucket, offset in ((0, 1), (3, law.width // 2), (90, law.width - 1)):
            x = law.energy(bucket * law.width + offset) - law.energy(bucket * law.width)
            true = -mpmath.expm1(-mpmath.mpf(x.numerator) / x.denominator)
            (below, rest), (above, more) = numbers_near(true, 20, agree)
            if below >= 0:
                assert not exact_acceptance(law, bucket, offset, below, 20, rest)
            assert exact_acceptance(law, bucket, offset, above, 20, more)


def test_tail_beyond_table_is_exact() -> None:
    """A number that starts with 63 ones is beyond the table; the following bits determine the bucket."""
    law = gaussian_staircase(Fraction(7))
    edges = exact_edges(law, 110)
    with mpmath.workdps(110):
        for rest in (0, 2**63, 2**64 - 1 - 2**40):
            number = mpmath.mpf((2**63 - 1) * 2**64 + rest) / mpmath.mpf(2) ** 127
            bucket = sum(edge <= number for edge in edges)
            assert exact_bucket(law, 2**63 - 1, 63, ScriptedWords(rest << 64, 128)) == bucket
            assert bucket > 20


class ScriptedStream(KeyedStream):
    """A keyed stream with given words and keyed continuations."""

    def __init__(self, words: list[int]) -> None:
        super().__init__(bytes(32))
        self.script = words

    def words(self, n: int) -> np.ndarray:
        start, self._position = self._position, self._position + n
        return np.array(self.script[start : start + n], dtype=np.uint64)


def test_loop_leaves_exactly_the_undecided_words() -> None:
    law = gaussian_staircase(Fraction(9))
    edge, slack = bucket_edges(law, 63).lower[1], bucket_edges(law, 63).slack
    words = [2 * (edge + i) for i in (-1, *range(slack + 1))]
    table, out = tabulate(law), np.empty(len(words), dtype=np.int64)
    done = [noise._decide(table, np.array([word], dtype=np.uint64), 0, out, 0)[0] for word in words]
    assert done == [1] + [0] * slack + [1]
    drawn = noise._draw(ScriptedStream(words), table, len(words))
    assert drawn[0] == 1
    assert drawn[-1] == 2
    assert set(drawn) == {1, 2}


@pytest.mark.parametrize("bucket", [0, 60])
@pytest.mark.parametrize("law", [law for law in LAWS if law.log_width])
def test_wide_loop_leaves_exactly_the_undecided_acceptances(law: Staircase, bucket: int) -> None:
    bits, offset = 64 - law.log_width, law.width // 2 if bucket else law.width - 1
    u = sum([0, *bucket_edges(law, 63).lower][bucket : bucket + 2]) // 2
    x = law.energy(bucket * law.width + offset) - law.energy(bucket * law.width)
    low, high = exp_bounds(x, 200)
    first, last = ((1 << bits) - (bound >> 200 - bits) - 1 for bound in (high, low))
    assert first == last
    # The fewer the bits, the more often a prefix decides nothing; with many, the loop's own error is what it yields to.
    doubt = 1 if bits < 50 else 1 + (200 >> law.log_width)
    for prefix, decided in ((first - doubt, True), (first, False), (first + doubt, True)):
        words = np.array([2 * u, offset << bits | prefix], dtype=np.uint64)
        out = np.zeros(1, dtype=np.int64)
        accepted = prefix > first
        assert noise._decide(tabulate(law), words, 0, out, 0) == (int(decided), int(decided and accepted))
        assert out[0] == (bucket * law.width + offset if decided and accepted else 0)


@pytest.mark.parametrize("law", LAWS)
def test_tables_of_few_bits_give_same_values(law: Staircase) -> None:
    """With thresholds of 8 bits and a series error of a quarter, nearly all draws are decided exactly."""
    fast = noise._draw(open_test_stream(), tabulate(law), 3000)
    assert np.array_equal(fast, noise._draw(open_test_stream(), tabulate(law, bits=8, series_error=2**62), 3000))
    assert np.array_equal(fast, noise._draw(open_test_stream(), tabulate(law, bits=20, series_error=2**50), 3000))


def test_eight_bit_prefix_is_located_only_if_unambiguous() -> None:
    for law in (LAWS[0], LAWS[3], LAWS[10], LAWS[12]):
        true, edges = exact_edges(law, 40), bucket_edges(law, 8)
        for prefix in range(256):
            bucket = edges.locate(prefix)
            reach = {
                sum(edge <= mpmath.mpf(number) / 2**40 for edge in true)
                for number in (prefix << 32, (prefix + 1 << 32) - 1)
            }
            assert bucket is None or reach == {bucket}
        assert sum(edges.locate(prefix) is None for prefix in range(256)) < 60


# ---- reproducibility ----


@settings(max_examples=25)
@given(st.sampled_from(LAWS), st.integers(0, 700), st.integers(1, 300))
def test_values_do_not_depend_on_blocks_or_calls(law: Staircase, size: int, block: int) -> None:
    table, at_once = noise.tabulate(law), open_test_stream()
    values = noise._draw(at_once, table, size)
    in_blocks, in_calls = open_test_stream(), open_test_stream()
    assert np.array_equal(noise._draw(in_blocks, table, size, block), values)
    parts = [noise._draw(in_calls, table, n) for n in (size // 3, size - size // 3)]
    assert np.array_equal(np.concatenate(parts), values)
    assert at_once.position == in_blocks.position == in_calls.position


def test_values_with_continuations_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """At scale 2^50 an acceptance has 18 bits: about a dozen of 4 million are decided by words of a continuation."""
    opened: list[int] = []
    continuation = KeyedStream.continuation

    def record_continuation(self: KeyedStream, position: int) -> KeyedStream:
        opened.append(position)
        return continuation(self, position)

    monkeypatch.setattr(KeyedStream, "continuation", record_continuation)
    table = noise.tabulate(laplace_staircase(Fraction(2**50)))
    values = noise._draw(open_test_stream(), table, 4_000_000)
    places = opened.copy()
    assert 4 < len(places) < 60
    assert np.array_equal(noise._draw(open_test_stream(), table, 4_000_000, block=10_007), values)
    assert opened == places * 2


def test_values_depend_on_record_and_not_on_thread() -> None:
    def draw(name: str) -> bytes:
        return discrete_gaussian(open_test_stream(name), 2**60, 20_000).tobytes()

    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(draw, ["a", "b", "a", "b", "c"]))
    assert drawn[0] == drawn[2] == draw("a")
    assert len(set(drawn)) == 3


def test_values_equal_first_version() -> None:
    """A change needs a new mechanism version: a resumed release would draw different noise."""
    assert discrete_gaussian(open_test_stream(), 100, 8).tolist() == [16, 4, 12, 5, 0, 1, -6, 8]
    assert discrete_gaussian(open_test_stream(), 2**60, 3).tolist() == [1699151777, 1298071131, -34527303]
    assert discrete_laplace(open_test_stream(), Fraction(5, 2), 8).tolist() == [5, 1, 4, 1, 0, 0, -1, 2]
    assert discrete_laplace(open_test_stream(), 2**30, 3).tolist() == [2300313222, 1568405871, -3891486]


@pytest.mark.parametrize(("draw", "most"), [(discrete_gaussian, 2**100), (discrete_laplace, 2**50)])
def test_invalid_parameters_are_refused(draw: Callable, most: int) -> None:
    for bad in (0, -1, Fraction(-1, 2), most + 1):
        with refused(ValueError):
            draw(open_test_stream(), bad, 1)
    for bad in (1.0, True, "1", np.int64(1)):
        with refused(TypeError):
            draw(open_test_stream(), bad, 1)
    with refused(ValueError):
        draw(open_test_stream(), 1, -1)
    assert draw(open_test_stream(), most, 0).shape == (0,)
    assert draw(open_test_stream(), 3, 2).dtype == np.int64


def test_tiny_parameters_give_zeros() -> None:
    assert not discrete_gaussian(open_test_stream(), Fraction(1, 10**9), 1000).any()
    assert not discrete_laplace(open_test_stream(), Fraction(1, 10**9), 1000).any()


def test_staircase_widths_satisfy_loop_limits() -> None:
    for bits in range(0, 101):
        for variance in (2**bits, Fraction(2**bits * 2 + 1, 3)):
            ratio = variance / gaussian_staircase(Fraction(variance)).width ** 2
            assert ratio < 2**14
            assert ratio >= 2**12 or variance < 2**14
    for bits in range(0, 51):
        ratio = 2**bits / laplace_staircase(Fraction(2**bits)).width
        assert ratio < 32
        assert ratio >= 16 or bits < 5
    assert noise.WORD_BITS == 64
