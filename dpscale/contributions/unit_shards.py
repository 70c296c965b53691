"""Rows of a table distributed to buckets by a keyed hash of their unit, in encrypted files on the reader's disk.

Several partitions are read once and leave one encrypted file with segments of rows, each sorted by bucket. A row is
stored as the two words of its unit and the hash of its values. The file also contains the bucket number of every row in
the original order, with which decisions are mapped back to the rows. All rows of a unit are in one bucket, so that
buckets can be processed independently. Buckets are small, and several are read at a time. The hash key belongs to the
run and the encryption key to the file, so the data on disk reveal nothing about ids, even to a reader who knows all
possible ids. A *piece* has the rows of a segment in the buckets of one batch.

*Ranges of the hash.*
Rows are exchanged between workers by them, so that all rows of a unit meet. A table whose rows exceed the memory
setting is read once for each of several passes, which cover the ranges. Tasks receive the rows beyond the contribution
bound and the map from ids to units as further arguments, because a cluster sends each of them to a worker once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from dpscale.base.errors import DataError, RefusedValue
from dpscale.base.numerics import Flags, Integers, NDArray, Words
from dpscale.contributions import few_rows, unit_hashes, unit_loops
from dpscale.contributions.few_rows import PERIOD_BITS, PERIOD_SHIFT
from dpscale.contributions.unit_ids import Identities, identities
from dpscale.counting.count import encode_batch
from dpscale.counting.weighted import PeriodWeights, encode_present
from dpscale.domain import Domain
from dpscale.records.encode import Codes
from dpscale.records.table import Partition
from dpscale.records.where import RowMask
from dpscale.storage.scratch import ArrayStore

RANGE_BITS = 16  # highest bits of the first word of a unit, which are the number of its range
RANGES = 1 << RANGE_BITS  # numbers of ranges, which the passes divide
SHOWN_BYTES = 1 << 24  # size that the scheduler sees, because the true one shows the number of units


@dataclass(frozen=True, eq=False)
class UnitMap:
    """Map from keys to units; the repr shows neither array.

    Attributes
    ----------
    words : ndarray of uint64, shape (n, 2)
        Hashes of the keys, sorted and unique.
    units : ndarray of uint64, shape (n, 2)
        Hashes of the units that own them.
    """

    words: Words = field(repr=False)
    units: Words = field(repr=False)

    @classmethod
    def made(cls, words: Words, units: Words) -> UnitMap:
        """Build the map from rows in any order. Raises DataError for a key of two units.

        Rows with one key are consecutive after sorting; they must have the same unit.
        """
        order = np.lexsort((units[:, 1], units[:, 0], words[:, 1], words[:, 0]))
        ranked = words[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = (ranked[1:] != ranked[:-1]).any(axis=1)
        owned = units[order]
        if (~first[1:] & (owned[1:] != owned[:-1]).any(axis=1)).any():
            raise DataError(
                "data.path",
                "a key whose rows belong to two units",
                "one unit per key",
                "use separate keys: the rows of a unit must not depend on another unit",
            )
        return cls(ranked[first], owned[first])

    def __call__(self, words: Words) -> tuple[Words, NDArray[np.bool_]]:
        """Return the unit of each key, and which keys have none."""
        at = places(self.words, words)
        found = self.units[np.maximum(at, 0)] if len(self.units) else np.zeros_like(words)
        return found, at < 0

    def cut(self, keys: int) -> list[UnitMap]:
        """Split the map into parts of `keys` keys, for messages; `joined` concatenates them."""
        starts = range(0, max(len(self.words), 1), keys)
        return [UnitMap(self.words[at : at + keys], self.units[at : at + keys]) for at in starts]

    @classmethod
    def joined(cls, pieces: Sequence[UnitMap]) -> UnitMap:
        return cls(np.concatenate([piece.words for piece in pieces]), np.concatenate([piece.units for piece in pieces]))

    def __sizeof__(self) -> int:
        return self.words.nbytes + self.units.nbytes

    def then(self, following: UnitMap) -> UnitMap:
        """Compose with the next hop; keys whose unit it does not know are removed."""
        units, missing = following(self.units)
        return UnitMap(self.words[~missing], units[~missing])


def composed(hops: Sequence[UnitMap]) -> UnitMap:
    """Return the composition of all hops: the map from the keys of the first one to the units of the last one."""
    whole = hops[-1]
    for hop in reversed(hops[:-1]):
        whole = hop.then(whole)
    return whole


def places(known: Words, words: Words) -> Integers:
    """Return the position of each of `words` among `known`, which are sorted; −1 if it is not there.

    If the first words of all known ones differ, they decide the place alone; the second word is compared at the end in
    any case.
    """
    if not len(known):
        return np.full(len(words), -1)

    first = known[:, 0]
    if (first[1:] != first[:-1]).all():
        at = np.searchsorted(first, words[:, 0])
    else:
        at = np.searchsorted(_pairs(known), _pairs(words))

    at = np.minimum(at, len(known) - 1)
    return np.where((known[at] == words).all(axis=1), at, -1)


def _pairs(words: Words) -> NDArray[np.void]:
    """Return a structured view that compares by the first word, then the second."""
    return np.ascontiguousarray(words).view([("first", np.uint64), ("second", np.uint64)]).reshape(-1)


BucketedRows = tuple[Words, Integers]  # rows sorted by bucket; start of each bucket and end of the last
ROW_WORDS = 3  # 64-bit words of a row: two of its unit and one of its values
ROW_BYTES = 26  # per row in the file
NUMBER = np.uint16  # bucket numbers; two additional ones for rows without a unit and for dropped rows
MOST_BUCKETS = (1 << 16) - 2  # numbers of 16 bits without the two additional ones
SHOWN = 16  # divisor of the size reported to the scheduler, since a file is not in memory


@dataclass(frozen=True)
class Dealing:
    """Parameters of the distribution of rows to buckets.

    Attributes
    ----------
    domain : Domain
    unit : str
        Column of the privacy unit.
    names : tuple of str
        Attributes that distinguish rows.
    drop : bool
        Drop rows without a unit; otherwise they raise an error.
    through : callable, optional
        Map from the ids in the unit's column to units.
    buckets : int
        Number of buckets.
    together : int
        Number of buckets read at a time.
    salt : int
        Key of the bucket hash.
    segment : int
        Number of rows of a segment.
    periods : PeriodWeights, optional
        Periods of a growing table; rows of later periods are treated as dropped rows.
    """

    domain: Domain
    unit: str
    names: tuple[str, ...]
    drop: bool
    through: UnitMap | None
    buckets: int
    together: int
    salt: int = field(repr=False)
    segment: int
    periods: PeriodWeights | None = None


@dataclass(frozen=True, eq=False)
class Segment:
    """Positions of rows and bucket numbers in the file, the number of rows, and the start of each bucket."""

    rows: int
    buckets: int
    length: int
    starts: NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Shard:
    """Rows of some partitions by bucket; a batch of buckets is read at once."""

    partitions: tuple[Partition, ...]
    lengths: tuple[int, ...]
    file: ArrayStore
    segments: tuple[Segment, ...]
    dealing: Dealing

    def pieces(self, batch: int) -> list[BucketedRows]:
        """Return the rows of a batch, sorted by bucket, one piece per segment."""
        first, end = batch * self.dealing.together, (batch + 1) * self.dealing.together + 1
        return [self._piece(segment, segment.starts[first:end]) for segment in self.segments]

    def _piece(self, segment: Segment, starts: Integers) -> BucketedRows:
        """Return the rows of a segment in consecutive buckets with these starts."""
        start, count = int(starts[0]), int(starts[-1] - starts[0])
        words = self.file.read(segment.rows, start * ROW_WORDS, count * ROW_WORDS, np.uint64)
        return words.reshape(-1, ROW_WORDS), starts - start

    def marked(self, found: Iterable[NDArray[np.uint8] | None]) -> Flags:
        """Return flags of the rows of all partitions to be removed, including those without a unit.

        `dealing.together` buckets form a batch, whose bits follow each other segment by segment. `begun` is the first
        bit of each batch that belongs to the segment, from which `places` has that of each bucket.

        Parameters
        ----------
        found : iterable of ndarray or None
            For each batch one bit per row in the order of its pieces; None if no row is removed.
        """
        # bytes of the bits of each batch
        sizes = (sum(map(self._counts, self.segments), self._counts(None)) + 7) // 8
        bits = [np.zeros(size, np.uint8) if octets is None else octets
                for octets, size in zip(found, sizes, strict=True)]  # fmt: skip
        flags, joined, done = np.empty(sum(self.lengths), bool), np.concatenate(bits), 0
        begun, batch = 8 * (np.cumsum(sizes) - sizes), np.arange(self.dealing.buckets) // self.dealing.together

        for segment in self.segments:
            first_of_batch = segment.starts[:-1][:: self.dealing.together]
            places = segment.starts[:-1] + (begun - first_of_batch)[batch]
            buckets = self.file.read(segment.buckets, 0, segment.length, NUMBER)
            unit_functions(len(buckets)).mark(buckets, places, joined, flags[done : done + segment.length])
            begun, done = begun + self._counts(segment), done + segment.length

        return flags

    def _counts(self, segment: Segment | None) -> Integers:
        """Return the number of rows of each batch in a segment; zeros for None, the start of a sum."""
        starts = np.zeros(self.dealing.buckets + 1, np.int64) if segment is None else segment.starts
        return np.diff(np.append(starts[:-1][:: self.dealing.together], starts[-1]))

    def __sizeof__(self) -> int:
        return self.file.size // SHOWN

    def __repr__(self) -> str:
        return "Shard(hidden)"


def unit_functions(rows: int) -> ModuleType:
    """Return the module whose functions serve so many rows."""
    return few_rows if rows <= few_rows.FEW else unit_loops


def deal(dealing: Dealing, partitions: Sequence[Partition], file: ArrayStore) -> Shard:
    """Read partitions and distribute their rows to buckets."""
    writer, lengths = _Writer(dealing, file), []
    for partition in partitions:
        before = writer.number
        for batch in _batches(dealing, partition):
            writer.add(batch)
        lengths.append(writer.number - before)

    writer.write()
    return Shard(
        partitions=tuple(partitions),
        lengths=tuple(lengths),
        file=file,
        segments=tuple(writer.segments),
        dealing=dealing,
    )


@dataclass(frozen=True)
class _Batch:
    """Units and values of a batch's rows, and a mark for rows without a unit (1) and dropped rows (2)."""

    units: Words
    values: Words
    apart: NDArray[np.uint8]


