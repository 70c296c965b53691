"""The compiled loops of polishing: as `reconstruct.pairwise.loops`, with tables of three attributes beside the pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpscale.privacy.sampling_loops import compiled
from dpscale.reconstruct.pairwise.loops import chosen

BLOCK = 2048  # rows whose values stay in the cache while sets are counted


@compiled("void(int32[:, ::1], int64[:, ::1], int64[::1], int64[::1], float64[::1])")
def count_threes(rows: Any, sets: Any, ends: Any, sizes: Any, counts: Any) -> None:
    """Add how many rows are in each cell of the sets."""
    for first in range(0, len(rows), BLOCK):
        last = min(len(rows), first + BLOCK)
        for t in range(len(sets)):
            i, j, k = sets[t, 0], sets[t, 1], sets[t, 2]
            for r in range(first, last):
                pair = np.int64(rows[r, i]) * sizes[j] + rows[r, j]
                counts[ends[t] + pair * sizes[k] + rows[r, k]] += 1


@compiled(
    "void(int64[:, ::1], int64[::1], int64[::1], float64[::1], float64[::1], float64, float64, float32[::1],"
    " float32[::1])"
)
def weigh_threes(
    sets: Any, ends: Any, sizes: Any, wanted: Any, counts: Any, floor: float, beta: float, weights: Any, slopes: Any
) -> None:
    """W = −β (C + ½ − T) / (T + floor) and its slope, laid out by each attribute of a set."""
    for t in range(len(sets)):
        ni, nj, nk = sizes[sets[t, 0]], sizes[sets[t, 1]], sizes[sets[t, 2]]
        by_i = 3 * ends[t]
        by_j, by_k = by_i + ni * nj * nk, by_i + 2 * ni * nj * nk
        for a in range(ni):
            for b in range(nj):
                for c in range(nk):
                    at = ends[t] + (a * nj + b) * nk + c
                    slope = beta / (wanted[at] + floor)
                    weight = slope * (wanted[at] - counts[at] - 0.5)
                    weights[by_i + (b * nk + c) * ni + a] = weight
                    weights[by_j + (a * nk + c) * nj + b] = weight
                    weights[by_k + (a * nj + b) * nk + c] = weight
                    slopes[by_i + (b * nk + c) * ni + a] = slope
                    slopes[by_j + (a * nk + c) * nj + b] = slope
                    slopes[by_k + (a * nj + b) * nk + c] = slope


@compiled(
    "int64(int32[:, ::1], int64[::1], int64[:, ::1], int64[::1], int64[:, :, ::1], int64[:, :, ::1], int64[::1],"
    " int64[::1], float32[::1], int64[::1], float32[::1], float32[::1], float32[::1], float32[::1], uint64[::1],"
    " int64[::1])"
)
def sweep_threes(
    rows: Any, order: Any, near: Any, degrees: Any, starts: Any, around: Any, sets_of: Any, sizes: Any, alone: Any,
    alone_at: Any, weights: Any, slopes: Any, three_weights: Any, three_slopes: Any, state: Any, turn: Any,
) -> int:  # fmt: skip
    """As `sweep` over pairs, with `around[i, :sets_of[i]]`, the sets that i is in; how many values changed."""
    most = 0
    for i in range(len(sizes)):
        most = max(most, sizes[i])
    logits, room = np.empty(most, np.float32), np.empty(most, np.float32)
    changed = 0
    for place in range(len(order)):
        row = rows[order[place]]
        for step in range(len(sizes)):
            i = turn[(step + place) % len(sizes)]
            size, old = sizes[i], np.int64(row[i])
            for a in range(size):
                logits[a] = alone[alone_at[i] + a]
            own = np.float32(0)
            for t in range(degrees[i]):
                j = near[i, t]
                base = starts[i, j, 1] + np.int64(row[j]) * size
                part = weights[base : base + size]
                for a in range(size):
                    logits[a] += part[a]
                own += slopes[base + old]
            for t in range(sets_of[i]):
                own_set = around[i, t]
                base = own_set[2] + row[own_set[0]] * own_set[3] + row[own_set[1]] * own_set[4]
                part = three_weights[base : base + size]
                for a in range(size):
                    logits[a] += part[a]
                own += three_slopes[base + old]
            logits[old] += own
            new = chosen(logits, size, room, state)
            if new == old:
                continue
            changed += 1
            row[i] = new
            for t in range(degrees[i]):
                j = near[i, t]
                other = np.int64(row[j])
                base, back = starts[i, j, 1] + other * size, starts[j, i, 1] + other
                left, joined = slopes[base + old], slopes[base + new]
                weights[base + old] += left
                weights[back + old * sizes[j]] += left
                weights[base + new] -= joined
                weights[back + new * sizes[j]] -= joined
            for t in range(sets_of[i]):
                own_set = around[i, t]
                j, k = np.int64(row[own_set[0]]), np.int64(row[own_set[1]])
                base = own_set[2] + j * own_set[3] + k * own_set[4]
                by_j, by_k = own_set[5] + k * own_set[7] + j, own_set[8] + j * own_set[10] + k
                left, joined = three_slopes[base + old], three_slopes[base + new]
                three_weights[base + old] += left
                three_weights[by_j + old * own_set[6]] += left
                three_weights[by_k + old * own_set[9]] += left
                three_weights[base + new] -= joined
                three_weights[by_j + new * own_set[6]] -= joined
                three_weights[by_k + new * own_set[9]] -= joined
    return changed
