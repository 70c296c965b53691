"""Join of a table with the tables to which its rows refer, made while partitions are read and never stored.

A row of the base table has at most one row in every other table of the join, which is found by a key. So the join has
one row for each row of the base table, and it is a `Table` whose partitions return further columns. The contribution
bound, counts, checks and tasks of a table apply to it unchanged. A row whose key has no row is refused or left out.
If the rows of other tables do not fit the memory, a partition of the base table is read once for each part of their
keys (`lookups`), and returns the rows with keys of this part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from itertools import product
from typing import Any

import numpy as np

from dpscale.base.arrow import pa
from dpscale.base.numerics import Flags, NDArray
from dpscale.contributions.key_ids import KeyPartition, key_ids
from dpscale.contributions.links import Columns, key_words
from dpscale.contributions.lookups import CACHE, Lookup, in_part
from dpscale.contributions.unit_ids import family, one_family_of_keys
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from dpscale.records.column_values import column_of
from dpscale.records.encode import encode
from dpscale.records.searched import DROPPED
from dpscale.records.table import Table
from dpscale.records.where import RowMask

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
        present = super().columns()
        own = [name for name, source in self.join.own.items() if set(self.join.domain[source].columns) <= set(present)]
        others = [name for lookup in self.join.lookups for name in lookup.names]
        return [*present, *own, *others, *([PAIR] if self.join.pair else [])]

    def kinds(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        made = {PAIR: pa.large_string()} | dict.fromkeys(self.join.names, pa.uint32())
        own = super().kinds([name for name in columns if name not in made])
        return {name: own[name] if name in own else made[name] for name in columns}

    def types(self) -> dict[str, str]:
        return dict.fromkeys(self.join.names, "")

    def batches(self, columns: Sequence[str], ids: str = "", domain: Domain | None = None) -> Iterator[dict[str, Any]]:
        """Yield the named columns of the rows of the join: attributes as codes, other columns as they are."""
        join, first = self.join, 0
        own = {name: join.domain[join.own[name]] for name in columns if name in join.own}
        plain = [name for name in columns if name not in join.names and name != PAIR]
        read = [*plain, *(column for one in own.values() for column in one.columns)]
        read += [*(column for lookup in join.lookups for column in lookup.at), *(join.pair if PAIR in columns else ())]

        for batch in super().batches(list(dict.fromkeys(read)), ids if ids in plain else "", join.domain):
            found, stays = self._look_up(batch)
            found |= {name: _cells(one, batch) for name, one in own.items()}
            found |= {PAIR: key_ids(batch, join.pair, nulls=False)} if PAIR in columns else {}
            found |= {name: batch[name] for name in plain}
            rows = int(np.count_nonzero(stays))
            if self.without is not None:
                stays[stays] = ~self.without.within(first, rows)
            first += rows
            yield {name: _only(found[name], stays) for name in columns}

    def _look_up(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Flags]:
        """Return the codes of all lookups by attribute, and the mask of rows in the join and in the parts."""
        found: dict[str, Any] = {}
        rows = len(next(iter(batch.values())))
        known = [key_words(dict(batch), lookup.at, lookup.nulls) for lookup in self.join.lookups]
        parts = [
            has & in_part(words, part, lookup.parts)
            for lookup, (words, has), part in zip(self.join.lookups, known, self.part, strict=True)
        ]
        mine: Flags = reduce(np.logical_and, parts, np.ones(rows, bool))
        stays = mine.copy()

        for lookup, (words, _), part in zip(self.join.lookups, known, self.part, strict=True):
            codes, there = lookup.locate(CACHE.keyed(lookup, part), words, mine)
            found |= dict(zip(lookup.names, codes, strict=True))
            stays &= there

        return found, stays


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
    """Return a table whose partitions return the columns of the join, each for all parts of the keys."""
    parts = list(product(*(range(lookup.parts) for lookup in join.lookups)))
    base = [{one.name: getattr(partition, one.name) for one in fields(partition)} for partition in table.partitions]
    found = tuple(JoinedPartition(**own, join=join, part=part) for part in parts for own in base)
    return replace(table, partitions=found)


def check_families(link: str, ends: Sequence[tuple[Table, Columns]]) -> None:
    """Raise DataError if the keys of two ends of a link cannot be compared, by the first file of each."""
    for columns in zip(*(own for _, own in ends), strict=True):
        found = [family(table.partitions[0].kind(name), name) for (table, _), name in zip(ends, columns, strict=True)]
        one_family_of_keys(found, f"{columns[0]} of link {link}")
