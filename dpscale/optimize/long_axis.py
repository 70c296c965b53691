"""Optimum for prefix or range queries on a long axis, in linear time per evaluation: of its residuals, or of all cells.

*Residuals.* Centred by u, the Gram matrix is that of G₀ relative to the first cell, G₀(i, j) = G(i, j) − G(0, j) − G(i,
0) + G(0, 0), and G₀⁻¹ is tridiagonal: prefix queries are a random walk, range queries a walk between two absorbing
ends. With P = I − 1uᵀ and weights μ,
    X_ii = p_iᵀ M^{−½} p_i = (2/π) ∫ p_iᵀ (D̃ + s² G₀⁻¹)⁻¹ p_i ds,
    p_i = e_i − u,   D̃ = PᵀDP = D − μμᵀ + (u − μ)(u − μ)ᵀ,
without the first cell. One evaluation of μ (`convex`) is therefore about thirty tridiagonal solves, with the quadrature
nodes of Hale, Higham and Trefethen (2008). The final strategy is a Cholesky factor of X, which the same sum of inverses
gives and which also certifies it. Circular ranges are invariant under rotation: their weights are uniform, and no
search is needed.

*Whole axis.* With weights μ, D = diag(μ) and T = G⁻¹, the optimum for μ (`convex`) is X = D^−½ S^½ D^−½, S = D^½ G D^½,
and
    X_ii = (2/π) ∫ [(D + s² T)⁻¹]_ii ds,
about thirty tridiagonal solves with the same quadrature. The strategy is a Cholesky factor of X, which the
same sum of inverses gives in quadratic time; it also certifies it.
Prefix queries alone on a wide axis have a strategy without a dense matrix, whose gap the dual value bounds.

G has a tridiagonal inverse if G_ij = a_i b_j for i ≤ j (a Green's matrix, the covariance of a Markov chain). T is then
the sum of the inverses of the 2 × 2 blocks on the diagonal, minus 1/G_ii for each inner cell.

*Quadrature.* It gives λ^−½ as a sum of w/(λ + s²) for λ between two numbers. Compiled loops compute the diagonals of
inverses of tridiagonal matrices.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from dpscale.base.compilation import njit
from dpscale.base.numerics import Floats, special
from dpscale.optimize.convex import Optimum, Solve, iterate_fixed_point
from dpscale.optimize.integer_strategies import FactorBits, centring_rounder
from dpscale.plans.factor import Factor
from dpscale.plans.spectral import SpectralFactor, spectral_factor, spectral_weights
from dpscale.privacy.draws import GAUSSIAN
from dpscale.workload import PREFIX, RANGE, Family, GramFactor
from dpscale.workload.node_grams import generators
from dpscale.workload.residual import Weights, profile_of
from dpscale.workload.wide import LONG, WideGram, weighted_piece

NODES, BELOW = 32, 0.05  # quadrature nodes; factor below the least value of D·G₀ for eigenvalues of M
SAME = 1e-12  # tolerance of symmetry
TOLERANCE = 1e-7  # certified relative gap at which the search for μ ends
EXACTLY = 1 - 1e-9  # for the error of the quadrature, so that the bound is not above the optimum
INVERSE = 1e-6  # tolerance of TG = I with rounded row sums
FEWEST = 128  # cells below which the general solver is as fast
EXACT = 1e-9  # tolerance of GT = I
ROUNDED = 1e-8  # relative to the diagonal of T: smaller sums of its rows are 0
ITERATED = 0.5  # of the tolerance: left for rounding of the certificate
COARSE, COARSELY, REFINED = 1024, 1e-4, 2  # cells, tolerance and last steps of the weights of a bound
QUADRATURE = 1 - 1e-7  # for the error of the quadrature, so that the bound is not above the optimum

CONVERGED = 1e-8  # relative difference of the two means, of which the error is the square

OPTIONS: Any = {"cache": True, "nogil": True, "error_model": "numpy"}  # no division is by zero: weights are positive
NOTHING = 1e-20  # relative to the diagonal of an inverse


@dataclass(frozen=True, eq=False)
class LinearAxis:
    """Problem of one family on n cells centred by weights, with a Gram matrix of trace 1."""

    key: str
    family: Family
    size: int
    weights: tuple[Weights | None, ...]
    is_center = False

    @cached_property
    def profile(self) -> Floats:
        return profile_of(self.weights[0], self.size)

    @cached_property
    def gram(self) -> Floats:
        """Centred Gram matrix, not scaled, shape (n, n)."""
        return weighted_piece(self.family.gram(self.size), self.profile)[0]

    @cached_property
    def main(self) -> Floats:
        """Diagonal of the centred Gram matrix, not scaled, in linear time."""
        before, after = generators(self.family, self.size)
        means = self.family.times_gram(self.profile)
        return np.maximum(before * after - 2 * means + self.profile @ means, 0.0)

    @cached_property
    def trace(self) -> float:
        """Trace of the centred Gram matrix, not scaled."""
        return float(np.trace(self.gram) if self.tridiagonal is None else np.sum(self.main))

    @cached_property
    def tridiagonal(self) -> tuple[Floats, float] | None:
        """Diagonal of G₀⁻¹ on the last n − 1 cells, and its negated off-diagonal value; None for invariant families."""
        return self.family.tridiagonal(self.size)

    def evaluate(self, weights: Floats) -> LinearPoint:
        """Return the leverages at weights of the cells."""
        assert self.tridiagonal is not None
        nodes, shares = self._nodes(weights)
        leverage = np.zeros(self.size)
        add_leverages(np.ascontiguousarray(weights), self.profile, *self.tridiagonal, nodes, shares, leverage)
        return LinearPoint(weights, leverage, float(weights @ leverage))

    def _nodes(self, weights: Floats) -> tuple[Floats, Floats]:
        """Return the points and weights of the quadrature for the eigenvalues of M, not scaled.

        Their least and largest values are bounded by the weights of the cells and the tridiagonal form of the queries.

        The largest eigenvalue of M is at most its trace Σ μ_i G_ii, with `main` the diagonal of G. The least is about
        the smallest weight over the largest eigenvalue of T, at most four times its entry beside the diagonal; BELOW
        lowers it further.
        """
        assert self.tridiagonal is not None
        largest = float(weights @ self.main)
        least = BELOW * float(weights.min()) * (0.25 / self.tridiagonal[1])
        return root_quadrature(min(least, largest / 2), largest, NODES)

    def solved(self, solve: Solve) -> Optimum:
        """Return the optimum; the general solver `solve` is not needed.

        Without a tridiagonal inverse of the Gram matrix, the even weights are taken (`certified`). Weights of mirrored
        queries are averaged with their mirror image.
        """
        start = np.full(self.size, 1 / self.size)
        if self.tridiagonal is None:
            return self.certified(start)
        weights = iterate_fixed_point(self.evaluate, start, TOLERANCE, math.inf).weights
        mirrored = np.abs(self.profile - self.profile[::-1]).max() <= SAME  # the queries are, up to the total
        return self._factored((weights + weights[::-1]) / 2 if mirrored else weights)

    def _factored(self, weights: Floats) -> Optimum:
        """Return the strategy at some weights with its certificate: a Cholesky factor of X, without eigenvectors.

        With A_k = D + s_k² T without the first cell, X is Σ_k share_k (A_k − μμᵀ + (u − μ)(u − μ)ᵀ)⁻¹. The change by
        the vectors μ and u − μ (`apart`) is of rank two: `first` = A⁻¹μ, `second` = A⁻¹(u − μ), and a, b, c are the
        entries of the 2 × 2 matrix that Woodbury's identity inverts. The row of the first cell follows, because rows
        are centred by u.
        """
        nodes, shares = self._nodes(weights)
        n, apart = self.size - 1, (self.profile - weights)[1:]
        first, second, total = np.zeros((len(nodes), n)), np.zeros((len(nodes), n)), np.zeros((n, n))
        assert self.tridiagonal is not None
        add_inverses(weights, self.profile, *self.tridiagonal, nodes, shares, first, second, total)
        # the loop fills the lower triangle only
        total += np.tril(total, -1).T
        # A⁻¹(u − μ) from A⁻¹u
        second -= first
        a, b, c = first @ weights[1:] - 1, second @ weights[1:], second @ apart + 1
        scales = shares / (a * c - b * b)
        crossed = (first * (scales * b)[:, None]).T @ second
        total -= (first * (scales * c)[:, None]).T @ first + (second * (scales * a)[:, None]).T @ second
        upper = np.linalg.cholesky(total + crossed + crossed.T).T
        # the column of the first cell makes the rows centred by u
        means = upper @ self.profile[1:]
        root = np.concatenate([np.zeros((n, 1)), upper], axis=1) - means[:, None]
        squares, scale = (root**2).sum(axis=0), math.sqrt(self.trace)
        leverage, value = float(squares.max()), float(weights @ squares) / scale

        return Optimum(
            # scaled to sensitivity 1: the largest squared norm of a column is `leverage`
            root=root / math.sqrt(leverage),
            primal=value * leverage / scale,
            dual=value**2 * EXACTLY,
            weights=weights,
        )

    def certified(self, weights: Floats) -> Optimum:
        """Return the strategy at some weights with its certificate, for a Gram matrix of trace 1.

        M^½ and X come from the eigenvectors of D^½ G D^½; the smallest eigenvalue is 0 and belongs to u.
        """
        roots = np.sqrt(weights)
        values, rows = decompose_symmetric(self.gram * np.outer(roots, roots) / self.trace)
        values = np.sqrt(values[1:])  # the smallest, 0, is that of u
        root = rows[1:] * np.sqrt(values)[:, None] / roots
        leverage, total = float((root**2).sum(axis=0).max()), float(values.sum())
        return Optimum(root=root / math.sqrt(leverage), primal=total * leverage, dual=total**2, weights=weights)

    def rounded(self, optimum: Optimum, bits: FactorBits, noise: str) -> tuple[Factor, float]:
        """Return an integer strategy near the optimum and its error coefficient."""
        factor = centring_rounder((self.size,), self.weights)(np.ldexp(optimum.root, bits.entries))
        error = float((factor.inverse * self.family.times_gram(factor.inverse)).sum()) / self.trace
        return factor, error * factor.squared_sensitivity(noise)


@dataclass(frozen=True, eq=False)
class LinearPoint:
    """One μ with tr M^½, the diagonal of X, and the ratio of primal to dual."""

    weights: Floats
    leverage: Floats
    trace: float

    @property
    def ratio(self) -> float:
        return float(self.leverage.max()) / self.trace


def long_family(factor: GramFactor, shape: tuple[int, ...], weights: tuple[Weights | None, ...]) -> Family | None:
    """Return the family of a Gram matrix on one long axis; None if the general solver is needed.

    A family on a long axis is taken if its Gram matrix has a tridiagonal inverse, or if it is invariant under shifts
    and the axis has no `weights`.
    """
    family = factor.family
    if family is None or len(shape) != 1 or shape[0] <= LONG:
        return None
    known = family.tridiagonal(shape[0]) is not None or (family.invariant and weights == (None,))
    return family if known else None


def decompose_symmetric(form: Floats) -> tuple[Floats, Floats]:
    """Return ascending eigenvalues, and eigenvectors as rows; by halves if reversal leaves the matrix unchanged."""
    if np.abs(form - form[::-1, ::-1]).max() > SAME * np.abs(form).max():  # it has a direction
        values, vectors = np.linalg.eigh(form)
        return values, vectors.T

    # even eigenvectors are those of the sum of both quarters, odd ones those of the difference
    half = len(form) // 2
    quarter, across = form[:half, :half], form[:half, ::-1][:, :half]
    even = quarter + across
    if len(form) % 2:
        off_diagonal = math.sqrt(2) * form[:half, half : half + 1]
        even = np.block([[even, off_diagonal], [off_diagonal.T, form[half : half + 1, half : half + 1]]])

    values, vectors = np.linalg.eigh(even)
    odd_values, odd = np.linalg.eigh(quarter - across)
    low, odd = math.sqrt(0.5) * vectors[:half].T, math.sqrt(0.5) * odd.T
    rows = np.concatenate(
        [
            np.concatenate([low, vectors[half:].T, low[:, ::-1]], axis=1),
            np.concatenate([odd, np.zeros((half, len(form) % 2)), -odd[:, ::-1]], axis=1),
        ]
    )
    values = np.concatenate([values, odd_values])
    order = np.argsort(values)

    return values[order], rows[order]


@dataclass(frozen=True, eq=False)
class ChainGram:
    """Gram matrix G_ij = a_i b_j, i ≤ j, of n cells, whose inverse is tridiagonal.

    Attributes
    ----------
    before, after : ndarray, shape (n,)
        a and b.
    """

    before: Floats
    after: Floats

    @cached_property
    def main(self) -> Floats:
        """Diagonal of the Gram matrix."""
        return self.before * self.after

    @cached_property
    def _determinants(self) -> Floats:
        return self.main[:-1] * self.main[1:] - (self.before[:-1] * self.after[1:]) ** 2

    @cached_property
    def diagonal(self) -> Floats:
        """Diagonal of T."""
        first, last = self.main[1:] / self._determinants, self.main[:-1] / self._determinants
        diagonal = np.pad(first, (0, 1)) + np.pad(last, (1, 0))
        diagonal[1:-1] -= 1 / self.main[1:-1]
        return np.asarray(diagonal)

    @cached_property
    def off_diagonal(self) -> Floats:
        """Entries of T next to its diagonal."""
        return np.asarray(-self.before[:-1] * self.after[1:] / self._determinants)

    @cached_property
    def row_sums(self) -> Floats:
        """Sums of the rows of T; differences that rounding explains are 0, as inside prefix and range queries."""
        sums = self.diagonal + np.pad(self.off_diagonal, (1, 0)) + np.pad(self.off_diagonal, (0, 1))
        return np.where(sums <= ROUNDED * self.diagonal, 0.0, sums)

    def inverse_error(self, gram: Floats) -> float:
        """Return the largest entry of TG − I for T with these row sums, which the loops need to be at least 0.

        Row i of T is row_sums_i less the entries beside the diagonal on the diagonal, and `off_diagonal` beside it.
        """
        off = self.off_diagonal[:, None]
        product = (self.row_sums - np.pad(self.off_diagonal, (1, 0)) - np.pad(self.off_diagonal, (0, 1)))[
            :, None
        ] * gram
        product[:-1] += off * gram[1:]
        product[1:] += off * gram[:-1]
        return float(np.abs(product - np.eye(len(gram))).max())

    def times(self, rows: Floats) -> Floats:
        """Return rows (r, n) times the Gram matrix, in linear time.

        Entry j of a row r is b_j Σ_{i ≤ j} r_i a_i + a_j Σ_{i > j} r_i b_i, two running sums.
        """
        upper = np.cumsum(rows * self.before, axis=1) * self.after
        lower = rows * self.after
        rest = np.cumsum(lower[:, ::-1], axis=1)[:, ::-1] - lower
        return np.asarray(upper + rest * self.before)

    @cached_property
    def least_eigenvalue(self) -> float:
        """Lower bound of the eigenvalues of the Gram matrix, by Gershgorin's circles of T."""
        outside = np.abs(np.pad(self.off_diagonal, (1, 0))) + np.abs(np.pad(self.off_diagonal, (0, 1)))
        return float(1 / (self.diagonal + outside).max())

    def evaluate(self, weights: Floats) -> LinearPoint:
        """Return the leverages at weights of the cells."""
        leverage = np.zeros(len(weights))
        add_diagonals(np.ascontiguousarray(weights), self.row_sums, self.off_diagonal, *self._nodes(weights), leverage)
        return LinearPoint(weights, leverage, float(weights @ leverage))

    def optimum(self, tolerance: float, start: Floats | None = None) -> Optimum:
        """Return the optimum with its certificate.

        Parameters
        ----------
        tolerance : float
            Gap at which the search ends.
        start : ndarray, optional
            Weights of an earlier optimum.
        """
        return self._certified(self.weights(ITERATED * tolerance, start))

    def weights(self, tolerance: float, start: Floats | None = None) -> Floats:
        """Return the weights at which the fixed point ends."""
        n = len(self.before)
        begin = np.full(n, 1 / n) if start is None or start.shape != (n,) or start.min() <= 0 else start
        return iterate_fixed_point(self.evaluate, begin, tolerance, math.inf).weights

    def _certified(self, weights: Floats) -> Optimum:
        """Return the strategy at some weights of sum 1: a Cholesky factor of X.

        X = Σ_k share_k (D + s_k² T)⁻¹, with Cholesky factor B, BᵀB = X; columns are scaled to the largest norm 1.
        """
        total = np.zeros((len(weights),) * 2)
        add_chain_inverses(weights, self.row_sums, self.off_diagonal, *self._nodes(weights), total)
        root = np.asarray(np.linalg.cholesky(total).T, np.float64)
        squares = (root**2).sum(axis=0)
        leverage, value = float(squares.max()), float(weights @ squares)

        return Optimum(
            root=root / math.sqrt(leverage), primal=value * leverage, dual=value**2 * EXACTLY, weights=weights
        )

    def _nodes(self, weights: Floats) -> tuple[Floats, Floats]:
        """Return the quadrature for the eigenvalues of S."""
        largest = float(weights @ self.main)
        least = min(BELOW * float(weights.min()) * self.least_eigenvalue, largest / 2)
        return root_quadrature(least, largest, NODES)


