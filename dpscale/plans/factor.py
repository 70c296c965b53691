"""Integer strategy K on one axis or on several axes at once. A measurement is K·marginal + integer noise.

Sensitivities are exact for K: the largest L1 or squared L2 norm of a column, which bounds the effect of one record on
the measurement. The estimate K⁺·measured has covariance (KᵀK)⁺ at unit noise variance.

*Kinds.* `center` is n I − 11ᵀ and `identity` I; the rows of a `matrix` are centred along every axis, so they measure
residuals; `full` has independent columns and measures the marginal itself. Other kinds have classes of their own. A
*joint* factor is on several axes at once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats, Integers, NDArray, linalg
from dpscale.privacy.draws import LAPLACE
from dpscale.workload import Family
from dpscale.workload.residual import Weights, center, kron, profile_of
from dpscale.workload.wide import LONG

KINDS = ("center", "identity", "matrix", "full", "nested", "tree", "layered", "spectral", "circulant")
WHOLE = ("full", "layered")  # kinds that measure all cells, and the total with them
LIMB = 21  # bits of a limb: three limbs hold an entry
LARGEST_ENTRY = 1 << 60  # limit of the absolute entries of a matrix
SPAN_TOLERANCE = 1e-7  # largest distance of a query from the span of the rows, relative to its largest entry
MOST_EXPLICIT = 10_000  # cells of a matrix of cells × cells


@dataclass(frozen=True, eq=False)
class Factor:
    """Integer strategy on one axis, or on several axes at once if `shape` has several sizes.

    Attributes
    ----------
    kind : str
        "center": K = n I − 11ᵀ. "identity": K = I. "matrix": K has linearly independent rows, each centred exactly
        along every axis of `shape`. "full": K has linearly independent columns, for measurements of a marginal itself.
        "nested", "tree", "layered", "spectral" and "circulant": see the classes of these names.
    shape : tuple of int
    matrix : ndarray of int64, shape (rows, cells), or None
    weights : tuple of Weights or None
        Weights of every axis by which the rows of a "matrix" are centred; None for the plain mean.
    spaces : tuple of tuple of int, or None
        Residual spaces that contain the rows of a joint "matrix", each as the tuple of its axes; None if the rows are
        centred along all axes.

    `weights` and `spaces` affect how a measurement is interpreted, not the measurement itself; no digest contains them.
    """

    kind: str
    shape: tuple[int, ...]
    matrix: Integers | None = None
    weights: tuple[Weights | None, ...] | None = None
    spaces: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless kind and matrix agree.

        The sensitivity is computed from the matrix and the product from the kind.
        """
        if self.kind not in KINDS or (self.matrix is None) != (self.kind in ("center", "identity")):
            raise ValueError("kind and matrix of a factor do not agree")
        # limits of the entries for exact sums of their squares
        if self.matrix is not None and not (
            self.matrix.dtype == np.int64
            and self.matrix.ndim == 2
            and self.matrix.shape[1] == math.prod(self.shape)
            and int(self.matrix.min(initial=0)) > -LARGEST_ENTRY
            and int(self.matrix.max(initial=0)) < LARGEST_ENTRY
        ):
            raise ValueError("the matrix of a factor must be int64 of shape (rows, cells) without too large entries")
        if self.weights is not None and (
            self.kind != "matrix"
            or any(weight and len(weight) != size for weight, size in zip(self.weights, self.shape, strict=True))
        ):
            raise ValueError("the weights of a factor do not match its axes")

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
        dimensions = sum(math.prod(self.shape[axis] - 1 for axis in axes) for axes in spaces)
        return self.kind != "matrix" or self.rows == dimensions

    @property
    def commutes(self) -> bool:
        """Whether the estimates of a cell's mean and of its centred part are independent."""
        return self.kind not in WHOLE and self.spaces is None

    @cached_property
    def squared_l2_sensitivity(self) -> int:
        """Largest squared L2 norm of a column of K, exact.

        A column of the centring n I − 11ᵀ has (n − 1)² + (n − 1) = n (n − 1). The sum of squares of small entries fits
        64 bits in two halves; larger entries are squared by limbs.
        """
        if self.matrix is None:
            return 1 if self.kind == "identity" else self.cells * (self.cells - 1)
        if self.largest < 1 << 31:
            return _largest_column_sum(self.matrix**2)
        return _largest_squared(self.matrix)

    @cached_property
    def l1_sensitivity(self) -> int:
        """Largest L1 norm of a column of K, exact: the L1 effect of one record on the measurement.

        A column of the centring n I − 11ᵀ has the entry n − 1 once and −1 for n − 1 other cells: 2 (n − 1).
        """
        if self.matrix is None:
            return 1 if self.kind == "identity" else 2 * (self.cells - 1)
        return _largest_column_sum(np.abs(self.matrix))

    def squared_sensitivity(self, noise: str) -> int:
        """Return Δ² in the norm of the noise: the squared effect of one record on the measurement."""
        return self.l1_sensitivity**2 if noise == LAPLACE else self.squared_l2_sensitivity

    @cached_property
    def largest(self) -> int:
        """Largest absolute entry of K."""
        if self.matrix is not None:
            return int(np.abs(self.matrix).max())
        return 1 if self.kind == "identity" else self.cells - 1

    @cached_property
    def largest_row_sum(self) -> int:
        """Largest sum of absolute entries in a row of K: the factor by which it can enlarge a number.

        A row of the centring n I − 11ᵀ has the entry n − 1 once and −1 for n − 1 other cells, so its sum is 2 (n − 1).
        """
        if self.matrix is not None:
            return int(np.abs(self.matrix).sum(axis=1).max())
        return 1 if self.kind == "identity" else 2 * (self.cells - 1)

    @cached_property
    def inverse(self) -> Floats:
        """Matrix of shape (cells, rows) that maps measured values y = K x to an estimate of the table x.

        The estimate of a kind "full" is the marginal, K⁺ y; that of other kinds the residual, whose sums along every
        axis are zero. With axis weights u the totals are spread by u before they are subtracted, ⊗(I − u1ᵀ) K⁺, which
        changes no answer to a query centred by u.

        A strategy for several spaces (sets of axes, `spaces`) estimates the sum of their residuals: for each space
        I − u1ᵀ on its axes and u1ᵀ on the others. All 2^axes spaces together are the whole table, so nothing is
        subtracted.
        """
        is_long_axis = len(self.shape) == 1 and self.cells > LONG
        if is_long_axis and self.rows == self.cells - 1 and self.matrix is not None:  # exact, and faster than QR
            return self._centred_inverse(self.matrix)
        inverse = self._pseudo_inverse()
        if (self.weights is None and self.spaces is None) or len(self.spaces or ()) == 2 ** len(self.shape):
            return inverse

        all_axes = tuple(range(len(self.shape)))
        return sum((self._spread(inverse, axes) for axes in self.spaces or [all_axes]), np.zeros(()))

    @cached_property
    def row_basis(self) -> Floats:
        """Orthonormal basis of the row space of K, shape (cells, rank)."""
        return np.asarray(np.linalg.qr(self.explicit().T.astype(np.float64))[0])

    @staticmethod
    def _centred_inverse(matrix: Integers) -> Floats:
        """Return the inverse for a long axis: estimates sum to zero, which adds one row and makes the matrix square.

        The added row is a multiple of 1ᵀ of about the size of the other entries, measured as 0; its column of the
        inverse is dropped.
        """
        square = np.vstack([matrix.astype(np.float64), np.full(matrix.shape[1], float(np.abs(matrix).max()))])
        return np.asarray(np.linalg.inv(square)[:, :-1])

    def _pseudo_inverse(self) -> Floats:
        """Return the matrix of shape (cells, rows) that maps measured values to the estimate, without axis weights.

        Without a matrix, K is the identity ("identity") or n I − 11ᵀ ("center"), and the estimate is centred.

        With QR of K ("full", independent columns) K⁺ = R⁻¹Qᵀ; of Kᵀ ("matrix", independent rows) K⁺ = Q R⁻ᵀ. The
        centring n I − 11ᵀ is n times the projector I − 11ᵀ/n, so its pseudo-inverse is the projector over n.
        """
        n = self.cells
        if self.matrix is None:
            return (np.eye(n) - 1 / n) * (1.0 if self.kind == "identity" else 1 / n)
        if self.kind == "full" and self.rows == n > LONG:
            return _square_inverse(self.matrix.astype(np.float64))
        if self.kind == "full":
            orthogonal, triangle = np.linalg.qr(self.matrix.astype(np.float64))
            return np.asarray(np.linalg.solve(triangle, orthogonal.T))

        orthogonal, triangle = np.linalg.qr(self.matrix.T.astype(np.float64))
        return np.asarray(np.linalg.solve(triangle, orthogonal.T).T)

    @cached_property
    def covariance(self) -> Floats:
        """(KᵀK)⁺, shape (cells, cells): covariance of the estimated residual or marginal at unit noise variance."""
        if self.matrix is None:
            return (np.eye(self.cells) - 1 / self.cells) * (1.0 if self.kind == "identity" else self.cells**-2.0)
        return np.asarray(self.inverse @ self.inverse.T)

    @property
    def is_product(self) -> bool:
        """Whether `apply` is a product with a matrix, which takes rows × cells multiplications."""
        return self.kind not in ("center", "identity")

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return K applied along the leading axis.

        K is the strategy matrix. "identity" measures the cells; "center" has the rows n·x_i − Σx for n cells.
        """
        if self.kind == "identity":
            return np.array(values)
        if self.kind == "center":
            return np.asarray(values * self.cells - values.sum(axis=0, keepdims=True))
        return np.tensordot(self.explicit(), values, axes=(1, 0))

    def estimate(self, values: Floats, axis: int = 0) -> Floats:
        """Return K⁺ applied along `axis`; the axis is moved to the end."""
        if self.kind == "center":
            return np.moveaxis(center(values, (axis,)) / self.cells, axis, -1)
        return np.tensordot(values, self.inverse, axes=(axis, 1))

    def joint_estimate(self, values: Floats) -> Floats:
        """Return K⁺ applied along the leading axis, which has the rows of a joint strategy."""
        return np.asarray(self.inverse @ values)

    def apply_covariance(self, values: Floats) -> Floats:
        """Return the covariance applied along the second axis; the axis is moved to the end."""
        if self._flat is None:
            return np.tensordot(values, self.covariance, axes=(1, 0))
        return self._flat * np.moveaxis(values - values.mean(axis=1, keepdims=True), 1, -1)

    def quadratics(self, family: Family) -> Floats:
        """Return qᵀ (KᵀK)⁺ q of every query q of a one-way family.

        For the covariance f (I − 11ᵀ/n) and an indicator q of c cells, qᵀq = c and (1ᵀq)² = c², hence f (c − c²/n).
        Families on long axes without a matrix are intervals or single cells, whose sums are `counts`.
        """
        if self._flat is None:
            return family.quadratic(self.covariance)
        counts = family.means(self.cells) * self.cells
        return np.asarray(self._flat * (counts - counts**2 / self.cells))

    def trace(self, family: Family) -> float:
        """Return the sum of qᵀ (KᵀK)⁺ q over the queries of a one-way family.

        The sum of qᵀSq over the queries is tr(GS) with their Gram matrix G; for S = f (I − 11ᵀ/n) it is f (tr G −
        1ᵀG1/n).
        """
        if self._flat is None:
            return float((family.gram(self.cells) * self.covariance).sum())
        sums = family.times_gram(np.ones(self.cells)).sum()
        return self._flat * float(family.trace(self.cells) - sums / self.cells)

    def array_quadratics(self, queries: Floats) -> Floats:
        """Return qᵀ (KᵀK)⁺ q of queries on all cells of the axes, shape (m, …)."""
        of_rows = queries.reshape(len(queries), -1) @ self.inverse  # qᵀK⁺, whose squared length is the form
        return np.asarray((of_rows**2).sum(axis=1))

    def product_quadratics(self, families: Sequence[Family]) -> Floats:
        """Return qᵀ (KᵀK)⁺ q of every product query q, one axis for the queries of each one-way family."""
        return joint_quadratic(families, self.covariance, self.shape)

    def product_trace(self, families: Sequence[Family]) -> float:
        """Return the sum of qᵀ (KᵀK)⁺ q over all product queries q."""
        grams = [family.gram(size) for family, size in zip(families, self.shape, strict=True)]
        return float((kron(grams) * self.covariance).sum())

    @property
    def mean_variance(self) -> float:
        """Mean of the diagonal of the covariance."""
        return float(np.diag(self.covariance).mean()) if self._flat is None else self._flat * (1 - 1 / self.cells)

    @property
    def is_long(self) -> bool:
        """Whether the axes have too many cells for an explicit covariance of shape (cells, cells)."""
        return self._flat is not None

    def sums_covariance(self, ends: Integers) -> Floats:
        """Return the covariance of sums between neighbouring ends, for a long axis.

        Sums over disjoint runs of w_i cells have the covariance f (w_i [i = j] − w_i w_j/n), from f (I − 11ᵀ/n).
        """
        widths = np.diff(ends)
        return (self._flat or 0.0) * (np.diag(widths) - np.outer(widths, widths) / self.cells)

    @property
    def _flat(self) -> float | None:
        """Multiple of I − 11ᵀ/n that is the covariance, if the axis is long and K has no matrix; else None."""
        if self.matrix is not None or self.cells <= LONG:
            return None
        return 1.0 if self.kind == "identity" else self.cells**-2.0

    def _spread(self, values: Floats, axes: tuple[int, ...]) -> Floats:
        """Return ⊗(I − u1ᵀ) over `axes` and ⊗ u1ᵀ over the other axes, applied to arrays of shape (cells, …).

        u are the weights of an axis, of sum 1 (`profile`), by which the total along it is spread over the cells.
        """
        cells = values.reshape(*self.shape, -1)
        for axis, (weight, size) in enumerate(zip(self.weights or [None] * len(self.shape), self.shape, strict=True)):
            profile = profile_of(weight, size).reshape([-1 if i == axis else 1 for i in range(cells.ndim)])
            total = profile * cells.sum(axis=axis, keepdims=True)
            cells = cells - total if axis in axes else total
        return np.asarray(cells.reshape(values.shape))

    def spans(self, pieces: Floats, tolerance: float = SPAN_TOLERANCE) -> bool:
        """Return whether pieces of queries, shape (m, cells), lie in the span of the rows.

        For a joint strategy of several spaces: sums of pieces on its spaces, each constant along the axes outside the
        space.
        """
        if self.spans_all:
            return True
        back = self.project(pieces)
        return bool(np.abs(back - pieces).max() <= tolerance * max(np.abs(pieces).max(), 1e-300))

    def project(self, pieces: Floats) -> Floats:
        """Return the projection K⁺K of pieces, centred along the axes, on the span of the rows, shape (…, cells).

        Factors without a matrix, the identity and the centring, span every centred piece.
        """
        if self.spans_all or self.matrix is None:
            return pieces
        return np.asarray((pieces @ self.inverse) @ self.matrix.astype(np.float64))

    def explicit(self) -> Integers:
        """Return K as a matrix of shape (rows, cells)."""
        if self.matrix is not None:
            return self.matrix
        eye = np.eye(self.cells, dtype=np.int64)
        return eye if self.kind == "identity" else self.cells * eye - 1


class ImplicitFactor(Factor):
    """Strategy whose `apply` and `estimate` need no matrix; its matrices are computed for axes of few cells only."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields alone, without cached arrays."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    @property
    def is_product(self) -> bool:
        return False

    @property
    def is_long(self) -> bool:
        return True

    def explicit(self) -> Integers:
        """Return K as a matrix, shape (rows, cells)."""
        self.check_matrix()
        return np.asarray(self.apply(np.eye(self.cells, dtype=np.int64)))

    def check_matrix(self) -> None:
        """Raise PlanError if a matrix of cells × cells is too large."""
        if self.cells > MOST_EXPLICIT:
            raise PlanError("strategy", f"{self.cells} cells, as a matrix", f"at most {MOST_EXPLICIT} cells",
                            "use least-squares estimates, or coarsen the attributes")  # fmt: skip

    @cached_property
    def inverse(self) -> Floats:
        """K⁺ as a matrix, shape (cells, rows)."""
        self.check_matrix()
        return self.estimate(np.eye(self.rows)).T

    @cached_property
    def covariance(self) -> Floats:
        """Covariance of the estimated cells as a matrix, shape (cells, cells)."""
        return np.asarray(self.inverse @ self.inverse.T)


