"""Optimal strategy of one subworkload, or of few queries on many cells, with a certificate.

The problem of QuerySmasher (section 6) is  L = min tr(G X⁺)  over X ⪰ 0, diag(X) ≤ 1, range(X) ⊇ range(G).
With G = FᵀF of full row rank and weights μ ≥ 0, Σμ = 1, let M = F diag(μ) Fᵀ. For every μ
    (tr M^½)² ≤ L                                     (dual, by Cauchy–Schwarz), and
    X = Fᵀ M^{−½} F  gives  tr(G X⁺) = tr M^½,  Σ μ_i X_ii = tr M^½,
so X / max X_ii is a primal point of value tr M^½ · max X_ii, and max X_ii / tr M^½ − 1 is its certified gap. At the
optimum X_ii = tr M^½ wherever μ_i > 0. The iteration log μ ← log μ + 2 log(X_ii / tr M^½) has this condition as its
fixed point and is accelerated by Anderson mixing; a step that lowers the dual is rejected. It is fast if every μ_i > 0.
If cells have weight 0 at the optimum, an interior-point method (`polish`) finishes. Symmetries of G split M into
blocks.

*Symmetries of a Gram matrix* split its convex problem into small blocks. Reversing every axis, or exchanging two axes
of one size, often leaves a Gram matrix G unchanged (prefix, range, affine, abs and their sums). The problem is convex,
so its weights μ can then be chosen constant on the orbits of the cells, and D^½ G D^½ splits into one block per
character (combination of signs) of the commuting symmetries. A block's rows are stored on one cell of each orbit; on
the other cells they are equal up to the sign.

Cells whose columns of F are equal up to the sign, as those that no query distinguishes, form one orbit too:
F diag(μ) Fᵀ depends on the sum of their weights alone.

*Few queries on many cells.* The optimum over all matrix mechanisms is found in the space of the queries. The problem
above, on all cells of a workload's attributes, needs only rows F with FᵀF = Σ weight · qᵀq. With m queries on n cells
one evaluation is an eigenproblem of m × m and two products of m × m × n, so the number of queries limits it, not that
of cells:

    max over μ of (tr (F diag(μ) Fᵀ)^½)² = min over strategies of sensitivity 1 of the error.

The strategy has as many rows as the queries have dimensions. It is measured on all cells at once, as integer
combinations of independent integer queries, so that its span is exactly theirs: no ridge is added. Queries that are not
multiples of integers have the bound alone.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import product
from typing import Protocol, Self, TypeVar

import numpy as np

from dpscale.base.deadline import check_planning_time
from dpscale.base.numerics import AttributeSet, Floats, Integers, NDArray
from dpscale.optimize.integer_strategies import BASIS_BITS, round_strategy
from dpscale.plans.accuracy_base import FEW_PRODUCTS, MOST_OF_PRODUCT
from dpscale.plans.factor import Factor
from dpscale.workload import Workload, WorkloadPart
from dpscale.workload.factors import compressed, root_of
from dpscale.workload.residual import piece, subsets

SYMMETRIC, EQUAL = 1e-10, 1e-9  # of the largest entry: of probes, and of equal columns
PROBES = 3  # random vectors on which a symmetry is tested

NEWTON_STEPS = 60  # most steps of the interior-point method
TO_BOUNDARY = 0.95  # largest fraction of a weight or a slack that one Newton step removes
FLOOR = 1e-6  # least weight at the start of the interior-point method, relative to the largest
ROUNDS = 12  # most rounds of `polish`, each with more cells that may have weight
NEAR = 0.9  # share of the largest leverage above which a cell may have weight
WEIGHT_THRESHOLD = 1e-3  # share of the largest weight above which a cell may have weight
MIXED = 1e-6  # part of the mean weight that every cell receives after a round, so that none stays at 0

MOST_QUERIES, MOST_ENTRIES = 2000, 10**8  # of one problem: queries, and queries times cells
QUERY_TOLERANCE, LOOSELY, MANY_ENTRIES = 1e-3, 4e-3, 1 << 22  # gap of a search; of a long one; entries of its rows
FINELY, FEW_ROWS = 1e-6, 100  # gap of a search with few rows, and how many
WHOLE_NUMBER = 1e9  # of an entry of a basis
SCALES, ROUNDED = (1.0, 2.0**10, 1e3, 2.0**20, 1e6), 1e-9  # of queries to integers, and the rounding of floats
NEGLIGIBLE = 1e-12  # of the largest entry of queries: smaller pieces are rounding


@dataclass(frozen=True)
class SymmetryBlock:
    """Rows on the orbits, (r, orbits), and their sign on every cell: ±1, or 0 where they vanish."""

    rows: Floats
    sign: Floats


@dataclass(frozen=True)
class SymmetryBlocks:
    """Blocks of a Gram matrix; `orbit[c]` is the orbit of cell c."""

    blocks: tuple[SymmetryBlock, ...]
    orbit: Integers

    def expand(self, block: SymmetryBlock, rows: Floats) -> Floats:
        """Expand rows on the orbits to rows on all cells."""
        return np.asarray(rows[:, self.orbit] * block.sign)

    def only(self, orbits: Integers) -> SymmetryBlocks:
        """Return the blocks restricted to some orbits, for search only, not for expansion."""
        return SymmetryBlocks(
            tuple(SymmetryBlock(block.rows[:, orbits], block.sign) for block in self.blocks), self.orbit
        )


@dataclass(frozen=True)
class _Orbits:
    """Orbits of a group of commuting involutions.

    Attributes
    ----------
    orbit : ndarray of int64, shape (cells,)
        Orbit of every cell.
    members : ndarray of int64, shape (largest, orbits)
        Cells of every orbit in increasing order, and then the number of all cells.
    signs : tuple of ndarray, shape (cells,)
        For every character, the sign on every cell, or 0 where its functions vanish.
    """

    orbit: Integers
    members: Integers
    signs: tuple[Floats, ...]

    @cached_property
    def roots(self) -> Floats:
        """Square roots of the numbers of cells of the orbits."""
        return np.asarray(np.sqrt(np.bincount(self.orbit)))


def split(rows: Floats, shape: tuple[int, ...]) -> SymmetryBlocks:
    """Return the blocks of a Gram matrix given by its rows, (r, cells), on the cells of `shape`.

    `kept` says for each candidate symmetry whether it leaves G = FᵀF unchanged. Every character of the group of these
    has one block; blocks of norm 0 are omitted. With more rows than cells, G itself is the smaller matrix to project.
    """
    kept = tuple(_leaves(rows, permutation) for permutation in _candidates(shape))
    orbits = _orbits(shape, kept)
    if len(rows) > rows.shape[1]:
        gram = rows.T @ rows
        blocks = [_block_of_gram(gram, orbits, sign) for sign in orbits.signs]
    else:
        blocks = [_block(rows, orbits, sign) for sign in orbits.signs]
    return _merged(SymmetryBlocks(tuple(block for block in blocks if block is not None), orbits.orbit))


def _merged(blocks_before: SymmetryBlocks) -> SymmetryBlocks:
    """Return blocks on fewer orbits: those with equal columns in all blocks, up to a common sign, are one.

    Columns are compared by a random combination of their entries (`probes`): equal columns have equal absolute probes,
    so neighbours in sorted order are the candidates, which are then compared entry by entry.
    """
    columns = (
        np.concatenate([block.rows for block in blocks_before.blocks]) if blocks_before.blocks else np.zeros((0, 0))
    )
    largest = np.abs(columns).max(initial=0.0)
    probes = np.random.default_rng(0).normal(size=len(columns)) @ columns
    order = np.argsort(np.abs(probes), kind="stable")
    near = np.diff(np.abs(probes)[order]) <= SYMMETRIC * largest
    if not near.any():
        return blocks_before

    signs = np.where(probes < 0, -1.0, 1.0)
    left, right = order[:-1][near], order[1:][near]
    # of the candidates, those that are equal entry by entry
    near[near] = np.abs(columns[:, left] * signs[left] - columns[:, right] * signs[right]).max(0) <= EQUAL * largest
    # columns that are equal and therefore successive in the order have one number
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(np.concatenate([[True], ~near])) - 1
    _, first, orbit = np.unique(numbers, return_index=True, return_inverse=True)
    # sign of each cell relative to the first cell of its orbit
    sign = (signs * signs[first][orbit])[blocks_before.orbit]
    blocks = tuple(SymmetryBlock(block.rows[:, first], block.sign * sign) for block in blocks_before.blocks)
    return SymmetryBlocks(blocks, np.asarray(orbit[blocks_before.orbit], np.int64))


@lru_cache(maxsize=32)
def _candidates(shape: tuple[int, ...]) -> tuple[Integers, ...]:
    """Return commuting involutions of the cells: reversal of all axes, and exchanges of pairs of axes of one size.

    Each is a permutation of the cells as an array, shape (cells,), that is its inverse. An axis is exchanged at most
    once, so that all of them commute.
    """
    cells = np.arange(int(np.prod(shape))).reshape(shape)
    involutions = [np.flip(cells).reshape(-1)]
    free = list(range(len(shape)))

    while len(free) > 1:
        first = free.pop(0)
        partner = next((axis for axis in free if shape[axis] == shape[first]), None)
        if partner is not None:
            free.remove(partner)
            involutions.append(np.swapaxes(cells, first, partner).reshape(-1))

    return tuple(involutions)


def _leaves(rows: Floats, permutation: Integers) -> bool:
    """Return whether the permutation of the cells leaves the Gram matrix unchanged, tested on random vectors.

    G is unchanged if P G x = G P x for vectors x, with the permutation matrix P; G x is computed as Fᵀ(F x).
    """
    probes = np.random.default_rng(0).normal(size=(rows.shape[1], PROBES))
    straight = rows.T @ (rows @ probes)
    permuted = rows.T @ (rows @ probes[permutation])
    return bool(np.abs(straight[permutation] - permuted).max() <= SYMMETRIC * np.abs(straight).max())


@lru_cache(maxsize=32)
def _orbits(shape: tuple[int, ...], kept: tuple[bool, ...]) -> _Orbits:
    """Return the orbits under the candidates that are kept.

    The least cell among the images of a cell represents its orbit. `members` lists the cells by their rank within an
    orbit, with the number of cells as padding; `rank` is the position in sorted order less the start of the orbit.
    """
    size = int(np.prod(shape))
    group = _group([image for image, is_kept in zip(_candidates(shape), kept, strict=True) if is_kept], size)
    representative = np.stack([image for image, _ in group]).min(axis=0)
    cells, orbit = np.unique(representative, return_inverse=True)
    order, counts = np.argsort(orbit, kind="stable"), np.bincount(orbit)
    members = np.full((counts.max(), len(cells)), size)
    rank = np.arange(size) - np.repeat(np.cumsum(counts) - counts, counts)
    members[rank, orbit[order]] = order
    signs = tuple(_signs(group, cells, orbit, character) for character in product((1, -1), repeat=sum(kept)))

    return _Orbits(orbit.astype(np.int64), members, signs)


def _group(permutations: list[Integers], size: int) -> list[tuple[Integers, tuple[int, ...]]]:
    """Return all products of the involutions, each with its exponents.

    `permutations` are commuting involutions of the cells, so each occurs in a product at most once.
    """
    group = []
    for exponents in product((0, 1), repeat=len(permutations)):
        image = np.arange(size)
        for permutation, exponent in zip(permutations, exponents, strict=True):
            image = permutation[image] if exponent else image
        group.append((image, exponents))
    return group


def _signs(
    group: list[tuple[Integers, tuple[int, ...]]], cells: Integers, orbit: Integers, character: tuple[int, ...]
) -> Floats:
    """Return the sign of a character's functions on every cell, 0 if an element that fixes the cell changes it.

    A function of the character χ has at the image g(c) the value χ(g) times that at c. The sum of χ(g) over the
    elements with g(c) = c is 0 if one of them changes the sign.
    """
    sign = np.zeros(len(orbit))
    for image, exponents in group:
        np.add.at(sign, image[cells], float(np.prod([c**e for c, e in zip(character, exponents, strict=True)])))
    return np.sign(np.rint(sign))


def _block(rows: Floats, orbits: _Orbits, sign: Floats) -> SymmetryBlock | None:
    """Return the block of one character: the rows projected on the functions that transform by it, compressed."""
    projected = _projected(rows, orbits, sign)
    if (projected**2).sum() <= SYMMETRIC * (rows**2).sum():
        return None
    return SymmetryBlock(compressed(projected) / orbits.roots, sign)


def _block_of_gram(gram: Floats, orbits: _Orbits, sign: Floats) -> SymmetryBlock | None:
    """Return the block of one character from the Gram matrix, which is smaller than rows that outnumber the cells.

    `sign` is the character: the sign of each cell under the permutations. A block without queries is None; the rows are
    divided by the roots of the sizes of the orbits.
    """
    projected = _projected(_projected(gram, orbits, sign).T, orbits, sign)
    if np.trace(projected) <= SYMMETRIC * np.trace(gram):
        return None
    return SymmetryBlock(root_of(projected) / orbits.roots, sign)


def _projected(rows: Floats, orbits: _Orbits, sign: Floats) -> Floats:
    """Return rows projected on the functions of a character, shape (r, orbits).

    Entry o of a row is Σ over the cells c of the orbit o of sign_c · row_c, divided by √(cells of the orbit), so that
    the functions of the orbits are orthonormal. Padding refers to the last row of `signed`, which is 0.
    """
    signed = np.zeros((len(sign) + 1, len(rows)))  # cells as rows, because whole rows are selected
    np.multiply(rows.T, sign[:, None], out=signed[:-1])
    total = signed[orbits.members[0]]
    for members in orbits.members[1:]:
        total += signed[members]
    return np.asarray(total.T / orbits.roots)


class DualPoint:
    """One μ with its trace tr M^½, the diagonal of X (`leverage`) on the orbits, and the ratio of primal to dual."""

    def __init__(self, blocks: SymmetryBlocks, weights: Floats) -> None:
        """Decompose M in each block of symmetric cells: its eigenvalues `values`, and its rows in the eigenvectors.

        The rows of a block are F on its orbits, and M = rows · diag(weights) · rowsᵀ; `values` are kept above 0. The
        `leverage` of a cell is X_ii, and `ratio` its maximum over tr M^½, 1 at the optimum.
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

        # the optimum on the chosen orbits as a point of all orbits, whose leverages certify it
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


