"""Assignment of links to rows, with swaps that remove duplicate links; swaps of children that restore sibling sums.

Two links may exchange their rows at an end if both rows have the same profile: neither the rows' degrees nor the
numbers of links by profile change. If rows have few of their possible links, random swaps remove most duplicates. The
remaining ones, in groups that are nearly complete, are swapped only if that does not increase their number.

A block of some parents and some children has their shares in the expected links of every pair of profiles, whose
distribution is fitted once. The rounding to whole links, the degrees of parents and the exchange of siblings are those
of a link with these rows.

*Rules between parents and children.*
Parents are exchanged until every link is possible. Parents and children are in classes by the cells that the rules
read. Children whose link is impossible leave their parents; a maximum flow from classes of children to classes of
parents assigns as many as possible to the places that became free, a second one to places within the bound. The
remaining children have no possible parent, and one of their cells must change.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Flags, Floats, Integers, NDArray
from dpscale.privacy.streams import PublicStream
from dpscale.relational import loops
from dpscale.relational.degrees import children, degrees, sample_uniform_degrees
from dpscale.relational.features import BITS, Side
from dpscale.relational.link_estimation import ShrinkageBlock, ridges, row_degrees
from dpscale.relational.rounding import Cross, cross_words, round_children, round_columns

# rounds of single swaps; links tried for each; ratio of duplicates after and before a round, from which on they are
# swapped one by one
ROUNDS, TRIES, FALLS = 200, 16, 0.7
MOST_WORDS = 1 << 27  # most words of cross marginals in exchanges of siblings: 1 GiB

MOST_CELLS = 1 << 27  # pairs of classes at most, a byte each
UNBOUNDED = (1 << 31) - 1  # the largest 32-bit capacity of a flow


def assign_links(
    links: Floats, u: Side, v: Side, u_degrees: list[Integers], v_degrees: list[Integers], stream: PublicStream
) -> Integers:
    """Return the links as pairs of rows, shape (links, 2), without duplicates.

    Links are dropped only if a few pairs of rows must have more links than there are pairs.

    Parameters
    ----------
    links : ndarray, shape (profiles of u, profiles of v)
        Number of links.
    u, v : Side
    u_degrees, v_degrees : list of ndarray
        Degrees of the rows of each profile.
    stream : PublicStream
    """
    cells = np.repeat(np.arange(links.size), links.ravel().astype(np.int64))
    first, second = cells // links.shape[1], cells % links.shape[1]
    u_rows = _ends(u, u_degrees, stream)
    v_rows = np.empty(len(cells), np.int64)
    v_rows[np.argsort(second, kind="stable")] = _ends(v, v_degrees, stream)
    pairs = np.stack([u_rows, v_rows], axis=1)
    _separate_duplicates(pairs, first, second, v.rows, stream)

    return pairs[np.sort(np.unique(pairs[:, 0] * v.rows + pairs[:, 1], return_index=True)[1])]


def _ends(side: Side, degrees: list[Integers], stream: PublicStream) -> Integers:
    """Return rows repeated by their degrees, profile by profile, in random order within each.

    A row occurs as often as it has links. The stable sort by profile after a permutation makes the order random within
    each profile, in the order of the profiles.
    """
    rows = np.argsort(side.of, kind="stable")
    ends = np.repeat(rows, np.concatenate(degrees)) if len(rows) else rows
    order = stream.permutation(len(ends))
    return np.asarray(ends[order[np.argsort(side.of[ends[order]], kind="stable")]])


def _separate_duplicates(pairs: Integers, first: Integers, second: Integers, rows: int, stream: PublicStream) -> None:
    """Swap ends of duplicate links with links of the same profile on that side, in place.

    A pair (a, b) has the key a · rows + b. The sides are swapped in turn, until the number of duplicates falls too
    slowly (FALLS per round); the remaining ones are swapped one by one. `first` and `second` have the profile of either
    end of each link, and `rows` makes the key of a pair unique.
    """
    groups, before = (_LinkIndex.of(first), _LinkIndex.of(second)), math.inf
    twice, number = _repeated(pairs[:, 0] * rows + pairs[:, 1]), 0
    while 0 < len(twice) < FALLS * before:
        side, before = number % 2, len(twice)
        # j is a random link with the same profile at this end
        for i, j in zip(twice, groups[side].some(twice, stream.uniforms(len(twice))), strict=True):
            pairs[i, side], pairs[j, side] = pairs[j, side], pairs[i, side]
        twice, number = _repeated(pairs[:, 0] * rows + pairs[:, 1]), number + 1

    if len(twice):
        _separate_remaining(pairs, groups, twice, rows, stream)


@dataclass(frozen=True, eq=False)
class _LinkIndex:
    """Links by their profile on one side: `order[start[k] : start[k + 1]]` are those of profile k."""

    profile: Integers
    order: Integers
    start: Integers

    @classmethod
    def of(cls, profile: Integers) -> _LinkIndex:
        order = np.argsort(profile, kind="stable")
        return cls(profile, order, np.searchsorted(profile[order], np.arange(profile.max(initial=0) + 2)))

    def some(self, links: Integers, uniforms: Floats) -> Integers:
        """Return for each link a random one of its profile."""
        profile = self.profile[links]
        return np.asarray(self.order[self.start[profile] + (uniforms * np.diff(self.start)[profile]).astype(np.int64)])


def _separate_remaining(
    pairs: Integers, groups: tuple[_LinkIndex, _LinkIndex], twice: Integers, rows: int, stream: PublicStream
) -> None:
    """Swap duplicates without increasing their number: of several tries, the first that reduces it.

    `twice` are the positions of duplicate links; a link is the number parent · `rows` + child, and `there` counts these
    numbers. Rounds exchange with random links of the same profile, on either side in turn.
    """
    there: Counter[int] = Counter()
    for number in range(ROUNDS):
        if not len(twice):
            # all known ones are separated: look for others, which exchanges may have made
            twice, there = _repeated(pairs[:, 0] * rows + pairs[:, 1]), Counter()
            if not len(twice):
                return

        if not there:  # count all links that may be exchanged with these
            near = np.logical_or(*(np.isin(group.profile, group.profile[twice]) for group in groups))
            there = Counter((pairs[near, 0] * rows + pairs[near, 1]).tolist())

        side = number % 2
        others = groups[side].some(np.repeat(twice, TRIES), stream.uniforms(len(twice) * TRIES)).reshape(-1, TRIES)
        for i, tried in zip(twice.tolist(), others.tolist(), strict=True):
            _swap_duplicate(pairs, i, tried, side, rows, there)
        # those that are still duplicates
        twice = twice[[there[key] > 1 for key in (pairs[twice, 0] * rows + pairs[twice, 1]).tolist()]]


def _swap_duplicate(pairs: Integers, i: int, tried: list[int], side: int, rows: int, there: Counter[int]) -> None:
    """Swap an end of pair i, if it is there twice, with one of the tried pairs that gives no more duplicates.

    The first pair that gives fewer duplicates is taken, else the last one that gives as many.

    `there` counts the pairs (a, b) under a · rows + b; `side` is the end that is swapped. `pairs` and `there` change
    in place.

    After the swap with (c, d), the pairs (a, d) and (c, b) exist. `more` is the change of the number of duplicates: one
    for each of these that is there already, less one for (a, b), and less one if (c, d) is a duplicate too.

    Several links of the same rows are duplicates, which a release must not have. A swap of ends with the same profile
    changes neither degrees nor numbers of links by profile.
    """
    (a, b), best = pairs[i].tolist(), -1
    if there[a * rows + b] < 2:
        return

    for j in tried:
        c, d = pairs[j].tolist()
        # equal ends: a swap changes nothing
        if a == c or b == d:
            continue
        more = (there[a * rows + d] > 0) + (there[c * rows + b] > 0) - 1 - (there[c * rows + d] > 1)
        if more <= 0:
            best = j
        if more < 0:
            break

    if best >= 0:
        c, d = pairs[best].tolist()
        there.subtract((a * rows + b, c * rows + d))
        there.update((a * rows + d, c * rows + b))
        pairs[i, side], pairs[best, side] = pairs[best, side], pairs[i, side]


def _repeated(keys: Integers) -> Integers:
    order = np.argsort(keys, kind="stable")
    return order[1:][keys[order[1:]] == keys[order[:-1]]]


def remove_loops(pairs: Integers, profiles: Integers, stream: PublicStream, one_parent: bool = False) -> Integers:
    """Return links within one table without those from a row to itself.

    Each such link exchanges its second end with another link, if possible one with the same profile there.

    Parameters
    ----------
    pairs : ndarray, shape (links, 2)
        Links, changed in place.
    profiles : ndarray, shape (rows,)
        Profile of every row.
    stream : PublicStream
    one_parent : bool
        Whether a row is the second end of at most one link. A link without a possible exchange then gets another
        parent; otherwise it is dropped.
    """
    number, first = len(profiles), pairs[:, 0]
    there = Counter((first * number + pairs[:, 1]).tolist())
    by_profile = _LinkIndex.of(profiles[pairs[:, 1]])

    for i in np.flatnonzero(first == pairs[:, 1]).tolist():
        near = by_profile.some(np.full(TRIES, i), stream.uniforms(TRIES))
        anyone = (stream.uniforms(TRIES) * len(pairs)).astype(np.int64)
        _remove_loop(pairs, i, [*near.tolist(), *anyone.tolist()], number, there)

    for i in np.flatnonzero(first == pairs[:, 1]).tolist():  # few tries find nothing if most links have one parent
        _remove_loop(pairs, i, stream.permutation(len(pairs)).tolist(), number, there)
        if one_parent and pairs[i, 0] == pairs[i, 1]:  # the row is the parent of all children, others have none
            pairs[i, 0] = (pairs[i, 0] + 1) % number

    return pairs[pairs[:, 0] != pairs[:, 1]]


def _remove_loop(pairs: Integers, i: int, tried: list[int], number: int, there: Counter[int]) -> None:
    """Exchange the end of a row's link to itself with the first link that creates neither a loop nor a duplicate.

    `i` is the position of the link and `tried` those of others; a link is the number row · `number` + end, and `there`
    counts these numbers.

    The link (row, row) and a link (a, b) become (row, b) and (a, row), which keeps the degrees of all rows.
    """
    row, end = pairs[i].tolist()
    for j in tried if row == end else ():
        a, b = pairs[j].tolist()
        exchanged = (row * number + b, a * number + row)
        if row not in (a, b) and not there[exchanged[0]] and not there[exchanged[1]]:
            there.subtract((row * number + row, a * number + b))
            there.update(exchanged)
            pairs[i, 1], pairs[j, 1] = b, row
            return


STEP = 2.0**-BITS  # unit of integer sibling sums
# prior mode of the scale of sibling sums; weight of cross marginals against them; passes of exchanges; exchanges tried
# for a child, and at most in a pass, since with many links further ones change little
PRIOR, MARGINAL_WEIGHT, PASSES, PROPOSALS, MOST = 0.5, 0.3, 3, 10, 1_000_000


@dataclass(frozen=True)
class PairTables:
    """Pairs of attributes i ≤ j, whose contingency tables are stored one after the other."""

    sizes: tuple[int, ...]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(len(self.sizes)) for j in range(i, len(self.sizes))]

    @property
    def starts(self) -> Integers:
        """Start of each table, and the end of the last."""
        return np.concatenate([[0], np.cumsum([self.sizes[i] * self.sizes[j] for i, j in self.pairs])]).astype(np.int64)

    def squared(self, children: int, parents: int) -> int:
        """Return the squared sensitivity of the sums, in steps, for a unit of so many parents with so many children."""
        return len(self.pairs) * (parents * children << BITS) ** 2


def sibling_sums(rows: NDArray[np.integer], parents: Integers, tables: PairTables) -> Integers:
    """Return the sums over pairs of siblings, in steps.

    Parameters
    ----------
    rows : ndarray, shape (m, d)
        Values of the children.
    parents : ndarray, shape (m,)
        Parent of each child.
    tables : PairTables
    """
    sums = np.zeros(int(tables.starts[-1]), np.int64)
    order = np.argsort(parents, kind="stable")
    begins = np.concatenate([[0], np.cumsum(np.bincount(parents))]).astype(np.int64)
    weights = np.where(np.diff(begins) > 1, (1 << BITS) // np.maximum(np.diff(begins) - 1, 1), 0).astype(np.int64)
    layout, sizes = np.array(tables.pairs, np.int64).reshape(-1, 2), np.array(tables.sizes, np.int64)
    values = np.ascontiguousarray(np.asarray(rows)[order], dtype=np.int64)
    loops.add_siblings(values, begins, weights, sizes, layout, tables.starts, sums)

    return sums


def estimate_sums(noisy: Floats, now: Floats, tables: PairTables, precision: float) -> Floats:
    """Return the target of the sums: those of the children as drawn, plus the shrunken departure of the noisy sums.

    `scale` is the ratio of the pairs of the first table, noisy over drawn, so that sums of all tables compare. A
    departure is multiplied by carried/(carried + ridge): `carried` is the expected count, and `ridge` the shrinkage of
    its table.
    """
    starts = tables.starts
    scale = max(float(noisy[: starts[1]].sum()), 1.0) / max(float(now[: starts[1]].sum()), 1.0)
    expected = now * scale
    cells = [slice(first, last) for first, last in pairwise(starts)]
    carried = np.maximum(expected, 1.0)
    blocks = [
        ShrinkageBlock(
            departed=(noisy - expected)[of_table],
            curvature=carried[of_table],
            carried=carried[of_table],
            sigma=precision**-0.5,
        )
        for of_table in cells
    ]
    target = expected.copy()
    for of_table, ridge in zip(cells, ridges(blocks, PRIOR), strict=True):
        target[of_table] += (noisy - expected)[of_table] * carried[of_table] / (carried[of_table] + ridge)

    return target / scale


def swap_children(links: Integers, rows: Integers, u: Side, v: Side, expected: Floats | None, target: Floats,
                  tables: PairTables, stream: PublicStream, most: int = MOST) -> Integers:  # fmt: skip
    """Return the links, shape (m, 2), with children exchanged between parents to bring the sibling sums near `target`.

    Parameters
    ----------
    links : ndarray, shape (m, 2)
    rows : ndarray, shape (rows of v, d)
        Values of all children.
    u, v : Side
    expected : ndarray, shape (profiles of u, profiles of v), optional
        Expected links whose marginals are preserved approximately; by default those of `links`.
    target : ndarray
        Sibling sums.
    tables : PairTables
    stream : PublicStream
    most : int
        Most exchanges that are tried in a pass.
    """
    cross = Cross.of(u, v)
    parents = np.full(v.rows, -1, np.int64)
    parents[links[:, 1]] = links[:, 0]
    with_parent = np.flatnonzero(parents >= 0)
    order = with_parent[np.argsort(parents[with_parent], kind="stable")]
    each = np.bincount(parents[with_parent], minlength=u.rows)
    begins = np.concatenate([[0], np.cumsum(each)]).astype(np.int64)
    off = np.zeros(cross.size)

    if expected is not None:
        current = np.zeros(expected.shape)
        np.add.at(current, (u.of[parents[with_parent]], v.of[with_parent]), 1.0)
        off = cross.marginals(current - expected)

    sibling_off = sibling_sums(rows[with_parent], parents[with_parent], tables) * STEP - target
    layout = np.array(tables.pairs, np.int64).reshape(-1, 2)
    values, sizes = np.ascontiguousarray(rows, dtype=np.int64), np.array(tables.sizes, np.int64)

    for _ in range(PASSES):
        count = min(PROPOSALS * len(with_parent), most)
        first, second = (with_parent[(stream.uniforms(count) * len(with_parent)).astype(np.int64)] for _ in range(2))
        loops.swap(parents, order, begins, first, second, u.of, v.of, cross.first, cross.second, off, MARGINAL_WEIGHT,
                   values, sizes, layout, tables.starts, sibling_off)  # fmt: skip

    return np.stack([parents[with_parent], with_parent], axis=1)


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
        """Return a side with one row for each group instead of each profile.

        The groups of `place` 0 are those of parents, of 1 those of children. Values of the groups are not needed (0).
        """
        group_of_profile = (self.u, self.v)[place]
        number = int(group_of_profile.max(initial=0)) + 1
        counts = np.asarray(np.bincount(group_of_profile, side.counts, number), dtype=np.float64)
        return Side(
            sizes=side.sizes,
            profiles=np.zeros((number, len(side.sizes)), np.int64),
            counts=counts,
            of=np.arange(number),
        )


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
        """Return the links between parents and children of these profiles, as positions, shape (links, 2).

        Without groups, `of_parents` and `of_children` are the rows by profile, and the links are rounded by profile;
        with groups by group, and `each` has the expected links of every parent. `above` and `below` are the profile
        numbers of the rows; `rounded` are integer links, `ends` the degree of each parent.
        """
        of_parents, of_children = rows_of_profiles(self.sides[0], above)[0], rows_of_profiles(self.sides[1], below)[0]
        if self.groups is None:
            u, v, expected = of_parents, of_children, self._share(self.sides, above, below)
            # integer links by profiles, with one parent for each child
            rounded = round_children(expected, u, v, self.bound, stream)
            each = (rounded.sum(axis=1) / u.counts)[u.of]
        else:
            sides = self.groups.side(self.sides[0], 0), self.groups.side(self.sides[1], 1)
            first, second = self.groups.u[above], self.groups.v[below]
            u, v = (
                # groups have no profiles of their own, so links move by group alone
                replace(rows_of_profiles(side, profiles)[0], profiles=side.profiles[:0])
                for side, profiles in zip(sides, (first, second), strict=True)
            )
            rounded = round_columns(self._share(sides, first, second), v.counts, self.bound, u.counts, stream)
            each = self.groups.ends[above]

        ends = self._degrees(each, u, rounded.sum(axis=1), stream)
        links = assign_links(rounded, u, v, ends, children(rounded.sum(axis=0), v, stream), stream)
        # the exchange of siblings needs the expected links by profile
        known = expected if self.groups is None else None
        return with_siblings(links, (of_parents, of_children), known, self.siblings, stream, self.most)

    def _degrees(self, each: Floats, u: Side, totals: Floats, stream: PublicStream) -> list[Integers]:
        """Return the degrees of the parents by profile or group.

        They follow the law of degrees if it was measured: with the same expected degree for all rows of a profile, or
        with an expected degree `each` for every row. Without a law, degrees are as equal as `each` allows.
        """
        if self.law is None:
            return sample_uniform_degrees(each, u, totals, stream)
        if self.groups is None and self.by_profile:
            return degrees(totals, u, self.law, stream)
        return row_degrees(each, self.law, u, totals, stream)

    def _share(self, sides: tuple[Side, Side], above: NDArray[np.integer], below: NDArray[np.integer]) -> Floats:
        """Return the expected links of some rows, one for each child.

        The rows have a part of the rows of each profile (`parts`), so of its links; columns are then scaled to one link
        for each child. `expected` has the links between all profiles. The sum of a column is kept above 0 for the
        division.
        """
        (parents, first), (children, second) = rows_of_profiles(sides[0], above), rows_of_profiles(sides[1], below)
        parts = parents.counts / sides[0].counts[first], children.counts / sides[1].counts[second]
        expected = self.expected[np.ix_(first, second)] * np.outer(*parts)
        return np.asarray(expected * (children.counts / np.maximum(expected.sum(axis=0), 1e-300)))


def rows_of_profiles(side: Side, profile_of_row: NDArray[np.integer]) -> tuple[Side, Integers]:
    """Return the side of rows of the given profiles, and those profiles that occur, ascending.

    `profile_of_row` has the number of the profile of each row; profiles that no row has are omitted, and `numbers` are
    those among the others.
    """
    kinds, numbers = np.unique(profile_of_row, return_inverse=True)
    counts = np.bincount(numbers, minlength=len(kinds)).astype(float)
    # sizes of the attributes, profiles, rows of each profile, profile of each row
    return Side(sizes=side.sizes, profiles=side.profiles[kinds], counts=counts, of=numbers.reshape(-1)), kinds


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


@dataclass(frozen=True, eq=False)
class PossibleLinks:
    """Classes of parents and children, and the possible links between them.

    Attributes
    ----------
    parents, children : ndarray
        Class of every row.
    possible : ndarray of bool, shape (classes of parents, classes of children)
    bound : int, optional
        Maximum number of children of a parent.
    """

    parents: Integers
    children: Integers
    possible: Flags
    bound: int | None

    def broken(self, pairs: Integers) -> Flags:
        """Return the impossible links."""
        return ~self.possible[self.parents[pairs[:, 0]], self.children[pairs[:, 1]]]

    def free(self, pairs: Integers) -> Integers:
        """Return parents that may have more children, repeated by their number of places, or once without a bound."""
        rows = np.arange(len(self.parents))
        if self.bound is None:
            return rows
        degrees = np.bincount(pairs[:, 0], minlength=len(rows))
        return np.repeat(rows, np.maximum(self.bound - degrees, 0))


def check_size(parents: int, children: int) -> None:
    """Raise PlanError for more pairs of classes than memory permits."""
    if parents * children > MOST_CELLS:
        raise PlanError("rule", f"{parents:,} × {children:,} kinds of linked rows",
                        f"at most {MOST_CELLS:,}", "state rules over attributes with fewer values")  # fmt: skip


def repair_links(pairs: Integers, links: PossibleLinks, stream: PublicStream) -> tuple[Integers, Integers]:
    """Return links of which as many as possible are possible, and the positions of the others.

    Parameters
    ----------
    pairs : ndarray, shape (m, 2)
        Rows of the parent and of the child.
    links : PossibleLinks
    stream : PublicStream

    Returns
    -------
    pairs : ndarray, shape (m, 2)
        Every child has a parent, within the bound.
    left : ndarray
        Positions of links that remain impossible.
    """
    pairs, bad = pairs.copy(), np.flatnonzero(links.broken(pairs))
    # children of impossible links first exchange the places of these links, and then get other places within the bound
    places = pairs[bad, 0]
    used, taken = _assign(pairs, bad, places, links, stream, reuse=False)
    bad, free_places = bad[~used], np.delete(places, taken)

    if len(bad):
        open_pairs = np.delete(pairs, bad, axis=0)
        used, _ = _assign(pairs, bad, links.free(open_pairs), links, stream, reuse=links.bound is None)
        unplaced = bad[~used]
        pairs[unplaced, 0] = _any_place(len(unplaced), free_places, np.delete(pairs, unplaced, axis=0), links)
        return pairs, unplaced

    return pairs, bad


def _any_place(count: int, free_places: Integers, pairs: Integers, links: PossibleLinks) -> Integers:
    """Return parents for children without a possible one: places that became free, then any within the bound.

    `free_places` are the parents of free places, and `pairs` the links so far. If free places are too few, parents
    below the bound of links follow, each as often as it has room.
    """
    if links.bound is None:
        return free_places[:count]

    degrees = np.bincount(pairs[:, 0], minlength=len(links.parents))
    within_bound = [parent for parent in free_places.tolist() if degrees[parent] < links.bound][:count]
    given = np.array(within_bound, np.int64)
    degrees += np.bincount(given, minlength=len(degrees))
    more = np.repeat(np.arange(len(degrees)), np.maximum(links.bound - degrees, 0))

    return np.concatenate([given, more])[:count]


def _assign(
    pairs: Integers, bad: Integers, places: Integers, links: PossibleLinks, stream: PublicStream, reuse: bool
) -> tuple[Flags, Integers]:
    """Give places to the children of links, in place; return those that have one, and the places that are used.

    `reuse` permits any number of children at a place.

    `flow` has for each pair of classes how many waiting children go to vacant places; children and places of a class
    are taken in random order.

    `bad` are the links whose children wait for a place; `places` are vacant places, as rows of parents, and `links` has
    the class of each row and which pairs of classes are possible.
    """
    children, spots = links.children[pairs[bad, 1]], links.parents[places]
    flow = _flow(np.bincount(children, minlength=links.possible.shape[1]),
                 np.bincount(spots, minlength=len(links.possible)), links.possible, reuse)  # fmt: skip
    waiting = _shuffled(children, stream)
    vacant = _shuffled(spots, stream)

    used, taken = np.zeros(len(bad), np.bool_), []
    for parent, child in zip(*np.nonzero(flow), strict=True):
        number = int(flow[parent, child])
        assigned = [waiting[child].pop() for _ in range(number)]
        # a place is chosen at random for each child; otherwise each place is given once
        if reuse:
            choice = vacant[parent]
            picks = [choice[int(point * len(choice))] for point in stream.uniforms(number)]
        else:
            picks = [vacant[parent].pop() for _ in range(number)]
            taken += picks
        pairs[bad[assigned], 0], used[assigned] = places[picks], True

    return used, np.array(taken, np.int64)


def _shuffled(classes: Integers, stream: PublicStream) -> dict[int, list[int]]:
    """Return the positions of every class, in random order."""
    order = stream.permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    groups = np.split(order, np.flatnonzero(np.diff(classes[order])) + 1) if len(order) else []
    return {int(classes[group[0]]): group.tolist() for group in groups}


def _flow(children: Integers, places: Integers, possible: Flags, reuse: bool) -> Integers:
    """Return the maximum flow from classes of children to classes of parents, shape of `possible`.

    Nodes are classes of parents, classes of children, source and sink: source → children → parents → sink, with the
    numbers of children and of places as capacities.

    `above` and `below` are the classes of parents with places and of children that wait; `at` and `to` are the
    positions in these of each possible pair.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    above, below = np.flatnonzero(places), np.flatnonzero(children)
    at, to = np.nonzero(possible[np.ix_(above, below)])
    source, sink = len(above) + len(below), len(above) + len(below) + 1
    capacity = np.full(len(above), UNBOUNDED) if reuse else places[above]
    # edges: source to children, children to parents, parents to sink
    starts = np.concatenate([np.full(len(below), source), len(above) + to, np.arange(len(above))])
    ends = np.concatenate([len(above) + np.arange(len(below)), at, np.full(len(above), sink)])
    amounts = np.concatenate([children[below], children[below][to], capacity]).astype(np.int32)
    graph = csr_array((amounts, (starts, ends)), shape=(sink + 1, sink + 1))
    numbers = np.zeros(possible.shape, np.int64)
    if len(at):
        flow = maximum_flow(graph, source, sink).flow
        numbers[above[at], below[to]] = np.asarray(flow[len(above) + to, at]).reshape(-1)

    return numbers
