"""Rows dealt to buckets by a keyed hash of their unit, on the disk of who read them.

Some partitions are read once and leave one sealed file: segments of rows, each in the order of buckets. Of a row it has
the two words of its unit and the hash of its values; and, in the order of rows, the number of its bucket, so that what
was decided finds back to the rows. All rows of a unit are in one bucket, so that a bucket can be decided alone. Buckets
are small and read several at a time. The key of the hash is the run's and the key of the file its own, so what is on
disk tells nothing of ids, not even to who knows all that there can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Flags, Integers, Words
from dpscale.base.errors import RefusedValue
from dpscale.contributions.unit_ids import Identities, identities
from dpscale.contributions.unit_lookup import Through
from dpscale.counting.count import encode_batch
from dpscale.domain import Domain
from dpscale.records.encode import Codes
from dpscale.records.table import Partition
from dpscale.storage.scratch import Store

Piece = tuple[Words, Integers]  # rows in the order of buckets; where each bucket starts, and the last ends
ROW_WORDS = 3
ROW_BYTES = 26  # in the file
NUMBER = np.uint16  # of a bucket; there are two more, of rows of nobody and of those that are not there
MOST_BUCKETS = (1 << 16) - 2
SHOWN = 16  # a file counts as so much less than it has where a scheduler asks how large a shard is: it is not in memory


@dataclass(frozen=True)
class Dealing:
    """How rows are dealt: `names` are the attributes that tell rows apart; `drop`: rows without a unit are left out,
    else DataError; `through`: whose the ids in the unit's column are; `together`: buckets that are read at a time;
    `salt`: the key of buckets; `segment`: rows of one."""

    domain: Domain
    unit: str
    names: tuple[str, ...]
    drop: bool
    through: Through | None
    buckets: int
    together: int
    salt: int = field(repr=False)
    segment: int


@dataclass(frozen=True, eq=False)
class Segment:
    """What rows, and the buckets of `length` rows, are called in the file; where each bucket starts, the last ends."""

    rows: int
    buckets: int
    length: int
    starts: NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Shard:
    """The rows of some partitions, of `lengths` rows, by bucket; some buckets are a batch, that is read at once."""

    partitions: tuple[Partition, ...]
    lengths: tuple[int, ...]
    file: Store
    segments: tuple[Segment, ...]
    dealing: Dealing

    def pieces(self, batch: int) -> list[Piece]:
        """The rows of a batch, unit and value of each, by bucket and piece in the order of rows."""
        first, end = batch * self.dealing.together, (batch + 1) * self.dealing.together + 1
        return [self._piece(one, one.starts[first:end]) for one in self.segments]

    def _piece(self, one: Segment, starts: Integers) -> Piece:
        start, count = int(starts[0]), int(starts[-1] - starts[0])
        words = self.file.read(one.rows, start * ROW_WORDS, count * ROW_WORDS, np.uint64)
        return words.reshape(-1, ROW_WORDS), starts - start

    def marked(self, found: Iterable[NDArray[np.uint8] | None]) -> Flags:
        """Of the rows of all partitions those that go. `found`: a bit for each row of a batch, in the order of its
        pieces, or None where all stay; rows of nobody go."""
        from dpscale.contributions.unit_loops import mark

        sizes = (sum(map(self._counts, self.segments), self._counts(None)) + 7) // 8
        bits = [np.zeros(size, np.uint8) if own is None else own for own, size in zip(found, sizes, strict=True)]
        flags, joined, done = np.empty(sum(self.lengths), bool), np.concatenate(bits), 0
        begun, batch = 8 * (np.cumsum(sizes) - sizes), np.arange(self.dealing.buckets) // self.dealing.together
        for one in self.segments:
            places = one.starts[:-1] + (begun - one.starts[:-1][:: self.dealing.together])[batch]
            buckets = self.file.read(one.buckets, 0, one.length, NUMBER)
            mark(buckets, places, joined, flags[done : done + one.length])
            begun, done = begun + self._counts(one), done + one.length
        return flags

    def _counts(self, one: Segment | None) -> Integers:
        """How many rows of each batch a segment has."""
        starts = np.zeros(self.dealing.buckets + 1, np.int64) if one is None else one.starts
        return np.diff(np.append(starts[:-1][:: self.dealing.together], starts[-1]))

    def __sizeof__(self) -> int:
        return self.file.size // SHOWN

    def __repr__(self) -> str:
        return "Shard(hidden)"


def deal(dealing: Dealing, partitions: Sequence[Partition], file: Store) -> Shard:
    """Read some partitions and deal their rows."""
    writer, lengths = _Writer(dealing, file), []
    for partition in partitions:
        before = writer.number
        for batch in _batches(dealing, partition):
            writer.add(batch)
        lengths.append(writer.number - before)
    writer.write()
    return Shard(tuple(partitions), tuple(lengths), file, tuple(writer.segments), dealing)


@dataclass(frozen=True)
class _Batch:
    """Of every row whose it is, its value, and whether it is nobody's (1) or not there (2)."""

    units: Words
    values: Words
    apart: NDArray[np.uint8]


