"""Strategies on an integer lattice: what is measured is K·marginal + integer noise, K an integer matrix.

The scale of K is free (noise is measured in the same units), so an optimal real strategy B becomes K ≈ 2^bits · B. The
rows of K must stay centred *exactly*, else a residual measurement would see other residuals: in every axis the entries
at index 1 … n−1 are rounded and the entry at 0 is minus their sum; or, where the queries span less than the centred
space, K is a whole combination of integer rows that span the same. Sensitivity and covariance are those of K itself.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from dpscale.errors import PlanError
from dpscale.plans.allocation import GAUSSIAN, LAPLACE

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

KINDS = ("center", "identity", "matrix", "full")
LARGEST_ENTRY = 1 << 60
TOTAL_BITS = 75
LARGEST_BITS = 25
TRIES = 8
TRIED_CELLS = 200
BASIS_BITS = 36
SPAN_TOLERANCE = 1e-7
LOST = 1e-3  # of a query: no rounding error, but another span


@dataclass(frozen=True, eq=False)
class Factor:
    """An integer strategy on one axis, or on several axes at once when `shape` has several sizes.

    kind: "center", K = n I − 11ᵀ; "identity", K = I; "matrix", K given with linearly independent rows, each centred
    exactly along every axis of `shape`; "full", K given with linearly independent columns, for measurements of a
    marginal itself.
    """

    kind: str
    shape: tuple[int, ...]
    matrix: Integers | None = None

    def __post_init__(self) -> None:
        """Sensitivities are read off the matrix, and what is applied goes by the kind: so the two must agree."""
        if self.kind not in KINDS or (self.matrix is None) != (self.kind in ("center", "identity")):
            raise ValueError("a factor whose kind and matrix do not agree")
        if self.matrix is not None and not (
            self.matrix.dtype == np.int64
            and self.matrix.ndim == 2
            and self.matrix.shape[1] == math.prod(self.shape)
            and int(self.matrix.min(initial=0)) > -LARGEST_ENTRY
            and int(self.matrix.max(initial=0)) < LARGEST_ENTRY
        ):
            raise ValueError("a factor whose matrix is not of int64, of its cells, or too large")

    @property
    def cells(self) -> int:
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        return self.cells if self.matrix is None else len(self.matrix)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the strategy, in hexadecimal."""
        content = b"" if self.matrix is None else np.ascontiguousarray(self.matrix).tobytes()
        return hashlib.sha256(f"{self.kind}{self.shape}".encode() + content).hexdigest()

    @property
    def spans_all(self) -> bool:
        """Whether the strategy tells of the whole centred space."""
        return self.kind != "matrix" or self.rows == math.prod(n - 1 for n in self.shape)

    @property
    def commutes(self) -> bool:
        """Whether its estimates of a cell's mean and of its centred part are independent."""
        return self.kind != "full"

    @cached_property
    def sensitivity(self) -> int:
        """Largest squared L2 norm of a column of K, exactly."""
        if self.matrix is None:
            return 1 if self.kind == "identity" else self.cells * (self.cells - 1)
        if self.largest < 1 << 31:
            return _largest_column_sum(self.matrix**2)
        return max(sum(int(value) ** 2 for value in column) for column in self.matrix.T)

    @cached_property
    def reach_of_cell(self) -> int:
        """Largest L1 norm of a column of K, exactly: how far one record moves the measured numbers in all."""
        if self.matrix is None:
            return 1 if self.kind == "identity" else 2 * (self.cells - 1)
        return _largest_column_sum(np.abs(self.matrix))

    def squared_reach(self, noise: str) -> int:
        """Δ²: how far one record moves the measured numbers, squared, in the norm that the noise goes by."""
        return self.reach_of_cell**2 if noise == LAPLACE else self.sensitivity

    @cached_property
    def largest(self) -> int:
        """Largest absolute entry of K."""
        if self.matrix is not None:
            return int(np.abs(self.matrix).max())
        return 1 if self.kind == "identity" else self.cells - 1

    @cached_property
    def reach(self) -> int:
        """Largest sum of absolute entries in a row of K: how far it can enlarge a number."""
        if self.matrix is not None:
            return int(np.abs(self.matrix).sum(axis=1).max())
        return 1 if self.kind == "identity" else 2 * (self.cells - 1)

    @cached_property
    def inverse(self) -> Array:
        """K⁺, (cells, rows): measurement to residual, or to marginal where K is full."""
        n = self.cells
        if self.matrix is None:
            return (np.eye(n) - 1 / n) * (1.0 if self.kind == "identity" else 1 / n)
        if self.kind == "full":
            orthogonal, triangle = np.linalg.qr(self.matrix.astype(np.float64))
            return np.asarray(np.linalg.solve(triangle, orthogonal.T))
        orthogonal, triangle = np.linalg.qr(self.matrix.T.astype(np.float64))
        return np.asarray(np.linalg.solve(triangle, orthogonal.T).T)

    @cached_property
    def covariance(self) -> Array:
        """(KᵀK)⁺, (cells, cells): covariance of the estimated residual (marginal, if full) at unit noise variance."""
        if self.matrix is None:
            return (np.eye(self.cells) - 1 / self.cells) * (1.0 if self.kind == "identity" else self.cells**-2.0)
        return np.asarray(self.inverse @ self.inverse.T)

    def spans(self, pieces: Array, tolerance: float = SPAN_TOLERANCE) -> bool:
        """Whether pieces of queries, (m, cells), lie in the span of the rows."""
        if self.spans_all or self.matrix is None:
            return True
        back = (pieces @ self.inverse) @ self.matrix.astype(np.float64)
        return bool(np.abs(back - pieces).max() <= tolerance * max(np.abs(pieces).max(), 1e-300))

    def explicit(self) -> Integers:
        """K as a matrix of shape (rows, cells)."""
        if self.matrix is not None:
            return self.matrix
        eye = np.eye(self.cells, dtype=np.int64)
        return eye if self.kind == "identity" else self.cells * eye - 1


