"""Earlier implementation of the contribution bound, as an oracle: the hashes of all rows are sorted, and each bucket
reads all data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.errors import DataError
from dpscale.base.numerics import Words
from dpscale.contributions.unit_ids import Identities, identities
from dpscale.contributions.unit_shards import UnitMap
from dpscale.counting.count import encode_batch
from dpscale.domain import Domain
from dpscale.records.encode import Codes
from dpscale.records.table import Partition

ROW_BYTES = 64


@dataclass(frozen=True)
class UnitRows:
    """Rows of some partitions in one bucket of units: unit (two words), value hash and position of each row.

    Rows without a unit (`without_unit`) are listed for all buckets with the first one.
    """

    units: Words
    values: Words
    places: NDArray[np.int64]
    without_unit: NDArray[np.int64]


NONE = UnitRows(np.empty((0, 2), np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))


def count_buckets(rows: int, memory: int) -> int:
    """Return the number of buckets for which the hashes of their rows fit into the memory."""
    return max(1, -(-rows * ROW_BYTES // max(memory, 1)))


def unit_rows(
    domain: Domain,
    partitions: Sequence[Partition],
    unit: str,
    bucket: int,
    bucket_count: int,
    names: Sequence[str] | None = None,
    drop: bool = False,
    through: UnitMap | None = None,
) -> dict[Partition, UnitRows]:
    """Return the rows whose unit is in a bucket by partition; rows are compared by the named attributes, or by all.

    With `drop`, rows without a unit are excluded instead of raising DataError; `through` maps ids in the column to
    units.
    """
    names = tuple(names or domain.names)
    return {
        part: _partition_rows(domain, part, unit, bucket, bucket_count, names, drop, through) for part in partitions
    }


def _partition_rows(
    domain: Domain,
    partition: Partition,
    unit: str,
    bucket: int,
    bucket_count: int,
    names: Sequence[str],
    drop: bool,
    through: UnitMap | None,
) -> UnitRows:
    chosen, first = [NONE], 0
    for batch in partition.batches(list(dict.fromkeys([unit, *names]))):
        codes, gone = encode_batch(domain, batch, names)
        owners = _find_owners(batch[unit], unit, through)
        if owners.missing.any() and not drop:
            raise DataError(f"data column {unit!r}", "a null", "a unit for every row",
                            'fill it, or drop such rows with unit_nulls = "drop" in [data]')  # fmt: skip
        stays = ~owners.missing & (owners.words[:, 0] % np.uint64(bucket_count) == bucket)
        mine = np.flatnonzero(stays if gone is None else stays & ~gone)
        without_unit = first + np.flatnonzero(owners.missing) if bucket == 0 else NONE.without_unit
        values = hash_values(codes)[mine] ^ owners.words[mine, 1]
        chosen.append(UnitRows(owners.words[mine], values, first + mine.astype(np.int64), without_unit))
        first += len(stays)
    columns = zip(*((rows.units, rows.values, rows.places, rows.without_unit) for rows in chosen), strict=True)
    return UnitRows(*(np.concatenate(column) for column in columns))


def _find_owners(column: Any, unit: str, through: UnitMap | None) -> Identities:
    """Return the units of the rows of a column."""
    own = identities(column, unit)
    if through is None:
        return own
    words, missing = through(own.words)
    return Identities(words, missing | own.missing)


def hash_values(codes: Codes) -> Words:
    """Return a 64-bit hash of the codes of each row."""
    mixed = np.full(codes.shape[1], 0x9E3779B97F4A7C15, dtype=np.uint64)
    for row in codes:
        mixed = (mixed ^ row.astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def find_dropped_rows(parts: Sequence[Mapping[Partition, UnitRows]], bound: int) -> dict[Partition, NDArray[np.int64]]:
    """Return the rows without a unit or beyond the bound by partition, ascending; the `bound` smallest hashes of a
    unit stay.
    """
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
    gone = {part: rows.places[flag] for (part, rows), flag in zip(by_partition.items(), flags, strict=True)}
    return {part: np.sort(np.concatenate([gone[part], rows.without_unit])) for part, rows in by_partition.items()}


def _rank_in_unit(units: Words) -> NDArray[np.int64]:
    """Return the rank of each row within its run of equal units."""
    starts = np.ones(len(units), dtype=bool)
    starts[1:] = (units[1:] != units[:-1]).any(axis=1)
    first = np.maximum.accumulate(np.where(starts, np.arange(len(units)), 0))
    return np.arange(len(units)) - first


def rows_beyond(domain, groups, unit, bound, rows, memory, names=None, drop=False, through=None):
    """Return the rows to exclude by partition, ascending."""
    count, by_partition = count_buckets(rows, memory // 2), {}
    for bucket in range(count):
        parts = [unit_rows(domain, group, unit, bucket, count, names, drop, through) for group in groups]
        for part, places in find_dropped_rows(parts, bound).items():
            by_partition.setdefault(part, []).append(places)
    return {part: np.sort(np.concatenate(places)) for part, places in by_partition.items()}
