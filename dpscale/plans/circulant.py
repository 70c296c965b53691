"""Strategy of one or several axes that is diagonal in the Fourier basis of the cells: K_ij = t_(i−j) along every axis.

t has integers, is even, t_k = t_(−k), and sums to 0 along every axis, so the rows of K are exactly centred and KKᵀ, KᵀK
and their inverses are cyclic convolutions. With λ the Fourier transform of t, N cells and q̂ that of a query q,

    Δ² = Σ t²,   Δ₁ = Σ |t|,   K⁺ y = F⁻¹ (ŷ/λ),   qᵀ (KᵀK)⁺ q = Σ_f |q̂_f|²/(N λ_f²),

over the frequencies that are 0 on no axis; λ vanishes at the others. Nothing of N × N is built. For a product query
|q̂|² is the product of those of its axes, and for an interval of cells it depends on the length alone.

Products with K are exact: an array over several axes, each but the first padded to twice its length, is a sequence of
which the convolution has all sums of the cells at their own places. Convolutions of integers are computed by the fast
Fourier transform, digit by digit.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import Any

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats, Integers, NDArray
from dpscale.plans.factor import ImplicitFactor
from dpscale.workload import Family
from dpscale.workload.family import in_chunks
from dpscale.workload.node_grams import generators
from dpscale.workload.wide import is_wide

LARGEST_SUM = 1 << 50  # of the absolute entries of a row, so that limbs of 12 bits can be multiplied

FFT_ERROR = 64.0  # bound of the error of a convolution in units of roundoff · log₂ length · both norms


@dataclass(frozen=True, eq=False)
class CirculantFactor(ImplicitFactor):
    """Strategy of the kind "circulant".

    Attributes
    ----------
    kernel : ndarray of int64, shape `shape`
        t.
    """

    kernel: Integers = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Raise ValueError unless the kernel is even, sums to 0 along every axis, and is not too large."""
        kernel = self.kernel
        if self.kind != "circulant" or kernel is None or kernel.dtype != np.int64 or kernel.shape != self.shape:
            raise ValueError("a circulant strategy has an integer for every cell")
        if not 0 < float(np.abs(kernel.astype(np.float64)).sum()) < LARGEST_SUM:
            raise ValueError("the kernel of a circulant strategy is 0 or too large")
        if any(kernel.sum(axis=axis).any() for axis in range(kernel.ndim)) or not np.array_equal(
            kernel, negated(kernel)
        ):
            raise ValueError("the kernel of a circulant strategy is not even, or not centred along every axis")

    @property
    def rows(self) -> int:
        return self.cells

    @cached_property
    def digest(self) -> str:
        content = np.ascontiguousarray(self.kernel, "<i8").tobytes()
        return hashlib.sha256(f"{self.kind}{self.shape}".encode() + content).hexdigest()

    @cached_property
    def squared_l2_sensitivity(self) -> int:
        return sum(value * value for value in self.kernel.reshape(-1).tolist())

    @cached_property
    def l1_sensitivity(self) -> int:
        return int(np.abs(self.kernel).sum())

    @property
    def largest(self) -> int:
        return int(np.abs(self.kernel).max())

    @property
    def largest_row_sum(self) -> int:
        return self.l1_sensitivity

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return K applied along the leading axis of integers, exact; see `exact_convolution`.

        Each axis but the first is padded to twice its length, so that flat indices add without carry from one axis to
        the next. The convolution has the sums at places up to twice the size of every axis; the second half of an axis
        is added to the first, which makes it cyclic.
        """
        columns = values.reshape(self.cells, -1).T.reshape(-1, *self.shape)
        padding = [(0, 0), *((0, size) for size in self.shape[1:])]
        padded_kernel = np.pad(self.kernel, padding).reshape(-1)
        padded = np.pad(columns, [(0, 0), *padding]).reshape(len(columns), -1)
        total = exact_convolution(padded_kernel, padded).reshape(len(columns), *(2 * size for size in self.shape))
        for axis, size in enumerate(self.shape, start=1):
            first, second = np.split(total, [size], axis=axis)
            total = first + second
        return np.ascontiguousarray(total.reshape(len(columns), -1).T).reshape(values.shape)

    def explicit(self) -> Integers:
        """Return K as a matrix, shape (cells, cells)."""
        self.check_matrix()
        axes = np.ix_(*map(np.arange, self.shape * 2))  # of the rows, and then of the columns
        pairs = zip(axes[: len(self.shape)], axes[len(self.shape) :], self.shape, strict=True)
        offsets = tuple((row - column) % size for row, column, size in pairs)
        return self.kernel[offsets].reshape(self.cells, self.cells)

    @cached_property
    def inverse_eigenvalues(self) -> Floats:
        """1/λ by frequency, shape `shape`; 0 where λ vanishes."""
        eigenvalues = np.fft.fftn(self.kernel.astype(np.float64)).real
        for axis in range(eigenvalues.ndim):
            eigenvalues[(slice(None),) * axis + (0,)] = np.inf
        return np.asarray(1 / eigenvalues)

    @cached_property
    def inverse_power(self) -> Floats:
        """1/(N λ²) by frequency, shape `shape`."""
        return np.asarray(self.inverse_eigenvalues**2 / self.cells)

    def _filtered(self, values: Floats, power: int) -> Floats:
        """Return K⁺ or (KᵀK)⁺ applied along the last axis, which has the cells, for the power 1 or 2.

        K is a convolution with an even kernel, so it is symmetric and multiplies the Fourier coefficient at each
        frequency by the real λ. K⁺ therefore divides by λ, and (KᵀK)⁺ = (K²)⁺ by λ²; frequencies with λ = 0 become 0.
        `rfftn` has only half of the frequencies of the last axis, which determine the others for real values.
        """
        axes = tuple(range(1, len(self.shape) + 1))
        cells = values.reshape(-1, *self.shape)
        spectrum = np.fft.rfftn(cells, axes=axes)
        spectrum *= self.inverse_eigenvalues[..., : spectrum.shape[-1]] ** power
        return np.asarray(np.fft.irfftn(spectrum, self.shape, axes).reshape(values.shape))

    def estimate(self, values: Floats, axis: int = 0) -> Floats:
        """Return the estimate of the cells along `axis`; the axis is moved to the end."""
        return self._filtered(np.moveaxis(values, axis, -1), 1)

    def joint_estimate(self, values: Floats) -> Floats:
        return self.estimate(values).T

    def apply_covariance(self, values: Floats) -> Floats:
        """Return the covariance applied along the second axis; the axis is moved to the end."""
        return self._filtered(np.moveaxis(values, 1, -1), 2)

    def array_quadratics(self, queries: Floats) -> Floats:
        chunks = in_chunks(queries.reshape(-1, *self.shape))
        return np.concatenate([self._quadratics(chunk) for chunk in chunks])

    def _quadratics(self, queries: Floats) -> Floats:
        """Σ_f |q̂_f|²/(N λ_f²) of each query, see the module."""
        spectra = np.fft.fftn(queries, axes=range(1, queries.ndim))
        return np.asarray((np.abs(spectra) ** 2 * self.inverse_power).reshape(len(queries), -1).sum(axis=1))

    def product_quadratics(self, families: Sequence[Family]) -> Floats:
        """Return qᵀ (KᵀK)⁺ q of every product query q, one axis for the queries of each one-way family.

        qᵀ (KᵀK)⁺ q is Σ_f Π_i |q̂_i|² / (N λ_f²), so the power of each axis contracts one axis of `inverse_power`. It
        is computed for distinct powers, and `places` maps every query to its power.
        """
        form, places = self.inverse_power, []
        for axis, (family, size) in enumerate(zip(families, self.shape, strict=True)):
            power, place = query_power(family, size)
            form = np.moveaxis(np.tensordot(power, form, axes=(1, axis)), 0, axis)
            places.append(place)
        return form[np.ix_(*places)]

    def product_trace(self, families: Sequence[Family]) -> float:
        """Return the sum of qᵀ (KᵀK)⁺ q over all product queries q.

        The sum over queries of |q̂|²/(N λ²) is Π of the axes' sums diag(U G U*), times N for the unitary transform,
        over N λ².
        """
        powers = [gram_power(family, size) for family, size in zip(families, self.shape, strict=True)]
        return float((reduce(np.multiply.outer, powers) * self.inverse_power).sum()) * self.cells

    def quadratics(self, family: Family) -> Floats:
        return self.product_quadratics([family])

    def trace(self, family: Family) -> float:
        return self.product_trace([family])

    @property
    def mean_variance(self) -> float:
        return float(self.inverse_power.sum())

    def sums_covariance(self, ends: Integers) -> Floats:
        cells = np.arange(self.cells)
        sums = ((cells >= ends[:-1, None]) & (cells < ends[1:, None])).astype(np.float64)
        return np.asarray(self.apply_covariance(sums) @ sums.T)


def negated(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array at the negative indices, modulo its sizes."""
    return np.roll(np.flip(values), 1, range(values.ndim))


