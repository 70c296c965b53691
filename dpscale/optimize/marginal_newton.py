"""The best weighted marginals under Gaussian noise, to a certificate, by an interior point method.

With traces t > 0 on the residual spaces and λ_τ = Σ_{S⊇τ} u_S c_S, the least of (Σu) Σ t/λ is that of Σ t/λ + Σu over
u ≥ 0, where z_S = 1 − d_S ≥ 0 and u_S z_S = 0 (d_S = c_S Σ_{τ⊆S} t_τ/λ_τ²). Its Hessian needs no sum of its own:
    H(S, S') = 2 c_S c_S' Z(S ∩ S'),   Z = Σ over τ ⊆ · of t/λ³,
so Newton costs what solving for the few marginals that can carry weight costs. For every u of sum 1
    (Σ t/λ)² / max_S d_S ≤ the least error of any marginals    (Cauchy–Schwarz),
taken over all subsets, is the certificate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.optimize.marginal_algebra import characteristic, eigenvalues, over_subsets

ROUNDS = 12
NEWTON_STEPS = 60
TO_BOUNDARY = 0.95
NEAR = 0.7
CARRIES = 1e-7
MOST_CANDIDATES = 3000
FLOOR = 1e-7


@dataclass(frozen=True, eq=False)
class CertifiedWeights:
    """Weights u of the marginals, with the error Σ t/λ, d_S and Z of the module, all of shape (2,)*d."""

    weights: Floats
    error: float
    slopes: Floats
    curves: Floats

    @property
    def least(self) -> float:
        """What no marginals of the same sum of weights can go below, times that sum: the certificate."""
        return self.error**2 / float(self.slopes.max())

    @property
    def ratio(self) -> float:
        """Error times cost over the certified least."""
        return float(self.weights.sum()) * float(self.slopes.max()) / self.error


def certified(traces: Floats, weights: Floats, sizes: tuple[float, ...]) -> CertifiedWeights:
    """Everything that follows from weights; traces of zero need not be measured."""
    levels = np.maximum(eigenvalues(weights, sizes), np.finfo(np.float64).tiny ** 0.25)
    ratio = traces / levels
    slopes = characteristic(sizes) * over_subsets(ratio / levels)
    return CertifiedWeights(weights, float(ratio.sum()), slopes, over_subsets(ratio / levels**2))


def polish(traces: Floats, start: Floats, sizes: tuple[float, ...], gap: float) -> CertifiedWeights:
    """Weights of sum 1 whose error is within the gap of the certificate, or the best met."""
    best = certified(traces, start / start.sum(), sizes)
    chosen = np.zeros(start.shape, dtype=bool)
    weights = best.weights
    for _ in range(ROUNDS):
        state = certified(traces, weights, sizes)
        chosen |= (state.slopes > NEAR * state.slopes.max()) | (weights > CARRIES * weights.max())
        if best.ratio - 1 <= gap or chosen.sum() > MOST_CANDIDATES:
            break
        weights = _interior_point(traces, weights, sizes, np.flatnonzero(chosen), gap)
        state = certified(traces, weights / weights.sum(), sizes)
        best = state if state.error < best.error or state.ratio < best.ratio else best
        weights = state.weights
    return best


def _interior_point(traces: Floats, start: Floats, sizes: tuple[float, ...], chosen: Integers, gap: float) -> Floats:
    """Newton steps in log-like scale for the chosen marginals; the others get no weight."""
    u = np.maximum(start.reshape(-1)[chosen], FLOOR * start.max())
    state = _at(traces, u, sizes, chosen)
    u = u * np.sqrt(state.error / u.sum())
    slack = np.maximum(1 - _at(traces, u, sizes, chosen).slopes.reshape(-1)[chosen], 1e-3)
    scale = characteristic(sizes).reshape(-1)[chosen]
    for _ in range(NEWTON_STEPS):
        state = _at(traces, u, sizes, chosen)
        steep = state.slopes.reshape(-1)[chosen]
        if float(u.sum()) * float(steep.max()) / state.error - 1 <= gap / 2:
            break
        target = 0.2 * float(u @ slack) / len(u)
        scaled = scale * u
        matrix = 2 * np.outer(scaled, scaled) * state.curves.reshape(-1)[chosen[:, None] & chosen[None, :]]
        matrix[np.diag_indices(len(u))] += slack * u
        relative = np.linalg.solve(matrix, target - u * (1 - steep))
        slack_step = target / u - slack * relative - slack
        length = min(_to_boundary(np.ones(len(u)), relative), _to_boundary(slack, slack_step))
        u, slack = u * (1 + length * relative), slack + length * slack_step
    return _spread(u, start.shape, chosen)


def _at(traces: Floats, u: Floats, sizes: tuple[float, ...], chosen: Integers) -> CertifiedWeights:
    return certified(traces, _spread(u, traces.shape, chosen), sizes)


def _spread(u: Floats, shape: tuple[int, ...], chosen: Integers) -> Floats:
    weights = np.zeros(int(np.prod(shape)))
    weights[chosen] = u
    return weights.reshape(shape)


def _to_boundary(values: Floats, step: Floats) -> float:
    """How far a step can go before a value loses most of itself."""
    falling = step < 0
    return min(1.0, TO_BOUNDARY * float((values[falling] / -step[falling]).min(initial=np.inf)))
