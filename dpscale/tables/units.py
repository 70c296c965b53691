"""Bounded contributions: of every privacy unit at most k rows are counted.

Which rows of a unit stay is a function of that unit's own rows and nothing else: those with the smallest keyed-by-unit
hash of their encoded values. So adding or removing a unit changes at most k counted rows, however the rows are ordered
or partitioned. Units are told apart by 128 bits of hash, so that two units are never taken for one.

A unit is known by its text: 7 in an integer column of any width, in a dictionary, in a path or in a CSV is one unit.
Hashes are taken bucket by bucket over the units, so that memory follows the setting and not the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpscale.domain import Domain
from dpscale.errors import DataError
from dpscale.tables.count import encode_batch
from dpscale.tables.encode import Codes
from dpscale.tables.numbers import is_text
from dpscale.tables.table import Partition

if TYPE_CHECKING:
    import pyarrow as pa

Words = NDArray[np.uint64]
KEYS = ("dpscale.unit.one", "dpscale.unit.two")  # 16 bytes each, as SipHash takes
ROW_BYTES = 64


@dataclass(frozen=True)
class UnitRows:
    """Rows of some partitions in one bucket of units: unit (two words), value hash, and where each row stands."""

    units: Words
    values: Words
    places: NDArray[np.int64]


def buckets(rows: int, memory: int) -> int:
    """How many buckets keep the rows' hashes within the memory."""
    return max(1, -(-rows * ROW_BYTES // max(memory, 1)))


def unit_rows(
    domain: Domain,
    partitions: Sequence[Partition],
    unit: str,
    bucket: int,
    bucket_count: int,
    names: Sequence[str] | None = None,
) -> dict[Partition, UnitRows]:
    """The rows whose unit falls into a bucket, by partition; rows are told apart by the named attributes, or all."""
    names = tuple(names or domain.names)
    return {part: _partition_rows(domain, part, unit, bucket, bucket_count, names) for part in partitions}


def _partition_rows(
    domain: Domain, partition: Partition, unit: str, bucket: int, bucket_count: int, names: Sequence[str]
) -> UnitRows:
    found = [UnitRows(np.empty((0, 2), np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64))]
    first = 0
    for batch in partition.batches(list(dict.fromkeys([unit, *names]))):
        units = _unit_words(batch[unit], unit)
        mine = np.flatnonzero(units[:, 0] % np.uint64(bucket_count) == bucket)
        values = _value_words(encode_batch(domain, batch, names))[mine] ^ units[mine, 1]
        found.append(UnitRows(units[mine], values, first + mine.astype(np.int64)))
        first += len(units)
    columns = zip(*((rows.units, rows.values, rows.places) for rows in found), strict=True)
    return UnitRows(*(np.concatenate(column) for column in columns))


def _unit_words(column: pa.Array, unit: str) -> Words:
    """128 bits of hash of every unit."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    texts = _unit_texts(column.dictionary, unit)
    if column.indices.null_count or (texts.null_count and column.is_null().true_count):
        raise _no_unit(unit)
    values = np.asarray(texts.to_numpy(zero_copy_only=False), dtype=object)
    words = [pd.util.hash_array(values, hash_key=key, categorize=False) for key in KEYS]
    return np.stack(words, axis=1).astype(np.uint64)[column.indices.to_numpy(zero_copy_only=False)]
