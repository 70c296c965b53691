"""Compiled loop for long axes: diagonals of inverses of tridiagonal matrices with a rank-two update."""

from __future__ import annotations

import numpy as np

from dpscale.base.compilation import compiled
from dpscale.base.numerics import Floats


@compiled("void(float64[::1], float64[::1], float64[::1], float64, float64[::1], float64[::1], float64[::1])")
def add_leverages(
    weights: Floats,
    profile: Floats,
    diagonal: Floats,
    off_diagonal: float,
    nodes: Floats,
    shares: Floats,
    leverage: Floats,
) -> None:
    """Add Σ_k share_k p_iᵀ (D̃ + s_k² T)⁻¹ p_i to the leverage of every cell i; p_i = e_i − u without its first cell.

    `weights` μ and `profile` u have all n cells; T has `diagonal` on its main diagonal and −`off_diagonal` next to it,
    on the last n − 1.
    """
    n = len(weights) - 1
    down, first, second, inverse = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for k in range(len(nodes)):
        square = nodes[k] * nodes[k]
        off = square * off_diagonal
        for i in range(n):
            value, one, two = weights[i + 1] + square * diagonal[i], weights[i + 1], profile[i + 1]
            if i:
                ratio = off / down[i - 1]
                value, one, two = value - off * ratio, one + ratio * first[i - 1], two + ratio * second[i - 1]
            down[i], first[i], second[i] = value, one, two
        up = 0.0
        for i in range(n - 1, -1, -1):
            own = weights[i + 1] + square * diagonal[i]
            up = own if i == n - 1 else own - off * off / up
            inverse[i] = 1 / (down[i] + up - own)
            after = 0.0 if i == n - 1 else off
            first[i] = (first[i] + after * first[min(i + 1, n - 1)]) / down[i]
            second[i] = (second[i] + after * second[min(i + 1, n - 1)]) / down[i]
        a, b, c, d, e = 0.0, 0.0, 0.0, 0.0, 0.0
        for i in range(n):  # inner products with V = [μ, u − μ]
            rest = profile[i + 1] - weights[i + 1]
            a += weights[i + 1] * first[i]
            b += weights[i + 1] * (second[i] - first[i])
            c += rest * (second[i] - first[i])
            d += weights[i + 1] * second[i]
            e += rest * second[i]
        a, c = a - 1, c + 1
        inside = a * c - b * b
        along, across, total = (c * d - b * e) / inside, (a * e - b * d) / inside, 0.0
        for i in range(n):
            second_left = second[i] - (first[i] * along + (second[i] - first[i]) * across)
            total += profile[i + 1] * second_left
        leverage[0] += shares[k] * total
        for i in range(n):
            left, right = first[i], second[i] - first[i]
            changed = (left * (c * left - b * right) + right * (a * right - b * left)) / inside
            projected = second[i] - (left * along + right * across)
            leverage[i + 1] += shares[k] * (inverse[i] - changed - 2 * projected + total)


@compiled("void(float64[::1], float64[::1], float64[::1], float64[::1], float64[::1], float64[::1])", checked=False)
def add_diagonals(
    weights: Floats, diagonal: Floats, off_diagonal: Floats, nodes: Floats, shares: Floats, total: Floats
) -> None:
    """Add Σ_k share_k times the diagonal of (D + s_k² T)⁻¹, D = diag(weights), to `total`.

    T has `diagonal` on its main diagonal and `off_diagonal` next to it.
    """
    n = len(weights)
    down = np.empty(n)
    for k in range(len(nodes)):
        square = nodes[k] * nodes[k]
        for i in range(n):
            down[i] = weights[i] + square * diagonal[i]
            if i:
                off = square * off_diagonal[i - 1]
                down[i] -= off * off / down[i - 1]
        after = 1.0
        for i in range(n - 1, -1, -1):
            own = weights[i] + square * diagonal[i]
            up = own
            if i < n - 1:
                off = square * off_diagonal[i]
                up = own - off * off / after
            total[i] += shares[k] / (down[i] + up - own)
            after = up
