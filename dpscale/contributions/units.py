"""Contribution bounding: at most k rows of every privacy unit are counted.

The rows that remain of a unit depend only on the unit's own rows: they are those with the smallest hash, keyed by the
unit, of their encoded values, among the rows that the domain file does not drop. Adding or removing a unit therefore
changes at most k counted rows, regardless of the order or partitioning of the rows. In a growing table the bound holds
in each period, and only the first periods of a unit are counted; rows of later periods do not matter. Units are
identified by 128-bit hashes (see `unit_ids`), so that distinct units are never confused. A row without a unit is
refused or dropped.

The table is read once, into shards of small buckets of units (`unit_shards`), several of which form a batch. Batches
are processed independently: `bounded_rows` returns a shard's rows of the batch, `decided` computes one bit per row for
its removal, and `marked` maps the bits of a shard to its rows. Memory is proportional to the batch, which is set by the
memory setting, and not to the number of rows. A *piece* has the rows of a batch from one segment of a shard, sorted by
bucket, with the start of each bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from dpscale.base.errors import RefusedValue
from dpscale.base.numerics import Flags, NDArray, Words
from dpscale.contributions import few_rows, unit_loops
from dpscale.contributions.links import id_family
from dpscale.contributions.unit_ids import identities
from dpscale.contributions.unit_shards import ROW_WORDS, BucketedRows, Shard, unit_functions
from dpscale.counting.weighted import PeriodWeights
from dpscale.domain import Domain
from dpscale.records.column_values import column_of
from dpscale.records.encode import encode
from dpscale.records.table import Partition
from dpscale.records.where import RowMask

ROW_BYTES = 128  # per row of a processed batch: words, hash table, received and gathered rows
NEAR_ROWS, BATCH_ROWS = 1 << 16, 1 << 20  # rows whose hash table fits in the L2 cache; rows of a batch
PLACES = 1 << 12  # maximum number of buckets whose ends stay cached
# rows of a shard in a batch above which those beyond the bound are left out before they are exchanged
HEAVY_ROWS = 1 << 20
Bits = NDArray[np.uint8] | None


@dataclass(frozen=True)
class PeriodBound:
    """Contribution bound of a growing table.

    Attributes
    ----------
    rows : int
        Largest number of rows of a unit in a period.
    periods : int
        Largest number of periods of a unit: the first ones in which it has rows.
    weights : PeriodWeights
        Periods whose rows are counted.
    """

    rows: int
    periods: int
    weights: PeriodWeights


Bound = int | PeriodBound
NONE = np.empty(0, bool)  # flags of a shard without pieces


def survey(partition: Partition, unit: str) -> tuple[int, str]:
    """Return an upper estimate of a file's rows and the family of its units, from its footer or header."""
    return partition.row_bound(), id_family(partition, unit)