def query_power(family: Family, size: int) -> tuple[Floats, Integers]:
    """Return |q̂|² by frequency of the distinct queries of a one-way family, and the number of each query among them.

    Frequency 0 is not that of the queries: arcs can be represented by their complements.

    Intervals of equal length have the same |q̂|², since a shift changes the phase alone; a single cell has 1.

    Parameters
    ----------
    family : Family
    size : int
        Number of cells n.

    Returns
    -------
    power : ndarray, shape (distinct queries, n)
    place : ndarray of int64, shape (queries,)
    """
    if family.is_identity:
        return np.ones((1, size)), np.zeros(size, np.int64)
    if not family.has_intervals:
        queries = family.matrix(size)
        return np.abs(np.fft.fft(queries)) ** 2, np.arange(len(queries))
    low, high = family.intervals(size)
    lengths, place = np.unique(np.abs(high - low), return_inverse=True)
    return np.abs(np.fft.fft(np.arange(size) < lengths[:, None])) ** 2, place.reshape(-1)


@lru_cache(maxsize=64)
def gram_power(family: Family, size: int) -> Floats:
    """Return diag(U G U*) of the Gram matrix G of a one-way family, with U the unitary Fourier transform, shape (n,).

    This is the transform of the sums of G over the pairs of cells of every distance on the circle. On a wide axis they
    are known for prefix and range queries, of which G_ij = a_i b_j for i ≤ j, and for queries that a rotation leaves
    unchanged.

    Raises
    ------
    PlanError
        If the axis is wide and the family has no such form.
    """
    if family.is_identity:
        return np.ones(size)
    if not is_wide(size):
        places, spectrum = np.arange(size), np.fft.fft2(family.gram(size))
        return np.asarray(spectrum[places, -places].real / size)
    if family.invariant and family.has_intervals:
        return np.asarray(np.fft.fft(family.times_gram(np.eye(1, size)[0])).real)
    if family.tridiagonal(size) is None:
        raise PlanError("workload", f"family {family.name} of {size} cells in the Fourier basis",
                        "marginal, prefix, range or circular queries", "use weighted-residuals")  # fmt: skip

    # sums of a_i b_j over all pairs at each distance, as a correlation by transforms of padded vectors
    before, after = generators(family, size)
    length = 1 << (2 * size - 1).bit_length()
    apart = np.fft.irfft(np.fft.rfft(before, length).conj() * np.fft.rfft(after, length), length)[:size]
    sums = (apart + np.append(0.0, apart[:0:-1])) / size
    return np.asarray(np.fft.fft(sums).real)


