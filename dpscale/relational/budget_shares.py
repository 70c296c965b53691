"""Split of the budget between the three sums, and clipping bounds of features, by expected error without data.

For priors of two strengths (`PRIORS`: weak and strong departures) the expected error over the cross marginals is added
up and minimised over clipping bounds and shares. A share is relative to the cost of a sum alone; a sum with a share
below LEAST is omitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np

from dpscale.base.numerics import Floats
from dpscale.privacy.protection import REPLACE
from dpscale.relational.expected_links import Expected, objective
from dpscale.relational.features import BITS, Features, Side, squared_distance

PRIORS = ((0.1, 0.05), (0.3, 0.2))
CLIPS = (0.7, 1.0, 1.4, 2.0, None)
STARTS = ((0.5, 0.5, 0.005), (0.7, 0.3, 0.005), (0.35, 0.35, 0.3), (0.2, 0.2, 0.6), (0.5, 0.2, 0.3), (0.3, 0.65, 0.005),
          (0.25, 0.5, 0.25))  # fmt: skip
LEAST, STEPS, BEST = 0.01, 60, 3
DIGITS = 1 << 20


@dataclass(frozen=True, eq=False)
class Shares:
    """Features `u`, `v` of both sides and noise precisions of the three sums in natural units, 0 if not measured."""

    u: Features
    v: Features
    precisions: tuple[float, float, float]
    expected: float


@dataclass(frozen=True, eq=False)
class Question:
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


def plan_shares(question: Question) -> Shares:
    """Return the best of a grid of clipping bounds and of shares from several starts, refined."""
    tried = sorted(_tried(question), key=lambda one: one[0])[:BEST]
    return min((_refined(question, u, v, start) for _, u, v, start in tried), key=lambda found: found.expected)


def random_error(question: Question) -> float:
    """Return the expected error of random links without any measurement, in the same units."""
    u, v = (Expected.random(side, Features.of_side(side, None), question.links) for side in (question.u, question.v))
    effective = (0.0, 1e12 if question.known else 0.0, 0.0)
    return sum(objective(u, v, effective, scales) for scales in PRIORS)


def _tried(question: Question) -> Iterator[tuple[float, Expected, Expected, Floats]]:
    sides = [[Expected.random(side, Features.of_side(side, clip), question.links) for clip in CLIPS]
             for side in (question.u, question.v)]  # fmt: skip
    for u, v in product(*sides):
        for start in STARTS:
            logits = np.log(np.array(start))
            yield _valued(question, u, v, logits).expected, u, v, logits


def _refined(question: Question, u: Expected, v: Expected, start: Floats) -> Shares:
    from scipy.optimize import minimize

    found = minimize(lambda x: _valued(question, u, v, x).expected, start, method="Nelder-Mead",
                     options={"maxiter": STEPS, "xatol": 0.02, "fatol": 1e-3})  # fmt: skip
    return _valued(question, u, v, found.x)


def _valued(question: Question, u: Expected, v: Expected, logits: Floats) -> Shares:
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    precisions = _scaled(question, u.features, v.features, np.where(weights < LEAST, 0.0, weights))
    effective = (precisions[0], 1e12 if question.known else precisions[1], precisions[2])
    return Shares(u.features, v.features, precisions, sum(objective(u, v, effective, scales) for scales in PRIORS))


def _scaled(question: Question, u: Features, v: Features, weights: Floats) -> tuple[float, float, float]:
    """Return precisions in these proportions that use up the budget."""
    bounds = [(Fraction(one.squared, 4**BITS), Fraction(one.least, 4**BITS)) for one in (u, v)]
    (big_u, g), (big_v, h) = bounds
    ranges = [
        max(big_u - g, Fraction(1, 10**9)),
        max(big_v - h, Fraction(1, 10**9)),
        max(big_u * big_v, Fraction(1, 10**9)),
    ]
    raw = [Fraction(round(float(w) * DIGITS), DIGITS) / one for w, one in zip(weights, ranges, strict=True)]
    if question.known:
        raw[1] = Fraction(0)
    cost = float(squared_distance(question.relation, (big_u, g), (big_v, h), raw))
    scale = question.amount / cost if cost else 0.0
    return tuple(float(one) * scale for one in raw)  # type: ignore[return-value]


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
    """Return the budget of each part: the number of links (if `counted`), degrees, sibling sums and feature sums."""
    links, own = amount * LINKS * measure_links, amount * DEGREES * degrees
    left = amount - links - own
    return Split(links, own, left * SIBLINGS * siblings, left * (1 - SIBLINGS * siblings))


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
