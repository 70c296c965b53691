"""The compiled loops of sweeps over rows: plain products and sums in one order, so the same bytes everywhere.

No BLAS and no exponential of a library: exp is (1 + x/1024)^1024 by ten squarings, near enough for a sampler that is
held to its counts, and vectorised by the compiler. Apart from the rest so that numba is loaded when rows are swept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.privacy.sampling_loops import compiled

Floats = NDArray[np.float32]
FAR, STEP, ONE = np.float32(-60.0), np.float32(1 / 1024), np.float32(1)
UNIT = np.float32(1 / 16777216)
BLOCK = 2048  # rows whose values stay in the cache while pairs are counted


@compiled("void(float32[::1], int64, float32[::1])", inline="always")
def exponentials(logits: Floats, count: int, out: Floats) -> None:
    """exp of each, which are ≤ 0."""
    for a in range(count):
        x = max(logits[a], FAR) * STEP + ONE
        for _ in range(10):
            x = x * x
        out[a] = x


@compiled("float32(uint64[::1])", inline="always")
def uniform(state: NDArray[np.uint64]) -> Any:
    """The next of a xorshift64* sequence, in [0, 1)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return np.float32((x * np.uint64(2685821657736338717)) >> np.uint64(40)) * UNIT


@compiled("int64(float32[::1], int64, float32[::1], uint64[::1])", inline="always")
def chosen(logits: Floats, count: int, weights: Floats, state: NDArray[np.uint64]) -> int:
    """An index with probability proportional to exp(logit); `weights` is room for the exponentials."""
    top = logits[0]
    for a in range(1, count):
        top = max(top, logits[a])
    for a in range(count):
        logits[a] -= top
    exponentials(logits, count, weights)
    total = np.float32(0)
    for a in range(count):
        total += weights[a]
    point = uniform(state) * total
    index, passed = 0, weights[0]
    while passed <= point and index < count - 1:
        index += 1
        passed += weights[index]
    return index


@compiled(
    "void(int64[:, :, ::1], boolean[:, ::1], int64[::1], float64[::1], float64[::1], float64[::1], float64[::1],"
    " float64, float32[::1], float32[::1])"
)
def weigh(
    starts: Any, used: Any, sizes: Any, wanted: Any, scale: Any, theta: Any, counts: Any, beta: float, weights: Any,
    slopes: Any,
) -> None:  # fmt: skip
    """W = θ − β (C + ½ − T) / S and its slope β / S of the pairs in use, laid out once by each attribute."""
    for i in range(len(sizes)):
        for j in range(i + 1, len(sizes)):
            if not used[i, j]:
                continue
            base, by_i, by_j = starts[i, j, 0], starts[i, j, 1], starts[j, i, 1]
            for a in range(sizes[i]):
                for b in range(sizes[j]):
                    k = base + a * sizes[j] + b
                    slope = beta / scale[k]
                    weight = theta[k] - slope * (counts[k] + 0.5 - wanted[k])
                    weights[by_i + b * sizes[i] + a] = weight
                    weights[by_j + a * sizes[j] + b] = weight
                    slopes[by_i + b * sizes[i] + a] = slope
                    slopes[by_j + a * sizes[j] + b] = slope


@compiled("void(int32[:, ::1], int64[:, :, ::1], boolean[:, ::1], int64[::1], float64[::1])")
def count(rows: Any, starts: Any, used: Any, sizes: Any, counts: Any) -> None:
    """How many rows are in each cell of the pairs in use."""
    counts[:] = 0
    for first in range(0, len(rows), BLOCK):
        last = min(len(rows), first + BLOCK)
        for i in range(len(sizes)):
            for j in range(i + 1, len(sizes)):
                if used[i, j]:
                    base = starts[i, j, 0]
                    for r in range(first, last):
                        counts[base + np.int64(rows[r, i]) * sizes[j] + rows[r, j]] += 1


@compiled(
    "int64(int32[:, ::1], int64[::1], int64[:, ::1], int64[::1], int64[:, :, ::1], int64[:, :, ::1], int64[::1],"
    " int64[::1], float32[::1], int64[::1], float32[::1], float32[::1], float32[::1], uint64[::1], int64[::1])"
)
def sweep(
    rows: Any, order: Any, near: Any, degrees: Any, starts: Any, around: Any, sets_of: Any, sizes: Any, alone: Any,
    alone_at: Any, weights: Any, slopes: Any, threes: Any, state: Any, turn: Any,
) -> int:  # fmt: skip
    """Draw every value of every row anew, given the others and the counts of all rows; how many changed.

    `near[i, :degrees[i]]`: the attributes that i has pairs with; `alone`: the logarithms of the 1-ways. The row itself
    is not counted while its value is drawn; a value that changes moves two cells of each pair by one.
    `around[i, :sets_of[i]]`: the sets of three that i is in, if rows are held to some (`synthesize.threes`); `threes`:
    the weights of their cells, each line of them with its slopes behind.
    """
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
                part = threes[base : base + size]
                for a in range(size):
                    logits[a] += part[a]
                own += threes[base + size + old]
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
                left, joined = threes[base + size + old], threes[base + size + new]
                threes[base + old] += left
                threes[by_j + old * own_set[6]] += left
                threes[by_k + old * own_set[9]] += left
                threes[base + new] -= joined
                threes[by_j + new * own_set[6]] -= joined
                threes[by_k + new * own_set[9]] -= joined
    return changed
