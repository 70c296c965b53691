"""Optimum for prefix or range queries on one long axis, in linear time per evaluation instead of cubic time.

Centred by u, the Gram matrix is that of G₀ relative to the first cell, G₀(i, j) = G(i, j) − G(0, j) − G(i, 0) + G(0,
0), and G₀⁻¹ is tridiagonal: prefix queries are a random walk, range queries a walk between two absorbing ends. With P =
I − 1uᵀ and weights μ,
    X_ii = p_iᵀ M^{−½} p_i = (2/π) ∫ p_iᵀ (D̃ + s² G₀⁻¹)⁻¹ p_i ds,
    p_i = e_i − u,   D̃ = PᵀDP = D − μμᵀ + (u − μ)(u − μ)ᵀ,
without the first cell. One evaluation of μ (`convex`) is therefore about thirty tridiagonal solves, with the quadrature
nodes of Hale, Higham and Trefethen (2008). The final strategy is a Cholesky factor of X, which the same sum of inverses
gives and which also certifies it. Circular ranges are invariant under rotation: their weights are uniform, and no
search is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpscale.base.numerics import Floats
from dpscale.optimize.convex import Optimum, Solve, iterate_fixed_point
from dpscale.optimize.integer_strategies import centring_rounder
from dpscale.plans.factor import Factor
from dpscale.plans.toeplitz import root_quadrature
from dpscale.workload import Family, GramFactor
from dpscale.workload.residual import Weights, profile_of
from dpscale.workload.wide import LONG, weighted_piece

NODES, BELOW = 32, 0.05  # quadrature nodes; factor below the least value of D·G₀ for eigenvalues of M
SAME = 1e-12  # tolerance of symmetry
TOLERANCE = 1e-7
EXACTLY = 1 - 1e-9  # for the error of the quadrature, so that the bound is not above the optimum


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
        """Return the quadrature for the eigenvalues of M, not scaled."""
        assert self.tridiagonal is not None
        largest = float(weights @ self.main)
        least = BELOW * float(weights.min()) * (0.25 / self.tridiagonal[1])
        return root_quadrature(min(least, largest / 2), largest, NODES)

    def solved(self, solve: Solve) -> Optimum:
        """Return the optimum; the general solver `solve` is not needed."""
        start = np.full(self.size, 1 / self.size)
        if self.tridiagonal is None:
            return self.certified(start)
        weights = iterate_fixed_point(self.evaluate, start, TOLERANCE, math.inf).weights
        mirrored = np.abs(self.profile - self.profile[::-1]).max() <= SAME  # the queries are, up to the total
        return self._factored((weights + weights[::-1]) / 2 if mirrored else weights)

    def _factored(self, weights: Floats) -> Optimum:
        """Return the strategy at some weights with its certificate: a Cholesky factor of X, without eigenvectors."""
        from dpscale.plans.long_axis_loops import add_inverses

        nodes, shares = self._nodes(weights)
        n, apart = self.size - 1, (self.profile - weights)[1:]
        first, second, total = np.zeros((len(nodes), n)), np.zeros((len(nodes), n)), np.zeros((n, n))
        assert self.tridiagonal is not None
        add_inverses(weights, self.profile, *self.tridiagonal, nodes, shares, first, second, total)
        total += np.tril(total, -1).T
        second -= first
        a, b, c = first @ weights[1:] - 1, second @ weights[1:], second @ apart + 1
        scales = shares / (a * c - b * b)
        crossed = (first * (scales * b)[:, None]).T @ second
        total -= (first * (scales * c)[:, None]).T @ first + (second * (scales * a)[:, None]).T @ second
        upper = np.linalg.cholesky(total + crossed + crossed.T).T
        means = upper @ self.profile[1:]
        root = np.concatenate([np.zeros((n, 1)), upper], axis=1) - means[:, None]
        squares, scale = (root**2).sum(axis=0), math.sqrt(self.trace)
        leverage, value = float(squares.max()), float(weights @ squares) / scale

        return Optimum(root / math.sqrt(leverage), value * leverage / scale, value**2 * EXACTLY, weights)

    def certified(self, weights: Floats) -> Optimum:
        """Return the strategy at some weights with its certificate, for a Gram matrix of trace 1."""
        roots = np.sqrt(weights)
        values, rows = decompose_symmetric(self.gram * np.outer(roots, roots) / self.trace)
        values = np.sqrt(values[1:])  # the smallest, 0, is that of u
        root = rows[1:] * np.sqrt(values)[:, None] / roots
        leverage, total = float((root**2).sum(axis=0).max()), float(values.sum())
        return Optimum(root / math.sqrt(leverage), total * leverage, total**2, weights)

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


def generators(family: Family, size: int) -> tuple[Floats, Floats]:
    """Return a and b of the Gram matrix G_ij = a_i b_j, i ≤ j, of a family with a tridiagonal inverse."""
    ends = np.zeros((size, 2))
    ends[0, 0] = ends[-1, 1] = 1.0
    first, last = family.times_gram(ends).T
    return last / first[-1], first


def long_family(factor: GramFactor, shape: tuple[int, ...], weights: tuple[Weights | None, ...]) -> Family | None:
    """Return the family of a Gram matrix on one long axis; None if the general solver is needed."""
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

    half = len(form) // 2
    own, across = form[:half, :half], form[:half, ::-1][:, :half]
    even = own + across
    if len(form) % 2:
        off_diagonal = math.sqrt(2) * form[:half, half : half + 1]
        even = np.block([[even, off_diagonal], [off_diagonal.T, form[half : half + 1, half : half + 1]]])

    values, vectors = np.linalg.eigh(even)
    odd_values, odd = np.linalg.eigh(own - across)
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
