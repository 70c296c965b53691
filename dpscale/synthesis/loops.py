"""Compiled loops that draw cells inside groups, polish triples, and rake the values of numbers by group.

`rows` have a group of cells for each attribute, `refined` rows a cell. Counts are fed back: a cell with too many rows
loses weight with each further one (its slope).
"""

from __future__ import annotations

import numpy as np

from dpscale.base.compilation import compiled
from dpscale.base.numerics import Flags, Floats, Floats32, Integers, Integers32, Words
from dpscale.reconstruction.pairwise_loops import BLOCK, U0, U1, U8, gather, sample_index


@compiled(
    "void(int32[::1], int32[:, ::1], int32[:, ::1], boolean[::1], int64, int64[::1], int64[::1], float32[::1],"
    " float32[::1], float32[::1], float32[::1], float32[::1], uint64[::1])",
    slp=True,
)
def sweep_cells(
    cells: Integers32, rows: Integers32, refined: Integers32, fine: Flags, i: int, bounds: Integers, starts: Integers,
    inside: Floats32, weights: Floats32, slopes: Floats32, alone: Floats32, alone_slopes: Floats32, state: Words,
) -> None:  # fmt: skip
    """Draw the cell of attribute i within the group of each row, given the groups or cells of the others.

    A row's group `rows[r, i]` is fixed; only its `cells[r]` inside it changes. The logits of the cells are `inside`,
    plus `alone`, plus the weights of the pairs with the partners; `low` is the first cell of the group, `width` their
    number.

    Parameters
    ----------
    rows, refined : ndarray of int32, shape (n, d)
        Groups and cells; those of attribute j are used as `fine[j]` is false or true.
    bounds : ndarray of int64
        `bounds[g]`: first cell of group g.
    starts : ndarray of int64
        `starts[j]`: start of (group of j) × (cell of i); −1: no such pair.
    weights, slopes : ndarray of float32
        Feedback of the counts of all pairs: what a row in a cell adds to its logarithm, and by how much that decreases
        with each row.
    inside : ndarray of float32
        Logarithms of the cells' shares of their group.
    alone, alone_slopes : ndarray of float32
        Feedback of the cells' own counts.
    """
    size, partners = np.uint64(bounds[-1]), np.flatnonzero(starts >= 0).astype(np.uint64)
    logits, buffer = np.zeros(size + U8, np.float32), np.empty(size, np.float32)
    lines = np.empty(len(partners), np.uint64)
    for r in range(U0, np.uint64(len(rows))):
        low = np.uint64(bounds[rows[r, i]])
        width, old = np.uint64(bounds[rows[r, i] + 1]) - low, np.uint64(cells[r]) - low
        # nothing to choose
        if width == U1:
            continue

        correction = alone_slopes[low + old]  # the row itself is in the counts
        for c in range(width):
            logits[c] = inside[low + c] + alone[low + c]
        for t in range(len(partners)):
            j = partners[t]
            value = np.uint64(refined[r, j] if fine[j] else rows[r, j])
            lines[t] = np.uint64(starts[j]) + value * size + low
            correction += slopes[lines[t] + old]

        gather(weights, lines, np.uint64(len(partners)), width, logits)
        logits[old] += correction
        new = np.uint64(sample_index(logits, np.int64(width), buffer, state))
        if new == old:
            continue

        # the old cell loses a row and its weights rise; the new cell gains one and its weights fall
        cells[r] = low + new
        alone[low + old] += alone_slopes[low + old]
        alone[low + new] -= alone_slopes[low + new]

        for line in lines:
            weights[line + old] += slopes[line + old]
            weights[line + new] -= slopes[line + new]


@compiled("void(int32[::1], int32[:, ::1], int32[:, ::1], boolean[::1], int64[::1], int64, float64[::1])")
def count_cells(
    cells: Integers32, rows: Integers32, refined: Integers32, fine: Flags, starts: Integers, size: int, counts: Floats
) -> None:
    """Add the number of rows in each (value of j) × (cell), for the columns j that have a start.

    `fine` says whether column j is taken from the `refined` rows or from `rows`; starts[j] is the first count of the
    column, and `size` the number of cells.
    """
    partners = np.flatnonzero(starts >= 0)
    for first in range(0, len(rows), BLOCK):
        last = min(len(rows), first + BLOCK)
        for j in partners:
            base, values = np.uint64(starts[j]), refined if fine[j] else rows
            for r in range(first, last):
                counts[base + np.uint64(values[r, j]) * np.uint64(size) + np.uint64(cells[r])] += 1


@compiled("void(int32[:, ::1], int64[:, ::1], int64[::1], int64[::1], float64[::1])")
def count_triples(rows: Integers32, sets: Integers, ends: Integers, sizes: Integers, counts: Floats) -> None:
    """Add the number of rows in each cell of the triples.

    Rows are visited by blocks, so that a block stays in the cache for all sets. sets[t] are the columns of triple t,
    ends[t] its first cell, and `sizes` the numbers of values.

    `counts` has the cells of all triples, with i the slowest and k the fastest index.
    """
    for first in range(0, len(rows), BLOCK):
        last = min(len(rows), first + BLOCK)
        for t in range(len(sets)):
            i, j, k = sets[t, 0], sets[t, 1], sets[t, 2]
            base, nj, nk = np.uint64(ends[t]), np.uint64(sizes[j]), np.uint64(sizes[k])
            for r in range(first, last):
                pair = np.uint64(rows[r, i]) * nj + np.uint64(rows[r, j])
                counts[base + pair * nk + np.uint64(rows[r, k])] += 1


