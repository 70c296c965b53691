"""L-BFGS with a weak Wolfe line search by bisection, for functions that are expensive to evaluate and may have kinks.

The direction is Nocedal's two-loop recursion. The step length is the search of Lewis and Overton, which needs no second
derivative (Nonsmooth optimization via quasi-Newton methods, 2013). The gradient is computed only after sufficient
decrease.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dpscale.base.deadline import check_planning_time
from dpscale.base.numerics import Floats

Objective = Callable[[Floats], tuple[float, Callable[[], Floats]]]  # value and slope function at a point

MEMORY = 10  # pairs of steps and changes of the slope that approximate the curvature
FALLS, FLATTENS = 1e-4, 0.9  # Wolfe conditions: sufficient decrease and curvature
FIRST, LENGTH = 0.1, 10.0  # of the first step: largest move, and its limit in multiples of the slope


def descend(evaluate: Objective, start: Floats, evaluations: int, flat: float) -> None:
    """Evaluate at most `evaluations` points, each lower than the previous one; stop if one gains less than `flat`.

    `flat` is the least decrease of a step that continues the search. The slope of a point is a function, because it is
    computed only if the point is accepted.
    """
    left = [evaluations]  # shared with the line search, which decreases it

    def evaluate_once(point: Floats) -> tuple[float, Callable[[], Floats]]:
        check_planning_time()
        left[0] -= 1
        return evaluate(point)

    point, (value, slope_of), hessian = start, evaluate_once(start), _InverseHessian()
    slope = slope_of()
    while left[0] > 0 and slope.any():
        direction = hessian.direction(slope)
        step = _step(evaluate_once, point, value, slope, direction, left)
        if step is None:
            return

        new, new_value, new_slope = step
        gained, value = value - new_value, new_value
        hessian.add(new - point, new_slope - slope)
        point, slope = new, new_slope
        if gained <= flat:
            return


def _step(
    evaluate: Objective, at: Floats, value: float, slope: Floats, direction: Floats, left: list[int]
) -> tuple[Floats, float, Floats] | None:
    """Return a lower and flatter point along the direction, with its value and slope; None if none is found.

    Both are the conditions of Wolfe, found by doubling and halving the length. `left` is the number of evaluations.

    `low` is a length with sufficient decrease that is still too steep, `high` one without sufficient decrease. Without
    an upper limit the length doubles, else it is halved. At the last evaluation, a lower point counts even if it is
    steep.
    """
    falling, low, high, length, best = float(slope @ direction), 0.0, math.inf, 1.0, None
    while left[0] > 0:
        point = at + length * direction
        value_there, slope_of = evaluate(point)
        if value_there > value + FALLS * length * falling:
            high = length
        else:
            slope_there = slope_of()
            best = point, value_there, slope_there
            if float(slope_there @ direction) >= FLATTENS * falling:
                return best
            low = length

        length = (low + high) / 2 if high < math.inf else 2 * low

    return best


class _InverseHessian:
    """Recent steps and the changes of the slope along them: an implicit inverse Hessian."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Floats, Floats]] = []

    def add(self, step: Floats, change: Floats) -> None:
        if float(step @ change) > 0:
            self.pairs = [*self.pairs[1 - MEMORY :], (step, change)]

    def direction(self, slope: Floats) -> Floats:
        """Return the descent direction for a slope: two loops over the last steps and changes of the slope (L-BFGS).

        Without steps, the slope is scaled so that the largest move is FIRST, by at most LENGTH. Otherwise, with ρ =
        1/(stepᵀ change), the first loop subtracts ρ (stepᵀd) change from the newest pair on, the direction is scaled by
        stepᵀchange/changeᵀchange, and the second loop adds (α − ρ changeᵀd) step from the oldest.
        """
        if not self.pairs:
            return np.asarray(-slope * min(LENGTH, FIRST / float(np.abs(slope).max())))

        direction, along = -slope, []
        for step, change in reversed(self.pairs):
            along.append(float(step @ direction) / float(step @ change))
            direction = direction - along[-1] * change

        step, change = self.pairs[-1]
        direction = direction * (float(step @ change) / float(change @ change))
        for (step, change), was in zip(self.pairs, reversed(along), strict=True):
            direction = direction + (was - float(change @ direction) / float(step @ change)) * step
        return np.asarray(direction)