def chain_of(gram: Floats) -> ChainGram | None:
    """Return a Gram matrix of many cells as a chain.

    None if its inverse is not tridiagonal, or has row sums that are negative or too small for the precision.

    For a chain, row 0 is a_0 b_j and the diagonal a_j b_j; with a_0 = 1, b is row 0 and a the diagonal over row 0.
    """
    if len(gram) < FEWEST or float(gram[0].min()) <= 0:
        return None

    chain = ChainGram(np.diag(gram) / gram[0], gram[0])
    if np.abs(np.triu(np.outer(chain.before, chain.after) - gram)).max() > EXACT * float(gram.max()):
        return None
    if chain.main.min() <= 0 or chain._determinants.min() <= 0 or chain.inverse_error(gram) > INVERSE:
        return None
    return chain


def chain_of_family(family: Family, size: int) -> ChainGram | None:
    """Return the Gram matrix of a one-way family on any number of cells as a chain; None if it is not one."""
    if family.tridiagonal(size) is None or size < 2:
        return None
    return ChainGram(*generators(family, size))


def whole_bound(family: Family, size: int) -> float | None:
    """Return a lower bound of the optimum over all strategies for a family on one attribute; None if unknown.

    It is the best dual value of two steps from weights that are optimal on few cells, and nearly the optimum.
    """
    chain = chain_of_family(family, size)
    if chain is None:
        return None
    point = iterate_fixed_point(chain.evaluate, _starting_weights(family, size), 0.0, math.inf, REFINED)
    return point.trace**2 * QUADRATURE


