"""Strategies on an integer lattice: a measurement is K·marginal + integer noise, with K an integer matrix.

The scale of K is arbitrary because noise is in the same units, so an optimal real strategy B becomes K ≈ 2^bits · B.
The rows of K must remain centred *exactly*, otherwise a residual measurement would include other residuals. In every
axis the entries at index 1 … n−1 are rounded and the entry at 0 is minus their sum. If the queries span less than the
centred space, K is an integer combination of integer rows with the same span. For an axis with weights U, K is centred
with respect to U (`residual.reduced`; several axes at once: `residual.weights`, which needs more bits). Sensitivity and
covariance are those of K itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, linalg
from dpscale.plans.blocks import Block
from dpscale.plans.factor import Factor, identity_factor
from dpscale.privacy.draws import BELOW_ONE, GAUSSIAN
from dpscale.workload.residual import Weights, centred, nearest_centred

TOTAL_BITS = 75  # limit for all factors of a strategy together: noise is drawn below 2^99 lattice steps
LARGEST_BITS = 25  # most bits of the scale of a rounded strategy; with them rounding costs a gap of about 1e-7
ENTRY_BITS, WEIGHT_BITS, JOINT_BITS = (
    54,
    14,
    42,
)  # limits for an integer entry, an axis' weights, and the weights of several axes together
TRIES = 8  # scales that rounding compares, from 2^bits down to 9/16 of it
TRIED_CELLS = 200  # most cells for which several scales are compared
BASIS_BITS = 36  # bits of the scale of integer combinations of a basis, without those of axis weights
# most bits of all factors of a product together if combinations have BASIS_BITS: one factor beside two others
MOST_TOGETHER = BASIS_BITS + 2 * LARGEST_BITS
AxisWeights = tuple[Weights | None, ...]
SPAN_TOLERANCE = 1e-3  # larger relative errors of a query are due to a different span, not to rounding


def error_coefficient(factor: Factor, rows: Floats, noise: str = GAUSSIAN) -> float:
    """Return the error coefficient tr(G (KᵀK)⁺) Δ² for the Gram matrix of `rows`; inf if K lost rank by rounding."""
    try:
        return float(((rows @ factor.inverse) ** 2).sum()) * factor.squared_sensitivity(noise)
    except np.linalg.LinAlgError:
        return np.inf


def round_strategy(
    rows: Floats,
    root: Floats,
    shape: tuple[int, ...],
    bits: int,
    basis: Floats | None = None,
    weights: Sequence[Weights | None] | None = None,
) -> Factor:
    """Return the best integer strategy near 2^bits · root for the Gram matrix of `rows`, among several scales.

    Parameters
    ----------
    rows : ndarray, shape (r, cells)
    root : ndarray, shape (rank, cells)
        Optimal real strategy.
    shape : tuple of int
        Sizes of the axes of the cells.
    bits : int
    basis : ndarray, optional
        Integer basis of the span; K then consists of integer combinations of its rows and has the same span.
    weights : sequence of Weights or None, optional
        Weights of the axes with respect to which rows are centred.

    Raises
    ------
    PlanError
        If rounding loses a query or the rank.
    """
    tries = TRIES if root.shape[1] <= TRIED_CELLS else 1
    scales = [np.ldexp(root, bits) * (1 - t / (2 * TRIES)) for t in range(tries)]
    axis_weights = tuple(weights or [None] * len(shape))
    if basis is None:
        rounder = centring_rounder(shape, axis_weights)
    else:
        rounder = _combined(basis, shape, len(root), axis_weights)
    best = min(map(rounder, scales), key=lambda factor: error_coefficient(factor, rows))
    if not error_coefficient(best, rows) < np.inf:
        size = " × ".join(map(str, shape))
        raise PlanError(
            "workload",
            f"a strategy on {size} cells that loses rank when it is rounded",
            "fewer cells",
            "coarsen the attributes",
        )
    if not best.spans(rows, SPAN_TOLERANCE):
        raise PlanError("workload.weights", "weights of such different size that some have no effect",
                        "weights within twelve orders of magnitude", "set the negligible ones to 0")  # fmt: skip
    return best


def centring_rounder(shape: tuple[int, ...], weights: AxisWeights) -> Callable[[Floats], Factor]:
    """Return a function that rounds a strategy to rows centred exactly along every axis of `shape`.

    `named` omits weights that are all None, the plain mean. Entries at the first cell of a plain axis are minus the sum
    of the others.
    """
    named = None if weights == (None,) * len(shape) else weights

    def rounded(scaled: Floats) -> Factor:
        """Return the factor of integer rows near the scaled ones.

        With weights of an axis, rows are centred by them; otherwise the first cell makes the sum of a row 0.
        """
        integers = np.rint(scaled).astype(np.int64).reshape(-1, *shape)
        for axis, weight in enumerate(weights, start=1):
            if weight is not None and len(shape) == 1:
                integers = nearest_centred(integers, weight)
            elif weight is not None:
                integers = np.moveaxis(centred(np.moveaxis(integers, axis, -1), weight), -1, axis)
            else:
                rest = integers.take(range(1, integers.shape[axis]), axis)
                integers = np.concatenate([-rest.sum(axis=axis, keepdims=True), rest], axis=axis)

        return Factor(kind="matrix", shape=shape, matrix=integers.reshape(len(scaled), -1), weights=named)

    return rounded


def _combined(basis: Floats, shape: tuple[int, ...], rank: int, weights: AxisWeights) -> Callable[[Floats], Factor]:
    """Return a function that rounds a strategy to integer combinations of the independent rows of an integer basis.

    Pivoted QR of the transposed basis orders its rows by independence: the first `rank` span the others. With these
    rows R (`chosen`), a strategy B = X R has X = B R⁺, which is rounded; the integer product X R has exactly their
    span.
    """
    _, _, order = linalg.qr(basis.T, mode="economic", pivoting=True)
    chosen = basis[np.sort(order[:rank])]
    inverse = np.linalg.pinv(chosen)
    named = None if weights == (None,) * len(shape) else weights

    def rounded(scaled: Floats) -> Factor:
        mixed = np.rint(scaled @ inverse).astype(np.int64)
        return Factor(kind="matrix", shape=shape, matrix=mixed @ chosen.astype(np.int64), weights=named)

    return rounded


def full_factor(root: Floats, shape: tuple[int, ...], bits: int) -> Factor:
    """Return the integer strategy nearest 2^bits · root for measurements of a marginal itself."""
    integers = np.rint(np.ldexp(root, bits)).astype(np.int64)
    return Factor("full", shape, np.ascontiguousarray(integers[np.abs(integers).max(axis=1) > 0]))


def primitive_factor(basis: Floats, shape: tuple[int, ...], weights: AxisWeights) -> Factor:
    """Return the only strategy in the span of an integer basis of rank 1, without a common divisor of its entries."""
    row = basis[np.abs(basis).max(axis=1).argmax()].astype(np.int64)
    named = None if weights == (None,) * len(shape) else weights
    return Factor(kind="matrix", shape=shape, matrix=(row // np.gcd.reduce(row))[None], weights=named)


def two_cell_factor(weights: Weights) -> Factor:
    """Return the only centred row on two cells, (U₁, −U₀), which needs no rounding."""
    first, second = (number // math.gcd(*weights) for number in weights)
    return Factor(kind="matrix", shape=(2,), matrix=np.array([[second, -first]], dtype=np.int64), weights=(weights,))


class FactorBits(NamedTuple):
    """Bits to which the factors of a product are rounded.

    Attributes
    ----------
    entries : int
        Of entries, before weighted centring adds those of the weights.
    combined : int
        Of integer combinations of a basis.
    """

    entries: int
    combined: int

    @property
    def is_short(self) -> bool:
        """Whether combinations have fewer bits than in a product of few factors."""
        return self.combined < BASIS_BITS


def factor_bits(rounded: int, combined: int, wider: int) -> FactorBits:
    """Return the bits of the factors of a product, whose entries multiply.

    Combinations of a basis have BASIS_BITS, unless all factors together then have more than MOST_TOGETHER: noise of so
    many lattice steps could not be drawn. They then have the bits of the others.

    Parameters
    ----------
    rounded : int
        Number of factors that are rounded.
    combined : int
        Number of those that are integer combinations of a basis.
    wider : int
        Bits that weighted centring adds to a factor.
    """
    entries = bits_for(rounded, wider)
    together = BASIS_BITS * combined + entries * (rounded - combined)
    return FactorBits(entries, BASIS_BITS if together <= MOST_TOGETHER else entries)


def bits_for(matrices: int, wider: int = 0) -> int:
    """Return the bits per rounded factor of a product of `matrices` factors; the total number is bounded.

    `wider` is the number of bits that weighted centring adds to each factor.

    TOTAL_BITS are divided among the factors, whose entries multiply; entries must fit ENTRY_BITS with the added bits.
    """
    return min(LARGEST_BITS, TOTAL_BITS // max(matrices, 1), ENTRY_BITS - wider)


def weight_bits(weights: AxisWeights) -> int:
    """Return the bits that weighted centring along several axes adds to every entry; along one axis it is 0."""
    return sum(sum(weight).bit_length() - 1 for weight in weights if weight is not None) if len(weights) > 1 else 0


def bits_of_weights(size: int, axes: int) -> int:
    """Return the bits of the weights of an axis of `size` cells; the resulting relative error is below 10^-7.

    Errors of u count squared. Strategies centred along many axes at once, up to `axes`, use fewer bits per axis because
    the bits add up in every entry.
    """
    return min(max(WEIGHT_BITS, size.bit_length() + 9), JOINT_BITS // axes if axes > 1 else LARGEST_BITS)


SAME = 1e-12  # largest difference of entries from those of an identity or a total
# relative to the largest singular value: the least of full rank; the identity added below it
LEAST_RANK, ADDED = 1e-6, 2.0**-14
# largest product of the ratios of singular values of more than FEW_FACTORS attributes: cells that no query tells apart
# have a small weight, and their noise cancels in answers, but in floating point only if the ratios are moderate
MOST_CONDITION, FEW_FACTORS = 1e13, 5
MANY_CELLS = 256  # cells from which a Cholesky factorisation is tried before the singular values


def product_block(names: AttributeSet, matrices: Sequence[Floats], share: float, noise: str) -> Block:
    """Return the block of a product of one matrix per attribute; an attribute that is only summed is omitted.

    Matrices are rounded to integers, with the bits that `bits_for` gives for the number of matrices other than the
    identity. `share` is lowered by BELOW_ONE, so that the sum of all shares does not exceed 1 by rounding.
    """
    measured = [(name, matrix) for name, matrix in zip(names, matrices, strict=True) if not _is_total(matrix)]
    number = sum(not _is_identity(matrix) for _, matrix in measured)
    most = MOST_CONDITION ** (1 / number) if number > FEW_FACTORS else 1 / LEAST_RANK
    factors = tuple(rounded(matrix, bits_for(number), most) for _, matrix in measured)
    return Block(
        attributes=tuple(name for name, _ in measured),
        factors=factors,
        share=share * BELOW_ONE,
        whole=True,
        noise=noise,
    )


def joint_block(names: AttributeSet, shape: tuple[int, ...], matrix: Floats, noise: str) -> Block:
    """Return the block of one matrix on all cells of several attributes, with the whole budget.

    The block measures the marginal whole, so the matrix must have full rank on all cells.
    """
    return Block(
        attributes=names,
        factors=(full_factor(_of_full_rank(matrix), shape, LARGEST_BITS),),
        share=BELOW_ONE,
        whole=True,
        noise=noise,
    )


def rounded(matrix: Floats, bits: int, most: float = 1 / LEAST_RANK) -> Factor:
    """Return a strategy of sensitivity 1 as an integer factor; exact if it is the identity.

    `most` is the largest ratio of singular values.
    """
    size = matrix.shape[1]
    return identity_factor(size) if _is_identity(matrix) else full_factor(_of_full_rank(matrix, most), (size,), bits)


def _of_full_rank(matrix: Floats, most: float = 1 / LEAST_RANK) -> Floats:
    """Return the strategy, with a small multiple of the identity added if some cells are hardly estimable.

    Rank is judged by the ratio of the largest to the least singular value, `most`. The added rows are the identity
    times 2⁻¹⁴ of the largest singular value, so they hardly change the sensitivity; or a larger multiple, so that the
    ratio is at most `most`.
    """
    if most >= 1 / LEAST_RANK and _is_surely_regular(matrix):
        return matrix
    values = np.linalg.svd(matrix, compute_uv=False)
    if len(values) == matrix.shape[1] and values[-1] > values[0] / most:
        return matrix
    return np.concatenate([matrix, max(ADDED, 1 / most) * values[0] * np.eye(matrix.shape[1])])


def _is_surely_regular(matrix: Floats) -> bool:
    """Return whether the condition number of a large matrix is small: faster than its singular values.

    LAPACK's `dpotrf` factors AᵀA and `dpocon` estimates the reciprocal of its condition number in the L1 norm; for a
    symmetric matrix that number is at least the one in L2. Singular values of A are the roots of the eigenvalues of
    AᵀA, so the limit is LEAST_RANK², here stricter by the factor n.
    """
    n = matrix.shape[1]
    if len(matrix) < n or n < MANY_CELLS:
        return False
    gram = matrix.T @ matrix
    triangle, failed = linalg.lapack.dpotrf(gram)
    reciprocal, _ = linalg.lapack.dpocon(triangle, float(np.abs(gram).sum(axis=0).max()))
    return not failed and bool(reciprocal > LEAST_RANK**2 * n)


def _is_identity(matrix: Floats) -> bool:
    return matrix.shape[0] == matrix.shape[1] and bool(
        np.abs(matrix - matrix[0, 0] * np.eye(len(matrix))).max() <= SAME
    )


def _is_total(matrix: Floats) -> bool:
    return len(matrix) == 1 and matrix.shape[1] > 1 and float(np.ptp(matrix)) <= SAME
