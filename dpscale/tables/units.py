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
from typing import TYPE_CHECKING, Any

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
CHANGE = np.int64(0x5DEECE66D1CE4E5B)
SHORT = 10**18
WHOLE = r"^(0|-?[1-9]\d{0,17})$"  # whole numbers below SHORT, in the only way to write them
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
    chosen = [UnitRows(np.empty((0, 2), np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64))]
    first = 0
    for batch in partition.batches(list(dict.fromkeys([unit, *names]))):
        units = _unit_words(batch[unit], unit)
        mine = np.flatnonzero(units[:, 0] % np.uint64(bucket_count) == bucket)
        values = _value_words(encode_batch(domain, batch, names))[mine] ^ units[mine, 1]
        chosen.append(UnitRows(units[mine], values, first + mine.astype(np.int64)))
        first += len(units)
    columns = zip(*((rows.units, rows.values, rows.places) for rows in chosen), strict=True)
    return UnitRows(*(np.concatenate(column) for column in columns))


def _unit_words(column: pa.Array, unit: str) -> Words:
    """128 bits of hash of every row's unit."""
    import pyarrow as pa

    rows: Any = slice(None)
    if is_text(column.type):
        column = column.dictionary_encode()
    if pa.types.is_dictionary(column.type):
        rows = column.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        column = pa.concat_arrays([column.dictionary, pa.nulls(1, column.dictionary.type)])  # -1 is a null's place
    if np.asarray(column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False), dtype=bool)[rows].any():
        raise DataError(f"data column {unit!r}", "a null", "a unit for every row", "fill it, or leave the row out")
    return _words(column, unit)[rows]


def _words(column: pa.Array, unit: str) -> Words:
    """Two words for each entry of a column without dictionary; any for a null."""
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_floating(column.type):
        column = _whole(column, unit)
    if types.is_integer(column.type):
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        if numbers.max(initial=0) < SHORT and numbers.min(initial=0) > -SHORT:
            return _number_words(numbers.astype(np.int64))
    try:
        return _text_words(column.cast(pa.large_string()).fill_null(""))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        remedy = "store the unit as whole numbers or texts"
        raise DataError(f"data column {unit!r}", f"type {column.type}", "whole numbers or texts", remedy) from None


def _whole(column: pa.Array, unit: str) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(column.to_numpy(zero_copy_only=False), from_pandas=True).cast(pa.int64())
    except pa.ArrowInvalid:
        field, remedy = f"data column {unit!r}", "store the unit as whole numbers or texts"
        raise DataError(field, "a unit that is no whole number", "whole numbers or texts", remedy) from None


def _text_words(texts: pa.Array) -> Words:
    """Hashes of texts; those that spell a short whole number have the words of the number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = np.asarray(texts.cast(pa.large_binary()).to_numpy(zero_copy_only=False), dtype=object)
    words = np.stack([pd.util.hash_array(values, hash_key=key, categorize=False) for key in KEYS], axis=1)
    spelled = np.asarray(pc.match_substring_regex(texts, WHOLE).to_numpy(zero_copy_only=False), dtype=bool)
    words[spelled] = _number_words(texts.filter(pa.array(spelled)).cast(pa.int64()).to_numpy())
    return words


def _number_words(numbers: NDArray[np.int64]) -> Words:
    """pandas mixes 64 bit numbers one to one, whatever the key; so the second word is that of a changed number."""
    return np.stack([pd.util.hash_array(numbers), pd.util.hash_array(numbers ^ CHANGE)], axis=1)


def _value_words(codes: Codes) -> Words:
    """A 64 bit mix of each row's codes."""
    mixed = np.full(codes.shape[1], 0x9E3779B97F4A7C15, dtype=np.uint64)
    for row in codes:
        mixed = (mixed ^ row.astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def dropped(parts: Sequence[Mapping[Partition, UnitRows]], bound: int) -> dict[Partition, NDArray[np.int64]]:
    """Rows beyond the bound, by partition, ascending: all but the `bound` smallest hashes of every unit."""
    by_partition = {part: rows for mapping in parts for part, rows in mapping.items()}
    if not by_partition:
        return {}
    ends = np.cumsum([len(rows.places) for rows in by_partition.values()])
    units = np.concatenate([rows.units for rows in by_partition.values()])
    values = np.concatenate([rows.values for rows in by_partition.values()])
    order = np.lexsort((values, units[:, 1], units[:, 0]))
    beyond = np.zeros(len(order), dtype=bool)
    beyond[order] = _rank_in_unit(units[order]) >= bound
    flags = np.split(beyond, ends[:-1])
    return {part: rows.places[flag] for (part, rows), flag in zip(by_partition.items(), flags, strict=True)}


def _rank_in_unit(units: Words) -> NDArray[np.int64]:
    """Rank of each row within its run of equal units."""
    starts = np.ones(len(units), dtype=bool)
    starts[1:] = (units[1:] != units[:-1]).any(axis=1)
    first = np.maximum.accumulate(np.where(starts, np.arange(len(units)), 0))
    return np.arange(len(units)) - first
