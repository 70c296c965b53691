"""The weights by which a plan averages each axis, searched for the least error of the best plan (papers' notes, 6).

One product family on every axis: all optima are products of s(u) and l(u), so only their Pareto curve matters. It has
one parameter t: min over u of √(t + s) + √l is the problem of the rows [W; √t·1], and u = X⁻¹1/(1ᵀX⁻¹1) of its optimum.
J is stationary where the curve's slope is J's: √(t + s)/√l = (∂J/∂l)/(∂J/∂s), a fixed point that takes a few steps.
Several families on one axis, or joint ones: from the end of that a descent on u itself (L-BFGS, `weighed`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.optimize import descent
from dpscale.optimize.convex import roughly
from dpscale.optimize.implicit_workload import merged
from dpscale.optimize.residual_grams import MIRRORED_CELLS, SEARCHED_CELLS, Demand, Demands, Joint, Products, Token
from dpscale.optimize.weight_objective import SECONDS, Point, Profiles, Weighed
from dpscale.privacy.draws import GAUSSIAN, rooted
from dpscale.workload import FAMILIES, root_of
from dpscale.workload.residual import Weights
from dpscale.workload.residual.axes import whole_weights
from dpscale.workload.wide import even_cut, is_wide, runs_of

STEPS, FLAT = 12, 2e-6
TOLERANCE, ON_CURVE, ROUGHLY = 1e-7, 1e-5, 1e-3
EVALUATIONS, ENOUGH = 24, 1e-6
LITTLE, MUCH, AFFORDED = 1e5, 1e8, 2.5e9  # cubes of cells: what one look at J is, and what all may be
TILT = 0.4
MOVED, NEAR, SINGULAR = 1e-3, 1e-9, 1e-9


@dataclass(frozen=True)
class Searched:
    """u by kind, J there and at the plain mean, the ends of all starts, how flat J is (see `stationary`), and what no
    matrix mechanism can go below, 0 where it is not known."""

    profiles: list[Floats]
    value: float
    plain: float
    ends: tuple[float, ...]
    stationary: float
    floor: float = 0.0

    def packed(self) -> Floats:
        """All of it in one array, to be kept."""
        head = [self.value, self.plain, self.stationary, self.floor, *self.ends]
        return np.concatenate([[5 + len(self.ends)], head, *self.profiles])


def unpacked(stored: Floats, sizes: Sequence[int]) -> Searched | None:
    """What was packed; None where it is not for profiles of these sizes."""
    start = len(stored) - sum(sizes) if stored.ndim == 1 else 0
    if start < 5 or stored[0] != start:
        return None
    profiles = np.split(stored[start:], np.cumsum(sizes)[:-1])
    if min(stored[1:3]) <= 0 or any(abs(float(profile.sum()) - 1) > NEAR for profile in profiles):
        return None
    value, plain, flat, floor, *ends = (float(number) for number in stored[1:start])
    return Searched(list(profiles), value, plain, tuple(ends), flat, floor)


def search(demands: Demands, noise: str, curve: Point, seconds: float = SECONDS) -> Searched:
    """The best weights that are found, never worse than the plain mean; `curve`: where the fixed point ended.

    `seconds`: of one problem's solve.
    """
    even, apart = demands.plain, sums(demands)
    if len(demands.even) == len(even):
        return Searched(even, curve.value, curve.value, (), 0.0)
    if not apart:
        return _best(curve.weighed(even), [curve])
    demands = merged(demands, rooted(noise))
    work = sum(_work(demands, demand) for demand in sums(demands))
    whole = Weighed(demands, noise, SEARCHED_CELLS, TOLERANCE if work <= MUCH else ROUGHLY, min(seconds, SECONDS))
    plain = whole(even)
    return _best(plain, [_descended(whole, profiles, plain, work) for profiles in _starts(demands, noise, curve, work)])


def _best(plain: Point, ends: list[Point]) -> Searched:
    best = min([plain, *ends], key=lambda point: point.value)
    return Searched(list(best.profiles), best.value, plain.value, tuple(end.value for end in ends), stationary(best))


def _starts(demands: Demands, noise: str, curve: Point, work: float) -> list[list[Floats]]:
    """Where products alone, which cost little, have their least; of small problems weights that are tilted too."""
    start = _off_kinks(demands, [_mirrored(demands, kind, u) for kind, u in enumerate(curve.profiles)])
    if curve.value > 0:
        start = list(descend(Weighed(demands, noise, 0, TOLERANCE), start, EVALUATIONS).profiles)
    tilts = (0.0, TILT, -TILT) if work <= LITTLE else ()
    return [start, *(_tilted(demands, tilt) for tilt in tilts)]


def _descended(whole: Weighed, profiles: Profiles, plain: Point, work: float) -> Point:
    """As far down as the work that one look at J is allows; from near the plain mean where that is lower."""
    looks, start = int(min(AFFORDED / work, EVALUATIONS)), whole(profiles)
    if looks <= 1:
        return start
    at = start.profiles if start.value < plain.value else _off_kinks(whole.demands, plain.profiles)
    return min(start, descend(whole, at, looks), key=lambda point: point.value)


def _work(demands: Demands, demand: Demand) -> float:
    """What one solve of a problem costs: the cube of its cells, or of those that its symmetry leaves."""
    cells = math.prod(demands.shape(demand))
    return (cells / 2 if cells > MIRRORED_CELLS else cells) ** 3


def _tilted(demands: Demands, tilt: float) -> list[Floats]:
    """Weights that fall or rise along every axis that is not even."""
    slope = [np.linspace(1, -1, size) if size > 1 else np.zeros(1) for size in demands.sizes]
    return [(1 + tilt * (kind not in demands.even) * line) / len(line) for kind, line in enumerate(slope)]


def _off_kinks(demands: Demands, profiles: Profiles) -> list[Floats]:
    """On two cells J has a kink at ½, ½, where the larger cell changes: no place to start from."""
    even = [len(profile) == 2 and float(np.ptp(profile)) < MOVED for profile in profiles]
    return [tilted if at else given
            for given, tilted, at in zip(profiles, _tilted(demands, TILT), even, strict=True)]  # fmt: skip


def stationary(point: Point) -> float:
    """How flat the error is in u: what it changes by, to first order and relatively, when a thousandth of an axis'
    weight moves from one cell to another. Where all that is asked is left unsplit, u weighs nothing: 0."""
    if point.value <= 0:
        return 0.0
    even = point.weighed.demands.even
    slopes = [float(np.ptp(slope)) for kind, slope in enumerate(point.gradient()) if kind not in even]
    return MOVED / rooted(point.weighed.noise) * max(slopes, default=0.0) / point.value


def sums(demands: Demands) -> list[frozenset]:  # type: ignore[type-arg]
    """The demands that are no Kronecker product."""
    return [demand for demand in demands.counts if len({_form(term) for term, _ in demand}) > 1 or _joint(demand)]


def _form(term: Products | Joint) -> object:
    return term.kept if isinstance(term, Products) else term


def _joint(demand: frozenset) -> bool:  # type: ignore[type-arg]
    return any(isinstance(term, Joint) for term, _ in demand)


def along_curve(demands: Demands, noise: str = GAUSSIAN) -> Point:
    """The fixed point of t, all kinds at once; the best point that was met. Sums of terms count by their products."""
    weighed = Weighed(demands, noise, 0, ON_CURVE)
    best = point = weighed(demands.plain)
    for _ in range(STEPS):
        before, point = point.value, weighed([_on_curve(point, kind) for kind in range(len(demands.sizes))])
        best = min(best, point, key=lambda one: one.value)
        if abs(point.value - before) <= FLAT * before:
            break
    return best


def _on_curve(point: Point, kind: int) -> Floats:
    """The weights at which the curve of a kind's main family has the slope that J has."""
    profile = point.profiles[kind]
    tokens = [token for token in point.tokens if token[0] == kind and point.by_value[token] and point.by_square[token]]
    if not tokens or kind in point.weighed.demands.even:
        return profile
    main = max(tokens, key=lambda token: point.by_value[token] * point.tokens[token].value)
    added = added_total(point, main)
    gram = point.weighed.demands.axis(main).gram + added
    rows = root_of(gram / np.trace(gram))
    optimum = point.weighed.solve((*main, "curve"), rows, gram.shape[:1])
    if len(rows) < len(profile):  # cells that no query tells apart: X has no inverse
        inverse = np.linalg.pinv(optimum.root.T @ optimum.root, rcond=SINGULAR, hermitian=True).sum(axis=1)
        return np.asarray(inverse / inverse.sum()) if inverse.sum() > SINGULAR else profile
    inverse = np.linalg.solve(optimum.root.T @ optimum.root, np.ones(len(profile)))
    found = np.asarray(inverse / inverse.sum())
    averaged = point.weighed.averaged(main, found)
    averaged.report_optimum((math.sqrt(optimum.dual * np.trace(gram)) - math.sqrt(added + averaged.square)) ** 2)
    return found


