"""Rows by their keys, their order, and links as pairs of rows. The results are exact and therefore private.

Keys are canonicalised like units (`unit_ids`), independent of the files' types. The treatment of a row depends only on
that row and on the keys of the other table: a null or dangling key is refused or its row dropped; of several rows with
one key, the one with the smallest hash of its values remains, regardless of their order.

*Ids.* Partitions return the ids of a key as one column if the key has several columns, or if the job states the rule by
which its ids are compared.

The id of a row is a text with the hash of its values in the columns of the key, or null if one of them is missing. Rows
with equal values have equal ids, whatever the types of the files. A contribution bound treats the column as any other
unit.

*Order.* A row is compared by the cell of an attribute, then by the values of columns, then by a hash of its other
values: the order of two rows depends on these rows only. Numbers, dates and times have an order. A text has that of its
cell, which is the order in the domain file; in files without types, texts that are numbers or ISO dates and times have
the order of these. A null, and a text without a number, follows all values.

*Parts.* Rows of tables are divided by a hash of a key, in encrypted files on the reader's disk. Some partitions are
read once and leave one encrypted file, in which the rows of every partition are sorted by part. All rows with one key
are in one part, in the order of the partitions, so parts can be processed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Any

import numpy as np

from dpscale.base.arrow import as_text, is_text, pa, pc, text_kind, types
from dpscale.base.errors import DataError
from dpscale.base.numerics import Floats, Integers, NDArray, Words
from dpscale.contributions.unit_ids import ODD, Identities, family, identities
from dpscale.contributions.unit_shards import SHOWN, UnitMap, places, value_words
from dpscale.counting.count import encode_batch
from dpscale.domain import Domain
from dpscale.records.encode import code_type
from dpscale.records.table import Partition, Table
from dpscale.storage.scratch import ArrayStore

Columns = tuple[str, ...]
NUMBER = r"^\s*[-+]?\d+(\.\d*)?([eE][-+]?\d+)?\s*$"
TIMES = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")
SEPARATOR = ", "

KEY_WORDS = 2  # 64-bit words of the hash of a key
PARENTS, CHILDREN, PAIRS = "parents", "children", "pairs"  # what rows are in a link


@dataclass(frozen=True, eq=False)
class KeyedRows:
    """Rows of a table by their keys; the repr shows neither array.

    Attributes
    ----------
    words : ndarray of uint64, shape (n, 2)
        Hashes of the keys, sorted and unique.
    codes : ndarray of int32, shape (n, d)
        Cells of the rows.
    """

    words: Words = field(repr=False)
    codes: NDArray[np.int32] = field(repr=False)

    def find(self, words: Words) -> Integers:
        """Return the row of each key; −1 if no row has it."""
        return places(self.words, words)


def key_families(partition: Partition, columns: Columns) -> list[str]:
    """Return the id family of every key column, from the file's header."""
    kinds = partition.kinds(columns)
    return [family(kinds[name], name) for name in columns]


def coded_rows(
    domain: Domain, partition: Partition, names: Sequence[str], keys: Sequence[tuple[Columns, str]], order: Columns = ()
) -> tuple[list[NDArray[Any]], NDArray[np.int32]]:
    """Return keys and codes of a partition's rows, without those dropped by the domain file or because of a null.

    Each key has an array of words, shape (rows, 2); codes have the shape (rows, attributes). The policy of a key is
    "drop" or "reject". A row needs all keys, and a value that the domain does not drop.

    Parameters
    ----------
    domain : Domain
    partition : Partition
    names : sequence of str
        Attributes.
    keys : sequence of (tuple of str, str)
        Columns of each key and the policy for their nulls.
    order : tuple of str
        Columns that order rows; their values follow the words of the keys.
    """
    # empty arrays first, so that a partition without rows has the right shapes
    words: list[list[NDArray[Any]]] = [[np.empty((0, 2), np.uint64)] for _ in keys]
    words += [[np.empty((0, len(order)))]] if order else []
    rows = [np.empty((0, len(names)), np.int32)]

    read = list(dict.fromkeys([*(name for columns, _ in keys for name in columns), *domain.columns(names), *order]))
    for batch in partition.batches(read):
        known = [key_words(batch, columns, nulls) for columns, nulls in keys]
        codes, gone = encode_batch(domain, batch, names) if names else (np.zeros((0, len(known[0][1])), np.uint8), None)
        stays = reduce(np.logical_and, (has for _, has in known), np.True_ if gone is None else ~gone)
        arrays = [found for found, _ in known] + ([order_batch(batch, order, partition.format.typed)] if order else [])
        for kept, array in zip(words, arrays, strict=True):
            kept.append(array[stays])
        rows.append(codes.T[stays].astype(np.int32))

    return [np.concatenate(kept) for kept in words], np.concatenate(rows)


