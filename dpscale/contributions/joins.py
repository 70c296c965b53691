"""Join of a table with the tables to which its rows refer, made while partitions are read and never stored.

A row of the base table has at most one row in every other table of the join, which is found by a key. So the join has
one row for each row of the base table, and it is a `Table` whose partitions return further columns. The contribution
bound, counts, checks and tasks of a table apply to it unchanged. A row whose key has no row is refused or left out.
If the rows of other tables do not fit the memory, a partition of the base table is read once for each part of their
keys, and returns the rows with keys of this part.

*Lookups.* The row with a key, or the number of its children, is looked up for rows that refer to it. The rows are read
into memory, and the rows of the tables to which they refer are looked up first. If they do not fit the memory, keys are
divided into parts by a hash, and one part is read at a time. Each process keeps the parts that it used last. The
results are exact and therefore private.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from threading import RLock
from typing import Any

import numpy as np

from dpscale.base.arrow import pa
from dpscale.base.errors import DataError
from dpscale.base.numerics import Flags, NDArray, Words
from dpscale.contributions.links import Columns, KeyPartition, key_ids, key_words, link_ends, one_a_key, row_words
from dpscale.contributions.unit_ids import family, one_family_of_keys
from dpscale.contributions.unit_shards import UnitMap, composed, places
from dpscale.counting.count import encode_batch
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from dpscale.records.column_values import column_of
from dpscale.records.encode import Codes, code_type, encode
from dpscale.records.searched import DROPPED
from dpscale.records.table import Table
from dpscale.records.where import RowMask

KEY_BYTES, BUILDING = 16, 6  # bytes of a key, and copies of a row while the rows of a part are sorted
MOST_PARTS = 1 << 10  # parts of the keys, for each of which the base table is read once
COUNT, CUT, EXCESS = "count", "cut", "excess"
REACH = 4  # children beyond the bound are counted up to so many times the bound


@dataclass(frozen=True, eq=False)
class KeyedCodes:
    """Codes of the rows of a table by their keys; the repr shows no array.

    Attributes
    ----------
    words : ndarray of uint64, shape (n, 2)
        Hashes of the keys, sorted and unique.
    codes : ndarray of unsigned integers, shape (attributes, n)
    whole : ndarray of bool, shape (n,)
        Whether the row has a row in every table to which it refers.
    """

    words: Words = field(repr=False)
    codes: Codes = field(repr=False)
    whole: Flags = field(repr=False)

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.codes.nbytes + self.whole.nbytes


def in_part(words: Words, part: int, parts: int) -> Flags:
    """Return which keys are in a part."""
    return np.asarray(words[:, 1] % np.uint64(parts) == part) if parts > 1 else np.ones(len(words), bool)


@dataclass(frozen=True, eq=False)
class RowLookup:
    """Lookup of the row of another table.

    Attributes
    ----------
    link : str
        Name of the link, for messages.
    at, key : tuple of str
        Columns with the key in the referring row and in the table.
    table : Table
    source : mapping of str to str
        Attribute of the table by attribute of the join.
    policies : tuple of str
        For referring rows without a key, keys without a row, rows without a key, and rows with one key.
    onward : tuple of RowLookup
        Lookups of the rows of the table themselves.
    parts : int
        Number of parts of the keys.
    token : str
        Name among all lookups of this machine.
    memory : int
        Bytes that a process may keep.
    """

    link: str
    at: Columns
    key: Columns
    table: Table
    source: Mapping[str, str]
    policies: tuple[str, str, str, str] = ("reject", "reject", "reject", "keep")
    onward: tuple[RowLookup, ...] = ()
    parts: int = 1
    token: str = ""
    memory: int = 1 << 30

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.source, *(name for lookup in self.onward for name in lookup.names))

    @property
    def nulls(self) -> str:
        return self.policies[0]

    def read(self, part: int) -> KeyedCodes:
        """Read the rows of a part of the keys, one row per key: the one with the smallest hash of its values.

        The hash covers all attributes, and then the keys of other tables, so a key finds the same row in all joins. The
        policy for duplicates may refuse a second row with one key instead.
        """
        words, values, wanted, references = self._rows(part)
        first = one_a_key(words, values, self.policies[3])
        whole = np.ones(len(first), bool)
        codes = [wanted[:, first]]

        # the rows to which these rows refer
        for lookup, (keys, has_key) in zip(self.onward, references, strict=True):
            found, there = _looked_up(lookup, keys[first], has_key[first])
            codes.append(found)
            whole &= there
        return KeyedCodes(words[first], _stacked(codes, len(first)), whole)

    def locate(self, keyed: KeyedCodes, words: Words, mine: Flags) -> tuple[Codes, Flags]:
        """Return the codes of the rows that keys name, and which keys do; refuse keys of no row unless dropped.

        `mine` marks the keys to look up, of those in `words`; codes of the others mean nothing. `keyed` is the part of
        the table with these keys (`read`). A row counts as none if a row to which it refers is missing.
        """
        # the place of each key in `keyed`, or −1
        at = places(keyed.words, words)
        if self.policies[1] != "drop" and (mine & (at < 0)).any():
            raise DataError(f"link {self.link}", "a key without a row", "the key of a row at both ends",
                            'fix the data, or set dangling = "drop"')  # fmt: skip

        there = mine & (at >= 0)
        there[there] = keyed.whole[at[there]]
        if not len(keyed.words):
            # without keys there is no row from which codes could be taken
            return np.zeros((len(keyed.codes), len(words)), keyed.codes.dtype), there
        return keyed.codes.take(np.maximum(at, 0), axis=1), there

    def _rows(self, part: int) -> tuple[Words, Words, Codes, list[tuple[Words, Flags]]]:
        """Return keys, hashes of the values, codes and the keys of onward lookups of the rows of a part.

        Two hashes order rows with equal keys: that of the values, and one that includes the keys of onward lookups for
        ties. They are of all attributes with listed values (`listed`), so that the order does not depend on the
        attributes that this join takes (`source`). Attributes that are searched have no fixed codes.
        """
        domain = self.table.domain
        listed = [name for name in domain.names if domain[name].search is None]
        names = list(dict.fromkeys([*listed, *self.source.values()]))
        taken = [names.index(name) for name in self.source.values()]
        width = code_type(max((domain[name].code_count for name in self.source.values()), default=2))
        columns = [*self.key, *(name for lookup in self.onward for name in lookup.at), *domain.columns(names)]
        words, values, codes = [_no_words()], [_no_words()], [np.zeros((len(taken), 0), width)]
        references: list[list[tuple[Words, Flags]]] = [[(_no_words(), np.ones(0, bool))] for _ in self.onward]

        for partition in self.table.partitions:
            for batch in partition.batches(list(dict.fromkeys(columns))):
                keys, has_key = key_words(batch, self.key, self.policies[2])
                every, gone = encode_batch(domain, batch, names)
                # rows without a key, of other parts, or that the domain drops are left out
                stays = has_key & in_part(keys, part, self.parts) & (True if gone is None else ~gone)
                others = [key_words(batch, lookup.at, lookup.nulls) for lookup in self.onward]
                hashed = every[: len(listed)].T[stays].astype(np.int32)
                ties = row_words(hashed, *(found[stays] for found, _ in others))
                words.append(keys[stays])
                values.append(np.stack([row_words(hashed)[:, 0], ties[:, 0]], axis=1))
                codes.append(every[taken][:, stays].astype(width))
                for kept, (found, known) in zip(references, others, strict=True):
                    kept.append((found[stays], known[stays]))

        joined = [
            (np.concatenate([found for found, _ in batches]), np.concatenate([known for _, known in batches]))
            for batches in references
        ]
        return np.concatenate(words), np.concatenate(values), np.concatenate(codes, axis=1), joined


@dataclass(frozen=True, eq=False)
class CountLookup:
    """Number of rows of a child table that refer to a row, whether they exceed a bound, and by how many.

    Attributes
    ----------
    link : str
        Name of the link, for messages.
    at, key : tuple of str
        Columns with the key in the row that is counted for, and in the child table.
    table : Table
        The child table, or a table of pairs.
    wanted : tuple of (str, str)
        Attributes of the join: the name of each, and "count" (at most the bound), "cut" (whether there are more) or
        "excess" (the number beyond the bound, at most `REACH` − 1 times the bound).
    bound : int
    policies : tuple of str
        For rows without a key, and for children without one.
    far : tuple of RowLookup
        The other end of pairs: only pairs with a row there count, each once.
    through : tuple of (Table, tuple of str, tuple of str)
        Tables between the child and the counting row: each with its key, and the columns with the key of the next one.
    """

    link: str
    at: Columns
    key: Columns
    table: Table
    wanted: tuple[tuple[str, str], ...]
    bound: int
    policies: tuple[str, str] = ("reject", "reject")
    far: tuple[RowLookup, ...] = ()
    through: tuple[tuple[Table, Columns, Columns], ...] = ()
    parts: int = 1
    token: str = ""
    memory: int = 1 << 30

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.wanted)

    @property
    def nulls(self) -> str:
        return self.policies[0]

    def read(self, part: int) -> KeyedCodes:
        """Count the children of the keys of a part, at most REACH times the bound of each.

        `hops` maps a child's key over further tables to the key of the row that is counted for.
        """
        domain, found, pairs = self.table.domain, [_no_words()], [np.empty((0, 4), np.uint64)]
        dropping = [name for name in domain.names if domain[name].drops and domain[name].search is None]
        columns = [*self.key, *(name for lookup in self.far for name in lookup.at), *domain.columns(dropping)]
        hops = composed([_hop(*step) for step in self.through]) if self.through else None

        for partition in self.table.partitions:
            for batch in partition.batches(list(dict.fromkeys(columns))):
                own, stays = key_words(batch, self.key, self.policies[1])
                # the child's own key; `own` becomes the key of the row that is counted for
                near = own
                if hops is not None:
                    own, missing = hops(own)
                    stays &= ~missing

                stays &= in_part(own, part, self.parts)
                # children whose values the domain drops do not count
                if dropping:
                    gone = encode_batch(domain, batch, dropping)[1]
                    stays &= True if gone is None else ~gone

                # the other end of a pair must have a row; both ends identify the link
                for lookup in self.far:
                    words, has = key_words(batch, lookup.at, lookup.nulls)
                    stays &= _looked_up(lookup, words, has)[1]
                    pairs.append(np.concatenate([near, words], axis=1)[stays])

                found.append(own[stays])

        words = np.concatenate(found)
        if self.far:  # a repeated pair is one link
            first = np.unique(np.concatenate(pairs), axis=0, return_index=True)[1]
            words = words[first]

        keys, counts = np.unique(words, axis=0, return_counts=True)
        # counts are codes, so they end at REACH times the bound
        most = REACH * self.bound
        codes = np.minimum(counts, most).astype(code_type(most + 1))[None]
        return KeyedCodes(np.ascontiguousarray(keys), codes, np.ones(len(keys), bool))

    def locate(self, keyed: KeyedCodes, words: Words, mine: Flags) -> tuple[Codes, Flags]:
        """Return the wanted attributes of rows by their keys, shape (wanted, rows), and the flags `mine` unchanged.

        `keyed` has the number of children of each key, at most REACH times the bound, since a code needs a largest
        value. A key that is not in it has no children.
        """
        at = places(keyed.words, words)
        degrees = np.append(keyed.codes[0], keyed.codes.dtype.type(0))[at]  # −1 is the last one: no children
        counted = np.minimum(degrees, self.bound)
        found = {COUNT: counted, CUT: degrees > self.bound, EXCESS: degrees - counted}
        return np.stack([found[kind].astype(degrees.dtype) for _, kind in self.wanted]), mine


Lookup = RowLookup | CountLookup


def _hop(table: Table, key: Columns, unit: Columns) -> UnitMap:
    """Return the map from the keys of a table to the keys in other columns (`unit`); rows without one are left out."""
    found = [link_ends(partition, (key, unit), "drop") for partition in table.partitions]
    words, units = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    return UnitMap.made(words, units)


def _no_words() -> Words:
    return np.empty((0, 2), np.uint64)


def _stacked(codes: Sequence[Codes], rows: int) -> Codes:
    """Return the codes of several lookups as one array of the largest width."""
    width = max((code.dtype for code in codes), key=lambda kind: kind.itemsize, default=np.dtype(np.uint8))
    return np.concatenate([np.zeros((0, rows), width), *(code.astype(width) for code in codes)])


def _looked_up(lookup: Lookup, words: Words, has: Flags) -> tuple[Codes, Flags]:
    """Return the codes of keys and the mask of those with a row, part by part; `has` marks the rows that have a key."""
    found, there = np.zeros((len(lookup.names), len(words)), np.uint8), np.zeros(len(words), bool)
    for part in range(lookup.parts):
        codes, matched = lookup.locate(CACHE.keyed(lookup, part), words, has & in_part(words, part, lookup.parts))
        found = np.where(matched, codes, found)
        there |= matched
    return found, there


class KeyedCache:
    """Parts of lookups that this process used last, up to the memory of the lookup that is read."""

    def __init__(self) -> None:
        self._parts: OrderedDict[tuple[str, int], KeyedCodes] = OrderedDict()
        self._lock = RLock()

    def __repr__(self) -> str:
        return "KeyedCache(hidden)"

    def keyed(self, lookup: Lookup, part: int) -> KeyedCodes:
        """Return a part of a lookup, which is read unless it is kept; one thread reads at a time."""
        with self._lock:
            known = self._parts.get((lookup.token, part))
            if known is None:
                known = lookup.read(part)
                self._parts[lookup.token, part] = known
            self._parts.move_to_end((lookup.token, part))
            while len(self._parts) > 1 and sum(kept.nbytes for kept in self._parts.values()) > lookup.memory:
                self._parts.popitem(last=False)
            return known

    def clear(self) -> None:
        """Forget all parts."""
        with self._lock:
            self._parts.clear()


CACHE = KeyedCache()


def parts_of(rows: int, attributes: int, memory: int) -> int:
    """Return into how many parts the keys of so many rows are divided, so that one fits the memory while it is read."""
    return min(max(-(-rows * (KEY_BYTES + 4 * attributes) * BUILDING // max(memory, 1)), 1), MOST_PARTS)


def new_token() -> str:
    """Return a name for a lookup, which no other lookup has."""
    return secrets.token_hex(8)


PAIR = "(pair)"  # column with an id of the keys of a row, for tables of pairs


@dataclass(frozen=True, eq=False)
class Join:
    """Description of a join, which every partition of it has.

    Attributes
    ----------
    domain : Domain
        Domain of the base table.
    own : mapping of str to str
        Attribute of the base table by attribute of the join.
    lookups : tuple of Lookup
    pair : tuple of str
        Columns whose values together are the id of a pair; empty if the column PAIR is not read.
    """

    domain: Domain
    own: Mapping[str, str]
    lookups: tuple[Lookup, ...]
    pair: Columns = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Attributes of the join."""
        return (*self.own, *(name for lookup in self.lookups for name in lookup.names))


