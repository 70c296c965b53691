"""How many tasks read a table: no more than the work is worth, however many workers there are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpscale.engine.batches import SCHEDULING
from dpscale.records.table import Partition

LEAST_TASKS = 32  # that a pass may have, where there are as many workers


def fewer(groups: Sequence[tuple[Partition, ...]], most: int) -> Sequence[tuple[Partition, ...]]:
    """The groups, or so many of several."""
    if len(groups) <= most:
        return groups
    return [tuple(part for group in groups[k::most] for part in group) for k in range(most)]


def worth(seconds: float) -> int:
    """How many tasks so much work may be, however many workers: more would take longer to hand out than they save."""
    return max(LEAST_TASKS, math.isqrt(int(seconds / SCHEDULING)))


def cut(group: tuple[Partition, ...], pieces: int) -> list[tuple[Partition, ...]]:
    """A worker's partitions in at most so many pieces of similar length."""
    step = -(-len(group) // max(pieces, 1))
    return [group[start : start + step] for start in range(0, len(group), step)]
