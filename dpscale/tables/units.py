"""Bounded contributions: of every privacy unit at most k rows are counted.

Which rows of a unit stay is a function of that unit's own rows and nothing else: those with the smallest keyed-by-unit
hash of their encoded values, of the rows that the domain file does not drop. So adding or removing a unit changes at
most k counted rows, however the rows are ordered or partitioned. Units are told apart by 128 bits of hash (see
`unit_ids`), so that two units are never taken for one. A row without a unit is refused or left out, each by itself.

The table is read once, into shards by buckets of units (`unit_shards`). A bucket is decided by itself: `taken` of every
shard is what it has of the bucket, `decided` which of these rows go, a bit each; then `marked` puts a shard's bits
where its rows stand. Memory follows the bucket, which follows the setting, and not the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.tables.marked import Marked
from dpscale.tables.table import Partition
from dpscale.tables.unit_ids import Words, family
from dpscale.tables.unit_shards import Shard

ROW_BYTES = 128  # of a bucket that is decided: words, table, and both of what came and what is put together
NEAR_ROWS, FAR_ROWS = 1 << 16, 1 << 19  # what the second cache holds a table of; where every part of a bucket is a task
HEAVY_ROWS = 1 << 20
Bits = NDArray[np.uint8] | None


def survey(partition: Partition, unit: str) -> tuple[int, str]:
    """An upper guess of a file's rows, and the family of its units, by its footer or header."""
    kind = partition.kind(unit)
    return partition.row_bound(), family(kind, unit)


def buckets(rows: int, memory: int, near: bool = True) -> int:
    """How many buckets keep what is decided at once within the memory, and small. `near`: parts need no tasks."""
    return max(1, -(-rows // max(min(memory // ROW_BYTES, NEAR_ROWS if near else FAR_ROWS), 1)))


@dataclass(frozen=True, eq=False)
class Taken:
    """Of a shard's rows in a bucket those that others may still push out, at `places` among its `count` (None: all)."""

    rows: Words = field(repr=False)
    count: int = field(repr=False)
    places: NDArray[np.int64] | None = field(repr=False)

    def __sizeof__(self) -> int:
        return self.rows.nbytes


def taken(shard: Shard, bucket: int, bound: int) -> Taken:
    """What a shard has of a bucket. Where that is much, as of a unit with most rows, without what goes in any case."""
    rows = shard.rows(bucket)
    if len(rows) <= HEAVY_ROWS:
        return Taken(rows, len(rows), None)
    left = np.flatnonzero(~_beyond(rows, bound))
    return Taken(rows[left], len(rows), left)


def decided(parts: Sequence[Taken], bound: int) -> list[Bits]:
    """Which rows of a bucket go, by shard: all but the `bound` smallest hashes of a unit, the first of those alike."""
    gone = _beyond(np.concatenate([part.rows for part in parts]), bound)
    ends = np.cumsum([len(part.rows) for part in parts])
    return [_bits(part, own) for part, own in zip(parts, np.split(gone, ends[:-1]), strict=True)]


def _bits(part: Taken, gone: NDArray[np.bool_]) -> Bits:
    flags = gone
    if part.places is not None:
        flags = np.ones(part.count, dtype=bool)
        flags[part.places] = gone
    return np.packbits(flags) if flags.any() else None


def marked(shard: Shard, found: Iterable[Bits]) -> dict[Partition, Marked]:
    """The rows that go, of every partition that has any. `found`: those of each bucket; of nobody's all go."""
    flags, nobody = np.zeros(sum(shard.lengths), dtype=bool), 0
    for bucket, bits in enumerate(found):
        nobody = bucket + 1
        if bits is not None:
            shard.mark(bucket, bits, flags)
    shard.mark(nobody, np.full(shard.count(nobody) // 8 + 1, 255, np.uint8), flags)
    parts = np.split(flags, np.cumsum(shard.lengths)[:-1])
    own = zip(shard.partitions, parts, strict=True)
    return {partition: Marked.of(part) for partition, part in own if part.any()}


def _beyond(rows: Words, bound: int) -> NDArray[Any]:
    from dpscale.tables.unit_loops import beyond

    return np.asarray(beyond(rows, bound))