def added_total(point: Point, token: Token) -> float:
    """t at which the curve of a token has the slope that J has: √(t + s)/√l = (∂J/∂l)/(∂J/∂s)."""
    averaged = point.tokens[token]
    if not point.by_square[token]:
        return 0.0
    return max(averaged.value * (point.by_value[token] / point.by_square[token]) ** 2 - averaged.square, 0.0)


def descend(weighed: Weighed, profiles: Profiles, evaluations: int) -> Point:
    """Down on the weights of all kinds that are not even, from some; the best point met."""
    free = [kind for kind in range(len(profiles)) if kind not in weighed.demands.even]
    met: list[Point] = []

    def look(moves: Floats) -> tuple[float, Callable[[], Floats]]:
        met.append(weighed(moved(weighed.demands, profiles, free, moves)))
        return math.log(met[-1].value), partial(_slope, met[-1], free)

    descent.descend(look, np.zeros(sum(len(profiles[kind]) for kind in free)), evaluations, ENOUGH)
    return min(met, key=lambda point: point.value)


def _slope(point: Point, free: Sequence[int]) -> Floats:
    """∂ log J by the moves of the free kinds."""
    slopes = [_mirrored(point.weighed.demands, kind, slope) for kind, slope in enumerate(point.gradient())]
    parts = [(slopes[kind] - slopes[kind].mean()) / len(slopes[kind]) for kind in free]
    return np.concatenate(parts) / point.value


