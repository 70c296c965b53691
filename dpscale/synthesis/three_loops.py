"""The compiled loops around polishing: sets of three attributes counted, weighed, and how far chance moves them."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpscale.privacy.sampling_loops import compiled
from dpscale.reconstruction.pairwise.loops import BLOCK


@compiled("void(int32[:, ::1], int64[:, ::1], int64[::1], int64[::1], float64[::1])")
def count_threes(rows: Any, sets: Any, ends: Any, sizes: Any, counts: Any) -> None:
    """Add how many rows are in each cell of the sets."""
    for first in range(0, len(rows), BLOCK):
        last = min(len(rows), first + BLOCK)
        for t in range(len(sets)):
            i, j, k = sets[t, 0], sets[t, 1], sets[t, 2]
            base, nj, nk = np.uint64(ends[t]), np.uint64(sizes[j]), np.uint64(sizes[k])
            for r in range(first, last):
                pair = np.uint64(rows[r, i]) * nj + np.uint64(rows[r, j])
                counts[base + pair * nk + np.uint64(rows[r, k])] += 1


@compiled("int64[::1](int32[:, ::1], int64[:, ::1], int64[::1])")
def moved(rows: Any, sets: Any, sizes: Any) -> Any:
    """(t,): of each set Σ √C over its cells, in steps of 1/64 each rounded down, so that no order of sums matters."""
    found, most = np.zeros(len(sets), np.int64), 1
    for t in range(len(sets)):
        most = max(most, sizes[sets[t, 0]] * sizes[sets[t, 1]] * sizes[sets[t, 2]])
    counts = np.empty(most, np.float64)
    for t in range(len(sets)):
        i, j, k = sets[t, 0], sets[t, 1], sets[t, 2]
        cells, nj, nk = sizes[i] * sizes[j] * sizes[k], np.uint64(sizes[j]), np.uint64(sizes[k])
        counts[:cells] = 0
        for r in range(len(rows)):
            counts[(np.uint64(rows[r, i]) * nj + np.uint64(rows[r, j])) * nk + np.uint64(rows[r, k])] += 1
        for cell in range(cells):
            found[t] += np.int64(np.sqrt(counts[cell]) * 64)
    return found


@compiled("void(int64[:, ::1], int64[::1], int64[::1], float64[::1], float64[::1], float64, float64, float32[::1])")
def weigh_threes(
    sets: Any, ends: Any, sizes: Any, wanted: Any, counts: Any, floor: float, beta: float, weights: Any
) -> None:
    """W = −β (C + ½ − T) / (T + floor) and behind them their slopes, laid out by each attribute of a set."""
    for t in range(len(sets)):
        ni, nj, nk = sizes[sets[t, 0]], sizes[sets[t, 1]], sizes[sets[t, 2]]
        by_i = 6 * ends[t]
        by_j, by_k = by_i + 2 * ni * nj * nk, by_i + 4 * ni * nj * nk
        for a in range(ni):
            for b in range(nj):
                for c in range(nk):
                    at = ends[t] + (a * nj + b) * nk + c
                    slope = beta / (wanted[at] + floor)
                    weight = slope * (wanted[at] - counts[at] - 0.5)
                    weights[by_i + 2 * (b * nk + c) * ni + a] = weight
                    weights[by_j + 2 * (a * nk + c) * nj + b] = weight
                    weights[by_k + 2 * (a * nj + b) * nk + c] = weight
                    weights[by_i + (2 * (b * nk + c) + 1) * ni + a] = slope
                    weights[by_j + (2 * (a * nk + c) + 1) * nj + b] = slope
                    weights[by_k + (2 * (a * nj + b) + 1) * nk + c] = slope
