"""Non-negative whole numbers near estimates with fixed sums over one or two partitions of the cells.

A weighted least squares fit is rounded, both in compiled loops. One partition splits the cells into lines. Two
partitions split them into grids: cells of a grid are the pairs of one part of each. Lines and grids are independent of
each other, so the time is linear in the number of cells.

A block is a grid of rows × columns whose row sums and column sums are fixed, or a line whose sum is fixed. The fit is
the minimum of Σ (t − x)² / V over t ≥ 0 with these sums: t = max(x + V (λ_row + μ_column), 0), by steps that solve for
all λ and all μ alternately. The rounding keeps the sums exactly. Rows are rounded by largest remainders; columns are
then corrected one unit at a time along shortest paths, which is the minimum-cost flow from this start. Both orders of
summation and ties are fixed, so the bytes of a result depend on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpscale.base.compilation import njit
from dpscale.base.numerics import Flags, Floats, Integers, NDArray
from dpscale.optimize import nonnegative_counts as loops

STEPS = 60  # of Newton's method on a line
NEAR = 1e-7  # distance from a whole number at which a fitted value is taken to be whole


@njit(cache=True, nogil=True)
def fit_lines(values: Floats, variances: Floats, starts: Integers, targets: Integers, fitted: Floats) -> None:
    """Project every line on the non-negative values with its sum.

    Line i has the cells from starts[i] to starts[i + 1]. A cell of variance 0 is 0.
    """
    for line in range(len(targets)):
        first, last = starts[line], starts[line + 1]
        shift = _line_shift(values[first:last], variances[first:last], 0.0, float(targets[line]), True)
        for cell in range(first, last):
            moved = values[cell] + variances[cell] * shift
            fitted[cell] = moved if targets[line] > 0 and variances[cell] > 0 and moved > 0 else 0.0


@njit(cache=True, nogil=True)
def move_shifts(
    values: Floats, variances: Floats, starts: Integers, targets: Integers, shifts: Floats, fresh: bool
) -> None:
    """Solve Σ max(values + variances · s, 0) = targets[l] for the shift s of every line l, in place.

    The sum is over the cells of line l, starts[l] … starts[l + 1] − 1. With such shifts (multipliers) the cells
    max(values + variances · s, 0) are the weighted least squares fit to the sums of the lines. A line of sum 0 keeps
    its shift, because its cells are not allowed. If `fresh`, the search starts at the shift without truncated values
    instead of the given one.
    """
    for line in range(len(targets)):
        first, last = starts[line], starts[line + 1]
        if targets[line] > 0:
            shifts[line] = _line_shift(
                values[first:last], variances[first:last], shifts[line], float(targets[line]), fresh
            )


@njit(cache=True, nogil=True)
def _line_shift(values: Floats, variances: Floats, shift: float, target: float, fresh: bool) -> float:
    """Return s with Σ max(values + variances · s, 0) = target, by Newton's method.

    It starts at `shift`, or, if `fresh`, at the solution without truncation (`free`). Cells without variance do not
    move and are not in the sum.

    The sum is convex and piecewise linear in s with the slope Σ variances over the positive cells (`active`), so a step
    of Newton's method never passes the solution from above. If no cell is positive there is no slope, and the search
    starts again at `free`.
    """
    everything = slope = 0.0
    for cell in range(len(values)):
        if variances[cell] > 0:
            everything += values[cell]
            slope += variances[cell]

    if slope <= 0:
        return shift

    free = (target - everything) / slope
    if fresh:
        shift = free
    for _ in range(STEPS):
        total = active = 0.0
        for cell in range(len(values)):
            moved = values[cell] + variances[cell] * shift
            if variances[cell] > 0 and moved > 0:
                total += moved
                active += variances[cell]

        # no positive value, hence no slope
        if active <= 0:
            shift = free
            continue

        step = (target - total) / active
        shift += step
        if abs(target - total) <= 1e-10 * (1 + target):
            break

    return shift


@njit(cache=True, nogil=True)
def round_lines(fitted: Floats, starts: Integers, targets: Integers, whole: Integers) -> None:
    """Round every line by largest remainders; among equal ones, the first cells are rounded up."""
    for line in range(len(targets)):
        _round_line(fitted[starts[line] : starts[line + 1]], targets[line], whole[starts[line] : starts[line + 1]])


@njit(cache=True, nogil=True)
def _round_line(fitted: Floats, target: int, whole: Integers) -> None:
    """Round values down, and those with the largest remainders up until the sum is the target, into `whole`.

    Values that are 0 stay 0. If the sum of the rounded values is above the target, the smallest remainders decrease.

    `NEAR` keeps a value that is whole up to rounding errors from being rounded down.
    """
    rest = target
    for cell in range(len(fitted)):
        whole[cell] = int(np.floor(fitted[cell] + NEAR))
        rest -= whole[cell]

    if rest == 0 or len(fitted) == 0:
        return

    order = np.argsort(whole - fitted, kind="mergesort")  # the largest remainder first
    place = 0
    while rest > 0 and place < len(order):
        if fitted[order[place]] > 0:
            whole[order[place]] += 1
            rest -= 1
        place += 1

    place = len(order) - 1
    while rest < 0 and place >= 0:
        if whole[order[place]] > 0:
            whole[order[place]] -= 1
            rest += 1
        place -= 1


@njit(cache=True, nogil=True)
def fit_grid(
    values: Floats, variances: Floats, rows: Integers, columns: Integers, sweeps: int, close: float, fitted: Floats
) -> float:
    """Fit one grid by weighted least squares to its row and column sums; return how far the column sums are off.

    A fitted value is max(value + variance · (shift of its row + shift of its column), 0). Shifts of rows and of columns
    are solved in turn, `across` and `down`. Cells in a row or a column of sum 0 stay at 0. The passes end at `sweeps`,
    or when a column sum is off by at most `close`.

    `free` and `spread` are values and variances of the cells that may differ from 0. The first pass starts each row
    where no value is truncated (`sweep == 0`), the others from the last shift.
    """
    height, width = values.shape
    free, spread = np.zeros((height, width)), np.zeros((height, width))
    for i in range(height):
        for j in range(width):
            if rows[i] > 0 and columns[j] > 0 and variances[i, j] > 0:
                free[i, j], spread[i, j] = values[i, j], variances[i, j]

    across, down = np.zeros(height), np.zeros(width)
    off, buffer = 0.0, np.empty(width)
    # the shifts of all rows given those of columns, then the reverse
    for sweep in range(sweeps):
        for i in range(height):
            if rows[i] > 0:
                for j in range(width):
                    buffer[j] = free[i, j] + spread[i, j] * down[j]
                across[i] = _line_shift(buffer, spread[i], across[i], float(rows[i]), sweep == 0)
        off = _column_steps(free, spread, across, down, columns)
        if off <= close:
            break

    for i in range(height):
        for j in range(width):
            # rows once more, so that their sums are exact and only those of columns are off
            buffer[j] = free[i, j] + spread[i, j] * down[j]
        if rows[i] > 0:
            across[i] = _line_shift(buffer, spread[i], across[i], float(rows[i]), False)
        for j in range(width):
            fitted[i, j] = max(buffer[j] + spread[i, j] * across[i], 0.0)

    return off


@njit(cache=True, nogil=True)
def _column_steps(values: Floats, spread: Floats, across: Floats, down: Floats, columns: Integers) -> float:
    """Solve for the shifts of all columns, in place, by Newton's method; return how far column sums were off before.

    Each column's Newton step is its missing sum over the slope (`active`); with no positive value, the step is to the
    shift at which no value is truncated. `across` and `down` are the shifts of rows and columns; a fitted value is
    max(value + spread · (across + down), 0). `everything` and `slope` are the sums over all values as if none was
    truncated.
    """
    height, width = values.shape
    before = 0.0
    for step in range(STEPS):
        total, active = np.zeros(width), np.zeros(width)
        everything, slope = np.zeros(width), np.zeros(width)
        for i in range(height):
            for j in range(width):
                moved = values[i, j] + spread[i, j] * (across[i] + down[j])
                # truncated values are constant at 0, so they add neither to the sum nor to its slope
                if moved > 0:
                    total[j] += moved
                    active[j] += spread[i, j]
                everything[j] += values[i, j] + spread[i, j] * across[i]
                slope[j] += spread[i, j]

        # columns are independent of each other given the rows, so all take a step in one pass
        worst = 0.0
        for j in range(width):
            if columns[j] > 0 and slope[j] > 0:
                rest = abs(columns[j] - total[j])
                if step == 0:
                    before = max(before, rest)
                worst = max(worst, rest / (1 + columns[j]))
                if active[j] > 0:
                    down[j] += (columns[j] - total[j]) / active[j]
                else:
                    down[j] = (columns[j] - everything[j]) / slope[j]

        if worst <= 1e-10:
            break

    return before


@njit(cache=True, nogil=True)
def round_grid(fitted: Floats, allowed: Flags, rows: Integers, columns: Integers, whole: Integers) -> bool:
    """Round one grid; return whether integers with these sums were found.

    Values are rounded down or up as far as that is possible. If the fit was not exact, some move further.

    `surplus` is the sum of each column less its target, after the rows are rounded; `low` and `high` limit each cell to
    its rounded values, and in the second round to 0 and no upper limit. `whole` receives the result. NEAR allows for
    rounding errors of a fit that is an integer; the limit 2^62 stands for none.

    `allowed` marks the cells that may be positive; `further` is the second round, in which a cell may be any
    non-negative number.
    """
    height, width = fitted.shape
    low, high = np.zeros((height, width), np.int64), np.zeros((height, width), np.int64)
    for further in range(2):
        surplus = -columns
        for i in range(height):
            _round_line(fitted[i], rows[i], whole[i])
            remainder = rows[i]
            for j in range(width):
                surplus[j] += whole[i, j]
                remainder -= whole[i, j]
                if further:
                    low[i, j] = 0
                    high[i, j] = np.int64(1) << 62 if allowed[i, j] and rows[i] > 0 and columns[j] > 0 else 0
                else:
                    low[i, j] = min(int(np.floor(fitted[i, j] + NEAR)), whole[i, j])
                    high[i, j] = max(int(np.ceil(fitted[i, j] - NEAR)), whole[i, j])

            # a row cannot reach its sum, so no columns need to be tried
            if remainder != 0:
                return False

        if _move_units(fitted, whole, low, high, surplus):
            return True

    return False


@njit(cache=True, nogil=True)
def _move_units(fitted: Floats, whole: Integers, low: Integers, high: Integers, surplus: Integers) -> bool:
    """Move units within rows until no column has a surplus; return whether that was possible.

    An arc from column j to k moves a unit of the row in which this costs least.

    `cost[j, k]` is the least cost of a move from column j to k, and `row[j, k]` the row that has it. Units move along
    the cheapest path from a column with a surplus to one that lacks a unit, and the changed rows are offered again.
    """
    height, width = fitted.shape
    if not (surplus > 0).any():
        return True

    cost, row = np.full((width, width), np.inf), np.full((width, width), -1)
    for i in range(height):
        _offer(fitted, whole, low, high, i, cost, row)
    while True:
        previous, end = _path(cost, surplus)
        if end < 0:
            return not (surplus > 0).any()

        surplus[end] += 1
        changed = np.empty(width, np.int64)
        count = 0
        # move a unit along each arc of the path, from its end back to its start
        while previous[end] >= 0:
            if count == width:  # a negative cycle, which the start excludes but for rounding errors
                return False
            start = previous[end]
            i = row[start, end]
            whole[i, start] -= 1
            whole[i, end] += 1
            changed[count] = i
            count += 1
            end = start

        surplus[end] -= 1
        for number in range(count):
            _offer_again(fitted, whole, low, high, changed[number], cost, row)


@njit(cache=True, nogil=True)
def _price(fitted: Floats, whole: Integers, low: Integers, high: Integers, i: int, j: int, k: int) -> float:
    """Return the increase of Σ (whole − fitted)² if a unit of row i moves from column j to k."""
    if whole[i, j] <= low[i, j] or whole[i, k] >= high[i, k] or j == k:
        return np.inf
    return 2 + 2 * (fitted[i, j] - whole[i, j]) - 2 * (fitted[i, k] - whole[i, k])


@njit(cache=True, nogil=True)
def _offer(fitted: Floats, whole: Integers, low: Integers, high: Integers, i: int, cost: Floats, row: Integers) -> None:
    """Take row i for every arc (from column j to k) for which it is the cheapest so far.

    An arc moves one unit of a row from a column to another; its cost is the change of the squared distance to the fit.
    Row i gives up a unit of column j only above its lower limit; `row[j, k]` is the cheapest row so far, `cost[j, k]`
    its cost.
    """
    width = fitted.shape[1]
    for j in range(width):
        if whole[i, j] > low[i, j]:
            for k in range(width):
                price = _price(fitted, whole, low, high, i, j, k)
                if price < cost[j, k]:
                    cost[j, k], row[j, k] = price, i


@njit(cache=True, nogil=True)
def _offer_again(
    fitted: Floats, whole: Integers, low: Integers, high: Integers, i: int, cost: Floats, row: Integers
) -> None:
    """Find the cheapest rows again after a change of row i.

    `row[j, k]` is the row that is the cheapest for a move from column j to k, and `cost[j, k]` its cost; arcs of row i
    are searched over all rows, since its costs changed.

    A row that became cheaper is offered by `_offer`; arcs of other rows have not changed.
    """
    height, width = fitted.shape
    for j in range(width):
        for k in range(width):
            if row[j, k] == i:
                cost[j, k], row[j, k] = np.inf, -1
                for other in range(height):
                    price = _price(fitted, whole, low, high, other, j, k)
                    if price < cost[j, k]:
                        cost[j, k], row[j, k] = price, other

    _offer(fitted, whole, low, high, i, cost, row)


@njit(cache=True, nogil=True)
def _path(cost: Floats, surplus: Integers) -> tuple[Integers, int]:
    """Return the cheapest path from a column with a surplus to one that lacks units: predecessors and end, or −1.

    `cost[j, k]` is the cost of a move of one unit from column j to column k, infinite without a possible move;
    `surplus` is the sum of a column minus its target. Bellman and Ford's method, because costs of moves towards the fit
    are negative.
    """
    width = len(surplus)
    distance, previous = np.full(width, np.inf), np.full(width, -1)
    for j in range(width):
        if surplus[j] > 0:
            distance[j] = 0.0

    for _ in range(width):
        shorter = False
        for j in range(width):
            if distance[j] < np.inf:
                for k in range(width):
                    # a gain below 1e-9 is rounding, which could close a cycle of predecessors
                    if distance[j] + cost[j, k] < distance[k] - 1e-9:
                        distance[k], previous[k] = distance[j] + cost[j, k], j
                        shorter = True
        if not shorter:
            break

    end, least = -1, np.inf
    for j in range(width):
        if surplus[j] < 0 and distance[j] < least:
            end, least = j, distance[j]

    return previous, end


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
        sorted_values, fitted = np.ascontiguousarray(values[self.order]), np.empty(len(values))
        loops.fit_lines(sorted_values, _positive(variances, allowed)[self.order], self.starts, self.targets, fitted)
        return _placed(self.order, fitted)

    def round(self, fitted: Floats) -> Integers | None:
        """Return whole numbers near a fit with the same sums; None if a sum has no allowed cell.

        `order` sorts the cells by line, whose cells are from starts[l] to starts[l + 1] and sum to targets[l].
        """
        whole = np.zeros(len(fitted), np.int64)
        loops.round_lines(np.ascontiguousarray(fitted[self.order]), self.starts, self.targets, whole)
        # `reduceat` gives an empty line the value of its start, hence the factor 0
        sums = np.add.reduceat(np.append(whole, 0), self.starts[:-1]) * (np.diff(self.starts) > 0)
        return _placed(self.order, whole) if np.array_equal(sums, self.targets) else None


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
        """Return the grids of two partitions: tables with the parts of the first as rows, of the second as columns.

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
        rows, columns = (np.argsort(grid, kind="stable") for grid in grids)  # parts, sorted by their grid
        row_starts, column_starts = (_starts(np.bincount(grid, minlength=number)) for grid in grids)

        # cells are sorted by their row in the sorted order, then by their column
        rank = np.empty(len(rows), np.int64)
        rank[rows] = np.arange(len(rank))
        order = np.argsort(rank[parts[0]] * len(targets[1]) + parts[1], kind="stable")

        if int((np.diff(row_starts) * np.diff(column_starts)).sum()) != len(order):  # Σ over grids of rows × columns
            raise ValueError("the cells of a grid are not the pairs of its parts")
        return cls(order, row_starts, column_starts, targets[0][rows], targets[1][columns])

    @property
    def largest_side(self) -> int:
        """Largest number of parts of the smaller side of a grid."""
        return int(np.minimum(np.diff(self.row_starts), np.diff(self.column_starts)).max())

    def _each(self) -> Iterator[tuple[slice, tuple[int, int], Integers, Integers]]:
        """Yield cells, shape and sums of the grids that are not empty.

        Cells of a grid follow those of the grids before, height × width of them.
        """
        end = 0
        for first_row, last_row, first_column, last_column in zip(
            self.row_starts[:-1].tolist(), self.row_starts[1:].tolist(),
            self.column_starts[:-1].tolist(), self.column_starts[1:].tolist(), strict=True,
        ):  # fmt: skip
            height, width = last_row - first_row, last_column - first_column
            start, end = end, end + height * width
            rows, columns = self.row_targets[first_row:last_row], self.column_targets[first_column:last_column]
            if rows.any() or columns.any():
                yield slice(start, end), (height, width), rows, columns

    def fit(self, values: Floats, variances: Floats, allowed: Flags) -> Floats:
        """Return the weighted least squares fit, in the order of the cells; cells that are not allowed are 0.

        Grids with more columns than rows are transposed for the loop, and their result back.
        """
        sorted_values, spread = values[self.order], _positive(variances, allowed)[self.order]
        by_grid = np.zeros(len(values))
        for cells, shape, rows, columns in self._each():
            table, weights = sorted_values[cells].reshape(shape), spread[cells].reshape(shape)
            if shape[0] < shape[1]:  # the loops are faster with few columns
                table, weights, rows, columns = _turned(table), _turned(weights), columns, rows
            fitted = np.empty_like(table)
            loops.fit_grid(table, weights, rows, columns, SWEEPS, CLOSE, fitted)
            by_grid[cells] = (fitted.T if shape[0] < shape[1] else fitted).reshape(-1)

        return _placed(self.order, by_grid)

    def round(self, fitted: Floats, allowed: Flags) -> Integers | None:
        """Return whole numbers near a fit with the same sums; None if a grid has none.

        `order` sorts the cells by grid. A grid with fewer rows than columns is transposed (`_turned`), which makes the
        search for columns shorter.
        """
        sorted_values, sorted_allowed, by_grid = (
            fitted[self.order],
            allowed[self.order],
            np.zeros(len(fitted), np.int64),
        )
        for cells, shape, rows, columns in self._each():
            table, open_cells = sorted_values[cells].reshape(shape), sorted_allowed[cells].reshape(shape)
            if shape[0] < shape[1]:
                table, open_cells, rows, columns = _turned(table), _turned(open_cells), columns, rows
            whole = np.zeros(table.shape, np.int64)
            if not loops.round_grid(table, open_cells, rows, columns, whole):
                return None
            # back to rows × columns, in the order of the grid's cells
            by_grid[cells] = (whole.T if shape[0] < shape[1] else whole).reshape(-1)

        return _placed(self.order, by_grid)


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

    # a fitted value is max(value + variance · (sum of the shifts of its parts), 0)
    spread, free = _positive(variances, allowed), np.where(allowed, values, 0.0)
    lines = [Lines.of(parts, targets) for parts, targets in partitions]
    shifts, total = [np.zeros(len(line.targets)) for line in lines], np.zeros(len(values))

    for sweep in range(SWEEPS):
        off = 0.0
        for line, shift, (parts, targets) in zip(lines, shifts, partitions, strict=True):
            fitted = np.maximum(free + spread * total, 0.0)
            off = max(off, float(np.abs(np.bincount(parts, fitted, len(targets)) - targets).max()))
            total -= shift[parts]
            moved = free + spread * total
            loops.move_shifts(moved[line.order], spread[line.order], line.starts, line.targets, shift, sweep == 0)
            total += shift[parts]

        if off <= CLOSE:
            break

    return np.maximum(free + spread * total, 0.0)


def _turned(table: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(table.T)


def _starts(counts: Integers) -> Integers:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _placed(order: Integers, values: NDArray[Any]) -> NDArray[Any]:
    """Return values in the order of the cells."""
    placed = np.empty_like(values)
    placed[order] = values
    return placed


def _positive(variances: Floats, allowed: Flags) -> Floats:
    """Return variances that are 0 only where a cell is not allowed."""
    return np.where(allowed, np.maximum(variances, LEAST * max(float(variances.mean()), 1e-300)), 0.0)
