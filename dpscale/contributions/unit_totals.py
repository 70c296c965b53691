"""Exact numbers of distinct units in the cells of marginals, and totals of a unit that are clipped to its bound.

*Numbers of distinct units.*
A unit counts once in each cell that has one of its rows, so these counts are not additive over cells, and the marginal
of a smaller set is not a sum of cells of a larger one. A task leaves the distinct rows (unit and cells) of its
partitions. They are exchanged between workers by ranges of the unit's hash, and each range is counted in one task. All
results are sums over units, so neither partitions nor ranges change them. They are private.

*Totals.*
Values of numbers are clipped so that the total of a privacy unit stays within its bound. With `per_unit = "total"` a
unit has at most B = Σ|v| over its rows (`dpscale.domain.number`). Its rows are taken in the order of the hash that also
chooses the rows within the contribution bound. Values are kept until their sum reaches B, the value at which it does so
is cut to the rest, and later values are 0:

    |v_i| becomes min(|v_i|, max(B − Σ_{j<i} |v_j|, 0)).

The result depends only on the unit's own rows. A task leaves the hashes, places and values of the rows of its
partitions. They are exchanged between workers by ranges of the unit's hash, and the changed values return to their
partitions. Everything here is private.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Flags, Integers, NDArray, Words
from dpscale.contributions.unit_shards import (
    RANGES,
    SHOWN_BYTES,
    UnitMap,
    distinct_rows,
    first_rows,
    masks_and_lookup,
    place_of_ranges,
    read_units,
    value_words,
    within_ranges,
)
from dpscale.counting.count import encode_batch
from dpscale.domain import Domain, Number
from dpscale.records.table import Partition
from dpscale.records.where import ClippedRows, RowMask

MERGED = 1 << 21  # rows that wait before repeats are removed

ROW_BYTES = 96  # of a row while it is sorted, and as much for each number
CHANGE_BYTES = 48  # of a changed value, which stay in memory until the table is counted


@dataclass(frozen=True)
class UnitRequest:
    """Rows whose units are counted by cells.

    Attributes
    ----------
    domain : Domain
    names : tuple of str
        Attributes of all sets.
    dropping : tuple of str
        Further attributes whose values can drop a row.
    unit : str
        Column of the unit's id.
    ranges : range
        Ranges of hashes that are counted in this pass.
    """

    domain: Domain
    names: tuple[str, ...]
    dropping: tuple[str, ...]
    unit: str
    ranges: range = range(RANGES)


@dataclass(frozen=True, eq=False)
class UnitCells:
    """Distinct rows of unit and cells, sorted by unit. Private, so its repr shows nothing."""

    units: Words = field(repr=False)
    cells: NDArray[np.uint32] = field(repr=False)

    def __sizeof__(self) -> int:
        return SHOWN_BYTES

    def within(self, ranges: range) -> UnitCells:
        """Return the rows of some ranges of hashes."""
        place = place_of_ranges(self.units, ranges)
        return UnitCells(self.units[place], self.cells[place])


def distinct(parts: Sequence[UnitCells], columns: int) -> UnitCells:
    """Return the distinct rows of several parts, sorted by unit and cells."""
    units = np.concatenate([np.empty((0, 2), np.uint64), *(part.units for part in parts)])
    cells = np.concatenate([np.empty((0, columns), np.uint32), *(part.cells for part in parts)])
    return UnitCells(*distinct_rows(units, cells))


def unit_cells(
    request: UnitRequest, partitions: Sequence[Partition], bounded: Sequence[Partition], *handed: RowMask | UnitMap
) -> UnitCells:
    """Return the distinct rows of some partitions; the other arguments are those of `masks_and_lookup`."""
    masks, lookup = masks_and_lookup(bounded, handed)
    waiting, many = list[UnitCells](), 0
    for partition in partitions:
        first = 0
        for batch in partition.batches(_columns(request), request.unit):
            found = _batch(request, batch, lookup, masks.get(partition), first)
            first += len(batch[request.unit])
            waiting.append(found)
            many += len(found.units)
            if many > MERGED:
                waiting, many = [distinct(waiting, len(request.names))], 0

    return distinct(waiting, len(request.names))


def _columns(request: UnitRequest) -> list[str]:
    return list(dict.fromkeys([request.unit, *request.domain.columns([*request.names, *request.dropping])]))


def _batch(
    request: UnitRequest,
    batch: Mapping[str, Any],
    lookup: UnitMap | None,
    mask: RowMask | None,
    first: int,
) -> UnitCells:
    """Return the rows of a batch that count, in the ranges of the pass.

    `dropping` are further attributes whose values can drop a row; `first` is the number of the batch's first row in its
    partition, and `mask` has the rows beyond the contribution bound.
    """
    codes, gone = encode_batch(request.domain, batch, [*request.names, *request.dropping])
    words, missing = read_units(batch[request.unit], request.unit, lookup)
    kept = ~missing if gone is None else ~(missing | gone)
    if mask is not None:
        kept &= ~mask.within(first, len(kept))
    kept &= within_ranges(words, request.ranges)
    return UnitCells(words[kept], codes[: len(request.names), kept].T.astype(np.uint32))


def take_range(rows: UnitCells, number: int, ranges: Sequence[range]) -> UnitCells:
    """Return the rows in the ranges of hashes that are at place `number` of `ranges`."""
    return rows.within(ranges[number])


@dataclass(frozen=True, eq=False)
class UnitCounts:
    """Numbers of distinct units by cell, one flat array for each set. Private."""

    counts: list[Integers] = field(repr=False)


def count_units(
    parts: Sequence[UnitCells], names: tuple[str, ...], sets: Sequence[AttributeSet], domain: Domain
) -> UnitCounts:
    """Return the numbers of distinct units of the parts of some ranges, in the cells of each set."""
    rows = distinct(parts, len(names))
    # the number of each row's unit: every unit has one first row
    unit, counts = np.cumsum(first_rows(rows.units)), []
    for attribute_set in sets:
        size, columns = domain.cells(attribute_set), [names.index(name) for name in attribute_set]
        # number of each row's cell in the marginal, the last attribute fastest
        cell = np.zeros(len(unit), np.int64)
        for column, width in zip(columns, domain.shape(attribute_set), strict=True):
            cell = cell * width + rows.cells[:, column]
        # each pair of a unit and a cell is one number and counts once
        pairs = np.unique(unit * size + cell)
        counts.append(np.bincount(pairs % size, minlength=size) if len(pairs) else np.zeros(size, np.int64))

    return UnitCounts(counts)


@dataclass(frozen=True)
class TotalRequest:
    """Rows whose totals by unit are bounded.

    Attributes
    ----------
    domain : Domain
    names : tuple of str
        Attributes that distinguish rows.
    numbers : tuple of Number
        Numbers with bounded totals.
    unit : str
        Column of the unit's id.
    ranges : range
        Ranges of hashes that are compared in this pass.
    """

    domain: Domain
    names: tuple[str, ...]
    numbers: tuple[Number, ...]
    unit: str
    ranges: range = range(RANGES)


@dataclass(frozen=True, eq=False)
class UnitRows:
    """Rows of some partitions, sorted by the hash of the unit.

    Attributes
    ----------
    units : ndarray of uint64, shape (rows, 2)
    order : ndarray of uint64, shape (rows,)
        Hash of the values with the unit, which orders the rows of a unit.
    places : ndarray of int64, shape (rows, 2)
        Number of the partition in the task and of the row in the partition.
    codes : ndarray of uint32, shape (rows, numbers)
    """

    units: Words = field(repr=False)
    order: Words = field(repr=False)
    places: Integers = field(repr=False)
    codes: NDArray[np.uint32] = field(repr=False)

    def __sizeof__(self) -> int:
        return SHOWN_BYTES

    def take(self, chosen: Any) -> UnitRows:
        """Return some rows."""
        return UnitRows(
            units=self.units[chosen], order=self.order[chosen], places=self.places[chosen], codes=self.codes[chosen]
        )

    @classmethod
    def joined(cls, parts: Sequence[UnitRows], numbers: int) -> UnitRows:
        """Return the rows of several parts, in their order."""
        none = cls(np.empty((0, 2), np.uint64), np.empty(0, np.uint64), np.empty((0, 2), np.int64),
                   np.empty((0, numbers), np.uint32))  # fmt: skip
        rows = [none, *parts]
        return cls(
            *(np.concatenate([getattr(row, name) for row in rows]) for name in ("units", "order", "places", "codes"))
        )


def unit_rows(
    request: TotalRequest, partitions: Sequence[Partition], bounded: Sequence[Partition], *handed: RowMask | UnitMap
) -> UnitRows:
    """Return the rows of some partitions; the other arguments are those of `masks_and_lookup`."""
    masks, lookup = masks_and_lookup(bounded, handed)
    parts = list[UnitRows]()
    for number, partition in enumerate(partitions):
        parts += _rows_of(request, partition, number, lookup, masks.get(partition))
    rows = UnitRows.joined(parts, len(request.numbers))
    return rows.take(np.argsort(rows.units[:, 0], kind="stable"))


def _rows_of(
    request: TotalRequest, partition: Partition, number: int, lookup: UnitMap | None, mask: RowMask | None
) -> Iterator[UnitRows]:
    """Yield the counted rows of a partition: words of the unit, words that order rows, places and numbers.

    A place is (number of the partition, number of the row in it). The order of a unit's rows is a hash of their values
    that depends on the unit.
    """
    domain, first, columns = request.domain, 0, request.domain.columns(request.names)
    ids, cells = ("", None) if request.unit in columns else (request.unit, domain)  # a unit is a value, not a cell
    for batch in partition.batches(list(dict.fromkeys([request.unit, *columns])), ids, cells):
        codes, gone = encode_batch(domain, batch, request.names)
        units, missing = read_units(batch[request.unit], request.unit, lookup)
        counted = _counted(request, units, missing, gone, None if mask is None else mask.within(first, len(units)))
        numbers_of_rows = codes[[request.names.index(numeric.name) for numeric in request.numbers]]
        places = np.stack([np.full(len(counted), number), first + counted], axis=1)
        yield UnitRows(
            units=units[counted],
            order=value_words(codes)[counted] ^ units[counted, 1],
            places=places,
            codes=numbers_of_rows[:, counted].T.astype(np.uint32),
        )
        first += codes.shape[1]


def _counted(request: TotalRequest, units: Words, missing: Flags, gone: Flags | None, masked: Flags | None) -> Integers:
    """Return the numbers of the rows of a batch that are counted, in the ranges of the pass.

    `missing` marks the rows without a unit, `gone` those that the domain drops, and `masked` those beyond the
    contribution bound; None for no such rows.
    """
    kept = within_ranges(units, request.ranges) & ~missing
    for left_out in (gone, masked):
        if left_out is not None:
            kept &= ~left_out
    return np.flatnonzero(kept)


def take_unit_rows(rows: UnitRows, number: int, ranges: Sequence[range]) -> UnitRows:
    """Return the rows in the ranges of hashes that are at place `number` of `ranges`."""
    return rows.take(place_of_ranges(rows.units, ranges[number]))


Changes = tuple[Integers, NDArray[np.uint32]]  # places of rows, and their codes


@dataclass(frozen=True, eq=False)
class ChangedCodes:
    """Changed codes of some ranges of hashes, for each part and number. Private, so its repr shows nothing."""

    found: list[list[Changes]] = field(repr=False)

    def __sizeof__(self) -> int:
        return SHOWN_BYTES


def clip_totals(parts: Sequence[UnitRows], numbers: Sequence[Number]) -> ChangedCodes:
    """Return the changed codes of some ranges of hashes, for each of `parts`, the rows of one task each.

    `source` is the part of each row, to which the changes return. Rows are sorted by unit and then by their order, as
    the recurrence of the module demands.
    """
    rows = UnitRows.joined(parts, len(numbers))
    source = np.repeat(np.arange(len(parts)), [len(part.order) for part in parts])
    ranks = np.lexsort((np.arange(len(source)), rows.order, rows.units[:, 1], rows.units[:, 0]))
    rows, source = rows.take(ranks), source[ranks]
    new = first_rows(rows.units)
    found: list[list[Changes]] = [[] for _ in parts]

    for column, number in enumerate(numbers):
        codes = rows.codes[:, column].astype(np.int64)
        clipped = clipped_codes(codes, new, number.high)
        changed = clipped != codes
        for part, changes in enumerate(found):
            here = changed & (source == part)
            changes.append((rows.places[here], clipped[here].astype(np.uint32)))

    return ChangedCodes(found)


def clipped_codes(codes: Integers, new: Flags, bound: int) -> Integers:
    """Return the codes of values whose totals by unit are bounded.

    Parameters
    ----------
    codes : ndarray of int64, shape (rows,)
        Values in steps from the low end −B, in the order of units and of their rows.
    new : ndarray of bool, shape (rows,)
        Whether a row is the first one of its unit.
    bound : int
        Largest total B of absolute values of a unit, in steps.
    """
    values = codes - bound
    # Σ |v_j| of all rows before a row, less that before its unit
    before = np.cumsum(np.abs(values)) - np.abs(values)
    before -= before[new][np.cumsum(new) - 1] if len(new) else 0
    return bound + np.sign(values) * np.minimum(np.abs(values), np.maximum(bound - before, 0))


def clipped_rows(
    partitions: Sequence[Partition],
    numbers: Sequence[Number],
    found: Sequence[Sequence[Changes]],
    masks: Mapping[Partition, RowMask],
) -> dict[Partition, ClippedRows]:
    """Return the changed rows of the partitions of a task that have any.

    `found` has the changes of every range of hashes, for each number.
    """
    clipped = {}
    # for each number, the changes of each partition
    changes = [
        _by_partition([of_range[column] for of_range in found], len(partitions)) for column in range(len(numbers))
    ]
    for place, partition in enumerate(partitions):
        changed = {number.name: by[place] for number, by in zip(numbers, changes, strict=True) if len(by[place][0])}
        if changed:
            clipped[partition] = ClippedRows.of_changes(masks.get(partition), changed)
    return clipped


def _by_partition(parts: Sequence[Changes], count: int) -> list[Changes]:
    """Return the changes of each of `count` partitions, with places in ascending order.

    The first column of the places of `parts` is the partition and the second the row in it.
    """
    places, codes = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    ranks = np.lexsort((places[:, 1], places[:, 0]))
    places, codes = places[ranks], codes[ranks]
    ends = np.searchsorted(places[:, 0], np.arange(count + 1))
    return [(places[first:end, 1], codes[first:end]) for first, end in pairwise(ends.tolist())]
