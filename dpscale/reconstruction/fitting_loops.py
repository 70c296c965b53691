"""Compiled loops of proportional fitting and of non-negative least squares.

They use no BLAS, one order of summation and no temporary arrays, so the bytes of the result do not depend on threads or
on batches. They are a separate module so that numba is loaded by the first estimate and not by the import.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.compilation import compiled
from dpscale.base.numerics import Flags, Floats, Integers

LEAST = 1e-9  # least sum that divides a margin
FEW = 1 << 15  # entries of arrays that Python fits within milliseconds


@compiled("void(float64[:, ::1], float64[::1], float64[::1], int64, float64)", few=FEW)
def fit_pair(table: Floats, rows: Floats, columns: Floats, rounds: int, tolerance: float) -> None:
    """Fit a pair to its two 1-way marginals by proportional fitting, in place.

    `moved` and `back` are the L1 distances of the row and column sums from their targets before each scaling. A sum
    below LEAST is taken as LEAST, so that no division is by zero. Rounds end when both distances are at most
    `tolerance`.
    """
    height, width = table.shape
    for _ in range(rounds):
        moved, back, sums = 0.0, 0.0, np.zeros(width)
        for i in range(height):
            total = 0.0
            for j in range(width):
                total += table[i, j]
            moved += abs(total - rows[i])
            ratio = rows[i] / max(total, LEAST)
            for j in range(width):
                table[i, j] *= ratio
                # sums of columns after the rows are scaled, in the same pass
                sums[j] += table[i, j]

        for j in range(width):
            back += abs(sums[j] - columns[j])
            sums[j] = columns[j] / max(sums[j], LEAST)

        for i in range(height):
            for j in range(width):
                table[i, j] *= sums[j]

        if max(moved, back) <= tolerance:
            break


@compiled("float64(float64[:, :, ::1], float64[:, ::1])", few=FEW)
def scale_front(table: Floats, wanted: Floats) -> float:
    """Scale a table with axes (i, j, k) to a margin (i, j), in place; return the previous L1 distance."""
    moved = 0.0
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            total = 0.0
            for k in range(table.shape[2]):
                total += table[i, j, k]
            moved += abs(total - wanted[i, j])
            ratio = wanted[i, j] / max(total, LEAST)
            for k in range(table.shape[2]):
                table[i, j, k] *= ratio

    return moved


@compiled("float64(float64[:, :, ::1], float64[:, ::1])", few=FEW)
def scale_sides(table: Floats, wanted: Floats) -> float:
    """Scale a table with axes (i, j, k) to a margin (i, k), in place; return the previous L1 distance.

    Every entry is multiplied by wanted / sum over j, where sums below LEAST count as LEAST; `sums` has first the sums
    of one i and then these factors. Slices of different i are independent, so each is finished while it is in the
    cache.
    """
    moved = 0.0
    depth = table.shape[2]
    sums = np.empty(depth)
    for i in range(table.shape[0]):
        sums[:] = 0.0
        for j in range(table.shape[1]):
            for k in range(depth):
                sums[k] += table[i, j, k]

        for k in range(depth):
            moved += abs(sums[k] - wanted[i, k])
            sums[k] = wanted[i, k] / max(sums[k], LEAST)

        for j in range(table.shape[1]):
            for k in range(depth):
                table[i, j, k] *= sums[k]

    return moved


@compiled("float64(float64[:, :, ::1], float64[:, ::1])", few=FEW)
def scale_back(table: Floats, wanted: Floats) -> float:
    """Scale a table with axes (i, j, k) to a margin (j, k), in place; return the previous L1 distance.

    Every entry is multiplied by wanted / sum over i, where sums below LEAST count as LEAST; `sums` has first the sums
    and then these factors.
    """
    moved = 0.0
    height, depth = table.shape[1:]
    sums = np.zeros((height, depth))
    for i in range(table.shape[0]):
        for j in range(height):
            for k in range(depth):
                sums[j, k] += table[i, j, k]

    for j in range(height):
        for k in range(depth):
            moved += abs(sums[j, k] - wanted[j, k])
            sums[j, k] = wanted[j, k] / max(sums[j, k], LEAST)

    for i in range(table.shape[0]):
        for j in range(height):
            for k in range(depth):
                table[i, j, k] *= sums[j, k]

    return moved


@compiled("float64(float64[:, :, ::1], int64, float64[::1])", few=FEW)
def scale_axis(table: Floats, axis: int, wanted: Floats) -> float:
    """Scale a table with axes (i, j, k) to a margin along one axis, in place; return the previous L1 distance.

    Every entry is multiplied by wanted / sum of its slice, where sums below LEAST count as LEAST; `sums` has first the
    sums and then these factors.
    """
    sums, moved = np.zeros(table.shape[axis]), 0.0
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            for k in range(table.shape[2]):
                sums[i if axis == 0 else j if axis == 1 else k] += table[i, j, k]

    for a in range(len(sums)):
        moved += abs(sums[a] - wanted[a])
        sums[a] = wanted[a] / max(sums[a], LEAST)

    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            for k in range(table.shape[2]):
                table[i, j, k] *= sums[i if axis == 0 else j if axis == 1 else k]

    return moved


@compiled(
    "float64(float64[:, :, ::1], boolean[::1], float64[::1], float64[::1], float64[::1], int64[::1], float64[:, ::1],"
    " float64[:, ::1], float64[:, ::1], int64, float64)",
    few=FEW,
)
def fit_triple(
    table: Floats, single: Flags, first: Floats, second: Floats, third: Floats, order: Integers, front: Floats,
    sides: Floats, back: Floats, rounds: int, tolerance: float,
) -> float:  # fmt: skip
    """Fit a triple to 1-way marginals and pairs by proportional fitting, in place.

    Parameters
    ----------
    table : ndarray, shape (i, j, k)
    single : ndarray of bool, shape (3,)
        Which 1-way marginals are given.
    first, second, third : ndarray
        1-way marginals.
    order : ndarray of int64
        The given pairs, in the order of fitting: 0 for (i, j), 1 for (i, k), 2 for (j, k).
    front, sides, back : ndarray
        The pairs (i, j), (i, k) and (j, k).
    rounds : int
    tolerance : float
        L1 distance at which the rounds end.

    Returns
    -------
    float
        Largest L1 distance from a margin in the last round.
    """
    farthest = 0.0
    for _ in range(rounds):
        farthest = 0.0
        for axis in range(3):
            if single[axis]:
                margin_of_axis = first if axis == 0 else second if axis == 1 else third
                farthest = max(farthest, scale_axis(table, axis, margin_of_axis))

        for margin in order:
            if margin == 0:
                moved = scale_front(table, front)
            elif margin == 1:
                moved = scale_sides(table, sides)
            else:
                moved = scale_back(table, back)
            farthest = max(farthest, moved)

        if farthest <= tolerance:
            break

    return farthest


@compiled("float64[::1](float64[::1], float64)")
def project_to_simplex(values: Floats, total: float) -> Floats:
    """Return the nearest non-negative numbers with this sum (Held, Wolfe and Crowder, 1974).

    The result is max(x − a, 0), where a is (sum of the k largest values − total)/k for the largest k whose k-th value
    is above it.
    """
    ordered = np.sort(values)[::-1]
    running, above = 0.0, 0.0
    for index in range(len(ordered)):
        running += ordered[index]
        if ordered[index] * (index + 1) > running - total:
            above = (running - total) / (index + 1)
    return np.maximum(values - above, 0.0)


@compiled("float64[::1](float64[:, ::1], float64[::1], float64, float64[::1], int64, float64)")
def non_negative_least_squares(
    weights: Floats, pull: Floats, total: float, start: Floats, steps: int, tolerance: float
) -> Floats:
    """Return argmin ½ xᵀWx − pullᵀx over x ≥ 0 of sum `total`, W symmetric.

    Projected gradients with momentum (FISTA) that restarts where it leads uphill. Ends when a step moves no cell by
    more than `tolerance`.

    `ahead` is the extrapolated point at which the slope Wx − pull is taken, and `pace` the factor t of FISTA, with t' =
    (1 + √(1 + 4t²))/2 and the momentum (t − 1)/t'.
    """
    cells, largest_sum = len(pull), 0.0
    for i in range(cells):
        largest_sum = max(largest_sum, np.abs(weights[i]).sum())
    best = project_to_simplex(start, total)
    ahead, pace = best.copy(), 1.0

    for _ in range(steps):
        slope = -pull
        for j in range(cells):
            if ahead[j] != 0.0:
                slope += weights[j] * ahead[j]

        # the largest row sum bounds the eigenvalues of W, so this step is short enough
        moved = project_to_simplex(ahead - slope / largest_sum, total)
        if ((ahead - moved) * (moved - best)).sum() > 0:
            pace = 1.0
        faster = (1 + np.sqrt(1 + 4 * pace * pace)) / 2
        ahead = moved + (moved - best) * ((pace - 1) / faster)
        far = np.abs(moved - best).max()
        best, pace = moved, faster
        if far <= tolerance:
            break

    return best
