"""Optimal strategy of one subworkload, with a certificate.

The problem of QuerySmasher (section 6) is  L = min tr(G X⁺)  over X ⪰ 0, diag(X) ≤ 1, range(X) ⊇ range(G).
With G = FᵀF of full row rank and weights μ ≥ 0, Σμ = 1, let M = F diag(μ) Fᵀ. For every μ
    (tr M^½)² ≤ L                                     (dual, by Cauchy–Schwarz), and
    X = Fᵀ M^{−½} F  gives  tr(G X⁺) = tr M^½,  Σ μ_i X_ii = tr M^½,
so X / max X_ii is a primal point of value tr M^½ · max X_ii, and max X_ii / tr M^½ − 1 is its certified gap. At the
optimum X_ii = tr M^½ wherever μ_i > 0. The iteration log μ ← log μ + 2 log(X_ii / tr M^½) has this condition as its
fixed point and is accelerated by Anderson mixing; a step that lowers the dual is rejected. It is fast if every μ_i > 0.
If cells have weight 0 at the optimum, an interior-point method (`polish`) finishes. Symmetries of G split M into
blocks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self, TypeVar

import numpy as np

from dpscale.base.deadline import check_planning_time
from dpscale.base.numerics import Floats, NDArray
from dpscale.optimize.symmetry import SymmetryBlocks, split
from dpscale.plans.factor import Factor

NEWTON_STEPS = 60  # most steps of the interior-point method
TO_BOUNDARY = 0.95  # largest fraction of a weight or a slack that one Newton step removes
FLOOR = 1e-6  # least weight at the start of the interior-point method, relative to the largest
ROUNDS = 12  # most rounds of `polish`, each with more cells that may have weight
NEAR = 0.9  # share of the largest leverage above which a cell may have weight
WEIGHT_THRESHOLD = 1e-3  # share of the largest weight above which a cell may have weight
MIXED = 1e-6  # part of the mean weight that every cell receives after a round, so that none stays at 0


class DualPoint:
    """One μ with its trace tr M^½, the diagonal of X (`leverage`) on the orbits, and the ratio of primal to dual."""

    def __init__(self, blocks: SymmetryBlocks, weights: Floats) -> None:
        """Decompose M in each block of symmetric cells: its eigenvalues `values`, and its rows in the eigenvectors.

        The rows of a block are F on its orbits, and M = rows · diag(weights) · rowsᵀ; `values` are kept above 0.
        """
        self.blocks, self.weights = blocks, weights
        self.rotated: list[Floats] = []
        self.values: list[Floats] = []
        roots = np.sqrt(weights)
        for block in blocks.blocks:
            half = block.rows * roots
            values, vectors = np.linalg.eigh(half @ half.T)  # a symmetric product, in half the time
            self.values.append(np.maximum(values, values[-1] * 1e-30))
            self.rotated.append(vectors.T @ block.rows)

        pairs = list(zip(self.rotated, self.values, strict=True))
        self.trace = float(sum(np.sqrt(values).sum() for values in self.values))
        self.leverage: Floats = np.sum([(rows**2 / np.sqrt(values)[:, None]).sum(0) for rows, values in pairs], axis=0)
        self.ratio = float(self.leverage.max()) * float(weights.sum()) / self.trace

    def at(self, weights: Floats) -> DualPoint:
        """Return the point of other weights."""
        return DualPoint(self.blocks, weights)

    def solve(self, diagonal: Floats, right: Floats) -> Floats:
        """Return x with (H + diag) x = right, where H is the curvature."""
        return np.asarray(np.linalg.solve(self.curvature() + np.diag(diagonal), right))

    def root(self) -> Floats:
        """Return B with BᵀB = X / max X_ii, on all cells.

        X = Fᵀ M^(−½) F in the symmetry blocks: eigenvalues to the power −¼ on the rotated rows give a root, and
        `leverage` is the diagonal of X.
        """
        parts = [
            self.blocks.expand(block, values[:, None] ** -0.25 * rows)
            for block, rows, values in zip(self.blocks.blocks, self.rotated, self.values, strict=True)
        ]
        return np.asarray(np.concatenate(parts) / np.sqrt(self.leverage.max()))

    def curvature(self) -> Floats:
        """Return the matrix H of the second derivatives of the trace on the orbits, up to a factor.

        With M = V diag(λ) Vᵀ and the rotated rows F̃ = Vᵀ F, H_ij = Σ_kl F̃_ki F̃_li F̃_kj F̃_lj / (√λ_k √λ_l (√λ_k +
        √λ_l)), from the derivative of M^½ in its eigenbasis. Each pair k < l is added once, times 2 (√2 on both sides).
        """
        total = np.zeros((len(self.weights),) * 2)
        for rows, values in zip(self.rotated, self.values, strict=True):
            roots = np.sqrt(values)
            for k, row in enumerate(rows):
                others = rows[k:] * row * np.sqrt(1 / (roots[k] * roots[k:] * (roots[k] + roots[k:])))[:, None]
                others[1:] *= np.sqrt(2.0)
                total += others.T @ others
        return total


def polish(start: DualPoint, tolerance: float, deadline: float = math.inf) -> DualPoint:
    """Refine a point by Newton steps until the tolerance or the deadline, on the cells that may have positive weight.

    A cell may have positive weight if its leverage is near the largest; these are few. The certificate covers all
    cells.

    After each round the candidates receive a little weight, so that one at 0 can increase again.
    """
    best, weights = start, start.weights
    chosen = np.zeros(len(weights), dtype=bool)
    for _ in range(ROUNDS):
        point = DualPoint(start.blocks, weights)
        chosen |= (point.leverage > NEAR * point.leverage.max()) | (weights > WEIGHT_THRESHOLD * weights.max())
        orbits = np.flatnonzero(chosen)
        subset, total = DualPoint(start.blocks.only(orbits), weights[orbits]), weights[orbits].sum()
        optimum = interior_point(subset, tolerance / 2, deadline, total=total)
        weights = np.zeros(len(weights))
        weights[orbits] = optimum.weights / optimum.weights.sum()
        point = DualPoint(start.blocks, weights / weights.sum())
        best = point if point.ratio < best.ratio else best
        if best.ratio - 1 <= tolerance or chosen.all() or time.monotonic() >= deadline:
            break
        weights = point.weights + MIXED * weights.mean()

    return best


def interior_point(
    start: NewtonPoint,
    tolerance: float,
    deadline: float = math.inf,
    steps: int = NEWTON_STEPS,
    total: float | np.floating = 1.0,
) -> NewtonPoint:
    """Take primal-dual Newton steps from a good point until the gap is within the tolerance; return the best point.

    With the weights unscaled, such that Σ w = trace, and s = 1 − leverage ≥ 0, the optimum has w s = 0. `total` is the
    sum of the weights of the start.

    Newton's equation for w_i s_i = target, with `target` a fifth of the mean of w s: the step of w solves (H +
    diag(s/w)) Δw = leverage − 1 + target/w, and the slack's step is (target − s Δw)/w − s. Both take the same length.
    """
    weights = start.weights / total
    point = start.at(np.maximum(weights, weights.max() * FLOOR) * start.trace)
    slack = np.maximum(1 - point.leverage, 1e-4)
    best = start

    for _ in range(steps):
        check_planning_time()
        target = 0.2 * float(point.weights @ slack) / len(slack)

        try:
            step = point.solve(slack / point.weights, point.leverage - 1 + target / point.weights)
        except np.linalg.LinAlgError:  # the precision of floats is reached: the gap of the best point is certified
            break

        slack_step = (target - slack * step) / point.weights - slack
        length = min(to_boundary(point.weights, step), to_boundary(slack, slack_step))
        slack = slack + length * slack_step
        point = point.at(point.weights + length * step)
        best = point if point.ratio < best.ratio else best
        if best.ratio - 1 <= tolerance or time.monotonic() >= deadline:
            break

    return best


def to_boundary(values: NDArray[np.floating], step: NDArray[np.floating]) -> float:
    """Return the step length, at most 1, at which no value loses more than a fraction of itself.

    The largest fraction lost is TO_BOUNDARY, so that values stay positive.
    """
    falling = step < 0
    return min(1.0, TO_BOUNDARY * float((values[falling] / -step[falling]).min(initial=np.inf)))


MEMORY = 15  # points that Anderson mixing combines
POWER = 2.0  # factor of log(X_ii / tr M^½) in a step of the fixed point
TOLERANCE = 1e-9  # certified relative gap at which a search ends
STEPS, FEWEST_STEPS = 80, 8  # most and fewest steps of the fixed point; the work of a step decides between them
WORK, NEWTON_WORK = 6e11, 1e10  # largest operations of all steps, and of one Newton step
ROUGHLY, ROUGH_WORK, ROUGH_STEPS = 1e-4, 1e13, 400  # gaps above which a search has these limits
NOTHING = -600.0  # least log weight: below it a weight would be 0 and could not increase again


@dataclass(frozen=True)
class Optimum:
    """Strategy B (rows × cells, largest column norm 1) with its primal value and the dual bound.

    Attributes
    ----------
    root : ndarray, shape (rows, cells)
    primal, dual : float
    weights : ndarray
        μ on the orbits, which determines the other fields; a warm start for a later solve.
    ended : str
        Reason for the end of the search: "gap" (the tolerance is reached), "time" or "steps".
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
    """Solve the problem of one Gram matrix G = FᵀF.

    Large problems end after fewer steps, a number that depends on their size alone; their gap is larger and reported.

    Parameters
    ----------
    rows : ndarray, shape (r, n)
        F.
    shape : tuple of int, optional
        Sizes of the axes of the n cells, row-major; used only to find symmetries.
    tolerance : float
        Gap at which the search ends.
    seconds : float
        Approximate time limit.
    start : ndarray, optional
        Weights of an earlier optimum of this problem.
    """
    return optimise_blocks(split(rows, shape or (rows.shape[1],)), tolerance, seconds, start)


