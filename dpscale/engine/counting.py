"""Counting passes: attribute sets in groups under the memory setting, partitions in groups, partial counts in a tree.

A pass reads every partition once and counts one group of sets. Its counters are cut into shards, so that sums and the
measurements that follow are several tasks. Within a pass, the memory at any time is about (workers + FACTOR) times the
counters of the pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

from dpscale.domain import Domain
from dpscale.engine.schedulers import Engine
from dpscale.tables.count import Attributes, Counts, Dropped, Layout, count
from dpscale.tables.table import Partition

COUNTER_BYTES = 8
FACTOR = 4
SHARDS = 16


@dataclass(frozen=True)
class Pass:
    """One reading of the table: the layouts (shards) that are counted together."""

    shards: tuple[Layout, ...]


def plan_passes(domain: Domain, sets: Sequence[Attributes], memory: int, workers: int) -> list[Pass]:
    """Cut the sets into passes whose counters fit the memory, and each pass into shards of similar size."""
    limit = max(memory // (COUNTER_BYTES * (workers + FACTOR)), 1)
    return [Pass(_shards(domain, group)) for group in _fill(domain, sets, limit)]


@dataclass(frozen=True)
class Effort:
    """What counting and measuring some sets will take: readings of the table, tasks, and bytes held at the most."""

    passes: int
    tasks: int
    memory: int


def effort(domain: Domain, sets: Sequence[Attributes], memory: int, workers: int) -> Effort:
    """The effort under a memory setting, known before any data is read (with at least as many files as workers)."""
    passes = plan_passes(domain, sets, memory, workers)
    shards = [len(one.shards) for one in passes]
    tasks = sum(workers + count * (workers + 2) for count in shards)
    cells = max(sum(int(layout.offsets[-1]) for layout in one.shards) for one in passes)
    return Effort(len(passes), tasks, COUNTER_BYTES * (workers + FACTOR) * cells)


def _fill(domain: Domain, sets: Sequence[Attributes], limit: int) -> list[list[Attributes]]:
    groups: list[list[Attributes]] = [[]]
    held = 0
    for attributes in sets:
        cells = domain.cells(attributes)
        if groups[-1] and held + cells > limit:
            groups.append([])
            held = 0
        groups[-1].append(attributes)
        held += cells
    return groups


def _shards(domain: Domain, sets: list[Attributes]) -> tuple[Layout, ...]:
    cells = sum(domain.cells(attributes) for attributes in sets)
    return tuple(Layout(domain, tuple(group)) for group in _fill(domain, sets, math.ceil(cells / SHARDS)))


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
    dropped: Dropped | None = None,
) -> list[Any]:
    """Count one pass: a handle of the exact counts of every shard."""
    items = [(one.shards, group, tuple(checked), _of(dropped, group)) for group in groups]
    return engine.reduce(count_shards, items, len(one.shards), "count")


def count_shards(
    shards: Sequence[Layout], partitions: Sequence[Partition], checked: Sequence[str], dropped: Dropped | None
) -> list[Counts]:
    """Count all shards in one reading of the partitions: an array for each."""
    domain = shards[0].domain
    together = Layout(domain, tuple(attributes for shard in shards for attributes in shard.sets))
    flat = count(together, partitions, checked, dropped)
    ends = [0]
    for shard in shards:
        ends.append(ends[-1] + int(shard.offsets[-1]))
    return [flat[start:end] for start, end in pairwise(ends)]


def _of(dropped: Dropped | None, group: Sequence[Partition]) -> Dropped | None:
    return None if dropped is None else {part: dropped[part] for part in group if part in dropped}