class _Writer:
    """Collector of batches into segments."""

    def __init__(self, dealing: Dealing, file: ArrayStore) -> None:
        self.dealing, self.file, self.number = dealing, file, 0
        self.segments: list[Segment] = []
        self._begin()

    def _begin(self) -> None:
        self._waiting: list[tuple[_Batch, NDArray[Any]]] = []
        self._counts = np.zeros(self.dealing.buckets + 2, np.int64)

    def add(self, batch: _Batch) -> None:
        """Add a batch of rows with the bucket of each unit, and write a segment when enough rows wait."""
        buckets = np.empty(len(batch.apart), NUMBER)
        salt = np.uint64(self.dealing.salt)
        unit_functions(len(buckets)).buckets_of(batch.units, batch.apart, salt, self._counts, buckets)
        self._waiting.append((batch, buckets))
        self.number += len(buckets)
        if self._counts.sum() >= self.dealing.segment:
            self.write()

    def write(self) -> None:
        """Write the collected rows as a segment."""
        if self._waiting:
            # the rows of the last two buckets, which are not counted, are not stored
            starts = np.append(0, np.cumsum(self._counts[:-2]))
            rows, ends = np.empty((starts[-1], ROW_WORDS), np.uint64), starts[:-1].copy()
            for batch, numbers in self._waiting:
                unit_functions(len(numbers)).deal(batch.units, batch.values, numbers, ends, rows)
            buckets = np.concatenate([numbers for _, numbers in self._waiting])
            place_of_rows, place_of_buckets = self.file.append(rows), self.file.append(buckets)
            self.segments.append(Segment(place_of_rows, place_of_buckets, len(buckets), starts))

        self._begin()