def centred_bound(family: Family, size: int, weights: Weights | None) -> float:
    """Return a lower bound of the optimum for a family centred by the weights of its axis; 0 if unknown."""
    if family.tridiagonal(size) is None:
        return 0.0
    axis = LinearAxis(key="", family=family, size=size, weights=(weights,))
    point = iterate_fixed_point(axis.evaluate, _starting_weights(family, size), 0.0, math.inf, REFINED)
    return point.trace**2 * QUADRATURE


def _starting_weights(family: Family, size: int) -> Floats:
    """Return weights of the cells that are nearly optimal."""
    coarse = chain_of_family(family, min(size, COARSE))
    return np.full(size, 1 / size) if coarse is None else spread_weights(coarse.weights(COARSELY), size)


def spread_weights(weights: Floats, size: int) -> Floats:
    """Return weights of more cells of the same axis, by interpolation of their sums."""
    if len(weights) == size:
        return weights
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    spread = np.diff(np.interp(np.linspace(0, len(weights), size + 1), np.arange(len(sums)), sums))
    return np.asarray(spread / spread.sum())


@dataclass(frozen=True, eq=False)
class WideRoot:
    """Problem of a wide axis whose range or prefix queries have a root in closed form (`plans.spectral`).

    Range queries may be together with prefix queries and cells. The Gram matrix has trace 1.
    """

    gram: WideGram
    is_center = False

    @property
    def key(self) -> str:
        return self.gram.key

    @property
    def weights(self) -> tuple[Weights | None, ...]:
        return (self.gram.weights,)

    @property
    def factor(self) -> SpectralFactor:
        return spectral_factor(self.gram.size, all(family != RANGE for family, _ in self.gram.asked))

    def solved(self, solve: Solve) -> Optimum:
        """Return the error of the normalised root and a bound; the general solver `solve` is not needed.

        Fields `root` and `weights` are empty, because the strategy has a closed form (`factor`).
        """
        error = self._error(GAUSSIAN)
        if len(self.gram.asked) == 1:
            family, weight = self.gram.asked[0]
            bound = weight * centred_bound(cast(Family, family), self.gram.size, self.gram.weights)
        else:
            bound = self.gram.lower_bound
        return Optimum(root=np.zeros((0, 0)), primal=error, dual=min(bound, error), weights=np.zeros(0))

    def rounded(self, optimum: Optimum, bits: FactorBits, noise: str) -> tuple[Factor, float]:
        """Return the strategy, which has its own bits, and its error coefficient."""
        return self.factor, self._error(noise)

    def _error(self, noise: str) -> float:
        traces = (weight * self.factor.trace(cast(Family, family)) for family, weight in self.gram.asked)
        return math.fsum(traces) * self.factor.squared_sensitivity(noise)


