"""Factor: an integer strategy K on one axis or on several at once; what is measured is K·marginal + integer noise.

Sensitivities are those of K itself, exactly: the largest L1 or squared L2 norm of a column, which is how far one record
moves what is measured. The estimate K⁺·measured has covariance (KᵀK)⁺ at unit noise variance.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import comb, isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats, Integers
from dpscale.privacy.draws import LAPLACE
from dpscale.workload import Family
from dpscale.workload.residual import Weights, center, profile_of
from dpscale.workload.wide import LONG

KINDS = ("center", "identity", "matrix", "full", "nested")
LIMB = 21
LARGEST_ENTRY = 1 << 60
SPAN_TOLERANCE = 1e-7


@dataclass(frozen=True, eq=False)
class Factor:
    """An integer strategy on one axis, or on several axes at once when `shape` has several sizes.

    kind: "center", K = n I − 11ᵀ; "identity", K = I; "matrix", K given with linearly independent rows, each centred
    exactly along every axis of `shape`; "full", K given with linearly independent columns, for measurements of a
    marginal itself.
    `weights`: those of every axis by which the rows of a "matrix" are centred; None for the plain mean.
    `spaces`: the residual spaces that the rows of a joint "matrix" lie in, each by the axes that it keeps; None where
    they are centred along all. Both are no part of what is measured, only of how it is read, and of no digest.
    """

    kind: str
    shape: tuple[int, ...]
    matrix: Integers | None = None
    weights: tuple[Weights | None, ...] | None = None
    spaces: tuple[tuple[int, ...], ...] | None = None

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
        if self.weights is not None and (
            self.kind != "matrix" or [len(own) for own in self.weights if own] != self._weighted_sizes
        ):
            raise ValueError("a factor whose weights are not those of its axes")

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
        """Whether the rows span the whole centred space, or all spaces of a joint strategy."""
        spaces = self.spaces if self.spaces is not None else ((*range(len(self.shape)),),)
        dimensions = sum(math.prod(self.shape[axis] - 1 for axis in kept) for kept in spaces)
        return self.kind != "matrix" or self.rows == dimensions

    @property
    def commutes(self) -> bool:
        """Whether its estimates of a cell's mean and of its centred part are independent."""
        return self.kind != "full" and self.spaces is None

    @cached_property
    def squared_l2_sensitivity(self) -> int:
        """Largest squared L2 norm of a column of K, exactly."""
        if self.matrix is None:
            return 1 if self.kind == "identity" else self.cells * (self.cells - 1)
        if self.largest < 1 << 31:
            return _largest_column_sum(self.matrix**2)
        return _largest_squared(self.matrix)

    @cached_property
    def l1_sensitivity(self) -> int:
        """Largest L1 norm of a column of K, exactly: how far one record moves the measured numbers in all."""
        if self.matrix is None:
            return 1 if self.kind == "identity" else 2 * (self.cells - 1)
        return _largest_column_sum(np.abs(self.matrix))

    def squared_sensitivity(self, noise: str) -> int:
        """Δ²: how far one record moves the measured numbers, squared, in the norm that the noise goes by."""
        return self.l1_sensitivity**2 if noise == LAPLACE else self.squared_l2_sensitivity

    @cached_property
    def largest(self) -> int:
        """Largest absolute entry of K."""
        if self.matrix is not None:
            return int(np.abs(self.matrix).max())
        return 1 if self.kind == "identity" else self.cells - 1

    @cached_property
    def largest_row_sum(self) -> int:
        """Largest sum of absolute entries in a row of K: how far it can enlarge a number."""
        if self.matrix is not None:
            return int(np.abs(self.matrix).sum(axis=1).max())
        return 1 if self.kind == "identity" else 2 * (self.cells - 1)

    @cached_property
    def inverse(self) -> Floats:
        """K⁺, (cells, rows): measurement to residual, or to marginal where K is full.

        Where axes have weights it is ⊗(I − u1ᵀ) K⁺: what is left of a table when its totals are spread by u sums to
        zero along every axis, and answers queries centred by u as K⁺ does. For several spaces it is the sum over them,
        with u1ᵀ for the axes that a space does not keep.
        """
        if len(self.shape) == 1 and self.cells > LONG and self.rows == self.cells - 1 and self.matrix is not None:
            return self._centred_inverse(self.matrix)
        inverse = self._pseudo_inverse()
        if (self.weights is None and self.spaces is None) or len(self.spaces or ()) == 1 << len(self.shape):
            return inverse
        return sum((self._spread(inverse, kept) for kept in self.spaces or [(*range(len(self.shape)),)]), np.zeros(()))

    @staticmethod
    def _centred_inverse(matrix: Integers) -> Floats:
        """Of a long axis: what is told sums to zero, which is one more row of a square matrix."""
        square = np.vstack([matrix.astype(np.float64), np.full(matrix.shape[1], float(np.abs(matrix).max()))])
        return np.asarray(np.linalg.inv(square)[:, :-1])

    def _pseudo_inverse(self) -> Floats:
        n = self.cells
        if self.matrix is None:
            return (np.eye(n) - 1 / n) * (1.0 if self.kind == "identity" else 1 / n)
        if self.kind == "full":
            orthogonal, triangle = np.linalg.qr(self.matrix.astype(np.float64))
            return np.asarray(np.linalg.solve(triangle, orthogonal.T))
        orthogonal, triangle = np.linalg.qr(self.matrix.T.astype(np.float64))
        return np.asarray(np.linalg.solve(triangle, orthogonal.T).T)

    @cached_property
    def covariance(self) -> Floats:
        """(KᵀK)⁺, (cells, cells): covariance of the estimated residual (marginal, if full) at unit noise variance."""
        if self.matrix is None:
            return (np.eye(self.cells) - 1 / self.cells) * (1.0 if self.kind == "identity" else self.cells**-2.0)
        return np.asarray(self.inverse @ self.inverse.T)

    def applied(self, values: NDArray[Any]) -> NDArray[Any]:
        """K along the leading axis."""
        return np.tensordot(self.explicit(), values, axes=(1, 0))

    def estimated(self, values: Floats, axis: int = 0) -> Floats:
        """K⁺ along an axis, which goes to the end."""
        if self.kind == "center":
            return np.moveaxis(center(values, (axis,)) / self.cells, axis, -1)
        return np.tensordot(values, self.inverse, axes=(axis, 1))

    def varied(self, values: Floats) -> Floats:
        """The covariance along the axis after the leading one, which goes to the end."""
        if self._flat is None:
            return np.tensordot(values, self.covariance, axes=(1, 0))
        return self._flat * np.moveaxis(values - values.mean(axis=1, keepdims=True), 1, -1)

    def quadratics(self, family: Family) -> Floats:
        """qᵀ (KᵀK)⁺ q of every query of a one-way family."""
        if self._flat is None:
            return family.quadratic(self.covariance)
        counts = family.means(self.cells) * self.cells
        return np.asarray(self._flat * (counts - counts**2 / self.cells))

    def trace(self, family: Family) -> float:
        """Their sum."""
        if self._flat is None:
            return float((family.gram(self.cells) * self.covariance).sum())
        return float(self.quadratics(family).sum())

    @property
    def mean_variance(self) -> float:
        """The mean of the covariance's diagonal."""
        return float(np.diag(self.covariance).mean()) if self._flat is None else self._flat * (1 - 1 / self.cells)

    @property
    def is_long(self) -> bool:
        """Whether its covariance is not to be made as a matrix of cells × cells."""
        return self._flat is not None

    def sums_covariance(self, ends: Integers) -> Floats:
        """The covariance of sums between neighbouring ends, of a long axis."""
        widths = np.diff(ends)
        return (self._flat or 0.0) * (np.diag(widths) - np.outer(widths, widths) / self.cells)

    @property
    def _flat(self) -> float | None:
        """Where the axis is wide and K is of the cells alone: the covariance is this much of I − 11ᵀ/n."""
        if self.matrix is not None or self.cells <= LONG:
            return None
        return 1.0 if self.kind == "identity" else self.cells**-2.0

    @property
    def _weighted_sizes(self) -> list[int]:
        return [size for size, own in zip(self.shape, self.weights or (), strict=True) if own]

    def _spread(self, values: Floats, axes: tuple[int, ...]) -> Floats:
        """⊗(I − u1ᵀ) over the axes kept, ⊗ u1ᵀ over the others, of arrays of (cells, …)."""
        cells = values.reshape(*self.shape, -1)
        for axis, (own, size) in enumerate(zip(self.weights or [None] * len(self.shape), self.shape, strict=True)):
            profile = profile_of(own, size).reshape([-1 if i == axis else 1 for i in range(cells.ndim)])
            total = profile * cells.sum(axis=axis, keepdims=True)
            cells = cells - total if axis in axes else total
        return np.asarray(cells.reshape(values.shape))

    def spans(self, pieces: Floats, tolerance: float = SPAN_TOLERANCE) -> bool:
        """Whether pieces of queries, (m, cells), lie in the span of the rows.

        Of a joint strategy of several spaces: sums of pieces on its spaces, each constant along the axes outside.
        """
        if self.spans_all or self.matrix is None:
            return True
        back = self.projected(pieces)
        return bool(np.abs(back - pieces).max() <= tolerance * max(np.abs(pieces).max(), 1e-300))

    def projected(self, pieces: Floats) -> Floats:
        """What of pieces, centred along the axes, lies in the span of the rows: (…, cells)."""
        if self.spans_all or self.matrix is None:
            return pieces
        return np.asarray((pieces @ self.inverse) @ self.matrix.astype(np.float64))

    def explicit(self) -> Integers:
        """K as a matrix of shape (rows, cells)."""
        if self.matrix is not None:
            return self.matrix
        eye = np.eye(self.cells, dtype=np.int64)
        return eye if self.kind == "identity" else self.cells * eye - 1


