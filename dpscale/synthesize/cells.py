"""Cells inside groups: each row's cell within its group, attribute by attribute, by the same feedback.

Within a group cells share by their 1-way, whatever the other attributes: that is what the estimates say. Systematic
rounding meets the 1-way; a sweep holds (cell of i) × (group of j) to what it implies, so that no pair is off by chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpscale.reconstruct.pairwise.chance import Chance
from dpscale.reconstruct.pairwise.pairs import Spread, Wanted
from dpscale.reconstruct.pairwise.sweeping import LOG_UNIT
from dpscale.residual.groups import Groups
from dpscale.synthesize import loops

Array = NDArray[np.float64]
Rows = NDArray[np.int32]
BETA, FLOOR, ALONE = 32.0, 0.25, 4.0
LEAST = 1e-12


def spread(wanted: Wanted, cells: Spread, rows: Rows, chance: Chance) -> Rows:
    """(n, d): rows over cells, from rows over groups."""
    out = rows.copy()
    for i, name in enumerate(wanted.layout.names):
        grouping = cells.groups[name]
        if grouping.count < grouping.size and len(rows):
            out[:, i] = _Refined(wanted, grouping, cells.ones[name], rows, i).cells(chance)
    return out


@dataclass(frozen=True, eq=False)
class _Refined:
    """One attribute of some rows."""

    wanted: Wanted
    groups: Groups
    one: Array
    rows: Rows
    i: int

    def cells(self, chance: Chance) -> Rows:
        cells = self._begun(chance)
        starts, targets = self._targets()
        alone = self.one * (len(self.rows) / self.one.sum())
        inside = (np.rint(np.log(np.maximum(self._inside, LEAST)) * LOG_UNIT) / LOG_UNIT).astype(np.float32)
        bounds, state = np.array([*self.groups.starts, self.groups.size], np.int64), chance.state()
        weights, slopes = _weighed(targets, self._counts(cells, starts, len(targets)), BETA)
        own = np.bincount(cells, minlength=self.groups.size).astype(np.float64)
        held, held_slopes = _weighed(alone, own, ALONE * BETA)
        order = chance.permutation(len(self.rows))
        loops.sweep_cells(cells, self.rows, self.i, order, bounds, starts, inside, weights, slopes, held,
                          held_slopes, state)  # fmt: skip
        return cells

    @property
    def _inside(self) -> Array:
        """Each cell's share of its group."""
        return np.asarray(self.one / np.add.reduceat(self.one, self.groups.starts)[self.groups.labels])

    def _begun(self, chance: Chance) -> Rows:
        """Within each group of rows, cells as often as the 1-way says."""
        cells = np.empty(len(self.rows), np.int32)
        column = self.rows[:, self.i]
        order = np.argsort(column, kind="stable")
        ends = np.searchsorted(column[order], np.arange(self.groups.count + 1))
        bounds = [*self.groups.starts, self.groups.size]
        for g in range(self.groups.count):
            mine = order[ends[g] : ends[g + 1]]
            if len(mine):
                cells[mine] = bounds[g] + chance.systematic(self.one[bounds[g] : bounds[g + 1]], len(mine))
        return cells

    def _targets(self) -> tuple[NDArray[np.int64], Array]:
        """Where (group of j) × (cell of i) begins, and how many rows are wanted of each."""
        layout, i = self.wanted.layout, self.i
        starts, tables, at = np.full(len(layout.sizes), -1, np.int64), [np.zeros(0)], 0
        for j in np.flatnonzero(layout.used[i]):
            table = layout.of(self.wanted.shares, *((i, int(j)) if i < j else (int(j), i)))
            mine = (table if i < j else table.T)[self.groups.labels] * self._inside[:, None]
            tables.append(mine.T.ravel() * len(self.rows))
            starts[j] = at
            at += mine.size
        return starts, np.concatenate(tables)

    def _counts(self, cells: Rows, starts: NDArray[np.int64], size: int) -> Array:
        counts = np.zeros(size)
        for j in np.flatnonzero(starts >= 0):
            at = self.rows[:, j].astype(np.int64) * self.groups.size + cells
            found = np.bincount(at, minlength=int(self.wanted.layout.sizes[j]) * self.groups.size)
            counts[starts[j] : starts[j] + len(found)] = found
        return counts


def _weighed(targets: Array, counts: Array, beta: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """−β (C + ½ − T) / S, and its slope."""
    slopes = beta / (targets + FLOOR)
    return (slopes * (targets - counts - 0.5)).astype(np.float32), slopes.astype(np.float32)