def joint_quadratic(families: Sequence[Family], covariance: Floats, shape: tuple[int, ...]) -> Floats:
    """Return the diagonal of W S Wᵀ for a product W and a covariance S on all cells of `shape`."""
    form = covariance.reshape(*shape, *shape)
    for axis, (family, size) in enumerate(zip(families, shape, strict=True)):
        # axes: finished queries, remaining rows of S, remaining columns of S; the first remaining pair becomes queries
        form = np.moveaxis(form, (axis, len(families)), (-2, -1))
        pairs = form.reshape(-1, size, size)
        reduced = family.quadratic((pairs + pairs.swapaxes(1, 2)) / 2)
        form = np.moveaxis(reduced.reshape(*form.shape[:-2], -1), -1, axis)
    return form


def _square_inverse(matrix: Floats) -> Floats:
    """Return the inverse of a square matrix, in a sixth of the time if it is upper triangular."""
    if np.tril(matrix, -1).any():
        return np.asarray(np.linalg.inv(matrix), np.float64)
    inverse, failed = linalg.lapack.dtrtri(matrix)
    if failed:
        raise np.linalg.LinAlgError("the matrix is singular")
    return np.asarray(inverse)


def _largest_squared(matrix: NDArray[np.int64]) -> int:
    """Return the largest squared L2 norm of a column of large entries, exact, by limbs of LIMB bits whose sums fit."""
    limbs = [(np.abs(matrix) >> LIMB * place) & ((1 << LIMB) - 1) for place in range(3)]
    # |x|² = Σ_ij x_i x_j 2^(LIMB (i + j)) for an entry x with the limbs x_i
    sums = []
    for i, low in enumerate(limbs):
        for j, high in enumerate(limbs):
            sums.append((LIMB * (i + j), (low * high).sum(axis=0).tolist()))
    return max(sum(of_columns[column] << shift for shift, of_columns in sums) for column in range(matrix.shape[1]))


