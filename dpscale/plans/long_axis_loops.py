"""Compiled loops for long axes: diagonals of inverses of tridiagonal matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpscale.base.compilation import njit
from dpscale.base.numerics import Floats

OPTIONS: Any = {"cache": True, "nogil": True, "error_model": "numpy"}  # no division is by zero: weights are positive
NOTHING = 1e-20  # relative to the diagonal of an inverse


@njit(
    "void(float64[::1], float64[::1], float64[::1], float64, float64, float64[::1], float64[::1], float64[::1],"
    "float64[::1])",
    **OPTIONS,
)
def solve_pair(
    weights: Floats,
    profile: Floats,
    diagonal: Floats,
    off_diagonal: float,
    square: float,
    down: Floats,
    first: Floats,
    second: Floats,
    inverse: Floats,
) -> None:
    """Write A⁻¹μ, A⁻¹u, the diagonal of A⁻¹ and the pivots `down` of A = diag(μ) + square · T, without the first cell.

    T has `diagonal` on its main diagonal and −`off_diagonal` next to it. Pivots are the sums of rows plus the entries
    next to the diagonal, so that no term is subtracted. `weights` μ and `profile` u have all n + 1 cells; A⁻¹μ goes to
    `first`, A⁻¹u to `second`, the diagonal to `inverse`, each of length n.

    Cell i of A is cell i + 1 of the axis. `off` is the entry next to the diagonal with its sign reversed, `before` the
    row sum of the previous cell after elimination. The diagonal of the inverse is 1 / (pivot from the front + pivot
    from the end − diagonal), each written by row sums.
    """
    n = len(down)
    off = square * off_diagonal
    before = 0.0
    for i in range(n):
        weight, share, after = weights[i + 1], profile[i + 1], 0.0 if i == n - 1 else off
        row_sum = weight + square * (diagonal[i] - off_diagonal * ((i > 0) + (i < n - 1)))
        if i:  # eliminate the cell before
            ratio = off / down[i - 1]
            row_sum, weight = row_sum + before * ratio, weight + ratio * first[i - 1]
            share = share + ratio * second[i - 1]
        before, inverse[i], down[i], first[i], second[i] = row_sum, row_sum, row_sum + after, weight, share

    up = 0.0  # row sum after elimination from the last cell on
    for i in range(n - 1, -1, -1):
        after = 0.0 if i == n - 1 else off
        rest = 0.0 if i == n - 1 else off * up / (off + up)
        # row sum from the front plus what the cells behind add
        inverse[i] = 1 / (inverse[i] + rest)
        up = weights[i + 1] + square * (diagonal[i] - off_diagonal * ((i > 0) + (i < n - 1))) + rest
        first[i] = (first[i] + after * first[min(i + 1, n - 1)]) / down[i]
        second[i] = (second[i] + after * second[min(i + 1, n - 1)]) / down[i]


@njit("void(float64[::1], float64[::1], float64[::1], float64, float64[::1], float64[::1], float64[::1])", **OPTIONS)
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

    D̃ = D − μμᵀ + (u − μ)(u − μ)ᵀ differs from D = diag(μ) by V [[−1, 0], [0, 1]] Vᵀ, V = [μ, u − μ]. With A = D + s²T,
    `first` = A⁻¹μ, `second` = A⁻¹u and `inverse` the diagonal of A⁻¹; a, b, c are VᵀA⁻¹V plus the inverse of that 2 × 2
    matrix (Woodbury), d and e are VᵀA⁻¹u. For the first cell p is −u, hence `total` = uᵀ(…)⁻¹u alone.

    k is a node of a quadrature: s_k = `nodes[k]` and share_k = `shares[k]`. `down` is scratch space (pivots). With M
    the 2 × 2 matrix, `along` and `across` are M⁻¹VᵀA⁻¹u, and `inside` is det M.
    """
    n = len(weights) - 1
    down, first, second, inverse = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for k in range(len(nodes)):
        square = nodes[k] * nodes[k]
        solve_pair(weights, profile, diagonal, off_diagonal, square, down, first, second, inverse)
        a, b, c, d, e = 0.0, 0.0, 0.0, 0.0, 0.0
        for i in range(n):  # inner products with V = [μ, u − μ]
            rest = profile[i + 1] - weights[i + 1]
            a += weights[i + 1] * first[i]
            b += weights[i + 1] * (second[i] - first[i])
            c += rest * (second[i] - first[i])
            d += weights[i + 1] * second[i]
            e += rest * second[i]

        # M = VᵀA⁻¹V + [[−1, 0], [0, 1]], whose inverse is itself
        a, c = a - 1, c + 1
        inside = a * c - b * b
        along, across, total = (c * d - b * e) / inside, (a * e - b * d) / inside, 0.0

        # uᵀ(…)⁻¹u
        for i in range(n):
            second_left = second[i] - (first[i] * along + (second[i] - first[i]) * across)
            total += profile[i + 1] * second_left

        leverage[0] += shares[k] * total
        for i in range(n):
            left, right = first[i], second[i] - first[i]
            # diagonal of A⁻¹V M⁻¹ VᵀA⁻¹, which the inverse loses
            changed = (left * (c * left - b * right) + right * (a * right - b * left)) / inside
            projected = second[i] - (left * along + right * across)
            # (e − u)ᵀ(…)⁻¹(e − u) for the unit vector e of cell i
            leverage[i + 1] += shares[k] * (inverse[i] - changed - 2 * projected + total)


