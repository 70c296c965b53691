"""Strategy for cumulative queries on a wide axis: K = T D, with T lower triangular and Toeplitz, and D diagonal.

The matrix of prefix queries is R², with R_ij = c_(i−j), j ≤ i, and c_k = (2k choose k)/4^k. T is R in integers, and D
makes the norms of the columns nearly equal: the normalised square root factorisation (Henzinger, Kalinin and Upadhyay,
2025), whose error is about one percent above the optimum. T is rounded so that its running sums are the nearest
integers to those of R.

K has no row for the total. The axis has the weight 1 at its last cell and 0 elsewhere, so that K measures the other
n − 1 cells, and the total is a measurement of its own. Only the n − 1 integers of T and of D are stored. Products with
K, T⁻¹ and the covariance are convolutions; those with K are exact.

With s the coefficients of R⁻¹ and e_j = 1/d_j, the covariance of the sums up to cells i and j is Σ_l M_il M_jl,
    M_il = Σ_{j=l…i} s_(j−l) e_j,   s_k = Σ_p g_p x_p^(k−1) for k ≥ 1,
by a quadrature of the integral of z^−½. So Σ_l M_il² follows from that of i − 1 in constant time (`long_axis_loops`).
The rounding of T changes it by less than 10⁻⁷ of itself.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats, Integers, NDArray, special
from dpscale.plans.factor import ImplicitFactor
from dpscale.workload import Family
from dpscale.workload.family import MOST_LISTED
from dpscale.workload.wide import last_cell

COEFFICIENT_BITS, MULTIPLIER_BITS = 22, 14  # of T and of D
LARGEST_MULTIPLIER = 1 << 20
NODES = 64
FFT_ERROR = 64.0  # bound of the error of a convolution in units of roundoff · log₂ length · both norms
REFINEMENTS = 2  # Newton steps from the coefficients of R⁻¹ to those of T⁻¹
CONVERGED = 1e-8  # relative difference of the two means, of which the error is the square


@dataclass(frozen=True, eq=False)
class ToeplitzFactor(ImplicitFactor):
    """Strategy of the kind "toeplitz": K_ij = t_(i−j) d_j for j ≤ i < n − 1; the last column is 0.

    Attributes
    ----------
    coefficients : ndarray of int64, shape (n − 1,)
        t, the first column of T.
    multipliers : ndarray of int64, shape (n − 1,)
        d ≥ 1.
    """

    coefficients: Integers = None  # type: ignore[assignment]
    multipliers: Integers = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Raise ValueError unless the integers are those of a square root and of multipliers, one for each row."""
        if self.kind != "toeplitz" or len(self.shape) != 1 or self.weights != (last_cell(self.cells),):
            raise ValueError("a Toeplitz strategy measures the cells of an axis without the last")

        own = self.multipliers
        if own is None or own.dtype != np.int64 or own.shape != (self.rows,) or int(own.min()) < 1:
            raise ValueError("the multipliers of a Toeplitz strategy are not integers of at least 1, one for each row")
        if int(own.max()) >= LARGEST_MULTIPLIER:
            raise ValueError("the multipliers of a Toeplitz strategy are too large")

        known = self.coefficients
        if known is None or known.dtype != np.int64 or not np.array_equal(known, root_coefficients(self.rows)):
            raise ValueError("the coefficients of a Toeplitz strategy are not those of a square root")

    @property
    def rows(self) -> int:
        return self.cells - 1

    @cached_property
    def digest(self) -> str:
        content = b"".join(np.ascontiguousarray(own, "<i8").tobytes() for own in (self.coefficients, self.multipliers))
        return hashlib.sha256(f"{self.kind}{self.shape}".encode() + content).hexdigest()

    def column_norms(self, power: int) -> list[int]:
        """Return the sums of the entries of every column to the power 1 or 2, exact."""
        sums = np.cumsum(self.coefficients**power)[::-1].tolist()
        return [*(total * own**power for total, own in zip(sums, self.multipliers.tolist(), strict=True)), 0]

    @cached_property
    def squared_l2_sensitivity(self) -> int:
        return max(self.column_norms(2))

    @cached_property
    def l1_sensitivity(self) -> int:
        return max(self.column_norms(1))

    @cached_property
    def largest(self) -> int:
        return int(self.coefficients.max()) * int(self.multipliers.max())

    @cached_property
    def largest_row_sum(self) -> int:
        return int(self.apply(np.ones(self.cells, np.int64)).max())

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return K applied along the leading axis of integers, exact; see `exact_convolution`."""
        rest = values.shape[1:]
        columns = values[:-1].reshape(self.rows, -1).T * self.multipliers
        total = exact_convolution(self.coefficients, columns)[:, : self.rows]
        return np.ascontiguousarray(total.T).reshape(self.rows, *rest)

    def estimate(self, values: Floats, axis: int = 0) -> Floats:
        """Return the estimate of the cells along `axis`; the axis is moved to the end. The cells sum to zero."""
        return _with_last(self._divided(np.moveaxis(values, axis, -1)) * self._scales)

    def apply_covariance(self, values: Floats) -> Floats:
        """Return the covariance applied along the second axis; the axis is moved to the end."""
        last = np.moveaxis(values, 1, -1)
        weighed = (last[..., :-1] - last[..., -1:]) * self._scales
        turned = self._divided(weighed[..., ::-1])[..., ::-1]
        return _with_last(self._divided(turned) * self._scales)

    def _divided(self, values: Floats) -> Floats:
        """Return (2^−COEFFICIENT_BITS T)⁻¹ applied along the last axis."""
        length = _padded(self.rows)
        spectrum = np.fft.rfft(values, length) * np.fft.rfft(_inverse_coefficients(self.rows), length)
        return np.asarray(np.fft.irfft(spectrum, length)[..., : self.rows])

    def quadratics(self, family: Family) -> Floats:
        if family.count(self.cells) > MOST_LISTED:
            raise PlanError("workload", f"errors of {family.count(self.cells)} queries of family {family.name}",
                            f"at most {MOST_LISTED}", "coarsen the attribute")  # fmt: skip
        low, high = family.intervals(self.cells)
        return self._variances[high] + self._variances[low] - 2 * self._covariances(low, high)

    def trace(self, family: Family) -> float:
        return float(self.quadratics(family).sum())

    @property
    def mean_variance(self) -> float:
        squares = np.cumsum(_root_inverse(self.rows) ** 2)
        return float((self._scales**2 * squares).sum() + self._variances[-2]) / self.cells

    def sums_covariance(self, ends: Integers) -> Floats:
        left, right = np.broadcast_arrays(ends[:, None], ends)
        found = self._covariances(left.reshape(-1), right.reshape(-1)).reshape(left.shape)
        return np.diff(np.diff(found, axis=0), axis=1)

    @cached_property
    def _scales(self) -> Floats:
        """1/d in units of R."""
        return np.ldexp(1 / self.multipliers, -COEFFICIENT_BITS)

    @cached_property
    def _variances(self) -> Floats:
        """Variance of the sum of the first i cells, i = 0 … n; the sum of all is 0."""
        from dpscale.plans.long_axis_loops import add_prefix_variances  # numba, needed only for wide axes

        total = np.zeros(self.rows)
        add_prefix_variances(self._scales, _root_inverse(self.rows), *_exponentials(self.rows), total)
        return np.pad(total, 1)

    def _covariances(self, left: Integers, right: Integers) -> Floats:
        """Return the covariance of the sums of the first `left` and of the first `right` cells."""
        from dpscale.plans.long_axis_loops import add_excess_covariances

        low, high = np.minimum(left, right), np.maximum(left, right)
        found = np.where(high < self.cells, self._variances[low], 0.0)
        some = np.flatnonzero((low > 0) & (high < self.cells) & (low < high))
        if len(some):
            total = np.zeros(len(some))
            pair = (np.ascontiguousarray(low[some] - 1), np.ascontiguousarray(high[some] - 1))
            add_excess_covariances(self._scales, _root_inverse(self.rows), *_exponentials(self.rows), *pair, total)
            found[some] += total

        return np.asarray(found)


def toeplitz_factor(size: int) -> ToeplitzFactor:
    """Return the normalised square root of the prefix queries on an axis.

    Parameters
    ----------
    size : int
        Number of cells, at least 2.
    """
    coefficients = root_coefficients(size - 1)
    norms = np.sqrt(np.ldexp(np.cumsum(coefficients**2)[::-1], -2 * COEFFICIENT_BITS))
    multipliers = np.floor(np.ldexp(1 / norms, MULTIPLIER_BITS)).astype(np.int64)
    return ToeplitzFactor(
        "toeplitz", (size,), weights=(last_cell(size),), coefficients=coefficients, multipliers=multipliers
    )


@lru_cache(maxsize=4)
def _root(rows: int) -> Floats:
    """Return the coefficients c of R."""
    places = np.arange(1, rows)
    return np.concatenate([[1.0], np.cumprod((2 * places - 1) / (2 * places))])


@lru_cache(maxsize=4)
def root_coefficients(rows: int) -> Integers:
    """Return T, whose running sums are the nearest integers to those of 2^COEFFICIENT_BITS R."""
    sums = np.rint(np.ldexp(np.cumsum(_root(rows)), COEFFICIENT_BITS)).astype(np.int64)
    found = np.diff(sums, prepend=0)
    found.setflags(write=False)  # factors share it
    return found


def _root_inverse(rows: int) -> Floats:
    """Return the coefficients s of R⁻¹."""
    return np.diff(_root(rows), prepend=0.0)


@lru_cache(maxsize=4)
def _inverse_coefficients(rows: int) -> Floats:
    """Return the coefficients of (2^−COEFFICIENT_BITS T)⁻¹."""
    length, found = _padded(rows), _root_inverse(rows)
    spectrum = np.fft.rfft(np.ldexp(root_coefficients(rows).astype(np.float64), -COEFFICIENT_BITS), length)
    for _ in range(REFINEMENTS):
        own = np.fft.rfft(found, length)
        rest = np.fft.irfft(spectrum * own, length)[:rows]
        rest[0] -= 1
        found = found - np.fft.irfft(own * np.fft.rfft(rest, length), length)[:rows]
    return found


@lru_cache(maxsize=4)
def _exponentials(rows: int) -> tuple[Floats, Floats]:
    """Return x and g with s_k = Σ_p g_p x_p^(k−1) for 1 ≤ k < rows."""
    nodes, shares = root_quadrature(0.5 / max(rows, 2), 2.0, NODES)
    bases = 1 / (1 + nodes**2)
    return bases, shares * bases * (bases - 1)


def root_quadrature(least: float, largest: float, count: int) -> tuple[Floats, Floats]:
    """Return nodes s and weights w with λ^{−½} = Σ w/(λ + s²) for λ between two numbers.

    Parameters
    ----------
    least, largest : float
        The numbers.
    count : int
        Number of nodes.

    References
    ----------
    Hale, Higham and Trefethen, 2008.
    """
    spread = least / largest
    quarter = special.ellipkm1(spread)
    cotangents, delta = _elliptic((np.arange(1, count + 1) - 0.5) * quarter / count, spread)
    shares = 2 * quarter * math.sqrt(least) / (math.pi * count) * delta * (1 + cotangents**-2.0)
    return math.sqrt(least) / cotangents, shares


def _elliptic(places: Floats, complement: float) -> tuple[Floats, Floats]:
    """Return cn/sn and dn at the places for the parameter 1 − complement, by Bulirsch's transformation (1965).

    The function of SciPy takes the parameter itself, which rounds it, and approximates parameters near 1.
    """
    means, roots, root, mean = list[float](), list[float](), complement, 1.0
    while True:
        root = math.sqrt(root)
        means, roots, middle = [*means, mean], [*roots, root], (mean + root) / 2
        if abs(mean - root) <= CONVERGED * mean:
            break
        root, mean = root * mean, middle

    ratio, delta = middle / np.tan(middle * places), np.ones(len(places))
    last = ratio / middle
    for own, known in zip(reversed(means), reversed(roots), strict=True):
        product = last * ratio
        ratio = ratio * delta
        delta = (known + product) / (own + product)
        last = ratio / own

    return ratio, delta


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
    """Yield digits with values = Σ digit_i 2^(bits i), |digit| ≤ 2^(bits−1)."""
    half = 1 << (bits - 1)
    while values.any():
        digit = (values + half & (2 * half - 1)) - half
        values = (values - digit) >> bits
        yield digit.astype(np.float64)


def _with_last(cells: Floats) -> Floats:
    """Return cells with one more at the end that makes their sum zero."""
    return np.concatenate([cells, -cells.sum(axis=-1, keepdims=True)], axis=-1)
