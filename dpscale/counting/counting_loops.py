"""The compiled loops over rows: joint codes of attribute sets, one increment a row, and sums of a joint's axes.

Sets come sorted, so that neighbours share a prefix whose codes are made once. Prefix codes are kept for a whole block
(second cache), the last attribute is added for a slice of it (first cache) right before the increments. A block is long
so that a set's counters, once fetched, are used often; wide ones are stood in for by narrow ones that fit the second
cache. Counters of few cells are kept four times over, because rows that meet in one counter wait for each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Integers
from dpscale.base.jit import njit

SLICE = 4096
COPIES = 4
FEW = 1024
STAND_IN = 1 << 16  # cells of narrow counters for a block

Array = NDArray[Any]


@njit(cache=True, nogil=True)
def _extend(codes: Array, before: Array, column: int, size: int, out: Array, rows: int) -> None:
    """out = before × size + column, in the width of `out`."""
    for r in range(rows):
        out[r] = before[r] * size + codes[column, r]


@njit(cache=True, nogil=True)
def _increment(codes: Array, rows: int, counters: Array) -> None:
    for r in range(rows):
        counters[codes[r]] += 1


@njit(cache=True, nogil=True)
def _increment_copies(codes: Array, rows: int, cells: int, copies: Array) -> None:
    in_copies = rows - rows % COPIES
    for r in range(0, in_copies, COPIES):
        copies[codes[r]] += 1
        copies[cells + codes[r + 1]] += 1
        copies[2 * cells + codes[r + 2]] += 1
        copies[3 * cells + codes[r + 3]] += 1
    for r in range(in_copies, rows):
        copies[codes[r]] += 1


@njit(cache=True, nogil=True)
def count_codes(
    codes: NDArray[np.unsignedinteger[Any]],
    columns: Integers,
    sizes: NDArray[Any],
    starts: Integers,
    shared: Integers,
    offsets: Integers,
    cell_counts: Integers,
    counters: NDArray[Any],
    levels: NDArray[Any],
) -> None:
    """Add the rows of `codes` (attributes × rows, at most a block) to `counters`.

    Set s has columns[starts[s]:starts[s+1]] of these sizes, the first shared[s] as the set before it, and
    cell_counts[s] counters from offsets[s] on. `levels` holds the prefix codes: depth × block, of the codes' width.
    """
    rows = codes.shape[1]
    last = np.empty(SLICE, dtype=levels.dtype)
    narrow = np.empty(STAND_IN, dtype=np.uint32)
    for s in range(len(starts) - 1):
        first, end, cells = starts[s], starts[s + 1], cell_counts[s]
        for k in range(first + shared[s], end - 1):
            if k == first:
                for r in range(rows):
                    levels[0, r] = codes[columns[k], r]
            else:
                _extend(codes, levels[k - first - 1], columns[k], sizes[k], levels[k - first], rows)
        mine = counters[offsets[s] : offsets[s] + cells]
        copies = COPIES if cells <= FEW else 0
        if not copies and counters.itemsize > 4 and cells <= min(STAND_IN, rows // 2):
            copies = 1
        narrow[: copies * cells] = 0
        for begin in range(0, rows, SLICE):
            length = min(SLICE, rows - begin)
            part = codes[:, begin : begin + length]
            if end - first == 1:
                for r in range(length):
                    last[r] = part[columns[first], r]
            else:
                before = levels[end - first - 2, begin : begin + length]
                _extend(part, before, columns[end - 1], sizes[end - 1], last, length)
            if copies == COPIES:
                _increment_copies(last, length, cells, narrow)
            elif copies:
                _increment(last, length, narrow)
            else:
                _increment(last, length, mine)
        for c in range(copies):
            for i in range(cells):
                mine[i] += narrow[c * cells + i]


@njit(cache=True, nogil=True)
def fold(
    counters: NDArray[Any], offsets: Integers, cells: Integers, sizes: Integers, starts: Integers,
    owners: Integers, strides: Integers, stride_starts: Integers, places: Integers, flat: Integers,
) -> None:  # fmt: skip
    """Add the sum of each set's joint over the axes it lacks to `flat` from places[s] on.

    Joint j has sizes[starts[j]:starts[j+1]]; strides[stride_starts[s]:] are the set's strides for the joint's axes, 0
    for those summed over.
    """
    for s in range(len(owners)):
        j = owners[s]
        width = starts[j + 1] - starts[j]
        size = sizes[starts[j] : starts[j + 1]]
        stride = strides[stride_starts[s] : stride_starts[s] + width]
        digits = np.zeros(width, dtype=np.int64)
        inner, step, to = size[-1], stride[-1], places[s]
        for cell in range(offsets[j], offsets[j] + cells[j], inner):
            if step == 0:
                total = np.int64(0)
                for i in range(inner):
                    total += np.int64(counters[cell + i])
                flat[to] += total
            else:
                for i in range(inner):
                    flat[to + i * step] += np.int64(counters[cell + i])
            axis = width - 2
            while axis >= 0:
                digits[axis] += 1
                to += stride[axis]
                if digits[axis] < size[axis]:
                    break
                to -= size[axis] * stride[axis]
                digits[axis] = 0
                axis -= 1