def buckets(rows: int, memory: int) -> int:
    """Return the number of buckets such that one bucket fits in the cache and in memory.

    They are about PLACES at most, unless memory demands more.
    """
    near = max(NEAR_ROWS, rows // PLACES)
    return max(1, -(-rows // max(min(memory // ROW_BYTES, near), 1)))


def together(rows: int, count: int, memory: int, least: int) -> int:
    """Return the number of buckets per batch, within memory and with at least `least` batches if possible."""
    room = min(memory // ROW_BYTES, BATCH_ROWS) * count // max(rows, 1)
    return max(1, min(room, count // least))


@dataclass(frozen=True, eq=False)
class BoundedRows:
    """Rows of a shard currently within the contribution bound; rows of other shards may still displace them.

    Attributes
    ----------
    pieces : list of BucketedRows
    count : int
        Number of the shard's rows in the batch.
    places : ndarray of int64, optional
        Positions of the rows among `count`; None for all.
    """

    pieces: list[BucketedRows] = field(repr=False)
    count: int = field(repr=False)
    places: NDArray[np.int64] | None = field(repr=False)

    def __sizeof__(self) -> int:
        return sum(rows.nbytes for rows, _ in self.pieces)


def bounded_rows(shard: Shard, batch: int, bound: Bound) -> BoundedRows:
    """Return a shard's rows of a batch.

    If they are many, as when one unit has most rows, rows beyond the bound within this shard are omitted.

    Guarantee
    ---------
    Protected: nothing is released: the counted rows of each unit are at most those of the bound.
    Cost: none.
    Neighbours: all rows of one unit; which of its rows are counted depends on its rows alone, and no row of another
        unit moves.
    Proof: docs/privacy.md, Neighbouring tables; tests/contributions/test_unit_cells.py.
    """
    pieces = shard.pieces(batch)
    ends = np.cumsum([len(rows) for rows, _ in pieces], dtype=np.int64)
    count = int(ends[-1]) if pieces else 0
    if count <= HEAVY_ROWS:
        return BoundedRows(pieces, count, None)

    stays = ~_beyond(np.concatenate([rows for rows, _ in pieces]), bound)
    flagged = zip(pieces, np.split(stays, ends[:-1]), strict=True)
    return BoundedRows([_only(piece, flags) for piece, flags in flagged], count, np.flatnonzero(stays))


def _only(piece: BucketedRows, flags: Flags) -> BucketedRows:
    """Return the flagged rows of a piece, with the new starts of its buckets."""
    rows, starts = piece
    return rows[flags], np.append(0, np.cumsum(flags))[starts]


def decided(parts: Sequence[BoundedRows], bound: Bound) -> list[Bits]:
    """Return the rows of a batch to remove, per shard: all but the `bound` smallest hashes of each unit.

    Ties are resolved in favour of the first row.
    """
    pieces = [piece for part in parts for piece in part.pieces]
    flags = iter(_removed_rows(pieces, bound))
    return [_bits(part, np.concatenate([NONE, *(next(flags) for _ in part.pieces)])) for part in parts]


def _removed_rows(pieces: Sequence[BucketedRows], bound: Bound) -> list[Flags]:
    """Return flags of the rows to remove from each piece; rows are gathered by bucket and the flags are mapped back.

    All rows of a unit must be compared together, and they are in the same bucket of every piece. `gather` advances
    `ends`, hence the copies.
    """
    ends = np.cumsum([len(words) for words, _ in pieces], dtype=np.int64)
    if len(pieces) and ends[-1] <= few_rows.FEW:  # no unit is in two buckets, and the rows of each keep their order
        return np.split(_beyond(np.concatenate([words for words, _ in pieces]), bound), ends[:-1])

    # starts of the buckets that have the rows of all pieces
    counts = sum((np.diff(piece_starts) for _, piece_starts in pieces), np.zeros(1, np.int64))
    starts = np.append(0, np.cumsum(counts))
    rows, ends = np.empty((starts[-1], ROW_WORDS), np.uint64), starts[:-1].copy()
    for words, piece_starts in pieces:
        unit_loops.gather(words, piece_starts, ends, rows)
    # bucket by bucket, each small enough for the cache
    gone = np.concatenate([_beyond(rows[start:end], bound) for start, end in pairwise(starts.tolist())])
    flags, ends = [np.empty(len(words), bool) for words, _ in pieces], starts[:-1].copy()
    for (_, piece_starts), out in zip(pieces, flags, strict=True):
        unit_loops.returned(gone, piece_starts, ends, out)

    return flags


def _bits(part: BoundedRows, removed: NDArray[np.bool_]) -> Bits:
    """Return the removed rows of a shard as bits, or None if there are none.

    `removed` flags the rows in `part.places`. Rows that are not among them were removed within the shard already.
    """
    flags = removed
    if part.places is not None:
        flags = np.ones(part.count, dtype=bool)
        flags[part.places] = removed
    return np.packbits(flags) if flags.any() else None


def marked(shard: Shard, found: Iterable[Bits]) -> dict[Partition, RowMask]:
    """Return the rows to remove from every partition that has any, including rows without a unit.

    `found` contains the bits of each batch.
    """
    parts = np.split(shard.marked(found), np.cumsum(shard.lengths)[:-1])
    flagged = zip(shard.partitions, parts, strict=True)
    return {partition: RowMask.of(flags) for partition, flags in flagged if flags.any()}


def _beyond(rows: Words, bound: Bound) -> NDArray[Any]:
    """Return flags of the rows beyond the bound of their unit; compiled code for many rows, NumPy for few."""
    functions = unit_functions(len(rows))
    if isinstance(bound, PeriodBound):
        return np.asarray(functions.beyond_periods(rows, bound.rows, bound.periods))
    return np.asarray(functions.beyond(rows, bound))


def has_counted_row(
    partitions: Iterable[Partition], domain: Domain, names: Sequence[str], unit: str | None = None
) -> bool:
    """Return whether some row of the partitions is counted; reading stops at the first batch with one.

    A refused value is a row: counting refuses it with its reason. `unit` is a column whose rows without an id are
    dropped.
    """
    for partition in partitions:
        columns = list(dict.fromkeys([*domain.columns(names), *([unit] if unit else [])]))
        for batch in partition.batches(columns, unit or "", None if unit in domain.columns(names) else domain):
            dropped = np.zeros(len(next(iter(batch.values()))), dtype=bool)
            try:
                # rows that an attribute drops are marked in `dropped`
                for name in names:
                    encode(domain[name], column_of(domain[name], batch), dropped)
            except RefusedValue:
                return True

            if unit is not None:
                dropped |= identities(batch[unit], unit).missing
            if not dropped.all():
                return True
    return False
