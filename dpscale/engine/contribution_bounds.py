"""Checks of rows over all partitions: contribution bounds of privacy units, and values that the domain refuses.

For a contribution bound, all partitions are read once, the rows are exchanged between workers by buckets of units, and
the result is one bit per row. For bounded totals of numbers they are read again, and the result is the changed values.
Refused values are searched after a task met one, or for `dpscale check domain`.

A shard has the rows of some partitions, dealt to buckets by the hash of their unit, in segments that are encrypted one
by one. The result of a bucket is one bit for each of its rows: whether it is counted.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dpscale.base.display import format_bytes
from dpscale.base.errors import PlanError, RefusedValue
from dpscale.contributions.links import id_family, link_ends
from dpscale.contributions.unit_ids import one_family, one_family_of_keys
from dpscale.contributions.unit_shards import (
    MOST_BUCKETS,
    ROW_BYTES,
    Dealing,
    Shard,
    UnitMap,
    composed,
    cut_ranges,
    deal,
    hash_passes,
)
from dpscale.contributions.unit_totals import (
    CHANGE_BYTES,
    ROW_BYTES as TOTAL_BYTES,
    TotalRequest,
    clip_totals,
    clipped_rows,
    take_unit_rows,
    unit_rows,
)
from dpscale.contributions.units import Bound, PeriodBound, bounded_rows, buckets, decided, marked, survey, together
from dpscale.counting.count import Dropped
from dpscale.domain import Domain
from dpscale.engine.base import Engine
from dpscale.engine.counting import dropped_rows, partition_groups
from dpscale.records.judging import Faults, Key, Tally, faults_of, refused_of, worst_of
from dpscale.records.table import Partition, Table
from dpscale.storage.scratch import Memory, Sealed, Use

SHARD_ROWS, SHARDS_A_WORKER = 1 << 22, 2  # rows of a shard, about; least number of shards for each worker
LEAST_SEGMENT, MOST_SEGMENT = 1 << 14, 1 << 19  # rows of a segment
SEGMENT_BYTES = 128  # bytes of a row while a segment is built: waiting, assigned and encrypted
MOST_PARTS = 50_000  # parts that are sent, one task each
LEAST_ROWS = 16  # mean rows of a segment in a bucket if more parts would be sent
BATCHES_A_WORKER = 8  # at least, if there are as many buckets
MARKED_AT_ONCE = 8  # shards per message, of half a megabyte each
KEYS_SENT = 1 << 17  # keys of 32 bytes in a message
SMALL = 1 << 20  # bytes of row masks that are sent with every task that uses them


def survey_units(engine: Engine, partitions: Sequence[Partition], unit: str) -> int:
    """Return an upper bound of the table's rows from the file footers.

    Raises DataError if the units of two files have types that cannot be compared.
    """
    files = {part.path: part for part in partitions}
    found = engine.map(survey, [(part, unit) for part in files.values()], "rows")
    one_family((family for _, family in found), unit, 'set unit_type = "text" or "number" in [data]')
    return sum(rows for rows, _ in found)


def rows_beyond(
    engine: Engine,
    domain: Domain,
    groups: Sequence[tuple[Partition, ...]],
    unit: str,
    bound: Bound,
    rows: int,
    memory: int,
    names: Sequence[str] | None = None,
    drop: bool = False,
    through: UnitMap | None = None,
) -> Dropped:
    """Return the rows to leave out of each partition, for partitions that have any.

    Of rows that are equal in the counted attributes, the first ones are counted, in the order of the groups.

    Parameters
    ----------
    engine : Engine
    domain : Domain
    groups : sequence of tuple of Partition
    unit : str
        Column of the privacy unit.
    bound : int or PeriodBound
        Largest number of rows of one unit; in a growing table, in a period, and of periods.
    rows : int
        Upper bound of the table's rows; it determines the number of buckets.
    memory : int
        Memory setting, in bytes.
    names : sequence of str, optional
        Attributes that are counted; only they are read. Default: all attributes of the domain.
    drop : bool
        Whether rows with no unit are left out too; otherwise they are an error.
    through : UnitMap, optional
        Map from the values of the unit's column to the unit.
    """
    # bytes of a worker's task, rows of a segment, partitions of each shard, number of buckets, and how many of these a
    # task treats together
    share = memory // (2 * engine.workers)
    segment = min(max(share // SEGMENT_BYTES, LEAST_SEGMENT), MOST_SEGMENT)
    pieces = _pieces(groups, rows, engine.workers)
    count = min(buckets(rows, share), max(segment // LEAST_ROWS, MOST_PARTS // len(pieces)) or 1, MOST_BUCKETS)
    each = max(together(rows, count, share, BATCHES_A_WORKER * engine.workers), -(-count * len(pieces) // MOST_PARTS))
    salt = secrets.randbits(64)
    lookup_chunks = engine.scatter(through.cut(KEYS_SENT), "units") if through is not None else []
    dealing = Dealing(
        domain=domain,
        unit=unit,
        names=tuple(names or domain.axis_names),
        drop=drop,
        through=None,
        buckets=count,
        together=each,
        salt=salt,
        segment=segment,
        periods=bound.weights if isinstance(bound, PeriodBound) else None,
    )
    segment_bytes = engine.workers * segment * SEGMENT_BYTES
    in_memory = engine.shares_memory and rows * ROW_BYTES + segment_bytes <= memory * 3 // 4

    with engine.scratch() as use:
        items = [(dealing, piece, in_memory, use, *lookup_chunks) for piece in pieces]
        shards = engine.persist(_assign_shard, items, "units")
        join = partial(decided, bound=bound)
        found = engine.exchange(partial(bounded_rows, bound=bound), shards, join, -(-count // each), "bound")
        # each task of the exchange returns the bits of all shards
        bits = [[of_task[number] for of_task in found] for number in range(len(shards))]
        parts = []
        for start in range(0, len(shards), MARKED_AT_ONCE):
            pairs = list(zip(shards, bits, strict=True))[start : start + MARKED_AT_ONCE]
            parts += engine.map(marked, pairs, "mark")

    return {partition: rows for part in parts for partition, rows in part.items()}


def _pieces(groups: Sequence[tuple[Partition, ...]], rows: int, workers: int) -> list[tuple[Partition, ...]]:
    """Return the partitions, in the order of the groups, in pieces of about one shard each.

    No piece has partitions of two groups.
    """
    wanted = max(-(-rows // SHARD_ROWS), SHARDS_A_WORKER * workers)
    each = max(wanted // max(len(groups), 1), 1)  # pieces of a group
    pieces = []
    for group in groups:
        step = -(-len(group) // each)
        pieces += [group[start : start + step] for start in range(0, len(group), step)]
    return pieces


def _assign_shard(
    dealing: Dealing, partitions: Sequence[Partition], in_memory: bool, use: Use, *through: UnitMap
) -> Shard:
    """Assign the rows of some partitions to buckets, in memory or in an encrypted file.

    `through` contains the pieces of the map from the unit column's values to units, if there is one.
    """
    if through:
        dealing = replace(dealing, through=UnitMap.joined(through))
    return deal(dealing, partitions, Memory() if in_memory else Sealed.new(use, worker_folder()))


def worker_folder() -> str | None:
    """Return the local directory of this worker for temporary files; None for the system's directory."""
    if "distributed" not in sys.modules:
        return None

    from distributed import get_worker

    try:
        return str(get_worker().local_directory)
    except (ValueError, AttributeError):  # not in a task of a worker
        return None


