"""Exact numbers of distinct units in the cells of marginals.

A unit counts once in each cell that has one of its rows, so these counts are not additive over cells, and the marginal
of a smaller set is not a sum of cells of a larger one. A task leaves the distinct rows (unit and cells) of its
partitions. They are exchanged between workers by ranges of the unit's hash, and each range is counted in one task. All
results are sums over units, so neither partitions nor ranges change them. They are private.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Integers, NDArray, Words
from dpscale.contributions.unit_shards import (
    RANGES,
    SHOWN_BYTES,
    UnitMap,
    first_rows,
    masks_and_lookup,
    place_of_ranges,
    read_units,
    within_ranges,
)
from dpscale.counting.count import encode_batch
from dpscale.domain import Domain
from dpscale.records.table import Partition
from dpscale.records.where import RowMask

MERGED = 1 << 21  # rows that wait before repeats are removed


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
    """Return the distinct rows of several parts.

    Rows are sorted by unit and cells, so that equal rows are consecutive and the first of them remains.
    """
    units = np.concatenate([np.empty((0, 2), np.uint64), *(part.units for part in parts)])
    cells = np.concatenate([np.empty((0, columns), np.uint32), *(part.cells for part in parts)])
    order = np.lexsort((*cells.T[::-1], units[:, 1], units[:, 0]))
    units, cells = units[order], cells[order]
    new = first_rows(units)
    new[1:] |= (cells[1:] != cells[:-1]).any(axis=1)
    return UnitCells(units[new], cells[new])


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
    """Return the rows of the ranges with a number."""
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
    for own in sets:
        size, columns = domain.cells(own), [names.index(name) for name in own]
        cell = np.zeros(len(unit), np.int64)
        for column, width in zip(columns, domain.shape(own), strict=True):
            cell = cell * width + rows.cells[:, column]
        # each pair of a unit and a cell is one number and counts once
        pairs = np.unique(unit * size + cell)
        counts.append(np.bincount(pairs % size, minlength=size) if len(pairs) else np.zeros(size, np.int64))

    return UnitCounts(counts)
