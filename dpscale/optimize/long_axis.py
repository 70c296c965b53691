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
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from dpscale.base.numerics import Floats
from dpscale.optimize.convex import Optimum, Solve, iterate_fixed_point
from dpscale.optimize.integer_strategies import centring_rounder
from dpscale.optimize.quadrature import root_quadrature
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
        from dpscale.plans.long_axis_loops import add_leverages  # numba, needed only for long axes

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
        from dpscale.plans.long_axis_loops import add_inverses

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

    def rounded(self, optimum: Optimum, bits: int, noise: str) -> tuple[Factor, float]:
        """Return an integer strategy near the optimum and its error coefficient."""
        factor = centring_rounder((self.size,), self.weights)(np.ldexp(optimum.root, bits))
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
        from dpscale.plans.long_axis_loops import add_diagonals  # numba, needed only for many cells

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
        from dpscale.plans.long_axis_loops import add_chain_inverses

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
        """Return the error of the normalised root and a bound; the general solver `solve` is not needed."""
        error, (family, weight), size = self._error(GAUSSIAN), self.gram.asked[0], self.gram.size
        alone = len(self.gram.asked) == 1
        bound = (
            weight * centred_bound(cast(Family, family), size, self.gram.weights) if alone else self.gram.lower_bound
        )
        return Optimum(root=np.zeros((0, 0)), primal=error, dual=min(bound, error), weights=np.zeros(0))

    def rounded(self, optimum: Optimum, bits: int, noise: str) -> tuple[Factor, float]:
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
