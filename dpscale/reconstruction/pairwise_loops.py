"""Compiled loops of sweeps over rows, with products and sums in one order: the same bytes on every machine.

They use no BLAS and no library exponential: exp is (1 + x/1024)^1024 by ten squarings, accurate enough for a sampler
with feedback, and vectorised by the compiler. They are a separate module so that numba is loaded when rows are swept.

A row has a value (a group of cells) for each attribute. The weights of a pair of attributes are stored in both
orientations, so that the entries of the attribute that is redrawn are adjacent.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.compilation import compiled
from dpscale.base.numerics import Flags, Floats, Floats32, Integers, Integers32, Words

# in exp: least logit; 1/1024 and 1 of (1 + x/1024)^1024
FAR, STEP, ONE = np.float32(-60.0), np.float32(1 / 1024), np.float32(1)
UNIT = np.float32(1 / 16777216)  # 2^-24: the upper 24 bits of a random word as a float below 1
# indices as 64-bit words, the type of the other indices of the loops
U0, U1, U2, U3, U4, U5, U6, U7, U8, U9, U10 = (np.uint64(number) for number in range(11))
BEHIND = 8  # entries after the last weight that `gather` may read
BLOCK = 2048  # rows that fit the CPU cache while pairs are counted


@compiled("void(float32[::1], int64, float32[::1])", inline="always")
def exponentials(logits: Floats32, count: int, out: Floats32) -> None:
    """Write exp of each logit; logits are ≤ 0."""
    for a in range(count):
        x = max(logits[a], FAR) * STEP + ONE
        for _ in range(10):
            x = x * x
        out[a] = x


@compiled("float32(uint64[::1])", inline="always")
def uniform(state: Words) -> np.float32:
    """Return the next number of a xorshift64* sequence, in [0, 1)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return np.float32((x * np.uint64(2685821657736338717)) >> np.uint64(40)) * UNIT


@compiled("int64(float32[::1], int64, float32[::1], uint64[::1])", inline="always")
def sample_index(logits: Floats32, count: int, weights: Floats32, state: Words) -> int:
    """Return an index with probability proportional to exp(logit); `weights` is working memory.

    Inverts the cumulative weights at a uniform point; logits are reduced by the largest, so that no exponential
    overflows.
    """
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
    starts: Integers, used: Flags, sizes: Integers, targets: Floats, scale: Floats, theta: Floats, counts: Floats,
    beta: float, weights: Floats32, slopes: Floats32,
) -> None:  # fmt: skip
    """Write W = θ − β (C + ½ − T) / S and its slope β / S for the pairs in use, in both orientations.

    C are the counts, T the targets and S the scale: a further row in a cell changes (C − T)²/2 by C + ½ − T. `starts[i,
    j, 0]` is the first cell of the pair in θ, `starts[i, j, 1]` in the orientation in which the cells of i are
    adjacent.

    θ is the model's logarithm of a pair's cell and β the strength of the feedback that draws counts to their targets.
    The weights of a pair are stored twice, once for each attribute whose values are redrawn, so that `gather` reads
    adjacent entries. `base` is a pair's first cell in θ; a and b are the values of i and j.
    """
    for i in range(len(sizes)):
        for j in range(i + 1, len(sizes)):
            if not used[i, j]:
                continue

            base, by_i, by_j = starts[i, j, 0], starts[i, j, 1], starts[j, i, 1]
            for a in range(sizes[i]):
                for b in range(sizes[j]):
                    k = base + a * sizes[j] + b
                    slope = beta / scale[k]
                    weight = theta[k] - slope * (counts[k] + 0.5 - targets[k])
                    weights[by_i + b * sizes[i] + a] = weight
                    weights[by_j + a * sizes[j] + b] = weight
                    slopes[by_i + b * sizes[i] + a] = slope
                    slopes[by_j + a * sizes[j] + b] = slope


@compiled("void(int32[:, ::1], int64[:, :, ::1], boolean[:, ::1], int64[::1], float64[::1])")
def count_pairs(rows: Integers32, starts: Integers, used: Flags, sizes: Integers, counts: Floats) -> None:
    """Count the rows in each cell of the pairs in use.

    `starts[i, j, 0]` is the first cell of a pair, and `sizes` are the numbers of values. Rows are visited by blocks of
    BLOCK, so that a block stays in the cache.

    i and j are the attributes of a pair and r is a row; rows of a pair's table are values of i, columns those of j.
    """
    counts[:] = 0
    for first in range(0, len(rows), BLOCK):
        last = min(len(rows), first + BLOCK)
        for i in range(len(sizes)):
            for j in range(i + 1, len(sizes)):
                if used[i, j]:
                    base, size = np.uint64(starts[i, j, 0]), np.uint64(sizes[j])
                    for r in range(first, last):
                        counts[base + np.uint64(rows[r, i]) * size + np.uint64(rows[r, j])] += 1