def link_ends(partition: Partition, ends: Sequence[Columns], nulls: str) -> list[Words]:
    """Return the keys at the ends of a partition's links, an array of words for each end.

    A row is a link, and `ends` has the columns with the key of each end. `nulls` is the policy for a missing key; a
    link remains if it has the keys at all ends.
    """
    found: list[list[Words]] = [[np.empty((0, 2), np.uint64)] for _ in ends]
    for batch in partition.batches(list(dict.fromkeys(name for columns in ends for name in columns))):
        known = [key_words(batch, columns, nulls) for columns in ends]
        stays = reduce(np.logical_and, (has for _, has in known))
        for kept, (words, _) in zip(found, known, strict=True):
            kept.append(words[stays])
    return [np.concatenate(kept) for kept in found]


def key_rows(partition: Partition, keys: Sequence[Columns]) -> tuple[int, list[tuple[Words, NDArray[np.bool_]]]]:
    """Return the number of rows of a partition, and for each key the words of all rows and a mask.

    The mask marks the rows that have the key.
    """
    rows, found = 0, [[(np.empty((0, 2), np.uint64), np.empty(0, np.bool_))] for _ in keys]
    for batch in partition.batches(
        list(dict.fromkeys([*(name for key in keys for name in key)])) or partition.columns()
    ):
        rows += len(next(iter(batch.values())))
        for kept, columns in zip(found, keys, strict=True):
            kept.append(key_words(batch, columns, "drop"))

    return rows, [
        (np.concatenate(words), np.concatenate(has)) for words, has in (zip(*batches, strict=True) for batches in found)
    ]


def key_words(
    batch: dict[str, object], columns: Columns, nulls: str, rule: str = ""
) -> tuple[Words, NDArray[np.bool_]]:
    """Return two words per row and the rows that have a key. Raises DataError for a null unless nulls are dropped.

    `rule` is the rule by which ids are compared (`unit_ids`). The words of several columns are mixed to two.
    """
    parts = [identities(batch[name], name, rule) for name in columns]
    missing = reduce(np.logical_or, (part.missing for part in parts))
    if missing.any() and nulls != "drop":
        raise DataError(f"data column {', '.join(columns)}", "a null", "a key in every row",
                        'fill it, or drop such rows with nulls = "drop"')  # fmt: skip
    return reduce(_mixed, parts).words, ~missing


def _mixed(first: Identities, second: Identities) -> Identities:
    """Combine the words of two columns of a key; a row needs a value in both."""
    words = (first.words ^ (second.words >> np.uint64(31))) * ODD + second.words
    return Identities(words, first.missing | second.missing)


