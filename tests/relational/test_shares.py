"""How the budget is shared: never more than there is, the same every time, and more of it is no worse."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dpscale.privacy.draws import gaussian_draw
from dpscale.privacy.protection import ADD_REMOVE, REPLACE
from dpscale.relational.budget_shares import LinkProblem, plan_shares, precisions_in_steps, split, sums_cost
from tests.relational.small import side

SIZES = [((3, 2), (2, 4, 2)), ((2,), (2,)), ((1, 3), (5,)), ((30, 2), (2, 2, 2, 2))]


def question(sizes, amount: float, relation: str, known: bool = False, moved: int = 4) -> LinkProblem:
    return LinkProblem(side(60, sizes[0], 1), side(50, sizes[1], 2), 200.0, relation, amount / moved**2, known)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("known", [False, True])
def test_what_is_drawn_costs_no_more_than_there_is(sizes, relation: str, known: bool) -> None:
    """With the draws' own costs; floats that shared the budget may be a last bit too much, which is refused later."""
    moved, amount = 4, Fraction(1, 3)
    shares = plan_shares(question(sizes, float(amount), relation, known, moved))
    asked = precisions_in_steps(shares)
    precisions = tuple(gaussian_draw(1, one, 1, "").cost if one else Fraction(0) for one in asked)
    cost = sums_cost(relation, shares, precisions, moved)  # type: ignore[arg-type]
    assert cost <= amount
    assert cost >= amount * Fraction(99, 100)
    assert (shares.precisions[1] == 0) or not known


@pytest.mark.parametrize("known", [False, True])
def test_more_budget_is_no_worse_and_the_same_question_has_one_answer(known: bool) -> None:
    found = [plan_shares(question(SIZES[0], amount, REPLACE, known)) for amount in (0.01, 0.1, 1.0, 10.0)]
    errors = [one.expected for one in found]
    assert errors == sorted(errors, reverse=True)
    again = plan_shares(question(SIZES[0], 0.1, REPLACE, known))
    assert (again.precisions, again.u.clip, again.v.clip) == (found[1].precisions, found[1].u.clip, found[1].v.clip)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("degrees", [False, True])
def test_parts_come_to_the_whole(counted: bool, degrees: bool) -> None:
    parts = split(Fraction(7, 3), counted, degrees)
    assert parts.links + parts.degrees + parts.sums == Fraction(7, 3)
    assert (parts.links > 0) == counted
    assert (parts.degrees > 0) == degrees
