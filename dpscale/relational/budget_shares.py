"""Split of the budget between the three sums, and clipping bounds of features, by expected error without data.

The prior of links before measurement is random links. Under these the sum of a column over m links has mean z₀; a
priori a cell departs by a factor of about 1 ± s, where s is a relative scale for one-way or pairwise sums. For priors
of two strengths (`PRIORS`: scales of weak and of strong departures) the expected error over the cross marginals is
added up and minimised over clipping bounds and shares. A share is relative to the cost of a sum alone; a sum with a
share below LEAST is omitted. All of this is public.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import product

import numpy as np

from dpscale.base.numerics import Floats, Integers, optimize
from dpscale.privacy.protection import REPLACE
from dpscale.relational.features import BITS, STEP, Features, Side, squared_distance

PRIORS = ((0.1, 0.05), (0.3, 0.2))  # weak and strong departures: scales of one-way and of pairwise sums
CLIPS = (0.7, 1.0, 1.4, 2.0, None)  # bounds of the norm of a row's features that are tried; None: no bound
# shares of the sums of u, of v and of pairs at the starts of the search
STARTS = ((0.5, 0.5, 0.005), (0.7, 0.3, 0.005), (0.35, 0.35, 0.3), (0.2, 0.2, 0.6), (0.5, 0.2, 0.3), (0.3, 0.65, 0.005),
          (0.25, 0.5, 0.25))  # fmt: skip
# share below which a sum is omitted; steps of a refinement; combinations that are refined
LEAST, STEPS, BEST = 0.01, 60, 3
KNOWN = 1e12  # precision of sums without noise
FEWEST_LINKS = 1e-9  # in place of 0 links, since the number divides
FIRST = (0.2, 0.2, 0.6)  # shares of the sums of u, of v and of pairs in a first measurement
DIGITS = 1 << 20  # shares are rounded to multiples of 2^-20 before the exact cost is computed
ROUNDING = 1 - 1e-12  # precisions are floats, whose cost could exceed the budget by rounding
CHUNK = 1 << 15  # profiles whose features are in memory at once


@dataclass(frozen=True, eq=False)
class Expected:
    """Links' ends on one side under random links.

    Attributes
    ----------
    side : Side
    features : Features
    ends : ndarray, shape (profiles,)
        Expected number of links that end at each profile; they sum to m.
    """

    side: Side
    features: Features
    ends: Floats

    @classmethod
    def random(cls, side: Side, features: Features, links: float) -> Expected:
        return cls(side, features, side.shares * links)

    @property
    def links(self) -> float:
        """Expected number of links; positive also for a side without rows, whose sums are 0."""
        return max(float(self.ends.sum()), FEWEST_LINKS)

    @cached_property
    def values(self) -> Floats:
        return np.asarray(self.features.whole(self.side.profiles) * STEP)

    @cached_property
    def _moments(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Σ x, Σ x², Σ x y and Σ y² over the links' ends, with x the features and y the unclipped features.

        x are the clipped and rounded features, in units (`STEP` per integer step), and y the unclipped ones.
        """
        totals = [np.zeros(len(self.blocks)) for _ in range(4)]
        for start in range(0, len(self.ends), CHUNK):
            profiles, ends = self.side.profiles[start : start + CHUNK], self.ends[start : start + CHUNK]
            x, y = self.features.whole(profiles) * STEP, self.features.centred(profiles)
            for total, values in zip(totals, (x, x * x, x * y, y * y), strict=True):
                total += values.T @ ends

        sums_x, sums_xx, sums_xy, sums_yy = totals
        return sums_x, sums_xx, sums_xy, sums_yy

    @property
    def sums(self) -> Floats:
        """z₀."""
        return self._moments[0]

    @property
    def curvature(self) -> Floats:
        """Variance of a column's sum under resampling of the links, shape (k,): the stiffness of the fit."""
        return np.asarray(self._moments[1] - self.sums**2 / self.links)

    @property
    def carried(self) -> Floats:
        """Change of a column's sum per relative departure of its value, shape (k,)."""
        return self._moments[2]

    @property
    def open(self) -> Floats:
        """The same change without clipping, shape (k,)."""
        return self._moments[3]

    @cached_property
    def blocks(self) -> Integers:
        return self.features.attributes


def residual(carried: Floats, open_: Floats, scale: float, precision: float) -> Floats:
    """Return the expected error of a column after shrinkage, in links, for a prior of scale s and a noise precision."""
    prior = 1 / np.maximum(carried * scale, 1e-9) ** 2
    return np.asarray(np.sqrt(1 / (prior + precision)) * open_ / np.maximum(carried, 1e-9))


