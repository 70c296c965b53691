"""How what is measured together shares its budget."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpscale.mechanisms.aim.schedule import BatchedSchedule, PublishedSchedule
from dpscale.mechanisms.aim.state import first_decision, initial_state, make_decision, next_selection
from tests.measurement.small import SIZES, make_counter, make_records, make_setting

CELLS = (2, 5, 12, 100, 264)


def missed(cells, costs):
    """Σ n σ, σ = 1/√β, up to √(2/π)."""
    return float((np.array(cells) / np.sqrt(np.array(costs, dtype=float))).sum())


def test_no_other_sharing_misses_less():
    shares = BatchedSchedule().shares(CELLS)
    assert sum(shares) == 1
    best, rng = missed(CELLS, shares), np.random.default_rng(0)
    for _ in range(200):
        other = np.array(shares, dtype=float) * np.exp(rng.normal(0, 0.3, len(CELLS)))
        assert missed(CELLS, other / other.sum()) > best * (1 - 1e-7)
    assert best < 0.9 * missed(CELLS, PublishedSchedule().shares(CELLS))  # and evenly far more


def test_1_ways_and_rounds_cost_what_they_cost_evenly():
    asked = make_setting()
    first = first_decision(asked)
    costs = {order.names[0]: order.draw.cost for order in first.requests}
    assert sum(costs.values()) <= first.spent == len(SIZES) * asked.one_way_cost
    assert float(sum(costs.values())) == pytest.approx(float(first.spent), rel=1e-5)
    assert float(costs["c"] / costs["d"]) == pytest.approx((SIZES["c"] / SIZES["d"]) ** (2 / 3), rel=1e-3)


def test_a_round_shares_by_the_cells_of_groups():
    asked, counts_of = make_setting(beta=Fraction(1, 2)), make_counter(make_records())
    first = first_decision(asked)
    state = initial_state(asked, first, [counts_of(order.names).astype(float) for order in first.requests])
    selection = next_selection(state)
    chosen = (("a", "c"), ("b", "d"))
    made = make_decision(state, replace(selection, count=2), chosen)
    spent = {names: sum(o.draw.cost for o in made.requests if o.source == names) for names in chosen}
    cells = {names: math.prod(state.groups[name].count for name in names) for names in chosen}
    assert float(sum(spent.values())) == pytest.approx(float(2 * selection.step), rel=1e-5)
    one, other = chosen
    assert float(spent[one] / spent[other]) == pytest.approx((cells[one] / cells[other]) ** (2 / 3), rel=1e-3)


def test_cheap_steps_come_in_larger_rounds():
    """A ninth of the pairs at even steps, three ninths at the cheapest, never fewer where steps are cheaper."""
    pairs = [("a", str(i)) for i in range(180)]
    sizes = [BatchedSchedule().batch([*pairs, ("a", "b", "c")], Fraction(share, 100)) for share in range(25, 301)]
    assert (sizes[0], sizes[75], sizes[-1]) == (60, 20, 20)
    assert sizes == sorted(sizes, reverse=True)
    assert PublishedSchedule().batch(pairs, Fraction(1, 4)) == 1
