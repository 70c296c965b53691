"""OPT0 for Gram matrices whose inverse is tridiagonal, in linear time per evaluation: prefix or range queries.

With weights μ, D = diag(μ) and T = G⁻¹, the optimum for μ (`convex`) is X = D^−½ S^½ D^−½, S = D^½ G D^½, and
    X_ii = (2/π) ∫ [(D + s² T)⁻¹]_ii ds,
about thirty tridiagonal solves with the quadrature of `long_axis`. The strategy needs the eigenvectors of the
tridiagonal matrix S⁻¹, in quadratic time; they also certify it. The centred problem of one axis is `long_axis`.

For G with tridiagonal inverse (a Green's matrix, the covariance of a Markov chain) T is the sum of the inverses of the
2 × 2 blocks on the diagonal, minus 1/G_ii for each inner cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpscale.base.numerics import Floats
from dpscale.optimize.convex import Optimum, iterate_fixed_point
from dpscale.optimize.long_axis import BELOW, LinearPoint, quadrature

FEWEST = 128  # cells below which the general solver is as fast
EXACT = 1e-9  # tolerance of GT = I
ITERATED = 0.5  # of the tolerance: left for rounding of the certificate


@dataclass(frozen=True, eq=False)
class ChainGram:
    """Gram matrix (n, n) with its tridiagonal inverse T: main diagonal and the one next to it."""

    gram: Floats
    diagonal: Floats
    off_diagonal: Floats

    def times(self, rows: Floats) -> Floats:
        """Return rows (r, n) times the Gram matrix G_ij = a_i b_j, i ≤ j, in linear time."""
        after = self.gram[0]
        before = np.diag(self.gram) / after
        upper = np.cumsum(rows * before, axis=1) * after
        lower = rows * after
        rest = np.cumsum(lower[:, ::-1], axis=1)[:, ::-1] - lower
        return np.asarray(upper + rest * before)

    @cached_property
    def least_eigenvalue(self) -> float:
        """Lower bound of the eigenvalues of the Gram matrix, by Gershgorin's circles of T."""
        outside = np.abs(np.pad(self.off_diagonal, (1, 0))) + np.abs(np.pad(self.off_diagonal, (0, 1)))
        return float(1 / (self.diagonal + outside).max())

    def evaluate(self, weights: Floats) -> LinearPoint:
        """Return the leverages at weights of the cells."""
        from dpscale.optimize.long_axis_loops import add_diagonals  # numba, needed only for many cells

        largest = float(weights @ np.diag(self.gram))
        least = min(BELOW * float(weights.min()) * self.least_eigenvalue, largest / 2)
        nodes, shares = quadrature(least, largest)
        leverage = np.zeros(len(weights))
        add_diagonals(np.ascontiguousarray(weights), self.diagonal, self.off_diagonal, nodes, shares, leverage)
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
        n = len(self.gram)
        begin = np.full(n, 1 / n) if start is None or start.shape != (n,) or start.min() <= 0 else start
        return self._certified(iterate_fixed_point(self.evaluate, begin, ITERATED * tolerance, math.inf).weights)

    def _certified(self, weights: Floats) -> Optimum:
        """Return the strategy at some weights of sum 1."""
        from scipy.linalg import eigh_tridiagonal

        roots = np.sqrt(weights)
        values, vectors = eigh_tridiagonal(self.diagonal / weights, self.off_diagonal / (roots[:-1] * roots[1:]))
        values = 1 / np.sqrt(values)  # of S^½
        root = (vectors * np.sqrt(values)).T / roots
        leverage, total = float((root**2).sum(axis=0).max()), float(values.sum())
        return Optimum(root / math.sqrt(leverage), total * leverage, total**2, weights)


def chain_of(gram: Floats) -> ChainGram | None:
    """Return a Gram matrix with its inverse, if it has many cells and the inverse is tridiagonal; None otherwise."""
    if len(gram) < FEWEST:
        return None
    main, beside = np.diag(gram), np.diag(gram, 1)
    determinants = main[:-1] * main[1:] - beside**2
    if main.min() <= 0 or determinants.min() <= 0:
        return None
    diagonal = np.pad(main[1:] / determinants, (0, 1)) + np.pad(main[:-1] / determinants, (1, 0))
    diagonal[1:-1] -= 1 / main[1:-1]
    off_diagonal = -beside / determinants
    product = diagonal[:, None] * gram
    product[:-1] += off_diagonal[:, None] * gram[1:]
    product[1:] += off_diagonal[:, None] * gram[:-1]
    product[np.diag_indices(len(gram))] -= 1
    return ChainGram(gram, diagonal, off_diagonal) if float(np.abs(product).max()) <= EXACT else None
