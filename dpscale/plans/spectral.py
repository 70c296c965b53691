"""Strategy of range queries on a wide axis: K = T D with T symmetric, of known eigenvectors, and D diagonal.

The Gram matrix G of all ranges of n cells has the sines as eigenvectors, that of all arcs of a circle has the Fourier
basis. T is G^¼ in integers, so TᵀT = G^½, the optimum at equal weights of the cells; D makes the norms of the columns
nearly equal. This is the normalised square root of `plans.toeplitz` with a symmetric root. For ranges its error is
about 10⁻⁴ above the optimum, for arcs it is the optimum.

With integers t, t_k = t_(−k), of period N,
    circle: N = n,          T_ij = t_(i−j);
    line:   N = 2 (n + 1),  T_ij = t_(i−j) − t_(i+j+2),
so T is a cyclic convolution with the cells, on the line with their odd continuation. It is exact on integers. The
Fourier transform of t has the eigenvalues of T; that of r has their −2nd powers, so

    (KᵀK)⁻¹ = D⁻¹ (r_(i−j) − r_(i+j+2)) D⁻¹.

With a the cyclic autocorrelation of t, column j of T has the squared norm a_0 − a_(2j+2), on the circle a_0. The trace
for a Gram matrix G_ij = α_i β_j, i ≤ j, is a sum over i − j and i + j of products of α/d and β/d: a correlation, and
sums over pairs i < j with a given i + j, by halves of ever shorter runs of cells.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats, Integers, NDArray
from dpscale.plans.factor import ImplicitFactor
from dpscale.plans.toeplitz import COEFFICIENT_BITS, LARGEST_MULTIPLIER, MULTIPLIER_BITS, exact_convolution
from dpscale.workload import Family
from dpscale.workload.node_grams import generators

MOST_PAIRS = 1 << 30  # of cells, of which covariances are computed for errors of listed intervals


@dataclass(frozen=True, eq=False)
class SpectralFactor(ImplicitFactor):
    """Strategy of the kind "spectral".

    Attributes
    ----------
    coefficients : ndarray of int64, shape (N // 2 + 1,)
        t_k ≥ 0 for k = 0 … N/2, not increasing.
    multipliers : ndarray of int64, shape (n,)
        The diagonal of D, each at least 1.
    circle : bool
        Whether the cells are on a circle.
    """

    coefficients: Integers = None  # type: ignore[assignment]
    multipliers: Integers = None  # type: ignore[assignment]
    circle: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError unless the integers are those of a root and of multipliers, one for each cell."""
        known, own = self.coefficients, self.multipliers
        if self.kind != "spectral" or len(self.shape) != 1 or known.dtype != np.int64 or own.dtype != np.int64:
            raise ValueError("a spectral strategy has integers for one axis")
        if known.shape != (self.period // 2 + 1,) or int(known[-1]) < 0 or (np.diff(known) > 0).any():
            raise ValueError("the coefficients of a spectral strategy increase, or are not those of its axis")
        if float(known.astype(np.float64) @ known) * 2 >= 1 << 62:
            raise ValueError("the coefficients of a spectral strategy are too large")
        if own.shape != self.shape or int(own.min()) < 1 or int(own.max()) >= LARGEST_MULTIPLIER:
            raise ValueError("the multipliers of a spectral strategy are not in their limits, one for each cell")
        if self.circle and np.ptp(own):
            raise ValueError("the multipliers of a spectral strategy on a circle differ")

    @property
    def period(self) -> int:
        """N."""
        return self.cells if self.circle else 2 * self.cells + 2

    @property
    def rows(self) -> int:
        return self.cells

    @cached_property
    def digest(self) -> str:
        content = b"".join(np.ascontiguousarray(own, "<i8").tobytes() for own in (self.coefficients, self.multipliers))
        return hashlib.sha256(f"{self.kind}{self.shape}{self.circle}".encode() + content).hexdigest()

    def _periodic(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a sequence of k = 0 … N/2 over its period."""
        return np.concatenate([values, values[1 : (self.period + 1) // 2][::-1]])

    def _continued(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values of the cells along the last axis over a period: on the line, odd about both ends."""
        if self.circle:
            return values
        zero = np.zeros_like(values[..., :1])
        return np.concatenate([zero, values, zero, -values[..., ::-1]], axis=-1)

    def _cells(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the cells of a period along the last axis."""
        return values if self.circle else values[..., 1 : self.cells + 1]

    def column_norms(self, power: int) -> list[int]:
        """Return the sums of the absolute entries of every column to the power 1 or 2, exact."""
        series = self._periodic(self.coefficients)
        if power == 2:
            folded = _fold(exact_convolution(series, series[None]))[0]
            sums = np.full(self.cells, folded[0])
            if not self.circle:
                sums = sums - folded[(2 * np.arange(self.cells) + 2) % self.period]
        elif self.circle:
            sums = np.full(self.cells, series.sum())
        else:  # no entry is negative, so the column is the sum of 2j + 2 coefficients about 0
            sums = self._windows(series)
        multipliers = self.multipliers.tolist()
        return [int(total) * own**power for total, own in zip(sums.tolist(), multipliers, strict=True)]

    def _windows(self, series: Integers) -> Integers:
        """Return Σ_i t_(i−j) − t_(i+j+2) over the cells i, for every cell j."""
        place, before = np.arange(self.cells), np.concatenate([[0], np.cumsum(np.tile(series, 3))])
        start = self.period - place  # of i − j = −j, a period later
        near = before[start + self.cells] - before[start]
        far = before[place + 2 + self.cells] - before[place + 2]
        return np.asarray(near - far)

    @cached_property
    def squared_l2_sensitivity(self) -> int:
        return max(self.column_norms(2))

    @cached_property
    def l1_sensitivity(self) -> int:
        return max(self.column_norms(1))

    @cached_property
    def largest(self) -> int:
        return int(self.coefficients[0]) * int(self.multipliers.max())

    @cached_property
    def largest_row_sum(self) -> int:
        return int(self._periodic(self.coefficients).sum()) * int(self.multipliers.max())

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return K applied along the leading axis of integers, exact; see `ToeplitzFactor.apply`."""
        columns = self._continued(values.reshape(self.cells, -1).T * self.multipliers)
        found = self._cells(_fold(exact_convolution(self._periodic(self.coefficients), columns)))
        return np.ascontiguousarray(found.T).reshape(values.shape)

    @cached_property
    def _spectrum(self) -> Floats:
        """Eigenvalues of T, by frequency."""
        return np.asarray(np.fft.rfft(self._periodic(self.coefficients).astype(np.float64)).real)

    def _divided(self, values: Floats, power: int) -> Floats:
        """Return T to the power −1 or −2 applied along the last axis."""
        found = np.fft.irfft(np.fft.rfft(self._continued(values)) * self._spectrum**-power, self.period)
        return np.asarray(self._cells(found))

    def estimate(self, values: Floats, axis: int = 0) -> Floats:
        """Return the estimate of the cells along `axis`; the axis is moved to the end."""
        return self._divided(np.moveaxis(values, axis, -1), 1) / self.multipliers

    def apply_covariance(self, values: Floats) -> Floats:
        """Return the covariance applied along the second axis; the axis is moved to the end."""
        return self._divided(np.moveaxis(values, 1, -1) / self.multipliers, 2) / self.multipliers

    @cached_property
    def _kernel(self) -> Floats:
        """The sequence r over a period."""
        return np.asarray(np.fft.irfft(self._spectrum**-2.0, self.period))

    @property
    def _variances(self) -> Floats:
        """Variances of the cells."""
        far = 0.0 if self.circle else self._kernel[(2 * np.arange(self.cells) + 2) % self.period]
        return np.asarray((self._kernel[0] - far) / self.multipliers**2.0)

    @property
    def mean_variance(self) -> float:
        return float(self._variances.mean())

    def trace(self, family: Family) -> float:
        scales, lags = 1 / self.multipliers, np.arange(self.cells)
        if family.is_identity:
            return float(self._variances.sum())
        if family.tridiagonal(self.cells) is None:
            return self._invariant_trace(family)

        left, right = (values * scales for values in generators(family, self.cells))
        length = 1 << (2 * self.cells - 1).bit_length()
        apart = np.fft.irfft(np.fft.rfft(left, length).conj() * np.fft.rfft(right, length), length)[: self.cells]
        total = 2 * float(apart[1:] @ self._kernel[lags[1:] % self.period])
        if not self.circle:
            sums = ordered_products(left, right)
            total -= 2 * float(sums @ self._kernel[(np.arange(len(sums)) + 2) % self.period])
        return total + float((left / scales) @ (right / scales * self._variances))

    def _invariant_trace(self, family: Family) -> float:
        """Return the trace for a family that a rotation of the circle leaves unchanged."""
        if not (self.circle and family.invariant and family.has_intervals):
            raise PlanError("workload", f"family {family.name} on the root of other queries of {self.cells} cells",
                            "marginal, prefix or range queries", "use weighted-residuals")  # fmt: skip
        first = family.times_gram(np.eye(1, self.cells)[0])
        return float(self.cells * (first @ self._kernel) / self.multipliers[0] ** 2.0)

    def quadratics(self, family: Family) -> Floats:
        if family.is_identity:
            return self._variances
        if not family.has_intervals:
            queries = family.matrix(self.cells)
            return np.asarray((queries * self.apply_covariance(queries)).sum(axis=1))

        low, high = family.intervals(self.cells)
        of_sums = self._sum_variances
        variances = (
            of_sums[low] + of_sums[high] - 2 * self._sum_covariances(np.minimum(low, high), np.maximum(low, high))
        )
        around = high <= low
        if around.any():  # the total with the sums up to both ends
            of_total = np.pad(np.cumsum(self.apply_covariance(np.ones((1, self.cells)))[0]), (1, 0))
            variances[around] += of_sums[-1] + 2 * (of_total[high[around]] - of_total[low[around]])
        return np.asarray(variances)

    @cached_property
    def _sum_variances(self) -> Floats:
        """Variance of the sum of the first i cells, i = 0 … n: a cell adds its own and twice those before."""
        length, scales = 1 << (2 * self.cells - 1).bit_length(), 1 / self.multipliers
        kernel = np.concatenate([[0.0], self._kernel[1 : self.cells]])
        before = np.fft.irfft(np.fft.rfft(scales, length) * np.fft.rfft(kernel, length), length)[: self.cells]
        if not self.circle:
            before = before - ordered_sums(scales, self._kernel[(np.arange(2 * self.cells) + 2) % self.period])
        return np.pad(np.cumsum(self._variances + 2 * scales * before), (1, 0))

    def _sum_covariances(self, first: Integers, last: Integers) -> Floats:
        """Return the covariance of the sums of the first `first` and of the first `last` ≥ `first` cells.

        Raises PlanError if the cells are too many for the covariance of each with all others, one after the other.
        """
        found, steps = np.zeros(len(first)), int(first.max())
        if steps * self.cells > MOST_PAIRS:
            raise PlanError("workload", f"errors of {len(first)} intervals of {self.cells} cells",
                            f"at most {math.isqrt(MOST_PAIRS)} cells, or prefix queries",
                            "coarsen the attribute")  # fmt: skip

        order = None if (np.diff(first) >= 0).all() else np.argsort(first, kind="stable")
        ends = np.searchsorted(first if order is None else first[order], np.arange(1, steps + 2))
        cells, running, scales = np.arange(self.cells), np.zeros(self.cells), 1 / self.multipliers
        for cell in range(steps):
            column = self._kernel[np.abs(cells - cell)]
            if not self.circle:
                column = column - self._kernel[(cells + cell + 2) % self.period]
            running += column * (scales[cell] * scales)
            sums = np.cumsum(running)
            some = slice(ends[cell], ends[cell + 1]) if order is None else order[ends[cell] : ends[cell + 1]]
            found[some] = sums[last[some] - 1]
        return found

    def sums_covariance(self, ends: Integers) -> Floats:
        cells = np.arange(self.cells)
        sums = ((cells >= ends[:-1, None]) & (cells < ends[1:, None])).astype(np.float64)
        return np.asarray(self.apply_covariance(sums) @ sums.T)


def _fold(values: NDArray[Any]) -> NDArray[Any]:
    """Return a convolution of two sequences over a period, shape (…, 2N), as the cyclic one, shape (…, N)."""
    period = values.shape[-1] // 2
    return values[..., :period] + values[..., period:]


def ordered_products(left: Floats, right: Floats) -> Floats:
    """Return Σ left_i right_j over the pairs i < j with i + j = s, for every s.

    A run of cells is halved, and the pairs with i in its first and j in its second half are a convolution.

    Parameters
    ----------
    left, right : ndarray, shape (n,)

    Returns
    -------
    ndarray, shape (m,)
        With m at least 2n.
    """
    size = 1 << max(len(left) - 1, 1).bit_length()
    left, right = (np.pad(values, (0, size - len(values))) for values in (left, right))
    total, width = np.zeros(2 * size), 1
    while width < size:
        first, second = left.reshape(-1, 2 * width)[:, :width], right.reshape(-1, 2 * width)[:, width:]
        products = np.fft.irfft(np.fft.rfft(first, 2 * width) * np.fft.rfft(second, 2 * width), 2 * width)
        total.reshape(-1, 4 * width)[:, width : 3 * width] += products
        width *= 2
    return total


def ordered_sums(values: Floats, kernel: Floats) -> Floats:
    """Return Σ values_j kernel_(i+j) over the cells j < i, for every cell i; see `ordered_products`.

    Parameters
    ----------
    values : ndarray, shape (n,)
    kernel : ndarray, shape (2n,)
    """
    count, size = len(values), 1 << max(len(values) - 1, 1).bit_length()
    values, kernel = np.pad(values, (0, size - count)), np.pad(kernel, (0, 2 * size - len(kernel)))
    total, width = np.zeros(size), 1
    while width < size:
        spectrum = np.fft.rfft(values.reshape(-1, 2 * width)[:, :width], 2 * width).conj()
        windows = np.fft.rfft(kernel.reshape(-1, 4 * width)[:, width : 3 * width])
        total.reshape(-1, 2 * width)[:, width:] += np.fft.irfft(spectrum * windows, 2 * width)[:, :width]
        width *= 2
    return total[:count]


def spectral_factor(family: Family, size: int) -> SpectralFactor:
    """Return the normalised root of the ranges of an axis, or of the arcs of a circle.

    Parameters
    ----------
    family : Family
        Range or circular queries.
    size : int
        Number of cells.
    """
    circle = family.invariant
    if circle:
        eigenvalues = np.fft.rfft(family.times_gram(np.eye(1, size)[0])).real
    else:
        eigenvalues = 1 / np.sin(np.arange(size + 2) * np.pi / (2 * size + 2) + (np.arange(size + 2) == 0)) ** 2

    period = size if circle else 2 * size + 2
    root = np.fft.irfft(eigenvalues**0.25, period)[: period // 2 + 1]
    root = np.minimum.accumulate(root - (0.0 if circle else root[-1]))
    coefficients = np.rint(np.ldexp(np.maximum(root / root[0], 0.0), COEFFICIENT_BITS)).astype(np.int64)
    plain = SpectralFactor(
        "spectral", (size,), coefficients=coefficients, multipliers=np.ones(size, np.int64), circle=circle
    )
    if circle:
        return plain
    norms = np.sqrt(np.array(plain.column_norms(2), np.float64))
    multipliers = np.floor(np.ldexp(norms.max() / norms, MULTIPLIER_BITS)).astype(np.int64)
    return replace(plain, multipliers=multipliers)
