"""Integer numbers of links for every pair of profiles that preserve the 3-way cross marginals.

Systematic rounding makes every cell its floor or one more, with the correct total. Then single links move between
cells, each of which stays at its floor or one more, if that reduces the squared departures of all marginals over two
attributes of one side and one of the other. Rounding errors are thus correlated so that they cancel in the marginals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dpscale.base.numerics import Floats, Integers, NDArray
from dpscale.privacy.streams import PublicStream
from dpscale.relational import loops
from dpscale.relational.features import Side

Columns = Sequence[int]
ORDER = 3  # attributes of a cross marginal, of both sides together


@dataclass(frozen=True, eq=False)
class Cross:
    """All cross marginals over so many attributes, stored one after the other.

    Attributes
    ----------
    columns : tuple of (attributes of u, attributes of v)
        Attributes of each marginal.
    first, second : ndarray, shapes (p, marginals) and (q, marginals)
        The pair of profiles (i, j) is in entry `first[i, k] + second[j, k]` of marginal k.
    starts : ndarray
        Marginal k has the entries `starts[k]` to `starts[k + 1]`.
    """

    columns: tuple[tuple[Columns, Columns], ...]
    first: Integers
    second: Integers
    starts: Integers

    @classmethod
    def of(cls, u: Side, v: Side, order: int = ORDER) -> Cross:
        """Return the cross marginals of two sides over `order` attributes in all.

        Marginal k has the code of the left attributes times the number of codes of the right ones, plus that of the
        right; its start is added to `first`.

        a and b are the codes of the profiles of u and v in the left and the right attributes.
        """
        first, second, starts = [], [], [0]
        columns = tuple(_columns(len(u.sizes), len(v.sizes), order))
        for left, right in columns:
            (a, size_a), (b, size_b) = _code(u, left), _code(v, right)
            first.append(starts[-1] + a * size_b)
            second.append(b)
            starts.append(starts[-1] + size_a * size_b)

        u_codes, v_codes = (np.ascontiguousarray(np.stack(codes, axis=1)) for codes in (first, second))
        return cls(columns, u_codes, v_codes, np.array(starts, np.int64))

    @property
    def size(self) -> int:
        """Total number of entries."""
        return int(self.starts[-1])

    def marginals(self, weights: Floats) -> Floats:
        """Return the marginals, (size,), of weights of every pair of profiles."""
        out = np.zeros(self.size)
        loops.add_marginals(np.ascontiguousarray(weights, np.float64).ravel(), self.first, self.second, out)
        return out

    def back(self, entries: Floats) -> Floats:
        """Apply the adjoint of `marginals`; the result has shape (p, q)."""
        out = np.zeros(len(self.first) * len(self.second))
        loops.pull_back(entries, self.first, self.second, out)
        return out.reshape(len(self.first), -1)

    def some(self, chosen: Sequence[int]) -> Cross:
        """Return a selection of marginals; their entries have unchanged positions."""
        u_codes, v_codes = (np.ascontiguousarray(codes[:, list(chosen)]) for codes in (self.first, self.second))
        return Cross(columns=tuple(self.columns[k] for k in chosen), first=u_codes, second=v_codes, starts=self.starts)

    def entries(self, k: int) -> slice:
        """Return the slice of marginal k."""
        return slice(int(self.starts[k]), int(self.starts[k + 1]))


def cross_words(u: Side, v: Side) -> int:
    """Return how many numbers the marginals and the profiles' entries occupy."""
    return count_words(u.sizes, v.sizes, len(u.profiles) + len(v.profiles))


def count_words(u: Sequence[int], v: Sequence[int], profiles: int) -> int:
    """Return how many numbers the marginals of attributes of these sizes and the entries of the profiles occupy."""
    each = marginal_cells(u, v)
    return sum(each) + len(each) * profiles


def marginal_cells(u: Sequence[int], v: Sequence[int], order: int = ORDER) -> list[int]:
    """Return the number of cells of every cross marginal of attributes of these sizes."""
    columns = _columns(len(u), len(v), order)
    return [math.prod(u[i] for i in a) * math.prod(v[j] for j in b) for a, b in columns]


def cross_count(u: int, v: int, order: int = ORDER) -> int:
    """Return the number of cross marginals of sides with `u` and `v` attributes."""
    order = min(order, u + v)
    return sum(math.comb(u, i) * math.comb(v, order - i) for i in range(1, order))