@compiled("void(float32[::1], uint64[::1], uint64, uint64, float32[::1])", inline="always")
def gather(weights: Floats32, lines: Words, count: np.uint64, size: np.uint64, logits: Floats32) -> None:
    """Add lines of weights to the logits: logits[a] += Σ_t weights[lines[t] + a] for t < `count` and a < `size`.

    Eight values (l0 to l7) are summed at a time in registers, which the compiler vectorises; b is the first of them.
    The last group may pass `size`: entries after it are unused, and `weights` has BEHIND entries more.
    """
    for b in range(U0, size, U8):
        l0, l1, l2, l3 = logits[b], logits[b + U1], logits[b + U2], logits[b + U3]
        l4, l5, l6, l7 = logits[b + U4], logits[b + U5], logits[b + U6], logits[b + U7]
        for t in range(count):
            at = lines[t] + b
            l0 += weights[at]
            l1 += weights[at + U1]
            l2 += weights[at + U2]
            l3 += weights[at + U3]
            l4 += weights[at + U4]
            l5 += weights[at + U5]
            l6 += weights[at + U6]
            l7 += weights[at + U7]

        logits[b], logits[b + U1], logits[b + U2], logits[b + U3] = l0, l1, l2, l3
        logits[b + U4], logits[b + U5], logits[b + U6], logits[b + U7] = l4, l5, l6, l7


@compiled(
    "void(int32[::1], uint64[:, ::1], uint64, uint64[::1], uint64, uint64, uint64, float32[::1], float32[::1])",
    inline="always",
)
def move(
    row: Integers32,
    near: Words,
    count: np.uint64,
    lines: Words,
    size: np.uint64,
    old: np.uint64,
    new: np.uint64,
    weights: Floats32,
    slopes: Floats32,
) -> None:
    """Update the weights of pairs after a value changes.

    The weight of the old value's cell rises by its slope β/S, since a row left it, and that of the new value's cell
    falls; both orientations of the pair (`line` and `back`) are updated. near[t] has the partner in pair t, and the
    start and stride of the other orientation; `size` is not used.

    t is a pair of the changed attribute; `left` and `joined` are the slopes of the cells that the row leaves and
    enters.
    """
    for t in range(count):
        back, line = near[t, U2] + np.uint64(row[near[t, U0]]), lines[t]
        left, joined = slopes[line + old], slopes[line + new]
        weights[line + old] += left
        weights[back + old * near[t, U3]] += left
        weights[line + new] -= joined
        weights[back + new * near[t, U3]] -= joined


@compiled(
    "void(int32[::1], uint64[:, ::1], uint64, uint64[::1], uint64, uint64, uint64, float32[::1])", inline="always"
)
def move_triples(
    row: Integers32,
    around: Words,
    count: np.uint64,
    lines: Words,
    size: np.uint64,
    old: np.uint64,
    new: np.uint64,
    triples: Floats32,
) -> None:
    """Update the weights of triples after attribute i of a row changes from `old` to `new`.

    As `move`, with three orientations of a triple: a line has the `size` values of the attribute that it is for, and
    its slopes directly behind. `around[t]` has the partners j and k in entries 0 and 1, and start and strides of the
    orientations of j (5 to 7) and of k (8 to 10). `lines[t]` is the line of i, `by_j` and `by_k` the cells of the row
    in the other two for value 0 of i, whose stride is in 6 and 9.
    """
    for t in range(count):
        j, k, line = np.uint64(row[around[t, U0]]), np.uint64(row[around[t, U1]]), lines[t]
        by_j, by_k = around[t, U5] + k * around[t, U7] + j, around[t, U8] + j * around[t, U10] + k
        left, joined = triples[line + size + old], triples[line + size + new]
        triples[line + old] += left
        triples[by_j + old * around[t, U6]] += left
        triples[by_k + old * around[t, U9]] += left
        triples[line + new] -= joined
        triples[by_j + new * around[t, U6]] -= joined
        triples[by_k + new * around[t, U9]] -= joined


