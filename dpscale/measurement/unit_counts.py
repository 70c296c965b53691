"""Numbers of distinct units by cell: noise, cost and estimates (workload parts with `count = "units"`).

A unit with at most k rows is in at most k cells of a marginal, and counts once in each. Adding or removing it changes
at most k counts by one, so the identity strategy has squared L2 sensitivity k and L1 sensitivity k, where numbers of
rows have k². In general a strategy A costs the largest 1'X_SS 1 over at most k distinct cells S, with X = A'A. Counts
of units share no residuals: each set is measured by itself. Under a budget β, the weighted error Σ_s w_s n_s k/β_s over
sets of n_s cells is least for β_s proportional to sqrt(w_s n_s), under Laplace noise to its power 2/3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import Domain
from dpscale.privacy.accounting import LAPLACE, Budget, Cost
from dpscale.privacy.draws import Draw, allocate, cost_of, gaussian_draw, laplace_draw
from dpscale.privacy.streams import open_stream

MOST_MULTIPLIER = 1 << 28


@dataclass(frozen=True)
class UnitPlan:
    """Measurement of the numbers of distinct units of some sets.

    Attributes
    ----------
    sets : tuple of AttributeSet
    draws : tuple of Draw
        Noise of each set.
    rows_per_unit : int
        Contribution bound k.
    """

    sets: tuple[AttributeSet, ...]
    draws: tuple[Draw, ...]
    rows_per_unit: int

    @property
    def cost(self) -> Cost:
        return cost_of(self.draws)

    @property
    def records(self) -> list[dict[str, Any]]:
        """Everything that determines the draw of each set, in text and integers."""
        return [{"count": "units", "version": 1, "attributes": list(names), "multiplier": str(draw.multiplier),
                 **draw.noise_spec, "rows_per_unit": self.rows_per_unit}
                for names, draw in zip(self.sets, self.draws, strict=True)]  # fmt: skip


def plan_units(
    domain: Domain, sets: Sequence[AttributeSet], weights: Sequence[float], budget: Budget, rows_per_unit: int
) -> UnitPlan:
    """Return the measurement of the numbers of distinct units of sets at a budget.

    Parameters
    ----------
    domain : Domain
    sets : sequence of AttributeSet
    weights : sequence of float
        Weight of the squared errors of each set.
    budget : Budget
    rows_per_unit : int

    Raises
    ------
    PlanError
        If a budget is too small, or so large that counts times the multiplier could exceed 64 bits.
    """
    used = [(names, weight) for names, weight in zip(sets, weights, strict=True) if weight]
    shares, _ = allocate([weight * domain.cells(names) for names, weight in used], budget.noise)
    draws: list[Draw] = []
    for (names, _), share in zip(used, shares, strict=True):
        what, amount = f"units by {', '.join(names) or 'no attribute'}", Fraction(budget.amount) * Fraction(share)
        if budget.noise == LAPLACE:
            draws.append(laplace_draw(rows_per_unit, amount, 1, what))
        else:
            draws.append(gaussian_draw(rows_per_unit, amount, 1, what))
        if not draws[-1].fits_words or draws[-1].multiplier > MOST_MULTIPLIER:
            raise PlanError("privacy", f"a budget with which {what} cannot be measured on integers of 64 bits",
                            "another budget", "change it, or units.share")  # fmt: skip
    return UnitPlan(tuple(names for names, _ in used), tuple(draws), rows_per_unit)


def measure_units(
    plan: UnitPlan, counts: Sequence[Integers], secret: bytes, head: Mapping[str, Any]
) -> list[tuple[Floats, float]]:
    """Return the noisy numbers of units of each set in row-major order, and their standard deviation.

    Parameters
    ----------
    plan : UnitPlan
    counts : sequence of ndarray of int64
        Exact numbers of units of the plan's sets.
    secret : bytes
    head : mapping
        Beginning of every noise record.
    """
    found = []
    for draw, record, own in zip(plan.draws, plan.records, counts, strict=True):
        noise = draw.words(open_stream(secret, "noise", {**head, **record}), len(own))
        found.append((np.asarray((draw.multiplier * own + noise) / draw.multiplier), draw.lattice_variance**0.5))
    return found
