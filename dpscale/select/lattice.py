"""Strategies on an integer lattice: what is measured is K·marginal + integer noise, K an integer matrix.

The scale of K is free (noise is measured in the same units), so an optimal real strategy B becomes K ≈ 2^bits · B. The
rows of K must stay centred *exactly*, else a residual measurement would see other residuals: in every axis the entries
at index 1 … n−1 are rounded and the entry at 0 is minus their sum. Sensitivity and covariance are those of K itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpscale.errors import PlanError

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

TOTAL_BITS = 38
LARGEST_BITS = 25
TRIES = 8
TRIED_CELLS = 200


@dataclass(frozen=True, eq=False)
class Factor:
    """An integer strategy on one axis, or on several axes at once when `shape` has several sizes.

    kind: "center", K = n I − 11ᵀ; "identity", K = I; "matrix", K given, with rows centred along every axis of `shape`.
    """

    kind: str
    shape: tuple[int, ...]
    matrix: Integers | None = None

    @property
    def cells(self) -> int:
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        return self.cells if self.matrix is None else len(self.matrix)

    @cached_property
    def sensitivity(self) -> int:
        """Largest squared L2 norm of a column of K, exactly."""
        if self.kind == "identity":
            return 1
        if self.kind == "center":
            return self.cells * (self.cells - 1)
        norms = np.diagonal(self._gram)
        near = np.flatnonzero(norms >= norms.max() * (1 - 1e-9))  # floats choose the candidates, integers decide
        return max(sum(int(v) ** 2 for v in np.asarray(self.matrix)[:, column]) for column in near)

    @cached_property
    def largest(self) -> int:
        """Largest absolute entry of K."""
        if self.matrix is not None:
            return int(np.abs(self.matrix).max())
        return 1 if self.kind == "identity" else self.cells - 1

    @cached_property
    def covariance(self) -> Array:
        """(KᵀK)⁺ on the centred space: the covariance of the estimated residual at unit noise variance."""
        n = self.cells
        if self.matrix is None:
            scale = 1.0 if self.kind == "identity" else float(n) ** -2
            return (np.eye(n) - 1 / n) * scale
        values, vectors = np.linalg.eigh(self._gram)
        kept = vectors[:, n - self.rank :] / np.sqrt(values[n - self.rank :])
        return np.asarray(kept @ kept.T)

    @cached_property
    def inverse(self) -> Array:
        """K⁺ restricted to the centred space, (cells, rows): measurement to residual."""
        n = self.cells
        if self.matrix is None:
            return (np.eye(n) - 1 / n) * (1.0 if self.kind == "identity" else 1 / n)
        return np.asarray(self.covariance @ self.matrix.T.astype(np.float64))

    def explicit(self) -> Integers:
        """K as a matrix of shape (rows, cells)."""
        if self.matrix is not None:
            return self.matrix
        eye = np.eye(self.cells, dtype=np.int64)
        return eye if self.kind == "identity" else self.cells * eye - 1

    @cached_property
    def _gram(self) -> Array:
        real = np.asarray(self.matrix, dtype=np.float64)
        return np.asarray(real.T @ real)

    @property
    def rank(self) -> int:
        """Dimension of the centred space."""
        return math.prod(n - 1 for n in self.shape)


def center_factor(size: int) -> Factor:
    """The marginal's own residual strategy: exact, nothing rounded."""
    return Factor("center", (size,))


def round_strategy(gram: Array, root: Array, shape: tuple[int, ...], bits: int) -> Factor:
    """The integer strategy near 2^bits · root that answers the Gram best, of a few scales tried."""
    tries = TRIES if len(gram) <= TRIED_CELLS else 1
    candidates = [_rounded(np.ldexp(root, bits) * (1 - t / (2 * TRIES)), shape) for t in range(tries)]
    best = min(candidates, key=lambda factor: worth(factor, gram))
    if not worth(best, gram) < np.inf:
        size = " × ".join(map(str, shape))
        raise PlanError("workload", f"a strategy on {size} cells that loses rank on the lattice", "", "coarsen it")
    return best


def worth(factor: Factor, gram: Array) -> float:
    """The error coefficient tr(G (KᵀK)⁺) Δ² of a strategy; inf where it has lost rank."""
    real = factor.explicit().astype(np.float64)
    if factor.kind == "matrix" and np.linalg.matrix_rank(real) < factor.rank:
        return np.inf
    return float((gram * factor.covariance).sum()) * factor.sensitivity


def _rounded(scaled: Array, shape: tuple[int, ...]) -> Factor:
    """Integers nearest to a strategy, its rows centred exactly along every axis of `shape`."""
    whole = np.rint(scaled).astype(np.int64).reshape(-1, *shape)
    for axis in range(1, whole.ndim):
        rest = whole.take(range(1, whole.shape[axis]), axis)
        whole = np.concatenate([-rest.sum(axis=axis, keepdims=True), rest], axis=axis)
    return Factor("matrix", shape, whole.reshape(len(scaled), -1))


def bits_for(matrices: int) -> int:
    """Bits for each of so many rounded factors of one strategy: finer alone, so that the product stays in range."""
    return min(LARGEST_BITS, TOTAL_BITS // max(matrices, 1))
