"""Compiled loops of shrinkage, proportional fitting and non-negative least squares.

They use no BLAS, one order of summation and no temporary arrays, so the bytes of the result do not depend on threads or
on batches. They are a separate module so that numba is loaded by the first estimate and not by the import.
"""

from __future__ import annotations

from math import exp, sqrt

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats
from dpscale.privacy.sampling_loops import compiled

FARTHEST, LEAST = -60.0, 1e-9


@compiled("Tuple((float64[:, ::1], float64[::1]))(float64[::1], float64[::1], float64, float64[::1], float64[::1])")
def likelihoods(
    values: Floats, reference: Floats, deviation: float, ratios: Floats, widths: Floats
) -> tuple[Floats, Floats]:
    """Return normal densities of every value under each component, divided by exp of the second result.

    A component's centre and width are `ratios` and `widths` times the cell's reference; noise with standard deviation
    `deviation` is added.

    Returns
    -------
    densities : ndarray, shape (cells, components)
    tops : ndarray, shape (cells,)
        Largest log-density of each cell.
    """
    cells, parts = len(values), len(ratios)
    densities, tops, variances = np.empty((cells, parts)), np.empty(cells), np.empty(parts)
    for cell in range(cells):
        top = -np.inf
        for part in range(parts):
            apart, width = values[cell] - reference[cell] * ratios[part], reference[cell] * widths[part]
            variances[part] = deviation * deviation + width * width
            densities[cell, part] = -0.5 * apart * apart / variances[part]
            top = max(top, densities[cell, part])
        for part in range(parts):
            near = densities[cell, part] - top
            densities[cell, part] = exp(near) / sqrt(variances[part]) if near > FARTHEST else 0.0
        tops[cell] = top
    return densities, tops


@compiled("float64[::1](float64[:, ::1], float64[::1], float64, int64)")
def mixture_weights(likelihood: Floats, start: Floats, strength: float, rounds: int) -> Floats:
    """Return the weights of a mixture by EM from `start`, which counts as `strength` cells.

    Four cells are processed at a time, for speed.
    """
    cells, parts = likelihood.shape
    weights = start.copy()
    in_fours = cells - cells % 4
    for _ in range(rounds):
        expected = strength * start
        scaled = np.zeros(parts)
        for cell in range(0, in_fours, 4):
            a, b, c, d = 0.0, 0.0, 0.0, 0.0
            for part in range(parts):
                a += likelihood[cell, part] * weights[part]
                b += likelihood[cell + 1, part] * weights[part]
                c += likelihood[cell + 2, part] * weights[part]
                d += likelihood[cell + 3, part] * weights[part]
            a, b, c, d = 1 / a, 1 / b, 1 / c, 1 / d
            for part in range(parts):
                scaled[part] += (
                    likelihood[cell, part] * a
                    + likelihood[cell + 1, part] * b
                    + likelihood[cell + 2, part] * c
                    + likelihood[cell + 3, part] * d
                )
        for cell in range(in_fours, cells):
            a = 0.0
            for part in range(parts):
                a += likelihood[cell, part] * weights[part]
            for part in range(parts):
                scaled[part] += likelihood[cell, part] / a
        expected += weights * scaled
        weights = expected / expected.sum()
    return weights


@compiled(
    "float64[::1](float64[::1], float64[::1], float64, float64[::1], float64[::1], float64[:, ::1], float64[::1])"
)
def posterior_means(
    values: Floats,
    reference: Floats,
    deviation: float,
    ratios: Floats,
    widths: Floats,
    likelihood: Floats,
    weights: Floats,
) -> Floats:
    """Return posterior means of the counts; component means below 0 are replaced by 0."""
    cells, parts = likelihood.shape
    means = np.empty(cells)
    noise = deviation * deviation
    for cell in range(cells):
        total, mean = 0.0, 0.0
        for part in range(parts):
            chance = likelihood[cell, part] * weights[part]
            center, width = reference[cell] * ratios[part], reference[cell] * widths[part]
            inside = center + (1 - noise / (noise + width * width)) * (values[cell] - center)
            total += chance
            mean += chance * max(inside, 0.0)
        means[cell] = mean / total
    return means


@compiled("Tuple((float64[:, ::1], float64, float64))(float64[:, ::1], float64[:, ::1], float64[:, ::1])")
def chained(left: Floats, right: Floats, other: Floats) -> tuple[Floats, float, float]:
    """Return the product left · right and its distances from `other`: squared L2 and L1."""
    rows, columns = other.shape
    table, squared, apart = np.zeros((rows, columns)), 0.0, 0.0
    for i in range(rows):
        for k in range(right.shape[0]):
            entry = left[i, k]
            for j in range(columns):
                table[i, j] += entry * right[k, j]
        for j in range(columns):
            step = table[i, j] - other[i, j]
            squared += step * step
            apart += abs(step)
    return table, squared, apart


@compiled("void(float64[:, ::1], float64[::1], float64[::1], int64, float64)")
def fit_pair(table: Floats, rows: Floats, columns: Floats, rounds: int, tolerance: float) -> None:
    """Fit a pair to its two 1-way marginals by proportional fitting, in place."""
    height, width = table.shape
    for _ in range(rounds):
        moved, back, has = 0.0, 0.0, np.zeros(width)
        for i in range(height):
            total = 0.0
            for j in range(width):
                total += table[i, j]
            moved += abs(total - rows[i])
            ratio = rows[i] / max(total, LEAST)
            for j in range(width):
                table[i, j] *= ratio
                has[j] += table[i, j]
        for j in range(width):
            back += abs(has[j] - columns[j])
            has[j] = columns[j] / max(has[j], LEAST)
        for i in range(height):
            for j in range(width):
                table[i, j] *= has[j]
        if max(moved, back) <= tolerance:
            break


