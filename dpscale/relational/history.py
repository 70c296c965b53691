"""Histories: children of a parent in a declared order, measured as tables of consecutive children and drawn from them.

For attributes i and j of a child, the table T_ij counts pairs of consecutive children of one parent by the value of i
in the earlier child and of j in the later one. T_ii is weighted by 2, because most associations are between equal
attributes. A unit with P parents of at most C children each changes each T_ij by at most P (C − 1) pairs, so that the
squared sensitivity of all weighted tables is

    (4 d + d (d − 1)) (P (C − 1))²

Parents are counted in tables of their own, which they change by one cell each, whatever the number of their children:
buckets of the number of children by buckets of the span (last minus first cell of the order) with weight 3, buckets of
the span by the first cell, and the other attributes of the first child. They have the squared sensitivity (9 + d) P².

*Dates.*
A parent with k children has a span s from P(s | k) and a first date t from P(t | s), both estimated from the tables of
parents; its last date is t + s. Dates between them are uniform at first. They move, one at a
time, while the table of consecutive dates and the number of children of every date come nearer to their targets. Then
the dates of the synthetic children take their places by rank, which leaves the order within a parent.

*Order.*
The children of a date are placed at random at first. They are exchanged, two at a time, while the tables of consecutive
children, those of first children and the cross marginals with the parents come nearer to their targets. Exchanges keep
the children as they are, so that all marginals of their table remain. Compiled loops move dates and exchange children.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from dpscale.base.compilation import compiled
from dpscale.base.numerics import Floats, Integers, Words
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.fitting_loops import project_to_simplex
from dpscale.relational.features import Side
from dpscale.relational.link_estimation import ShrinkageBlock, ridges
from dpscale.relational.loops import change_entry, uniform
from dpscale.relational.rounding import Cross

SAME, SPANS = 2, 3  # weights of the table of an attribute with itself, and of the spans
PRIOR = 0.5  # prior mode of the relative scale of departures
MOVES, MOST_MOVES = 200, 20_000_000  # proposals for each child, and at most
NUMBER_WEIGHT, CROSS_WEIGHT = 1.0, 0.3  # of numbers of children by date, and of those by the parents' cells


def powers(base: int, largest: int) -> Integers:
    """Return the powers 1, b, b², … up to `largest`."""
    ascending = [1]
    while ascending[-1] * base <= largest:
        ascending.append(ascending[-1] * base)
    return np.array(ascending, np.int64)


def bucket_of(numbers: Integers, starts: Integers) -> Integers:
    """Return the bucket of every number."""
    return np.searchsorted(starts, numbers, side="right").astype(np.int64) - 1


@dataclass(frozen=True)
class HistoryTables:
    """Layout of the tables of histories.

    Attributes
    ----------
    sizes : tuple of int
        Number of cells of every attribute of a child.
    order : int
        Position of the attribute that orders the children.
    bound : int
        Maximum number of children of a parent.
    """

    sizes: tuple[int, ...]
    order: int
    bound: int

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Attributes of the earlier and the later child of every table."""
        return [(i, j) for i in range(len(self.sizes)) for j in range(len(self.sizes))]

    @property
    def weights(self) -> Integers:
        """Integer weight of every table of consecutive children."""
        return np.array([SAME if i == j else 1 for i, j in self.pairs], np.int64)

    @property
    def starts(self) -> Integers:
        """Start of each table of consecutive children, and the end of the last."""
        return np.concatenate([[0], np.cumsum([self.sizes[i] * self.sizes[j] for i, j in self.pairs])]).astype(np.int64)

    @cached_property
    def numbers(self) -> Integers:
        """First numbers of the buckets of children: 1, 2–3, 4–15, 16–63 and so on."""
        return np.unique(np.minimum(np.r_[1, 2, powers(4, self.bound)], self.bound))

    @cached_property
    def spans(self) -> Integers:
        """First numbers of the buckets of spans: 0, 1, 2–3, 4–7 and so on."""
        return np.r_[0, powers(2, max(self.sizes[self.order] - 1, 1))][: self.sizes[self.order]]

    @property
    def others(self) -> list[int]:
        """Attributes beside the order."""
        return [i for i in range(len(self.sizes)) if i != self.order]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Shapes of the tables of parents."""
        spans = len(self.spans)
        first_shapes = [(len(self.numbers), spans), (spans, self.sizes[self.order])]
        return first_shapes + [(1, self.sizes[i]) for i in self.others]

    def steps_squared(self, parents: int) -> int:
        """Return the squared sensitivity of the weighted tables of consecutive children, for P parents of a unit."""
        return int((self.weights**2).sum()) * (parents * (self.bound - 1)) ** 2

    def parents_squared(self, parents: int) -> int:
        """Return the squared sensitivity of the tables of parents, for P parents of a unit."""
        return (SPANS**2 + len(self.shapes) - 1) * parents**2


@dataclass(frozen=True, eq=False)
class NoisyHistory:
    """Noisy tables of histories.

    Attributes
    ----------
    tables : HistoryTables
    steps, parents : ndarray
        Weighted tables of consecutive children, and of parents.
    sigmas : tuple of float
        Standard deviations of their noise.
    """

    tables: HistoryTables
    steps: Floats
    parents: Floats
    sigmas: tuple[float, float]

    @property
    def date_steps(self) -> tuple[Floats, float]:
        """Unweighted table of consecutive dates, flat, with the standard deviation of its noise."""
        at = self.tables.pairs.index((self.tables.order, self.tables.order))
        weight = float(self.tables.weights[at])
        return self.steps[self.tables.starts[at] : self.tables.starts[at + 1]] / weight, self.sigmas[0] / weight


def step_counts(rows: Integers, parents: Integers, tables: HistoryTables) -> Integers:
    """Return the weighted tables of consecutive children, one after the other.

    Parameters
    ----------
    rows : ndarray, shape (m, d)
        Cells of the children, grouped by parent and in order.
    parents : ndarray, shape (m,)
    tables : HistoryTables
    """
    at, sizes = np.flatnonzero(parents[1:] == parents[:-1]), tables.sizes
    counts = [
        weight * np.bincount(rows[at, i] * sizes[j] + rows[at + 1, j], minlength=sizes[i] * sizes[j])
        for (i, j), weight in zip(tables.pairs, tables.weights, strict=True)
    ]
    return np.concatenate(counts).astype(np.int64)


def parent_counts(rows: Integers, parents: Integers, tables: HistoryTables) -> Integers:
    """Return the weighted tables of parents, one after the other; the parameters are those of `step_counts`.

    Children are sorted by parent and order; `first` and `last` are each parent's first and last child.
    """
    if not len(rows):
        return np.zeros(sum(a * b for a, b in tables.shapes), np.int64)

    first = np.flatnonzero(np.r_[True, parents[1:] != parents[:-1]])
    last = np.r_[first[1:], len(parents)] - 1
    numbers = bucket_of(np.minimum(last - first + 1, tables.bound), tables.numbers)
    begin = rows[first, tables.order]
    spans = bucket_of(rows[last, tables.order] - begin, tables.spans)
    # number by span, span by first date, and each other attribute of the first child
    columns = [(numbers, spans), (spans, begin), *((np.zeros_like(begin), rows[first, i]) for i in tables.others)]
    counts = [
        np.bincount(left * b + right, minlength=a * b)
        for (left, right), (a, b) in zip(columns, tables.shapes, strict=True)
    ]

    # the first table has a larger weight
    return np.concatenate([SPANS * counts[0], *counts[1:]]).astype(np.int64)


def split_tables(values: Floats, tables: HistoryTables, sigma: float) -> tuple[list[Floats], list[float]]:
    """Return the unweighted tables of parents from one vector, with the standard deviations of their noise."""
    ends = np.cumsum([a * b for a, b in tables.shapes])[:-1]
    counts = [part.reshape(shape) for part, shape in zip(np.split(values, ends), tables.shapes, strict=True)]
    return [counts[0] / SPANS, *counts[1:]], [sigma / SPANS, *[sigma] * (len(counts) - 1)]


def estimate_steps(noisy: Floats, now: Floats, tables: HistoryTables, sigma: float) -> Floats:
    """Return the targets of the tables of consecutive children, in pairs.

    They are those of the children as they are, plus the departures of the noisy tables, shrunk by their noise.

    Parameters
    ----------
    noisy, now : ndarray
        Weighted tables: as measured, and of the children as they are.
    tables : HistoryTables
    sigma : float
        Standard deviation of the noise of the weighted tables.
    """
    weights, cells = tables.weights, [slice(a, b) for a, b in pairwise(tables.starts)]
    blocks = []
    for weight, of_table in zip(weights, cells, strict=True):
        expected = now[of_table] / weight
        carried = np.maximum(expected, 1.0)
        blocks.append(
            ShrinkageBlock(
                departed=noisy[of_table] / weight - expected, curvature=carried, carried=carried, sigma=sigma / weight
            )
        )

    target = np.concatenate([now[of_table] / weight for weight, of_table in zip(weights, cells, strict=True)])
    for block, of_table, ridge in zip(blocks, cells, ridges(blocks, PRIOR), strict=True):
        target[of_table] += block.departed * block.carried / (block.carried + ridge)
    return target


def conditional(noisy: Floats, totals: Floats, sigma: float, allowed: Floats) -> Floats:
    """Return P(column | row) of a table with known totals of rows.

    The distribution of all rows is the prior of each: residuals from it are multiplied by τ²/(τ² + σ²), with the
    variance τ² of the true residual of the row by the method of moments.

    Parameters
    ----------
    noisy : ndarray, shape (rows, columns)
    totals : ndarray, shape (rows,)
    sigma : float
        Standard deviation of the noise.
    allowed : ndarray, shape (rows, columns)
        1 for the possible cells, and 0 for others.
    """
    seen = totals > 0
    pooled = project_to_simplex((noisy * allowed)[seen].sum(axis=0), float(totals.sum())) + 1e-9
    law = np.zeros_like(noisy)

    for row, total in enumerate(totals.tolist()):
        cells = allowed[row] > 0
        expected = pooled[cells] / pooled[cells].sum() * total
        residual = noisy[row, cells] - expected
        excess = max(float((residual**2).mean()) - sigma**2, 0.0)
        estimate = expected + residual * excess / (excess + sigma**2)
        law[row, cells] = (project_to_simplex(estimate, total) if total > 0 else expected) + 1e-9

    return np.asarray(law / law.sum(axis=1, keepdims=True))


def spread_buckets(law: Floats, starts: Integers, count: int) -> Floats:
    """Return P(number | row) from P(bucket | row), with a density that is interpolated between the buckets.

    The density of a bucket, its probability over its width, is interpolated linearly between the buckets' centres, and
    each bucket is scaled to its probability again. `law` has a row for each kind and a column for each bucket, `starts`
    the first number of each bucket, and `count` is the number of numbers; 1e-12 keeps each number possible.
    """
    ends = np.r_[starts[1:], count]
    density, centres = law / (ends - starts), (starts + ends - 1) / 2
    numbers, bucket_of_number = np.arange(count), bucket_of(np.arange(count), starts)
    densities = np.stack([np.interp(numbers, centres, row) for row in density]) + 1e-12
    mass = np.stack([np.bincount(bucket_of_number, row, minlength=len(starts)) for row in densities])
    return np.asarray(densities * (law / mass)[:, bucket_of_number])


@dataclass(frozen=True, eq=False)
class SpanLaws:
    """Distributions of spans and first dates.

    Attributes
    ----------
    tables : HistoryTables
    noisy : ndarray
        Weighted tables of parents.
    sigma : float
        Standard deviation of their noise.
    """

    tables: HistoryTables
    noisy: Floats
    sigma: float

    @property
    def dates(self) -> int:
        """Number of cells of the order."""
        return self.tables.sizes[self.tables.order]

    def spans(self, numbers: Integers, stream: PublicStream) -> Integers:
        """Return the span of every parent with so many children, at least 1.

        A parent's kind is the bucket of its number of children; with one child the span is 0. The table 0 counts
        parents by kind and bucket of the span, with noise of deviation `sigma`; `numbers` are those of the children.
        """
        tables, (noisy, sigma) = self.tables, self._table(0)
        allowed = np.ones_like(noisy)
        allowed[tables.numbers == 1, 1:] = 0.0  # one child has no span
        kinds = bucket_of(np.minimum(numbers, tables.bound), tables.numbers)
        totals = np.bincount(kinds, minlength=len(tables.numbers)).astype(float)
        law = conditional(noisy, totals, sigma, allowed)
        return draw_columns(spread_buckets(law, tables.spans, self.dates), kinds, stream)

    def firsts(self, spans: Integers, tries: Integers, stream: PublicStream) -> Integers:
        """Return a first date for each try, an index of the parents with these spans.

        `fits` excludes first dates after which the shortest span of a bucket would pass the last date. The table 1
        counts parents by bucket of the span and first date. `tries` may repeat parents.
        """
        tables, (noisy, sigma) = self.tables, self._table(1)
        buckets = bucket_of(spans, tables.spans)
        totals = np.bincount(buckets, minlength=len(tables.spans)).astype(float)
        fits = (np.arange(self.dates)[None] + tables.spans[:, None] < self.dates).astype(float)
        drawn = draw_columns(conditional(noisy, totals, sigma, fits), buckets[tries], stream)
        return np.minimum(drawn, self.dates - 1 - spans[tries])

    def _table(self, at: int) -> tuple[Floats, float]:
        parts, sigmas = split_tables(self.noisy, self.tables, self.sigma)
        return parts[at], sigmas[at]


def draw_columns(law: Floats, rows: Integers, stream: PublicStream) -> Integers:
    """Return a column for each of the given rows of a conditional distribution, by systematic sampling.

    The points of the rows with one distribution are evenly spaced, in random order.
    """
    cumulated, columns = np.cumsum(law, axis=1), np.empty(len(rows), np.int64)
    for row in np.unique(rows).tolist():
        places = np.flatnonzero(rows == row)
        points = (stream.permutation(len(places)) + stream.uniforms(1)) / len(places)
        columns[places] = np.searchsorted(cumulated[row] / cumulated[row, -1], points, side="right")
    return np.minimum(columns, law.shape[1] - 1)


@dataclass(frozen=True, eq=False)
class Positions:
    """Places of the children: grouped by parent, in order.

    Attributes
    ----------
    parents : ndarray, shape (m,)
        Parent of every position, ascending.
    """

    parents: Integers

    @property
    def begins(self) -> Integers:
        """First position of every parent that has children."""
        return np.flatnonzero(np.r_[True, self.parents[1:] != self.parents[:-1]])

    @property
    def inner(self) -> Integers:
        """Positions that are neither the first nor the last of a parent."""
        same = self.parents[1:] == self.parents[:-1]
        return np.flatnonzero(same[1:] & same[:-1]) + 1


def sample_dates(places: Positions, known: Integers, ends: ParentDates, tables: HistoryTables,
                 noisy: tuple[Floats, Floats], sigmas: tuple[float, float], stream: PublicStream
                 ) -> Integers:  # fmt: skip
    """Return a cell of the order for every position, as often as in `known`.

    Parameters
    ----------
    places : Positions
    known : ndarray, shape (m,)
        Cells of the children.
    ends : ParentDates
    tables : HistoryTables
    noisy : tuple of ndarray
        Table of consecutive dates, unweighted and flat, and weighted tables of parents.
    sigmas : tuple of float
        Standard deviations of their noise.
    stream : PublicStream
    """
    begins, count = places.begins, tables.sizes[tables.order]
    numbers = np.diff(np.r_[begins, len(places.parents)])
    laws = SpanLaws(tables, noisy[1], sigmas[1])
    spans = laws.spans(numbers, stream)
    dates = _between(places, laws.firsts(spans, np.arange(len(spans)), stream), spans, stream)
    number_off = (np.bincount(dates, minlength=count) - np.bincount(known, minlength=count)).astype(float)
    tries = (stream.uniforms(min(MOVES * len(begins), MOST_MOVES)) * len(begins)).astype(np.int64)
    values = ends.values[places.parents[begins]]
    shift_histories(dates, np.r_[begins, len(dates)], tries, laws.firsts(spans, tries, stream), values,
                                  number_off, ends.off(np.repeat(values, numbers, axis=0), dates),
                                  CROSS_WEIGHT)  # fmt: skip
    _move(dates, places, tables, noisy[0], sigmas[0], number_off, stream)
    tie_order = stream.permutation(len(begins))  # of equal dates, all of one parent change together
    assigned = np.empty(len(dates), np.int64)
    assigned[np.lexsort((np.repeat(tie_order, numbers), dates))] = np.sort(known)

    return assigned[np.lexsort((assigned, places.parents))]


@dataclass(frozen=True, eq=False)
class ParentDates:
    """Numbers of children by the cells of their parents and their date.

    Attributes
    ----------
    values : ndarray, shape (parents, d)
        Cells of all parents, each attribute after the cells of those before it.
    counts : ndarray, shape (cells of all attributes, n)
        Numbers of children that are aimed at.
    """

    values: Integers
    counts: Floats

    @classmethod
    def of(cls, u: Side, parents: Integers, dates: Integers, size: int) -> ParentDates:
        """Return those of links, given the parent and the date of every child."""
        starts = np.concatenate([[0], np.cumsum(u.sizes)[:-1]]).astype(np.int64)
        values = np.ascontiguousarray((u.profiles + starts)[u.of], dtype=np.int64)
        without_target = cls(values, np.zeros((int(sum(u.sizes)), size)))
        return cls(values, without_target.off(values[parents], dates))

    def off(self, values: Integers, dates: Integers) -> Floats:
        """Return the numbers of children with these cells of parents and dates, minus those aimed at."""
        difference = -self.counts
        for column in values.T:
            np.add.at(difference, (column, dates), 1.0)
        return difference


def _between(places: Positions, firsts: Integers, spans: Integers, stream: PublicStream) -> Integers:
    """Return dates with these first dates and spans, uniform between the first and the last.

    A parent with one child has the span 0, so its only date is the first one. Dates are sorted within each parent.
    """
    begins, numbers = places.begins, np.diff(np.r_[places.begins, len(places.parents)])
    points = stream.uniforms(len(places.parents))
    dates = np.repeat(firsts, numbers) + (points * (np.repeat(spans, numbers) + 1)).astype(np.int64)
    dates[begins] = firsts
    dates[begins + numbers - 1] = firsts + spans
    return dates[np.lexsort((dates, places.parents))]


def _move(dates: Integers, places: Positions, tables: HistoryTables, noisy: Floats, sigma: float, number_off: Floats,
          stream: PublicStream) -> None:  # fmt: skip
    """Move dates, in place, until the table of consecutive dates is near its target.

    `now` is weighted like the target; both are divided by the weight, so `off` is in pairs of children. `dates` are
    those of all children, and `places.inner` the positions that are neither the first nor the last of a parent. A table
    of two dates in succession has count · count cells.
    """
    inner, count = places.inner, tables.sizes[tables.order]
    if not len(inner):
        return

    alone = HistoryTables((count,), 0, tables.bound)
    weight = float(alone.weights[0])
    now = step_counts(dates[:, None], places.parents, alone).astype(float)
    target = estimate_steps(noisy * weight, now, alone, sigma * weight)
    off = np.ascontiguousarray((now / weight - target).reshape(count, count))
    tries = (stream.uniforms(min(MOVES * len(inner), MOST_MOVES)) * len(inner)).astype(np.int64)
    move_dates(dates, inner, tries, off, number_off, NUMBER_WEIGHT, state_of(stream))


def state_of(stream: PublicStream) -> np.ndarray:
    """Return the state of the random numbers of a compiled loop."""
    return np.array([int(stream.uniforms(1)[0] * 2**53) * 2 + 1], np.uint64)


EXCHANGES, MOST_EXCHANGES = 100, 20_000_000  # proposals for each child, and at most
ROUNDS, FEW = 5, 1e-3  # rounds of proposals, and the accepted part of a round below which it is the last


def order_children(
    links: Integers, sides: tuple[Side, Side], noisy: NoisyHistory, stream: PublicStream, associate: bool = True
) -> Integers:
    """Return links with the same numbers of children of each parent, grouped by parent and in order, shape (m, 2).

    Parameters
    ----------
    links : ndarray, shape (m, 2)
        Rows of the parent and of the child; every child has one parent.
    sides : tuple of Side
    noisy : NoisyHistory
    stream : PublicStream
    associate : bool
        Whether exchanges keep the cross marginals of the links, which may be many.
    """
    u, v = sides
    # each parent keeps its number of children, as positions
    places, tables = Positions(np.sort(links[:, 0])), noisy.tables
    children = np.sort(links[:, 1])
    rows = np.ascontiguousarray(v.profiles[v.of[children]], dtype=np.int64)
    step, sigma = noisy.date_steps
    dates_of_links = v.profiles[v.of[links[:, 1]], tables.order]
    ends = ParentDates.of(u, links[:, 0], dates_of_links, tables.sizes[tables.order])
    # first a date for each position, then a child of this date
    dates = sample_dates(
        places, rows[:, tables.order], ends, tables, (step, noisy.parents), (sigma, noisy.sigmas[1]), stream
    )
    chosen = _by_date(dates, rows[:, tables.order], stream)
    cross = Cross.of(u, v) if associate else _no_marginals(u, v)
    now = u.of[places.parents], v.of[children[chosen]]
    # cross marginals of the new links less those of the given ones
    cross_off = (_marginals(cross, *now) - _marginals(cross, u.of[links[:, 0]], v.of[links[:, 1]])).astype(float)
    _exchange(chosen, places, dates, rows, noisy, (u.of, v.of[children], cross, cross_off), stream)

    return np.stack([places.parents, children[chosen]], axis=1)


def _by_date(dates: Integers, child_dates: Integers, stream: PublicStream) -> Integers:
    """Return a random child of its date for every position."""
    chosen = np.empty(len(dates), np.int64)
    chosen[np.argsort(dates, kind="stable")] = np.lexsort((stream.permutation(len(child_dates)), child_dates))
    return chosen


def _no_marginals(u: Side, v: Side) -> Cross:
    """Return a layout without any marginal."""
    first, second = (np.empty((len(side.profiles), 0), np.int64) for side in (u, v))
    return Cross(columns=(), first=first, second=second, starts=np.zeros(1, np.int64))


def _marginals(cross: Cross, u_profiles: Integers, v_profiles: Integers) -> Integers:
    """Return the cross marginals of links between profiles.

    Entry first[one, k] + second[two, k] of all marginals is that of marginal k for a link.
    """
    marginals = np.zeros(cross.size, np.int64)
    for k in range(cross.first.shape[1]):
        np.add.at(marginals, cross.first[u_profiles, k] + cross.second[v_profiles, k], 1)
    return marginals


def _exchange(chosen: Integers, places: Positions, dates: Integers, rows: Integers, noisy: NoisyHistory,
              ends: tuple[Integers, Integers, Cross, Floats], stream: PublicStream) -> None:  # fmt: skip
    """Exchange children of equal dates, in place, until the tables are near their targets.

    `off` has the differences of all tables from their targets, those of first children after those of consecutive ones,
    and `where` is the position of each child. Rounds end when few of the tried exchanges are made. `chosen` has the
    child at each position; `ends` are the profiles of both sides, the cross marginals, and their differences from the
    targets.
    """
    tables, (of_u, of_v, cross, cross_off) = noisy.tables, ends
    now = step_counts(rows[chosen], places.parents, tables).astype(float)
    target = estimate_steps(noisy.steps, now, tables, noisy.sigmas[0])
    firsts, first_target = _first_children(chosen, places, rows, noisy)
    weights = np.repeat(tables.weights, np.diff(tables.starts))
    off = np.concatenate([now / weights - target, firsts - first_target])
    starts = np.concatenate([tables.starts, tables.starts[-1] + np.cumsum(tables.sizes)[:-1]])
    where = np.empty(len(chosen), np.int64)
    where[chosen] = np.arange(len(chosen))
    ranked, begins = _by_cells(rows, tables)
    offsets, cumulated = _laws(target, first_target, tables)
    number = min(EXCHANGES * len(chosen), MOST_EXCHANGES) // ROUNDS

    for _ in range(ROUNDS):
        tries = (stream.uniforms(number) * len(chosen)).astype(np.int64)
        exchanged = exchange(tries, chosen, where, places.parents, of_v, ranked, begins, offsets, cumulated,
                                      dates, rows, np.array(tables.sizes, np.int64), starts, off, of_u, cross.first,
                                      cross.second, cross_off, CROSS_WEIGHT, state_of(stream))  # fmt: skip
        if exchanged < FEW * number:
            break


def _first_children(chosen: Integers, places: Positions, rows: Integers, noisy: NoisyHistory) -> tuple[Floats, Floats]:
    """Return the numbers of first children by the cells of each attribute, and their targets.

    Attributes in `others` have noisy tables for first children; the other targets are the present numbers.
    """
    tables, begins = noisy.tables, places.begins
    now = [np.bincount(rows[chosen[begins], i], minlength=size).astype(float) for i, size in enumerate(tables.sizes)]
    parts, sigmas = split_tables(noisy.parents, tables, noisy.sigmas[1])
    target = list(now)

    for i, part, sigma in zip(tables.others, parts[2:], sigmas[2:], strict=True):
        total = np.array([float(len(begins))])
        target[i] = (conditional(part, total, sigma, np.ones_like(part)) * total)[0]
    return np.concatenate(now), np.concatenate(target)


def _by_cells(rows: Integers, tables: HistoryTables) -> tuple[Integers, Integers]:
    """Return children by date and cell of each attribute, and the first place of each date and cell.

    `ranked` has the children sorted by date and cell, one row for each attribute; `order` is the number of the
    attribute with the date.
    """
    dates = tables.sizes[tables.order]
    ranked, begins = [], np.zeros((len(tables.sizes), dates * max(tables.sizes) + 1), np.int64)
    for j, size in enumerate(tables.sizes):
        keys = rows[:, tables.order] * size + rows[:, j]
        ranked.append(np.argsort(keys, kind="stable"))
        begins[j, : dates * size + 1] = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=dates * size))])
    return np.stack(ranked).astype(np.int64), begins


def _laws(target: Floats, first_target: Floats, tables: HistoryTables) -> tuple[Integers, Floats]:
    """Return cumulated P(later cell | earlier cell) of every attribute, and that of first children in its last row.

    Rows of an attribute's table of consecutive children, made positive, are cumulated to distributions; the last row is
    that of first children. `offsets` is where each attribute's rows begin.
    """
    offsets = np.concatenate([[0], np.cumsum([size + 1 for size in tables.sizes])[:-1]]).astype(np.int64)
    laws = np.ones((int(sum(size + 1 for size in tables.sizes)), max(tables.sizes)))
    firsts = np.split(first_target, np.cumsum(tables.sizes)[:-1])

    for j, size in enumerate(tables.sizes):
        at = tables.pairs.index((j, j))
        table = np.vstack([target[tables.starts[at] : tables.starts[at + 1]].reshape(size, size), firsts[j]])
        cumulated = np.cumsum(np.maximum(table, 0.0) + 1e-9, axis=1)
        laws[offsets[j] : offsets[j] + size + 1, :size] = cumulated / cumulated[:, -1:]
    return offsets, laws


@compiled("float64(float64[:, ::1], int64, int64, float64)")
def change_cell(off: Floats, a: int, b: int, by: float) -> float:
    """Change a cell and return the growth of its square."""
    before = off[a, b]
    off[a, b] = before + by
    return off[a, b] * off[a, b] - before * before


@compiled("int64(int64[::1], int64[::1], int64[::1], float64[:, ::1], float64[::1], float64, uint64[::1])")
def move_dates(
    dates: Integers, inner: Integers, tries: Integers, off: Floats, number_off: Floats, factor: float, state: Words
) -> int:
    """Move dates between those before and after them if the squares of `off` and `number_off` decrease.

    Parameters
    ----------
    dates : ndarray, shape (m,)
        Cells of the order, grouped by parent and not decreasing within one; changed in place.
    inner : ndarray
        Positions that are neither the first nor the last child of a parent.
    tries : ndarray
        Indices of `inner`, one for each proposal.
    off : ndarray, shape (n, n)
        Consecutive dates minus their target; changed in place.
    number_off : ndarray, shape (n,)
        Number of children of every date minus its target; changed in place.
    factor : float
        Weight of `number_off`.
    state : ndarray of uint64, shape (1,)
        Of the random numbers.
    """
    moved = 0
    for t in range(len(tries)):
        p = inner[tries[t]]
        before, now, after = dates[p - 1], dates[p], dates[p + 1]
        if before == after:
            continue

        other = before + int(uniform(state) * (after - before + 1))
        if other == now:
            continue

        cost = change_cell(off, before, now, -1.0) + change_cell(off, now, after, -1.0)
        cost += change_cell(off, before, other, 1.0) + change_cell(off, other, after, 1.0)
        cost += factor * (change_entry(number_off, now, -1.0) + change_entry(number_off, other, 1.0))
        if cost < -1e-9:
            dates[p] = other
            moved += 1
            continue

        change_cell(off, before, now, 1.0)
        change_cell(off, now, after, 1.0)
        change_cell(off, before, other, -1.0)
        change_cell(off, other, after, -1.0)
        change_entry(number_off, now, 1.0)
        change_entry(number_off, other, -1.0)

    return moved


@compiled("float64(int64, int64, float64, int64[:, ::1], float64[::1], float64[:, ::1], float64)")
def date_cost(
    k: int, date: int, sign: float, values: Integers, number_off: Floats, cross_off: Floats, factor: float
) -> float:
    """Return the cost of adding (+1) or removing (−1) a child of this date to the parent k.

    A cost is the change of Σ off², the squared difference of a table from its target; `number_off` is that of dates.
    `values` are the entries of the parents in the cross tables, and `factor` their weight. Both tables are changed.
    """
    cost = change_entry(number_off, date, sign)
    for a in range(values.shape[1]):
        cost += factor * change_cell(cross_off, values[k, a], date, sign)
    return cost


@compiled(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[:, ::1], float64[::1], float64[:, ::1], float64)"
)
def shift_histories(dates: Integers, begins: Integers, tries: Integers, firsts: Integers, values: Integers,
                    number_off: Floats, cross_off: Floats, factor: float) -> int:  # fmt: skip
    """Move all dates of a parent if the squares of both `off` decrease; return the number of moved histories.

    Parameters
    ----------
    dates : ndarray, shape (m,)
        Cells of the order, grouped by parent; changed in place.
    begins : ndarray
        First position of every parent, and the end of the last.
    tries, firsts : ndarray
        Indices of parents, and a first date for each, such that the last date is possible.
    values : ndarray, shape (parents, d)
        Cells of the parents, each attribute after the cells of those before it.
    number_off : ndarray, shape (n,)
        Number of children of every date minus its target; changed in place.
    cross_off : ndarray, shape (cells of all attributes, n)
        Number of children by the parent's cell and their date minus its target; changed in place.
    factor : float
        Weight of `cross_off`.
    """
    moved = 0
    for t in range(len(tries)):
        k = tries[t]
        begin, end = begins[k], begins[k + 1]
        by = firsts[t] - dates[begin]
        if by == 0:
            continue

        cost = 0.0
        for p in range(begin, end):
            cost += date_cost(k, dates[p], -1.0, values, number_off, cross_off, factor)
            cost += date_cost(k, dates[p] + by, 1.0, values, number_off, cross_off, factor)

        moved += cost < -1e-9
        for p in range(begin, end):
            if cost < -1e-9:
                dates[p] += by
            else:
                date_cost(k, dates[p], 1.0, values, number_off, cross_off, factor)
                date_cost(k, dates[p] + by, -1.0, values, number_off, cross_off, factor)

    return moved


@compiled("float64(int64, int64, float64, int64[::1], int64[:, ::1], int64[::1], int64[::1], float64[::1])")
def step_cost(earlier: int, later: int, sign: float, chosen: Integers, rows: Integers, sizes: Integers,
              starts: Integers, off: Floats) -> float:  # fmt: skip
    """Return the cost of adding (+1) or removing (−1) a pair of consecutive children, which changes `off`.

    `off` has a table for each pair of attributes (i, j) from `starts[i * width + j]`; the pair of children is in one
    cell of each. `chosen` has the child at each position and `rows` the values of children, with `sizes` values of each
    attribute.
    """
    cost, width = 0.0, len(sizes)
    x, y = chosen[earlier], chosen[later]
    for i in range(width):
        for j in range(width):
            cost += change_entry(off, starts[i * width + j] + rows[x, i] * sizes[j] + rows[y, j], sign)
    return cost


@compiled(
    "float64(int64, float64, int64[::1], int64[::1], int64[::1], int64[:, ::1], int64[::1], int64[::1], float64[::1],"
    " int64[::1], int64[:, ::1], int64[:, ::1], float64[::1], float64)"
)
def place_cost(p: int, sign: float, chosen: Integers, parents: Integers, of_v: Integers, rows: Integers,
               sizes: Integers, starts: Integers, off: Floats, of_u: Integers, first: Integers, second: Integers,
               cross_off: Floats, factor: float) -> float:  # fmt: skip
    """Return the cost of adding or removing the child at a position: its cross marginals and the step to the next.

    The tables of first children follow those of consecutive children in `off`. `p` is the position, `parents` has the
    parent of every position, `of_v` and `of_u` the profiles, and `factor` the weight of cross marginals.

    A cost is the change of Σ off²; `sign` is +1 for adding and −1 for removing. chosen[p] is the child at position p.
    """
    cost, width = 0.0, len(sizes)
    # the first child of its parent
    if p == 0 or parents[p - 1] != parents[p]:
        for j in range(width):
            cost += change_entry(off, starts[width * width + j] + rows[chosen[p], j], sign)

    for k in range(first.shape[1]):
        cost += factor * change_entry(cross_off, first[of_u[parents[p]], k] + second[of_v[chosen[p]], k], sign)
    # the step to the next child of the same parent
    if p + 1 < len(parents) and parents[p + 1] == parents[p]:
        cost += step_cost(p, p + 1, sign, chosen, rows, sizes, starts, off)
    return cost


@compiled(
    "float64(int64, int64, float64, int64[::1], int64[::1], int64[::1], int64[:, ::1], int64[::1], int64[::1],"
    " float64[::1], int64[::1], int64[:, ::1], int64[:, ::1], float64[::1], float64)"
)
def both_cost(p: int, q: int, sign: float, chosen: Integers, parents: Integers, of_v: Integers, rows: Integers,
              sizes: Integers, starts: Integers, off: Floats, of_u: Integers, first: Integers, second: Integers,
              cross_off: Floats, factor: float) -> float:  # fmt: skip
    """Return the cost of adding or removing the children at two positions p < q, with all steps that they are in.

    A step between p and q is counted once, with p.
    """
    cost = place_cost(p, sign, chosen, parents, of_v, rows, sizes, starts, off, of_u, first, second, cross_off, factor)
    cost += place_cost(q, sign, chosen, parents, of_v, rows, sizes, starts, off, of_u, first, second, cross_off, factor)
    if p > 0 and parents[p - 1] == parents[p]:
        cost += step_cost(p - 1, p, sign, chosen, rows, sizes, starts, off)
    if q - 1 != p and parents[q - 1] == parents[q]:
        cost += step_cost(q - 1, q, sign, chosen, rows, sizes, starts, off)
    return cost


@compiled(
    "int64(int64, int64[::1], int64[::1], int64[::1], int64[:, ::1], int64[::1], int64[:, ::1], int64[:, ::1],"
    " int64[::1], float64[:, ::1], uint64[::1])"
)
def proposed_child(
    p: int, chosen: Integers, parents: Integers, dates: Integers, rows: Integers, sizes: Integers, ranked: Integers,
    begins: Integers, offsets: Integers, cumulated: Floats, state: Words,
) -> int:  # fmt: skip
    """Return a child of the date at a position, with a random cell of a random attribute; −1 if there is none.

    The cell is drawn by the target for the cell of the child before it.

    `ranked[j]` lists children by date and cell of attribute j, and `begins[j]` where each date and cell begins. Without
    a child before it, the last line, of first children, has the distribution.

    p is the position and j the attribute. `cumulated` has a line of cumulative probabilities for each cell of the child
    before, attribute j from line `offsets[j]` on.
    """
    width = len(sizes)
    j = min(int(uniform(state) * width), width - 1)
    line = offsets[j] + sizes[j]
    if p > 0 and parents[p - 1] == parents[p]:
        line = offsets[j] + rows[chosen[p - 1], j]
    cell, level = 0, uniform(state)
    # the first cell whose cumulative probability reaches a uniform number
    while cell < sizes[j] - 1 and cumulated[line, cell] < level:
        cell += 1
    begin = begins[j, dates[p] * sizes[j] + cell]
    count = begins[j, dates[p] * sizes[j] + cell + 1] - begin
    if count == 0:
        return -1
    return int(ranked[j, begin + min(int(uniform(state) * count), count - 1)])


@compiled(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[:, ::1], int64[:, ::1], int64[::1],"
    " float64[:, ::1], int64[::1], int64[:, ::1], int64[::1], int64[::1], float64[::1], int64[::1], int64[:, ::1],"
    " int64[:, ::1], float64[::1], float64, uint64[::1])"
)
def exchange(
    tries: Integers, chosen: Integers, where: Integers, parents: Integers, of_v: Integers, ranked: Integers,
    begins: Integers, offsets: Integers, cumulated: Floats, dates: Integers, rows: Integers, sizes: Integers,
    starts: Integers, off: Floats, of_u: Integers, first: Integers, second: Integers, cross_off: Floats,
    factor: float, state: Words,
) -> int:  # fmt: skip
    """Exchange children of equal dates if the squares of `off` and `cross_off` decrease; return the number.

    Each try is a position, whose child may be exchanged with a proposed one.

    Parameters
    ----------
    tries : ndarray
    chosen, where : ndarray, shape (m,)
        Child at every position, and the position of every child; changed in place.
    parents, dates : ndarray, shape (m,)
        By position.
    of_v : ndarray
        Profile of every child.
    ranked : ndarray, shape (d, m)
        Children by date and the cell of each attribute.
    begins : ndarray, shape (d, most)
        First place in `ranked` of every date and cell, at date · size + cell, and the end.
    offsets : ndarray, shape (d,)
        First row of `cumulated` of every attribute.
    cumulated : ndarray
        Cumulated probabilities of the later cell by the earlier one; the last row of each attribute is for first
        children.
    rows, sizes, starts, off : ndarray
        Cells of the children, layout, and tables of consecutive and of first children minus their targets.
    of_u, first, second, cross_off, factor :
        Profiles of the parents, and cross marginals minus their targets with their weight.
    state : ndarray of uint64, shape (1,)
    """
    exchanged = 0
    for t in range(len(tries)):
        p = tries[t]
        other = proposed_child(p, chosen, parents, dates, rows, sizes, ranked, begins, offsets, cumulated, state)
        if other < 0:
            continue

        q = where[other]
        # equal profiles: nothing would change
        if of_v[other] == of_v[chosen[p]] or p == q:
            continue

        # positions in order, so that adjacent ones are handled alike in all calls
        low, high = min(p, q), max(p, q)
        cost = both_cost(
            low, high, -1.0, chosen, parents, of_v, rows, sizes, starts, off, of_u, first, second, cross_off, factor
        )
        chosen[p], chosen[q] = chosen[q], chosen[p]
        cost += both_cost(
            low, high, 1.0, chosen, parents, of_v, rows, sizes, starts, off, of_u, first, second, cross_off, factor
        )

        # a smaller gain could be rounding
        if cost < -1e-9:
            where[chosen[p]], where[chosen[q]] = p, q
            exchanged += 1
            continue

        both_cost(
            low, high, -1.0, chosen, parents, of_v, rows, sizes, starts, off, of_u, first, second, cross_off, factor
        )
        chosen[p], chosen[q] = chosen[q], chosen[p]
        # the opposite steps, which restore all tables
        both_cost(
            low, high, 1.0, chosen, parents, of_v, rows, sizes, starts, off, of_u, first, second, cross_off, factor
        )

    return exchanged
