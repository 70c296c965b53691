"""Shares of the budget among measurements of a round."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpscale.mechanisms.aim.setting import BatchedSchedule, PublishedSchedule
from dpscale.mechanisms.aim.state import first_decision, initial_state
from tests.measurement.small import SIZES, make_counter, make_records, make_setting

CELLS = (2, 5, 12, 100, 264)


def total_error(cells, costs):
    """Return Σ n σ with σ = 1/√β, up to the factor √(2/π)."""
    return float((np.array(cells) / np.sqrt(np.array(costs, dtype=float))).sum())


def test_shares_minimise_total_error():
    shares = BatchedSchedule().shares(CELLS)
    assert sum(shares) == 1
    best, rng = total_error(CELLS, shares), np.random.default_rng(0)
    for _ in range(200):
        other = np.array(shares, dtype=float) * np.exp(rng.normal(0, 0.3, len(CELLS)))
        assert total_error(CELLS, other / other.sum()) > best * (1 - 1e-7)
    assert best < 0.9 * total_error(CELLS, PublishedSchedule().shares(CELLS))  # and evenly far more


def test_one_way_shares_sum_to_planned_cost():
    setting = make_setting()
    first = first_decision(setting)
    costs = {order.names[0]: order.draw.cost for order in first.requests}
    assert sum(costs.values()) <= first.spent == len(SIZES) * setting.one_way_cost
    assert float(sum(costs.values())) == pytest.approx(float(first.spent), rel=1e-5)
    assert float(costs["c"] / costs["d"]) == pytest.approx((SIZES["c"] / SIZES["d"]) ** (2 / 3), rel=1e-3)


def test_round_shares_follow_number_of_groups():
    setting, counts_of = make_setting(beta=Fraction(1, 2)), make_counter(make_records())
    first = first_decision(setting)
    state = initial_state(setting, first, [counts_of(order.names).astype(float) for order in first.requests])
    selection = state.selection
    chosen = (("a", "c"), ("b", "d"))
    decision = state.decide(replace(selection, count=2), chosen)
    spent = {names: sum(o.draw.cost for o in decision.requests if o.source == names) for names in chosen}
    cells = {names: math.prod(state.groups[name].count for name in names) for names in chosen}
    assert float(sum(spent.values())) == pytest.approx(float(2 * selection.step), rel=1e-5)
    one, other = chosen
    assert float(spent[one] / spent[other]) == pytest.approx((cells[one] / cells[other]) ** (2 / 3), rel=1e-3)


def test_cheap_steps_give_larger_batches():
    """A ninth of the pairs at even steps, three ninths at the cheapest; the batch never grows with the step."""
    pairs = {("a", str(i)): 5 for i in range(180)}
    weights = {**pairs, ("a", "b", "c"): 1}
    sizes = [BatchedSchedule().batch(weights, Fraction(share, 100)) for share in range(25, 301)]
    assert (sizes[0], sizes[75], sizes[-1]) == (60, 20, 20)
    assert sizes == sorted(sizes, reverse=True)
    assert PublishedSchedule().batch(pairs, Fraction(1, 4)) == 1
