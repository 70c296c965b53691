"""Non-negative whole numbers near estimates with fixed sums over one or two partitions of the cells.

The weighted least squares fit and its rounding are those of `dpscale.optimize.nonnegative_loops`. One partition splits
the cells into lines. Two partitions split them into grids: cells of a grid are the pairs of one part of each. Lines and
grids are independent of each other, so the time is linear in the number of cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpscale.base.numerics import Flags, Floats, Integers, NDArray
from dpscale.optimize import nonnegative_loops as loops

SWEEPS, CLOSE = 1000, 1e-7  # of a fit to several partitions; the largest difference of a sum
MOST_SIDE = 500  # parts of the smaller side of a grid
LEAST = 1e-9  # smallest variance relative to the mean


@dataclass(frozen=True, eq=False)
class Lines:
    """Cells in the parts of one partition.

    Attributes
    ----------
    order : ndarray of int64
        Cells, those of one part after those of another.
    starts : ndarray of int64, shape (parts + 1,)
        Start of every part in `order`.
    targets : ndarray of int64, shape (parts,)
        Sums.
    """

    order: Integers
    starts: Integers
    targets: Integers

    @classmethod
    def of(cls, parts: Integers, targets: Integers) -> Lines:
        """Return the lines of a partition, from the part of each cell."""
        return cls(np.argsort(parts, kind="stable"), _starts(np.bincount(parts, minlength=len(targets))), targets)

    def fit(self, values: Floats, variances: Floats, allowed: Flags) -> Floats:
        """Return the weighted least squares fit, in the order of the cells; cells that are not allowed are 0."""
        own, found = np.ascontiguousarray(values[self.order]), np.empty(len(values))
        loops.fit_lines(own, _positive(variances, allowed)[self.order], self.starts, self.targets, found)
        return _placed(self.order, found)

    def round(self, fitted: Floats) -> Integers | None:
        """Return whole numbers near a fit with the same sums; None if a sum has no allowed cell."""
        found = np.zeros(len(fitted), np.int64)
        loops.round_lines(np.ascontiguousarray(fitted[self.order]), self.starts, self.targets, found)
        sums = np.add.reduceat(np.append(found, 0), self.starts[:-1]) * (np.diff(self.starts) > 0)
        return _placed(self.order, found) if np.array_equal(sums, self.targets) else None


@dataclass(frozen=True, eq=False)
class Grids:
    """Cells in the pairs of parts of two partitions.

    Attributes
    ----------
    order : ndarray of int64
        Cells, those of one grid after those of another, row by row.
    row_starts, column_starts : ndarray of int64, shape (grids + 1,)
        Start of the rows and columns of every grid in `row_targets` and `column_targets`.
    row_targets, column_targets : ndarray of int64
        Sums.
    """

    order: Integers
    row_starts: Integers
    column_starts: Integers
    row_targets: Integers
    column_targets: Integers

    @classmethod
    def of(
        cls, parts: tuple[Integers, Integers], grids: tuple[Integers, Integers], targets: tuple[Integers, Integers]
    ) -> Grids:
        """Return the grids of two partitions.

        Parameters
        ----------
        parts : tuple of ndarray
            For each partition, the part of every cell.
        grids : tuple of ndarray
            For each partition, the grid of every part.
        targets : tuple of ndarray
            For each partition, the sum of every part.

        Raises
        ------
        ValueError
            If the cells of a grid are not the pairs of its parts.
        """
        number = 1 + max(int(grids[0].max()), int(grids[1].max()))
        sides = [np.argsort(grid, kind="stable") for grid in grids]
        starts = [_starts(np.bincount(grid, minlength=number)) for grid in grids]
        rank = np.empty(len(sides[0]), np.int64)
        rank[sides[0]] = np.arange(len(rank))
        order = np.argsort(rank[parts[0]] * len(targets[1]) + parts[1], kind="stable")
        if int((np.diff(starts[0]) * np.diff(starts[1])).sum()) != len(order):
            raise ValueError("the cells of a grid are not the pairs of its parts")
        return cls(order, starts[0], starts[1], targets[0][sides[0]], targets[1][sides[1]])

    @property
    def largest_side(self) -> int:
        """Largest number of parts of the smaller side of a grid."""
        return int(np.minimum(np.diff(self.row_starts), np.diff(self.column_starts)).max())

    def _each(self) -> Iterator[tuple[slice, tuple[int, int], Integers, Integers]]:
        """Yield cells, shape and sums of the grids that are not empty."""
        end = 0
        for row, last, column, final in zip(
            self.row_starts[:-1].tolist(), self.row_starts[1:].tolist(),
            self.column_starts[:-1].tolist(), self.column_starts[1:].tolist(), strict=True,
        ):  # fmt: skip
            height, width = last - row, final - column
            start, end = end, end + height * width
            rows, columns = self.row_targets[row:last], self.column_targets[column:final]
            if rows.any() or columns.any():
                yield slice(start, end), (height, width), rows, columns

    def fit(self, values: Floats, variances: Floats, allowed: Flags) -> Floats:
        """Return the weighted least squares fit, in the order of the cells; cells that are not allowed are 0."""
        own, spread = values[self.order], _positive(variances, allowed)[self.order]
        found = np.zeros(len(values))
        for cells, shape, rows, columns in self._each():
            table, weights = own[cells].reshape(shape), spread[cells].reshape(shape)
            if shape[0] < shape[1]:
                table, weights, rows, columns = _turned(table), _turned(weights), columns, rows
            fitted = np.empty_like(table)
            loops.fit_grid(table, weights, rows, columns, SWEEPS, CLOSE, fitted)
            found[cells] = (fitted.T if shape[0] < shape[1] else fitted).reshape(-1)

        return _placed(self.order, found)

    def round(self, fitted: Floats, allowed: Flags) -> Integers | None:
        """Return whole numbers near a fit with the same sums; None if a grid has none."""
        own, free, found = fitted[self.order], allowed[self.order], np.zeros(len(fitted), np.int64)
        for cells, shape, rows, columns in self._each():
            table, open_cells = own[cells].reshape(shape), free[cells].reshape(shape)
            if shape[0] < shape[1]:
                table, open_cells, rows, columns = _turned(table), _turned(open_cells), columns, rows
            whole = np.zeros(table.shape, np.int64)
            if not loops.round_grid(table, open_cells, rows, columns, whole):
                return None
            found[cells] = (whole.T if shape[0] < shape[1] else whole).reshape(-1)

        return _placed(self.order, found)


def fit_partitions(
    values: Floats, variances: Floats, allowed: Flags, partitions: Sequence[tuple[Integers, Integers]]
) -> Floats:
    """Return the weighted least squares fit to sums over any number of partitions; inexact if there is none.

    Parameters
    ----------
    values, variances : ndarray, shape (cells,)
    allowed : ndarray of bool, shape (cells,)
        Cells that are not allowed are 0.
    partitions : sequence of tuple
        For each partition, the part of every cell and the sum of every part.

    Returns
    -------
    ndarray, shape (cells,)
    """
    for parts, targets in partitions:
        allowed = allowed & (targets[parts] > 0)
    spread, own = _positive(variances, allowed), np.where(allowed, values, 0.0)
    lines = [Lines.of(parts, targets) for parts, targets in partitions]
    shifts, total = [np.zeros(len(one.targets)) for one in lines], np.zeros(len(values))

    for sweep in range(SWEEPS):
        off = 0.0
        for line, shift, (parts, targets) in zip(lines, shifts, partitions, strict=True):
            fitted = np.maximum(own + spread * total, 0.0)
            off = max(off, float(np.abs(np.bincount(parts, fitted, len(targets)) - targets).max()))
            total -= shift[parts]
            moved = own + spread * total
            loops.move_shifts(moved[line.order], spread[line.order], line.starts, line.targets, shift, sweep == 0)
            total += shift[parts]

        if off <= CLOSE:
            break

    return np.maximum(own + spread * total, 0.0)


def _turned(table: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(table.T)


def _starts(counts: Integers) -> Integers:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _placed(order: Integers, values: NDArray[Any]) -> NDArray[Any]:
    """Return values in the order of the cells."""
    found = np.empty_like(values)
    found[order] = values
    return found


def _positive(variances: Floats, allowed: Flags) -> Floats:
    """Return variances that are 0 only where a cell is not allowed."""
    return np.where(allowed, np.maximum(variances, LEAST * max(float(variances.mean()), 1e-300)), 0.0)