def optimise_blocks(
    blocks: SymmetryBlocks, tolerance: float, seconds: float = math.inf, start: Floats | None = None
) -> Optimum:
    """Solve a problem that is split into the blocks of its symmetries; see `optimise`.

    The fixed point comes first; Newton's method (`polish`) follows if the gap is above `tolerance` and its work
    affordable. `ratio` − 1 is the certified relative gap.
    """
    deadline = time.monotonic() + seconds
    best = fixed_point(blocks, tolerance, deadline, start)
    if best.ratio - 1 > tolerance and time.monotonic() < deadline and _newton_work(blocks) <= NEWTON_WORK:
        best = polish(best, tolerance, deadline)
    return _optimum(best, tolerance, deadline)


def optimise_roughly(
    blocks: SymmetryBlocks, tolerance: float, seconds: float = math.inf, start: Floats | None = None
) -> Optimum:
    """Solve by the fixed point alone, for searches that need no certificate; the dual is still a bound."""
    deadline = time.monotonic() + seconds
    return _optimum(fixed_point(blocks, tolerance, deadline, start), tolerance, deadline)


def at_weights(rows: Floats, shape: tuple[int, ...], weights: Floats) -> Optimum:
    """Return the strategy at given weights of the cells, which sum to 1, with its bound."""
    blocks = split(rows, shape)
    point = DualPoint(blocks, np.asarray(np.bincount(blocks.orbit, weights), np.float64))
    return _optimum(point, math.inf, math.inf)


