"""Numbers of distinct units by cell, and of rows beyond the bound of a unit: noise, cost and estimates.

A unit with at most k rows is in at most k cells of a marginal, and counts once in each. Adding or removing it changes
at most k counts by one, so the identity strategy has squared L2 sensitivity k and L1 sensitivity k, where numbers of
rows have k². In general a strategy A costs the largest 1'X_SS 1 over at most k distinct cells S, with X = A'A. Counts
of units share no residuals: each set is measured by itself. Under a budget β, the weighted error Σ_s w_s n_s k/β_s over
sets of n_s cells is least for β_s proportional to sqrt(w_s n_s), under Laplace noise to its power 2/3.

The number of rows that the bound cuts is Σ_u min(max(r_u − k, 0), (c − 1) k) for units with r_u rows, where c is
`REACH`. One unit changes it by at most (c − 1) k. It equals the rows beyond the bound k without those beyond ck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet
from dpscale.contributions.joins import REACH
from dpscale.domain import Domain
from dpscale.privacy.accounting import LAPLACE, Budget, Cost
from dpscale.privacy.draws import Draw, allocate, cost_of, gaussian_draw, laplace_draw

MOST_MULTIPLIER = 1 << 28  # counts below 2^34 times it fit in 62 bits


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
    cut : Draw, optional
        Noise of the number of rows beyond the bound.
    """

    sets: tuple[AttributeSet, ...]
    draws: tuple[Draw, ...]
    rows_per_unit: int
    cut: Draw | None = None

    @property
    def all_draws(self) -> tuple[Draw, ...]:
        """Noise of each set, then of the rows beyond the bound."""
        return (*self.draws, *([self.cut] if self.cut else []))

    @property
    def cost(self) -> Cost:
        return cost_of(self.all_draws)

    @property
    def records(self) -> list[dict[str, Any]]:
        """Everything that determines each draw, in text and integers."""
        named = [{"count": "units", "version": 1, "attributes": list(names)} for names in self.sets]
        named += [{"count": "cut", "version": 1, "reach": REACH}] if self.cut else []
        return [{**name, "multiplier": str(draw.multiplier), **draw.noise_spec, "rows_per_unit": self.rows_per_unit}
                for name, draw in zip(named, self.all_draws, strict=True)]  # fmt: skip

    @property
    def requests(self) -> list[tuple[Draw, dict[str, Any]]]:
        """Noise and label of each draw."""
        return list(zip(self.all_draws, self.records, strict=True))


def plan_units(
    domain: Domain,
    sets: Sequence[AttributeSet],
    weights: Sequence[float],
    budget: Budget,
    rows_per_unit: int,
    cut: Budget | None = None,
) -> UnitPlan:
    """Return the measurement of the numbers of distinct units of sets at a budget.

    Parameters
    ----------
    domain : Domain
    sets : sequence of AttributeSet
    weights : sequence of float
        Weight of the squared errors of each set.
    budget : Budget
        Of the numbers of distinct units.
    rows_per_unit : int
    cut : Budget, optional
        Of the number of rows beyond the bound; by default it is not measured.

    Raises
    ------
    PlanError
        If a budget is too small, or so large that counts times the multiplier could exceed 64 bits.
    """
    used = [(names, weight) for names, weight in zip(sets, weights, strict=True) if weight]
    # the shares of the module docstring
    shares, _ = allocate([weight * domain.cells(names) for names, weight in used], budget.noise)
    draws = [_draw(f"units by {', '.join(names) or 'no attribute'}", budget, share, (rows_per_unit, rows_per_unit))
             for (names, _), share in zip(used, shares, strict=True)]  # fmt: skip

    # a unit counts for at most REACH times its bound, of which the bound itself is not beyond it
    largest_excess = (REACH - 1) * rows_per_unit
    excess = (
        None if cut is None else _draw("rows beyond max_rows_per_unit", cut, 1, (largest_excess, largest_excess**2))
    )
    return UnitPlan(sets=tuple(names for names, _ in used), draws=tuple(draws), rows_per_unit=rows_per_unit, cut=excess)


def _draw(what: str, budget: Budget, share: float, sensitivities: tuple[int, int]) -> Draw:
    """Return the noise at a share of a budget, for an L1 and a squared L2 sensitivity.

    The unit's rows are already in the sensitivities, so the noise is for one row per unit.
    """
    amount, (l1, squared_l2) = Fraction(budget.amount) * Fraction(share), sensitivities
    is_laplace = budget.noise == LAPLACE
    draw = laplace_draw(l1, amount, 1, what) if is_laplace else gaussian_draw(squared_l2, amount, 1, what)
    if not draw.fits_words or draw.multiplier > MOST_MULTIPLIER:
        raise PlanError("privacy", f"a budget with which {what} cannot be measured on integers of 64 bits",
                        "another budget", "change it, or [budget]")  # fmt: skip
    return draw
