"""The last look before a draw: what all decisions come to, held against what was charged.

Mechanisms account for themselves, exactly; this counts again from the integer strategies, the noise and the number of
selections, so that no mechanism, whatever its mistake, draws more than the ledger holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from dpscale.base.errors import BudgetError
from dpscale.plans.orders import in_columns
from dpscale.plans.planned import Decision, Selection
from dpscale.privacy.accounting import Cost
from dpscale.privacy.draws import LaplaceDraw, recounted, total_below


def check_affordable(decisions: Sequence[Decision], charged: Cost, rows_per_unit: int) -> None:
    """BudgetError where the decisions come to more than was charged for all of them."""
    parts = list(_parts(decisions, rows_per_unit))
    gaussian, pure = (total_below((c, n) for kind, c, n in parts if kind is pure) for pure in (False, True))
    squares = total_below((cost**2, number) for is_pure, cost, number in parts if is_pure)
    if gaussian > charged.gaussian or pure > charged.pure or squares > charged.pure_squares:
        raise BudgetError("mechanism", f"round {decisions[-1].round} would measure more than was charged",
                          "what the plan said it costs", "this is a fault of the mechanism: report it")  # fmt: skip


def check_choosing(decision: Decision, selection: Selection) -> None:
    """BudgetError where a decision does not tell what its selections cost."""
    if decision.choosing < selection.count * selection.beta:
        raise BudgetError("mechanism", f"round {decision.round} chose at a higher cost than it tells", "what it cost",
                          "this is a fault of the mechanism: report it")  # fmt: skip


def _parts(decisions: Sequence[Decision], rows_per_unit: int) -> Iterator[tuple[bool, Fraction, int]]:
    """Whether it is pure, what it costs, squared μ or ε, and how many there are of it."""
    for decision in decisions:
        yield False, decision.choosing, 1
        for order, number in in_columns(decision.orders).alike():
            block = order.block
            cost = recounted(order.draw, block.squared_l2_sensitivity, block.l1_sensitivity, rows_per_unit)
            yield isinstance(order.draw, LaplaceDraw), cost, number