def _columns(u: int, v: int, order: int = ORDER) -> list[tuple[Columns, Columns]]:
    """Return the attributes of both sides of every marginal, of as many attributes as there are if these are fewer."""
    order = min(order, u + v)
    return [(a, b) for i in range(1, order) for a in combinations(range(u), i)
            for b in combinations(range(v), order - i)]  # fmt: skip


def _code(side: Side, columns: Columns) -> tuple[Integers, int]:
    """Return for each profile the number of its combination of values in some columns, and their count."""
    code, size = np.zeros(len(side.profiles), np.int64), 1
    for i in columns:
        code, size = code * side.sizes[i] + side.profiles[:, i], size * side.sizes[i]
    return code, size


# passes of moves; moves tried for a link, and in a pass; fraction added to every cell, so that a column of whole cells
# can be drawn from
PASSES, PROPOSALS, MOST, TINY = 3, 8, 400_000, 1e-12


def round_totals(wanted: Floats, u: Side, v: Side, caps: Floats, stream: PublicStream) -> Floats:
    """Return integers ≤ caps, shape (p, q), whose sum is the rounded sum of `wanted`.

    `off` is the difference of the marginals from those of `wanted`. A proposal moves a link from a cell above its floor
    to a cell drawn by its remainder (`shares` cumulates them). The number of proposals in a pass is PROPOSALS times the
    sum of the links or of the remainders, whichever is smaller, and at most MOST.
    """
    wanted = np.minimum(wanted, caps)
    links, floors = round_cells(wanted, caps, stream), np.floor(wanted).ravel()
    cross = Cross.of(u, v)
    first, second, off = cross.first, cross.second, cross.marginals(links - wanted)
    flat, shares = links.ravel(), np.cumsum(wanted.ravel() - floors)

    for _ in range(PASSES if shares[-1] > 0 else 0):
        count = int(min(PROPOSALS * min(flat.sum(), shares[-1]), MOST))
        # cells that can lose a link
        above = np.flatnonzero(flat > floors)
        if not len(above) or not count:
            break
        sources = above[(stream.uniforms(count) * len(above)).astype(np.int64)]
        # cells that would have had more links are proposed more often
        ends = np.searchsorted(shares, stream.uniforms(count) * shares[-1]).clip(0, flat.size - 1).astype(np.int64)
        loops.improve(flat, floors, caps.ravel(), first, second, off, sources, ends)

    return flat.reshape(wanted.shape)


def round_children(wanted: Floats, u: Side, v: Side, most: int | None, stream: PublicStream) -> Floats:
    """Return integers, shape (p, q), that assign one parent to every child: column sums are the rows of v.

    Column sums are smaller if parents have no capacity. Columns are rounded separately, and links move within their
    column. `most` is the bound of the number of children of a row of u.
    """
    rounded = round_columns(wanted, v.counts, most, u.counts, stream)
    return _within_columns(rounded, wanted * (v.counts / np.maximum(wanted.sum(axis=0), 1e-300)), u, v, most, stream)


def round_columns(wanted: Floats, children: Floats, most: int | None, parents: Floats, stream: PublicStream) -> Floats:
    """Return integers, shape (p, q), with column sums `children`; `most` bounds the links of each of `parents` rows."""
    rounded = np.stack([round_cells(column * (rows / max(column.sum(), 1e-300)), np.full(len(column), np.inf), stream)
                      for column, rows in zip(wanted.T, children, strict=True)], axis=1)  # fmt: skip
    if most is not None:
        move_excess(rounded, most * parents, wanted, stream)
    return rounded


def move_excess(whole: Floats, room: Floats, wanted: Floats, stream: PublicStream) -> None:
    """Move children beyond the capacity of their parents' profile to profiles with capacity, in place.

    The new profile is chosen with probability proportional to `wanted`; if none has capacity, the child has no parent.

    `vacant` is the room of each profile of parents. Random children of a profile beyond its room move one by one.
    """
    vacant = room - whole.sum(axis=1)
    for i in np.flatnonzero(vacant < 0):
        each = np.repeat(np.arange(whole.shape[1]), whole[i].astype(np.int64))
        moving = each[stream.permutation(len(each))[: int(-vacant[i])]]
        for j, uniform in zip(moving, stream.uniforms(len(moving)), strict=True):
            whole[i, j] -= 1
            if len(free := np.flatnonzero(vacant > 0)):
                ends = np.cumsum(wanted[free, j] + 1e-12)
                at = free[min(int(np.searchsorted(ends, uniform * ends[-1], side="right")), len(free) - 1)]
                whole[at, j] += 1
                vacant[at] -= 1


