"""Arithmetic on integers beyond 64 bits: an integer strategy applied to counts, plus wide noise, rounded once.

K is the integer strategy of a block, a product of factors: one for each axis, which maps the cells of the axis to rows.
A number is a little-endian row of limbs, Σ limb_k 2^(bits k): all in 0 … 2^bits − 1 except the last, which has the
sign. A factor is applied to each limb with float64 matrix products, which are exact here: operands are integers, and
limbs are narrow enough that no sum of absolute products in a row exceeds 2^53, regardless of the order in which BLAS
adds. A matrix whose entries are too large for that is itself split into digits. Between two products all numbers are
int64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numba import uint64

from dpscale.base.compilation import compiled
from dpscale.base.numerics import Floats, Integers, Integers32, NDArray
from dpscale.plans.circulant import CirculantFactor
from dpscale.plans.factor import Factor
from dpscale.plans.layered import LayeredFactor
from dpscale.plans.nested import NestedFactor
from dpscale.plans.spectral import SpectralFactor
from dpscale.plans.tree import TreeFactor

Term = Callable[[Floats], Floats]

EXACT, WORDS = 1 << 53, 1 << 62  # of sums of absolute products in float64 and in int64
WIDTHS = range(30, 11, -1)  # bits of a limb that are tried; of equally good ones, the widest is used
ON_WORDS = (
    TreeFactor,
    LayeredFactor,
    SpectralFactor,
    CirculantFactor,
)  # applied to whole limbs as int64, without digits
CHUNK = 1 << 16  # entries of a chunk of columns, which fit in the cache
ONE_THREAD = 1 << 18  # most multiplications of a product that OpenBLAS computes on one thread
FEW_COLUMNS = 24  # a chunk with fewer columns is not made smaller to stay on one thread

ONE, WORD = np.uint64(1), np.uint64(64)  # 1 and the bits of a word, of the type of the words that they shift


def limb_product(factors: Sequence[Factor], counts: Integers, bound: int | None = None) -> tuple[Integers32, int]:
    """Return K · counts as limbs, int32 of shape (limbs, rows of K), and the bits of a limb.

    A factor is applied to the leading axis and its rows become the last axis; after all factors the axes are in order
    again. `bound` is at least the sum of absolute counts, below 2^62 (default: this sum). Each factor multiplies it by
    its largest entry, and the number of limbs grows with it.
    """
    bound = int(np.abs(counts).sum()) if bound is None else bound
    bits = limb_bits(factors, bound)
    shifts = np.arange(limb_count(bound, bits))[:, None] * bits
    parts = counts.reshape(-1) >> shifts
    parts[:-1] &= (1 << bits) - 1  # the last limb has the sign
    limbs = parts.astype(np.int32)
    for factor in factors:
        bound *= factor.largest
        limbs = _applied(factor, limbs, bits, limb_count(bound, bits))
    return limbs, bits


def limb_count(bound: int, bits: int) -> int:
    """Return the number of limbs for absolute values <= bound; the last limb, with the sign, is in −2^bits … 2^bits."""
    return max(1, -(-bound.bit_length() // bits))


def limb_bits(factors: Sequence[Factor], total: int) -> int:
    """Return the width of a limb, in bits, with the fewest matrix products for numbers of absolute sum `total`."""

    def products(bits: int) -> float:
        """Return the number of products of a digit with a limb for limbs of `bits` bits, over all factors."""
        bound, number = total, 0.0
        for factor in factors:
            number += digit_count(factor, bits) * limb_count(bound, bits)
            bound *= factor.largest
        return number

    return min(WIDTHS, key=products)


def has_width(factors: Sequence[Factor]) -> bool:
    """Return whether the product can be computed in limbs of some width."""
    return any(all(digit_count(factor, bits) < math.inf for factor in factors) for bits in WIDTHS)


def digit_count(factor: Factor, bits: int) -> float:
    """Return the number of digits of a factor for limbs of `bits` bits: 1 without a split, inf if no split suffices.

    A factor of ON_WORDS is not split. A product is exact if the largest absolute row sum of the factor times 2^bits is
    at most EXACT, the range of integers in float64. Digits are at most 2^(bits − 1) in absolute value, so the sum of
    `cells` of them must fit as well.
    """
    if isinstance(factor, ON_WORDS):
        return 1 if factor.largest_row_sum << bits <= WORDS else math.inf
    if factor.largest_row_sum << bits <= EXACT:
        return 1
    if factor.cells * ((1 << (bits - 1)) + 1) << bits > EXACT:
        return math.inf
    return -(-(factor.largest.bit_length() + 1) // bits)


def digits(matrix: Integers, bits: int, number: int) -> list[Floats]:
    """Return `number` digits of a matrix K, with K = Σ digit_i 2^(bits i); the last one is what remains.

    The others are balanced: remainders modulo 2^bits in −2^(bits − 1) … 2^(bits − 1) − 1.
    """
    half, parts = 1 << (bits - 1), []
    for _ in range(number - 1):
        parts.append((matrix + half & (2 * half - 1)) - half)
        matrix = (matrix - parts[-1]) >> bits
    return [part.astype(np.float64) for part in (*parts, matrix)]


def _terms(factor: Factor, bits: int) -> list[Term]:
    """Return functions from limbs (cells, rest) to (rest, rows); the result of the i-th is in units of 2^(bits i)."""
    if factor.kind == "identity":
        return [lambda part: part.T]
    if factor.kind == "center":
        return [lambda part: (part * factor.cells - part.sum(axis=0)).T]
    if isinstance(factor, ON_WORDS):
        assert digit_count(factor, bits) == 1
        return [lambda part: factor.apply(part.astype(np.int64)).T]
    number = int(digit_count(factor, bits))
    if isinstance(factor, NestedFactor):
        levels = zip(*(digits(part.explicit(), bits, number) for part in factor.parts), strict=True)
        return [lambda part, digit=digit: factor.apply(part, digit).T for digit in levels]  # type: ignore[misc]
    parts = digits(factor.explicit(), bits, number)
    return [lambda part, digit=digit: part.T @ digit.T for digit in parts]  # type: ignore[misc]


def _applied(factor: Factor, limbs: Integers32, bits: int, number: int) -> Integers32:
    """Return the factor applied to the leading axis of limbs (n, cells · rest), in chunks of columns.

    `number` is the number of limbs that the results need.
    """
    terms, columns = _terms(factor, bits), limbs.reshape(len(limbs), factor.cells, -1)
    rest = columns.shape[2]
    out = np.empty((max(number, len(limbs) + len(terms) - 1), rest, factor.rows), dtype=np.int32)
    step = _chunk_columns(factor)
    for start in range(0, rest, step):
        _apply_chunk(terms, columns[:, :, start : start + step], bits, out[:, start : start + step])
    return out.reshape(len(out), -1)


def _chunk_columns(factor: Factor) -> int:
    """Return the number of columns per chunk that fit into cache and, if possible, keep OpenBLAS on one thread.

    Tasks already use all cores; additional BLAS threads make a block ten times slower.
    """
    columns = max(1, CHUNK // max(factor.cells, factor.rows))
    alone = ONE_THREAD // (factor.cells * factor.rows)
    return min(columns, alone) if alone >= FEW_COLUMNS else columns


def _apply_chunk(terms: list[Term], columns: Integers32, bits: int, out: Integers32) -> None:
    """Compute the product of a factor and numbers, both as digits of `bits` bits, into `out`, (limbs, columns, rows).

    `terms` are the functions of the factor's digits, and `columns` the limbs of the numbers, (limbs, cells, columns).
    Limb k of the product is the sum over i of `terms[i]` applied to limb k − i of the numbers, plus the carry from
    limb k − 1. The last limb keeps its carry and with it the sign.
    """
    parts = [limb.astype(np.float64) for limb in columns]
    carry = np.zeros(out.shape[1:], dtype=np.int64)
    for place in range(len(out)):
        for index, term in enumerate(terms):
            if 0 <= place - index < len(parts):
                carry += term(parts[place - index]).astype(np.int64)
        out[place] = carry & ((1 << bits) - 1) if place < len(out) - 1 else carry
        carry >>= bits


@compiled("float64(uint64, uint64)", inline="always")
def nearest_float(high: np.uint64, low: np.uint64) -> float:
    """Return the float64 nearest to a two's complement number of 128 bits above −2^127; ties go to even.

    The leading 64 bits, with a sticky last bit for the remainder, are rounded by the hardware conversion.
    """
    negative = high >> (WORD - ONE)
    if negative:  # the absolute value: invert and add 1
        low = ~low + ONE
        high = ~high + uint64(low == uint64(0))

    scale = 1.0
    if high:  # move the leading 64 bits into `low`; `length` is the number of bits of `high`
        length, step = uint64(0), uint64(32)
        while step:
            if high >> (length + step):
                length += step
            step >>= ONE
        length += ONE
        rest = low << (WORD - length)
        low = high << (WORD - length) | low >> length | uint64(rest != uint64(0))
        scale = float(ONE << length)
    value = np.float64(low) * scale
    return -value if negative else value


@compiled("void(int32[:, ::1], uint64, int64[::1], uint64[::1], float64[::1])")
def noisy_floats(limbs: Integers32, bits: np.uint64, high: Integers, low: NDArray[np.uint64], out: Floats) -> None:
    """Compute out = limbs + (high 2^64 + low), exact to 128 bits and rounded once; both summands are below 2^126."""
    last = len(limbs) - 1
    for cell in range(len(out)):
        # the number of the limbs, in two's complement of 128 bits: the last limb, with its sign, shifted to its place
        top = np.int64(limbs[last, cell])
        y_low, y_high = uint64(top), uint64(top >> 63)
        for place in range(last - 1, -1, -1):
            y_high = y_high << bits | y_low >> (WORD - bits)
            y_low = y_low << bits | uint64(limbs[place, cell])
        y_low += low[cell]
        y_high += uint64(high[cell]) + uint64(y_low < low[cell])  # with the carry of the lower words
        out[cell] = nearest_float(y_high, y_low)