def _optimum(best: DualPoint, tolerance: float, deadline: float) -> Optimum:
    """Return the optimum at a point with the reason of its end: its gap, the time, or the number of steps.

    With t = tr M^½ the dual value is t². X has tr(G X⁺) = t and a diagonal with weighted mean t. Divided by its largest
    diagonal entry it satisfies diag(X) ≤ 1, with the primal value t · (largest entry) = t² · `ratio`.
    """
    ended = "gap" if best.ratio - 1 <= tolerance else "time" if time.monotonic() >= deadline else "steps"
    return Optimum(
        root=best.root(), primal=best.trace**2 * best.ratio, dual=best.trace**2, weights=best.weights, ended=ended
    )


def fixed_point(
    blocks: SymmetryBlocks, tolerance: float, deadline: float = math.inf, start: Floats | None = None
) -> DualPoint:
    """Run the Anderson-mixed fixed point from uniform or given weights; return the best point.

    Weights are on the orbits of the symmetries, as sums over their cells. A start with another shape or without
    positive weight is ignored. The number of steps depends on the size of the problem alone, so that results are
    reproducible.
    """
    sizes = np.bincount(blocks.orbit).astype(np.float64)
    if start is not None and start.shape == blocks.orbit.shape:  # weights of the cells
        start = np.asarray(np.bincount(blocks.orbit, start), np.float64)
    if start is None or start.shape != sizes.shape or start.min() < 0 or start.max() <= 0:
        start = sizes / sizes.sum()
    if len(blocks.blocks) == 1 and len(blocks.blocks[0].rows) == 1:  # one query: all weight is on its largest entry
        start = np.eye(1, len(sizes), int(np.abs(blocks.blocks[0].rows[0]).argmax()))[0]

    work, most_steps = (ROUGH_WORK, ROUGH_STEPS) if tolerance > ROUGHLY else (WORK, STEPS)
    steps = int(np.clip(work / _step_work(blocks), FEWEST_STEPS, most_steps))

    return iterate_fixed_point(partial(DualPoint, blocks), start, tolerance, deadline, steps)


def _step_work(blocks: SymmetryBlocks) -> float:
    """Return the approximate operations of one evaluation: two products of the rows, and eigenvectors."""
    return sum(
        4.0 * len(block.rows) ** 2 * block.rows.shape[1] + 10.0 * len(block.rows) ** 3 for block in blocks.blocks
    )


def _newton_work(blocks: SymmetryBlocks) -> float:
    """Return the approximate operations of one Newton step of `polish`, if all cells may have positive weight."""
    return sum(float(block.rows.size) ** 2 for block in blocks.blocks)