def _within_columns(whole: Floats, wanted: Floats, u: Side, v: Side, most: int | None, stream: PublicStream) -> Floats:
    """Return `whole` after moves of single links within their columns that bring the cross marginals closer.

    A link leaves a cell above the floor of `wanted`, chosen at random. It goes to a cell of its column that is chosen
    with probability proportional to the fraction of `wanted` there. The move is made if it reduces the squared
    departures of the marginals of `whole` from those of `wanted`.
    """
    cross, (height, width) = Cross.of(u, v), whole.shape
    off = cross.marginals(whole - wanted)
    links, floors = np.ascontiguousarray(whole).ravel(), np.floor(wanted).ravel()
    room = np.full(height, np.inf) if most is None else most * u.counts

    # column j has the interval from j to j + 1, which its cells divide in proportion to their fractions
    fractions = np.cumsum(wanted - np.floor(wanted) + TINY, axis=0)
    ends = (fractions / fractions[-1] + np.arange(width)).T.ravel()

    for _ in range(PASSES):
        above = np.flatnonzero(links > floors)
        count = int(min(PROPOSALS * links.sum(), MOST))
        if not len(above) or not count:
            break

        sources = above[(stream.uniforms(count) * len(above)).astype(np.int64)]
        columns = sources % width
        rows = np.searchsorted(ends, columns + stream.uniforms(count), side="right") - columns * height
        targets = rows.clip(0, height - 1) * width + columns
        loops.improve_columns(links, floors, room, cross.first, cross.second, off, sources, targets)

    return links.reshape(whole.shape)


def round_cells(wanted: Floats, caps: Floats, stream: PublicStream) -> Floats:
    """Round every cell to its floor, or one more with probability of its fraction, by systematic sampling."""
    rounded = stream.rounded_in_order(wanted.ravel(), stream.permutation(wanted.size))
    return np.minimum(rounded.reshape(wanted.shape), caps)


OFF = 1e-6  # relative difference of a sum from the number of links that counts as rounding


def sample_entries(parts: Iterable[tuple[Floats, Integers]], links: int, stream: PublicStream) -> Integers:
    """Return the indices of sampled entries, ascending, shape (links,).

    Parameters
    ----------
    parts : iterable of (values, counts)
        Inclusion probabilities in [0, 1], and the number of consecutive entries with each; their sum is `links` up to
        rounding.
    links : int
    stream : PublicStream

    Raises
    ------
    ValueError
        If the probabilities do not sum to `links`.
    """
    state = stream.state()
    sums, entry_of = _merged(parts, state)
    if abs(sums.sum() - links) > OFF * max(links, 1):
        raise ValueError(f"entries of sum {sums.sum()}: expected {links}")
    return np.asarray(entry_of[_chosen(sums, links, state)])


def _chosen(sums: Floats, count: int, state: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask of `count` groups, shape (groups,), each chosen with probability of its sum."""
    if count <= 0 or count >= len(sums):
        return np.full(len(sums), count > 0)
    left_out = np.clip(1 - sums, 0, 1)
    merged, entry_of = _merged([(left_out, np.ones(len(sums), np.int64))], state)
    chosen = np.ones(len(sums), np.bool_)
    chosen[entry_of[_chosen(merged, len(sums) - count, state)]] = False
    return chosen


def _merged(parts: Iterable[tuple[Floats, Integers]], state: NDArray[np.uint64]) -> tuple[Floats, Integers]:
    """Return the sum of every group and the entry that represents it.

    `parts` are entries (value, number of equal ones). Groups have a sum of at most 1; the last open group continues
    with the next part.

    A group is represented by one of its entries, chosen with probability value / sum (`loops.merge`). `begun` is the
    number of entries before a part, and `state` that of the random generator.
    """
    sums, entry_of, begun = [np.zeros(1)], [np.full(1, -1, np.int64)], 0
    for values, counts in parts:
        if len(values) and not (values.min() >= 0 and values.max() <= 1):
            raise ValueError("entries outside [0, 1]")

        # two successive groups have a sum above 1, so there are at most so many
        most = int(2 * (values @ counts + 1)) + 2
        sums_of_part, entry = np.zeros(most), np.full(most, -1, np.int64)
        # the open group of the part before, which is removed there and continues here
        sums_of_part[0], entry[0] = sums[-1][-1], entry_of[-1][-1]
        last = loops.merge(values, counts, begun, sums_of_part, entry, state)
        sums[-1], entry_of[-1] = sums[-1][:-1], entry_of[-1][:-1]
        sums.append(sums_of_part[: last + 1].copy())
        entry_of.append(entry[: last + 1].copy())
        begun += int(counts.sum())

    return np.concatenate(sums), np.concatenate(entry_of)
