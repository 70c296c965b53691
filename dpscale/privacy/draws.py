"""Noise scales of a strategy at a given budget share, and their exact cost. All costs of noise are computed here.

A block measures m K · marginal + N_Z(0, v) with integers m and v. One record more or less changes it by at most m Δ in
L2, where Δ² is the largest squared norm of a column of K, and by k times that if a unit may have k records.

The cost equals that of the Gaussian mechanism although the noise is discrete. Let Y = x + N(0, v − s) and let Z be the
discrete Gaussian N_Z centred at Y with parameter s. Z is post-processing of a Gaussian mechanism of variance v − s, and
    P(Z = z) = ∫ φ_{v−s}(y − x) φ_s(z − y) / θ_s(y) dy,
where θ_s(y) = Σ_z φ_s(z − y) lies within 1 ± 2.0001 exp(−2π² s) of 1 for every y (Poisson summation). Up to that factor
and the corresponding factor of N_Z(x, v), which is even closer to 1 because x is an integer, Z is the discrete Gaussian
N_Z(x, v). With s = SMOOTHING = 8 the factor is 1 ± 1e-68 per coordinate, below any rounding of ε. A block is therefore
Gaussian DP with squared mu (m Δ k)² / (v − 8); m is large enough (σ ≥ 4096 lattice steps) that the 8 costs less than a
millionth. The bound ρ = β/2 for zCDP is valid without it (Canonne et al., 2020). docs/privacy.md contains the argument
step by step.

Laplace: a block measures m K · marginal plus discrete Laplace noise of integer scale s. A unit of k records changes it
by at most m Δ₁ k in L1, and P(x)/P(x − d) ≤ exp(|d|/s) for this distribution, so the cost is exactly m Δ₁ k / s of pure
ε.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Integers, NDArray
from dpscale.privacy.accounting import GAUSSIAN, LAPLACE, Cost
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

SMOOTHING = 8  # s above: the part of a variance that the charge does not count
FINE = 1 << 24  # least variance in squared lattice steps, so that σ ≥ 4096, and least scale of Laplace noise in steps
COST_UNIT = 1 << 160  # units of a cost of 1: costs are rounded to multiples of 2^-160

Halves = tuple[NDArray[np.int64], NDArray[np.uint64]]


@dataclass(frozen=True)
class GaussianDraw:
    """Noise of one block, which measures multiplier · K · marginal with discrete Gaussian noise of `variance`."""

    multiplier: int
    variance: int
    cost: Fraction

    @property
    def lattice_variance(self) -> float:
        """Variance of the measurement in units of K · marginal."""
        return self.variance / self.multiplier**2

    @property
    def noise_spec(self) -> dict[str, str]:
        """Noise parameters for the measurement record, which enters the noise key."""
        return {"variance": str(self.variance)}

    @property
    def fits_words(self) -> bool:
        """Whether 64-bit integers suffice for `words`."""
        return self.variance <= MAX_VARIANCE

    def words(self, stream: KeyedStream, size: int) -> Integers:
        """Draw the noise as 64-bit integers."""
        return discrete_gaussian(stream, self.variance, size)

    def halves(self, stream: KeyedStream, size: int) -> Halves:
        """Draw the same noise as 128-bit integers in two halves."""
        return wide_gaussian(stream, self.variance, size)


@dataclass(frozen=True)
class LaplaceDraw:
    """Noise of one block, which measures multiplier · K · marginal with discrete Laplace noise of integer `scale`."""

    multiplier: int
    scale: int
    cost: Fraction

    @property
    def variance(self) -> float:
        """Variance of the integer noise: 2q/(1 − q)² with q = exp(−1/scale)."""
        return 0.5 / math.sinh(0.5 / self.scale) ** 2

    @property
    def lattice_variance(self) -> float:
        return self.variance / self.multiplier**2

    @property
    def noise_spec(self) -> dict[str, str]:
        return {"laplace": str(self.scale)}

    @property
    def fits_words(self) -> bool:
        return self.scale <= MAX_SCALE

    def words(self, stream: KeyedStream, size: int) -> Integers:
        return discrete_laplace(stream, self.scale, size)

    def halves(self, stream: KeyedStream, size: int) -> Halves:
        return wide_laplace(stream, self.scale, size)


Draw = GaussianDraw | LaplaceDraw
Costs = tuple[Fraction, int]  # (cost of one, number of them)


def gaussian_draw(squared_l2: int, cost: Fraction, rows_per_unit: int, what: str, denominator: int = 1) -> GaussianDraw:
    """Return the noise with which a strategy costs `cost` (β) or slightly less, never more.

    `what` names the measurement in the PlanError for a budget that is too small.

    Parameters
    ----------
    squared_l2 : int
        Squared L2 sensitivity of the strategy to one record.
    cost : Fraction
    rows_per_unit : int
        Contribution bound.
    denominator : int
        Number that divides the multiplier, so that counts in units of 1/denominator records are measured exactly.

    Guarantee
    ---------
    Protected: K · counts + noise of one release, where one neighbour step changes K · counts by at most
        rows_per_unit · √squared_l2 in L2.
    Cost: μ² = (m · rows_per_unit)² · squared_l2 / (variance − 8) of Gaussian DP with multiplier m, at most `cost`.
    Neighbours: added or removed rows: at most rows_per_unit of one unit.
    Proof: docs/privacy.md, The charge of discrete noise; tests/privacy/test_draws.py.
    """
    if squared_l2 * rows_per_unit < 1 or cost <= 0:
        raise ValueError(f"{what}: a sensitivity or a cost of 0")

    # squared sensitivity over β, the squared μ of the cost, is the variance that costs β: above/below
    above, below = squared_l2 * rows_per_unit**2 * cost.denominator, cost.numerator  # variance of multiplier 1
    multiplier = denominator
    # double the multiplier until the variance m² · above/below is at least FINE, so that σ ≥ 4096 lattice steps
    while multiplier**2 * above < FINE * below:
        multiplier *= 2
    # rounded up; the module shows why SMOOTHING = 8 more is charged as nothing
    variance = -(-(multiplier**2) * above // below) + SMOOTHING
    if variance > MAX_WIDE_VARIANCE:
        raise _too_small(what)
    return restored_gaussian(multiplier, variance, squared_l2, rows_per_unit)


def restored_gaussian(multiplier: int, variance: int, squared_l2: int, rows_per_unit: int) -> GaussianDraw:
    """Return the draw of the given noise with its cost. Raises ValueError for noise that cannot be drawn.

    `squared_l2` is the squared L2 sensitivity of the counts, times rows_per_unit² for a unit of several rows. The cost
    is that of the variance less SMOOTHING, see the module.
    """
    if multiplier < 1 or not SMOOTHING < variance <= MAX_WIDE_VARIANCE:
        raise ValueError("an impossible draw")
    moved = multiplier**2 * squared_l2 * rows_per_unit**2
    return GaussianDraw(multiplier, variance, Fraction(moved, variance - SMOOTHING))


def scaled_gaussian(draw: GaussianDraw, factor: float, squared_l2: int, rows_per_unit: int) -> GaussianDraw:
    """Return a draw with `factor` times the variance of another, or slightly more, on a lattice that is fine enough.

    It describes a linear combination of values that were drawn.

    Doubling the multiplier halves the lattice step, so the same noise has four times the variance in steps.
    """
    exact, multiplier = Fraction(draw.variance) * Fraction(factor), draw.multiplier
    while exact < FINE:
        exact, multiplier = 4 * exact, 2 * multiplier
    return restored_gaussian(multiplier, math.ceil(exact) + SMOOTHING, squared_l2, rows_per_unit)


def laplace_draw(l1: int, epsilon: Fraction, rows_per_unit: int, what: str, denominator: int = 1) -> LaplaceDraw:
    """Return the noise with which a strategy of L1 sensitivity `l1` costs `epsilon` or slightly less, never more.

    Guarantee
    ---------
    Protected: K · counts + noise of one release, where one neighbour step changes K · counts by at most
        rows_per_unit · l1 in L1.
    Cost: ε = m · rows_per_unit · l1 / scale of pure DP with multiplier m, at most `epsilon`.
    Neighbours: added or removed rows: at most rows_per_unit of one unit.
    Proof: docs/privacy.md, Pure ε: Laplace noise; tests/privacy/test_draws.py.
    """
    exact = Fraction(l1 * rows_per_unit) / epsilon
    multiplier = denominator
    while multiplier * exact < FINE:
        multiplier *= 2
    scale = math.ceil(multiplier * exact)
    if scale > MAX_WIDE_SCALE:
        raise _too_small(what)
    return LaplaceDraw(multiplier, scale, Fraction(multiplier * l1 * rows_per_unit, scale))


def cost_of(draws: Sequence[Draw], times: Sequence[int] | None = None) -> Cost:
    """Return the composed cost of independent draws for the ledger.

    Each sum is exact up to rounding every term up to a multiple of 2^-160.

    For pure ε the sum of ε² is at most (Σ ε)², which also bounds the sum after rounding up.

    Parameters
    ----------
    draws : sequence of Draw
    times : sequence of int, optional
        Number of repetitions of each draw. Default: 1.
    """
    gaussian, laplace = list[Costs](), list[Costs]()
    for draw, number in zip(draws, times or [1] * len(draws), strict=True):
        (laplace if isinstance(draw, LaplaceDraw) else gaussian).append((draw.cost, number))
    pure = _rounded_up(laplace)
    squares = min(_rounded_up([(epsilon**2, number) for epsilon, number in laplace]), pure**2)
    return Cost(gaussian=_rounded_up(gaussian), pure=pure, pure_squares=squares)


def recounted(draw: Draw, squared_l2: int, l1: int, rows_per_unit: int) -> Fraction:
    """Recompute the cost of a draw (β or ε) from its parameters and the sensitivities, ignoring its stored cost."""
    if isinstance(draw, LaplaceDraw):
        return Fraction(draw.multiplier * l1 * rows_per_unit, draw.scale)
    return Fraction(draw.multiplier**2 * squared_l2 * rows_per_unit**2, draw.variance - SMOOTHING)


def total_below(parts: Iterable[Costs]) -> Fraction:
    """Return a sum with each term rounded down to a multiple of 2^-160.

    Exact sums of thousands of fractions would have long denominators.
    """
    return Fraction(sum(int(part * COST_UNIT) * number for part, number in parts), COST_UNIT)


def cost_units(cost: Fraction) -> int:
    """Return the least number of units of 2^-160 that a cost needs."""
    return math.ceil(cost * COST_UNIT)


def cost_of_units(units: int) -> Fraction:
    """Return a number of units of 2^-160 as a cost."""
    return Fraction(units, COST_UNIT)


def _rounded_up(costs: Iterable[Costs]) -> Fraction:
    return Fraction(sum(math.ceil(cost * COST_UNIT) * number for cost, number in costs), COST_UNIT)


def _too_small(what: str) -> PlanError:
    """Return the error for a budget whose noise would be too large to draw.

    `what` is the measurement, for the message.
    """
    return PlanError(
        "privacy",
        f"a budget too small to measure {what}",
        "noise below 2^99 lattice steps",
        "increase the budget, or reduce the workload",
    )


__all__ = ["BELOW_ONE", "GAUSSIAN", "LAPLACE", "allocate", "rooted", "total_error", "variance_factor"]

BELOW_ONE = 1 - 1e-15  # sum of shares, which leaves room for its rounding


def allocate(coefficients: Sequence[float], noise: str = GAUSSIAN) -> tuple[list[float], float]:
    """Return shares that sum to at most 1 and minimise the total error, and that error at privacy cost 1.

    Shares are proportional to c^p with the power p of `rooted`; BELOW_ONE leaves room for rounding of their sum. The
    power p is ½ for Gaussian and ⅓ for Laplace noise.
    """
    roots = [value ** (1 / 3) if noise == LAPLACE else math.sqrt(value) for value in coefficients]
    total = math.fsum(roots)
    shares = [root / total * BELOW_ONE for root in roots]
    return shares, total_error(coefficients, shares, noise)


def rooted(noise: str) -> float:
    """Return the power p of the coefficients c_i to which optimal shares are proportional.

    Shares s_i with Σ s_i = 1 minimise Σ c_i / s_i for Gaussian noise, whose variance is inverse to the share, at
    s_i ∝ c_i^(1/2), and Σ c_i / s_i² for Laplace noise, whose scale is, at s_i ∝ c_i^(1/3). The least total error is
    (Σ c_i^p)^(1/p).
    """
    return 1 / 3 if noise == LAPLACE else 1 / 2


def total_error(coefficients: Sequence[float], shares: Sequence[float], noise: str = GAUSSIAN) -> float:
    """Return the total error at privacy cost 1 for given shares."""
    power = 2 if noise == LAPLACE else 1
    return math.fsum(value / share**power for value, share in zip(coefficients, shares, strict=True))


def variance_factor(noise: str) -> int:
    """Return the noise variance in units of its squared scale: 2 for Laplace (b ↦ 2b²), 1 for Gaussian noise."""
    return 2 if noise == LAPLACE else 1
