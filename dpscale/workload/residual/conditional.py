"""Conditional ResidualPlanner: a round's budget over the residuals of one marginal (AIM+GReM, equation 2).

    min Σ v_τ / (x_τ + a_τ)   s.t.   Σ p_τ x_τ ≤ 1,  x ≥ 0
with x_τ the new precision and a_τ the one already there, in units of the round's β. It is water-filling: x_τ =
max(0, c √(v_τ/p_τ) − a_τ) for one level c, found by sorting. Exact; no iterative solver.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.workload.residual.axes import subsets

LEAST_SHARE = 1e-3


def water_fill(worth: Floats, price: Floats, had: Floats) -> Floats:
    """The optimal x, shape as `worth` (v), `price` (p) and `had` (a), all > 0 but `had` ≥ 0: Σ p x = 1."""
    slope = np.sqrt(worth / price)
    order = np.argsort(had / slope)
    paid = 1 + np.cumsum((price * had)[order])
    levels = paid / np.cumsum((price * slope)[order])
    last = np.flatnonzero(levels > (had / slope)[order])[-1]
    return np.asarray(np.maximum(levels[last] * slope - had, 0))


def prices(sizes: Sequence[int]) -> tuple[list[tuple[int, ...]], Floats, Floats]:
    """The subsets τ of the axes, their p_τ (privacy cost at unit precision) and v_τ (error at unit variance).

    v carries the marginal's number of cells over the paper's per-cell scale, which changes no optimum.
    """
    spaces = subsets(tuple(range(len(sizes))))
    price = [math.prod((sizes[i] - 1) / sizes[i] for i in kept) for kept in spaces]
    rest = [math.prod(sizes[i] ** -2.0 for i in range(len(sizes)) if i not in kept) for kept in spaces]
    return spaces, np.array(price), np.array(price) * np.array(rest)


def shares(names: Sequence[str], sizes: Sequence[int], had: Mapping[tuple[str, ...], float], cost: float) -> Floats:
    """Each residual's share p x of a round's privacy cost β, in the order of `subsets(names)`.

    `had`: precisions already there. Shares below LEAST_SHARE are 0 and go to the others, so that they sum to 1.
    """
    spaces, price, worth = prices(sizes)
    before = np.array([had.get(tuple(names[i] for i in kept), 0.0) for kept in spaces]) / cost
    chosen = np.ones(len(spaces), dtype=bool)
    while True:
        filled = np.zeros(len(spaces))
        filled[chosen] = water_fill(worth[chosen], price[chosen], before[chosen])
        taken = price * filled
        small = chosen & (taken < LEAST_SHARE)
        if not small.any() or small.sum() == chosen.sum():
            return np.asarray(taken / taken.sum())
        chosen &= ~small
