"""Compiled loops of the noise samplers: they decide candidates in 64-bit integers until one is undecided.

No floating point is used. All mathematical quantities are uint64, because some versions of Numba convert int64 + uint64
to float64; a test inspects the compiled code. This module is separate from `noise` so that Numba is loaded by the first
draw and not by the import. `shuffle` is not a noise sampler: it orders public numbers at random.
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from dpscale.base.compilation import compiled
from dpscale.base.numerics import NDArray

ONE, TWO = np.uint64(1), np.uint64(2)  # as 64-bit words, see above
# bits of half a word; masks of its lower half and of all its bits
HALF_WORD, LOW_HALF, ALL_ONES = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFFFFFFFF)
WORD = np.uint64(64)  # bits of a word
OFFSET_ERROR = np.uint64(4)  # by which x may be short besides `bucket` and `series_error`, in units of 2^-64
# With 32 known bits of the offset, y is short by less than 2^32 and x (slope in y below 1/4) by 2^30 more.
HEAD_BITS, HEAD_UNIT, HEAD_ERROR = np.uint64(32), np.uint64(2**32), np.uint64(2**30 + 4)
SERIES_TERMS = 14  # terms of 1 - exp(-x); the rest is below x^15/15!, less than a unit of 2^-64 for x <= 1/4


@compiled("uint64(uint64, uint64)", inline="always")
def high_product(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return floor(a b / 2^64).

    With halves of 32 bits, a b = a₁b₁ 2⁶⁴ + (a₁b₀ + a₀b₁) 2³² + a₀b₀; no partial sum exceeds 64 bits.
    """
    a0, a1 = a & LOW_HALF, a >> HALF_WORD
    b0, b1 = b & LOW_HALF, b >> HALF_WORD
    middle = a1 * b0 + (a0 * b0 >> HALF_WORD)
    lower = a0 * b1 + (middle & LOW_HALF)
    return a1 * b1 + (middle >> HALF_WORD) + (lower >> HALF_WORD)


