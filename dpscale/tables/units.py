"""Bounded contributions: of every privacy unit at most k rows are counted.

Which rows of a unit stay is a function of that unit's own rows and nothing else: those with the smallest keyed-by-unit
hash of their encoded values. So adding or removing a unit changes at most k counted rows, however the rows are ordered
or partitioned. Units are told apart by 128 bits of hash, so that two units are never taken for one.

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
from dpscale.tables.count import encoded
from dpscale.tables.table import Partition

if TYPE_CHECKING:
    import pyarrow as pa

Words = NDArray[np.uint64]
KEYS = ("dpscale.unit.one", "dpscale.unit.two")
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
    domain: Domain, partitions: Sequence[Partition], unit: str, bucket: int, bucket_count: int
) -> dict[Partition, UnitRows]:
    """The rows whose unit falls into a bucket, by partition."""
    return {part: _partition_rows(domain, part, unit, bucket, bucket_count) for part in partitions}


def _partition_rows(domain: Domain, partition: Partition, unit: str, bucket: int, bucket_count: int) -> UnitRows:
    units = np.concatenate([_unit_words(batch[unit], unit) for batch in partition.batches([unit])] or [_none()])
    mine = np.flatnonzero(units[:, 0] % np.uint64(bucket_count) == bucket)
    hashes = [_value_words(codes) for codes, _, _ in encoded(domain, [partition], domain.names)]
    values = np.concatenate(hashes or [np.empty(0, dtype=np.uint64)])[mine]
    return UnitRows(units[mine], values ^ units[mine, 1], mine.astype(np.int64))


def _none() -> Words:
    return np.empty((0, 2), dtype=np.uint64)


def _unit_words(column: pa.Array, unit: str) -> Words:
    import pyarrow as pa

    if pa.types.is_integer(column.type):  # the same unit in files of different widths is one unit
        column = column.cast(pa.int64(), safe=False)
    values = column.to_pandas()
    if values.isna().any():
        raise DataError(f"data column {unit!r}", "a null", "a unit for every row", "fill it, or leave the row out")
    words = [pd.util.hash_array(values.to_numpy(), hash_key=f"{key:<16.16}") for key in KEYS]
    return np.stack(words, axis=1).astype(np.uint64)


def _value_words(codes: NDArray[np.unsignedinteger]) -> Words:
    """A 64 bit mix of each row's codes."""
    mixed = np.full(codes.shape[1], 0x9E3779B97F4A7C15, dtype=np.uint64)
    for row in codes:
        mixed = (mixed ^ row.astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def dropped(parts: Sequence[Mapping[Partition, UnitRows]], bound: int) -> dict[Partition, NDArray[np.int64]]:
    """Rows beyond the bound, by partition: all but the `bound` smallest hashes of every unit."""
    found = {part: rows for mapping in parts for part, rows in mapping.items()}
    sizes = [len(rows.places) for rows in found.values()]
    units = np.concatenate([rows.units for rows in found.values()])
    values = np.concatenate([rows.values for rows in found.values()])
    order = np.lexsort((values, units[:, 1], units[:, 0]))
    beyond = np.zeros(len(order), dtype=bool)
    beyond[order] = _rank_in_unit(units[order]) >= bound
    flags = np.split(beyond, np.cumsum(sizes)[:-1])
    return {part: rows.places[flag] for (part, rows), flag in zip(found.items(), flags, strict=True)}


def _rank_in_unit(units: Words) -> NDArray[np.int64]:
    """Rank of each row within its run of equal units."""
    starts = np.ones(len(units), dtype=bool)
    starts[1:] = (units[1:] != units[:-1]).any(axis=1)
    first = np.maximum.accumulate(np.where(starts, np.arange(len(units)), 0))
    return np.arange(len(units)) - first