@njit("void(float64[::1], float64[::1], float64, float64[:, ::1])", **OPTIONS)
def add_triangle(inverse: Floats, ratios: Floats, share: float, total: Floats) -> None:
    """Add the lower triangle of share · A⁻¹, from its diagonal and the ratios of neighbours in a column, to `total`.

    In the inverse of a tridiagonal matrix, columns i and i + 1 have one ratio in all rows below i, so entry (j, i) is
    that of (j, i + 1) times `ratios[i]`. Entries below NOTHING of the diagonal are omitted.
    """
    for j in range(len(inverse)):
        value = share * inverse[j]
        least = value * NOTHING
        total[j, j] += value
        for i in range(j - 1, -1, -1):
            value *= ratios[i]
            if value < least:
                break
            total[j, i] += value


@njit(
    "void(float64[::1], float64[::1], float64[::1], float64, float64[::1], float64[::1], float64[:, ::1],"
    "float64[:, ::1], float64[:, ::1])",
    **OPTIONS,
)
def add_inverses(
    weights: Floats,
    profile: Floats,
    diagonal: Floats,
    off_diagonal: float,
    nodes: Floats,
    shares: Floats,
    first: Floats,
    second: Floats,
    total: Floats,
) -> None:
    """Add the lower triangle of Σ_k share_k A_k⁻¹ to `total`, and write A_k⁻¹μ and A_k⁻¹u; see `solve_pair`.

    A_k is the tridiagonal matrix of node k of the quadrature; `square` is the square of the node, and `shares` has its
    weight.
    `first` receives A_k⁻¹μ and `second` A_k⁻¹u, with μ the weights and u the profile.
    """
    n = len(weights) - 1
    down, inverse = np.empty(n), np.empty(n)
    for k in range(len(nodes)):
        square = nodes[k] * nodes[k]
        solve_pair(weights, profile, diagonal, off_diagonal, square, down, first[k], second[k], inverse)
        for i in range(n):
            down[i] = square * off_diagonal / down[i]
        add_triangle(inverse, down, shares[k], total)


@njit("void(float64[::1], float64[::1], float64[::1], float64[::1], float64[::1], float64[::1])", **OPTIONS)
def add_diagonals(
    weights: Floats, sums: Floats, off_diagonal: Floats, nodes: Floats, shares: Floats, total: Floats
) -> None:
    """Add Σ_k share_k times the diagonal of (D + s_k² T)⁻¹, D = diag(weights), to `total`.

    T has `off_diagonal` ≤ 0 next to its main diagonal, and its rows have the sums `sums` ≥ 0. The pivots are those
    sums plus the entries next to the diagonal: no term is subtracted, because weights are far below s² at many nodes.

    `down` are the row sums after an elimination from the first row on, and `after` is what an elimination from the last
    row on adds; the diagonal entry of the inverse is 1/(down + after).

    k is a node of a quadrature: s_k = `nodes[k]` and share_k = `shares[k]`. `off` is the magnitude of the entry next to
    the diagonal of s² T, and `up` the row sum after the elimination from the last row on.
    """
    n = len(weights)
    down = np.empty(n)
    for k in range(len(nodes)):
        square = nodes[k] * nodes[k]
        for i in range(n):
            down[i] = weights[i] + square * sums[i]
            if i:
                off = -square * off_diagonal[i - 1]
                down[i] += off * down[i - 1] / (off + down[i - 1])

        up = 0.0
        for i in range(n - 1, -1, -1):
            after = 0.0
            if i < n - 1:
                off = -square * off_diagonal[i]
                after = off * up / (off + up)
            total[i] += shares[k] / (down[i] + after)
            up = weights[i] + square * sums[i] + after


@njit("void(float64[::1], float64[::1], float64[::1], float64[::1], float64[::1], float64[:, ::1])", **OPTIONS)
def add_chain_inverses(
    weights: Floats, sums: Floats, off_diagonal: Floats, nodes: Floats, shares: Floats, total: Floats
) -> None:
    """Add the lower triangle of Σ_k share_k (D + s_k² T)⁻¹ to `total`; see `add_diagonals`.

    D is the diagonal of `weights`, and T the tridiagonal matrix with rows that sum to `sums` ≥ 0 and `off_diagonal` ≤ 0
    next to the diagonal. Elimination from the first cell on leaves `own[i]`, the sum of row i plus what the cells
    before it add; elimination from the last cell on adds `after`. Both together are the inverse of the diagonal of the
    inverse, and `ratios` are the quotients of its neighbouring entries. Only positive numbers are added.
    """
    n = len(weights)
    own, ratios, inverse = np.empty(n), np.empty(n), np.empty(n)
    for k in range(len(nodes)):
        square = nodes[k] * nodes[k]
        for i in range(n):
            own[i] = weights[i] + square * sums[i]
            if i:
                # magnitude of the entry next to the diagonal; `own` of the cell before plus it is the pivot
                off = -square * off_diagonal[i - 1]
                ratios[i - 1] = off / (off + own[i - 1])
                own[i] += own[i - 1] * ratios[i - 1]

        # the same from the last cell on: `up` is the row sum after elimination of the cells behind
        up = 0.0
        for i in range(n - 1, -1, -1):
            after = 0.0
            if i < n - 1:
                off = -square * off_diagonal[i]
                after = off * up / (off + up)
            inverse[i] = 1 / (own[i] + after)
            up = weights[i] + square * sums[i] + after

        add_triangle(inverse, ratios, shares[k], total)
