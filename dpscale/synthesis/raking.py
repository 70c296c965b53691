"""Weights for fewer rows: raked until the weighted pairs are those that are wanted of the whole.

Iterative proportional fitting over all pairs in turn; steps are bounded, so that a cell without a row, or with one
where many are wanted, does not pull all weights its way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats
from dpscale.reconstruction.pairwise.pairs import Wanted
from dpscale.synthesis.draw import Part

ROUNDS, LEAST_STEP, MOST_STEP = 10, 0.25, 4.0


def raked(wanted: Wanted, rows: NDArray[np.int32], part: Part, total: float) -> Floats:
    """(n,): how many records each row over groups stands for; they sum to the part's share of `total`."""
    layout = wanted.layout
    if not len(rows):
        return np.empty(0)
    whole = total * len(rows) / part.rows
    weights = np.full(len(rows), whole / len(rows))
    for _ in range(ROUNDS):
        for i, j in layout.pairs:
            at = rows[:, i].astype(np.int64) * layout.sizes[j] + rows[:, j]
            target = layout.of(wanted.shares, i, j).ravel() * whole
            has = np.bincount(at, weights, minlength=len(target))
            weights *= np.clip(target / np.maximum(has, 1e-300), LEAST_STEP, MOST_STEP)[at]
        weights *= whole / weights.sum()
    return weights