@compiled("uint64(uint64)")
def rejection_probability(x: np.uint64) -> np.uint64:
    """Return 1 - exp(-x) in units of 2^-64, within 8 units, for x <= 1/4 in units of 2^-64.

    g(k) = x/k (1 - g(k+1)), from g(15) = 0 to g(1). A step adds an error below 3 units (x/k, the complement and the
    product are each short by less than 1) and shrinks the previous error by a factor of 4 or more; the truncated series
    is below x^15/15! < 1.
    """
    g = uint64(0)
    for k in range(SERIES_TERMS, 0, -1):
        g = high_product(x // uint64(k), ALL_ONES - g)
    return g


@compiled("uint64(uint64, uint64[::1], uint16[::1], uint64)", inline="always")
def find_bucket(
    u: np.uint64, edges: NDArray[np.uint64], guide: NDArray[np.uint16], guide_shift: np.uint64
) -> np.uint64:
    """Return how many edges are <= u.

    The guide stores how many edges are <= all u with the same top bits; the remaining ones are counted.
    """
    bucket = uint64(guide[u >> guide_shift])
    while edges[bucket] <= u:
        bucket += ONE
    return bucket


@compiled("int64(uint64[::1], int64, int64[::1], int64, uint64[::1], uint16[::1], uint64, uint64)")
def draw_unit_steps(
    words: NDArray[np.uint64],
    done: int,
    out: NDArray[np.int64],
    filled: int,
    edges: NDArray[np.uint64],
    guide: NDArray[np.uint16],
    guide_shift: np.uint64,
    slack: np.uint64,
) -> int:
    """Draw with width 1, where each word is a draw and none is rejected. Fills out[filled:] from words[done:].

    Returns the number of words done, which is below len(words) if the word there is undecided.

    The lowest bit of a word is the sign and the others the uniform number u. A u within `slack` above an edge, or
    beyond the last edge, is undecided. With all bits set for a negative sign, (x xor −1) + 1 is −x.
    """
    last = uint64(len(edges) - 1)
    while done < len(words):
        word = words[done]
        u = word >> ONE
        bucket = find_bucket(u, edges, guide, guide_shift)
        if bucket == last or (bucket > uint64(0) and u - edges[bucket - ONE] < slack):
            return done
        negative = np.int64(word & ONE)
        out[filled] = (np.int64(bucket) ^ -negative) + negative
        filled += 1
        done += 1

    return done


@compiled(
    "UniTuple(int64, 2)(uint64[::1], int64, int64[::1], int64, uint64[::1], uint16[::1], uint64, uint64,"
    " uint64, uint64, uint64, uint64, uint64)"
)
def draw_wide_steps(
    words: NDArray[np.uint64],
    done: int,
    out: NDArray[np.int64],
    filled: int,
    edges: NDArray[np.uint64],
    guide: NDArray[np.uint16],
    guide_shift: np.uint64,
    slack: np.uint64,
    log_width: np.uint64,
    base: np.uint64,
    step: np.uint64,
    curve: np.uint64,
    series_error: np.uint64,
) -> tuple[int, int]:
    """Draw with width 2^log_width >= 2; candidate i owns words[2 i] and words[2 i + 1].

    The first word contains bucket and sign, the second offset and acceptance. With y = offset / width, the energy into
    the bucket is x = y (base + step bucket + curve y), all three in units of 2^-64 rounded down. Returns (candidates
    done, values filled); the candidate at `done` is undecided if there is one. Bucket k ends at edges[k], `guide`
    begins the search for it, and a word within `slack` above an edge is undecided. A candidate is rejected if its
    acceptance is below 1 − e^(−x); within `series_error` and the rounding it is undecided.
    """
    last = uint64(len(edges) - 1)
    acceptance_bits = WORD - log_width
    acceptance_unit = ONE << log_width
    candidates = len(words) // 2

    while done < candidates:
        word, second = words[2 * done], words[2 * done + 1]
        u, negative = word >> ONE, word & ONE
        bucket = find_bucket(u, edges, guide, guide_shift)
        if bucket == last or (bucket > uint64(0) and u - edges[bucket - ONE] < slack):
            return done, filled

        offset, v = second >> acceptance_bits, second << log_width
        slope = base + step * bucket
        # x is largest at y = 1, and 1 - exp(-x) <= x: this accepts about 99 of 100 without reading the offset.
        if v < slope + curve + bucket + TWO + series_error:
            y = offset << acceptance_bits
            x = high_product(slope + high_product(curve, y), y)
            reject = rejection_probability(x)
            # possibly rejected; undecided if the interval of 1 − exp(−x) contains the acceptance
            if v < reject + series_error + bucket + OFFSET_ERROR:
                if v + acceptance_unit + series_error > reject:
                    return done, filled
                done += 1
                continue

        done += 1
        # otherwise 0 would have twice its probability
        if negative and (bucket | offset) == uint64(0):
            continue

        sign = np.int64(negative)
        # with all bits set for a negative sign, (x xor −1) + 1 is −x
        out[filled] = (np.int64(bucket << log_width | offset) ^ -sign) + sign
        filled += 1

    return done, filled


@compiled(
    "UniTuple(int64, 2)(uint64[::1], int64, uint64[:, ::1], int64, uint64[::1], uint16[::1], uint64, uint64,"
    " uint64, uint64, uint64, uint64, uint64)"
)
def draw_widest_steps(
    words: NDArray[np.uint64],
    done: int,
    out: NDArray[np.uint64],
    filled: int,
    edges: NDArray[np.uint64],
    guide: NDArray[np.uint16],
    guide_shift: np.uint64,
    slack: np.uint64,
    log_width: np.uint64,
    base: np.uint64,
    step: np.uint64,
    curve: np.uint64,
    series_error: np.uint64,
) -> tuple[int, int]:
    """Draw as `draw_wide_steps` for a width of 2^47 to 2^95: three words per candidate, 128-bit values.

    Only the second word, 32 bits of offset and 32 of acceptance, decides; the third contains the remaining bits of the
    offset, which here only change the value. A value is out[0] 2^64 + out[1] in two's complement. The offset is
    compared as far as its first 32 bits, so the limits have HEAD_ERROR and HEAD_UNIT for the rest. A negative zero is
    rejected.

    A value is bucket · 2^log_width + offset, or its negative; u is the uniform number of the bucket, v the one that
    decides acceptance, y the offset relative to the width, and x the energy of `draw_wide_steps`.
    """
    last = uint64(len(edges) - 1)
    low_bits = log_width - HEAD_BITS
    other_bits = WORD - low_bits
    candidates = len(words) // 3

    while done < candidates:
        word, second, third = words[3 * done], words[3 * done + 1], words[3 * done + 2]
        u, negative = word >> ONE, word & ONE
        bucket = find_bucket(u, edges, guide, guide_shift)
        if bucket == last or (bucket > uint64(0) and u - edges[bucket - ONE] < slack):
            return done, filled

        v = second << HEAD_BITS
        slope = base + step * bucket
        # as in `draw_wide_steps`: most candidates are accepted by this bound of x alone
        if v < slope + curve + bucket + TWO + series_error:
            y = second >> HEAD_BITS << HEAD_BITS
            x = high_product(slope + high_product(curve, y), y)
            reject = rejection_probability(x)
            if v < reject + series_error + bucket + HEAD_ERROR:
                # between both limits: undecided, decided by the caller with more digits
                if v + HEAD_UNIT + series_error > reject:
                    return done, filled
                done += 1
                continue

        done += 1
        # upper bits of the magnitude, which the bits of the third word complete
        head = bucket << HEAD_BITS | second >> HEAD_BITS
        high, low = head >> other_bits, head << low_bits | third >> other_bits
        if negative:
            # otherwise 0 would have twice its probability
            if high | low == uint64(0):
                continue
            # two's complement: invert and add 1, with the carry into the upper word
            low = ~low + ONE
            high = ~high + uint64(low == uint64(0))

        out[0, filled], out[1, filled] = high, low
        filled += 1

    return done, filled


@compiled("void(int64[::1], uint64)")
def shuffle(numbers: NDArray[np.int64], seed: np.uint64) -> None:
    """Put numbers into random order in place (Fisher and Yates), by xorshift64* from a nonzero public seed."""
    state = seed
    for place in range(uint64(len(numbers) - 1), uint64(0), -1):
        state ^= state >> uint64(12)
        state ^= state << uint64(25)
        state ^= state >> uint64(27)
        other = high_product(state * uint64(2685821657736338717), uint64(place) + ONE)
        numbers[uint64(place)], numbers[other] = numbers[other], numbers[uint64(place)]
