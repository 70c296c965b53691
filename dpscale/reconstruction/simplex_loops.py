"""The compiled loop of weighted least squares among non-negative counts of one sum: no BLAS, one order of summation."""

from __future__ import annotations

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.privacy.sampling_loops import compiled


@compiled("float64[::1](float64[::1], float64)")
def projected(values: Floats, total: float) -> Floats:
    """The nearest numbers ≥ 0 of that sum, all cells alike (Held, Wolfe and Crowder, 1974)."""
    ordered = np.sort(values)[::-1]
    running, above = 0.0, 0.0
    for index in range(len(ordered)):
        running += ordered[index]
        if ordered[index] * (index + 1) > running - total:
            above = (running - total) / (index + 1)
    return np.maximum(values - above, 0.0)


@compiled("float64[::1](float64[:, ::1], float64[::1], float64, float64[::1], int64, float64)")
def nearest(weights: Floats, pull: Floats, total: float, start: Floats, steps: int, tolerance: float) -> Floats:
    """argmin ½ xᵀWx − pullᵀx over x ≥ 0 of sum `total`, W symmetric.

    Projected gradients with momentum (FISTA), which begins anew where it leads uphill. Ends where a step moves no cell
    by more than `tolerance`.
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