def objective(u: Expected, v: Expected, precisions: tuple[float, float, float], scales: tuple[float, float]) -> float:
    """Return the expected L1 error over all 3-way cross marginals, up to a factor; 2-way if a side has one.

    `residual` is what remains of a departure after shrinkage, for every column; `cells` weighs it by the values that
    the column represents. Columns are added by attribute (`blocks`), and triples of two attributes of one side and one
    of the other have the root of their summed squares. `precisions` are those of the sums over u, over v and over
    pairs; `scales` are the assumed departures of single columns (`ones`) and pairs. `links` is the number of links,
    `carried` is the change of a column's sum per relative departure of its value, and `open` that without clipping.

    `pu`, `pv` and `puv` are the precisions, `eu`, `ev` and `joint` the errors by column of u, of v and of pairs, and
    `lu`, `lv` and `pair_errors` their sums by attribute. `nu` and `nv` are the numbers of attributes.
    """
    pu, pv, puv = precisions
    ones, pairs = scales
    eu = residual(u.carried, u.open, ones, pu) * u.features.cells
    ev = residual(v.carried, v.open, ones, pv) * v.features.cells
    joint = residual(np.outer(u.carried, v.carried) / u.links, np.outer(u.open, v.open) / u.links, pairs, puv)
    joint = joint * np.outer(u.features.cells, v.features.cells)
    nu, nv = len(u.side.sizes), len(v.side.sizes)
    lu, lv = (np.asarray(np.bincount(blocks, errors, number), dtype=np.float64)
              for blocks, errors, number in ((u.blocks, eu, nu), (v.blocks, ev, nv)))  # fmt: skip
    pair_errors = np.zeros((nu, nv))
    np.add.at(pair_errors, np.ix_(u.blocks, v.blocks), joint)

    # without triples (one attribute on each side) the sum is 0, and the pair's error is returned
    return _triples(lu, lv, pair_errors) + _triples(lv, lu, pair_errors.T) or float(
        np.sqrt(lu[0] ** 2 + lv[0] ** 2 + pair_errors[0, 0] ** 2)
    )


def _triples(singles: Floats, doubles: Floats, pairs: Floats) -> float:
    """Return Σ over an attribute of one side and two of the other of √(sum of squared components).

    `singles` and `doubles` have the errors of the attributes of these sides, `pairs` those of (single, double).
    """
    j, k = _pairs(len(doubles))
    squares = (singles**2)[:, None] + (doubles[j] ** 2 + doubles[k] ** 2) + pairs[:, j] ** 2 + pairs[:, k] ** 2
    return float(np.sqrt(squares).sum())


@cache
def _pairs(count: int) -> tuple[Integers, Integers]:
    """Return the places of all pairs, which one plan needs many thousand times."""
    return np.triu_indices(count, 1)


@dataclass(frozen=True, eq=False)
class Shares:
    """Features `u`, `v` of both sides and noise precisions of the three sums in natural units, 0 if not measured."""

    u: Features
    v: Features
    precisions: tuple[float, float, float]
    expected: float


@dataclass(frozen=True, eq=False)
class LinkProblem:
    """Planning problem: two sides, the approximate number of links, and the neighbouring relation.

    Attributes
    ----------
    u, v : Side
    links : float
    relation : str
    amount : float
        Squared μ over the squared number of links per unit.
    known : bool
        Whether the ends on the second side are known, as for children.
    """

    u: Side
    v: Side
    links: float
    relation: str
    amount: float
    known: bool = False


def plan_shares(question: LinkProblem) -> Shares:
    """Return the best of a grid of clipping bounds and of shares from several starts, refined."""
    tried = sorted(_tried(question), key=lambda entry: entry[0])[:BEST]
    return min((_refined(question, u, v, start) for _, u, v, start in tried), key=lambda shares: shares.expected)


def first_shares(question: LinkProblem) -> Shares:
    """Return shares of a first measurement, before the tables are released: unclipped features, FIRST of each sum."""
    u, v = (Features.of_side(side, None) for side in (question.u, question.v))
    return Shares(u=u, v=v, precisions=_scaled(question, u, v, np.array(FIRST)), expected=0.0)


def random_error(question: LinkProblem) -> float:
    """Return the expected error of random links without any measurement, in the same units."""
    u, v = (Expected.random(side, Features.of_side(side, None), question.links) for side in (question.u, question.v))
    effective = (0.0, KNOWN if question.known else 0.0, 0.0)
    return sum(objective(u, v, effective, scales) for scales in PRIORS)