def _largest_column_sum(values: Integers) -> int:
    """Return the largest column sum of integers ≥ 0; 32-bit halves are added separately since int64 could overflow.

    A sum of n halves below 2³² fits 64 bits for n < 2³¹ rows; Python integers join the halves without overflow.
    """
    high, low = (values >> 32).sum(axis=0), (values & 0xFFFFFFFF).sum(axis=0)
    return max(int(h) * 2**32 + int(rest) for h, rest in zip(high, low, strict=True))


@lru_cache(maxsize=4096)
def center_factor(size: int) -> Factor:
    """Return the strategy n I − 11ᵀ, the residual of the marginal itself, which needs no rounding."""
    return Factor("center", (size,))


@lru_cache(maxsize=4096)
def identity_factor(size: int) -> Factor:
    """Return the strategy that measures every cell once."""
    return Factor("identity", (size,))


BITS = 12  # of the entries of a cumulative strategy after the binary point
# two cells are measured equally well one by one; beyond 512 a matrix of cells × cells takes long to invert
FEWEST, MOST = 3, 512


@lru_cache(maxsize=1024)
def cumulative_factor(size: int, both_ends: bool = False) -> Factor:
    """Return an integer strategy for cumulative queries, with linearly independent columns of nearly equal norm.

    R is the lower triangular root of the prefix matrix, whose entry k below the diagonal is C(2k, k)/4^k; rounded to
    BITS bits. The last rows are diagonal: they raise the squared norm of each column to nearly that of the largest.

    Parameters
    ----------
    size : int
        Number of cells.
    both_ends : bool
        Whether to add the rows in reverse order, for range queries.
    """
    # 2^BITS · R rounded to integers, shape (size, size)
    # 2^BITS · C(2k, k)/4^k with one more bit, which + 1 and >> 1 round to the nearest integer
    down = np.array([((math.comb(2 * k, k) << BITS + 1 >> 2 * k) + 1) >> 1 for k in range(size)], dtype=np.int64)
    behind = np.subtract.outer(np.arange(size), np.arange(size))
    root = np.where(behind >= 0, down[np.abs(behind)], 0)
    rows = np.vstack([root, root[::-1, ::-1]]) if both_ends else root
    squares = (rows**2).sum(axis=0).tolist()
    alone = np.diag([math.isqrt(max(squares) - square) for square in squares])
    return Factor("full", (size,), np.vstack([rows, alone[alone.any(axis=1)]]).astype(np.int64))
