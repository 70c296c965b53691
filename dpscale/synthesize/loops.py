"""The compiled loop of drawing cells inside groups: as `reconstruct.pairwise.loops`, plain products and sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpscale.privacy.sampling_loops import compiled
from dpscale.reconstruct.pairwise.loops import chosen


@compiled(
    "void(int32[::1], int32[:, ::1], int64, int64[::1], int64[::1], int64[::1], float32[::1], float32[::1],"
    " float32[::1], float32[::1], float32[::1], uint64[::1])"
)
def sweep_cells(
    cells: Any, rows: Any, i: int, order: Any, bounds: Any, starts: Any, inside: Any, weights: Any, slopes: Any,
    alone: Any, alone_slopes: Any, state: Any,
) -> None:  # fmt: skip
    """Draw the cell of attribute i within the group that each row has, given the groups of the others.

    `bounds[g]`: the first cell of group g; `starts[j]`: where (group of j) × (cell of i) begins, −1: no such pair;
    `inside`: logarithms of the cells' shares of their group; `alone`: what holds the cells' own counts.
    """
    size = bounds[-1]
    logits, room = np.empty(size, np.float32), np.empty(size, np.float32)
    for place in range(len(order)):
        r = order[place]
        low = bounds[rows[r, i]]
        width = bounds[rows[r, i] + 1] - low
        if width == 1:
            continue
        old = np.int64(cells[r]) - low
        for c in range(width):
            logits[c] = inside[low + c] + alone[low + c]
        own = alone_slopes[low + old]
        for j in range(rows.shape[1]):
            if starts[j] >= 0:
                base = starts[j] + np.int64(rows[r, j]) * size + low
                for c in range(width):
                    logits[c] += weights[base + c]
                own += slopes[base + old]
        logits[old] += own
        new = chosen(logits, width, room, state)
        if new == old:
            continue
        cells[r] = low + new
        alone[low + old] += alone_slopes[low + old]
        alone[low + new] -= alone_slopes[low + new]
        for j in range(rows.shape[1]):
            if starts[j] >= 0:
                base = starts[j] + np.int64(rows[r, j]) * size + low
                weights[base + old] += slopes[base + old]
                weights[base + new] -= slopes[base + new]
