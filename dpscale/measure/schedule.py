"""Exact noise variances and the exact cost of a plan at a privacy cost β.

Block b measures m_b K_b · marginal + N_Z(0, v_b) with integers m_b and v_b. One record more or less moves it by at most
m_b Δ_b in L2, k times that where a unit may hold k records.

Why the cost is that of the Gaussian mechanism although the noise is discrete: let Y = x + N(0, v − s) and let Z be the
discrete Gaussian N_Z centred at Y with parameter s. Z is post-processing of a Gaussian mechanism of variance v − s, and
    P(Z = z) = ∫ φ_{v−s}(y − x) φ_s(z − y) / θ_s(y) dy,
where θ_s(y) = Σ_z φ_s(z − y) lies within 1 ± 2.0001 exp(−2π² s) of 1 for every y (Poisson summation). So Z is, up to
that factor and that of N_Z(x, v) itself (nearer to 1 still, since x is an integer), the discrete Gaussian N_Z(x, v).
With s = SMOOTHING = 8 the factor is 1 ± 1e-68 for each coordinate, below any rounding of ε. Hence a block is, squared,
(m Δ k)² / (v − 8) Gaussian DP; m_b is large enough (σ ≥ 4096 lattice steps) that the 8 costs less than a millionth. The
bound ρ = β/2 for zCDP holds without it (Canonne et al., 2020). docs/privacy.md has the argument step by step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from dpscale.errors import PlanError
from dpscale.select.plan import Block, Plan

SMOOTHING = 8
FINE = 1 << 24
MOST_VARIANCE = 1 << 100
COST_UNIT = 1 << 160


@dataclass(frozen=True)
class Draw:
    """The noise of one block: it measures multiplier · K · marginal with integer noise of `variance`."""

    multiplier: int
    variance: int
    cost: Fraction

    @property
    def lattice_variance(self) -> float:
        """Variance of the measured numbers in units of K · marginal."""
        return self.variance / self.multiplier**2


@dataclass(frozen=True)
class Schedule:
    """The draws of a plan, one a block, and their total cost: squared Gaussian DP μ, exact, rounded up."""

    draws: tuple[Draw, ...]
    cost: Fraction


def make_schedule(plan: Plan, privacy_cost: float, rows_per_unit: int = 1) -> Schedule:
    """The exact draws of a plan at a privacy cost; the total is at most that, and nearly all of it."""
    draws = tuple(_draw(block, Fraction(privacy_cost), rows_per_unit) for block in plan.blocks)
    units = sum(math.ceil(draw.cost * COST_UNIT) for draw in draws)
    total = Fraction(units, COST_UNIT)
    if total > Fraction(privacy_cost):
        raise AssertionError("the schedule costs more than the job allows")
    return Schedule(draws, total)


def _draw(block: Block, privacy_cost: Fraction, rows_per_unit: int) -> Draw:
    sensitivity = block.sensitivity * rows_per_unit**2
    exact = sensitivity / (Fraction(block.share) * privacy_cost)
    multiplier = 1
    while multiplier**2 * exact < FINE:
        multiplier *= 2
    variance = math.ceil(multiplier**2 * exact) + SMOOTHING
    if variance > MOST_VARIANCE:
        names = ", ".join(block.attributes) or "the total"
        raise PlanError(
            "privacy",
            f"a budget too small to measure {names}",
            "noise below 2^50 lattice steps",
            "give more budget, or ask less",
        )
    return Draw(multiplier, variance, Fraction(multiplier**2 * sensitivity, variance - SMOOTHING))
