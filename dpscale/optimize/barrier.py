"""An interior point method for the dual, for optima that give some cells no weight.

tr M^½ is homogeneous of degree ½ in μ, so its maximum over the simplex is that of 2 tr M^½ − Σμ over μ ≥ 0, where the
conditions are s_i = 1 − X_ii ≥ 0, μ_i ≥ 0, μ_i s_i = 0. With M = Σ λ_k u_k u_kᵀ and y_k = u_kᵀF,
    −∂X_ii/∂μ_j = H_ij = Σ_kl y_ki y_li y_kj y_lj / (√λ_k √λ_l (√λ_k + √λ_l)),
and a primal-dual Newton step for μ_i s_i = t solves (H + diag(s/μ)) dμ = X_ii − 1 + t/μ_i.
"""

from __future__ import annotations

import math
import time

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats
from dpscale.optimize.symmetry import SymmetryBlocks

NEWTON_STEPS = 60
TO_BOUNDARY = 0.95
FLOOR = 1e-6
ROUNDS = 12
NEAR = 0.9
KEPT = 1e-3
MIXED = 1e-6


class Point:
    """One μ with its trace tr M^½, the diagonal of X (`leverage`) on the orbits, and the ratio that certifies it."""

    def __init__(self, blocks: SymmetryBlocks, weights: Floats) -> None:
        self.blocks, self.weights = blocks, weights
        self.turned: list[Floats] = []
        self.values: list[Floats] = []
        for block in blocks.blocks:
            values, vectors = np.linalg.eigh((block.rows * weights) @ block.rows.T)
            self.values.append(np.maximum(values, values[-1] * 1e-30))
            self.turned.append(vectors.T @ block.rows)
        pairs = list(zip(self.turned, self.values, strict=True))
        self.trace = float(sum(np.sqrt(values).sum() for values in self.values))
        self.leverage: Floats = np.sum([(rows**2 / np.sqrt(values)[:, None]).sum(0) for rows, values in pairs], axis=0)
        self.ratio = float(self.leverage.max()) * float(weights.sum()) / self.trace

    def normal(self) -> Point:
        """The same point with weights that sum to 1."""
        return Point(self.blocks, self.weights / self.weights.sum())

    def root(self) -> Floats:
        """B with BᵀB = X / max X_ii, on all cells."""
        parts = [
            self.blocks.expand(block, values[:, None] ** -0.25 * rows)
            for block, rows, values in zip(self.blocks.blocks, self.turned, self.values, strict=True)
        ]
        return np.asarray(np.concatenate(parts) / np.sqrt(self.leverage.max()))

    def curvature(self) -> Floats:
        """H, on the orbits."""
        total = np.zeros((len(self.weights),) * 2)
        for rows, values in zip(self.turned, self.values, strict=True):
            roots = np.sqrt(values)
            for k, row in enumerate(rows):
                others = rows[k:] * row * np.sqrt(1 / (roots[k] * roots[k:] * (roots[k] + roots[k:])))[:, None]
                others[1:] *= np.sqrt(2.0)
                total += others.T @ others
        return total


def polish(start: Point, tolerance: float, deadline: float = math.inf) -> Point:
    """Take a point to the tolerance, or as far as the deadline lets: Newton on the cells that can carry weight.

    A cell can carry weight when its leverage is near the largest; few can, and the certificate is taken on all cells.
    """
    best, weights = start, start.weights
    chosen = np.zeros(len(weights), dtype=bool)
    for _ in range(ROUNDS):
        point = Point(start.blocks, weights)
        chosen |= (point.leverage > NEAR * point.leverage.max()) | (weights > KEPT * weights.max())
        orbits = np.flatnonzero(chosen)
        optimum = interior_point(Point(start.blocks.only(orbits), weights[orbits]), tolerance / 2, deadline)
        weights = np.zeros(len(weights))
        weights[orbits] = optimum.weights
        point = Point(start.blocks, weights / weights.sum())
        best = point if point.ratio < best.ratio else best
        if best.ratio - 1 <= tolerance or chosen.all() or time.monotonic() >= deadline:
            break
        weights = point.weights + MIXED * weights.mean()
    return best


def interior_point(start: Point, tolerance: float, deadline: float = math.inf) -> Point:
    """Newton steps from a good point until the certificate is within the tolerance; the best point met, normalised."""
    weights = start.weights / start.weights.sum()
    point = Point(start.blocks, np.maximum(weights, weights.max() * FLOOR) * start.trace)
    slack = np.maximum(1 - point.leverage, 1e-4)
    best = start
    for _ in range(NEWTON_STEPS):
        target = 0.2 * float(point.weights @ slack) / len(slack)
        gradient = 1 - point.leverage - target / point.weights
        step = -np.linalg.solve(point.curvature() + np.diag(slack / point.weights), gradient)
        slack_step = (target - slack * step) / point.weights - slack
        length = min(_to_boundary(point.weights, step), _to_boundary(slack, slack_step))
        slack = slack + length * slack_step
        point = Point(point.blocks, point.weights + length * step)
        best = point if point.ratio < best.ratio else best
        if best.ratio - 1 <= tolerance or time.monotonic() >= deadline:
            break
    return best.normal()


def _to_boundary(values: NDArray[np.floating], step: NDArray[np.floating]) -> float:
    """How far a step can go before a value loses most of itself."""
    falling = step < 0
    return min(1.0, TO_BOUNDARY * float((values[falling] / -step[falling]).min(initial=np.inf)))
