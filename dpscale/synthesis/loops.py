"""The compiled loop of drawing cells inside groups: as `reconstruct.pairwise.loops`, plain products and sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpscale.privacy.sampling_loops import compiled
from dpscale.reconstruction.pairwise.loops import U1, U8, chosen, gather


@compiled(
    "void(int32[::1], int32[:, ::1], int64, int64[::1], int64[::1], int64[::1], float32[::1], float32[::1],"
    " float32[::1], float32[::1], float32[::1], uint64[::1])",
    slp=True,
)
def sweep_cells(
    cells: Any, rows: Any, i: int, order: Any, bounds: Any, starts: Any, inside: Any, weights: Any, slopes: Any,
    alone: Any, alone_slopes: Any, state: Any,
) -> None:  # fmt: skip
    """Draw the cell of attribute i within the group that each row has, given the groups of the others.

    `bounds[g]`: the first cell of group g; `starts[j]`: where (group of j) × (cell of i) begins, −1: no such pair;
    `inside`: logarithms of the cells' shares of their group; `alone`: what holds the cells' own counts.
    """
    size, held = np.uint64(bounds[-1]), np.flatnonzero(starts >= 0).astype(np.uint64)
    logits, room = np.zeros(size + U8, np.float32), np.empty(size, np.float32)
    lines = np.empty(len(held), np.uint64)
    for place in range(len(order)):
        r = np.uint64(order[place])
        row, low = rows[r], np.uint64(bounds[rows[r, i]])
        width, old = np.uint64(bounds[rows[r, i] + 1]) - low, np.uint64(cells[r]) - low
        if width == U1:
            continue
        own = alone_slopes[low + old]
        for c in range(width):
            logits[c] = inside[low + c] + alone[low + c]
        for t in range(len(held)):
            lines[t] = np.uint64(starts[held[t]]) + np.uint64(row[held[t]]) * size + low
            own += slopes[lines[t] + old]
        gather(weights, lines, np.uint64(len(held)), width, logits)
        logits[old] += own
        new = np.uint64(chosen(logits, np.int64(width), room, state))
        if new == old:
            continue
        cells[r] = low + new
        alone[low + old] += alone_slopes[low + old]
        alone[low + new] -= alone_slopes[low + new]
        for line in lines:
            weights[line + old] += slopes[line + old]
            weights[line + new] -= slopes[line + new]
