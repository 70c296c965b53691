"""The optimal strategy of one subworkload, with a certificate.

QuerySmasher's problem (section 6):  L = min tr(G X⁺)  over X ⪰ 0, diag(X) ≤ 1, range(X) ⊇ range(G).
With G = FᵀF of full row rank and weights μ ≥ 0, Σμ = 1, let M = F diag(μ) Fᵀ. For every μ
    (tr M^½)² ≤ L                                     (dual, by Cauchy–Schwarz), and
    X = Fᵀ M^{−½} F  gives  tr(G X⁺) = tr M^½,  Σ μ_i X_ii = tr M^½,
so X / max X_ii is a primal point of value tr M^½ · max X_ii, and max X_ii / tr M^½ − 1 is its certified gap. At the
optimum X_ii = tr M^½ wherever μ_i > 0. We iterate log μ ← log μ + 2 log(X_ii / tr M^½), a fixed point of that
condition, accelerated by Anderson mixing; a step that lowers the dual is dropped. That is fast where every μ_i > 0;
where the optimum leaves cells out, an interior point method (`barrier`) takes over. Symmetries of G cut M into blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpscale.select.barrier import Point, polish
from dpscale.select.symmetry import Blocks, split

Array = NDArray[np.float64]

MEMORY = 15
POWER = 2.0
TOLERANCE = 1e-9
STEPS = 80


@dataclass(frozen=True)
class Optimum:
    """The strategy B (rows × cells, largest column norm 1) with its primal value and the dual bound."""

    root: Array
    primal: float
    dual: float

    @property
    def gap(self) -> float:
        return self.primal / self.dual - 1


def optimise(rows: Array, shape: tuple[int, ...] | None = None, tolerance: float = TOLERANCE) -> Optimum:
    """Solve the problem for one Gram matrix G = FᵀF, given by its rows F, (r, n).

    `shape`: the sizes of the axes that the n cells are made of, row-major; it only helps to find symmetries.
    """
    blocks = split(rows, shape or (rows.shape[1],))
    best = fixed_point(blocks, tolerance)
    if best.ratio - 1 > tolerance:
        best = polish(best, tolerance)
    return Optimum(best.root(), best.trace**2 * best.ratio, best.trace**2)


def fixed_point(blocks: Blocks, tolerance: float) -> Point:
    """Anderson-mixed fixed point from uniform weights; the best point met."""
    sizes = np.bincount(blocks.orbit).astype(np.float64)
    log_weights = np.log(sizes / sizes.sum())
    mixing, best = _Anderson(), None
    for _ in range(STEPS):
        weights = np.exp(log_weights - log_weights.max())
        weights /= weights.sum()
        point = Point(blocks, weights)
        best = point if best is None or point.ratio < best.ratio else best
        if best.ratio - 1 <= tolerance:
            break
        change = POWER * np.log(np.maximum(point.leverage / point.trace, 1e-300))
        log_weights = mixing.next(np.log(np.maximum(weights, 1e-300)), change, point.trace)
    assert best is not None
    return best


class _Anderson:
    """Anderson mixing of a fixed-point iteration; falls back to the plain step when the dual drops."""

    def __init__(self) -> None:
        self.points: list[Array] = []
        self.changes: list[Array] = []
        self.value = -np.inf

    def next(self, point: Array, change: Array, value: float) -> Array:
        if value < self.value * (1 - 1e-13) and self.points:
            point, change = self.points[-1], self.changes[-1]
            self.points, self.changes, self.value = [], [], -np.inf
            return np.asarray(point + change)
        self.value = value
        self.points = [*self.points[1 - MEMORY :], point]
        self.changes = [*self.changes[1 - MEMORY :], change]
        if len(self.points) == 1:
            return np.asarray(point + change)
        d_change = np.stack([change - other for other in self.changes[:-1]], axis=1)
        d_point = np.stack([point - other for other in self.points[:-1]], axis=1)
        mix = np.linalg.lstsq(d_change, change, rcond=1e-10)[0]
        return np.asarray(point + change - (d_point + d_change) @ mix)
