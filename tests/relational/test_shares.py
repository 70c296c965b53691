"""Shares of the budget of links: never above the budget, deterministic, and monotone in accuracy."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dpscale.privacy.draws import gaussian_draw
from dpscale.privacy.protection import ADD_REMOVE, REPLACE
from dpscale.relational.budget_shares import LinkProblem, plan_shares, precisions_in_steps, split, sums_cost
from tests.relational.small import make_side

SIZES = [((3, 2), (2, 4, 2)), ((2,), (2,)), ((1, 3), (5,)), ((30, 2), (2, 2, 2, 2))]


def make_problem(sizes, amount: float, relation: str, known: bool = False, moved: int = 4) -> LinkProblem:
    return LinkProblem(
        make_side(60, sizes[0], 1), make_side(50, sizes[1], 2), 200.0, relation, amount / moved**2, known
    )


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("known", [False, True])
def test_shares_cost_at_most_the_budget(sizes, relation: str, known: bool) -> None:
    """Costs are those of the draws; a last bit too much from floating-point shares is refused later."""
    moved, amount = 4, Fraction(1, 3)
    shares = plan_shares(make_problem(sizes, float(amount), relation, known, moved))
    requested = precisions_in_steps(shares)
    precisions = tuple(gaussian_draw(1, one, 1, "").cost if one else Fraction(0) for one in requested)
    cost = sums_cost(relation, shares, precisions, moved)  # type: ignore[arg-type]
    assert cost <= amount
    assert cost >= amount * Fraction(99, 100)
    assert (shares.precisions[1] == 0) or not known


@pytest.mark.parametrize("known", [False, True])
def test_more_budget_is_no_worse_and_shares_are_reproducible(known: bool) -> None:
    found = [plan_shares(make_problem(SIZES[0], amount, REPLACE, known)) for amount in (0.01, 0.1, 1.0, 10.0)]
    errors = [one.expected for one in found]
    assert errors == sorted(errors, reverse=True)
    again = plan_shares(make_problem(SIZES[0], 0.1, REPLACE, known))
    assert (again.precisions, again.u.clip, again.v.clip) == (found[1].precisions, found[1].u.clip, found[1].v.clip)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("degrees", [False, True])
def test_split_parts_sum_to_budget(counted: bool, degrees: bool) -> None:
    parts = split(Fraction(7, 3), counted, degrees)
    assert parts.links + parts.degrees + parts.sums == Fraction(7, 3)
    assert (parts.links > 0) == counted
    assert (parts.degrees > 0) == degrees