def _largest_squared(matrix: NDArray[np.int64]) -> int:
    """The largest squared L2 norm of a column of large entries, exactly: by limbs of LIMB bits, whose sums fit."""
    limbs = [np.abs(matrix) >> LIMB * place & (1 << LIMB) - 1 for place in range(3)]
    pairs = [(LIMB * (i + j), (a * b).sum(axis=0).tolist()) for i, a in enumerate(limbs) for j, b in enumerate(limbs)]
    return max(sum(own[column] << shift for shift, own in pairs) for column in range(matrix.shape[1]))


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


BITS = 12
FEWEST, MOST = (
    3,
    512,
)  # cells: of two each is told as well alone; beyond these a matrix of cells × cells is long to invert


@lru_cache(maxsize=1024)
def cumulative_factor(size: int, both_ends: bool = False) -> Factor:
    """K with linearly independent columns of nearly one norm; `both_ends`: R from either end, for ranges."""
    root = _root(size)
    rows = np.vstack([root, root[::-1, ::-1]]) if both_ends else root
    squares = (rows**2).sum(axis=0).tolist()
    alone = np.diag([isqrt(max(squares) - square) for square in squares])
    return Factor("full", (size,), np.vstack([rows, alone[alone.any(axis=1)]]).astype(np.int64))


def _root(size: int) -> Integers:
    """2^BITS · R in whole numbers, (size, size)."""
    down = np.array([((comb(2 * k, k) << BITS + 1 >> 2 * k) + 1) >> 1 for k in range(size)], dtype=np.int64)
    behind = np.subtract.outer(np.arange(size), np.arange(size))
    return np.where(behind >= 0, down[np.abs(behind)], 0)
