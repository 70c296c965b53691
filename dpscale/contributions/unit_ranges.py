"""Ranges of the hash of a privacy unit, by which rows are exchanged between workers so that all rows of a unit meet.

A table whose rows exceed the memory setting is read once for each of several passes, which cover the ranges. Tasks
receive the rows beyond the contribution bound and the map from ids to units as further arguments, because a cluster
sends each of them to a worker once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dpscale.base.numerics import Flags, Integers, Words
from dpscale.contributions.unit_ids import identities
from dpscale.contributions.unit_shards import UnitMap
from dpscale.records.table import Partition
from dpscale.records.where import RowMask

RANGE_BITS = 16  # highest bits of the first word of a unit, which are the number of its range
RANGES = 1 << RANGE_BITS  # numbers of ranges, which the passes divide
SHOWN_BYTES = 1 << 24  # size that the scheduler sees, because the true one shows the number of units


def hash_passes(size: int, memory: int) -> list[range]:
    """Return the ranges of hashes that are read together, so that rows of `size` bytes fit half of the memory."""
    return cut_ranges(range(RANGES), min(max(-(-2 * size // memory), 1), RANGES))


def cut_ranges(whole: range, many: int) -> list[range]:
    """Divide ranges of hashes into at most `many` parts."""
    ends = [whole.start + len(whole) * number // many for number in range(many + 1)]
    return [range(first, end) for first, end in pairwise(ends) if end > first]


def within_ranges(units: Words, ranges: range) -> Flags:
    """Return which units are in some ranges."""
    if len(ranges) == RANGES:
        return np.ones(len(units), bool)
    own = _numbers(units)
    return np.asarray((own >= ranges.start) & (own < ranges.stop))


def place_of_ranges(units: Words, ranges: range) -> slice:
    """Return the place of some ranges among units that are sorted by their first word."""
    return slice(*np.searchsorted(_numbers(units), [ranges.start, ranges.stop]))


def _numbers(units: Words) -> Integers:
    return (units[:, 0] >> np.uint64(64 - RANGE_BITS)).astype(np.int64)


def first_rows(units: Words) -> Flags:
    """Return which of some sorted rows is the first one of its unit."""
    new = np.ones(len(units), bool)
    new[1:] = (units[1:] != units[:-1]).any(axis=1)
    return new


def masks_and_lookup(
    bounded: Sequence[Partition], handed: Sequence[RowMask | UnitMap]
) -> tuple[Mapping[Partition, RowMask], UnitMap | None]:
    """Return the rows of partitions that are not counted, and the map from ids to units, from arguments of a task.

    Parameters
    ----------
    bounded : sequence of Partition
        Partitions with rows that are not counted.
    handed : sequence
        These rows of each, then the parts of the map from the ids of the column to units, if there is one.
    """
    masks = dict(zip(bounded, (one for one in handed if isinstance(one, RowMask)), strict=True))
    maps = [one for one in handed if isinstance(one, UnitMap)]
    return masks, UnitMap.joined(maps) if maps else None


def read_units(column: Any, unit: str, lookup: UnitMap | None) -> tuple[Words, Flags]:
    """Return the units of a column's rows, and which rows have none."""
    owners = identities(column, unit)
    if lookup is None:
        return owners.words, owners.missing
    words, unknown = lookup(owners.words)
    return words, owners.missing | unknown
