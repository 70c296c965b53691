"""Counting passes over the data, planned under the memory setting.

A pass reads every partition once and counts one group of attribute sets by a cover of them (see `counting.cover`). Its
counters are divided into shards, so that the sums and the measurements that follow are several tasks. During a pass the
memory is about (workers + FACTOR) times the counters of the pass; of FACTOR, one is for the sum and two are for the
joint tables.

A task counts for about a second if its partial counts are small enough to wait for their sum; otherwise it counts a
worker's whole share. All passes together have at most TASKS tasks. Workers share the attribute sets instead of the
rows, and each reads all rows, if the partitions are too few or too unequal to occupy every worker (for example one
large file), or if there are more counters than rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Integers
from dpscale.counting.count import Layout, count_by
from dpscale.counting.cover import ROWS, SPARE_CELLS, Cover, Program, Saving, guess_rows, plan_cover, total
from dpscale.counting.grouped import count_groups
from dpscale.counting.weighted import PeriodWeights, count_weighted
from dpscale.domain import Domain
from dpscale.engine.base import Engine
from dpscale.engine.graphs import FAN_IN, merge_groups, pieces_of, split_group, useful_tasks
from dpscale.records.table import Partition
from dpscale.records.where import RowMask

COUNTER_BYTES = 8  # of an int64
FACTOR = 5  # copies of the counters of a pass in memory, besides one for each worker
SHARDS = 16  # shards of a pass; at least one per worker, because workers measure shards
TASKS = 100_000  # of all passes together
TASK_SECONDS = 1.0  # predicted time of a counting task
WAITING = 16  # partial counts that may wait for their sum if tasks are short
SENT = 5_000_000  # sets in the requests of all tasks of a pass
SMALL = 1 << 26  # bytes that a task may sum at once
SHARING_GAIN = 0.9  # largest ratio of times at which sharing the sets replaces sharing the rows
READ_NANOSECONDS = 4.0  # to read and encode a value
OPEN_NANOSECONDS = 1e6  # to open a partition
CLEAR_NANOSECONDS = 3.0  # to clear a counter and to sum it; counters of shared sets need no sum


@dataclass(frozen=True)
class Pass:
    """One reading of the table.

    Attributes
    ----------
    shards : tuple of Layout
        Layouts that are counted together.
    spare : int
        Largest number of cells of joint tables in a task.
    most : int
        Largest number of counting tasks.
    """

    shards: tuple[Layout, ...]
    spare: int = SPARE_CELLS
    most: int = TASKS

    @property
    def sets(self) -> tuple[AttributeSet, ...]:
        """Attribute sets of all shards."""
        return tuple(attributes for shard in self.shards for attributes in shard.sets)

    @property
    def cells(self) -> int:
        """Number of counters of all shards."""
        return sum(int(shard.offsets[-1]) for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Upper bound of the memory of a counting task: all counters and the joint tables that it counts first."""
        return COUNTER_BYTES * (self.cells + self.spare)

    @property
    def pieces(self) -> list[range]:
        """Ranges of shards that the same tasks sum; small shards share a range, which needs fewer tasks."""
        needed = -(-COUNTER_BYTES * self.cells * FAN_IN // max(SMALL, 1))
        return pieces_of(len(self.shards), max(min(needed, len(self.shards)), 1))

    def cover(self, rows: int) -> Cover:
        """Return the cover by which a task of about `rows` rows counts the sets."""
        return plan_cover(self.shards[0].domain, self.sets, rows, self.spare)


def plan_passes(domain: Domain, sets: Sequence[AttributeSet], memory: int, workers: int) -> list[Pass]:
    """Divide the sets into passes whose counters fit the memory, and each pass into shards of similar size.

    The tasks of all passes together stay below three quarters of TASKS: each counting task of a pass has a task for
    each shard beside it.
    """
    limit = max(memory // (COUNTER_BYTES * (workers + FACTOR)), 1)  # counters of a pass
    spare = min(4 * limit // workers, SPARE_CELLS)  # cells of its joint tables
    groups = _group_sets(sets, domain.cells_each(sets), limit)
    shards = max(min(max(SHARDS, workers), 3 * TASKS // (4 * len(groups) * workers) - 1), 1)
    most = max(3 * TASKS // (4 * len(groups) * (shards + 1)), 1)

    passes = []
    for group, cells in groups:
        tasks = min(most, _most_tasks(group, cells, limit, workers))
        passes.append(Pass(_shards(domain, group, cells, shards), spare, tasks))
    return passes


def _most_tasks(group: Sequence[AttributeSet], cells: Sequence[int], limit: int, workers: int) -> int:
    """Return the largest number of counting tasks of a group of sets with these numbers of cells.

    It is one per worker if the memory has no room for partial counts that wait for their sum; otherwise the sets in the
    requests of all tasks limit it. `limit` is the number of counters of a pass.
    """
    if WAITING * sum(cells) > FACTOR * limit:
        return workers
    return max(SENT // max(len(group), 1), workers)


SetGroup = tuple[Sequence[AttributeSet], Sequence[int]]


@dataclass(frozen=True)
class CountingCost:
    """Expected cost of counting and measuring some attribute sets.

    Attributes
    ----------
    passes : int
        Readings of the table.
    tasks : int
    memory : int
        Largest memory in use, in bytes.
    saving : Saving
        Work that the covers of all passes save.
    seconds_per_million : float
        Approximate time of one core to read, encode and count a million rows.
    """

    passes: int
    tasks: int
    memory: int
    saving: Saving
    seconds_per_million: float = 0.0


def counting_cost(
    domain: Domain, sets: Sequence[AttributeSet], memory: int, workers: int, rows: int | None = None
) -> CountingCost:
    """Return the expected cost under a memory setting without reading any data.

    The table is assumed to have at least as many files as workers. A pass has tasks that count, tasks that add partial
    counts, and one task for each shard. The time for a row is that of counting it by the covers, and of reading each
    column in each pass.

    Parameters
    ----------
    domain : Domain
    sets : sequence of AttributeSet
    memory : int
        Memory setting, in bytes.
    workers : int
    rows : int, optional
        Approximate number of rows, if known. It determines the number of tasks per worker, provided that there are as
        many partitions.
    """
    passes = plan_passes(domain, sets, memory, workers)
    share = ROWS if rows is None else -(-rows // workers)  # rows of a worker
    covers = [planned.cover(share) for planned in passes]

    tasks = 0
    for planned, cover in zip(passes, covers, strict=True):
        counting = workers if rows is None else max(workers, _task_count(planned, cover, rows))
        counting = min(counting, planned.most)
        tasks += counting + _sum_tasks(planned, counting) + len(planned.shards)

    saving, names = total(cover.saving for cover in covers), Layout(domain, tuple(sets)).names
    nanoseconds_a_row = saving.covered / max(share, 1) + READ_NANOSECONDS * len(names) * len(passes)
    memory_bytes = COUNTER_BYTES * (workers + FACTOR) * max(planned.cells for planned in passes)
    seconds = round(1e-3 * nanoseconds_a_row, 3)  # for a million rows
    return CountingCost(
        passes=len(passes), tasks=tasks, memory=memory_bytes, saving=saving, seconds_per_million=seconds
    )


def largest_task(domain: Domain, sets: Sequence[AttributeSet], memory: int, workers: int) -> tuple[int, str]:
    """Return the bytes of the task that needs most memory, and the attributes of its largest set."""
    largest = max(plan_passes(domain, sets, memory, workers), key=lambda counting_pass: counting_pass.bytes)
    widest = largest.sets[int(np.argmax(domain.cells_each(largest.sets)))]
    return largest.bytes, ", ".join(widest) or "the total"


def _task_count(counting_pass: Pass, cover: Cover, rows: int) -> int:
    """Return the number of tasks of a pass over `rows` rows."""
    seconds = cover.saving.covered / cover.rows * rows / 1e9
    return min(math.ceil(seconds / TASK_SECONDS), counting_pass.most)


def _sum_tasks(counting_pass: Pass, items: int) -> int:
    """Return the number of tasks that sum the counts of `items` items and extract shards from the sums.

    With several pieces, a task takes the counters of a piece out of the counts of each item before.
    """
    pieces = len(counting_pass.pieces)
    cut = items if pieces > 1 and items > 1 else 0
    return pieces * (cut + _tree_tasks(items)) + len(counting_pass.shards)


def _tree_tasks(items: int) -> int:
    """Return the number of tasks of a tree that sums `items` items."""
    return 0 if items <= 1 else -(-items // FAN_IN) + _tree_tasks(-(-items // FAN_IN))


def _group_sets(sets: Sequence[AttributeSet], cells: Sequence[int], limit: int) -> list[SetGroup]:
    """Divide sets, in order, into groups of at most `limit` cells (or one set); return each group with its cells.

    `cells` has the number of cells of each set.
    """
    cuts, total_cells = [0], 0  # positions at which groups begin; cells of the last group
    for place, size in enumerate(cells):
        if place > cuts[-1] and total_cells + size > limit:
            cuts.append(place)
            total_cells = 0
        total_cells += size
    return [(sets[first:end], cells[first:end]) for first, end in pairwise([*cuts, len(sets)])]


def _shards(domain: Domain, sets: Sequence[AttributeSet], cells: Sequence[int], count: int) -> tuple[Layout, ...]:
    """Divide sets into about `count` shards of similar size."""
    return tuple(Layout(domain, tuple(group)) for group, _ in _group_sets(sets, cells, math.ceil(sum(cells) / count)))


def partition_groups(partitions: Sequence[Partition], workers: int) -> list[tuple[Partition, ...]]:
    """Distribute partitions over the workers in groups of similar size, the largest first.

    The largest partition goes to the group with the least load so far; ties follow the order of the groups.
    """
    sizes = {part: part.size() + 1 for part in partitions}
    groups: list[list[Partition]] = [[] for _ in range(min(workers, len(sizes)))]
    loads = [(0, index) for index in range(len(groups))]

    for part in sorted(sizes, key=lambda part: (-sizes[part], *part.order)):
        load, lightest = heappop(loads)
        groups[lightest].append(part)
        heappush(loads, (load + sizes[part], lightest))
    return [tuple(sorted(group, key=lambda part: part.order)) for group in groups]


def dropped_rows(group: Sequence[Partition], dropped: Mapping[Partition, Any]) -> tuple[Any, ...]:
    """Return arguments of a task: the partitions of a group with rows that are not counted, then those rows of each."""
    bounded = [part for part in group if part in dropped]
    return bounded, *(dropped[part] for part in bounded)


def run_pass(
    engine: Engine,
    counting_pass: Pass,
    groups: Sequence[tuple[Partition, ...]],
    checked: Sequence[str] = (),
    dropped: Mapping[Partition, Any] | None = None,
    weights: PeriodWeights | None = None,
    grouped: bool = False,
) -> list[Any]:
    """Count one pass and return a handle of the exact counts of each shard.

    If the tasks are `disjoint`, they divide the shards: each reads all rows, and nothing is summed. Otherwise they
    divide the rows, and their counts are summed. Requests are sent once to all workers (`broadcast`), not with every
    task.

    Parameters
    ----------
    engine : Engine
    counting_pass : Pass
    groups : sequence of tuple of Partition
        Partitions of each worker.
    checked : sequence of str
        Attributes whose columns are also checked against the domain.
    dropped : mapping of Partition, optional
        Rows of a partition that are not counted, or handles of them.
    weights : PeriodWeights, optional
        Weights of the records by period; default: every record counts once.
    grouped : bool
        Whether the database counts.
    """
    domain, sizes = counting_pass.shards[0].domain, [sum(part.size() for part in group) + 1 for group in groups]
    cover, rows = counting_pass.cover(guess_rows(domain, max(sizes))), guess_rows(domain, sum(sizes))
    # too few partitions, or more counters than rows: tasks divide the sets
    disjoint = _share_sets(counting_pass, cover, rows, sum(map(len, groups)), max(sizes) / sum(sizes), engine.workers)
    if disjoint:
        items = _by_sets(counting_pass, groups, cover.rows, engine.workers)
    else:
        merged = merge_groups(groups, min(counting_pass.most, useful_tasks(_seconds(cover, rows))))
        items = _by_rows(counting_pass, merged, cover, _task_count(counting_pass, cover, rows))

    if weights is not None or grouped:
        items = [(group, replace(request, weights=weights, grouped=grouped)) for group, request in items]
    shared_requests = {request: engine.broadcast(request, "count") for _, request in items}
    tasks = [
        (shared_requests[request], group, tuple(checked), *dropped_rows(group, dropped or {}))
        for group, request in items
    ]
    pieces = [request.range for _, request in items] if disjoint else counting_pass.pieces

    return engine.reduce(count_shards, tasks, len(counting_pass.shards), "count", counting_pass.bytes, pieces, disjoint)


def _share_sets(counting_pass: Pass, cover: Cover, rows: int, files: int, share: float, workers: int) -> bool:
    """Return whether workers share the sets and each reads all rows.

    This is better if one worker has a large `share` of the rows, or if there are many counters for the rows, because
    every task that counts all sets has its own counters. Both ways are compared by predicted nanoseconds.
    """
    counting = cover.saving.covered / cover.rows * rows  # `covered` is the time for the rows of the cover
    names, clearing = Layout(cover.domain, counting_pass.sets).names, CLEAR_NANOSECONDS * counting_pass.cells
    reading = READ_NANOSECONDS * len(names) * rows + OPEN_NANOSECONDS * files
    by_rows = share * (counting + reading) + clearing
    by_sets = (counting + clearing) / workers + reading
    return min(workers, len(counting_pass.shards)) > 1 and by_sets < SHARING_GAIN * by_rows


@dataclass(frozen=True, eq=False)
class CountRequest:
    """Shards that one task counts.

    Attributes
    ----------
    first : int
        Number of the first shard.
    shards : tuple of Layout
    program : Program
        Program that counts the shards.
    partial : bool
        Whether other tasks count the same shards over other rows.
    weights : PeriodWeights, optional
        Weights of the records by period.
    grouped : bool
        Whether the database counts.
    """

    first: int
    shards: tuple[Layout, ...]
    program: Program
    partial: bool = False
    weights: PeriodWeights | None = None
    grouped: bool = False

    @property
    def range(self) -> range:
        return range(self.first, self.first + len(self.shards))


Item = tuple[tuple[Partition, ...], CountRequest]


def _by_rows(counting_pass: Pass, groups: Sequence[tuple[Partition, ...]], cover: Cover, wanted: int) -> list[Item]:
    """Return the items of tasks that each count all sets over some partitions.

    `wanted` is the number of tasks. If groups are split, the cover is planned again for the fewer rows of each task;
    counts of more than one task are partial.
    """
    finer = [part for group in groups for part in split_group(group, max(wanted // len(groups), 1))]
    if len(finer) > len(groups):
        cover = counting_pass.cover(max(cover.rows * len(groups) // len(finer), 1))
    request = CountRequest(first=0, shards=counting_pass.shards, program=Program.of(cover), partial=len(finer) > 1)
    return [(group, request) for group in finer]


def _seconds(cover: Cover, rows: int) -> float:
    """Return the approximate time to read and count `rows` rows."""
    per_row = cover.saving.covered / cover.rows + READ_NANOSECONDS * len(Layout(cover.domain, cover.sets).names)
    return per_row * rows / 1e9


def _by_sets(counting_pass: Pass, groups: Sequence[tuple[Partition, ...]], rows: int, workers: int) -> list[Item]:
    """Return the items of tasks that each count some shards, with about equally many sets, over all partitions.

    `rows` is an upper bound of the rows, by which the cover is chosen.
    """
    everything = tuple(part for group in groups for part in group)
    ends = np.cumsum([len(shard.sets) for shard in counting_pass.shards])
    # first shard of each worker, so that all have about equally many sets
    cuts = sorted({int(np.searchsorted(ends, ends[-1] * worker / workers)) for worker in range(workers)})

    items: list[Item] = []
    for first, end in pairwise([*cuts, len(counting_pass.shards)]):
        shards = counting_pass.shards[first:end]
        program = Program.of(replace(counting_pass, shards=shards).cover(rows))
        items.append((everything, CountRequest(first, shards, program)))
    return items


def count_shards(
    request: CountRequest,
    partitions: Sequence[Partition],
    checked: Sequence[str],
    bounded: Sequence[Partition] = (),
    *dropped: RowMask,
) -> list[Integers]:
    """Count the requested shards in one reading; partial counts that fit have 32 bits.

    `dropped` contains the rows of the `bounded` partitions that are not counted.
    """
    without = dict(zip(bounded, dropped, strict=True))
    program, domain, weights = request.program, request.shards[0].domain, request.weights
    if request.grouped:
        flat = count_groups(request.shards, partitions, checked)
    elif weights is None:
        flat = count_by(program, domain, partitions, checked, without)
    else:
        flat = count_weighted(program, domain, partitions, weights, checked, without)

    least, most = flat.min(initial=0), flat.max(initial=0)
    if request.partial and least >= -(1 << 31) and most < 1 << 31:  # counts of numbers exceed the number of rows
        flat = flat.astype(np.int32)  # halves the bytes that are sent
    ends = np.cumsum([0, *(shard.offsets[-1] for shard in request.shards)])
    return [flat[start:end] for start, end in pairwise(ends.tolist())]
