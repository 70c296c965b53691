"""Histories: children of a parent in a declared order, measured as tables of consecutive children.

For attributes i and j of a child, the table T_ij counts pairs of consecutive children of one parent by the value of i
in the earlier child and of j in the later one. T_ii is weighted by 2, because most associations are between equal
attributes. A unit with P parents of at most C children each changes each T_ij by at most P (C − 1) pairs, so that the
squared sensitivity of all weighted tables is

    (4 d + d (d − 1)) (P (C − 1))²

Parents are counted in tables of their own, which they change by one cell each, whatever the number of their children:
buckets of the number of children by buckets of the span (last minus first cell of the order) with weight 3, buckets of
the span by the first cell, and the other attributes of the first child. They have the squared sensitivity (9 + d) P².
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from dpscale.base.numerics import Floats, Integers
from dpscale.relational.link_estimation import ShrinkageBlock, ridges

SAME, SPANS = 2, 3  # weights of the table of an attribute with itself, and of the spans
PRIOR = 0.5  # prior mode of the relative scale of departures


def powers(base: int, largest: int) -> Integers:
    """Return the powers 1, b, b², … up to `largest`."""
    found = [1]
    while found[-1] * base <= largest:
        found.append(found[-1] * base)
    return np.array(found, np.int64)


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
        own = [(len(self.numbers), spans), (spans, self.sizes[self.order])]
        return own + [(1, self.sizes[i]) for i in self.others]

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
    found = [
        weight * np.bincount(rows[at, i] * sizes[j] + rows[at + 1, j], minlength=sizes[i] * sizes[j])
        for (i, j), weight in zip(tables.pairs, tables.weights, strict=True)
    ]
    return np.concatenate(found).astype(np.int64)


def parent_counts(rows: Integers, parents: Integers, tables: HistoryTables) -> Integers:
    """Return the weighted tables of parents, one after the other; the parameters are those of `step_counts`."""
    if not len(rows):
        return np.zeros(sum(a * b for a, b in tables.shapes), np.int64)

    first = np.flatnonzero(np.r_[True, parents[1:] != parents[:-1]])
    last = np.r_[first[1:], len(parents)] - 1
    numbers = bucket_of(np.minimum(last - first + 1, tables.bound), tables.numbers)
    begin = rows[first, tables.order]
    spans = bucket_of(rows[last, tables.order] - begin, tables.spans)
    columns = [(numbers, spans), (spans, begin), *((np.zeros_like(begin), rows[first, i]) for i in tables.others)]
    counts = [
        np.bincount(one * b + two, minlength=a * b) for (one, two), (a, b) in zip(columns, tables.shapes, strict=True)
    ]

    return np.concatenate([SPANS * counts[0], *counts[1:]]).astype(np.int64)


def split_tables(values: Floats, tables: HistoryTables, sigma: float) -> tuple[list[Floats], list[float]]:
    """Return the unweighted tables of parents from one vector, with the standard deviations of their noise."""
    ends = np.cumsum([a * b for a, b in tables.shapes])[:-1]
    found = [part.reshape(shape) for part, shape in zip(np.split(values, ends), tables.shapes, strict=True)]
    return [found[0] / SPANS, *found[1:]], [sigma / SPANS, *[sigma] * (len(found) - 1)]


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
    for weight, cell_count in zip(weights, cells, strict=True):
        expected = now[cell_count] / weight
        carried = np.maximum(expected, 1.0)
        blocks.append(ShrinkageBlock(noisy[cell_count] / weight - expected, carried, carried, sigma / weight))

    target = np.concatenate([now[cell_count] / weight for weight, cell_count in zip(weights, cells, strict=True)])
    for block, cell_count, ridge in zip(blocks, cells, ridges(blocks, PRIOR), strict=True):
        target[cell_count] += block.departed * block.carried / (block.carried + ridge)
    return target
