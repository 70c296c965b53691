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
from numpy.typing import NDArray

from dpscale.base.arrays import Floats
from dpscale.optimize.symmetry import SymmetryBlocks, split
from dpscale.plans.factor import Factor

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


@dataclass(frozen=True)
class Solution:
    """A subworkload's strategy with its coefficient L (noise of the lattice included) and a lower bound of L."""

    factors: tuple[Factor, ...]
    coefficient: float
    bound: float


class Solve(Protocol):
    """Solves the problem of one Gram FᵀF of trace 1 on the cells of `shape`; equal keys mean equal problems.

    Where the key is None the problem is a passing one, and is not kept. `tolerance` None: the solver's own.
    """

    def __call__(
        self, key: str | None, rows: Floats, shape: tuple[int, ...], tolerance: float | None = None
    ) -> Optimum: ...


LEAST = 1e-14


def slope(rows: Floats, shape: tuple[int, ...], optimum: Optimum) -> Floats:
    """Y of the problem of `rows` (r, cells) at its optimum: (cells, cells)."""
    blocks = split(rows, shape)
    point = Point(blocks, optimum.weights)
    cells = _on_cells(optimum, blocks)
    parts = [
        blocks.expand(block, np.maximum(values, values.max() * LEAST)[:, None] ** -0.75 * turned) * cells
        for block, values, turned in zip(blocks.blocks, point.values, point.turned, strict=True)
    ]
    stacked = np.concatenate(parts)
    return np.asarray(point.trace * stacked.T @ stacked)


def cell_weights(rows: Floats, shape: tuple[int, ...], optimum: Optimum) -> Floats:
    """μ on every cell, where the optimum has it on the orbits of the problem's symmetries."""
    return _on_cells(optimum, split(rows, shape))


def dual(rows: Floats, weights: Floats) -> float:
    """(tr M^½)² at some weights of the cells: no strategy for the Gram of the rows goes below."""
    return float(np.linalg.svd(rows * np.sqrt(weights), compute_uv=False).sum() ** 2)


def _on_cells(optimum: Optimum, blocks: SymmetryBlocks) -> Floats:
    return np.asarray((optimum.weights / np.bincount(blocks.orbit))[blocks.orbit])