@dataclass(frozen=True, eq=False)
class RowSpaceProblem:
    """All queries of a workload on all cells of its attributes.

    Attributes
    ----------
    workload : Workload
    attributes : AttributeSet
        Attributes of the workload, in domain order.
    shape : tuple of int
    """

    workload: Workload
    attributes: AttributeSet
    shape: tuple[int, ...]

    @classmethod
    def of(cls, workload: Workload, most: int = MOST_ENTRIES) -> RowSpaceProblem | None:
        """Return the queries of a workload; None if they are too many, or many products have too many cells.

        Parameters
        ----------
        workload : Workload
        most : int
            Largest number of queries times cells.
        """
        domain = workload.domain
        attributes = domain.ordered({name for _, names, _ in _sets(workload) for name in names})
        number = sum(part.count(names) for part, names, _ in _sets(workload))
        # cells of the sets with many products of one-way queries
        products = [domain.cells(names) for part, names, _ in _sets(workload)
                    if part.factorizes and part.count(names) > FEW_PRODUCTS]  # fmt: skip
        if number > MOST_QUERIES or number * domain.cells(attributes) > min(most, MOST_ENTRIES):
            return None
        if max(products, default=0) > MOST_OF_PRODUCT:
            return None
        return cls(workload, attributes, domain.shape(attributes))

    @cached_property
    def rows(self) -> Floats:
        """Rows of full row rank with the workload's Gram matrix, shape (r, cells)."""
        weighted = [self._lifted(names, queries * np.sqrt(weights).reshape(-1, *[1] * len(names)))
                    for names, queries, weights in self._planned]  # fmt: skip
        return compressed(np.concatenate(weighted))

    @cached_property
    def spaces(self) -> tuple[tuple[int, ...], ...]:
        """Residual spaces on which a query has a piece, each as the tuple of its axes.

        A piece is the query averaged over the axes outside the space and centred along those inside; pieces below
        NEGLIGIBLE of the largest entry count as zero.
        """
        spaces = set[tuple[int, ...]]()
        for names, queries, _ in self._planned:
            axes = [self.attributes.index(name) for name in names]
            for space in subsets(tuple(range(len(names)))):
                pieces = np.abs(piece(queries, space, lead=1))
                if pieces.max(initial=0) > NEGLIGIBLE * np.abs(queries).max(initial=0):
                    spaces.add(tuple(axes[axis] for axis in space))
        return tuple(sorted(spaces, key=lambda space: (len(space), space)))

    @property
    def is_joint(self) -> bool:
        """Whether one strategy can measure all queries: each set counts something, and they have several spaces.

        Queries of one space are planned as its residual.
        """
        return all(queries.any() for _, queries, _ in self._planned) and len(self.spaces) > 1

    @cached_property
    def _planned(self) -> list[tuple[AttributeSet, Floats, Floats]]:
        """Queries of positive weight of each set, shape (m, sizes…), with their weights."""
        planned = list[tuple[AttributeSet, Floats, Floats]]()
        for part, names, weight in _sets(self.workload):
            weights = weight * part.query_weights(names)
            queries = part.queries(names)[weights > 0]
            if len(queries):
                planned.append((names, queries, weights[weights > 0]))
        return planned

    def optimum(self, solve: Solve) -> Optimum:
        """Return the optimum with its certificate, for a Gram matrix of trace 1."""
        usual = FINELY if len(self.rows) <= FEW_ROWS else QUERY_TOLERANCE
        tolerance = LOOSELY if self.rows.size > MANY_ENTRIES else usual
        return solve(self.key, self.rows / np.sqrt(self.scale), self.shape, tolerance)

    @cached_property
    def key(self) -> str:
        """Key of the queries and their weights."""
        digest = hashlib.sha256(repr(self.shape).encode())
        for part, names, weight in _sets(self.workload):
            axes = [self.attributes.index(name) for name in names]
            digest.update(repr((axes, part.key(names), weight)).encode())
            digest.update(np.ascontiguousarray(part.query_weights(names), np.float64).tobytes())
        return f"listed queries/{digest.hexdigest()}"

    @cached_property
    def scale(self) -> float:
        """Trace of the Gram matrix."""
        return float((self.rows**2).sum())

    def rounded(self, optimum: Optimum) -> Factor | None:
        """Return the integer strategy near an optimum; None if the queries are no multiples of integers.

        Raises PlanError if weights differ so much that a query has no effect.

        The integer queries are lifted to all cells of the attributes, repeated along the axes that they do not name,
        and are the basis whose integer combinations approximate the optimum.
        """
        integers = [(names, _integers(queries)) for names, queries, _ in self._planned]
        if any(queries is None for _, queries in integers):
            return None

        basis = np.concatenate([self._lifted(names, queries) for names, queries in integers if queries is not None])
        factor = round_strategy(self.rows / np.sqrt(self.scale), optimum.root, self.shape, BASIS_BITS, basis)
        return Factor(kind="matrix", shape=self.shape, matrix=factor.matrix, weights=None, spaces=self.spaces)

    def _lifted(self, names: AttributeSet, queries: Floats) -> Floats:
        """Return queries of one set, shape (m, sizes…), on all cells, shape (m, cells)."""
        shape = [n if name in names else 1 for name, n in zip(self.attributes, self.shape, strict=True)]
        whole = np.broadcast_to(queries.reshape(len(queries), *shape), (len(queries), *self.shape))
        return np.asarray(whole.reshape(len(queries), -1))


def _integers(queries: Floats) -> Floats | None:
    """Return queries, each times a power of 2 or of 10, as integers; None if one is not such a multiple."""
    for scale in SCALES:
        scaled = queries * scale
        if np.abs(scaled).max() > WHOLE_NUMBER:
            return None
        if np.abs(np.rint(scaled) - scaled).max() <= ROUNDED:
            return np.asarray(np.rint(scaled))
    return None


def _sets(workload: Workload) -> Iterator[tuple[WorkloadPart, AttributeSet, float]]:
    """Yield the sets of positive weight, each with its part and weight."""
    for part in workload.parts:
        for names, weight in zip(part.sets, part.weights, strict=True) if part.weighs else ():
            if weight > 0:
                yield part, names, weight