@compiled("void(int32[:, ::1], float64[::1], int64[:, ::1], float64[::1])")
def count_sets(rows: Integers32, weights: Floats, members: Integers, counts: Floats) -> None:
    """Add the weights of the rows in each cell of sets of any size; `members` as in `synthesis.set_layout`."""
    for first in range(0, len(rows), BLOCK):
        last = min(len(rows), first + BLOCK)
        for t in range(len(members)):
            for r in range(first, last):
                cell = members[t, 0]
                for place in range(1, members.shape[1], 2):  # attributes, each followed by its stride
                    cell += rows[r, members[t, place]] * members[t, place + 1]
                counts[cell] += weights[r]


@compiled("int64[::1](int32[:, ::1], int64[:, ::1], int64[::1])")
def count_roots(rows: Integers32, sets: Integers, sizes: Integers) -> Integers:
    """Return Σ √C over the cells of each triple, shape (t,), in steps of 1/64 so that the order is irrelevant.

    C is the number of rows in a cell; `sets` are the columns of the triples, and `sizes` the numbers of values. The
    roots are summed as integers: a sum of floats would depend on the order of the cells.
    """
    sums, most = np.zeros(len(sets), np.int64), 1
    for t in range(len(sets)):
        most = max(most, sizes[sets[t, 0]] * sizes[sets[t, 1]] * sizes[sets[t, 2]])
    # one buffer for the largest triple
    counts = np.empty(most, np.float64)
    for t in range(len(sets)):
        i, j, k = sets[t, 0], sets[t, 1], sets[t, 2]
        cells, nj, nk = sizes[i] * sizes[j] * sizes[k], np.uint64(sizes[j]), np.uint64(sizes[k])
        counts[:cells] = 0
        for r in range(len(rows)):
            counts[(np.uint64(rows[r, i]) * nj + np.uint64(rows[r, j])) * nk + np.uint64(rows[r, k])] += 1
        for cell in range(cells):
            sums[t] += np.int64(np.sqrt(counts[cell]) * 64)

    return sums


@compiled("void(int64[:, ::1], int64[::1], int64[::1], float64[::1], float64[::1], float64, float64, float32[::1])")
def weigh_triples(
    sets: Integers,
    ends: Integers,
    sizes: Integers,
    wanted: Floats,
    counts: Floats,
    floor: float,
    beta: float,
    weights: Floats32,
) -> None:
    """Write W = −β (C + ½ − T) / (T + floor), followed by the slopes, in the three orientations of each triple.

    C are `counts` and T the `wanted` ones, of the cells of all triples, triple t from `ends[t]` on. W is minus the
    growth of the penalty β (C − T)² / 2 (T + floor) when a row is added, and the slope β / (T + floor) is what each row
    changes in it. In an orientation the cells of one attribute are adjacent: for each pair of cells of the other two, a
    line of W and then a line of slopes. Three orientations of two values per cell take six entries of `weights` for
    each cell.
    """
    for t in range(len(sets)):
        ni, nj, nk = sizes[sets[t, 0]], sizes[sets[t, 1]], sizes[sets[t, 2]]
        by_i = 6 * ends[t]
        by_j, by_k = by_i + 2 * ni * nj * nk, by_i + 4 * ni * nj * nk

        for a in range(ni):
            for b in range(nj):
                for c in range(nk):
                    # a, b and c are the values of the attributes i, j and k
                    at = ends[t] + (a * nj + b) * nk + c
                    slope = beta / (wanted[at] + floor)
                    weight = slope * (wanted[at] - counts[at] - 0.5)
                    weights[by_i + 2 * (b * nk + c) * ni + a] = weight
                    weights[by_j + 2 * (a * nk + c) * nj + b] = weight
                    weights[by_k + 2 * (a * nj + b) * nk + c] = weight
                    weights[by_i + (2 * (b * nk + c) + 1) * ni + a] = slope
                    weights[by_j + (2 * (a * nk + c) + 1) * nj + b] = slope
                    weights[by_k + (2 * (a * nj + b) + 1) * nk + c] = slope


@compiled(
    "void(int32[:, ::1], int64[::1], int64[::1], float64[::1], float64[::1], float64[::1], float64[::1], float64[::1],"
    " float64[::1])"
)
def sum_values(
    cells: Integers32,
    columns: Integers,
    strides: Integers,
    shares: Floats,
    low: Floats,
    span: Floats,
    weights: Floats,
    present: Floats,
    slopes: Floats,
) -> None:
    """Add the values low + span · u of rows to their groups, and their derivatives under a logistic tilt.

    u are `shares`, the place of a value in its range; `weights` are those of rows, and `present` and `slopes` receive
    the sums.

    Parameters
    ----------
    columns, strides : ndarray of int64
        The group of a row is Σ cells[row, column] · stride.
    """
    for r in range(len(shares)):
        at = 0
        for t in range(len(columns)):
            at += cells[r, columns[t]] * strides[t]
        present[at] += weights[r] * (low[r] + span[r] * shares[r])
        slopes[at] += weights[r] * span[r] * shares[r] * (1 - shares[r])


@compiled("void(int32[:, ::1], int64[::1], int64[::1], float64[::1], float64, float64[::1])")
def tilt_values(
    cells: Integers32, columns: Integers, strides: Integers, factors: Floats, edge: float, shares: Floats
) -> None:
    """Replace each u by u f/(1 − u + u f) with the factor f of its group, inside edge … 1 − edge.

    u are `shares`; the group of a row is Σ cells[row, column] · stride.
    """
    for r in range(len(shares)):
        at = 0
        for t in range(len(columns)):
            at += cells[r, columns[t]] * strides[t]
        factor = factors[at]
        if factor != 1:
            moved = shares[r] * factor / (1 - shares[r] + shares[r] * factor)
            shares[r] = min(max(moved, edge), 1 - edge)
