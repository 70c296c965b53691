"""Lower bounds over all strategies for a wide axis: the uniform dual of intervals, arcs and cells in closed form.

For any Q of norm at most 1, (tr QᵀF)²/n ≤ the optimum of FᵀF, F = W(I − u1ᵀ). A few modes are treated exactly: Q is the
polar factor of F restricted to them. The other modes are those of the plain mean:
    prefix: WC has the modes cos(kπ(i + ½)/n) of cells, sin(kπj/n) of queries and the values σ_k = 1/(2 sin(kπ/2n)), and
        F = WC + d1ᵀ, d_j = j/n − Σ_{i<j} u_i: so FFᵀ = diag(σ²) + zzᵀ with z_k = √n (d's mode k);
    range: its Gram is n + 1 times the inverse of a path's Laplacian, σ_k = √(n + 1)/(2 sin(kπ/(2n + 2))) for the modes
        e_k = sin(kπ(i + 1)/(n + 1)), and F = G^½(I − u1ᵀ) is σ_k(δ_kl − (e_k·u)(e_l·1)) between them;
    circular: the Gram is invariant under rotation, so its root has the plain mean's modes: σ_k = √(n/2)/sin(kπ/n)
        for k = 1 … n − 1, the same at any u, and √(n(n + 1)(2n + 1)/6) of the mean;
    single cells: the singular values of I − u1ᵀ are 1, n − 2 times, and √n |u|.
The optimum is superadditive in the Gram matrix, so bounds of families add.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dpscale.base.numerics import Floats
from dpscale.workload import ProductPart, Workload
from dpscale.workload.residual import profile_of
from dpscale.workload.wide import WideGram

MODES = 256


def lower_bound(gram: WideGram) -> float:
    """Return a lower bound of a wide axis' optimum over all strategies."""
    profile = profile_of(gram.weights, gram.size)
    known = [(weight, _TRACES[family](profile)) for family, weight in gram.asked if family in _TRACES]
    return math.fsum(weight * max(trace, 0.0) ** 2 / gram.size for weight, trace in known)


def whole_bound(workload: Workload) -> float:
    """Return a lower bound of Σ weight · variance over all matrix mechanisms; 0 for several attributes.

    The singular values of prefix queries are 1/(2 sin((2k − 1)π/(4n + 2))), those of range queries as above.
    """
    entries = [(part.families(names)[0].name, weight, part.domain[names[0]].size) for part in workload.parts
             for names, weight in zip(part.sets, part.weights, strict=True)
             if isinstance(part, ProductPart) and len(names) == 1]  # fmt: skip
    if (
        sum(len(part.sets) for part in workload.parts) != len(entries)
        or len({names for part in workload.parts for names in part.sets}) != 1
    ):
        return 0.0
    return math.fsum(weight * _WHOLE[family](n) ** 2 / n for family, weight, n in entries if family in _WHOLE)


def _whole_prefix(n: int) -> float:
    return float((0.5 / np.sin((2 * np.arange(1, n + 1) - 1) * np.pi / (4 * n + 2))).sum())


def _whole_range(n: int) -> float:
    return float((math.sqrt(n + 1) / (2 * np.sin(np.arange(1, n + 1) * np.pi / (2 * n + 2)))).sum())


def _whole_circular(n: int) -> float:
    return math.sqrt(n * (n + 1) * (2 * n + 1) / 6) + circular_trace(np.full(n, 1 / n))


def prefix_trace(profile: Floats) -> float:
    """Return tr QᵀF of centred prefix queries."""
    n = len(profile)
    values = 0.5 / np.sin(np.arange(1, n) * np.pi / (2 * n))
    missed = np.arange(1, n) / n - np.cumsum(profile)[:-1]
    moved = math.sqrt(2) * _sines(missed)[:MODES]
    mixed = np.linalg.eigvalsh(np.diag(values[:MODES] ** 2) + np.outer(moved, moved))
    return float(np.sqrt(np.maximum(mixed, 0)).sum() + values[MODES:].sum())


def range_trace(profile: Floats) -> float:
    """Return tr QᵀF of centred range queries."""
    n = len(profile)
    values = math.sqrt(n + 1) / (2 * np.sin(np.arange(1, n + 1) * np.pi / (2 * n + 2)))
    means, totals = (math.sqrt(2 / (n + 1)) * _sines(one) for one in (profile, np.ones(n)))
    few = values[:MODES, None] * (np.eye(min(n, MODES)) - np.outer(means[:MODES], totals[:MODES]))
    rest = values[MODES:] * (1 - means[MODES:] * totals[MODES:])
    return float(np.linalg.svd(few, compute_uv=False).sum() + rest.sum())


def circular_trace(profile: Floats) -> float:
    """Return tr QᵀF of centred arcs with the Q of the plain mean; u changes F only along the constant, where Q is 0."""
    n = len(profile)
    return float((math.sqrt(n / 2) / np.sin(np.arange(1, n) * np.pi / n)).sum())


def _sines(values: Floats) -> Floats:
    """Return Σ_i v_i sin(kπ(i + 1)/(n + 1)) for k = 1 … n."""
    n = len(values)
    return np.asarray(-np.fft.rfft(np.concatenate([[0.0], values]), 2 * n + 2)[1 : n + 1].imag)


def marginal_trace(profile: Floats) -> float:
    """Return the sum of the singular values of I − u1ᵀ."""
    return len(profile) - 2 + math.sqrt(len(profile)) * float(np.linalg.norm(profile))


_WHOLE: dict[str, Callable[[int], float]] = {
    "prefix": _whole_prefix,
    "range": _whole_range,
    "circular": _whole_circular,
    "marginal": float,
}
_TRACES: dict[str, Callable[[Floats], float]] = {
    "prefix": prefix_trace,
    "range": range_trace,
    "circular": circular_trace,
    "marginal": marginal_trace,
}