def _batches(dealing: Dealing, partition: Partition) -> Iterator[_Batch]:
    """Yield the rows of a partition as (words of units, words of values, apart), for dealing them by unit.

    `apart` is 1 for rows without a unit, and 2 for rows that are dropped or belong to later periods.
    """
    unit, names = dealing.unit, dealing.names
    columns = dealing.domain.columns(names)
    # a column that is both unit and attribute is read as values, without conversion to cells
    ids, domain = ("", None) if unit in columns else (unit, dealing.domain)  # a unit is a value, not a cell
    if (periods := dealing.periods) is not None:
        domain = None if set(columns) & set(periods.columns) else domain
        columns = [*columns, *periods.columns]

    for batch in partition.batches(list(dict.fromkeys([unit, *columns])), ids, domain):
        if periods is None:
            codes, gone = encode_batch(dealing.domain, batch, names)
            later = np.zeros(codes.shape[1], bool)
        else:
            numbers, later = periods.read(batch)
            codes, gone = encode_present(dealing.domain, batch, names, later)

        owners = _owners(batch[unit], unit, dealing.through)
        if (owners.missing & ~later).any() and not dealing.drop:
            raise RefusedValue(f"data column {unit!r}", "a null", "a unit for every row",
                            'fill it, or drop such rows, in a job with unit_nulls = "drop" in [data]')  # fmt: skip

        apart = owners.missing.astype(np.uint8)
        if gone is not None:
            apart[gone & ~owners.missing] = 2
        values = value_words(codes)
        if periods is not None:
            apart[later] = 2
            # the order of a unit's rows within a period, by the hash of their values
            values = _ranked_by_period(values, owners.words[:, 1], numbers)

        yield _Batch(owners.words, values, apart)


