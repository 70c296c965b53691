"""Exact and fast integer noise: discrete Gaussian and discrete Laplace samples from a keyed stream.

The distributions are those of Canonne, Kamath, Steinke 2020, "The Discrete Gaussian for Differential Privacy": on the
integers, P(x) proportional to exp(-x^2 / (2 variance)) (definition 1), or to exp(-|x| / scale). The samplers differ
from the paper's but are equally exact: given uniform words, the distance to the distribution is zero, and no float
decides an outcome. A draw is a step of a staircase, located in a table of 64-bit thresholds. The few words (about
2^-52 of them, and 2^-20 at the largest scales of 64-bit values) that are too close to a threshold are decided by exact
arithmetic on longer numbers.

`discrete_gaussian` and `discrete_laplace` return 64-bit values. `wide_gaussian` and `wide_laplace` return 128-bit
values, high 2^64 + low, for strategies so fine that sigma or the scale exceeds 2^50.

Values depend only on the stream and the parameter: a candidate owns a fixed number of words, so neither the block size
nor splitting the draws over several calls changes them. The running time depends slightly on the values.

*Staircase rejection sampler, with exact thresholds and exact decisions.*
A magnitude m >= 0 with P(m) proportional to exp(-energy(m)), energy(m) = linear m + square m^2, is drawn as
m = b w + l: bucket b with probability proportional to exp(-energy(b w)), l uniform on 0 <= l < w, accepted with
probability exp(-(energy(b w + l) - energy(b w))), which is at most 1 because the energy increases. Discrete Gaussian:
linear = 0, square = 1 / (2 variance); discrete Laplace: linear = 1 / scale, square = 0 (Canonne, Kamath, Steinke 2020,
"The Discrete Gaussian for Differential Privacy"; the staircase itself is von Neumann's rejection).

All numbers are integers in fixed point with a proven error bound: `x` represents some real number in [x, x + error]
units of 2^-bits. A uniform number is a prefix of bits and represents all reals with that prefix. If the two intervals
overlap, both are extended until they separate, so no error affects the outcome.

Layout of a candidate's words: the first contains 63 bits of the bucket's uniform number, then the sign. Widths up to
2^46 have their offset in the top bits of a second word, and the lower bits begin the acceptance's uniform number.
Greater widths have 32 bits of each in the second word and the remaining bits of each in a third. Every bit has one use,
so bucket, sign, offset and acceptance are independent and uniform, as the distribution requires: each magnitude is
proposed with the probability of its bucket, over 2 w, with either sign, and is accepted as above. Minus zero, one
proposal, is rejected; this needs the whole offset, since zero in its first 32 bits is not sufficient. A compiled loop
that reads only the second word, and accepts an outcome on which all third words and all continuations agree, therefore
changes no distribution.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpscale.privacy.streams import KeyedStream

WORD_BITS = 64  # bits of a word of the stream
HEAD_BITS = 32  # bits of offset and of acceptance in the second of three words
TWO_WORDS_LOG_WIDTH = 46  # logarithm of the largest width for which two words suffice

MAX_VARIANCE = 2**100  # largest variance of 64-bit values: σ ≤ 2^50
MAX_SCALE = 2**50  # largest Laplace scale of 64-bit values
MAX_WIDE_VARIANCE = 2**200  # largest variance of 128-bit values
MAX_WIDE_SCALE = 2**99  # largest Laplace scale of 128-bit values
BUCKET_BITS = 63  # bits of the first word that choose the bucket; the last bit is the sign
GUIDE_BITS = 12  # leading bits by which the search for a bucket begins
BLOCK_CANDIDATES = 2**14  # candidates read at once; does not change values
SERIES_ERROR = 8  # error of `rejection_probability` in units of 2^-64, proven there


class Words(Protocol):
    """Source of further uniform bits: a `KeyedStream`, or a fixed sequence in a test."""

    def words(self, n: int) -> NDArray[np.uint64]: ...


@dataclass(frozen=True)
class Staircase:
    """Distribution of a magnitude, and the width 2^`log_width` of its buckets."""

    linear: Fraction
    square: Fraction
    log_width: int

    @property
    def width(self) -> int:
        return 1 << self.log_width

    @property
    def share(self) -> int:
        """Number of words per candidate."""
        return 1 if self.log_width == 0 else 2 if self.log_width <= TWO_WORDS_LOG_WIDTH else 3

    def energy(self, magnitude: int) -> Fraction:
        """Return -log of the unnormalised probability of `magnitude`."""
        return self.linear * magnitude + self.square * (magnitude * magnitude)


def exp_bounds(x: Fraction, bits: int) -> tuple[int, int]:
    """Return integers (low, high) with low <= exp(-x) 2^bits <= high, for x >= 0.

    They differ by a few units and are equal only at x = 0.

    exp(−x) is the 2^halvings-th power of exp(−x/2^halvings), whose argument is at most ½: bounds of the series are
    squared `halvings` times. `work` has bits to spare for the errors, which each squaring at most doubles.
    """
    if x == 0:
        return 1 << bits, 1 << bits
    if x >= bits:
        return 0, 1

    halvings = int(x).bit_length() + 1
    work = bits + halvings + 16
    low, high = _series(((x.numerator << work) // x.denominator) >> halvings, work)
    for _ in range(halvings):
        low, high = low * low >> work, (high * high >> work) + 1

    return low >> (work - bits), (high >> (work - bits)) + 1


def _series(y: int, work: int) -> tuple[int, int]:
    """Return bounds of exp(-y') for every y' in [y, y + 1] units, y' <= 1/2, by the alternating series.

    Each term is short by less than 2 units, the truncated rest is less than 2, and the unit of y changes exp by at most
    1.
    """
    total = term = 1 << work
    n = 0
    while term:
        n += 1
        term = (term * y >> work) // n
        total += -term if n & 1 else term
    return total - (2 * n + 4), total + (2 * n + 4)


@dataclass(frozen=True)
class Edges:
    """Cumulative probabilities of the buckets in units of 2^-`bits`.

    The true edge b is in [lower[b], lower[b] + slack). Hence a prefix u with lower[b-1] + slack <= u < lower[b] is
    certainly in bucket b; any other prefix, and one past the last edge, is undecided.
    """

    bits: int
    lower: list[int]
    slack: int

    def locate(self, prefix: int) -> int | None:
        """Return the bucket of the uniform number that begins with `prefix`.

        None if the prefix does not determine it. The end of bucket k is at least lower[k] and below
        lower[k] + `slack`, so a prefix between these two does not decide.
        """
        bucket = bisect_right(self.lower, prefix)
        if bucket == len(self.lower) or (bucket and prefix < self.lower[bucket - 1] + self.slack):
            return None
        return bucket


@lru_cache(maxsize=32)
def bucket_edges(law: Staircase, bits: int) -> Edges:
    """Return the edges of all buckets except a tail of less than 2^-bits.

    At width 1 the weight of bucket 0 is halved, so that a random sign counts zero once. At larger widths "minus zero"
    is rejected instead.

    `sums` are lower bounds of the cumulative weights, `least` and `most` bounds of their total; an edge is a cumulative
    weight over the total, rounded down, and `slack` bounds how far the true edge may be above it.
    """
    sums, error, tail = _bucket_sums(law, bits)
    least, most = sums[-1], sums[-1] + error + tail
    slack = 2 + ((error + most - least) << bits) // least
    return Edges(bits, [(part << bits) // most for part in sums], slack)


def _bucket_sums(law: Staircase, bits: int) -> tuple[list[int], int, int]:
    """Return partial sums of exp(-energy(b w)), an error bound for each, and a bound on the sum of the rest.

    weight(b+1) = weight(b) ratio(b) and ratio(b+1) = ratio(b) step. All factors are at most 1, so a product is short by
    at most the sum of the errors of its factors, plus 1 for rounding down. All numbers are integers in units of
    2^-places. Buckets below 2^-(bits + 20) are left to the bound on the rest. At width 1 the weight of
    bucket 0 is a half, so that a random sign counts zero once.
    """
    places = bits + WORD_BITS
    unit, cutoff = 1 << places, 1 << (places - bits - 20)
    ratio, high = exp_bounds(law.energy(law.width), places)
    ratio_error = high - ratio
    step, high = exp_bounds(2 * law.square * law.width**2, places)
    step_error = high - step
    weight, weight_error, total, error = unit, 0, unit >> (law.log_width == 0), 0

    sums = []
    while weight > cutoff:
        sums.append(total)
        weight = weight * ratio >> places
        weight_error += ratio_error + 1
        ratio = ratio * step >> places
        ratio_error += step_error + 1
        total += weight
        error += weight_error

    # Ratios decrease, so the rest is at most a geometric series from the first omitted weight.
    return sums, error, ((weight + weight_error) << places) // (unit - ratio - ratio_error) + 1


def exact_bucket(law: Staircase, prefix: int, bits: int, more: Words) -> int:
    """Return the bucket of the uniform number with the given prefix of `bits` bits, extended by `more` if needed."""
    while (bucket := bucket_edges(law, bits).locate(prefix)) is None:
        prefix, bits = _extended(prefix, bits, more)
    return bucket


def exact_acceptance(law: Staircase, bucket: int, offset: int, prefix: int, bits: int, more: Words) -> bool:
    """Return whether a uniform number is >= 1 - exp(-x), where x is the energy of `offset` steps into `bucket`.

    The uniform number is in [prefix, prefix + 1) / 2^bits, and exp(−x) in [low, high] / 2^bits. While they do not
    decide, both have more bits.
    """
    start = bucket * law.width
    x = law.energy(start + offset) - law.energy(start)
    while True:
        low, high = exp_bounds(x, bits)
        if prefix >= (1 << bits) - low:
            return True
        if prefix + 1 <= (1 << bits) - high:
            return False
        prefix, bits = _extended(prefix, bits, more)


def _extended(prefix: int, bits: int, more: Words) -> tuple[int, int]:
    return prefix << WORD_BITS | int(more.words(1)[0]), bits + WORD_BITS


def exact_candidate(law: Staircase, words: list[int], more: Words) -> int | None:
    """Return the signed value of a candidate's words, or None if it is rejected.

    Parameters
    ----------
    law : Staircase
    words : list of int
        `law.share` words in the layout of the module docstring.
    more : Words
        Further uniform bits.
    """
    negative = words[0] & 1
    bucket = exact_bucket(law, words[0] >> 1, WORD_BITS - 1, more)
    offset = 0
    if law.log_width:
        offset, prefix, bits = offset_and_acceptance(law, words[1:])
        minus_zero = negative and bucket == 0 and offset == 0
        if minus_zero or not exact_acceptance(law, bucket, offset, prefix, bits, more):
            return None

    magnitude = bucket * law.width + offset
    return -magnitude if negative else magnitude


def offset_and_acceptance(law: Staircase, words: list[int]) -> tuple[int, int, int]:
    """Return the offset, and the prefix of the acceptance's uniform number with its number of bits.

    `words` are a candidate's words without the first.

    A second word alone has the offset in its top bits, and the rest begins the acceptance; with a third word, each of
    both has 32 bits in the second and its other bits in the third.
    """
    if len(words) == 1:
        bits = WORD_BITS - law.log_width
        return *divmod(words[0], 1 << bits), bits
    (offset, prefix), bits = divmod(words[0], 1 << HEAD_BITS), WORD_BITS + HEAD_BITS - law.log_width
    low_offset, low_prefix = divmod(words[1], 1 << bits)
    return offset << (WORD_BITS - bits) | low_offset, prefix << bits | low_prefix, HEAD_BITS + bits


def discrete_gaussian(stream: KeyedStream, variance: int | Fraction, size: int) -> NDArray[np.int64]:
    """Draw `size` samples of N_Z(0, variance): P(x) proportional to exp(-x^2 / (2 variance)).

    The stream is left just after the last word used, so drawing a and then b values equals drawing a + b.

    Parameters
    ----------
    stream : KeyedStream
    variance : int or Fraction
        0 < variance <= 2^100.
    size : int

    Returns
    -------
    ndarray of int64, shape (size,)

    Raises
    ------
    TypeError
        If the variance is not an int or Fraction (a float is not exact).
    ValueError
        If the variance is out of range.

    Guarantee
    ---------
    Protected: the noise of a release: no floating-point operation decides a value.
    Cost: none by itself.
    Neighbours: none by itself.
    Proof: docs/privacy.md, The charge of discrete noise; tests/privacy/test_noise.py.
    """
    return _draw(stream, _gaussian(_exact("variance", variance, MAX_VARIANCE)), size)


def wide_gaussian(
    stream: KeyedStream, variance: int | Fraction, size: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Draw `size` samples of N_Z(0, variance) for 0 < variance <= 2^200, as 128-bit integers in two halves.

    Up to variance 2^100 the values equal those of `discrete_gaussian`. Errors are the same.

    Returns
    -------
    high : ndarray of int64, shape (size,)
    low : ndarray of uint64, shape (size,)
        The value is high 2^64 + low, in two's complement.
    """
    return _halves(_draw(stream, _gaussian(_exact("variance", variance, MAX_WIDE_VARIANCE)), size))


def wide_laplace(stream: KeyedStream, scale: int | Fraction, size: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Draw `size` samples of the discrete Laplace distribution for 0 < scale <= 2^99, in the form of `wide_gaussian`.

    Up to scale 2^50 the values equal those of `discrete_laplace`. Errors are the same.
    """
    return _halves(_draw(stream, _laplace(_exact("scale", scale, MAX_WIDE_SCALE)), size))


def _halves(drawn: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    if drawn.dtype == np.int64:
        return drawn >> 63, drawn.view(np.uint64)
    return drawn[0].view(np.int64), drawn[1]


def discrete_laplace(stream: KeyedStream, scale: int | Fraction, size: int) -> NDArray[np.int64]:
    """Draw `size` samples of the discrete Laplace distribution, shape (size,): P(x) proportional to exp(-|x| / scale).

    Raises the errors of `discrete_gaussian`, for a scale outside 0 < scale <= 2^50.
    """
    return _draw(stream, _laplace(_exact("scale", scale, MAX_SCALE)), size)


def gaussian_staircase(variance: Fraction) -> Staircase:
    """Return a staircase of width 1 for sigma < 128, else of the power of two with 64 <= sigma / width < 128."""
    return Staircase(Fraction(0), 1 / (2 * variance), _half_bits(variance / 2**14))


def laplace_staircase(scale: Fraction) -> Staircase:
    """Return a staircase of width 1 for scale < 32, else of the power of two with 16 <= scale / width < 32."""
    return Staircase(1 / scale, Fraction(0), int(scale / 2**5).bit_length())


def _half_bits(square: Fraction) -> int:
    """Return the least j >= 0 with square < 4^j."""
    return (int(square).bit_length() + 1) // 2


def _exact(name: str, value: int | Fraction, most: int) -> Fraction:
    """Return the value as a fraction; `most` is its largest value. Raises TypeError or ValueError with its name."""
    if isinstance(value, bool) or not isinstance(value, int | Fraction):
        raise TypeError(f"{name}: got {type(value).__name__}; expected an int or a Fraction")
    if not 0 < value <= most:
        raise ValueError(f"{name}: got {value}; expected a number above 0 and at most 2^{most.bit_length() - 1}")
    return Fraction(value)


@dataclass(frozen=True, eq=False)
class StaircaseTable:
    """Staircase in the form used by the compiled loops: uint64, edges in units of 2^-63 with a sentinel at the end."""

    law: Staircase
    edges: NDArray[np.uint64]
    guide: NDArray[np.uint16]
    slack: np.uint64
    base: np.uint64
    step: np.uint64
    curve: np.uint64
    series_error: np.uint64


def tabulate(law: Staircase, bits: int = BUCKET_BITS, series_error: int = SERIES_ERROR) -> StaircaseTable:
    """Return the table of `law`. Fewer `bits` or a larger `series_error` only decide more candidates exactly.

    Edges have the unit 2^−BUCKET_BITS of the uniform word; fewer bits are shifted to it. `guide` has for each of the
    first bits the number of edges at most there. `base`, `step` and `bend` are coefficients of the rejection series in
    units of 2^−64: rounding down is within `series_error`.
    """
    exact, shift = bucket_edges(law, bits), BUCKET_BITS - bits
    edges = np.array([edge << shift for edge in exact.lower] + [1 << BUCKET_BITS], dtype=np.uint64)
    cells = np.arange(2**GUIDE_BITS, dtype=np.uint64) << np.uint64(BUCKET_BITS - GUIDE_BITS)
    guide = np.searchsorted(edges, cells, side="right").astype(np.uint16)
    curve = law.square * law.width**2
    # The series of the loops requires x <= 1/4; the widths above ensure x <= 0.17. Its shifts are below a word.
    assert law.log_width < HEAD_BITS + WORD_BITS
    assert law.log_width == 0 or law.linear * law.width + 2 * curve * len(edges) < Fraction(1, 4)
    parts = (law.linear * law.width, 2 * curve, curve) if law.log_width else (Fraction(0),) * 3
    base, step, bend = (np.uint64(int(part * 2**64)) for part in parts)

    return StaircaseTable(
        law=law,
        edges=edges,
        guide=guide,
        slack=np.uint64(exact.slack << shift),
        base=base,
        step=step,
        curve=bend,
        series_error=np.uint64(series_error),
    )


@lru_cache(maxsize=512)
def _gaussian(variance: Fraction) -> StaircaseTable:
    return tabulate(gaussian_staircase(variance))


@lru_cache(maxsize=512)
def _laplace(scale: Fraction) -> StaircaseTable:
    return tabulate(laplace_staircase(scale))


def _draw(stream: KeyedStream, table: StaircaseTable, size: int, block: int = BLOCK_CANDIDATES) -> NDArray[Any]:
    """Return the values: int64, shape (size,), or uint64 halves, shape (2, size), if a candidate owns three words.

    `table` describes the staircase distribution; a candidate with a share of three words has values beyond 64 bits.
    """
    if size < 0:
        raise ValueError(f"size: got {size}; expected a number of draws >= 0")

    wide = table.law.share == 3
    out: NDArray[Any] = np.empty((2, size), dtype=np.uint64) if wide else np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        # Never read more candidates than missing values, so that the last one read is used.
        filled = _fill(stream, table, min(block, size - filled), out, filled)
    return out


def _fill(stream: KeyedStream, table: StaircaseTable, candidates: int, out: NDArray[Any], filled: int) -> int:
    """Read `candidates` candidates, write their values to out[..., filled:] and return the new `filled`.

    A candidate owns `share` words. The compiled loop stops at a candidate that it cannot decide; that one is decided by
    exact arithmetic, with further words of its own, and may be rejected (None). The words of a candidate that is
    decided exactly continue at its place in the stream. A value of three words is stored as the halves of a 128-bit
    number.
    """
    share = table.law.share
    position = stream.position
    words = stream.words(share * candidates)
    done, filled = _decide(table, words, 0, out, filled)

    while done < candidates:
        candidate = words[share * done : share * (done + 1)].tolist()
        value = exact_candidate(table.law, candidate, stream.continuation(position + share * done))
        if value is not None:
            out[..., filled] = value if share < 3 else divmod(value % 2**128, 2**64)
            filled += 1
        done, filled = _decide(table, words, done + 1, out, filled)

    return filled


def _decide(
    table: StaircaseTable, words: NDArray[np.uint64], done: int, out: NDArray[Any], filled: int
) -> tuple[int, int]:
    """Run the compiled loop from candidate `done` to the end or to the first undecided candidate.

    A width of 1 (`log_width` 0) rejects nothing, so its loop needs no acceptance parameters. `find` locates the step of
    the staircase, `accept` decides within it; `share` is the number of words of a candidate. Returns the next candidate
    and the values filled.
    """
    from dpscale.privacy import sampling_loops

    shift = np.uint64(BUCKET_BITS - GUIDE_BITS)
    find = (table.edges, table.guide, shift, table.slack)
    if table.law.log_width == 0:
        end = sampling_loops.draw_unit_steps(words, done, out, filled, *find)
        return end, filled + end - done

    accept = (np.uint64(table.law.log_width), table.base, table.step, table.curve, table.series_error)
    loop = sampling_loops.draw_wide_steps if table.law.share == 2 else sampling_loops.draw_widest_steps
    return loop(words, done, out, filled, *find, *accept)
