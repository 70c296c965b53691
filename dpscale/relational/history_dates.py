"""Dates of histories: cells of the order for every child, given the numbers of children of every parent.

A parent with k children has a span s from P(s | k) and a first date t from P(t | s), both estimated from the tables of
parents (`relational.history`); its last date is t + s. Dates between them are uniform at first. They move, one at a
time, while the table of consecutive dates and the number of children of every date come nearer to their targets. Then
the dates of the synthetic children take their places by rank, which leaves the order within a parent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpscale.base.numerics import Floats, Integers
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.fitting_loops import project_to_simplex
from dpscale.relational import history_loops
from dpscale.relational.features import Side
from dpscale.relational.history import HistoryTables, bucket_of, estimate_steps, split_tables, step_counts

MOVES, MOST_MOVES = 200, 20_000_000  # proposals for each child, and at most
NUMBER_WEIGHT, CROSS_WEIGHT = 1.0, 0.3  # of numbers of children by date, and of those by the parents' cells


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
    whole = project_to_simplex((noisy * allowed)[seen].sum(axis=0), float(totals.sum())) + 1e-9
    found = np.zeros_like(noisy)

    for row, total in enumerate(totals.tolist()):
        cells = allowed[row] > 0
        expected = whole[cells] / whole[cells].sum() * total
        residual = noisy[row, cells] - expected
        excess = max(float((residual**2).mean()) - sigma**2, 0.0)
        estimate = expected + residual * excess / (excess + sigma**2)
        found[row, cells] = (project_to_simplex(estimate, total) if total > 0 else expected) + 1e-9

    return np.asarray(found / found.sum(axis=1, keepdims=True))


def spread_buckets(law: Floats, starts: Integers, count: int) -> Floats:
    """Return P(number | row) from P(bucket | row), with a density that is interpolated between the buckets."""
    ends = np.r_[starts[1:], count]
    density, centres = law / (ends - starts), (starts + ends - 1) / 2
    numbers, of = np.arange(count), bucket_of(np.arange(count), starts)
    found = np.stack([np.interp(numbers, centres, row) for row in density]) + 1e-12
    mass = np.stack([np.bincount(of, row, minlength=len(starts)) for row in found])
    return np.asarray(found * (law / mass)[:, of])


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
        """Return the span of every parent with so many children, at least 1."""
        tables, (noisy, sigma) = self.tables, self._table(0)
        allowed = np.ones_like(noisy)
        allowed[tables.numbers == 1, 1:] = 0.0  # one child has no span
        kinds = bucket_of(np.minimum(numbers, tables.bound), tables.numbers)
        totals = np.bincount(kinds, minlength=len(tables.numbers)).astype(float)
        law = conditional(noisy, totals, sigma, allowed)
        return draw_columns(spread_buckets(law, tables.spans, self.dates), kinds, stream)

    def firsts(self, spans: Integers, tries: Integers, stream: PublicStream) -> Integers:
        """Return a first date for each try, an index of the parents with these spans."""
        tables, (noisy, sigma) = self.tables, self._table(1)
        buckets = bucket_of(spans, tables.spans)
        totals = np.bincount(buckets, minlength=len(tables.spans)).astype(float)
        fits = (np.arange(self.dates)[None] + tables.spans[:, None] < self.dates).astype(float)
        found = draw_columns(conditional(noisy, totals, sigma, fits), buckets[tries], stream)
        return np.minimum(found, self.dates - 1 - spans[tries])

    def _table(self, at: int) -> tuple[Floats, float]:
        parts, sigmas = split_tables(self.noisy, self.tables, self.sigma)
        return parts[at], sigmas[at]


def draw_columns(law: Floats, rows: Integers, stream: PublicStream) -> Integers:
    """Return a column for each of the given rows of a conditional distribution, by systematic sampling."""
    cumulated, found = np.cumsum(law, axis=1), np.empty(len(rows), np.int64)
    for row in np.unique(rows).tolist():
        mine = np.flatnonzero(rows == row)
        points = (stream.permutation(len(mine)) + stream.uniforms(1)) / len(mine)
        found[mine] = np.searchsorted(cumulated[row] / cumulated[row, -1], points, side="right")
    return np.minimum(found, law.shape[1] - 1)


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
    history_loops.shift_histories(dates, np.r_[begins, len(dates)], tries, laws.firsts(spans, tries, stream), values,
                                  number_off, ends.off(np.repeat(values, numbers, axis=0), dates),
                                  CROSS_WEIGHT)  # fmt: skip
    _move(dates, places, tables, noisy[0], sigmas[0], number_off, stream)
    whole = stream.permutation(len(begins))  # of equal dates, all of one parent change together
    found = np.empty(len(dates), np.int64)
    found[np.lexsort((np.repeat(whole, numbers), dates))] = np.sort(known)

    return found[np.lexsort((found, places.parents))]


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
        made = cls(values, np.zeros((int(sum(u.sizes)), size)))
        return cls(values, made.off(values[parents], dates))

    def off(self, values: Integers, dates: Integers) -> Floats:
        """Return the numbers of children with these cells of parents and dates, minus those aimed at."""
        found = -self.counts
        for column in values.T:
            np.add.at(found, (column, dates), 1.0)
        return found


def _between(places: Positions, firsts: Integers, spans: Integers, stream: PublicStream) -> Integers:
    """Return dates with these first dates and spans, uniform between the first and the last."""
    begins, numbers = places.begins, np.diff(np.r_[places.begins, len(places.parents)])
    points = stream.uniforms(len(places.parents))
    dates = np.repeat(firsts, numbers) + (points * (np.repeat(spans, numbers) + 1)).astype(np.int64)
    dates[begins] = firsts
    dates[begins + numbers - 1] = firsts + spans
    return dates[np.lexsort((dates, places.parents))]


def _move(dates: Integers, places: Positions, tables: HistoryTables, noisy: Floats, sigma: float, number_off: Floats,
          stream: PublicStream) -> None:  # fmt: skip
    """Move dates, in place, until the table of consecutive dates is near its target."""
    inner, count = places.inner, tables.sizes[tables.order]
    if not len(inner):
        return

    alone = HistoryTables((count,), 0, tables.bound)
    weight = float(alone.weights[0])
    now = step_counts(dates[:, None], places.parents, alone).astype(float)
    target = estimate_steps(noisy * weight, now, alone, sigma * weight)
    off = np.ascontiguousarray((now / weight - target).reshape(count, count))
    tries = (stream.uniforms(min(MOVES * len(inner), MOST_MOVES)) * len(inner)).astype(np.int64)
    history_loops.move_dates(dates, inner, tries, off, number_off, NUMBER_WEIGHT, state_of(stream))


def state_of(stream: PublicStream) -> np.ndarray:
    """Return the state of the random numbers of a compiled loop."""
    return np.array([int(stream.uniforms(1)[0] * 2**53) * 2 + 1], np.uint64)
