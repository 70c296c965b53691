"""Links between some parents and some children of a link, whose distribution over pairs of profiles is fitted once.

A block of rows has the share of its parents and of its children in the expected links of every pair of profiles. The
rounding to whole links, the degrees of parents and the exchange of siblings are those of a link with these rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dpscale.base.numerics import Floats, Integers, NDArray
from dpscale.privacy.streams import PublicStream
from dpscale.relational.assignment import (
    MOST,
    STEP,
    PairTables,
    assign_links,
    estimate_sums,
    sibling_sums,
    swap_children,
)
from dpscale.relational.degrees import children, degrees, sample_uniform_degrees
from dpscale.relational.features import Side
from dpscale.relational.link_estimation import row_degrees
from dpscale.relational.rounding import cross_words, round_children, round_columns

MOST_WORDS = 1 << 27  # most words of cross marginals in exchanges of siblings: 1 GiB


@dataclass(frozen=True, eq=False)
class SiblingSums:
    """Noisy sums over pairs of siblings in natural units, and the standard deviation of their noise."""

    noisy: Floats
    sigma: float


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of the profiles of both sides, if there are too many pairs of profiles.

    Attributes
    ----------
    u, v : ndarray
        Group of every profile.
    ends : ndarray
        Expected links of a row of each profile of u.
    """

    u: Integers
    v: Integers
    ends: Floats

    def side(self, side: Side, place: int) -> Side:
        """Return a side with one row for each group instead of each profile."""
        of = (self.u, self.v)[place]
        number = int(of.max(initial=0)) + 1
        counts = np.asarray(np.bincount(of, side.counts, number), dtype=np.float64)
        return Side(side.sizes, np.zeros((number, len(side.sizes)), np.int64), counts, np.arange(number))


@dataclass(frozen=True, eq=False)
class ChildModel:
    """Distribution of links of children with at most one parent each.

    Attributes
    ----------
    sides : tuple of Side
        Profiles of all parents and of all children.
    expected : ndarray
        Expected links by profiles, or by groups.
    groups : Groups or None
    bound : int or None
        Most children of a parent.
    law : ndarray or None
        Share of parents of every degree; None without a bound.
    by_profile : bool
        Whether the degrees of parents of one profile have one distribution.
    siblings : SiblingSums or None
    most : int
        Most exchanges of siblings that are tried in a pass.
    """

    sides: tuple[Side, Side]
    expected: Floats
    groups: Groups | None
    bound: int | None
    law: Floats | None
    by_profile: bool
    siblings: SiblingSums | None
    most: int

    def draw(self, above: NDArray[np.integer], below: NDArray[np.integer], stream: PublicStream) -> Integers:
        """Return the links between parents and children of these profiles, as positions, shape (links, 2)."""
        one, two = (rows_of_profiles(side, of)[0] for side, of in zip(self.sides, (above, below), strict=True))
        if self.groups is None:
            u, v, expected = one, two, self._share(self.sides, above, below)
            whole = round_children(expected, u, v, self.bound, stream)
            each = (whole.sum(axis=1) / u.counts)[u.of]
        else:
            sides = self.groups.side(self.sides[0], 0), self.groups.side(self.sides[1], 1)
            first, second = self.groups.u[above], self.groups.v[below]
            u, v = (
                replace(rows_of_profiles(side, of)[0], profiles=side.profiles[:0])
                for side, of in zip(sides, (first, second), strict=True)
            )
            whole = round_columns(self._share(sides, first, second), v.counts, self.bound, u.counts, stream)
            each = self.groups.ends[above]

        ends = self._degrees(each, u, whole.sum(axis=1), stream)
        links = assign_links(whole, u, v, ends, children(whole.sum(axis=0), v, stream), stream)
        known = expected if self.groups is None else None
        return with_siblings(links, (one, two), known, self.siblings, stream, self.most)

    def _degrees(self, each: Floats, u: Side, totals: Floats, stream: PublicStream) -> list[Integers]:
        """Return the degrees of the parents by profile or group; `each` is the expected degree of every row."""
        if self.law is None:
            return sample_uniform_degrees(each, u, totals, stream)
        if self.groups is None and self.by_profile:
            return degrees(totals, u, self.law, stream)
        return row_degrees(each, self.law, u, totals, stream)

    def _share(self, sides: tuple[Side, Side], above: NDArray[np.integer], below: NDArray[np.integer]) -> Floats:
        """Return the expected links of some rows, one for each child."""
        (one, first), (two, second) = rows_of_profiles(sides[0], above), rows_of_profiles(sides[1], below)
        parts = one.counts / sides[0].counts[first], two.counts / sides[1].counts[second]
        found = self.expected[np.ix_(first, second)] * np.outer(*parts)
        return np.asarray(found * (two.counts / np.maximum(found.sum(axis=0), 1e-300)))


def rows_of_profiles(side: Side, of: NDArray[np.integer]) -> tuple[Side, Integers]:
    """Return the side of rows of the given profiles, and those profiles that occur, ascending."""
    kinds, own = np.unique(of, return_inverse=True)
    counts = np.bincount(own, minlength=len(kinds)).astype(float)
    return Side(side.sizes, side.profiles[kinds], counts, own.reshape(-1)), kinds


def with_siblings(links: Integers, sides: tuple[Side, Side], expected: Floats | None, siblings: SiblingSums | None,
                  stream: PublicStream, most: int = MOST) -> Integers:  # fmt: skip
    """Return the links with children exchanged until the sibling sums are near the measured ones.

    Parameters
    ----------
    links : ndarray, shape (links, 2)
    sides : tuple of Side
    expected : ndarray, optional
        Expected links by profiles; None preserves the marginals of the links as drawn.
    siblings : SiblingSums, optional
    stream : PublicStream
    most : int
        Most exchanges that are tried in a pass.
    """
    u, v = sides
    if siblings is None or not len(links) or cross_words(u, v) > MOST_WORDS:
        return links
    rows, tables = v.profiles[v.of], PairTables(v.sizes)
    now = np.asarray(sibling_sums(rows[links[:, 1]], links[:, 0], tables) * STEP, dtype=np.float64)
    target = estimate_sums(siblings.noisy, now, tables, siblings.sigma**-2)
    return swap_children(links, rows, u, v, expected, target, tables, stream, most)
