"""Ids of keys as one column, which partitions return beside the columns of their files.

A key has such a column if it has several columns, or if the job states the rule by which its ids are compared.

The id of a row is a text with the hash of its values in the columns of the key, or null if one of them is missing. Rows
with equal values have equal ids, whatever the types of the files. A contribution bound treats the column as any other
unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from dpscale.base.arrow import pa
from dpscale.contributions.links import Columns, key_words
from dpscale.contributions.unit_ids import family
from dpscale.domain import Domain
from dpscale.records.table import Partition, Table

SEPARATOR = ", "


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
        return [*present, *(name for name, own in self.ids.items() if set(own) <= set(present))]

    def has(self, column: str) -> bool:
        return all(super(KeyPartition, self).has(one) for one in self.ids.get(column, (column,)))

    def kinds(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        own = super().kinds([name for name in columns if name not in self.ids])
        return {name: own[name] if name in own else pa.large_string() for name in columns}

    def batches(self, columns: Sequence[str], ids: str = "", domain: Domain | None = None) -> Iterator[dict[str, Any]]:
        """Yield the named columns and ids; the parameters are those of a partition."""
        made = {name: own for name, own in self.ids.items() if name in columns}
        if not made:
            yield from super().batches(columns, ids, domain)
            return

        plain = [name for name in columns if name not in made]
        read = list(dict.fromkeys([*plain, *(name for own in made.values() for name in own)]))
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
