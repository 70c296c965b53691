"""What a round measures, fixed and on disk before anything of it is drawn.

A run that is taken up on another machine, or read there, goes by what was decided and not by floats made again: their
last bits may differ, and a measurement under another law would be a second one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from dpscale.base.names import AttributeSet
from dpscale.mechanisms.aim.orders import ResidualOrder, strategy_of
from dpscale.mechanisms.aim.setting import Setting
from dpscale.privacy.draws import restored_gaussian
from dpscale.workload.residual.groups import Groups, every_cell


@dataclass(frozen=True, eq=False)
class Decision:
    """Round 0 measures the 1-ways; each round after it the residuals of what it chose, or, without choosing, 1-ways.

    A choice of nothing, (), costs its selection alone. `beta`: squared μ of one selection; `step`: of one chosen set's
    measurements; `groups`: of every attribute.
    """

    round: int
    chosen: tuple[AttributeSet, ...]
    beta: Fraction
    step: Fraction
    groups: Mapping[str, Groups]
    orders: tuple[ResidualOrder, ...]

    @property
    def spent(self) -> Fraction:
        """Squared μ of the whole round."""
        return self.choosing + len(self.measured) * self.step

    @property
    def measured(self) -> tuple[AttributeSet, ...]:
        """What was chosen, without choices of nothing."""
        return tuple(names for names in self.chosen if names)

    @property
    def of_ones(self) -> bool:
        """Whether it measures the 1-ways over their cells: nothing was chosen."""
        return self.beta == 0

    @property
    def choosing(self) -> Fraction:
        """Squared μ of its selections."""
        return len(self.chosen) * self.beta

    def fits(self, other: Decision) -> bool:
        """Whether a process that came to the other may go on with this one: its shards are over the same groups."""
        return self.groups == other.groups

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON; exact."""
        return {
            "round": self.round,
            "chosen": [list(names) for names in self.chosen],
            "beta": str(self.beta),
            "step": str(self.step),
            "groups": {name: [grouping.size, *grouping.starts] for name, grouping in self.groups.items()},
            "orders": [
                [order.rank, list(order.names), str(order.draw.multiplier), str(order.draw.variance)]
                for order in self.orders
            ],
        }

    @classmethod
    def from_dict(cls, told: Mapping[str, Any], setting: Setting) -> Decision:
        """Read back; ValueError unless it is a decision of such a run and costs what it says."""
        number = int(told["round"])
        groups = {name: Groups(starts[0], tuple(starts[1:])) for name, starts in told["groups"].items()}
        if any(not _partition(grouping, setting.sizes.get(name)) for name, grouping in groups.items()):
            raise ValueError("groups do not fit the domain")
        chosen = tuple(tuple(names) for names in told["chosen"])
        beta = Fraction(told["beta"])
        cells = {name: every_cell(size) for name, size in setting.sizes.items()} if beta == 0 else None
        orders = tuple(_order(setting, number, groups, chosen, cells, *row) for row in told["orders"])
        decision = cls(number, chosen, beta, Fraction(told["step"]), groups, orders)
        _check(decision, setting)
        return decision


def _partition(groups: Groups, size: int | None) -> bool:
    """Whether the groups are runs of all cells of an attribute."""
    starts = (*groups.starts, groups.size)
    return size == groups.size and starts[0] == 0 and all(a < b for a, b in pairwise(starts))


def _order(
    setting: Setting,
    number: int,
    groups: Mapping[str, Groups],
    chosen: tuple[AttributeSet, ...],
    cells: Mapping[str, Groups] | None,
    rank: int,
    names: list[str],
    multiplier: str,
    variance: str,
) -> ResidualOrder:
    if (
        (cells is not None and not names)
        or not 0 <= rank < len(chosen)
        or not chosen[rank]
        or not set(names) <= set(chosen[rank])
        or setting.ordered(names) != tuple(names)
    ):
        raise ValueError("an order outside what was chosen")
    by_cell = cells is not None
    inside = tuple((groups if cells is None else cells)[name] for name in names)
    own = setting.strategies.get(names[0]) if by_cell else None
    block = strategy_of(tuple(names), inside, by_cell, own)
    draw = restored_gaussian(int(multiplier), int(variance), block.squared_l2_sensitivity, setting.rows_per_unit)
    return ResidualOrder(number, rank, chosen[rank], tuple(names), inside, draw, by_cell, own)


def _check(decision: Decision, setting: Setting) -> None:
    known = {(name,) for name in setting.names} if decision.of_ones else set(setting.candidates)
    if len(set(decision.measured)) != len(decision.measured) or not set(decision.measured) <= known:
        raise ValueError("a choice that is no candidate, or twice the same")
    if not decision.chosen or (() in decision.chosen and not _may_forgo(decision, setting)):
        raise ValueError("no choice, or one of nothing where none is offered")
    if (
        decision.beta < 0
        or decision.step <= 0
        or sum(order.draw.cost for order in decision.orders) > len(decision.measured) * decision.step
    ):
        raise ValueError("orders that cost more than their round")
    if decision.round == 0 and any(decision.groups[name] != every_cell(setting.sizes[name]) for name in setting.names):
        raise ValueError("1-ways that are not over their cells")


def _may_forgo(decision: Decision, setting: Setting) -> bool:
    return not decision.of_ones and setting.schedule.doubtful((), ())
