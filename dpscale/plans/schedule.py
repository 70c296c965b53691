"""The exact draws of a plan under a budget, one a block (`privacy.draws` has the formula).

Blocks of the same strategy and share have the same draw, which is computed once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dpscale.base.errors import PlanError
from dpscale.plans.block import Block
from dpscale.plans.blocks import Blocks
from dpscale.plans.plan import Plan
from dpscale.privacy.accounting import Cost
from dpscale.privacy.budget import LAPLACE
from dpscale.privacy.draws import Draw, cost_of, gaussian_draw, laplace_draw


class Draws(Sequence[Draw]):
    """The i-th is `kinds[which[i]]`."""

    def __init__(self, kinds: tuple[Draw, ...], which: NDArray[np.int32]) -> None:
        self.kinds, self.which = kinds, which

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, index: int) -> Draw: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Draw, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self.kinds[i] for i in self.which[index].tolist())
        return self.kinds[self.which[index]]

    def taken(self, wanted: NDArray[np.int64]) -> Draws:
        """Some of them, with their kinds alone."""
        used, which = np.unique(self.which[wanted], return_inverse=True)
        return Draws(tuple(self.kinds[i] for i in used.tolist()), which.astype(np.int32))

    @cached_property
    def cost(self) -> Cost:
        """What all cost together, exact and rounded up."""
        return cost_of(self.kinds, np.bincount(self.which, minlength=len(self.kinds)).tolist())

    @property
    def law(self) -> list[Any]:
        """What is drawn: every kind, and a hash of which is whose."""
        whose = hashlib.sha256(np.ascontiguousarray(self.which).tobytes()).hexdigest()
        return [[[draw.multiplier, draw.law] for draw in self.kinds], whose]

    @cached_property
    def variances(self) -> NDArray[np.float64]:
        """Of the numbers that each blurs, in units of K · marginal."""
        return np.array([draw.lattice_variance for draw in self.kinds])[self.which]


@dataclass(frozen=True)
class Schedule:
    """The draws of a plan, one a block."""

    draws: Draws

    @property
    def spent(self) -> Cost:
        """Their total as the ledger takes it, exact and rounded up."""
        return self.draws.cost

    @property
    def cost(self) -> Fraction:
        """The same as one number: squared Gaussian-DP μ, or ε."""
        return self.spent.gaussian or self.spent.pure


def make_schedule(plan: Plan, budget: float, rows_per_unit: int = 1) -> Schedule:
    """The exact draws of a plan at a budget (β, or ε for Laplace noise): they come to nearly that, and never more."""
    if len(np.unique(plan.blocks.noise)) != 1:  # no method makes such a plan, and β and ε do not add
        raise PlanError("plan", "blocks of both kinds of noise", "one kind", "plan again, in a new run")
    first, which = _alike(plan.blocks)
    kinds = tuple(draw_of(plan.blocks[index], Fraction(budget), rows_per_unit) for index in first)
    schedule = Schedule(Draws(kinds, which))
    if schedule.cost > Fraction(budget):
        raise PlanError("privacy", f"a budget of {budget:g}, too small to share out", "a larger one", "give more")
    return schedule


def _alike(blocks: Blocks) -> tuple[list[int], NDArray[np.int32]]:
    """The first block of every strategy and share, in the blocks' order, and which of them each block is like."""
    keys = np.stack([blocks.which.astype(np.int64), blocks.share.view(np.int64)])
    order = np.lexsort(keys)
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(keys[:, order]) != 0).any(axis=0)
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(new) - 1
    first = order[new]  # the sort is stable: the first of its kind
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.sort(first).tolist(), rank[group]


def draw_of(block: Block, budget: Fraction, rows_per_unit: int) -> Draw:
    """The draw of one block, which takes its share of the budget."""
    amount, what = Fraction(block.share) * budget, ", ".join(block.attributes) or "the total"
    if block.noise == LAPLACE:
        return laplace_draw(block.l1_sensitivity, amount, rows_per_unit, what)
    return gaussian_draw(block.squared_l2_sensitivity, amount, rows_per_unit, what)
