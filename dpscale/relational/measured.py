"""What a link's budget is spent on: how many there are, rows by degree, sums of features, and over siblings.

Sensitivities, for a neighbour that moves at most d links (`moved`) of which each row has at most b: the number of links
moves by d. Of the counts of rows with at most 0 … b − 1 links, a row that comes or goes, or is replaced, moves its own
side's by at most 1 each (squared: b); a row of the other side moves one count by 1 for each link that it gains or
loses, so all together d under add/remove (squared: d²), twice d in groups of d under replace (2 d²).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from dpscale.privacy.protection import REPLACE
from dpscale.relational.bounds import squared_distance
from dpscale.relational.features import BITS
from dpscale.relational.shares import Shares

LINKS, DEGREES, SIBLINGS = Fraction(1, 20), Fraction(1, 10), Fraction(2, 5)
MOST_SIBLINGS = 32  # children of a parent: beyond, the noise of sums over siblings is more than they tell


@dataclass(frozen=True)
class Split:
    """Squared μ of each part."""

    links: Fraction
    degrees: Fraction
    siblings: Fraction
    sums: Fraction


def split(amount: Fraction, counted: bool, degrees: bool, siblings: bool = False) -> Split:
    """Which parts are measured: the number of links, degrees, and what siblings have in common."""
    links, own = amount * LINKS * counted, amount * DEGREES * degrees
    left = amount - links - own
    return Split(links, own, left * SIBLINGS * siblings, left * (1 - SIBLINGS * siblings))


def degrees_squared(relation: str, bound: int, roles: int, sides: int) -> int:
    """How far the counts by degree move, squared: of the unit's own side and, where `sides` is 2, the other's.

    `roles`: 2 where a unit's row may be at either end of links within one table; each moves as much as one alone.
    """
    others = 2 * bound**2 if relation == REPLACE else bound**2 if sides == 2 else 0
    return roles**2 * (bound + others)


def sums_cost(relation: str, shares: Shares, precisions: tuple[Fraction, Fraction, Fraction], moved: int) -> Fraction:
    """Squared μ of the three sums, in steps of the features. `precisions`: of the noise, in the same steps."""
    u, v = (shares.u.squared, shares.u.least), (shares.v.squared, shares.v.least)
    return moved**2 * squared_distance(relation, u, v, precisions)


def in_steps(shares: Shares) -> tuple[Fraction, Fraction, Fraction]:
    """Precisions of noise on sums of whole features, from those in natural units."""
    pu, pv, puv = map(Fraction, shares.precisions)
    return pu / 4**BITS, pv / 4**BITS, puv / 16**BITS