def _tried(question: LinkProblem) -> Iterator[tuple[float, Expected, Expected, Floats]]:
    """Yield (expected error, features of both sides, logits of shares) for each clip of both sides and each start."""
    sides = [
        [Expected.random(side, Features.of_side(side, clip), question.links) for clip in CLIPS]
        for side in (question.u, question.v)
    ]
    for u, v in product(*sides):
        for start in STARTS:
            logits = np.log(np.array(start))
            yield _valued(question, u, v, logits).expected, u, v, logits


def _refined(question: LinkProblem, u: Expected, v: Expected, start: Floats) -> Shares:
    search = optimize.minimize(lambda x: _valued(question, u, v, x).expected, start, method="Nelder-Mead",
                     options={"maxiter": STEPS, "xatol": 0.02, "fatol": 1e-3})  # fmt: skip
    return _valued(question, u, v, search.x)


def _valued(question: LinkProblem, u: Expected, v: Expected, logits: Floats) -> Shares:
    """Evaluate shares, without those below LEAST; a known side has a practically infinite precision, at no cost.

    Shares of the budget follow from `logits` by softmax. The objective is summed over the scales of PRIORS.
    """
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    precisions = _scaled(question, u.features, v.features, np.where(weights < LEAST, 0.0, weights))
    effective = (precisions[0], KNOWN if question.known else precisions[1], precisions[2])
    return Shares(
        u=u.features,
        v=v.features,
        precisions=precisions,
        expected=sum(objective(u, v, effective, scales) for scales in PRIORS),
    )


def _scaled(question: LinkProblem, u: Features, v: Features, weights: Floats) -> tuple[float, float, float]:
    """Return precisions in these proportions that use up the budget.

    A precision proportional to weight over the range of a sum (`ranges`: U − g, V − h and UV) makes the weights shares
    of the cost. The exact cost of these precisions is scaled to the budget; ROUNDING keeps it below.
    """
    bounds = [(Fraction(features.squared, 4**BITS), Fraction(features.least, 4**BITS)) for features in (u, v)]
    (big_u, g), (big_v, h) = bounds
    ranges = [
        max(big_u - g, Fraction(1, 10**9)),
        max(big_v - h, Fraction(1, 10**9)),
        max(big_u * big_v, Fraction(1, 10**9)),
    ]
    raw = [Fraction(round(float(w) * DIGITS), DIGITS) / interval for w, interval in zip(weights, ranges, strict=True)]
    if question.known:
        raw[1] = Fraction(0)
    cost = float(squared_distance(question.relation, (big_u, g), (big_v, h), raw))
    scale = ROUNDING * question.amount / cost if cost else 0.0

    return tuple(float(precision) * scale for precision in raw)  # type: ignore[return-value]


# shares: number of links and degrees, of the budget; sibling sums, of the rest
LINKS, DEGREES, SIBLINGS = Fraction(1, 20), Fraction(1, 10), Fraction(2, 5)
MOST_SIBLINGS = 32  # most children of a parent for which sibling sums are measured; with more, noise dominates


@dataclass(frozen=True)
class Split:
    """Squared μ of each part."""

    links: Fraction
    degrees: Fraction
    siblings: Fraction
    sums: Fraction


def split(amount: Fraction, measure_links: bool, degrees: bool, siblings: bool = False) -> Split:
    """Return the budget of the number of links (if `measure_links`), degrees, sibling sums and feature sums."""
    links, degree_budget = amount * LINKS * measure_links, amount * DEGREES * degrees
    rest = amount - links - degree_budget
    of_siblings = SIBLINGS * siblings
    return Split(links=links, degrees=degree_budget, siblings=rest * of_siblings, sums=rest * (1 - of_siblings))


def degrees_squared(relation: str, bound: int, roles: int, sides: int) -> int:
    """Return the squared sensitivity of the degree histograms of the unit's side and, if `sides` is 2, the other side.

    `roles` is 2 if a unit's row may be at either end of links within one table; each role contributes equally.
    """
    others = 2 * bound**2 if relation == REPLACE else bound**2 if sides == 2 else 0
    return roles**2 * (bound + others)


def sums_cost(relation: str, shares: Shares, precisions: tuple[Fraction, Fraction, Fraction], moved: int) -> Fraction:
    """Return the squared μ of the three sums in steps of the features; `precisions` are in the same steps."""
    u, v = (shares.u.squared, shares.u.least), (shares.v.squared, shares.v.least)
    return moved**2 * squared_distance(relation, u, v, precisions)


def precisions_in_steps(shares: Shares) -> tuple[Fraction, Fraction, Fraction]:
    """Convert noise precisions from natural units to steps of the integer features."""
    pu, pv, puv = map(Fraction, shares.precisions)
    return pu / 4**BITS, pv / 4**BITS, puv / 16**BITS
