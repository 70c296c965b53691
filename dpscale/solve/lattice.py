"""Strategies on an integer lattice: what is measured is K·marginal + integer noise, K an integer matrix.

The scale of K is free (noise is measured in the same units), so an optimal real strategy B becomes K ≈ 2^bits · B. The
rows of K must stay centred *exactly*, else a residual measurement would see other residuals: in every axis the entries
at index 1 … n−1 are rounded and the entry at 0 is minus their sum; or, where the queries span less than the centred
space, K is a whole combination of integer rows that span the same. Sensitivity and covariance are those of K itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpscale.errors import PlanError
from dpscale.plans.allocation import GAUSSIAN
from dpscale.plans.factor import Factor

Array = NDArray[np.float64]

TOTAL_BITS = 75
LARGEST_BITS = 25
TRIES = 8
TRIED_CELLS = 200
BASIS_BITS = 36
LOST = 1e-3  # of a query: no rounding error, but another span


def worth(factor: Factor, rows: Array, noise: str = GAUSSIAN) -> float:
    """The error coefficient tr(G (KᵀK)⁺) Δ² of a strategy for a Gram given by its rows; inf where K has lost rank."""
    try:
        return float(((rows @ factor.inverse) ** 2).sum()) * factor.squared_sensitivity(noise)
    except np.linalg.LinAlgError:
        return np.inf


def round_strategy(rows: Array, root: Array, shape: tuple[int, ...], bits: int, basis: Array | None = None) -> Factor:
    """The integer strategy near 2^bits · root that answers the Gram of `rows` best, of a few scales tried.

    With an integer `basis` of the span, K is made of whole multiples of its rows, so that it spans the same space.
    """
    tries = TRIES if root.shape[1] <= TRIED_CELLS else 1
    scales = [np.ldexp(root, bits) * (1 - t / (2 * TRIES)) for t in range(tries)]
    make = _centred(shape) if basis is None else _combined(basis, shape, len(root))
    best = min((make(scaled) for scaled in scales), key=lambda factor: worth(factor, rows))
    if not worth(best, rows) < np.inf:
        size = " × ".join(map(str, shape))
        raise PlanError("workload", f"a strategy on {size} cells that loses rank on the lattice", "", "coarsen it")
    if not best.spans(rows, LOST):
        raise PlanError("workload.weights", "weights so far apart that some of them count for nothing",
                        "weights within twelve orders of magnitude", "give 0 to what should not count")  # fmt: skip
    return best


def _centred(shape: tuple[int, ...]) -> Callable[[Array], Factor]:
    """Rounds a strategy so that its rows are centred exactly along every axis of `shape`."""

    def rounded(scaled: Array) -> Factor:
        integers = np.rint(scaled).astype(np.int64).reshape(-1, *shape)
        for axis in range(1, integers.ndim):
            rest = integers.take(range(1, integers.shape[axis]), axis)
            integers = np.concatenate([-rest.sum(axis=axis, keepdims=True), rest], axis=axis)
        return Factor("matrix", shape, integers.reshape(len(scaled), -1))

    return rounded


def _combined(basis: Array, shape: tuple[int, ...], rank: int) -> Callable[[Array], Factor]:
    """Rounds a strategy to whole combinations of the independent rows of an integer basis."""
    from scipy.linalg import qr

    _, _, order = qr(basis.T, mode="economic", pivoting=True)
    chosen = basis[np.sort(order[:rank])]
    inverse = np.linalg.pinv(chosen)

    def rounded(scaled: Array) -> Factor:
        mixed = np.rint(scaled @ inverse).astype(np.int64)
        return Factor("matrix", shape, mixed @ chosen.astype(np.int64))

    return rounded


def full_factor(root: Array, shape: tuple[int, ...], bits: int) -> Factor:
    """The integer strategy nearest 2^bits · root for measurements of a marginal itself."""
    integers = np.rint(np.ldexp(root, bits)).astype(np.int64)
    return Factor("full", shape, np.ascontiguousarray(integers[np.abs(integers).max(axis=1) > 0]))


def bits_for(matrices: int) -> int:
    """Bits for each of so many rounded factors of one strategy: finer alone, so that the product stays in range."""
    return min(LARGEST_BITS, TOTAL_BITS // max(matrices, 1))
