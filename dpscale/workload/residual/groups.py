"""Coarser cells: neighbouring cells of an attribute put together, so that less noise meets more counts.

A grouping is chosen from released values and is public then. One record is in one group, so a marginal over groups has
the sensitivity of any marginal.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats


@dataclass(frozen=True)
class Groups:
    """Runs of neighbouring cells: `starts[g]` is the first cell of group g, the last group ends at `size`."""

    size: int
    starts: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.starts)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The group of every cell, (size,)."""
        return np.repeat(np.arange(self.count), self.widths)

    @cached_property
    def widths(self) -> NDArray[np.int64]:
        """Cells in every group, (count,)."""
        return np.diff([*self.starts, self.size])


def every_cell(size: int) -> Groups:
    """Each cell a group of its own."""
    return Groups(size, tuple(range(size)))


def by_mass(counts: Floats, least: float, edges: Set[int] = frozenset()) -> Groups:
    """Groups of at least `least` counts; one with three tenths of it ends at an edge or before such a cell."""
    starts, held = [0], 0.0
    for cell, count in enumerate(counts.tolist()):
        if cell and (held >= least or ((count >= least or cell in edges) and held >= 0.3 * least)):
            starts.append(cell)
            held = 0.0
        held += count
    if held < 0.5 * least and len(starts) > 2:
        starts.pop()
    if len(starts) == 1 and len(counts) > 1:
        starts.append(_halving(counts))
    return Groups(len(counts), tuple(starts))


def _halving(counts: Floats) -> int:
    """Where to cut in two parts as equal as may be."""
    before = np.cumsum(counts)[:-1]
    return int(np.abs(2 * before - counts.sum()).argmin()) + 1


def coarsened(values: NDArray, groups: Sequence[Groups]) -> NDArray:  # type: ignore[type-arg]
    """Sums over the groups of every axis; integers stay integers."""
    for axis, grouping in enumerate(groups):
        if grouping.count < grouping.size:
            values = np.add.reduceat(values, grouping.starts, axis=axis)
    return values


def expanded(values: Floats, groups: Sequence[Groups]) -> Floats:
    """Every cell gets its group's value (a ratio, say), along every axis."""
    for axis, grouping in enumerate(groups):
        if grouping.count < grouping.size:
            values = values.take(grouping.labels, axis=axis)
    return values
