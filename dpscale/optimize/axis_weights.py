"""Search for the axis weights u that minimise the error of the best plan (docs/mechanisms.md, weighted residuals).

One product family on every axis: every optimum is a product of s(u) and l(u), so only their Pareto curve matters. The
curve has one parameter t: the minimum over u of √(t + s) + √l is the problem of the rows [W; √t·1], and its optimum X
gives u = X⁻¹1/(1ᵀX⁻¹1). The error J is stationary where the slope of the curve equals that of J:
√(t + s)/√l = (∂J/∂l)/(∂J/∂s). This fixed point takes a few steps.
Several families on one axis, or joint families: L-BFGS on u itself, started from the end of the fixed point.

Attributes of one *kind* have the same size and queries and share their weights u, the *profile* of the kind. A *demand*
is the Gram matrix of a residual space as a weighted sum of terms, and a *token* is a kind with a one-way family
(`residual_grams`). A kind is *even* if its weights stay at the plain mean, and *mirrored* if they are equal from both
ends.

*L-BFGS* with a weak Wolfe line search by bisection is for functions that are expensive to evaluate and may have kinks.
The direction is Nocedal's two-loop recursion. The step length is the search of Lewis and Overton, which needs no second
derivative (Nonsmooth optimization via quasi-Newton methods, 2013). The gradient is computed only after sufficient
decrease.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpscale.base.deadline import check_planning_time
from dpscale.base.numerics import Floats
from dpscale.optimize.convex import optimise_roughly, split
from dpscale.optimize.implicit_workload import merged
from dpscale.optimize.residual_grams import MIRRORED_CELLS, SEARCHED_CELLS, Demand, Demands, Joint, Products, Token
from dpscale.optimize.weight_objective import SECONDS, ObjectivePoint, Profiles, WeightObjective
from dpscale.privacy.draws import GAUSSIAN, rooted
from dpscale.workload import Family, root_of
from dpscale.workload.residual import Weights, whole_weights
from dpscale.workload.wide import even_cut, is_wide, runs_of

STEPS, FLAT = 12, 2e-6  # of the fixed point along the curve: most steps; relative change of J at which it ends
# gaps of the solver: in a search; on the curve; in a search of more than MUCH work
TOLERANCE, ON_CURVE, ROUGHLY = 1e-7, 1e-5, 1e-3
EVALUATIONS, FEWEST_EVALUATIONS, ENOUGH = 24, 4, 1e-6  # of J; fewer do not improve a start
LITTLE, MUCH, AFFORDED = 1e5, 1e8, 2.5e9  # cubes of cells: limits of one evaluation of J, and of all
TILT = 0.4  # relative rise or fall of tilted weights from the middle of an axis to its ends
# weight moved to judge flatness; error of the sum of stored weights; eigenvalue taken as 0
MOVED, NEAR, SINGULAR = 1e-3, 1e-9, 1e-9

Objective = Callable[[Floats], tuple[float, Callable[[], Floats]]]  # value and slope function at a point

MEMORY = 10  # pairs of steps and changes of the slope that approximate the curvature
FALLS, FLATTENS = 1e-4, 0.9  # Wolfe conditions: sufficient decrease and curvature
FIRST, LENGTH = 0.1, 10.0  # of the first step: largest move, and its limit in multiples of the slope


@dataclass(frozen=True)
class WeightSearch:
    """Result of the search for axis weights.

    Attributes
    ----------
    profiles : list of ndarray
        Weights u of each kind of attribute; each sums to 1.
    value, plain : float
        J at `profiles` and at the plain mean.
    ends : tuple of float
        J at the end of every start.
    stationary : float
        Relative first-order change of J (see `stationary`).
    floor : float
        Lower bound of J over all matrix mechanisms; 0 if unknown.
    """

    profiles: list[Floats]
    value: float
    plain: float
    ends: tuple[float, ...]
    stationary: float
    floor: float = 0.0

    def pack(self) -> Floats:
        """Return all fields in one array for the plan store; its first entry is the position of the first profile."""
        head = [self.value, self.plain, self.stationary, self.floor, *self.ends]
        return np.concatenate([[1 + len(head)], head, *self.profiles])


def unpack(stored: Floats, sizes: Sequence[int]) -> WeightSearch | None:
    """Return the result stored by `WeightSearch.pack`; None if the array does not fit profiles of these sizes.

    The array has the position of the first profile, J at the profiles and at the plain mean, the stationarity, the
    bound, the ends of the starts, and then the profiles.
    """
    start = len(stored) - sum(sizes) if stored.ndim == 1 else 0
    if start < 5 or stored[0] != start:
        return None

    profiles = np.split(stored[start:], np.cumsum(sizes)[:-1])
    if min(stored[1:3]) <= 0 or any(abs(float(profile.sum()) - 1) > NEAR for profile in profiles):
        return None

    value, plain, flat, floor, *ends = (float(number) for number in stored[1:start])
    return WeightSearch(
        profiles=list(profiles), value=value, plain=plain, ends=tuple(ends), stationary=flat, floor=floor
    )


def search(demands: Demands, noise: str, curve: ObjectivePoint, seconds: float = SECONDS) -> WeightSearch:
    """Return the best weights found, never worse than the plain mean.

    Products alone end at the fixed point `curve`. Sums of terms, of cost `work` per evaluation, are searched by
    descents from several starts, with a rougher solver if one evaluation is expensive.

    Parameters
    ----------
    demands : Demands
    noise : str
    curve : ObjectivePoint
        End of the fixed point (`along_curve`).
    seconds : float
        Time limit of the solver per problem.
    """
    plain_profiles = demands.plain
    if len(demands.even) == len(plain_profiles):  # no kind has weights to search
        return WeightSearch(profiles=plain_profiles, value=curve.value, plain=curve.value, ends=(), stationary=0.0)
    if not sums(demands):
        return _best(curve.weighed(plain_profiles), [curve])

    demands = merged(demands, rooted(noise))
    work = sum(_work(demands, demand) for demand in sums(demands))
    objective = WeightObjective(
        demands=demands,
        noise=noise,
        most=SEARCHED_CELLS,
        tolerance=TOLERANCE if work <= MUCH else ROUGHLY,
        seconds=min(seconds, SECONDS),
    )
    at_plain = objective(plain_profiles)

    return _best(
        at_plain, [_descended(objective, profiles, at_plain, work) for profiles in _starts(demands, noise, curve, work)]
    )


def _best(plain: ObjectivePoint, ends: list[ObjectivePoint]) -> WeightSearch:
    """Return the best of some points as the result.

    `plain` is the point at the plain mean, `ends` are those of the starts.
    """
    best = min([plain, *ends], key=lambda point: point.value)
    return WeightSearch(
        profiles=list(best.profiles),
        value=best.value,
        plain=plain.value,
        ends=tuple(end.value for end in ends),
        stationary=stationary(best),
    )


def _starts(demands: Demands, noise: str, curve: ObjectivePoint, work: float) -> list[list[Floats]]:
    """Return starting profiles: the optimum of the products alone; for small problems also tilted weights.

    Profiles are the weights of the axes; a problem of at most LITTLE `work` has two further starts, whose weights fall
    or rise by TILT along the axes.
    """
    start = _off_kinks(demands, [_mirrored(demands, kind, u) for kind, u in enumerate(curve.profiles)])
    if curve.value > 0:
        products = WeightObjective(demands=demands, noise=noise, most=0, tolerance=TOLERANCE)
        start = list(descend(products, products(start), EVALUATIONS).profiles)
    tilts = (0.0, TILT, -TILT) if work <= LITTLE else ()
    return [start, *(_tilted(demands, tilt) for tilt in tilts)]


def _descended(objective: WeightObjective, profiles: Profiles, plain: ObjectivePoint, work: float) -> ObjectivePoint:
    """Return the best point of a descent of J from `profiles`, the axis weights of a start.

    J is the error of the best plan for given weights, to a power (`weight_objective`). `work` is the cost of an
    evaluation in cubes of cells, which bounds the number of evaluations by AFFORDED / `work`. `plain` is the point at
    the plain mean. If it is lower than the start, the descent begins near it.
    """
    evaluations, start = int(min(AFFORDED / work, EVALUATIONS)), objective(profiles)
    if evaluations < FEWEST_EVALUATIONS:  # too few to improve the start
        return start
    # at a kink the gradient of J is that of one side only, so the plain mean is moved off it
    first = start if start.value < plain.value else objective(_off_kinks(objective.demands, plain.profiles))
    return min(start, descend(objective, first, evaluations), key=lambda point: point.value)


def _work(demands: Demands, demand: Demand) -> float:
    """Return the cost of solving a problem: the cube of its cells, or of those that remain after symmetry reduction."""
    cells = math.prod(demands.shape(demand))
    return (cells / 2 if cells > MIRRORED_CELLS else cells) ** 3


def _tilted(demands: Demands, tilt: float) -> list[Floats]:
    """Return weights (1 + tilt · line)/n that fall or rise linearly along every axis that is not even."""
    lines = [np.linspace(1, -1, size) if size > 1 else np.zeros(1) for size in demands.sizes]
    return [(1 + tilt * (kind not in demands.even) * line) / len(line) for kind, line in enumerate(lines)]


def _off_kinks(demands: Demands, profiles: Profiles) -> list[Floats]:
    """Tilt the weights of two-cell axes: J has a kink at (½, ½), where the larger cell changes; a bad start."""
    at_kink = [len(profile) == 2 and float(np.ptp(profile)) < MOVED for profile in profiles]
    pairs = zip(profiles, _tilted(demands, TILT), at_kink, strict=True)
    return [tilted if is_kink else profile for profile, tilted, is_kink in pairs]


def stationary(point: ObjectivePoint) -> float:
    """Return how much J changes, to first order and relatively, if 0.001 of an axis' weight moves between two cells.

    The value is 0 if all residual spaces of the workload are measured jointly, because J then does not depend on u.

    Moving 0.001 (MOVED) of the weight between two cells changes J by 0.001 times the difference of their slopes; the
    largest difference is max − min. The error is a power of J, J^(1/p) with p = `rooted(noise)`, so its relative change
    is 1/p times that of J.
    """
    if point.value <= 0:
        return 0.0
    even = point.weighed.demands.even
    slopes = [float(np.ptp(slope)) for kind, slope in enumerate(point.gradient()) if kind not in even]
    return MOVED / rooted(point.weighed.noise) * max(slopes, default=0.0) / point.value


def sums(demands: Demands) -> list[frozenset]:  # type: ignore[type-arg]
    """Return the demands whose queries are a sum of several products, or joint: they are no Kronecker product."""
    unfactored = []
    for demand in demands.counts:
        terms = [term for term, _ in demand]
        has_joint = any(isinstance(term, Joint) for term in terms)
        if has_joint or len({term.centred for term in terms if isinstance(term, Products)}) > 1:
            unfactored.append(demand)
    return unfactored


def along_curve(demands: Demands, noise: str = GAUSSIAN) -> ObjectivePoint:
    """Return the best point of the fixed-point iteration in t over all kinds; sums of terms count by their products.

    Every step replaces the weights of all kinds at once by the point of each curve whose slope is that of J.
    """
    weighed = WeightObjective(demands=demands, noise=noise, most=0, tolerance=ON_CURVE)
    best = point = weighed(demands.plain)
    for _ in range(STEPS):
        check_planning_time()
        before, point = point.value, weighed([_on_curve(point, kind) for kind in range(len(demands.sizes))])
        best = min(best, point, key=lambda each: each.value)
        if abs(point.value - before) <= FLAT * before:
            break
    return best


def _on_curve(point: ObjectivePoint, kind: int) -> Floats:
    """Return the weights at which the curve of a kind's main family has the slope of J.

    The kind is a kind of attribute; its main family is the one that contributes most to J. The weights follow from the
    optimum X for the rows [W; √t·1] as u = X⁻¹1/(1ᵀX⁻¹1).

    Added to the Gram matrix, t (`added`) on every entry is the row √t·1. Where the optimum X is singular, its
    pseudo-inverse is used if the weights then have a positive sum. At the optimum √(t + s) + √l is √(primal), so l =
    (√(optimum · trace) − √(t + s))², which spares another solve at these weights.
    """
    profile = point.profiles[kind]
    tokens = [token for token in point.tokens if token[0] == kind and point.by_value[token] and point.by_square[token]]
    if not tokens or kind in point.weighed.demands.even:
        return profile

    main = max(tokens, key=lambda token: point.by_value[token] * point.tokens[token].value)
    added = added_total(point, main)
    gram = point.weighed.demands.axis(main).gram + added
    rows = root_of(gram / np.trace(gram))
    optimum = point.weighed.solve((*main, "curve"), split(rows, gram.shape[:1]))
    if len(rows) < len(profile):  # X is singular if no query distinguishes some cells
        inverse = np.linalg.pinv(optimum.root.T @ optimum.root, rcond=SINGULAR, hermitian=True).sum(axis=1)
        return np.asarray(inverse / inverse.sum()) if inverse.sum() > SINGULAR else profile

    inverse = np.linalg.solve(optimum.root.T @ optimum.root, np.ones(len(profile)))
    weights = np.asarray(inverse / inverse.sum())
    averaged = point.weighed.averaged(main, weights)
    averaged.report_optimum((math.sqrt(optimum.dual * np.trace(gram)) - math.sqrt(added + averaged.square)) ** 2)

    return weights


def added_total(point: ObjectivePoint, token: Token) -> float:
    """Return the t at which the curve of a token has the slope of J: √(t + s)/√l = (∂J/∂l)/(∂J/∂s)."""
    averaged = point.tokens[token]
    if not point.by_square[token]:
        return 0.0
    return max(averaged.value * (point.by_value[token] / point.by_square[token]) ** 2 - averaged.square, 0.0)


def descend(weighed: WeightObjective, first: ObjectivePoint, evaluations: int) -> ObjectivePoint:
    """Minimise J by L-BFGS over the weights of all kinds that are not even; return the best point evaluated.

    `moves` are those of `move_profiles` from the first point; the objective of the descent is log J.
    """
    free = [kind for kind in range(len(first.profiles)) if kind not in weighed.demands.even]
    evaluated = [first]

    def evaluate(moves: Floats) -> tuple[float, Callable[[], Floats]]:
        if moves.any():
            evaluated.append(weighed(move_profiles(weighed.demands, first.profiles, free, moves)))
        return math.log(evaluated[-1].value), partial(_slope, evaluated[-1], free)

    lbfgs(evaluate, np.zeros(sum(len(first.profiles[kind]) for kind in free)), evaluations, ENOUGH)
    return min(evaluated, key=lambda point: point.value)


def _slope(point: ObjectivePoint, free: Sequence[int]) -> Floats:
    """Return ∂ log J with respect to the moves of the free kinds.

    The derivative of `move_profiles`: the slope of each kind is averaged with its reverse, centred, and divided by n.
    """
    slopes = [_mirrored(point.weighed.demands, kind, slope) for kind, slope in enumerate(point.gradient())]
    parts = [(slopes[kind] - slopes[kind].mean()) / len(slopes[kind]) for kind in free]
    return np.concatenate(parts) / point.value


def _mirrored(demands: Demands, kind: int, values: Floats) -> Floats:
    """Return the values averaged with their reverse if the kind is mirrored."""
    return (values + values[::-1]) / 2 if kind in demands.mirrored else values


def move_profiles(demands: Demands, profiles: Profiles, free: Sequence[int], moves: Floats) -> list[Floats]:
    """Return profiles with those of the free kinds moved by multiples of 1/n; their sums remain 1."""
    new, start = list(profiles), 0
    for kind in free:
        move = _mirrored(demands, kind, moves[start : start + len(new[kind])])
        start += len(move)
        new[kind] = new[kind] + (move - move.mean()) / len(move)
    return new


SOLVED, NEAR_BLOCKS = 256, 1e-6  # of the problem within a block of a wide axis: most cells; gap
BLOCK_BITS, FEWEST_BITS = 20, 10  # fewer for few cells, where centring changes integer rows more
LEAST = 1e-3  # least weight relative to the plain mean


def cell_weights(profile: Floats, size: int, family: Family, bits: int) -> Weights:
    """Return integer weights of the cells of an axis from the weights of its blocks.

    Parameters
    ----------
    profile : ndarray, shape (blocks,)
        Weights of the blocks.
    size : int
        Number of cells of the axis.
    family : Family
        One-way family of the axis; it determines the weights within blocks of wide axes.
    bits : int
        Precision of the integer weights.
    """
    if not is_wide(size):
        return whole_weights(refine_profile(profile, size, size), bits)

    number = sum(run.count for run in runs_of(size))
    blocks = whole_weights(refine_profile(profile, size, number), BLOCK_BITS)
    within_blocks = []  # weights of the cells of each block; a run is successive blocks of equal size
    for run in runs_of(size):
        within = whole_weights(inner_profile(family, size, run.size), FEWEST_BITS + run.size.bit_length())
        within_blocks += [within] * run.count

    return tuple(block * weight for block, within in zip(blocks, within_blocks, strict=True) for weight in within)


def refine_profile(profile: Floats, size: int, parts: int) -> Floats:
    """Return the weights of `parts` blocks of an axis of `size` cells, interpolated from those of other blocks.

    The cumulative weight is interpolated as a function of the angle θ of a block's end (`_angles`), in which it is
    smooth also near the ends of the axis. Differences of an interpolated function can be negative, so each cell
    receives at least the fraction LEAST of an even weight.
    """
    if len(profile) == parts:
        return profile
    places, wanted = _angles(size, len(profile)), _angles(size, parts)
    sums = np.concatenate([[0.0], np.cumsum(profile)])
    weights = np.diff(_cubic(places, sums, wanted))
    weights = np.maximum(weights, LEAST * even_cut(size, parts).lengths / size)
    return np.asarray(weights / weights.sum())


def inner_profile(family: Family, size: int, cells: int) -> Floats:
    """Return the weights of `cells` cells within a block of an axis of `size` cells.

    The problem within a block is solved on at most SOLVED cells; its optimum X gives u = X⁻¹1/(1ᵀX⁻¹1) (see
    `_on_curve`), which is interpolated. A family without such a problem has even weights.
    """
    solved_cells = min(cells, SOLVED)
    gram = family.inner_search_gram(size, solved_cells)
    if gram is None:
        return np.full(cells, 1 / cells)

    optimum = optimise_roughly(split(root_of(gram / np.trace(gram)), (solved_cells,)), NEAR_BLOCKS)
    inverse = np.linalg.solve(optimum.root.T @ optimum.root, np.ones(solved_cells))
    weights = np.maximum(inverse / inverse.sum(), LEAST / solved_cells)
    return refine_profile(weights / weights.sum(), cells, cells)


def _angles(size: int, parts: int) -> Floats:
    """Return θ = arcsin √(x/size) of the ends x of even blocks, which are denser near the ends of the axis."""
    return np.arcsin(np.sqrt(np.concatenate([[0], np.cumsum(even_cut(size, parts).lengths)]) / size))


def _cubic(places: Floats, values: Floats, wanted: Floats) -> Floats:
    """Return Lagrange's cubic interpolation through the four places around each wanted one.

    Value at w: Σ_j values_j Π_{k ≠ j} (w − x_k)/(x_j − x_k) over four places x; `shares` has the factors of each
    product.
    """
    first = np.clip(np.searchsorted(places, wanted) - 2, 0, len(places) - 4)
    near = first[:, None] + np.arange(4)
    total = np.zeros(len(wanted))
    for j in range(4):
        others = [k for k in range(4) if k != j]
        shares = (wanted[:, None] - places[near[:, others]]) / (places[near[:, j : j + 1]] - places[near[:, others]])
        total += shares.prod(axis=1) * values[near[:, j]]
    return total


def lbfgs(evaluate: Objective, start: Floats, evaluations: int, flat: float) -> None:
    """Evaluate at most `evaluations` points, each lower than the previous one; stop if one gains less than `flat`.

    `flat` is the least decrease of a step that continues the search. The slope of a point is a function, because it is
    computed only if the point is accepted.
    """
    left = [evaluations]  # shared with the line search, which decreases it

    def evaluate_once(point: Floats) -> tuple[float, Callable[[], Floats]]:
        check_planning_time()
        left[0] -= 1
        return evaluate(point)

    point, (value, slope_of), hessian = start, evaluate_once(start), _InverseHessian()
    slope = slope_of()
    while left[0] > 0 and slope.any():
        direction = hessian.direction(slope)
        step = _step(evaluate_once, point, value, slope, direction, left)
        if step is None:
            return

        new, new_value, new_slope = step
        gained, value = value - new_value, new_value
        hessian.add(new - point, new_slope - slope)
        point, slope = new, new_slope
        if gained <= flat:
            return


def _step(
    evaluate: Objective, at: Floats, value: float, slope: Floats, direction: Floats, left: list[int]
) -> tuple[Floats, float, Floats] | None:
    """Return a lower and flatter point along the direction, with its value and slope; None if none is found.

    Both are the conditions of Wolfe, found by doubling and halving the length. `left` is the number of evaluations.

    `low` is a length with sufficient decrease that is still too steep, `high` one without sufficient decrease. Without
    an upper limit the length doubles, else it is halved. At the last evaluation, a lower point counts even if it is
    steep.
    """
    falling, low, high, length, best = float(slope @ direction), 0.0, math.inf, 1.0, None
    while left[0] > 0:
        point = at + length * direction
        value_there, slope_of = evaluate(point)
        if value_there > value + FALLS * length * falling:
            high = length
        else:
            slope_there = slope_of()
            best = point, value_there, slope_there
            if float(slope_there @ direction) >= FLATTENS * falling:
                return best
            low = length

        length = (low + high) / 2 if high < math.inf else 2 * low

    return best


class _InverseHessian:
    """Recent steps and the changes of the slope along them: an implicit inverse Hessian."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Floats, Floats]] = []

    def add(self, step: Floats, change: Floats) -> None:
        if float(step @ change) > 0:
            self.pairs = [*self.pairs[1 - MEMORY :], (step, change)]

    def direction(self, slope: Floats) -> Floats:
        """Return the descent direction for a slope: two loops over the last steps and changes of the slope (L-BFGS).

        Without steps, the slope is scaled so that the largest move is FIRST, by at most LENGTH. Otherwise, with ρ =
        1/(stepᵀ change), the first loop subtracts ρ (stepᵀd) change from the newest pair on, the direction is scaled by
        stepᵀchange/changeᵀchange, and the second loop adds (α − ρ changeᵀd) step from the oldest.
        """
        if not self.pairs:
            return np.asarray(-slope * min(LENGTH, FIRST / float(np.abs(slope).max())))

        direction, alphas = -slope, []  # α = ρ stepᵀd of each pair, from the newest on
        for step, change in reversed(self.pairs):
            alphas.append(float(step @ direction) / float(step @ change))
            direction = direction - alphas[-1] * change

        step, change = self.pairs[-1]
        direction = direction * (float(step @ change) / float(change @ change))
        for (step, change), alpha in zip(self.pairs, reversed(alphas), strict=True):
            direction = direction + (alpha - float(change @ direction) / float(step @ change)) * step
        return np.asarray(direction)
