"""Staircase rejection sampler of the noise, with exact thresholds and exact decisions.

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
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 64  # bits of a word of the stream
HEAD_BITS = 32  # bits of offset and of acceptance in the second of three words
TWO_WORDS_LOG_WIDTH = 46  # logarithm of the largest width for which two words suffice


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
    one, cutoff = 1 << places, 1 << (places - bits - 20)
    ratio, high = exp_bounds(law.energy(law.width), places)
    ratio_error = high - ratio
    step, high = exp_bounds(2 * law.square * law.width**2, places)
    step_error = high - step
    weight, weight_error, total, error = one, 0, one >> (law.log_width == 0), 0

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
    return sums, error, ((weight + weight_error) << places) // (one - ratio - ratio_error) + 1


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