@compiled(
    "int64(int32[:, ::1], uint64[:, :, ::1], uint64[::1], uint64[:, :, ::1], uint64[::1], uint64[:, :, ::1],"
    " uint64[::1], uint64[::1], float32[::1], uint64[::1], float32[::1], float32[::1], float32[::1], float32[::1],"
    " float32[::1], uint64[::1], int64[::1])",
    slp=True,
)
def sweep(
    rows: Integers32, near: Words, degrees: Words, around: Words, sets_of: Words, wide_around: Words, wide_of: Words,
    sizes: Words, alone: Floats32, alone_at: Words, weights: Floats32, slopes: Floats32, triples: Floats32,
    wide: Floats32, wide_slopes: Floats32, state: Words, turn: Integers,
) -> int:  # fmt: skip
    """Redraw every value of every row, given the others and the counts of all rows; return the number of changes.

    A value a of attribute i is drawn with the logarithm `alone` + Σ over the pairs, triples and larger sets with i of
    the weight of the cell that the row would enter. A weight falls by its slope when a row enters the cell and rises by
    it when one leaves. So the row itself is not counted while its value is drawn (`correction` at the old value), and a
    value that changes moves two cells of each set by one. Numbers are unsigned, so that indices are never counted from
    the end.

    Parameters
    ----------
    rows : ndarray of int32, shape (rows, attributes)
        Values, changed in place.
    near : ndarray of uint64
        `near[i, :degrees[i]]`: neighbours of i, the start of each pair in both orientations, the neighbour's size.
    around : ndarray of uint64
        `around[i, :sets_of[i]]`: triples with attribute i (`synthesis.set_targets`), if there are triples.
    wide_around : ndarray of uint64
        `wide_around[i, :wide_of[i]]`: larger sets with attribute i, if there are any: start, stride of i, and then
        attribute and stride of each other member in turn; 0 where unused.
    sizes : ndarray of uint64
        Number of values of each attribute.
    alone, alone_at : ndarray
        Logarithms of the 1-way marginals, attribute i from `alone_at[i]` on.
    weights, slopes : ndarray of float32
        Weights and slopes of the cells of pairs, in both orientations.
    triples : ndarray of float32
        Weights of the cells of triples, each line followed by its slopes.
    wide, wide_slopes : ndarray of float32
        Weights and slopes of the cells of larger sets.
    state : ndarray of uint64
        State of the random generator.
    turn : ndarray of int64
        Order of the attributes; each row starts one place later in it than the row before.
    """
    most, widest = U1, U1
    for own_size, pairs_of, triples_of, larger in zip(sizes, degrees, sets_of, wide_of):  # noqa: B905
        most, widest = max(most, own_size), max(widest, max(pairs_of, max(triples_of, larger)))
    # eight more entries, because `gather` writes whole groups of eight values
    logits, buffer = np.zeros(most + U8, np.float32), np.empty(most, np.float32)
    lines, triple_lines, wide_at = np.empty(widest, np.uint64), np.empty(widest, np.uint64), np.empty(widest, np.uint64)

    changed = 0
    for place in range(len(rows)):
        row = rows[place]
        for step in range(len(sizes)):
            i = np.uint64(turn[(step + place) % len(sizes)])
            size, old, pairs, sets = sizes[i], np.uint64(row[i]), near[i], around[i]
            for a in range(size):
                logits[a] = alone[alone_at[i] + a]
            correction = np.float32(0)

            for t in range(degrees[i]):
                # a line has the weights of all values of i, given the row's value of the partner
                lines[t] = pairs[t, U1] + np.uint64(row[pairs[t, U0]]) * size
                correction += slopes[lines[t] + old]

            for t in range(sets_of[i]):
                j, k = np.uint64(row[sets[t, U0]]), np.uint64(row[sets[t, U1]])
                triple_lines[t] = sets[t, U2] + j * sets[t, U3] + k * sets[t, U4]
                correction += triples[triple_lines[t] + size + old]

            gather(weights, lines, degrees[i], size, logits)
            gather(triples, triple_lines, sets_of[i], size, logits)

            for t in range(wide_of[i]):
                # larger sets have one orientation, so that the cells of values of i are `stride` apart
                at, stride = wide_around[i, t, U0], wide_around[i, t, U1]
                for entry in range(U2, np.uint64(wide_around.shape[2]), U2):
                    at += np.uint64(row[wide_around[i, t, entry]]) * wide_around[i, t, entry + U1]
                wide_at[t] = at
                correction += wide_slopes[at + old * stride]
                for a in range(size):
                    logits[a] += wide[at + a * stride]

            logits[old] += correction
            new = np.uint64(sample_index(logits, np.int64(size), buffer, state))

            if new != old:
                changed += 1
                row[i] = new
                move(row, pairs, degrees[i], lines, size, old, new, weights, slopes)
                move_triples(row, sets, sets_of[i], triple_lines, size, old, new, triples)
                for t in range(wide_of[i]):
                    left, joined = wide_at[t] + old * wide_around[i, t, U1], wide_at[t] + new * wide_around[i, t, U1]
                    wide[left] += wide_slopes[left]
                    wide[joined] -= wide_slopes[joined]

    return changed


@compiled("void(int32[::1], int32[::1], int32[::1], int64, int64, float64[::1])")
def count_triple(
    first: Integers32, second: Integers32, third: Integers32, seconds: int, thirds: int, counts: Floats
) -> None:
    """Add rows to the cells of three attributes; `seconds` and `thirds` are the sizes of the last two."""
    for row in range(len(first)):
        counts[(first[row] * seconds + second[row]) * thirds + third[row]] += 1