def rooted_weights(families: Collection[Family], size: int, alone: bool) -> Weights | None:
    """Return the weights of a wide axis whose queries have a root in closed form (`WideRoot`); None if they have none.

    Parameters
    ----------
    families : collection of Family
        Families of the queries on the axis.
    size : int
        Number of cells.
    alone : bool
        Whether there are no other axes.
    """
    others = set(families) - {RANGE}
    traced = alone and all(family.is_identity or family.tridiagonal(size) is not None for family in others)
    if RANGE in families and (traced or not others):
        return spectral_weights(size)
    return spectral_weights(size, even=True) if others == set(families) == {PREFIX} else None


def root_quadrature(least: float, largest: float, count: int) -> tuple[Floats, Floats]:
    """Return nodes s and weights w with λ^{−½} = Σ w/(λ + s²) for λ between two numbers.

    The trapezoid rule for λ^{−½} = (2/π) ∫ ds/(λ + s²) after the substitution s = √least · sn(u)/cn(u) of elliptic
    functions with the complementary parameter least/largest, at the midpoints of `count` parts of the quarter period.
    With the cotangent cn/sn and dn, ds = √least · dn/cn² du, and 1/cn² = 1 + (cn/sn)⁻².

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

    From 1 and √complement, arithmetic and geometric means a (`means`) and b (`roots`) are taken until they are equal to
    M (`middle`). There cn/sn is a cotangent, M/tan(M·place) up to the factor M, and dn is 1. From the last pair back to
    the first, ratio ← ratio · dn and dn ← (b + p)/(a + p), where p is the old ratio times its quotient by the later
    mean.
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
    for mean, root in zip(reversed(means), reversed(roots), strict=True):
        product = last * ratio
        ratio = ratio * delta
        delta = (root + product) / (mean + product)
        last = ratio / mean

    return ratio, delta


@njit(
    "void(float64[::1], float64[::1], float64[::1], float64, float64, float64[::1], float64[::1], float64[::1],"
    "float64[::1])",
    **OPTIONS,
)
def solve_pair(
    weights: Floats,
    profile: Floats,
    diagonal: Floats,
    off_diagonal: float,
    square: float,
    down: Floats,
    first: Floats,
    second: Floats,
    inverse: Floats,
) -> None:
    """Write A⁻¹μ, A⁻¹u, the diagonal of A⁻¹ and the pivots `down` of A = diag(μ) + square · T, without the first cell.

    T has `diagonal` on its main diagonal and −`off_diagonal` next to it. Pivots are the sums of rows plus the entries
    next to the diagonal, so that no term is subtracted. `weights` μ and `profile` u have all n + 1 cells; A⁻¹μ goes to
    `first`, A⁻¹u to `second`, the diagonal to `inverse`, each of length n.

    Cell i of A is cell i + 1 of the axis. `off` is the entry next to the diagonal with its sign reversed, `before` the
    row sum of the previous cell after elimination. The diagonal of the inverse is 1 / (pivot from the front + pivot
    from the end − diagonal), each written by row sums.
    """
    n = len(down)
    off = square * off_diagonal
    before = 0.0
    for i in range(n):
        weight, share, after = weights[i + 1], profile[i + 1], 0.0 if i == n - 1 else off
        row_sum = weight + square * (diagonal[i] - off_diagonal * ((i > 0) + (i < n - 1)))
        if i:  # eliminate the cell before
            ratio = off / down[i - 1]
            row_sum, weight = row_sum + before * ratio, weight + ratio * first[i - 1]
            share = share + ratio * second[i - 1]
        before, inverse[i], down[i], first[i], second[i] = row_sum, row_sum, row_sum + after, weight, share

    up = 0.0  # row sum after elimination from the last cell on
    for i in range(n - 1, -1, -1):
        after = 0.0 if i == n - 1 else off
        rest = 0.0 if i == n - 1 else off * up / (off + up)
        # row sum from the front plus what the cells behind add
        inverse[i] = 1 / (inverse[i] + rest)
        up = weights[i + 1] + square * (diagonal[i] - off_diagonal * ((i > 0) + (i < n - 1))) + rest
        first[i] = (first[i] + after * first[min(i + 1, n - 1)]) / down[i]
        second[i] = (second[i] + after * second[min(i + 1, n - 1)]) / down[i]


@njit("void(float64[::1], float64[::1], float64[::1], float64, float64[::1], float64[::1], float64[::1])", **OPTIONS)
def add_leverages(
    weights: Floats,
    profile: Floats,
    diagonal: Floats,
    off_diagonal: float,
    nodes: Floats,
    shares: Floats,
    leverage: Floats,
) -> None:
    """Add Σ_k share_k p_iᵀ (D̃ + s_k² T)⁻¹ p_i to the leverage of every cell i; p_i = e_i − u without its first cell.

    `weights` μ and `profile` u have all n cells; T has `diagonal` on its main diagonal and −`off_diagonal` next to it,
    on the last n − 1.

    D̃ = D − μμᵀ + (u − μ)(u − μ)ᵀ differs from D = diag(μ) by V [[−1, 0], [0, 1]] Vᵀ, V = [μ, u − μ]. With A = D + s²T,
    `first` = A⁻¹μ, `second` = A⁻¹u and `inverse` the diagonal of A⁻¹; a, b, c are VᵀA⁻¹V plus the inverse of that 2 × 2
    matrix (Woodbury), d and e are VᵀA⁻¹u. For the first cell p is −u, hence `total` = uᵀ(…)⁻¹u alone.

    k is a node of a quadrature: s_k = `nodes[k]` and share_k = `shares[k]`. `down` is scratch space (pivots). With M
    the 2 × 2 matrix, `along` and `across` are M⁻¹VᵀA⁻¹u, and `inside` is det M.
    """
    n = len(weights) - 1
    down, first, second, inverse = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for k in range(len(nodes)):
        square = nodes[k] * nodes[k]
        solve_pair(weights, profile, diagonal, off_diagonal, square, down, first, second, inverse)
        a, b, c, d, e = 0.0, 0.0, 0.0, 0.0, 0.0
        for i in range(n):  # inner products with V = [μ, u − μ]
            rest = profile[i + 1] - weights[i + 1]
            a += weights[i + 1] * first[i]
            b += weights[i + 1] * (second[i] - first[i])
            c += rest * (second[i] - first[i])
            d += weights[i + 1] * second[i]
            e += rest * second[i]

        # M = VᵀA⁻¹V + [[−1, 0], [0, 1]], whose inverse is itself
        a, c = a - 1, c + 1
        inside = a * c - b * b
        along, across, total = (c * d - b * e) / inside, (a * e - b * d) / inside, 0.0

        # uᵀ(…)⁻¹u
        for i in range(n):
            second_left = second[i] - (first[i] * along + (second[i] - first[i]) * across)
            total += profile[i + 1] * second_left

        leverage[0] += shares[k] * total
        for i in range(n):
            left, right = first[i], second[i] - first[i]
            # diagonal of A⁻¹V M⁻¹ VᵀA⁻¹, which the inverse loses
            changed = (left * (c * left - b * right) + right * (a * right - b * left)) / inside
            projected = second[i] - (left * along + right * across)
            # (e − u)ᵀ(…)⁻¹(e − u) for the unit vector e of cell i
            leverage[i + 1] += shares[k] * (inverse[i] - changed - 2 * projected + total)


@njit("void(float64[::1], float64[::1], float64, float64[:, ::1])", **OPTIONS)
def add_triangle(inverse: Floats, ratios: Floats, share: float, total: Floats) -> None:
    """Add the lower triangle of share · A⁻¹, from its diagonal and the ratios of neighbours in a column, to `total`.

    In the inverse of a tridiagonal matrix, columns i and i + 1 have one ratio in all rows below i, so entry (j, i) is
    that of (j, i + 1) times `ratios[i]`. Entries below NOTHING of the diagonal are omitted.
    """
    for j in range(len(inverse)):
        value = share * inverse[j]
        least = value * NOTHING
        total[j, j] += value
        for i in range(j - 1, -1, -1):
            value *= ratios[i]
            if value < least:
                break
            total[j, i] += value


@njit(
    "void(float64[::1], float64[::1], float64[::1], float64, float64[::1], float64[::1], float64[:, ::1],"
    "float64[:, ::1], float64[:, ::1])",
    **OPTIONS,
)
def add_inverses(
    weights: Floats,
    profile: Floats,
    diagonal: Floats,
    off_diagonal: float,
    nodes: Floats,
    shares: Floats,
    first: Floats,
    second: Floats,
    total: Floats,
) -> None:
    """Add the lower triangle of Σ_k share_k A_k⁻¹ to `total`, and write A_k⁻¹μ and A_k⁻¹u; see `solve_pair`.

    A_k is the tridiagonal matrix of node k of the quadrature; `square` is the square of the node, and `shares` has its
    weight.
    `first` receives A_k⁻¹μ and `second` A_k⁻¹u, with μ the weights and u the profile.
    """
    n = len(weights) - 1
    down, inverse = np.empty(n), np.empty(n)
    for k in range(len(nodes)):
        square = nodes[k] * nodes[k]
        solve_pair(weights, profile, diagonal, off_diagonal, square, down, first[k], second[k], inverse)
        for i in range(n):
            down[i] = square * off_diagonal / down[i]
        add_triangle(inverse, down, shares[k], total)


@njit("void(float64[::1], float64[::1], float64[::1], float64[::1], float64[::1], float64[::1])", **OPTIONS)
def add_diagonals(
    weights: Floats, sums: Floats, off_diagonal: Floats, nodes: Floats, shares: Floats, total: Floats
) -> None:
    """Add Σ_k share_k times the diagonal of (D + s_k² T)⁻¹, D = diag(weights), to `total`.

    T has `off_diagonal` ≤ 0 next to its main diagonal, and its rows have the sums `sums` ≥ 0. The pivots are those
    sums plus the entries next to the diagonal: no term is subtracted, because weights are far below s² at many nodes.

    `down` are the row sums after an elimination from the first row on, and `after` is what an elimination from the last
    row on adds; the diagonal entry of the inverse is 1/(down + after).

    k is a node of a quadrature: s_k = `nodes[k]` and share_k = `shares[k]`. `off` is the magnitude of the entry next to
    the diagonal of s² T, and `up` the row sum after the elimination from the last row on.
    """
    n = len(weights)
    down = np.empty(n)
    for k in range(len(nodes)):
        square = nodes[k] * nodes[k]
        for i in range(n):
            down[i] = weights[i] + square * sums[i]
            if i:
                off = -square * off_diagonal[i - 1]
                down[i] += off * down[i - 1] / (off + down[i - 1])

        up = 0.0
        for i in range(n - 1, -1, -1):
            after = 0.0
            if i < n - 1:
                off = -square * off_diagonal[i]
                after = off * up / (off + up)
            total[i] += shares[k] / (down[i] + after)
            up = weights[i] + square * sums[i] + after


@njit("void(float64[::1], float64[::1], float64[::1], float64[::1], float64[::1], float64[:, ::1])", **OPTIONS)
def add_chain_inverses(
    weights: Floats, sums: Floats, off_diagonal: Floats, nodes: Floats, shares: Floats, total: Floats
) -> None:
    """Add the lower triangle of Σ_k share_k (D + s_k² T)⁻¹ to `total`; see `add_diagonals`.

    D is the diagonal of `weights`, and T the tridiagonal matrix with rows that sum to `sums` ≥ 0 and `off_diagonal` ≤ 0
    next to the diagonal. Elimination from the first cell on leaves `down[i]`, the sum of row i plus what the cells
    before it add; elimination from the last cell on adds `after`. Both together are the inverse of the diagonal of the
    inverse, and `ratios` are the quotients of its neighbouring entries. Only positive numbers are added.
    """
    n = len(weights)
    down, ratios, inverse = np.empty(n), np.empty(n), np.empty(n)
    for k in range(len(nodes)):
        square = nodes[k] * nodes[k]
        for i in range(n):
            down[i] = weights[i] + square * sums[i]
            if i:
                # magnitude of the entry next to the diagonal; `down` of the cell before plus it is the pivot
                off = -square * off_diagonal[i - 1]
                ratios[i - 1] = off / (off + down[i - 1])
                down[i] += down[i - 1] * ratios[i - 1]

        # the same from the last cell on: `up` is the row sum after elimination of the cells behind
        up = 0.0
        for i in range(n - 1, -1, -1):
            after = 0.0
            if i < n - 1:
                off = -square * off_diagonal[i]
                after = off * up / (off + up)
            inverse[i] = 1 / (down[i] + after)
            up = weights[i] + square * sums[i] + after

        add_triangle(inverse, ratios, shares[k], total)
