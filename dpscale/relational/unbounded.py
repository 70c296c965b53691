"""Degrees of rows that may have any number of links: by chance, or after noisy counts of rows by degree on a grid.

A degree of 2^20 and one of 2^19 need not be told apart by a million counts: rows are counted up to 0, 1, 2, 4, 8, ….
What is expected of a row follows from its attributes; that times a factor of its own, of mean 1, is its degree.
Factors are powers of the counted degrees, so that logarithms have the counted variance together with those of what is
expected. Neighbours in what is expected get factors spread evenly: sums over many rows stay as expected, and each
group's is made exact.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.reconstruction.pairwise.chance import Chance
from dpscale.relational.degrees import summing
from dpscale.relational.sides import Side

GRID = np.array([0, *(1 << k for k in range(21))], np.int64)
LEAST, LOW, BLOCK, SURE = 1e-9, 0.5, 64, 3.0


def thresholds(bound: int | None) -> Integers:
    """Up to which numbers of links rows are counted: all below a bound, or the grid."""
    return GRID if bound is None else np.arange(bound, dtype=np.int64)


def thrown(each: Floats, side: Side, totals: Floats, chance: Chance) -> list[Integers]:
    """Links thrown at the rows of each group, as likely at each as is expected of it."""
    order = np.argsort(side.of, kind="stable")
    weights = np.maximum(each[order], LEAST)
    ends = np.cumsum(weights)
    bounds = np.concatenate([[0], np.cumsum(side.counts.astype(np.int64))])
    begins = np.concatenate([[0.0], ends])[bounds[:-1]]
    widths = np.concatenate([[0.0], ends])[bounds[1:]] - begins
    groups = np.repeat(np.arange(len(totals)), totals.astype(np.int64))
    at = np.searchsorted(ends, begins[groups] + chance.uniforms(len(groups)) * widths[groups], side="right")
    drawn = np.bincount(np.clip(at, bounds[groups], bounds[groups + 1] - 1), minlength=len(each))
    return np.split(drawn.astype(np.int64), bounds[1:-1])


def dealt(at_most: Floats, sigma: float, each: Floats, side: Side, totals: Floats, chance: Chance) -> list[Integers]:
    """As spread out as the noisy counts of rows up to the grid's degrees say; `sigma`: of their noise."""
    known, wanted = (np.log(np.maximum(one, LOW)) for one in (each, _sorted(at_most, sigma, side.rows)))
    free = max(float(wanted.var() - known.var()), 0.0) / max(float(wanted.var()), LEAST)
    factors = np.exp(free**0.5 * (wanted - wanted.max()))
    place = (_even(np.lexsort((each, side.of)), chance) * side.rows).astype(np.int64)
    return _to_totals(each * (factors / factors.mean())[place], side, totals, chance)


def _even(order: Integers, chance: Chance) -> Floats:
    """(n,) points in (0, 1), of every BLOCK rows in a row of the order one in each BLOCK-th."""
    place = np.arange(len(order))
    shuffled = np.argsort(place // BLOCK + chance.uniforms(len(order)), kind="stable")
    points = np.empty(len(order))
    points[order[shuffled]] = (place % BLOCK + chance.uniforms(len(order))) / BLOCK
    return points


def _to_totals(own: Floats, side: Side, totals: Floats, chance: Chance) -> list[Integers]:
    rows = np.argsort(side.of, kind="stable")
    groups = np.split(own[rows], np.cumsum(side.counts.astype(np.int64))[:-1])
    found = []
    for values, total in zip(groups, totals, strict=True):
        scaled = (values + LEAST) * (total / max(values.sum() + LEAST * len(values), LEAST))
        ends = np.floor(np.cumsum(scaled) + chance.uniforms(1)[0])
        found.append(summing(np.diff(ends, prepend=0).astype(np.int64), int(total), int(totals.sum()) + 1, chance))
    return found


def _sorted(at_most: Floats, sigma: float, rows: int) -> Floats:
    """(rows,) degrees, ascending: even in the logarithm between two of the grid's. Where noise does not tell the counts
    from all rows, they are all: else a few rows would have a million links."""
    from scipy.optimize import isotonic_regression

    counts = np.clip(isotonic_regression(at_most).x, 0, rows)
    ends = np.append(np.where(counts >= rows - SURE * sigma, rows, counts), rows) / max(rows, 1)
    points = (np.arange(rows) + 0.5) / rows
    place = np.minimum(np.searchsorted(ends, points), len(GRID) - 1)
    before = np.where(place > 0, ends[np.maximum(place - 1, 0)], 0.0)
    inside = (points - before) / np.maximum(ends[place] - before, LEAST)
    low, high = np.maximum(GRID[np.maximum(place - 1, 0)], 1), np.maximum(GRID[place], 1)
    return np.where(place == 0, 0.0, np.maximum(low * (high / low) ** np.clip(inside, 0, 1), 1.0))