def _mirrored(demands: Demands, kind: int, values: Floats) -> Floats:
    """The same from both ends where the kind is mirrored."""
    return (values + values[::-1]) / 2 if kind in demands.mirrored else values


def moved(demands: Demands, profiles: Profiles, free: Sequence[int], moves: Floats) -> list[Floats]:
    """Profiles with those of the free kinds moved, in units of 1/n; the sums stay 1."""
    new, start = list(profiles), 0
    for kind in free:
        move = _mirrored(demands, kind, moves[start : start + len(new[kind])])
        start += len(move)
        new[kind] = new[kind] + (move - move.mean()) / len(move)
    return new


SOLVED, NEAR_BLOCKS = 256, 1e-6
BLOCK_BITS, FEWEST_BITS = 20, 10  # fewer for few cells, where whole rows are moved further to be centred
LEAST = 1e-3  # of the plain mean


def cell_weights(profile: Floats, size: int, family: str, bits: int) -> Weights:
    """Whole weights of an axis of `size` cells, given the weights of its blocks and the family that is asked."""
    if not is_wide(size):
        return whole_weights(refined(profile, size, size), bits)
    number = sum(run.count for run in runs_of(size))
    blocks = whole_weights(refined(profile, size, number), BLOCK_BITS)
    within = [
        whole_weights(inner_profile(family, size, run.size), FEWEST_BITS + run.size.bit_length())
        for run in runs_of(size)
    ]
    each = [own for run, own in zip(runs_of(size), within, strict=True) for _ in range(run.count)]
    return tuple(block * weight for block, own in zip(blocks, each, strict=True) for weight in own)


def refined(profile: Floats, size: int, parts: int) -> Floats:
    """Weights of the blocks of an axis for another number of blocks."""
    if len(profile) == parts:
        return profile
    places, wanted = _angles(size, len(profile)), _angles(size, parts)
    sums = np.concatenate([[0.0], np.cumsum(profile)])
    found = np.diff(_cubic(places, sums, wanted))
    found = np.maximum(found, LEAST * even_cut(size, parts).lengths / size)
    return np.asarray(found / found.sum())


def inner_profile(family: str, size: int, cells: int) -> Floats:
    """Weights within a block of so many cells of an axis of `size`."""
    if family == "marginal":
        return np.full(cells, 1 / cells)
    few = min(cells, SOLVED)
    gram = _inner_queries(family, size, few)
    optimum = roughly(root_of(gram / np.trace(gram)), (few,), NEAR_BLOCKS)
    inverse = np.linalg.solve(optimum.root.T @ optimum.root, np.ones(few))
    found = np.maximum(inverse / inverse.sum(), LEAST / few)
    return refined(found / found.sum(), cells, cells)


def _inner_queries(family: str, size: int, cells: int) -> Floats:
    """What is asked within a block, with its whole as often as it does best."""
    prefix = FAMILIES["prefix"].gram(cells)
    if family == "prefix":
        return prefix + size
    both = prefix + prefix[::-1, ::-1]
    return FAMILIES["range"].gram(cells) + (size - cells) / 2 * both + size**2 / 384


def _angles(size: int, parts: int) -> Floats:
    """θ of the ends of the blocks."""
    return np.arcsin(np.sqrt(np.concatenate([[0], np.cumsum(even_cut(size, parts).lengths)]) / size))


def _cubic(places: Floats, values: Floats, wanted: Floats) -> Floats:
    """Lagrange's cubic through the four places around each wanted one."""
    first = np.clip(np.searchsorted(places, wanted) - 2, 0, len(places) - 4)
    near = first[:, None] + np.arange(4)
    total = np.zeros(len(wanted))
    for j in range(4):
        others = [k for k in range(4) if k != j]
        shares = (wanted[:, None] - places[near[:, others]]) / (places[near[:, j : j + 1]] - places[near[:, others]])
        total += shares.prod(axis=1) * values[near[:, j]]
    return total