class _Writer:
    """Collects batches to segments."""

    def __init__(self, dealing: Dealing, file: Store) -> None:
        self.dealing, self.file, self.number = dealing, file, 0
        self.segments: list[Segment] = []
        self._begin()

    def _begin(self) -> None:
        self._waiting: list[tuple[_Batch, NDArray[Any]]] = []
        self._counts = np.zeros(self.dealing.buckets + 2, np.int64)

    def add(self, batch: _Batch) -> None:
        from dpscale.contributions.unit_loops import buckets_of

        buckets = np.empty(len(batch.apart), NUMBER)
        buckets_of(batch.units, batch.apart, np.uint64(self.dealing.salt), self._counts, buckets)
        self._waiting.append((batch, buckets))
        self.number += len(buckets)
        if self._counts.sum() >= self.dealing.segment:
            self.write()

    def write(self) -> None:
        """What is held becomes a segment."""
        from dpscale.contributions.unit_loops import deal as deal_rows

        if self._waiting:
            starts = np.append(0, np.cumsum(self._counts[:-2]))
            rows, ends = np.empty((starts[-1], ROW_WORDS), np.uint64), starts[:-1].copy()
            for batch, own in self._waiting:
                deal_rows(batch.units, batch.values, own, ends, rows)
            buckets = np.concatenate([own for _, own in self._waiting])
            called = self.file.append(rows), self.file.append(buckets)
            self.segments.append(Segment(*called, len(buckets), starts))
        self._begin()


def _batches(dealing: Dealing, partition: Partition) -> Iterator[_Batch]:
    unit, names = dealing.unit, dealing.names
    columns = dealing.domain.columns(names)
    ids, domain = ("", None) if unit in columns else (unit, dealing.domain)  # a unit is its value, not its cell
    for batch in partition.batches(list(dict.fromkeys([unit, *columns])), ids, domain):
        codes, gone = encode_batch(dealing.domain, batch, names)
        owners = _owners(batch[unit], unit, dealing.through)
        if owners.missing.any() and not dealing.drop:
            raise RefusedValue(f"data column {unit!r}", "a null", "a unit for every row",
                            'fill it, or leave such rows out by unit_nulls = "drop" in [data]')  # fmt: skip
        apart = owners.missing.astype(np.uint8)
        if gone is not None:
            apart[gone & ~owners.missing] = 2
        yield _Batch(owners.words, value_words(codes), apart)


def _owners(column: Any, unit: str, through: Through | None) -> Identities:
    """The units of a column's rows."""
    own = identities(column, unit)
    if through is None:
        return own
    words, missing = through(own.words)
    return Identities(words, missing | own.missing)


def value_words(codes: Codes) -> Words:
    """A 64 bit mix of each row's codes."""
    from dpscale.contributions.unit_hashes import mixed

    return np.asarray(mixed(codes))