def clip_unit_totals(
    engine: Engine,
    request: TotalRequest,
    groups: Sequence[tuple[Partition, ...]],
    dropped: Dropped,
    memory: int,
    through: UnitMap | None = None,
) -> Dropped:
    """Return the rows to leave out and the values to change, so that totals of numbers by unit are bounded.

    A pass reads the units whose hashes are in its ranges, so that their rows fit the memory.

    Parameters
    ----------
    engine : Engine
    request : TotalRequest
    groups : sequence of tuple of Partition
    dropped : mapping of Partition to RowMask
        Rows that are left out because of the contribution bound.
    memory : int
        Memory setting, in bytes.
    through : UnitMap, optional
        Map from the values of the unit's column to the unit.
    """
    # several partitions may be parts of one file, whose bound counts once
    rows = sum(part.row_bound() for part in {part.path: part for group in groups for part in group}.values())
    _check_changes(rows * CHANGE_BYTES * len(request.numbers), memory)
    sent = send_dropped_rows(engine, dropped)
    lookup = engine.scatter(through.cut(KEYS_SENT), "units") if through is not None else []
    found: list[list[Any]] = [[] for _ in groups]  # changes of all ranges, for each group

    for ranges in hash_passes(rows * TOTAL_BYTES * (1 + len(request.numbers)), memory):
        of_pass = replace(request, ranges=ranges)
        items = [(of_pass, group, *dropped_rows(group, sent), *lookup) for group in groups]
        handles = engine.persist(unit_rows, items, "read-units")
        cuts = cut_ranges(ranges, 2 * engine.workers)
        take, join = partial(take_unit_rows, ranges=cuts), partial(clip_totals, numbers=request.numbers)
        for changes in engine.exchange(take, handles, join, len(cuts), "bound-totals"):
            for of_group, part in zip(found, changes.found, strict=True):
                of_group.append(part)

    clipped = dict(dropped)
    for group, changes in zip(groups, found, strict=True):
        clipped |= clipped_rows(group, request.numbers, changes, dropped)
    return clipped