def _largest_column_sum(values: Integers) -> int:
    """Of integers ≥ 0, exactly: halves of 32 bits, for a sum could overflow 64."""
    high, low = (values >> 32).sum(axis=0), (values & 0xFFFFFFFF).sum(axis=0)
    return max(int(h) * 2**32 + int(rest) for h, rest in zip(high, low, strict=True))


@lru_cache(maxsize=4096)
def center_factor(size: int) -> Factor:
    """The marginal's own residual strategy: exact, nothing rounded."""
    return Factor("center", (size,))


@lru_cache(maxsize=4096)
def identity_factor(size: int) -> Factor:
    """Every cell once: for measurements of a marginal itself."""
    return Factor("identity", (size,))


def worth(factor: Factor, rows: Array, noise: str = GAUSSIAN) -> float:
    """The error coefficient tr(G (KᵀK)⁺) Δ² of a strategy for a Gram given by its rows; inf where K has lost rank."""
    try:
        return float(((rows @ factor.inverse) ** 2).sum()) * factor.squared_reach(noise)
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
        whole = np.rint(scaled).astype(np.int64).reshape(-1, *shape)
        for axis in range(1, whole.ndim):
            rest = whole.take(range(1, whole.shape[axis]), axis)
            whole = np.concatenate([-rest.sum(axis=axis, keepdims=True), rest], axis=axis)
        return Factor("matrix", shape, whole.reshape(len(scaled), -1))

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
    whole = np.rint(np.ldexp(root, bits)).astype(np.int64)
    return Factor("full", shape, np.ascontiguousarray(whole[np.abs(whole).max(axis=1) > 0]))


def bits_for(matrices: int) -> int:
    """Bits for each of so many rounded factors of one strategy: finer alone, so that the product stays in range."""
    return min(LARGEST_BITS, TOTAL_BITS // max(matrices, 1))