@dataclass(frozen=True)
class JoinedPartition(KeyPartition):
    """Partition of the base table that returns the columns of a join as codes.

    Attributes
    ----------
    join : Join
    part : tuple of int
        Part of the keys of each lookup; only rows with keys in these parts are returned.
    without : RowMask, optional
        Rows of the join that are left out.
    """

    join: Join = field(default=Join(Domain({"rows": 2}), {}, ()), compare=False, repr=False)
    part: tuple[int, ...] = ()
    without: RowMask | None = field(default=None, compare=False, repr=False)

    @property
    def order(self) -> tuple[Any, ...]:
        return (self.part, *super().order)

    def columns(self) -> list[str]:
        """Return the columns of the partition: those of the base table, of the lookups, and PAIR for tables of pairs.

        Attributes of the base table are omitted if the file lacks one of their columns.
        """
        present = super().columns()
        own = [name for name, source in self.join.own.items() if set(self.join.domain[source].columns) <= set(present)]
        looked_up = [name for lookup in self.join.lookups for name in lookup.names]
        return [*present, *own, *looked_up, *([PAIR] if self.join.pair else [])]

    def kinds(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        made = {PAIR: pa.large_string()} | dict.fromkeys(self.join.names, pa.uint32())
        stored = super().kinds([name for name in columns if name not in made])
        return {name: stored[name] if name in stored else made[name] for name in columns}

    def types(self) -> dict[str, str]:
        return dict.fromkeys(self.join.names, "")

    def batches(self, columns: Sequence[str], ids: str = "", domain: Domain | None = None) -> Iterator[dict[str, Any]]:
        """Yield the named columns of the rows of the join: attributes as codes, other columns as they are.

        `own` are the attributes of the base table among them. `first` is the number of the rows of the join before the
        batch, because `without` numbers the rows that are left out among these.
        """
        join, first = self.join, 0
        own = {name: join.domain[join.own[name]] for name in columns if name in join.own}
        plain = [name for name in columns if name not in join.names and name != PAIR]
        # columns of the base table: as they are, of attributes, and of the keys of lookups
        read = [*plain, *(column for attribute in own.values() for column in attribute.columns)]
        read += [*(column for lookup in join.lookups for column in lookup.at), *(join.pair if PAIR in columns else ())]

        for batch in super().batches(list(dict.fromkeys(read)), ids if ids in plain else "", join.domain):
            found, stays = self._look_up(batch)
            found |= {name: _cells(attribute, batch) for name, attribute in own.items()}
            found |= {PAIR: key_ids(batch, join.pair, nulls=False)} if PAIR in columns else {}
            found |= {name: batch[name] for name in plain}
            rows = int(np.count_nonzero(stays))
            if self.without is not None:
                # rows beyond the bound, numbered among the rows of the join
                stays[stays] = ~self.without.within(first, rows)
            first += rows
            yield {name: _only(found[name], stays) for name in columns}

    def _look_up(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Flags]:
        """Return the codes of all lookups by attribute, and the mask of rows in the join.

        A lookup of a large table is divided into parts by the key. Only rows whose keys are in the part of this task
        are looked up, and a row whose key is in no row of a looked-up table is not in the join.
        """
        codes_by_name: dict[str, Any] = {}
        rows = len(next(iter(batch.values())))
        keys = [key_words(dict(batch), lookup.at, lookup.nulls) for lookup in self.join.lookups]

        in_parts: Flags = np.ones(rows, bool)
        for lookup, (words, has_key), part in zip(self.join.lookups, keys, self.part, strict=True):
            in_parts &= has_key & in_part(words, part, lookup.parts)

        joined = in_parts.copy()
        for lookup, (words, _), part in zip(self.join.lookups, keys, self.part, strict=True):
            codes, matched = lookup.locate(CACHE.keyed(lookup, part), words, in_parts)
            codes_by_name |= dict(zip(lookup.names, codes, strict=True))
            joined &= matched

        return codes_by_name, joined


def _cells(attribute: Attribute, batch: Mapping[str, Any]) -> NDArray[Any]:
    """Return the codes of an attribute of the base table; rows that its domain file drops are marked as such."""
    if not attribute.drops:
        return encode(attribute, column_of(attribute, batch))
    gone = np.zeros(len(next(iter(batch.values()))), bool)
    codes = encode(attribute, column_of(attribute, batch), gone)
    return np.where(gone, DROPPED, codes.astype(np.int64)) if gone.any() else codes


def _only(column: Any, stays: Flags) -> Any:
    """Return the marked rows of a column."""
    if stays.all():
        return column
    return column[stays] if isinstance(column, np.ndarray) else column.filter(pa.array(stays))


def joined_table(table: Table, join: Join) -> Table:
    """Return a table whose partitions return the columns of the join.

    A partition of the base table becomes one for each combination of parts of the lookups' keys.
    """
    parts = list(product(*(range(lookup.parts) for lookup in join.lookups)))
    base = [{item.name: getattr(partition, item.name) for item in fields(partition)} for partition in table.partitions]
    joined = tuple(JoinedPartition(**values, join=join, part=part) for part in parts for values in base)
    return replace(table, partitions=joined)


def check_families(link: str, ends: Sequence[tuple[Table, Columns]]) -> None:
    """Raise DataError if the keys of two ends of a link cannot be compared, by the first file of each."""
    for columns in zip(*(key for _, key in ends), strict=True):
        found = [family(table.partitions[0].kind(name), name) for (table, _), name in zip(ends, columns, strict=True)]
        one_family_of_keys(found, f"{columns[0]} of link {link}")