def _check_changes(needed: int, memory: int) -> None:
    """Raise PlanError if the values that totals may change do not fit the memory; the error shows no number of rows.

    `needed` is the number of bytes for the changes, and `memory` their limit.
    """
    if needed > memory:
        raise PlanError("engine.memory", f"{format_bytes(memory)}, too little if many values are clipped",
                        f"{CHANGE_BYTES} bytes for each row and each number with per_unit",
                        "raise it, or leave per_unit out")  # fmt: skip


def send_dropped_rows(engine: Engine, dropped: Dropped) -> Mapping[Partition, Any]:
    """Return the dropped rows as arguments of many tasks: the values if they are small, otherwise handles."""
    if sum(map(sys.getsizeof, dropped.values())) <= SMALL:
        return dropped
    return dict(zip(dropped, engine.scatter(list(dropped.values()), "units"), strict=True))


def read_unit_lookup(
    engine: Engine, hops: Sequence[tuple[Table, str, str]], data: tuple[Table, str] | None = None
) -> UnitMap:
    """Return the map from keys to units through tables.

    A hop is a table, its key column and the column that the key is mapped to. `data` are the table and column whose
    values are keys of the first hop. Raises DataError for columns that cannot be compared.
    """
    referring = [] if data is None else _families(engine, *data)
    for table, key, unit in hops:
        _check_families([*_families(engine, table, key), *referring], key)
        referring = _families(engine, table, unit)
        _check_families(referring, unit)
    return composed([_hop(engine, *hop) for hop in hops])


def _check_families(families: Sequence[list[str]], column: str) -> None:
    """Raise DataError if the ids in some files cannot be compared; each file has a family for each column of a key."""
    for of_column in zip(*families, strict=True):
        one_family_of_keys(of_column, column)


def _families(engine: Engine, table: Table, column: str) -> list[list[str]]:
    """Return the families of ids in each file of a table, one for each column of a key."""
    files = {part.path: part for part in table.partitions}
    return [text.split(" and ") for text in engine.map(id_family, [(part, column) for part in files.values()], "rows")]


def _hop(engine: Engine, table: Table, key: str, unit: str) -> UnitMap:
    found = engine.map(link_ends, [(part, ((key,), (unit,)), "drop") for part in table.partitions], "units")
    words, units = (np.concatenate(of_column) for of_column in zip(*found, strict=True))
    return UnitMap.made(words, units)


WARNING = "PRIVATE, do not publish: this output shows values of records and counts them."


def collect_refusals(engine: Engine, table: Table, names: Sequence[str], met: RefusedValue) -> RefusedValue:
    """Return one error for all columns with refused values, or `met` if the search finds none.

    The error does not depend on which task first met a refused value.
    """
    domain, groups = engine.broadcast(table.domain, "refused"), partition_groups(table.partitions, engine.workers)
    found = engine.map(worst_of, [(group, domain, list(names)) for group in groups], "refused")
    return refused_of(table.domain, names, found) or met


def find_faults(engine: Engine, table: Table) -> dict[str, Any]:
    """Return every fault of a table, in the order of the domain, with its number of rows or files and some values.

    The result is private.
    """
    columns = table.domain.columns(table.domain.axis_names)
    if not any(map(table.partitions[0].has, columns)):
        table.require(columns)  # raises an error that explains why none exists
    domain, whole = engine.broadcast(table.domain, "check"), Faults()
    for faults in engine.map(faults_of, [(partition, domain) for partition in table.partitions], "check"):
        whole.join(faults)
    places = {name: place for place, name in enumerate(table.domain.axis_names)}
    ordered = sorted(whole.tallies.items(), key=lambda item: (places[item[0][0]], item[0][1]))
    faults = [_fault_record(table, key, tally) for key, tally in ordered]
    affected = len({fault["column"] for fault in faults})

    return {"private": True, "rows": whole.rows, "columns": len(columns), "columns_affected": affected,
            "faults": faults}  # fmt: skip


def _fault_record(table: Table, key: Key, tally: Tally) -> dict[str, Any]:
    """Return the record of a fault: attribute, column, fault, and the number of files, or the rows with examples."""
    name, fault = key
    record = {"attribute": name, "column": table.domain[name].column, "fault": fault}
    if tally.files:
        return {**record, "files": len(tally.files)}
    return {**record, "rows": tally.rows, "examples": sorted(tally.examples)}
