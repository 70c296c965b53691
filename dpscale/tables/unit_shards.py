"""Rows dealt to buckets by a keyed hash of their unit, on the disk of who read them.

Some partitions are read once and leave one sealed file: segments of rows, each in the order of buckets. Of a row it has
the two words of its unit, the hash of its values, and its place. All rows of a unit are in one bucket, so that a bucket
can be decided alone. The key of the hash is the run's and the key of the file its own, so what is on disk tells nothing
of ids, not even to who knows all that there can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.domain import Domain
from dpscale.errors import DataError
from dpscale.storage.scratch import Store
from dpscale.tables.count import encode_batch
from dpscale.tables.encode import Codes
from dpscale.tables.numbers import Flags
from dpscale.tables.table import Partition
from dpscale.tables.through import Through
from dpscale.tables.unit_ids import Identities, Words, identities

ROW_WORDS = 3
ROW_BYTES = 28  # in the file
FARTHEST = 1 << 31  # rows from a segment's first to its last
SHOWN = 16  # a file counts as so much less than it has where a scheduler asks how large a shard is: it is not in memory


@dataclass(frozen=True)
class Dealing:
    """How rows are dealt: `names` are the attributes that tell rows apart; `drop`: rows without a unit are left out,
    else DataError; `through`: whose the ids in the unit's column are; `salt`: the key of buckets; `segment`: rows of
    one."""

    domain: Domain
    unit: str
    names: tuple[str, ...]
    drop: bool
    through: Through | None
    buckets: int
    salt: int = field(repr=False)
    segment: int


@dataclass(frozen=True, eq=False)
class Segment:
    """What rows and places are called in the file, the first row's number, and where each bucket starts."""

    rows: int
    places: int
    first: int
    starts: NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Shard:
    """The rows of some partitions, of `lengths` rows, by bucket; the last bucket is nobody's."""

    partitions: tuple[Partition, ...]
    lengths: tuple[int, ...]
    file: Store
    segments: tuple[Segment, ...]

    def rows(self, bucket: int) -> Words:
        """Unit and value of every row in a bucket, (rows, 3), in the order of rows."""
        found = [self._rows(one, *one.starts[bucket : bucket + 2].tolist()) for one in self.segments]
        return np.concatenate(found) if found else np.empty((0, ROW_WORDS), np.uint64)

    def mark(self, bucket: int, bits: NDArray[np.uint8], flags: Flags) -> None:
        """Flag those that have their bit set, in the order of rows, among the rows of all partitions."""
        from dpscale.tables.unit_loops import mark

        done = 0
        for one in self.segments:
            start, end = one.starts[bucket : bucket + 2].tolist()
            mark(flags[one.first :], self.file.read(one.places, start, end - start, np.uint32), bits, done)
            done += end - start

    def count(self, bucket: int) -> int:
        """How many rows a bucket has."""
        return sum(int(one.starts[bucket + 1] - one.starts[bucket]) for one in self.segments)

    def _rows(self, one: Segment, start: int, end: int) -> Words:
        words = self.file.read(one.rows, start * ROW_WORDS, (end - start) * ROW_WORDS, np.uint64)
        return words.reshape(-1, ROW_WORDS)

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
    return Shard(tuple(partitions), tuple(lengths), file, tuple(writer.segments))


@dataclass(frozen=True)
class _Batch:
    """Of `rows` rows those that are in a bucket: at which place, whose, of which value; and which are nobody's."""

    rows: int
    places: NDArray[np.uint32]
    units: Words
    values: Words
    nobody: Flags


class _Writer:
    """Collects batches to segments."""

    def __init__(self, dealing: Dealing, file: Store) -> None:
        self.dealing, self.file, self.number, self.first = dealing, file, 0, 0
        self.segments: list[Segment] = []
        self._begin()

    def _begin(self) -> None:
        self._waiting: list[tuple[_Batch, int, NDArray[np.int32]]] = []
        self._counts, self.first = np.zeros(self.dealing.buckets + 1, np.int64), self.number

    def add(self, batch: _Batch) -> None:
        from dpscale.tables.unit_loops import buckets_of

        buckets = buckets_of(batch.units, batch.nobody, np.uint64(self.dealing.salt), self._counts)
        self._waiting.append((batch, self.number - self.first, buckets))
        self.number += batch.rows
        if self._counts.sum() >= self.dealing.segment or self.number - self.first >= FARTHEST:
            self.write()

    def write(self) -> None:
        """What is held becomes a segment."""
        from dpscale.tables.unit_loops import deal as deal_rows

        if self._waiting:
            starts = np.append(0, np.cumsum(self._counts))
            rows, at, ends = (
                np.empty((starts[-1], ROW_WORDS), np.uint64),
                np.empty(starts[-1], np.uint32),
                starts.copy(),
            )
            for batch, first, buckets in self._waiting:
                deal_rows(batch.units, batch.values, batch.places, first, buckets, ends, rows, at)
            self.segments.append(Segment(self.file.append(rows), self.file.append(at), self.first, starts))
        self._begin()


def _batches(dealing: Dealing, partition: Partition) -> Iterator[_Batch]:
    unit, names = dealing.unit, dealing.names
    columns = dealing.domain.columns(names)
    ids, domain = ("", None) if unit in columns else (unit, dealing.domain)  # a unit is its value, not its cell
    for batch in partition.batches(list(dict.fromkeys([unit, *columns])), ids, domain):
        codes, gone = encode_batch(dealing.domain, batch, names)
        owners = _owners(batch[unit], unit, dealing.through)
        if owners.missing.any() and not dealing.drop:
            raise DataError(f"data column {unit!r}", "a null", "a unit for every row",
                            'fill it, or leave such rows out by unit_nulls = "drop" in [data]')  # fmt: skip
        values, rows = value_words(codes) ^ owners.words[:, 1], len(owners.missing)
        if gone is None:
            yield _Batch(rows, np.arange(rows, dtype=np.uint32), owners.words, values, owners.missing)
            continue
        mine = np.flatnonzero(owners.missing | ~gone)
        yield _Batch(rows, mine.astype(np.uint32), owners.words[mine], values[mine], owners.missing[mine])


def _owners(column: Any, unit: str, through: Through | None) -> Identities:
    """The units of a column's rows."""
    own = identities(column, unit)
    if through is None:
        return own
    words, missing = through(own.words)
    return Identities(words, missing | own.missing)


def value_words(codes: Codes) -> Words:
    """A 64 bit mix of each row's codes."""
    from dpscale.tables.unit_hashes import mixed

    return np.asarray(mixed(codes))
