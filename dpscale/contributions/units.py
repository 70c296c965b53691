"""Bounded contributions: of every privacy unit at most k rows are counted.

Which rows of a unit stay is a function of that unit's own rows and nothing else: those with the smallest keyed-by-unit
hash of their encoded values, of the rows that the domain file does not drop. So adding or removing a unit changes at
most k counted rows, however the rows are ordered or partitioned. Units are told apart by 128 bits of hash (see
`unit_ids`), so that two units are never taken for one. A row without a unit is refused or left out, each by itself.

The table is read once, into shards by buckets of units (`unit_shards`), small ones, of which several travel together.
Such a batch is decided by itself: `taken` of every shard is what it has of the batch, `decided` which of these rows go,
a bit each; then `marked` puts a shard's bits where its rows stand. Memory follows the batch, which follows the setting,
and not the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Flags, Words
from dpscale.contributions.unit_ids import family
from dpscale.contributions.unit_shards import ROW_WORDS, Piece, Shard
from dpscale.records.row_filter import Marked
from dpscale.records.table import Partition

ROW_BYTES = 128  # of a batch that is decided: words, table, and both of what came and what is put together
NEAR_ROWS, BATCH_ROWS = 1 << 16, 1 << 20  # what the second cache holds a table of; of a batch, of which parts are read
PLACES = 1 << 12  # that rows can be dealt to, and each is still near
HEAVY_ROWS = 1 << 20
Bits = NDArray[np.uint8] | None
NONE = np.empty(0, bool)


def survey(partition: Partition, unit: str) -> tuple[int, str]:
    """An upper guess of a file's rows, and the family of its units, by its footer or header."""
    kind = partition.kind(unit)
    return partition.row_bound(), family(kind, unit)


def buckets(rows: int, memory: int) -> int:
    """How many buckets keep what is decided at once within the memory, and small."""
    near = max(NEAR_ROWS, rows // PLACES)
    return max(1, -(-rows // max(min(memory // ROW_BYTES, near), 1)))


def together(rows: int, count: int, memory: int, least: int) -> int:
    """How many of `count` buckets are a batch: within the memory, and at least so many batches where that can be."""
    room = min(memory // ROW_BYTES, BATCH_ROWS) * count // max(rows, 1)
    return max(1, min(room, count // least))


@dataclass(frozen=True, eq=False)
class Taken:
    """Of a shard's rows in a batch those that others may still push out, at `places` among its `count` (None: all)."""

    pieces: list[Piece] = field(repr=False)
    count: int = field(repr=False)
    places: NDArray[np.int64] | None = field(repr=False)

    def __sizeof__(self) -> int:
        return sum(rows.nbytes for rows, _ in self.pieces)


def taken(shard: Shard, batch: int, bound: int) -> Taken:
    """What a shard has of a batch. Where that is much, as of a unit with most rows, without what goes in any case."""
    pieces = shard.pieces(batch)
    ends = np.cumsum([len(rows) for rows, _ in pieces], dtype=np.int64)
    count = int(ends[-1]) if pieces else 0
    if count <= HEAVY_ROWS:
        return Taken(pieces, count, None)
    left = ~_beyond(np.concatenate([rows for rows, _ in pieces]), bound)
    own = zip(pieces, np.split(left, ends[:-1]), strict=True)
    return Taken([_only(piece, flags) for piece, flags in own], count, np.flatnonzero(left))


def _only(piece: Piece, flags: Flags) -> Piece:
    """The flagged rows."""
    rows, starts = piece
    return rows[flags], np.append(0, np.cumsum(flags))[starts]


def decided(parts: Sequence[Taken], bound: int) -> list[Bits]:
    """Which rows of a batch go, by shard: all but the `bound` smallest hashes of a unit, the first of those alike."""
    pieces = [piece for part in parts for piece in part.pieces]
    flags = iter(_removed_rows(pieces, bound))
    return [_bits(part, np.concatenate([NONE, *(next(flags) for _ in part.pieces)])) for part in parts]


def _removed_rows(pieces: Sequence[Piece], bound: int) -> list[Flags]:
    """Which rows of each piece go: rows are put together bucket by bucket, and the flags put back."""
    from dpscale.contributions.unit_loops import gather, returned

    starts = np.append(0, np.cumsum(sum((np.diff(own) for _, own in pieces), np.zeros(1, np.int64))))
    rows, ends = np.empty((starts[-1], ROW_WORDS), np.uint64), starts[:-1].copy()
    for words, own in pieces:
        gather(words, own, ends, rows)
    gone = np.concatenate([_beyond(rows[start:end], bound) for start, end in pairwise(starts.tolist())])
    flags, ends = [np.empty(len(words), bool) for words, _ in pieces], starts[:-1].copy()
    for (_, own), out in zip(pieces, flags, strict=True):
        returned(gone, own, ends, out)
    return flags


def _bits(part: Taken, removed: NDArray[np.bool_]) -> Bits:
    flags = removed
    if part.places is not None:
        flags = np.ones(part.count, dtype=bool)
        flags[part.places] = removed
    return np.packbits(flags) if flags.any() else None


def marked(shard: Shard, found: Iterable[Bits]) -> dict[Partition, Marked]:
    """The rows that go, of every partition that has any. `found`: those of each batch; of nobody's all go."""
    parts = np.split(shard.marked(found), np.cumsum(shard.lengths)[:-1])
    own = zip(shard.partitions, parts, strict=True)
    return {partition: Marked.of(part) for partition, part in own if part.any()}


def _beyond(rows: Words, bound: int) -> NDArray[Any]:
    from dpscale.contributions.unit_loops import beyond

    return np.asarray(beyond(rows, bound))