class DualIterate(Protocol):
    """Protocol of an evaluated μ (see `DualPoint`)."""

    @property
    def weights(self) -> Floats: ...
    @property
    def leverage(self) -> Floats: ...
    @property
    def trace(self) -> float: ...
    @property
    def ratio(self) -> float: ...


Iterate = TypeVar("Iterate", bound=DualIterate)


class NewtonIterate(DualIterate, Protocol):
    """Protocol of an evaluated μ from which a Newton step can be taken."""

    def at(self, weights: Floats) -> Self: ...
    def solve(self, diagonal: Floats, right: Floats) -> Floats: ...


NewtonPoint = TypeVar("NewtonPoint", bound=NewtonIterate)


def iterate_fixed_point(
    evaluate: Callable[[Floats], Iterate], start: Floats, tolerance: float, deadline: float, steps: int = STEPS
) -> Iterate:
    """Run the fixed-point iteration on μ with Anderson mixing; return the best point evaluated.

    The step is log μ ← log μ + 2 log(X_ii / tr M^½), see the module; weights are scaled to sum 1 before each
    evaluation. μ are the weights of the cells, `leverage` X_ii and `trace` tr M^½; `ratio` is the primal over the dual
    value, so ratio − 1 is the gap. Numbers of 1e-300 keep logarithms finite.
    """
    best = evaluate(start)
    log_weights = np.log(np.maximum(best.weights, 1e-300))
    mixing = Mixing()

    for step in range(steps):
        check_planning_time()
        weights = np.exp(np.maximum(log_weights - log_weights.max(), NOTHING))
        point = evaluate(weights / weights.sum()) if step else best
        best = point if point.ratio < best.ratio else best
        if best.ratio - 1 <= tolerance or time.monotonic() >= deadline:
            break
        change = POWER * np.log(np.maximum(point.leverage / point.trace, 1e-300))
        log_weights = mixing.next(np.log(np.maximum(point.weights, 1e-300)), change, point.trace)

    return best


class Mixing:
    """Anderson mixing of a fixed-point iteration; falls back to the plain step if the dual decreases."""

    def __init__(self) -> None:
        self.points: list[Floats] = []
        self.changes: list[Floats] = []
        self.value = -np.inf

    def next(self, point: Floats, change: Floats, value: float) -> Floats:
        """Return the next point of a fixed-point iteration that would move `point` by `change`.

        Anderson mixing: the combination of the last MEMORY points whose combined change is least. If the value, which
        should increase, is lower than before, the memory is emptied and the last plain step is taken.

        With differences ΔF of the changes and ΔX of the points to the latest one, `mix` minimises |change − ΔF mix|,
        and the next point is point + change − (ΔX + ΔF) mix.
        """
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
    """Strategy of a subworkload with its coefficient L (including lattice noise) and a lower bound of L."""

    factors: tuple[Factor, ...]
    coefficient: float
    bound: float


class Solve(Protocol):
    """Solver of the problem of one Gram matrix FᵀF of trace 1 on the cells of `shape`; equal keys mean equal problems.

    A problem with key None is temporary and is not stored. `tolerance` None means the solver's default.
    """

    def __call__(
        self, key: str | None, rows: Floats, shape: tuple[int, ...], tolerance: float | None = None
    ) -> Optimum: ...


LEAST = 1e-14  # eigenvalues of M are at least this share of the largest in the slope, which has their power −¾


def slope(blocks: SymmetryBlocks, optimum: Optimum) -> Floats:
    """Return Y, the gradient of a problem at its optimum, shape (cells, cells).

    With M = V diag(λ) Vᵀ, Y = tr M^½ · BᵀB, B = diag(λ^−¾) Vᵀ F diag(μ), the derivative of (tr M^½)² by G = FᵀF.
    """
    point = DualPoint(blocks, optimum.weights)
    cells = cell_weights(blocks, optimum)
    parts = [
        blocks.expand(block, np.maximum(values, values.max() * LEAST)[:, None] ** -0.75 * rotated) * cells
        for block, values, rotated in zip(blocks.blocks, point.values, point.rotated, strict=True)
    ]
    stacked = np.concatenate(parts)

    return np.asarray(point.trace * stacked.T @ stacked)


def cell_weights(blocks: SymmetryBlocks, optimum: Optimum) -> Floats:
    """Return μ on every cell; the optimum has it on the orbits of the problem's symmetries."""
    return np.asarray((optimum.weights / np.bincount(blocks.orbit))[blocks.orbit])


def dual(rows: Floats, weights: Floats) -> float:
    """Return (tr M^½)² at some weights of the cells, a lower bound over all strategies for the Gram of the rows."""
    return float(np.linalg.svd(rows * np.sqrt(weights), compute_uv=False).sum() ** 2)