@compiled("float64(float64[:, :, ::1], float64[:, ::1])")
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


@compiled("float64(float64[:, :, ::1], float64[:, ::1])")
def scale_sides(table: Floats, wanted: Floats) -> float:
    """Scale a table with axes (i, j, k) to a margin (i, k), in place; return the previous L1 distance."""
    moved = 0.0
    depth = table.shape[2]
    has = np.empty(depth)
    for i in range(table.shape[0]):
        has[:] = 0.0
        for j in range(table.shape[1]):
            for k in range(depth):
                has[k] += table[i, j, k]
        for k in range(depth):
            moved += abs(has[k] - wanted[i, k])
            has[k] = wanted[i, k] / max(has[k], LEAST)
        for j in range(table.shape[1]):
            for k in range(depth):
                table[i, j, k] *= has[k]
    return moved


@compiled("float64(float64[:, :, ::1], float64[:, ::1])")
def scale_back(table: Floats, wanted: Floats) -> float:
    """Scale a table with axes (i, j, k) to a margin (j, k), in place; return the previous L1 distance."""
    moved = 0.0
    height, depth = table.shape[1:]
    has = np.zeros((height, depth))
    for i in range(table.shape[0]):
        for j in range(height):
            for k in range(depth):
                has[j, k] += table[i, j, k]
    for j in range(height):
        for k in range(depth):
            moved += abs(has[j, k] - wanted[j, k])
            has[j, k] = wanted[j, k] / max(has[j, k], LEAST)
    for i in range(table.shape[0]):
        for j in range(height):
            for k in range(depth):
                table[i, j, k] *= has[j, k]
    return moved


@compiled("float64(float64[:, :, ::1], int64, float64[::1])")
def scale_axis(table: Floats, axis: int, wanted: Floats) -> float:
    """Scale a table with axes (i, j, k) to a margin along one axis, in place; return the previous L1 distance."""
    has, moved = np.zeros(table.shape[axis]), 0.0
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            for k in range(table.shape[2]):
                has[i if axis == 0 else j if axis == 1 else k] += table[i, j, k]
    for a in range(len(has)):
        moved += abs(has[a] - wanted[a])
        has[a] = wanted[a] / max(has[a], LEAST)
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            for k in range(table.shape[2]):
                table[i, j, k] *= has[i if axis == 0 else j if axis == 1 else k]
    return moved


@compiled(
    "float64(float64[:, :, ::1], boolean[::1], float64[::1], float64[::1], float64[::1], int64[::1], float64[:, ::1],"
    " float64[:, ::1], float64[:, ::1], int64, float64)"
)
def fit_triple(
    table: Floats, told: NDArray[np.bool_], first: Floats, second: Floats, third: Floats, order: NDArray[np.int64],
    front: Floats, sides: Floats, back: Floats, rounds: int, tolerance: float,
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
            if told[axis]:
                one = first if axis == 0 else second if axis == 1 else third
                farthest = max(farthest, scale_axis(table, axis, one))
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


@compiled("float64[:, ::1](float64[:, ::1], int64)")
def windows(values: Floats, reach: int) -> Floats:
    """Return for every cell the sum over cells up to `reach` away along both axes, without the cell itself."""
    rows, columns = values.shape
    down, across = np.zeros((rows + 1, columns)), np.zeros(columns + 1)
    sums = np.empty((rows, columns))
    for i in range(rows):
        for j in range(columns):
            down[i + 1, j] = down[i, j] + values[i, j]
    for i in range(rows):
        first, last = max(i - reach, 0), min(i + reach + 1, rows)
        for j in range(columns):
            across[j + 1] = across[j] + (down[last, j] - down[first, j])
        for j in range(columns):
            sums[i, j] = across[min(j + reach + 1, columns)] - across[max(j - reach, 0)] - values[i, j]
    return sums


@compiled("float64[::1](float64[::1], float64)")
def projected(values: Floats, total: float) -> Floats:
    """Return the nearest non-negative numbers with this sum (Held, Wolfe and Crowder, 1974)."""
    ordered = np.sort(values)[::-1]
    running, above = 0.0, 0.0
    for index in range(len(ordered)):
        running += ordered[index]
        if ordered[index] * (index + 1) > running - total:
            above = (running - total) / (index + 1)
    return np.maximum(values - above, 0.0)


@compiled("float64[::1](float64[:, ::1], float64[::1], float64, float64[::1], int64, float64)")
def nearest(weights: Floats, pull: Floats, total: float, start: Floats, steps: int, tolerance: float) -> Floats:
    """Return argmin ½ xᵀWx − pullᵀx over x ≥ 0 of sum `total`, W symmetric.

    Projected gradients with momentum (FISTA) that restarts where it leads uphill. Ends when a step moves no cell by
    more than `tolerance`.
    """
    cells, most = len(pull), 0.0
    for i in range(cells):
        most = max(most, np.abs(weights[i]).sum())
    best = projected(start, total)
    ahead, pace = best.copy(), 1.0
    for _ in range(steps):
        slope = -pull
        for j in range(cells):
            if ahead[j] != 0.0:
                slope += weights[j] * ahead[j]
        moved = projected(ahead - slope / most, total)
        if ((ahead - moved) * (moved - best)).sum() > 0:
            pace = 1.0
        faster = (1 + np.sqrt(1 + 4 * pace * pace)) / 2
        ahead = moved + (moved - best) * ((pace - 1) / faster)
        far = np.abs(moved - best).max()
        best, pace = moved, faster
        if far <= tolerance:
            break
    return best
