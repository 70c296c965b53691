"""Compiled loop of `pure_marginals`: weights of marginals under Laplace noise, for many lists of marginals at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpscale.base.compilation import compiled
from dpscale.base.numerics import Floats

LEAST = 1e-80


@compiled("void(float64[:,::1], float64[::1], int32[:,::1], float64[:,::1], int64, float64[::1])", checked=False)
def fit_weights(
    precisions: Floats,
    coefficients: Floats,
    lists: NDArray[np.int32],
    weights: Floats,
    steps: int,
    errors: Floats,
) -> None:
    """Improve the weights of every list by some steps of the fixed point θ ← θ (θ d)^⅓, and evaluate its error.

    d_S = Σ_τ t_τ p_τS / λ_τ² with λ_τ = Σ_S p_τS θ_S². At a minimum of the error on Σθ = 1 all θ_S d_S are equal. The
    step is exact if no space is measured by two marginals.

    Parameters
    ----------
    precisions : ndarray, shape (marginals, spaces)
        p_τS of every known marginal.
    coefficients : ndarray, shape (spaces,)
        t_τ.
    lists : ndarray of int32, shape (lists, most)
        Marginals of every list, −1 after the last.
    weights : ndarray, shape (lists, most)
        θ, changed in place; the sum of each row becomes 1.
    steps : int
    errors : ndarray, shape (lists,)
        Σ_τ t_τ/λ_τ at the last weights; infinite if a space is not measured.
    """
    spaces = len(coefficients)
    level, ratio = np.empty(spaces), np.empty(spaces)
    for c in range(len(lists)):
        number = 0
        while number < lists.shape[1] and lists[c, number] >= 0:
            number += 1
        for step in range(steps + 1):
            total = 0.0
            for k in range(number):
                total += weights[c, k]
            level[:] = 0.0
            for k in range(number):
                weights[c, k] /= total
                square, row = weights[c, k] ** 2, precisions[lists[c, k]]
                for t in range(spaces):
                    level[t] += square * row[t]

            error = 0.0
            for t in range(spaces):
                part = coefficients[t] / level[t] if level[t] > LEAST else np.inf
                error += part
                ratio[t] = part / level[t] if level[t] > LEAST else 0.0

            errors[c] = error
            if step == steps or not error < np.inf:
                break

            for k in range(number):
                slope, row = 0.0, precisions[lists[c, k]]
                for t in range(spaces):
                    slope += row[t] * ratio[t]
                weights[c, k] *= (weights[c, k] * slope / error + 1e-12) ** (1 / 3)
