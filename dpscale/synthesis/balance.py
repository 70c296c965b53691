"""Whole rows repeated or left out until the 1-ways of a table are the released ones.

Sweeps move one value at a time and cannot change the share of a mode (see `tree`). Raking does: each row gets a weight
such that the weighted 1-ways are the released ones, and systematic sampling takes each row as often as its weight,
rounded down or up. Values of one row stay together.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.arrays import Floats, Integers32
from dpscale.reconstruction.pairwise.chance import Chance
from dpscale.reconstruction.pairwise.pairs import Wanted

ROUNDS, LEAST_STEP, MOST_STEP = 10, 0.25, 4.0


def balanced(wanted: Wanted, rows: Integers32, chance: Chance) -> Integers32:
    """Rows over groups, as many as before, whose 1-ways are nearer to the released ones.

    Parameters
    ----------
    wanted: released 1-ways, as shares of all rows.
    rows: (n, d) groups.
    chance: a public stream.
    """
    weights = _raked(wanted, rows)
    ends = np.floor(np.cumsum(weights) + chance.uniforms(1)[0]).astype(np.int64)
    ends[-1] = len(rows)
    ends = np.minimum(ends, len(rows))
    return np.ascontiguousarray(np.repeat(rows, np.diff(ends, prepend=0), axis=0))


def _raked(wanted: Wanted, rows: Integers32) -> Floats:
    """(n,) weights of mean 1 under which every 1-way is the released one, by iterative proportional fitting.

    A step is bounded, so that a value with few rows does not pull all weights.
    """
    layout, weights = wanted.layout, np.ones(len(rows))
    for _ in range(ROUNDS):
        for i in range(len(layout.sizes)):
            target = layout.one(wanted.ones, i) * len(rows)
            present = np.bincount(rows[:, i], weights, minlength=len(target))
            weights *= np.clip(target / np.maximum(present, 1e-300), LEAST_STEP, MOST_STEP)[rows[:, i]]
    return np.asarray(weights * (len(rows) / weights.sum()))
