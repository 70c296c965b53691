"""What a round measures, with exact discrete noise, before anything is drawn.

Discrete noise on the τ-marginal itself would make its residual cost 1/(2σ²) and not p_τ/(2σ²), since the argument
for the smaller cost has no discrete counterpart. So an order measures the centred marginal made whole,
⊗(n_i I − 11ᵀ) μ_τ, with noise of scale σ Π n_i: cost Π n_i(n_i − 1) / (2σ² Π n_i²) = p_τ/(2σ²), exactly. Dividing by
Π n_i and centring gives the residual with covariance σ² · (centring projector). 1-ways are measured cell by cell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.adaptive.conditional import shares
from dpscale.adaptive.setting import Names
from dpscale.errors import PlanError
from dpscale.measure.block import measure_block
from dpscale.measure.schedule import FINE, SMOOTHING, Draw
from dpscale.plans.block import Block
from dpscale.plans.factor import center_factor, identity_factor
from dpscale.privacy.noise import MAX_WIDE_VARIANCE
from dpscale.residual import center, subsets
from dpscale.residual.groups import Groups, coarsened
from dpscale.tables import ExactMarginal

Array = NDArray[np.float64]
SHARE_UNIT = 1 << 40


@dataclass(frozen=True, eq=False)
class Order:
    """One measurement: the residual on `names` over `groups`, or, if `whole`, the 1-way's cells themselves.

    `round` and `rank`: which round it belongs to and the how many-th set of the round it serves. `draw.cost` is its β.
    """

    round: int
    rank: int
    names: Names
    groups: tuple[Groups, ...]
    draw: Draw
    whole: bool = False

    @property
    def block(self) -> Block:
        return order_block(self.names, self.groups, self.whole)

    @property
    def cells(self) -> int:
        return math.prod(own.count for own in self.groups)

    @property
    def variance(self) -> float:
        """Of the noise on the τ-marginal that the estimate amounts to: σ²."""
        scale = 1 if self.whole else self.cells
        return self.draw.variance / (self.draw.multiplier * scale) ** 2

    @property
    def rho(self) -> Fraction:
        """Its exact cost in zCDP."""
        return self.draw.cost / 2

    def record(self) -> dict[str, Any]:
        """What names the measurement, besides release and snapshot, and so fixes its noise."""
        cells = [[own.size, *own.starts] for own in self.groups]
        law = {"multiplier": str(self.draw.multiplier), **self.draw.law}
        return {"mechanism": "aim-grem/1", "round": self.round, "rank": self.rank, "residual": list(self.names),
                "groups": cells, "whole": self.whole, **law}  # fmt: skip

    def measure(self, counts: NDArray[np.int64], secret: bytes, record: dict[str, Any]) -> Array:
        """The released value from exact counts over the cells of `names`: ready for `State`."""
        exact = ExactMarginal(self.names, np.asarray(coarsened(counts, self.groups), dtype=np.int64))
        return self.estimate(measure_block(self.block, self.draw, exact, secret, record))

    def estimate(self, measured: Array) -> Array:
        """Lattice numbers as noisy counts, or as a noisy centred residual."""
        if self.whole:
            return measured / self.draw.multiplier
        return center(measured / (self.draw.multiplier * self.cells), range(measured.ndim))


def order_block(names: Names, groups: Sequence[Groups], whole: bool) -> Block:
    """The integer strategy of an order: the cells themselves, or the centred marginal made whole."""
    make = identity_factor if whole else center_factor
    return Block(names, tuple(make(own.count) for own in groups), 1.0)


def exact_draw(block: Block, cost: Fraction, rows_per_unit: int) -> Draw:
    """The noise with which a block costs `cost` (β) or a little less, never more."""
    squared_sensitivity = block.squared_l2_sensitivity * rows_per_unit**2
    exact = squared_sensitivity / cost
    multiplier = 1
    while multiplier**2 * exact < FINE:
        multiplier *= 2
    variance = math.ceil(multiplier**2 * exact) + SMOOTHING
    if variance > MAX_WIDE_VARIANCE:
        raise PlanError("privacy", "a budget too small to share out", "noise below 2^99 lattice steps", "give more")
    return restored_draw(block, multiplier, variance, rows_per_unit)


def restored_draw(block: Block, multiplier: int, variance: int, rows_per_unit: int) -> Draw:
    """The draw of so much noise, with what it costs."""
    if multiplier < 1 or not SMOOTHING < variance <= MAX_WIDE_VARIANCE:
        raise ValueError("a draw that cannot be")
    squared_sensitivity = block.squared_l2_sensitivity * rows_per_unit**2
    return Draw(multiplier, variance, Fraction(multiplier**2 * squared_sensitivity, variance - SMOOTHING))


def one_way_order(rank: int, name: str, groups: Groups, rho: Fraction, rows_per_unit: int) -> Order:
    """A 1-way over its cells at a cost of ρ."""
    block = order_block((name,), (groups,), whole=True)
    return Order(0, rank, (name,), (groups,), exact_draw(block, 2 * rho, rows_per_unit), whole=True)


def residual_orders(
    names: Names,
    groups: Sequence[Groups],
    had: dict[Names, float],
    rho: Fraction,
    rows_per_unit: int,
    round_and_rank: tuple[int, int],
) -> list[Order]:
    """The residuals inside `names`, sharing ρ by conditional ResidualPlanner. `had`: precisions already there."""
    sizes = [own.count for own in groups]
    parts = [int(share * SHARE_UNIT) for share in shares(names, sizes, had, float(2 * rho))]
    orders = []
    for kept, part in zip(subsets(names), parts, strict=True):
        if part:
            own = tuple(groups[names.index(name)] for name in kept)
            block = order_block(kept, own, whole=False)
            draw = exact_draw(block, 2 * rho * Fraction(part, sum(parts)), rows_per_unit)
            orders.append(Order(*round_and_rank, kept, own, draw))
    return orders
