"""The exact draws of a plan under a budget, one a block (`privacy.draws` has the formula)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from dpscale.errors import PlanError
from dpscale.plans.block import Block
from dpscale.plans.plan import Plan
from dpscale.privacy.accounting import Cost
from dpscale.privacy.budget import LAPLACE
from dpscale.privacy.draws import Draw, cost_of, gaussian_draw, laplace_draw


@dataclass(frozen=True)
class Schedule:
    """The draws of a plan, one a block."""

    draws: tuple[Draw, ...]

    @cached_property
    def spent(self) -> Cost:
        """Their total as the ledger takes it, exact and rounded up."""
        return cost_of(self.draws)

    @property
    def cost(self) -> Fraction:
        """The same as one number: squared Gaussian-DP μ, or ε."""
        return self.spent.gaussian or self.spent.pure


def make_schedule(plan: Plan, budget: float, rows_per_unit: int = 1) -> Schedule:
    """The exact draws of a plan at a budget (β, or ε for Laplace noise): they come to nearly that, and never more."""
    if len({block.noise for block in plan.blocks}) != 1:  # no method makes such a plan, and β and ε do not add
        raise PlanError("plan", "blocks of both kinds of noise", "one kind", "plan again, in a new run")
    schedule = Schedule(tuple(draw_of(block, Fraction(budget), rows_per_unit) for block in plan.blocks))
    if schedule.cost > Fraction(budget):
        raise PlanError("privacy", f"a budget of {budget:g}, too small to share out", "a larger one", "give more")
    return schedule


def draw_of(block: Block, budget: Fraction, rows_per_unit: int) -> Draw:
    """The draw of one block, which takes its share of the budget."""
    amount, what = Fraction(block.share) * budget, ", ".join(block.attributes) or "the total"
    if block.noise == LAPLACE:
        return laplace_draw(block.l1_sensitivity, amount, rows_per_unit, what)
    return gaussian_draw(block.squared_l2_sensitivity, amount, rows_per_unit, what)