def rounded_kernel(eigenvalues: Floats) -> Integers:
    """Return the kernel of integers near a multiple of the one with these eigenvalues, as large as a factor can have.

    Entries are rounded, and those at index 0 of an axis are minus the sum of the others, so that the kernel remains
    even.

    Parameters
    ----------
    eigenvalues : ndarray, shape `shape`
        λ by frequency: even, and 0 at the frequencies that are 0 on an axis.

    Raises
    ------
    PlanError
        If rounding changes an eigenvalue by more than half of it.
    """
    kernel = np.fft.ifftn(eigenvalues).real
    kernel = (kernel + negated(kernel)) / 2
    # the largest power of two that keeps the sum of absolute entries below the limit, with a margin
    bits = math.frexp(LARGEST_SUM / 16 / float(np.abs(kernel).sum()))[1] - 1
    integers = np.rint(np.ldexp(kernel, bits)).astype(np.int64)
    for axis in range(integers.ndim):
        rest = integers[(slice(None),) * axis + (slice(1, None),)]
        integers[(slice(None),) * axis + (0,)] = -rest.sum(axis=axis)

    change = np.abs(np.fft.fftn(integers.astype(np.float64)).real - np.ldexp(eigenvalues, bits))
    if (2 * change > np.ldexp(eigenvalues, bits))[eigenvalues > 0].any():
        raise PlanError("workload", f"a strategy on {' × '.join(map(str, kernel.shape))} cells that loses rank when it "
                        "is rounded", "fewer cells", "coarsen the attributes")  # fmt: skip
    return integers


def exact_convolution(known: Integers, columns: NDArray[Any]) -> NDArray[Any]:
    """Return the convolution of a sequence of m integers with others, exact.

    Both are divided into digits of so few bits that the error of a convolution by the fast Fourier transform is below
    1/4. Results beyond 64 bits need an array of Python integers.

    Parameters
    ----------
    known : ndarray of int64, shape (m,)
    columns : ndarray, shape (k, m)

    Returns
    -------
    ndarray, shape (k, 2m)
    """
    count = len(known)
    length, bits = _padded(count), _digit_bits(count)
    spectra = [np.fft.rfft(digit, length) for digit in _digits(known, bits)]
    total = np.zeros((len(columns), 2 * count), columns.dtype)

    for place, digit in enumerate(_digits(columns, bits)):
        spectrum = np.fft.rfft(digit, length)
        for index, transformed in enumerate(spectra):
            product = np.rint(np.fft.irfft(transformed * spectrum, length)[:, : 2 * count]).astype(np.int64)
            total += product.astype(total.dtype) << bits * (place + index)
    return total


def _padded(rows: int) -> int:
    """Return a length at which a cyclic convolution of two columns does not wrap around."""
    return 1 << (2 * rows - 1).bit_length()


def _digit_bits(rows: int) -> int:
    """Return the bits of digits whose convolution has an error below 1/4, by the norms of two columns of digits."""
    error = FFT_ERROR * np.finfo(np.float64).eps * math.log2(_padded(rows)) * rows
    return int(math.log2(0.25 / error) / 2) + 1


def _digits(values: NDArray[Any], bits: int) -> Iterator[Floats]:
    """Yield digits with values = Σ digit_i 2^(bits i), |digit| ≤ 2^(bits−1).

    A digit is the remainder modulo 2^bits, between −2^(bits − 1) and 2^(bits − 1) − 1.
    """
    half = 1 << (bits - 1)
    while values.any():
        digit = (values + half & (2 * half - 1)) - half
        values = (values - digit) >> bits
        yield digit.astype(np.float64)
