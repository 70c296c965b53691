"""Exact noise parameters and the exact cost of a plan: at a privacy cost β, or at ε where the noise is Laplace.

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

Laplace: block b measures m_b K_b · marginal plus discrete Laplace noise of integer scale s_b. A unit of k records moves
it by at most m_b Δ_b k in L1, and P(x)/P(x − d) ≤ exp(|d|/s) for this law: m_b Δ_b k / s_b of pure ε, exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.errors import PlanError
from dpscale.plans.allocation import LAPLACE
from dpscale.plans.block import Block
from dpscale.plans.plan import Plan
from dpscale.privacy.accounting import Cost
from dpscale.privacy.noise import (
    MAX_SCALE,
    MAX_VARIANCE,
    MAX_WIDE_SCALE,
    MAX_WIDE_VARIANCE,
    discrete_gaussian,
    discrete_laplace,
    wide_gaussian,
    wide_laplace,
)
from dpscale.privacy.streams import KeyedStream

SMOOTHING = 8
FINE = 1 << 24
COST_UNIT = 1 << 160

Integers = NDArray[np.int64]
Halves = tuple[NDArray[np.int64], NDArray[np.uint64]]


@dataclass(frozen=True)
class Draw:
    """The noise of one block: it measures multiplier · K · marginal with discrete Gaussian noise of `variance`."""

    multiplier: int
    variance: int
    cost: Fraction

    @property
    def lattice_variance(self) -> float:
        """Variance of the measured numbers in units of K · marginal."""
        return self.variance / self.multiplier**2

    @property
    def law(self) -> dict[str, str]:
        """What the record of the measurement says of the noise."""
        return {"variance": str(self.variance)}

    @property
    def fits_words(self) -> bool:
        """Whether `words` can draw it."""
        return self.variance <= MAX_VARIANCE

    def words(self, stream: KeyedStream, size: int) -> Integers:
        """The noise as integers of 64 bits."""
        return discrete_gaussian(stream, self.variance, size)

    def halves(self, stream: KeyedStream, size: int) -> Halves:
        """The same noise as integers of 128 bits, in halves."""
        return wide_gaussian(stream, self.variance, size)


@dataclass(frozen=True)
class LaplaceDraw:
    """The same with discrete Laplace noise of integer `scale`."""

    multiplier: int
    scale: int
    cost: Fraction

    @property
    def variance(self) -> float:
        """Of the integer noise: 2q/(1 − q)² with q = exp(−1/scale)."""
        return 0.5 / math.sinh(0.5 / self.scale) ** 2

    @property
    def lattice_variance(self) -> float:
        return self.variance / self.multiplier**2

    @property
    def law(self) -> dict[str, str]:
        return {"laplace": str(self.scale)}

    @property
    def fits_words(self) -> bool:
        return self.scale <= MAX_SCALE

    def words(self, stream: KeyedStream, size: int) -> Integers:
        return discrete_laplace(stream, self.scale, size)

    def halves(self, stream: KeyedStream, size: int) -> Halves:
        return wide_laplace(stream, self.scale, size)


AnyDraw = Draw | LaplaceDraw


@dataclass(frozen=True)
class Schedule:
    """The draws of a plan, one a block, and their total cost, exact and rounded up: squared Gaussian-DP μ, or ε."""

    draws: tuple[AnyDraw, ...]
    cost: Fraction

    @property
    def spent(self) -> Cost:
        """The total as the ledger takes it."""
        if isinstance(self.draws[0], LaplaceDraw):
            squares = _rounded_up(draw.cost**2 for draw in self.draws)
            return Cost(pure=self.cost, pure_squares=min(squares, self.cost**2))
        return Cost(gaussian=self.cost)


def make_schedule(plan: Plan, budget: float, rows_per_unit: int = 1) -> Schedule:
    """The exact draws of a plan at a budget (β, or ε for Laplace noise): they come to nearly that, and never more."""
    if len({block.noise for block in plan.blocks}) != 1:  # no method makes such a plan, and β and ε do not add
        raise PlanError("plan", "blocks of both kinds of noise", "one kind", "plan again, in a new run")
    make = _laplace if plan.noise == LAPLACE else _gaussian
    draws: tuple[Any, ...] = tuple(make(block, Fraction(budget), rows_per_unit) for block in plan.blocks)
    total = _rounded_up(draw.cost for draw in draws)
    if total > Fraction(budget):
        raise PlanError("privacy", f"a budget of {budget:g}, too small to share out", "a larger one", "give more")
    return Schedule(draws, total)


def _rounded_up(costs: Any) -> Fraction:
    return Fraction(sum(math.ceil(cost * COST_UNIT) for cost in costs), COST_UNIT)


def _gaussian(block: Block, privacy_cost: Fraction, rows_per_unit: int) -> Draw:
    squared_sensitivity = block.squared_l2_sensitivity * rows_per_unit**2
    exact = squared_sensitivity / (Fraction(block.share) * privacy_cost)
    multiplier = 1
    while multiplier**2 * exact < FINE:
        multiplier *= 2
    variance = math.ceil(multiplier**2 * exact) + SMOOTHING
    if variance > MAX_WIDE_VARIANCE:
        raise _too_small(block)
    return Draw(multiplier, variance, Fraction(multiplier**2 * squared_sensitivity, variance - SMOOTHING))


def _laplace(block: Block, epsilon: Fraction, rows_per_unit: int) -> LaplaceDraw:
    sensitivity = block.l1_sensitivity * rows_per_unit
    exact = sensitivity / (Fraction(block.share) * epsilon)
    multiplier = 1
    while multiplier * exact < FINE:
        multiplier *= 2
    scale = math.ceil(multiplier * exact)
    if scale > MAX_WIDE_SCALE:
        raise _too_small(block)
    return LaplaceDraw(multiplier, scale, Fraction(multiplier * sensitivity, scale))


def _too_small(block: Block) -> PlanError:
    names = ", ".join(block.attributes) or "the total"
    return PlanError(
        "privacy",
        f"a budget too small to measure {names}",
        "noise below 2^99 lattice steps",
        "give more budget, or ask less",
    )
