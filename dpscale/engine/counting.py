"""Counting passes: attribute sets in groups under the memory setting, partitions in groups, partial counts in a tree.

A pass reads every partition once and counts one group of sets, by a cover of them (see `tables.choice`). Its counters
are cut into shards, so that sums and the measurements that follow are several tasks. Within a pass, the memory at any
time is about (workers + FACTOR) times the counters of the pass; of FACTOR, one is for the sum and two for the joints.

A task is about a second of counting where partial counts are small enough to wait for their sum, and else a worker's
whole share; passes have never more tasks than make TASKS in all. Where partitions are too few or too unequal to keep
every worker busy (one huge file), or counters outnumber what rows add to them, workers share the sets instead of the
rows, and each reads everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np

from dpscale.base.arrays import Integers
from dpscale.base.display import AttributeSet
from dpscale.counting.count import Layout, count_by
from dpscale.counting.cover import ROWS, SPARE_CELLS, Cover, Saving, guess_rows, plan_cover, total
from dpscale.counting.program import Program
from dpscale.domain import Domain
from dpscale.engine.base import Engine
from dpscale.engine.graphs import FAN_IN, pieces_of
from dpscale.engine.task_sizing import cut, fewer, worth
from dpscale.records.row_filter import Marked
from dpscale.records.table import Partition

COUNTER_BYTES = 8
FACTOR = 5
SHARDS = 16  # of a pass at least, and as many as there are workers, for they measure
TASKS = 100_000
TASK_SECONDS = 1.0
WAITING = 16  # partial counts that may wait for their sum, where tasks are short
SENT = 5_000_000  # sets that all tasks of a pass are told of
SMALL = 1 << 26  # bytes that a task may sum at once
BETTER = 0.9  # by how much sharing the sets has to be better than sharing the rows
READ = 4.0  # nanoseconds to read and encode a value
OPEN = 1e6  # nanoseconds to open a partition
HELD = 3.0  # nanoseconds to clear a counter and to sum it: those of sets that are shared need no sum


@dataclass(frozen=True)
class Pass:
    """One reading of the table: the layouts (shards) that are counted together.

    `spare` is how many cells of joints a task may hold, `most` how many tasks may count.
    """

    shards: tuple[Layout, ...]
    spare: int = SPARE_CELLS
    most: int = TASKS

    @property
    def sets(self) -> tuple[AttributeSet, ...]:
        """The sets of all shards."""
        return tuple(attributes for shard in self.shards for attributes in shard.sets)

    @property
    def cells(self) -> int:
        """Counters of all shards."""
        return sum(int(shard.offsets[-1]) for shard in self.shards)

    @property
    def bytes(self) -> int:
        """What a task that counts holds at the most: all counters, and the joints that it counts first."""
        return COUNTER_BYTES * (self.cells + self.spare)

    @property
    def pieces(self) -> list[range]:
        """The shards that are summed in the same tasks: as many as are small together, for tasks are what sums cost."""
        needed = -(-COUNTER_BYTES * self.cells * FAN_IN // max(SMALL, 1))
        return pieces_of(len(self.shards), max(min(needed, len(self.shards)), 1))

    def cover(self, rows: int) -> Cover:
        """How a task of about so many rows counts the sets."""
        return plan_cover(self.shards[0].domain, self.sets, rows, self.spare)


def plan_passes(domain: Domain, sets: Sequence[AttributeSet], memory: int, workers: int) -> list[Pass]:
    """Cut the sets into passes whose counters fit the memory, and each pass into shards of similar size."""
    limit = max(memory // (COUNTER_BYTES * (workers + FACTOR)), 1)
    spare = min(4 * limit // workers, SPARE_CELLS)
    groups = _fill(sets, domain.cells_each(sets), limit)
    count = max(min(max(SHARDS, workers), 3 * TASKS // (4 * len(groups) * workers) - 1), 1)
    most = max(3 * TASKS // (4 * len(groups) * (count + 1)), 1)
    return [Pass(_shards(domain, *group, count), spare, min(most, _wait(*group, limit, workers))) for group in groups]


def _wait(group: Sequence[AttributeSet], cells: Sequence[int], limit: int, workers: int) -> int:
    """How many tasks may count a group of sets: one a worker where their partial counts could not wait for the sum."""
    if WAITING * sum(cells) > FACTOR * limit:
        return workers
    return max(SENT // max(len(group), 1), workers)


Filled = tuple[Sequence[AttributeSet], Sequence[int]]


@dataclass(frozen=True)
class Effort:
    """What counting and measuring some sets will take: readings of the table, tasks, and bytes held at the most.

    `saving` tells what the covers of all passes save, `seconds_per_million` is
    about what one core needs to read, encode and count a million rows.
    """

    passes: int
    tasks: int
    memory: int
    saving: Saving
    seconds_per_million: float = 0.0


def effort(domain: Domain, sets: Sequence[AttributeSet], memory: int, workers: int, rows: int | None = None) -> Effort:
    """The effort under a memory setting, known before any data is read (with at least as many files as workers).

    `rows`: about how long the table is, where that is known; it decides how many tasks there are a worker, provided
    that there are as many partitions.
    """
    passes = plan_passes(domain, sets, memory, workers)
    share = ROWS if rows is None else -(-rows // workers)
    covers = [one.cover(share) for one in passes]
    tasks = 0
    for one, cover in zip(passes, covers, strict=True):
        counting = min(workers if rows is None else max(workers, _wanted(one, cover, rows)), one.most)
        tasks += counting + _summing(one, counting) + len(one.shards)
    saving, names = total(cover.saving for cover in covers), Layout(domain, tuple(sets)).names
    each = saving.covered / max(share, 1) + READ * len(names) * len(passes)  # nanoseconds a row
    held = COUNTER_BYTES * (workers + FACTOR) * max(one.cells for one in passes)
    return Effort(len(passes), tasks, held, saving, round(1e-3 * each, 3))


def largest_task(domain: Domain, sets: Sequence[AttributeSet], memory: int, workers: int) -> tuple[int, str]:
    """Bytes of the task that holds most, and the attributes of its largest set: what `Engine.check_room` takes."""
    largest = max(plan_passes(domain, sets, memory, workers), key=lambda one: one.bytes)
    held = largest.sets
    widest = held[int(np.argmax(domain.cells_each(held)))]
    return largest.bytes, ", ".join(widest) or "the total"


def _wanted(one: Pass, cover: Cover, rows: int) -> int:
    """How many tasks a pass over so many rows is cut into."""
    seconds = cover.saving.covered / cover.rows * rows / 1e9
    return min(math.ceil(seconds / TASK_SECONDS), one.most)


def _summing(one: Pass, items: int) -> int:
    """How many tasks sum what so many items count, and take shards out of the sums."""
    pieces = len(one.pieces)
    cut = items if pieces > 1 and items > 1 else 0
    return pieces * (cut + _sums(items)) + len(one.shards)


def _sums(items: int) -> int:
    """How many tasks sum so many items over a tree."""
    return 0 if items <= 1 else -(-items // FAN_IN) + _sums(-(-items // FAN_IN))


def _fill(sets: Sequence[AttributeSet], cells: Sequence[int], limit: int) -> list[Filled]:
    """Sets in their order, in groups of at most so many cells (or one set each), with the cells of each."""
    cuts, held = [0], 0
    for place, size in enumerate(cells):
        if place > cuts[-1] and held + size > limit:
            cuts.append(place)
            held = 0
        held += size
    return [(sets[first:end], cells[first:end]) for first, end in pairwise([*cuts, len(sets)])]


def _shards(domain: Domain, sets: Sequence[AttributeSet], cells: Sequence[int], count: int) -> tuple[Layout, ...]:
    """About so many shards of similar size."""
    return tuple(Layout(domain, tuple(group)) for group, _ in _fill(sets, cells, math.ceil(sum(cells) / count)))


def partition_groups(partitions: Sequence[Partition], workers: int) -> list[tuple[Partition, ...]]:
    """Partitions dealt out, the largest first, so that every worker has one group of similar size."""
    sizes = {part: part.size() + 1 for part in partitions}
    groups: list[list[Partition]] = [[] for _ in range(min(workers, len(sizes)))]
    loads = [(0, index) for index in range(len(groups))]
    for part in sorted(sizes, key=lambda part: (-sizes[part], part.path, part.row_groups)):
        load, lightest = heappop(loads)
        groups[lightest].append(part)
        heappush(loads, (load + sizes[part], lightest))
    return [tuple(sorted(group, key=lambda part: (part.path, part.row_groups))) for group in groups]


def run_pass(
    engine: Engine,
    one: Pass,
    groups: Sequence[tuple[Partition, ...]],
    checked: Sequence[str] = (),
    dropped: Mapping[Partition, Any] | None = None,
) -> list[Any]:
    """Count one pass: a handle of the exact counts of every shard. `dropped`: of partitions the rows that do not count,
    or handles of them."""
    domain, sizes = one.shards[0].domain, [sum(part.size() for part in group) + 1 for group in groups]
    cover, rows = one.cover(guess_rows(domain, max(sizes))), guess_rows(domain, sum(sizes))
    apart = _sets_are_shared(one, cover, rows, sum(map(len, groups)), max(sizes) / sum(sizes), engine.workers)
    if apart:
        items = _by_sets(one, groups, cover.rows, engine.workers)
    else:
        items = _by_rows(
            one, fewer(groups, min(one.most, worth(_seconds(cover, rows)))), cover, _wanted(one, cover, rows)
        )
    told = {asked: engine.shared(asked, "count") for _, asked in items}
    tasks = []
    for group, asked in items:
        own = [part for part in group if part in (dropped or {})]
        tasks.append((told[asked], group, tuple(checked), own, *((dropped or {})[part] for part in own)))
    pieces = [asked.range for _, asked in items] if apart else one.pieces
    return engine.reduce(count_shards, tasks, len(one.shards), "count", one.bytes, pieces, apart)


def _sets_are_shared(one: Pass, cover: Cover, rows: int, files: int, share: float, workers: int) -> bool:
    """Whether workers share the sets, each reading all rows: where one has a large `share` of the rows, or where the
    counters, which every task that counts all sets has to itself, are many for the rows."""
    counting = cover.saving.covered / cover.rows * rows
    reading = READ * len(Layout(cover.domain, one.sets).names) * rows + OPEN * files
    by_rows = share * (counting + reading) + HELD * one.cells
    by_sets = (counting + HELD * one.cells) / workers + reading
    return min(workers, len(one.shards)) > 1 and by_sets < BETTER * by_rows


@dataclass(frozen=True, eq=False)
class CountRequest:
    """What a task counts: of all shards those from `first` on, by their program. `partial`: others count them too."""

    first: int
    shards: tuple[Layout, ...]
    program: Program
    partial: bool = False

    @property
    def range(self) -> range:
        return range(self.first, self.first + len(self.shards))


Item = tuple[tuple[Partition, ...], CountRequest]


def _by_rows(one: Pass, groups: Sequence[tuple[Partition, ...]], cover: Cover, wanted: int) -> list[Item]:
    """Every task counts all sets over some partitions."""
    finer = [part for group in groups for part in cut(group, max(wanted // len(groups), 1))]
    if len(finer) > len(groups):
        cover = one.cover(max(cover.rows * len(groups) // len(finer), 1))
    asked = CountRequest(0, one.shards, Program.of(cover), len(finer) > 1)
    return [(group, asked) for group in finer]


def _seconds(cover: Cover, rows: int) -> float:
    """About how long it takes to read and count so many rows."""
    return (cover.saving.covered / cover.rows + READ * len(Layout(cover.domain, cover.sets).names)) * rows / 1e9


def _by_sets(one: Pass, groups: Sequence[tuple[Partition, ...]], rows: int, workers: int) -> list[Item]:
    """Every task counts some shards, with about as many sets each, over all partitions."""
    everything = tuple(part for group in groups for part in group)
    ends = np.cumsum([len(shard.sets) for shard in one.shards])
    cuts = sorted({int(np.searchsorted(ends, ends[-1] * k / workers)) for k in range(workers)})
    items: list[Item] = []
    for first, end in pairwise([*cuts, len(one.shards)]):
        shards = one.shards[first:end]
        program = Program.of(replace(one, shards=shards).cover(rows))
        items.append((everything, CountRequest(first, shards, program)))
    return items


def count_shards(
    asked: CountRequest,
    partitions: Sequence[Partition],
    checked: Sequence[str],
    bounded: Sequence[Partition] = (),
    *dropped: Marked,
) -> list[Integers]:
    """Count the shards that are asked in one reading; in 32 bits where the counts are partial and surely fit.

    `dropped`: the rows of the `bounded` partitions that do not count.
    """
    without = dict(zip(bounded, dropped, strict=True))
    flat = count_by(asked.program, asked.shards[0].domain, partitions, checked, without)
    if asked.partial and _rows(asked.shards[0], flat) < 1 << 31:
        flat = flat.astype(np.int32)  # half of what is sent to be summed
    ends = np.cumsum([0, *(shard.offsets[-1] for shard in asked.shards)])
    return [flat[start:end] for start, end in pairwise(ends.tolist())]


def _rows(shard: Layout, flat: Integers) -> int:
    """How many rows were counted: every one of them is in one cell of any set."""
    return int(flat[: shard.offsets[1]].sum())
