"""The last values of a table: 1-ways over cells met to whole rows.

Sweeps, rounding and cells inside groups leave each 1-way a little off, which shows where rows are few. Rows in cells
with too many move to cells with too few. Of all candidates those move that fit best: with p the released pairs over
groups, a row x moves from cell a to cell b of attribute i in the order of

    Σ_j log p_ij(b, x_j) − log p_ij(a, x_j)
"""

from __future__ import annotations

import numpy as np

from dpscale.base.arrays import Floats, Integers, Integers32
from dpscale.reconstruction.pairwise.pairs import Spread, Wanted
from dpscale.reconstruction.pairwise.sweeping import LEAST_WEIGHT, LOG_UNIT

SLACK = 0.006  # of all rows, in L1: below it a 1-way is left as it is


def settled(wanted: Wanted, cells: Spread, rows: Integers32) -> Integers32:
    """Rows whose 1-ways are the released ones up to whole rows.

    Parameters
    ----------
    wanted: released pairs over groups.
    cells: groups and 1-ways over cells.
    rows: (n, d) cells.
    """
    out = rows.copy()
    for i, name in enumerate(wanted.layout.names):
        target = apportioned(cells.ones[name], len(rows))
        surplus = np.bincount(out[:, i], minlength=len(target)) - target
        if np.abs(surplus).sum() > SLACK * len(rows):
            _move(wanted, cells, out, i, surplus)
    return out


def apportioned(shares: Floats, count: int) -> Integers:
    """Whole numbers in proportion to shares that sum to `count`, by largest remainders."""
    exact = np.maximum(shares, 0) * (count / max(float(np.maximum(shares, 0).sum()), LEAST_WEIGHT))
    whole = np.floor(exact).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: count - int(whole.sum())]] += 1
    return whole


def _move(wanted: Wanted, cells: Spread, rows: Integers32, i: int, surplus: Integers) -> None:
    """Move rows of attribute i from cells with a surplus to cells that lack rows, group by group."""
    labels = np.asarray(cells.groups[wanted.layout.names[i]].labels)
    candidates = np.flatnonzero(surplus[rows[:, i]] > 0)
    fits = _fits(wanted, cells, rows[candidates], i)
    own = fits[np.arange(len(candidates)), labels[rows[candidates, i]]]
    lacking = np.repeat(np.arange(len(surplus)), np.maximum(-surplus, 0))
    for group in np.unique(labels[lacking]).tolist():
        empty = lacking[labels[lacking] == group].tolist()
        for row in candidates[np.argsort(own - fits[:, group], kind="stable")].tolist():
            if not empty:
                break
            if surplus[rows[row, i]] > 0:
                surplus[rows[row, i]] -= 1
                rows[row, i] = empty.pop()


def _fits(wanted: Wanted, cells: Spread, rows: Integers32, i: int) -> Floats:
    """(n, groups of i): log shares of the pairs that each row would have with each group."""
    layout = wanted.layout
    total = np.zeros((len(rows), int(layout.sizes[i])))
    for j in np.flatnonzero(layout.used[i]).tolist():
        pair = layout.of(wanted.shares, *sorted((i, j)))
        logs = np.rint(np.log(np.maximum(pair if i < j else pair.T, LEAST_WEIGHT)) * LOG_UNIT) / LOG_UNIT
        other = np.asarray(cells.groups[layout.names[j]].labels)[rows[:, j]]
        total += logs.T[other]
    return total