def one_a_key(words: Words, values: Words, duplicates: str = "keep") -> Integers:
    """Return one row per key, in the order of the keys: the one with the smallest hash in `values`.

    `words` are the keys and `values` the hashes of the rows, both with shape (rows, 2). Raises DataError for a second
    row with one key if `duplicates` is "reject".
    """
    order = np.lexsort((values[:, 1], values[:, 0], words[:, 1], words[:, 0]))
    ranked = words[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (ranked[1:] != ranked[:-1]).any(axis=1)
    if duplicates == "reject" and not first.all():
        raise DataError(
            "data.path",
            "a duplicate key",
            "a distinct key for every row",
            'fix the rows, or use one of them with duplicates = "keep"',
        )
    return order[first]


def row_words(codes: NDArray[np.int32], *keys: Words) -> Words:
    """Return hashes of the rows' values and `keys`, shape (n, 2); rows that agree in all of them have equal words."""
    words = value_words(codes.T.astype(np.uint32))
    for key in keys:
        words = (words ^ key[:, 0]) * ODD + key[:, 1]
    return np.stack([words, words * ODD], axis=1)


def at_most(parents: Words, ends: Words, bound: int) -> NDArray[np.bool_]:
    """Return flags of the links within the contribution bound: each parent retains those with the smallest hashes.

    The hash depends on the parent and the other end, so the links that a parent retains depend only on its own links.

    Parameters
    ----------
    parents, ends : ndarray of uint64, shape (m, 2)
        Keys.
    bound : int
        Maximum number of links per parent.
    """
    hashes = (ends[:, 0] ^ parents[:, 1]) * np.uint64(0xBF58476D1CE4E5B9)  # the other words of the keys break ties
    hashes ^= hashes >> np.uint64(29)
    order = np.lexsort((ends[:, 1], hashes, parents[:, 1], parents[:, 0]))

    ordered, places = parents[order], np.arange(len(order))
    is_first = np.ones(len(order), np.bool_)  # link of its parent
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    first = np.maximum.accumulate(np.where(is_first, places, 0))
    stays = np.zeros(len(order), np.bool_)
    stays[order] = places - first < bound
    return stays


def check_order(partition: Partition, columns: Sequence[str]) -> None:
    """Raise DataError for a column that is missing or has no order; the first may be a text.

    Texts of a file without types may be numbers or times, and are ordered as these.
    """
    kinds = partition.kinds(columns)
    for at, name in enumerate(columns):
        kind = kinds[name]
        kind = text_kind(kind.value_type if types.is_dictionary(kind) else kind)
        is_allowed_text = is_text(kind) and (at == 0 or not partition.format.typed)
        if not (is_allowed_text or _is_ordered(kind)):
            raise DataError(f"data column {name!r}", f"type {kind} in order_by", "numbers, dates or times",
                            "convert the column, or remove it from order_by")  # fmt: skip


def _is_ordered(kind: pa.DataType) -> bool:
    numbers = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind)
    return numbers or (types.is_temporal(kind) and not types.is_duration(kind))


def order_values(column: pa.Array | pa.ChunkedArray, typed: bool) -> Floats:
    """Return values that order rows like those of a column; of dates and times, the number of units since 1970.

    Parameters
    ----------
    column : pyarrow.Array or pyarrow.ChunkedArray
    typed : bool
        Whether the file has types; a text is then not read as a number, and all texts are equal.

    Returns
    -------
    ndarray of float64, shape (n,)
        Infinite for nulls.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    column = as_text(column)
    if is_text(column.type):
        return np.zeros(len(column)) if typed else _of_texts(column)

    if types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return _with_infinity(column.cast(pa.float64(), safe=False))


def _of_texts(column: pa.Array) -> Floats:
    """Return the numbers, or the times in seconds, that texts are; infinite for other texts."""
    found = pc.if_else(pc.match_substring_regex(column, NUMBER), pc.utf8_trim_whitespace(column), None)
    found = found.cast(pa.float64())
    for form in TIMES:
        times = pc.strptime(column, format=form, unit="s", error_is_null=True)
        found = pc.coalesce(found, times.cast(pa.int64()).cast(pa.float64()))
    return _with_infinity(found)


def _with_infinity(column: pa.Array) -> Floats:
    values = column.to_numpy(zero_copy_only=False)
    return np.where(np.isnan(values), np.inf, values)


def order_batch(batch: dict[str, pa.Array], columns: Sequence[str], typed: bool) -> Floats:
    """Return the order of a batch's rows by columns, shape (n, columns)."""
    return np.stack([order_values(batch[name], typed) for name in columns], axis=1)


def ranks(cells: NDArray[np.integer], values: Floats, words: Words) -> Integers:
    """Return the position of every row in the order of all rows: by cell, then by values, then by hash.

    Parameters
    ----------
    cells : ndarray, shape (n,)
        Cells of the attribute.
    values : ndarray, shape (n, k)
        Values of columns, the first one first.
    words : ndarray of uint64, shape (n, 2)
        Hashes of the rows.
    """
    order = np.lexsort((words[:, 1], words[:, 0], *values.T[::-1], cells))  # the last key decides first
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order))
    return found


def column_name(columns: Columns, rule: str = "") -> str:
    """Return the name of the column with the ids of a key."""
    return SEPARATOR.join(columns) + (f" as {rule}" if rule else "")


