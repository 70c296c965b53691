"""Pairs with most of the weight, as those of a target: the first round measures them, and steps are of their number."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from dpscale import Domain, Workload
from dpscale.measurement.adaptive import run
from dpscale.mechanisms import aim_grem, mst
from dpscale.mechanisms.aim import setting as settings_of
from dpscale.mechanisms.aim.adaptive_plan import AdaptivePlan, plan_of_period
from dpscale.mechanisms.aim.setting import BatchedSchedule, Setting
from dpscale.mechanisms.aim.state import first_decision, initial_state
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.plans.time_plan import PeriodContext
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.privacy.streams import seeded_secret

SIZES = {**dict.fromkeys("abcdefgh", 3), "y": 2}
STAR = tuple((name, "y") for name in "abcdefgh")


def make_problem(target: bool, beta: float = 1.0) -> PlanningProblem:
    workload = Workload(Domain(SIZES)).add("marginal", degree=3)
    return PlanningProblem(workload.add_target("y") if target else workload, Budget(GAUSSIAN, beta))


def make_plan(target: bool, beta: float = 1.0) -> AdaptivePlan:
    return aim_grem.plan(make_problem(target, beta), aim_grem.Options())


def test_pairs_of_a_target_lead_and_steps_are_of_the_effective_number() -> None:
    plain, aimed = make_plan(target=False).setting, make_plan(target=True).setting
    assert (plain.first_sets, aimed.first_sets) == ((), STAR)
    weights = np.array([weight for names, weight in aimed.weights.items() if len(names) == 2], float)
    effective = round(weights.sum() ** 2 / (weights**2).sum())
    assert 4 * len(STAR) <= 3 * effective < 3 * len(weights) / 2
    assert aimed.first_step == plain.first_step * len(weights) / effective
    assert aimed.batch(aimed.first_step) < plain.batch(plain.first_step)


def test_pairs_lead_only_if_they_are_few_and_heavy() -> None:
    leading, pairs = BatchedSchedule().leading, dict.fromkeys(combinations("abcd", 2), 1)
    assert leading(pairs) == ()
    assert leading({**pairs, ("a", "b"): 4}) == (), "the others have a quarter of its weight"
    assert leading({**pairs, ("a", "b"): 5}) == (("a", "b"),)
    assert leading({**pairs, **dict.fromkeys(list(pairs)[:4], 5)}) == (), "most pairs are heavy"
    assert leading({("a", "b", "c"): 5}) == leading({}) == ()
    assert mst.plan(make_problem(target=True), mst.Options()).setting.first_sets == ()


def test_leading_pairs_leave_a_quarter_of_the_steps_and_the_share_of_laws() -> None:
    """Ten heavy pairs of an effective number of eight would spend all: here also what is reserved for laws."""
    names = "abcdefg"
    weights = dict(zip(combinations(names, 2), (40, *[10] * 9, *[1] * 11), strict=True))
    setting = Setting(dict.fromkeys(names, 3), tuple(weights), Fraction(1), target_weights=tuple(weights.values()),
                      schedule=BatchedSchedule(degree=4))  # fmt: skip
    assert len(setting.first_sets) == 10
    assert round(sum(weights.values()) ** 2 / sum(weight**2 for weight in weights.values())) == 8
    decision = first_decision(setting)
    state = initial_state(setting, decision, [np.full(3, 1e4) for _ in decision.chosen])
    round_one = state.decide(state.selection, ())
    assert round_one.chosen == setting.first_sets
    assert round_one.spent <= Fraction(3, 4) * state.available < Fraction(3, 4) * state.left


@pytest.mark.parametrize("heavy", [1, 2])
def test_field_is_written_whenever_the_schedules_differ(monkeypatch, heavy: int) -> None:
    """With 28 pairs, one of weight 2, and laws, both schedules have the same even step by chance."""
    monkeypatch.setattr(settings_of, "MOST_ATTRIBUTES", 8)
    names = [f"x{i}" for i in range(9)]
    pairs, weights = tuple(combinations(names[:8], 2)), (heavy, *[1] * 27)
    workload = Workload(Domain(dict.fromkeys(names, 3))).add("marginal", attributes=[names[:3], [names[8]]])
    for pair, weight in zip(pairs, weights, strict=True):
        workload.add("marginal", attributes=[pair], weight=weight)
    plan = aim_grem.plan(PlanningProblem(workload, Budget(GAUSSIAN, 1.0)), aim_grem.Options())
    assert list(plan.setting.law_degrees) == [3]
    assert plan.to_dict()["schedule"] == 2


def test_first_round_measures_them_without_a_selection() -> None:
    """At a budget too small to select anything, the pairs of the target are measured and no others before them."""
    rng, rows = np.random.default_rng(0), 3000
    y = rng.integers(0, 2, rows)
    table = np.stack([*(np.where(rng.random(rows) < 0.3, y, rng.integers(0, 3, rows)) for _ in range(8)), y], axis=1)

    def count(names):
        shape = [SIZES[name] for name in names]
        cells = np.ravel_multi_index(table[:, [list(SIZES).index(name) for name in names]].T, shape)
        return np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape)

    def strength(state):
        """Return the share of the dependence on y that estimates have, as a mean over the other attributes."""
        tables = [(state.marginal(names), count(names)) for names in STAR]
        shares = [[own / own.sum() for own in pair] for pair in tables]
        departures = [[own - np.outer(own.sum(1), own.sum(0)) for own in pair] for pair in shares]
        return float(np.mean([(own * true).sum() / (true**2).sum() for own, true in departures]))

    states = {target: [run(make_plan(target, beta=5e-4), count, seeded_secret(seed)) for seed in range(4)]
              for target in (True, False)}  # fmt: skip
    assert all(state.rounds[0].chosen == STAR and state.rounds[0].selection_cost == 0 for state in states[True])
    assert all(state.left == 0 for state in states[True])
    aimed, plain = (np.mean([strength(state) for state in states[target]]) for target in (True, False))
    assert aimed > 0.7
    assert plain < 0.5


def test_period_of_a_growing_table_measures_all_pairs() -> None:
    """Planted: with the leading pairs of one table, other pairs of a period would have no values."""
    plan = plan_of_period(make_plan(target=True), PeriodContext())
    rng = np.random.default_rng(0)
    first = plan.first_decision()
    state = plan.rounds.start([rng.integers(300, 400, SIZES[name]).astype(float) for (name,) in first.chosen])
    assert state.selection.is_empty
    assert not plan.setting.laws
    assert set(state.decide(state.selection, ()).chosen) == set(combinations(SIZES, 2))


@pytest.mark.parametrize("revised", [True, False])
def test_older_plans_have_no_leading_pairs(tmp_path: Path, revised: bool) -> None:
    """A stored plan without the field has the schedule of its time; plans that do not depend on it lack the field."""
    assert "schedule" not in make_plan(target=False).to_dict()
    content = make_plan(target=True).to_dict()
    assert content["schedule"] == 2
    stored = {key: value for key, value in content.items() if revised or key != "schedule"}
    (tmp_path / "plan.json").write_text(json.dumps(stored))
    again = aim_grem.MECHANISM.read(tmp_path, make_problem(target=True), aim_grem.Options())
    assert again.setting.first_sets == (STAR if revised else ())
    assert again.to_dict() == stored
