"""Rows of tables divided by a hash of a key, in encrypted files on the reader's disk.

Some partitions are read once and leave one encrypted file, in which the rows of every partition are sorted by part. All
rows with one key are in one part, in the order of the partitions, so parts can be processed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpscale.base.numerics import Integers, NDArray, Words
from dpscale.contributions.links import Columns, coded_rows, link_ends
from dpscale.contributions.unit_shards import SHOWN, UnitMap
from dpscale.domain import Domain
from dpscale.records.encode import code_type
from dpscale.records.table import Partition
from dpscale.storage.scratch import ArrayStore

KEY_WORDS = 2  # 64-bit words of the hash of a key
PARENTS, CHILDREN, PAIRS = "parents", "children", "pairs"  # what rows are in a link


@dataclass(frozen=True)
class KeyDealing:
    """Parameters of the division of a table's rows.

    Attributes
    ----------
    role : str
        PARENTS, CHILDREN or PAIRS.
    domain : Domain
    names : tuple of str
        Attributes; empty for a table of pairs.
    keys : tuple of (tuple of str, str)
        Columns of each key and the policy for their nulls.
    by : int
        Position of the key by which rows are divided.
    parts : int
        Number of parts.
    """

    role: str
    domain: Domain
    names: tuple[str, ...]
    keys: tuple[tuple[Columns, str], ...]
    by: int
    parts: int

    def read(self, partition: Partition) -> tuple[list[Words], NDArray[Any]]:
        """Return the keys and the codes of a partition's rows."""
        if self.role != PAIRS:
            return coded_rows(self.domain, partition, self.names, self.keys)
        words = link_ends(partition, [columns for columns, _ in self.keys], self.keys[0][1])
        return words, np.zeros((len(words[0]), 0), np.uint8)

    @property
    def width(self) -> np.dtype[Any]:
        """Type of the stored codes."""
        return code_type(max((self.domain[name].code_count for name in self.names), default=2))


@dataclass(frozen=True, eq=False)
class KeyedPart:
    """Keys and codes of the rows of a part; the repr shows neither."""

    role: str
    words: tuple[Words, ...] = field(repr=False)
    codes: NDArray[Any] = field(repr=False)

    @classmethod
    def joined(cls, pieces: Sequence[KeyedPart]) -> KeyedPart:
        """Return the rows of all pieces, in their order."""
        words = tuple(np.concatenate(own) for own in zip(*(piece.words for piece in pieces), strict=True))
        return cls(pieces[0].role, words, np.concatenate([piece.codes for piece in pieces]))


@dataclass(frozen=True, eq=False, repr=False)
class KeyShard:
    """Rows of some partitions by part.

    Attributes
    ----------
    dealing : KeyDealing
    file : ArrayStore
    segments : tuple
        For every partition the places of its arrays in the file, the codes last, and the start of every part.
    """

    dealing: KeyDealing
    file: ArrayStore
    segments: tuple[tuple[tuple[int, ...], Integers], ...]

    def piece(self, part: int) -> KeyedPart:
        """Return the rows of a part, in the order of the partitions."""
        return KeyedPart.joined([self._segment(places, starts[part : part + 2]) for places, starts in self.segments])

    def _segment(self, places: tuple[int, ...], ends: Integers) -> KeyedPart:
        """Return one segment of a shard's file: the words of its keys and the codes of its rows.

        `places` are the arrays in the file, the last with the codes; `ends` are its first row and the end of its rows.
        """
        first, count, columns = int(ends[0]), int(ends[1] - ends[0]), len(self.dealing.names)
        words = [self.file.read(place, first * KEY_WORDS, count * KEY_WORDS, np.uint64) for place in places[:-1]]
        codes = self.file.read(places[-1], first * columns, count * columns, self.dealing.width)
        return KeyedPart(
            self.dealing.role,
            tuple(word.reshape(-1, KEY_WORDS) for word in words),
            codes.reshape(count, columns),
        )

    def __sizeof__(self) -> int:
        return self.file.size // SHOWN

    def __repr__(self) -> str:
        return "KeyShard(hidden)"


def deal_keys(
    dealing: KeyDealing, partitions: Sequence[Partition], file: ArrayStore, through: UnitMap | None = None
) -> KeyShard:
    """Read partitions and divide their rows by a key, or by the unit to which `through` maps it.

    A segment has the stored arrays of a partition, sorted by part, and `starts`, the first row of each part.
    """
    segments = []
    for partition in partitions:
        words, codes = dealing.read(partition)
        by = words[dealing.by] if through is None else through(words[dealing.by])[0]
        part = part_of(by, dealing.parts)
        order = np.argsort(part, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(part, minlength=dealing.parts))])
        stored = [file.append(own[order]) for own in (*words, codes.astype(dealing.width))]
        segments.append((tuple(stored), starts))

    return KeyShard(dealing, file, tuple(segments))


def part_of(words: Words, parts: int) -> NDArray[np.uint16]:
    """Return the part of each key."""
    return (words[:, 1] % np.uint64(parts)).astype(np.uint16)


@dataclass(frozen=True, eq=False, repr=False)
class DividedMap:
    """Map from keys to units by part."""

    maps: Sequence[UnitMap]

    @classmethod
    def made(cls, whole: UnitMap, parts: int, by_unit: bool) -> DividedMap:
        """Divide a map: of the keys whose units, or which themselves, are in the part."""
        part = part_of(whole.units if by_unit else whole.words, parts)
        order = np.argsort(part, kind="stable")
        ends = np.cumsum(np.bincount(part, minlength=parts))[:-1]
        return cls([UnitMap(whole.words[own], whole.units[own]) for own in np.split(order, ends)])

    def piece(self, part: int) -> UnitMap:
        """Return the map of a part."""
        return self.maps[part]

    def __sizeof__(self) -> int:
        return sum(one.__sizeof__() for one in self.maps)

    def __repr__(self) -> str:
        return "DividedMap(hidden)"