@dataclass(frozen=True)
class KeyPartition(Partition):
    """Partition that also returns the ids of some keys.

    Attributes
    ----------
    keys : tuple of tuple of str
        Columns of each key.
    rule : {"", "text", "number"}
        Rule by which ids are compared (`unit_ids`).
    """

    keys: tuple[Columns, ...] = field(default=(), compare=False)
    rule: str = field(default="", compare=False)

    @property
    def ids(self) -> dict[str, Columns]:
        """Columns of each key by the name of its id."""
        return {column_name(key, self.rule): key for key in self.keys}

    def columns(self) -> list[str]:
        present = super().columns()
        return [*present, *(name for name, key in self.ids.items() if set(key) <= set(present))]

    def has(self, column: str) -> bool:
        return all(super(KeyPartition, self).has(name) for name in self.ids.get(column, (column,)))

    def kinds(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        stored = super().kinds([name for name in columns if name not in self.ids])
        return {name: stored[name] if name in stored else pa.large_string() for name in columns}

    def batches(self, columns: Sequence[str], ids: str = "", domain: Domain | None = None) -> Iterator[dict[str, Any]]:
        """Yield the named columns and ids; the parameters are those of a partition.

        The ids of a key are a column of texts made from the columns of the key, which are read instead.
        """
        made = {name: key for name, key in self.ids.items() if name in columns}
        if not made:
            yield from super().batches(columns, ids, domain)
            return

        plain = [name for name in columns if name not in made]
        read = list(dict.fromkeys([*plain, *(name for key in made.values() for name in key)]))
        for batch in super().batches(read, ids if ids in plain else ""):
            yield {
                name: key_ids(batch, made[name], rule=self.rule) if name in made else batch[name] for name in columns
            }


def key_ids(batch: Mapping[str, Any], columns: Columns, nulls: bool = True, rule: str = "") -> pa.Array:
    """Return a text for each row that identifies the values of some columns, up to the collision of a hash.

    Parameters
    ----------
    batch : mapping of str to Array
    columns : tuple of str
    nulls : bool
        Whether a row without one of the values has none.
    rule : {"", "text", "number"}
        Rule by which ids are compared (`unit_ids`).
    """
    words, has = key_words(dict(batch), columns, "drop", rule)
    # the text has the hexadecimal digits of both words
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
    letters = np.stack([digits[octets >> 4], digits[octets & 15]], axis=2).reshape(len(words), -1)
    texts = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(letters.shape[1]), len(words), [None, pa.py_buffer(np.ascontiguousarray(letters).tobytes())]
    )
    found = texts.cast(pa.large_binary()).cast(pa.large_string())

    return found if not nulls or has.all() else pa.compute.if_else(pa.array(has), found, None)


def with_key_ids(table: Table, *keys: Columns | None, rule: str = "") -> Table:
    """Return a table whose partitions also return the ids of keys of several columns, or of all keys under a rule."""
    wanted = tuple(key for key in keys if key is not None and (rule or len(key) > 1))
    if not wanted:
        return table

    parts = []
    for partition in table.partitions:
        known = {item.name: getattr(partition, item.name) for item in fields(Partition)}
        earlier = partition.keys if isinstance(partition, KeyPartition) else ()
        parts.append(KeyPartition(**known, keys=tuple(dict.fromkeys([*earlier, *wanted])), rule=rule))
    return replace(table, partitions=tuple(parts))


def id_family(partition: Partition, unit: str) -> str:
    """Return the family of the ids in a column; for a key of several columns, those of its columns."""
    columns = partition.ids.get(unit, (unit,)) if isinstance(partition, KeyPartition) else (unit,)
    rule = partition.rule if isinstance(partition, KeyPartition) else ""
    return " and ".join(family(partition.kind(name), name, rule) for name in columns)


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
        words = tuple(np.concatenate(arrays) for arrays in zip(*(piece.words for piece in pieces), strict=True))
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

        `places` are the arrays in the file, the last with the codes; `ends` are the part's first row and the end of its
        rows.
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
        key = words[dealing.by] if through is None else through(words[dealing.by])[0]
        part = part_of(key, dealing.parts)
        order = np.argsort(part, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(part, minlength=dealing.parts))])
        stored = [file.append(array[order]) for array in (*words, codes.astype(dealing.width))]
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
        return cls([UnitMap(whole.words[rows], whole.units[rows]) for rows in np.split(order, ends)])

    def piece(self, part: int) -> UnitMap:
        """Return the map of a part."""
        return self.maps[part]

    def __sizeof__(self) -> int:
        return sum(piece.__sizeof__() for piece in self.maps)

    def __repr__(self) -> str:
        return "DividedMap(hidden)"
