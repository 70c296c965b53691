"""Strategy of range or prefix queries on a wide axis: K = M T D (I − u1ᵀ), T symmetric of known eigenvectors.

The Gram matrix G of all ranges of n cells has the sines as eigenvectors, which are odd about both ends of the axis;
that of all prefixes has the cosines that are even about the start and odd about the end. T is G^¼ in integers, so TᵀT =
G^½, the optimum at equal weights of the cells; the diagonal matrix D makes the norms of the columns of T D nearly
equal: the normalised square root factorisation (Henzinger, Kalinin and Upadhyay, 2025) with a symmetric root. Its error
is about 10⁻⁴ above the optimum for ranges, and 3·10⁻³ for prefixes.

The total is a measurement of its own. With X = D TᵀT D and the weights u = X⁻¹1/(1ᵀX⁻¹1) of the axis, Xu = a1, so
    X = a 11ᵀ + (I − 1uᵀ) X (I − u1ᵀ):
the total and the centred rows have the Gram matrix of T D together, and nothing is lost. In integers M u = U, of sum
M, whose running sums are the nearest integers to those of M u, and K = M T D − (T D U) 1ᵀ is centred exactly.

With even integers t of period N,
    odd start:   N = 2n + 2,  T_ij = t_(i−j) − t_(i+j+2);
    even start:  N = 4n + 2,  T_ij = t_(i−j) + t_(i+j+1),  t_(k+N/2) = −t_k;
so T is a cyclic convolution with the cells, continued before the start. It is exact on integers. With λ the eigenvalues
of T by frequency, the sequence r of T⁻² is that of t with λ⁻² instead of λ, and with e = C1/(1ᵀC1)^½ the covariance is
    (C − e eᵀ)/M²,   C = X⁻¹ = D⁻¹ (r_(i−j) ∓ r_(i+j+·)) D⁻¹.
With a the sequence of T² and s = T D U, column j of K has the squared norm
    M² d_j² (a_0 ∓ a_(2j+·)) − 2 M d_j (T s)_j + |s|².
The trace for a Gram matrix G_ij = α_i β_j, i ≤ j, is a sum over i − j and i + j of products of α/d and β/d: a
correlation, and sums over pairs i < j with a given i + j, by halves of ever shorter runs of cells.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats, Integers, NDArray
from dpscale.plans.circulant import exact_convolution
from dpscale.plans.factor import ImplicitFactor
from dpscale.workload import Family
from dpscale.workload.node_grams import generators
from dpscale.workload.residual import Weights

COEFFICIENT_BITS, TOTAL_BITS = 16, 12  # of t and of M
FEWEST_BITS, MOST_BITS = 12, 17  # of D: steps of D are high frequencies, whose error grows with the cells
LARGEST_MULTIPLIER, MOST_TOTAL = 1 << 20, 1 << 24  # of D, and M
HALF = 20  # bits
MOST_PAIRS = 1 << 30  # of cells, of which covariances are computed for errors of listed intervals


@dataclass(frozen=True, eq=False)
class SpectralFactor(ImplicitFactor):
    """Strategy of the kind "spectral", with the weights U of its axis.

    Attributes
    ----------
    coefficients : ndarray of int64, shape (n + 2,), or (n + 1,) for an even start
        t_k ≥ 0 for k = 0, 1, …, not increasing.
    multipliers : ndarray of int64, shape (n,)
        The diagonal of D, each at least 1.
    even : bool
        Whether the start is even.
    """

    coefficients: Integers = None  # type: ignore[assignment]
    multipliers: Integers = None  # type: ignore[assignment]
    even: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError unless the integers are those of a root and of multipliers, one for each cell.

        `coefficients` is the sequence t from which the symmetric matrix T follows, `multipliers` the scales of the
        cells, and `weights` the integers by which a total is spread.
        """
        coefficients, multipliers = self.coefficients, self.multipliers
        if (
            self.kind != "spectral"
            or len(self.shape) != 1
            or coefficients.dtype != np.int64
            or multipliers.dtype != np.int64
        ):
            raise ValueError("a spectral strategy has integers for one axis")
        if (
            coefficients.shape != (self.cells + 2 - self.even,)
            or int(coefficients[-1]) < 0
            or (np.diff(coefficients) > 0).any()
        ):
            raise ValueError("the coefficients of a spectral strategy increase, or are not those of its axis")
        # convolutions are exact in integers of 64 bits
        if float(coefficients.sum()) * max(float(coefficients[0]), 1 << HALF) >= 1 << 60:
            raise ValueError("the coefficients of a spectral strategy are too large")
        if (
            multipliers.shape != self.shape
            or int(multipliers.min()) < 1
            or int(multipliers.max()) >= LARGEST_MULTIPLIER
        ):
            raise ValueError("the multipliers of a spectral strategy are not in their limits, one for each cell")
        # the weights U of the axis
        spread = (self.weights or (None,))[0]
        if spread is None or len(spread) != self.cells or min(spread) < 0 or not 0 < sum(spread) < MOST_TOTAL:
            raise ValueError("the weights of a spectral strategy are not in their limits, one for each cell")

    @property
    def period(self) -> int:
        """N."""
        return 4 * self.cells + 2 if self.even else 2 * self.cells + 2

    @property
    def _far(self) -> tuple[int, int]:
        """Sign and shift of the second term of T."""
        return (1, 1) if self.even else (-1, 2)

    @property
    def rows(self) -> int:
        return self.cells

    @cached_property
    def spread(self) -> Integers:
        """U."""
        assert self.weights is not None
        return np.array(self.weights[0], np.int64)

    @cached_property
    def scale(self) -> int:
        """M."""
        return int(self.spread.sum())

    @cached_property
    def digest(self) -> str:
        arrays = (self.coefficients, self.multipliers, self.spread)
        content = b"".join(np.ascontiguousarray(array, "<i8").tobytes() for array in arrays)
        return hashlib.sha256(f"{self.kind}{self.shape}{self.even}".encode() + content).hexdigest()

    @property
    def _series(self) -> Integers:
        """The sequence t over a period.

        For an odd start t has the period 2n + 2 and t_(N − k) = t_k, so the known n + 2 coefficients are followed by
        the inner ones in reverse. For an even start t_(k + N/2) = −t_k: half a period, and its negative.
        """
        known = self.coefficients
        if not self.even:
            return np.concatenate([known, known[1:-1][::-1]])
        half = np.concatenate([known, -known[1:][::-1]])
        return np.concatenate([half, -half])

    def _continued(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values of the cells along the last axis over a period, even or odd about the start.

        For an odd start a period has a zero, the cells, a zero and the negative cells in reverse; for an even start the
        cells, 2n + 2 zeros and the cells in reverse.
        """
        zero = np.zeros_like(values[..., :1])
        if self.even:
            between = np.zeros_like(values, shape=(*values.shape[:-1], 2 * self.cells + 2))
            return np.concatenate([values, between, values[..., ::-1]], axis=-1)
        return np.concatenate([zero, values, zero, -values[..., ::-1]], axis=-1)

    def _cells(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the cells of a period along the last axis."""
        return values[..., : self.cells] if self.even else values[..., 1 : self.cells + 1]

    def _root(self, columns: NDArray[Any]) -> NDArray[Any]:
        """Return T applied along the last axis of integers, exact."""
        return self._cells(_fold(exact_convolution(self._series, self._continued(columns))))

    @cached_property
    def squared_norms(self) -> list[int]:
        """Squared norms of the columns of T D, exact, with a symmetric matrix T and the diagonal D of the multipliers.

        A column of T is a series of coefficients and its reflection, so its norm follows from the convolution of the
        series with itself.
        """
        (sign, shift), series = self._far, self._series
        folded = _fold(exact_convolution(series, series[None]))[0] >> self.even
        sums = folded[0] + sign * folded[(2 * np.arange(self.cells) + shift) % self.period]
        return [total * d**2 for total, d in zip(sums.tolist(), self.multipliers.tolist(), strict=True)]

    @cached_property
    def _shift(self) -> Integers:
        """Column s = T D U: K is M T D without it."""
        return np.asarray(self._root((self.multipliers * self.spread)[None])[0])

    def column_norms(self, power: int) -> list[int]:
        """Return for every column the squared norm, exact, or for the power 1 a bound of the sum of absolute entries.

        The bound is M times the sum of the column of T D, and the sum of s.

        Entries of T and D are not negative, so the absolute entries of column j of M T D − s 1ᵀ sum to at most those of
        both parts. For the power 2 the product with s is computed from two halves of `HALF` bits, which cannot
        overflow.
        """
        shift, multipliers = self._shift, self.multipliers.tolist()
        if power == 1:
            total = sum(shift.tolist())
            sums = zip(multipliers, self._sums.tolist(), strict=True)
            return [self.scale * d * column_sum + total for d, column_sum in sums]

        # |M T D e − s|² = M² |T D e|² − 2 M (T D e)ᵀs + |s|², with the product from two halves of s
        high, low = (self._root(part[None])[0].tolist() for part in (shift >> HALF, shift & ((1 << HALF) - 1)))
        square_of_shift = sum(value * value for value in shift.tolist())
        columns = zip(self.squared_norms, multipliers, high, low, strict=True)
        return [self.scale**2 * square - 2 * self.scale * d * ((above << HALF) + below) + square_of_shift
                for square, d, above, below in columns]  # fmt: skip

    @property
    def _sums(self) -> Integers:
        """Sums of the columns of T, of which no entry is negative.

        T_ij is t_(i−j) plus or minus t_(i+j+shift), so a column sums two runs of n coefficients, differences of running
        sums over three periods.
        """
        (sign, shift), place = self._far, np.arange(self.cells)
        before = np.concatenate([[0], np.cumsum(np.tile(self._series, 3))])
        start = self.period - place  # of i − j = −j, a period later
        near = before[start + self.cells] - before[start]
        far = before[place + shift + self.cells] - before[place + shift]
        return np.asarray(near + sign * far)

    @cached_property
    def squared_l2_sensitivity(self) -> int:
        return max(self.column_norms(2))

    @cached_property
    def l1_sensitivity(self) -> int:
        """Bound of the largest sum of absolute entries of a column; pure epsilon has other strategies."""
        return max(self.column_norms(1))

    @cached_property
    def largest(self) -> int:
        return self.scale * int(self.coefficients[0]) * int(self.multipliers.max())

    @cached_property
    def largest_row_sum(self) -> int:
        rows = int(self._sums.max()) * int(self.multipliers.max())
        return self.scale * rows + self.cells * int(self._shift.max())

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return K applied along the leading axis of integers, exact; see `exact_convolution`.

        K x = T D (M x − U 1ᵀx): the counts are centred by U first. M and U are `scale` and `spread`, D the diagonal
        `multipliers`, T the root.
        """
        columns = values.reshape(self.cells, -1).T
        centred = columns * self.scale - columns.sum(axis=1, keepdims=True) * self.spread
        measured = self._root(centred * self.multipliers)
        return np.ascontiguousarray(measured.T).reshape(values.shape)

    @cached_property
    def _inverse(self) -> Floats:
        """1/λ by frequency; 0 at the frequencies that no vector of cells has.

        For an even start only odd frequencies occur; both halves of the period double the spectrum, hence the division.
        """
        spectrum = np.fft.rfft(self._series.astype(np.float64)).real / (1 + self.even)
        used = slice(1, None, 2) if self.even else slice(None)
        inverse = np.zeros(len(spectrum))
        inverse[used] = 1 / spectrum[used]
        return inverse

    def _sequence(self, power: int) -> Floats:
        """Return the Fourier transform of the sequence of T to the power −1 or −2."""
        return self._inverse**power * (1 + self.even)

    def _divided(self, values: Floats, power: int) -> Floats:
        """Return T to the power −1 or −2 applied along the last axis."""
        divided = np.fft.irfft(np.fft.rfft(self._continued(values)) * self._sequence(power), self.period)
        return np.asarray(self._cells(divided))

    @cached_property
    def _edges(self) -> Floats:
        """The vector e."""
        sums = self._divided(1 / self.multipliers, 2) / self.multipliers
        return np.asarray(sums / math.sqrt(sums.sum()))

    def estimate(self, values: Floats, axis: int = 0) -> Floats:
        """Return the estimate of the cells along `axis`; the axis is moved to the end. The cells sum to zero."""
        cells = self._divided(np.moveaxis(values, axis, -1), 1) / self.multipliers
        return (cells - cells.sum(axis=-1, keepdims=True) * (self._edges / self._edges.sum())) / self.scale

    def apply_covariance(self, values: Floats) -> Floats:
        """Return the covariance applied along the second axis; the axis is moved to the end."""
        last = np.moveaxis(values, 1, -1)
        whole = self._divided(last / self.multipliers, 2) / self.multipliers
        return (whole - (last @ self._edges)[..., None] * self._edges) / self.scale**2

    @cached_property
    def _kernel(self) -> Floats:
        """The sequence r over a period."""
        return np.asarray(np.fft.irfft(self._sequence(2), self.period))

    @property
    def _variances(self) -> Floats:
        """Diagonal of C."""
        sign, shift = self._far
        far = self._kernel[(2 * np.arange(self.cells) + shift) % self.period]
        return np.asarray((self._kernel[0] + sign * far) / self.multipliers**2.0)

    @property
    def mean_variance(self) -> float:
        return float((self._variances - self._edges**2).mean()) / self.scale**2

    def trace(self, family: Family) -> float:
        """Return the sum of the variances of all queries of a family, at unit noise variance.

        The Gram matrix of intervals has the entries a_i b_j for i ≤ j (`generators`), so the sum over its entries times
        the covariances, which depend on i − j and i + j, is one over the distances and one over the sums.

        Raises PlanError for a family without such generators. The covariance is (C − e eᵀ)/`scale`², with e in `_edges`
        and C_ij = (r_(i−j) ± r_(i+j+shift))/(d_i d_j); d are the multipliers, r is `_kernel`, and `_far` has the sign
        and the shift.
        """
        if family.is_identity:
            return self.mean_variance * self.cells
        if family.tridiagonal(self.cells) is None:
            raise PlanError("workload", f"family {family.name} on the root of other queries of {self.cells} cells",
                            "marginal, prefix or range queries", "use weighted-residuals")  # fmt: skip

        scales, lags = 1 / self.multipliers, np.arange(self.cells)
        left, right = (values * scales for values in generators(family, self.cells))
        length = 1 << (2 * self.cells - 1).bit_length()
        apart = np.fft.irfft(np.fft.rfft(left, length).conj() * np.fft.rfft(right, length), length)[: self.cells]
        total = 2 * float(apart[1:] @ self._kernel[lags[1:] % self.period])
        (sign, shift), sums = self._far, ordered_products(left, right)
        total += 2 * sign * float(sums @ self._kernel[(np.arange(len(sums)) + shift) % self.period])
        total += float((left / scales) @ (right / scales * self._variances))
        return (total - float(self._edges @ family.times_gram(self._edges))) / self.scale**2

    def quadratics(self, family: Family) -> Floats:
        """Return the variance of every query of a family, at unit noise variance; intervals by sums from the start.

        The covariance is (C − e eᵀ)/M²: an interval from l to before h has Var(l) + Var(h) − 2 Cov(l, h) of sums from
        the start under C (`of_sums`), less the square of its sum of e (`edges`). M is `scale`, and C the covariance
        before centring. Families without intervals need their matrix.
        """
        if family.is_identity:
            return (self._variances - self._edges**2) / self.scale**2
        if not family.has_intervals:
            queries = family.matrix(self.cells)
            return np.asarray((queries * self.apply_covariance(queries)).sum(axis=1))

        low, high = family.intervals(self.cells)
        of_sums, edges = self._sum_variances, np.pad(np.cumsum(self._edges), (1, 0))
        covariances = self._sum_covariances(np.minimum(low, high), np.maximum(low, high))
        variances = of_sums[low] + of_sums[high] - 2 * covariances - (edges[high] - edges[low]) ** 2
        return np.asarray(variances / self.scale**2)  # the total has no variance: an arc has that of its complement

    @cached_property
    def _sum_variances(self) -> Floats:
        """Variance under C of the sum of the first i cells, i = 0 … n: a cell adds its own and twice those before.

        C is the covariance before centring; `before` are the covariances of a cell with all cells before it, of which
        the part by distances is a convolution and that by sums is `ordered_sums`.
        """
        length, scales = 1 << (2 * self.cells - 1).bit_length(), 1 / self.multipliers
        kernel = np.concatenate([[0.0], self._kernel[1 : self.cells]])
        before = np.fft.irfft(np.fft.rfft(scales, length) * np.fft.rfft(kernel, length), length)[: self.cells]
        sign, shift = self._far
        before += sign * ordered_sums(scales, self._kernel[(np.arange(2 * self.cells) + shift) % self.period])
        return np.pad(np.cumsum(self._variances + 2 * scales * before), (1, 0))

    def _sum_covariances(self, first: Integers, last: Integers) -> Floats:
        """Return the covariance under C of the sums of the first `first` and of the first `last` ≥ `first` cells.

        Raises PlanError if the cells are too many for the covariance of each with all others, one after the other.

        Cell by cell, `running` is the sum of the first columns of C, and its running sum at `last` the covariance for
        those queries whose first sum ends at this cell (`at_cell`).
        """
        covariances, steps = np.zeros(len(first)), int(first.max())
        if steps * self.cells > MOST_PAIRS:
            raise PlanError("workload", f"errors of {len(first)} intervals of {self.cells} cells",
                            f"at most {math.isqrt(MOST_PAIRS)} cells, or prefix queries",
                            "coarsen the attribute")  # fmt: skip

        # queries in the order of their first sums, so that each is read when its cell is reached
        order = None if (np.diff(first) >= 0).all() else np.argsort(first, kind="stable")
        ends = np.searchsorted(first if order is None else first[order], np.arange(1, steps + 2))
        cells, running, scales = np.arange(self.cells), np.zeros(self.cells), 1 / self.multipliers
        sign, shift = self._far
        for cell in range(steps):
            # a column of C from the sequence r, near and continued before the start
            column = self._kernel[np.abs(cells - cell)] + sign * self._kernel[(cells + cell + shift) % self.period]
            running += column * (scales[cell] * scales)
            sums = np.cumsum(running)
            at_cell = slice(ends[cell], ends[cell + 1]) if order is None else order[ends[cell] : ends[cell + 1]]
            covariances[at_cell] = sums[last[at_cell] - 1]
        return covariances

    def sums_covariance(self, ends: Integers) -> Floats:
        cells = np.arange(self.cells)
        sums = ((cells >= ends[:-1, None]) & (cells < ends[1:, None])).astype(np.float64)
        return np.asarray(self.apply_covariance(sums) @ sums.T)


def _fold(values: NDArray[Any]) -> NDArray[Any]:
    """Return a convolution of two sequences over a period, shape (…, 2N), as the cyclic one, shape (…, N).

    The columns of `values` are the sequence and its continuation; cyclic means that entries s and s + N are added.
    """
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

    The cells are cut into runs of 2 · `width`, for width 1, 2, 4, …: a pair j < i has i in the second and j in the
    first half of one run. Sums over j of values_j kernel_(i+j) are a correlation (the conjugate), for which i + j is
    from `width` to 3 · `width` after the kernel of the run.

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


@lru_cache(maxsize=8)
def spectral_factor(size: int, even: bool = False) -> SpectralFactor:
    """Return the centred, normalised root of the ranges of an axis, or of its prefixes.

    Parameters
    ----------
    size : int
        Number of cells, at least 2.
    even : bool
        True for prefixes.
    """
    # eigenvalues of the root by frequency: |sin(π k / period)|^(-1/2); their transform is its first row
    period = 4 * size + 2 if even else 2 * size + 2
    numbers = np.arange(period // 2 + 1)
    roots = np.abs(np.sin(np.maximum(numbers, 1) * np.pi / period)) ** -0.5
    roots[::2] *= not even
    root = np.fft.irfft(roots, period)[: size + 2 - even]
    root = np.minimum.accumulate(root - (0.0 if even else root[-1]))
    coefficients = np.rint(np.ldexp(np.maximum(root / root[0], 0.0), COEFFICIENT_BITS)).astype(np.int64)
    coefficients.setflags(write=False)

    # multipliers make the columns nearly equally long
    ones = np.ones(size, np.int64)
    plain = SpectralFactor(
        "spectral", (size,), weights=((1,) * size,), coefficients=coefficients, multipliers=ones, even=even
    )
    norms = np.sqrt(np.array(plain.squared_norms, np.float64))
    bits = min(max(FEWEST_BITS, size.bit_length() - 1), MOST_BITS)
    multipliers = np.rint(np.ldexp(norms.max() / norms, bits)).astype(np.int64)
    normalised = replace(plain, multipliers=multipliers)

    # integer weights by which the total is spread
    sums = np.cumsum(np.maximum(normalised._edges, 0.0))
    ends = np.rint(np.ldexp(sums / sums[-1], TOTAL_BITS)).astype(np.int64)
    return replace(normalised, weights=(tuple(np.diff(ends, prepend=0).tolist()),))


def spectral_weights(size: int, even: bool = False) -> Weights:
    """Return the weights U of an axis of range queries, or of prefix queries; see `spectral_factor`."""
    (weights,) = spectral_factor(size, even).weights or (None,)
    assert weights is not None
    return weights