def _ranked_by_period(values: Words, second: Words, periods: Codes) -> Words:
    """Return values that, mixed with the unit's second word, have the period in their highest bits.

    `second` has the second word of each row's unit, and `periods` the number of its period.
    """
    numbers = periods.astype(np.uint64)
    return np.asarray(((numbers << PERIOD_SHIFT) | ((values ^ second) >> np.uint64(PERIOD_BITS))) ^ second)


def _owners(column: Any, unit: str, through: UnitMap | None) -> Identities:
    """Return the units of a column's rows; `through` maps ids to units, if they are not the units themselves."""
    ids = identities(column, unit)
    if through is None:
        return ids
    words, missing = through(ids.words)
    return Identities(words, missing | ids.missing)


def value_words(codes: Codes) -> Words:
    """Return a 64-bit mix of each row's codes."""
    functions = few_rows if codes.size <= few_rows.FEW else unit_hashes
    return np.asarray(functions.mixed(codes))


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
    numbers = _numbers(units)
    return np.asarray((numbers >= ranges.start) & (numbers < ranges.stop))


def place_of_ranges(units: Words, ranges: range) -> slice:
    """Return the place of some ranges among units that are sorted by their first word."""
    return slice(*np.searchsorted(_numbers(units), [ranges.start, ranges.stop]))


def _numbers(units: Words) -> Integers:
    """Return the number of the range of each unit."""
    return (units[:, 0] >> np.uint64(64 - RANGE_BITS)).astype(np.int64)


def first_rows(units: Words) -> Flags:
    """Return which of some sorted rows is the first one of its unit."""
    new = np.ones(len(units), bool)
    new[1:] = (units[1:] != units[:-1]).any(axis=1)
    return new


def distinct_rows(units: Words, values: NDArray[Any]) -> tuple[Words, NDArray[Any]]:
    """Return the distinct rows of units with values, shape (rows, columns), sorted by unit and then by value."""
    order = np.lexsort((*values.T[::-1], units[:, 1], units[:, 0]))
    units, values = units[order], values[order]
    new = first_rows(units)
    new[1:] |= (values[1:] != values[:-1]).any(axis=1)
    return units[new], values[new]


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
    masks = dict(zip(bounded, (argument for argument in handed if isinstance(argument, RowMask)), strict=True))
    maps = [argument for argument in handed if isinstance(argument, UnitMap)]
    return masks, UnitMap.joined(maps) if maps else None


def read_units(column: Any, unit: str, lookup: UnitMap | None) -> tuple[Words, Flags]:
    """Return the units of a column's rows, and which rows have none."""
    owners = identities(column, unit)
    if lookup is None:
        return owners.words, owners.missing
    words, unknown = lookup(owners.words)
    return words, owners.missing | unknown
