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
from functools import cached_property
from typing import Any

from dpscale.base.arrays import Floats
from dpscale.base.names import AttributeSet
from dpscale.plans.block import Block
from dpscale.plans.factor import Factor, center_factor, identity_factor
from dpscale.privacy.draws import GaussianDraw, gaussian_draw
from dpscale.reconstruction.by_strategy import StrategyCounts, least_squares
from dpscale.reconstruction.one_way import NoisyCounts
from dpscale.workload.residual import center, subsets
from dpscale.workload.residual.conditional import shares
from dpscale.workload.residual.groups import Groups

SHARE_UNIT = 1 << 40
VERSION = "aim-grem/6"  # in every record, so another version would draw other noise
BY_STRATEGY = "aim-grem/7"  # of runs some of whose 1-ways are measured by strategies, and in the records of those


@dataclass(frozen=True, eq=False)
class ResidualOrder:
    """One measurement: the residual on `names` over `groups`, or, if `by_cell`, the 1-way's cells themselves, each by
    itself or by a `strategy`.

    `round` and `rank`: which round it belongs to and the how many-th set of the round, `source`, it serves. `draw.cost`
    is its β.
    """

    round: int
    rank: int
    source: AttributeSet
    names: AttributeSet
    groups: tuple[Groups, ...]
    draw: GaussianDraw
    by_cell: bool = False
    strategy: Factor | None = None

    @cached_property
    def block(self) -> Block:
        return strategy_of(self.names, self.groups, self.by_cell, self.strategy)

    @property
    def cells(self) -> int:
        return math.prod(grouping.count for grouping in self.groups)

    @property
    def variance(self) -> float:
        """Of the noise on the τ-marginal that the estimate amounts to: σ²; by a strategy that of a cell on average."""
        scale = 1 if self.by_cell else self.cells
        each = 1.0 if self.strategy is None else self.strategy.mean_variance
        return self.draw.variance / (self.draw.multiplier * scale) ** 2 * each

    def counts(self, estimate: Floats) -> NoisyCounts:
        """The estimate of a 1-way by cells, with its noise."""
        if self.strategy is None:
            return NoisyCounts(estimate, self.variance)
        return StrategyCounts(estimate, self.variance, self.strategy)

    @property
    def label(self) -> dict[str, Any]:
        """What names the measurement, besides release and snapshot, and so fixes its noise."""
        cells = [[grouping.size, *grouping.starts] for grouping in self.groups]
        law = {"multiplier": str(self.draw.multiplier), **self.draw.law}
        version = VERSION
        if self.strategy is not None:
            version, law = BY_STRATEGY, {**law, "strategy": self.block.digest}
        return {"mechanism": version, "round": self.round, "rank": self.rank, "residual": list(self.names),
                "groups": cells, "whole": self.by_cell, **law}  # fmt: skip

    def estimate(self, measured: Floats) -> Floats:
        """Lattice numbers as noisy counts, or as a noisy centred residual."""
        if self.strategy is not None:
            return least_squares(self.strategy, measured / self.draw.multiplier)
        if self.by_cell:
            return measured / self.draw.multiplier
        return center(measured / (self.draw.multiplier * self.cells), range(measured.ndim))


def strategy_of(names: AttributeSet, groups: Sequence[Groups], by_cell: bool, own: Factor | None = None) -> Block:
    """The integer strategy of an order: its own, the cells themselves, or the centred marginal made whole."""
    if own is not None:
        return Block(names, (own,), 1.0)
    make = identity_factor if by_cell else center_factor
    return Block(names, tuple(make(grouping.count) for grouping in groups), 1.0)


def one_way_order(
    round_and_rank: tuple[int, int],
    name: str,
    groups: Groups,
    beta: Fraction,
    rows_per_unit: int,
    strategy: Factor | None = None,
) -> ResidualOrder:
    """A 1-way over its cells at a cost of β."""
    block = strategy_of((name,), (groups,), True, strategy)
    draw = gaussian_draw(block.squared_l2_sensitivity, beta, rows_per_unit, name)
    return ResidualOrder(*round_and_rank, (name,), (name,), (groups,), draw, True, strategy)


def residual_orders(
    names: AttributeSet,
    groups: Sequence[Groups],
    had: dict[AttributeSet, float],
    beta: Fraction,
    rows_per_unit: int,
    round_and_rank: tuple[int, int],
) -> list[ResidualOrder]:
    """The residuals inside `names`, sharing β by conditional ResidualPlanner. `had`: precisions already there."""
    sizes = [grouping.count for grouping in groups]
    parts = [int(share * SHARE_UNIT) for share in shares(names, sizes, had, float(beta))]
    orders = []
    for kept, part in zip(subsets(names), parts, strict=True):
        if part:
            inside = tuple(groups[names.index(name)] for name in kept)
            block = strategy_of(kept, inside, by_cell=False)
            cost = beta * Fraction(part, sum(parts))
            draw = gaussian_draw(block.squared_l2_sensitivity, cost, rows_per_unit, ", ".join(kept))
            orders.append(ResidualOrder(*round_and_rank, names, kept, inside, draw))
    return orders
