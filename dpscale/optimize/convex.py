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

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.optimize.barrier import Point, polish
from dpscale.optimize.symmetry import SymmetryBlocks, split

MEMORY = 15
POWER = 2.0
TOLERANCE = 1e-9
STEPS, FEWEST_STEPS = 80, 8
WORK, NEWTON_WORK = 6e11, 1e10  # operations of all steps, and of one Newton step
NOTHING = -600.0  # of a log weight: less would be 0, and its cells could not come back


@dataclass(frozen=True)
class Optimum:
    """The strategy B (rows × cells, largest column norm 1) with its primal value and the dual bound.

    `weights`: μ, from which all three follow; a warm start for the next time. `ended`: what stopped the search, "gap"
    (the tolerance is met), "time" or "steps".
    """

    root: Floats
    primal: float
    dual: float
    weights: Floats
    ended: str = "gap"

    @property
    def gap(self) -> float:
        return self.primal / self.dual - 1


def optimise(
    rows: Floats,
    shape: tuple[int, ...] | None = None,
    tolerance: float = TOLERANCE,
    seconds: float = math.inf,
    start: Floats | None = None,
) -> Optimum:
    """Solve the problem for one Gram matrix G = FᵀF, given by its rows F, (r, n).

    `shape`: the sizes of the axes that the n cells are made of, row-major; it only helps to find symmetries. The search
    ends at the gap `tolerance`, or after about `seconds`. `start`: the weights of an earlier optimum of this problem.
    Large problems end after fewer steps, which follow from their size alone: the gap is larger then, and known.
    """
    blocks, deadline = split(rows, shape or (rows.shape[1],)), time.monotonic() + seconds
    best = fixed_point(blocks, tolerance, deadline, start)
    if best.ratio - 1 > tolerance and time.monotonic() < deadline and _newton_work(blocks) <= NEWTON_WORK:
        best = polish(best, tolerance, deadline)
    return _optimum(best, tolerance, deadline)


def roughly(
    rows: Floats, shape: tuple[int, ...], tolerance: float, seconds: float = math.inf, start: Floats | None = None
) -> Optimum:
    """The fixed point alone, for searches that need no certificate; the dual is a bound all the same."""
    deadline = time.monotonic() + seconds
    return _optimum(fixed_point(split(rows, shape), tolerance, deadline, start), tolerance, deadline)


def _optimum(best: Point, tolerance: float, deadline: float) -> Optimum:
    ended = "gap" if best.ratio - 1 <= tolerance else "time" if time.monotonic() >= deadline else "steps"
    return Optimum(best.root(), best.trace**2 * best.ratio, best.trace**2, best.weights, ended)


def fixed_point(
    blocks: SymmetryBlocks, tolerance: float, deadline: float = math.inf, start: Floats | None = None
) -> Point:
    """Anderson-mixed fixed point from uniform weights, or those given; the best point met."""
    sizes = np.bincount(blocks.orbit).astype(np.float64)
    if start is None or start.shape != sizes.shape or start.min() < 0 or start.max() <= 0:
        start = sizes / sizes.sum()
    steps = int(np.clip(WORK / _step_work(blocks), FEWEST_STEPS, STEPS))
    return mixed(partial(Point, blocks), start, tolerance, deadline, steps)


def _step_work(blocks: SymmetryBlocks) -> float:
    """Floating-point operations of one look at μ, about: two products of the rows, and eigenvectors."""
    return sum(4.0 * len(one.rows) ** 2 * one.rows.shape[1] + 10.0 * len(one.rows) ** 3 for one in blocks.blocks)


def _newton_work(blocks: SymmetryBlocks) -> float:
    """The same of one Newton step of `barrier`, if all cells can carry weight."""
    return sum(float(one.rows.size) ** 2 for one in blocks.blocks)


class Looked(Protocol):
    """What one look at μ tells (see `barrier.Point`)."""

    @property
    def weights(self) -> Floats: ...
    @property
    def leverage(self) -> Floats: ...
    @property
    def trace(self) -> float: ...
    @property
    def ratio(self) -> float: ...


Look = TypeVar("Look", bound=Looked)


def mixed(look: Callable[[Floats], Look], start: Floats, tolerance: float, deadline: float, steps: int = STEPS) -> Look:
    """The fixed point of the condition on μ from a start, Anderson-mixed; the best point met."""
    best = look(start)
    log_weights = np.log(np.maximum(best.weights, 1e-300))
    mixing = Mixing()
    for step in range(steps):
        weights = np.exp(np.maximum(log_weights - log_weights.max(), NOTHING))
        point = look(weights / weights.sum()) if step else best
        best = point if point.ratio < best.ratio else best
        if best.ratio - 1 <= tolerance or time.monotonic() >= deadline:
            break
        change = POWER * np.log(np.maximum(point.leverage / point.trace, 1e-300))
        log_weights = mixing.next(np.log(np.maximum(point.weights, 1e-300)), change, point.trace)
    return best


class Mixing:
    """Anderson mixing of a fixed-point iteration; falls back to the plain step when the dual drops."""

    def __init__(self) -> None:
        self.points: list[Floats] = []
        self.changes: list[Floats] = []
        self.value = -np.inf

    def next(self, point: Floats, change: Floats, value: float) -> Floats:
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
