"""Selection of the empty set: its law, its cost, and budgets of runs on a table without dependences."""

import json
from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy.stats import chisquare

from dpscale.answers.report import trace_plot
from dpscale.measurement.adaptive import Scores, select_candidates
from dpscale.mechanisms.aim.decision import AimDecision, AimSelection
from dpscale.mechanisms.aim.setting import BatchedSchedule, PublishedSchedule
from dpscale.mechanisms.aim.state import first_decision, initial_state
from dpscale.plans.measurement_plan import SCALE
from dpscale.privacy.selection import scale_for
from dpscale.privacy.streams import open_stream, seeded_secret
from dpscale.runs.stages.report import _by_round
from dpscale.workload.residual import every_cell
from tests.measurement.small import (
    NAMES,
    SIZES,
    TRIPLES,
    make_counter,
    make_records,
    make_setting,
    mean_error,
    run_loop,
)
from tests.messages import refused

SETS = (("a", "b"), ("a", "d"), ("b", "d"))


def make_selection(count=2, beta=Fraction(1, 4), nothing=3):
    groups = {name: every_cell(size) for name, size in SIZES.items()}
    weights = dict.fromkeys(SETS, 2)
    candidates = (*SETS, *[()] * nothing)
    return AimSelection(1, candidates, weights, groups, count, beta, Fraction(1), 0.0, 1)


def pair_probabilities(scores, scale):
    """Return the probabilities of two draws in which a set is drawn at most once and the empty set any number of
    times.
    """
    chances = Counter()
    first = np.exp(scale * np.array(scores, float))
    for one, other in product(range(len(scores)), repeat=2):
        left = first.copy()
        left[one] *= one >= len(SETS)
        pair = tuple(SETS[i] if i < len(SETS) else () for i in (one, other))
        chances[pair] += first[one] / first.sum() * left[other] / left.sum()
    return chances


def draw_pairs(selection, scores, seeds):
    def stream_of(seed):
        return lambda label: open_stream(seeded_secret(seed), "selection", label)

    return Counter(select_candidates(selection, scores, 1, stream_of(seed)) for seed in range(seeds))


def test_draws_follow_exponential_mechanism_with_replaced_empty_set():
    selection, scores = make_selection(), Scores()
    distances = dict(zip(SETS, (0, SCALE, 3 * SCALE), strict=True))
    scores._known.update(distances)
    every = scores.of(selection)
    assert every == [2 * distances[names] for names in SETS] + [0] * len(SETS)
    expected = pair_probabilities(every, float(scale_for(selection.beta, selection.sensitivity)))
    found = draw_pairs(selection, every, 3000)
    keys = [key for key, chance in expected.items() if chance > 0]
    assert set(found) <= set(keys)
    fields = chisquare([found[key] for key in keys], [3000 * expected[key] for key in keys])
    assert fields.pvalue > 1e-4
    assert found[((), ())] > 200  # put back; were it taken out, copy by copy, other chances follow
    wrong = pair_probabilities([*every[:3], every[0]], float(scale_for(selection.beta, selection.sensitivity)))
    assert chisquare([found[k] for k in keys], [3000 * wrong[k] + 1e-9 for k in keys], sum_check=False).pvalue < 1e-6


def test_empty_set_has_score_zero_and_no_sensitivity():
    selection = make_selection()
    assert selection.sensitivity == 2 * SCALE == make_selection(nothing=0).sensitivity
    for distance in (0, SCALE, 10**9):
        scores = Scores()
        scores._known.update(dict.fromkeys(SETS, distance))
        assert scores.missing(selection.candidates) == []
        assert scores.of(selection)[-1] == 0


def test_empty_set_is_offered_until_effect_is_found():
    schedule = BatchedSchedule()
    assert schedule.allows_empty([], [])
    assert schedule.allows_empty([0.0, 1.0], [0.0, 4.0])
    assert not schedule.allows_empty([0.0, 3.0], [0.0, 4.0])
    assert not PublishedSchedule().allows_empty([], [])
    assert schedule.one_way_share([0.0] * 8, [0.0] * 8, 0.0) == Fraction(8, 10)  # for any noise of the 1-ways
    assert schedule.one_way_share([9.0, *[0.0] * 7], [1.0] * 8, 0.0) == 0


def test_decision_with_empty_sets_costs_selection_and_round_trips():
    setting, counts_of = make_setting(beta=Fraction(1, 2)), make_counter(make_records())
    first = first_decision(setting)
    state = initial_state(setting, first, [counts_of(order.names).astype(float) for order in first.requests])
    selection = state.selection
    decision = state.decide(selection, (("a", "b"), (), ("b", "d"), ()))
    assert decision.spent == 4 * selection.beta + 2 * selection.step
    assert {order.source for order in decision.requests} == {("a", "b"), ("b", "d")}
    assert all(decision.chosen[order.rank] == order.source for order in decision.requests)
    fields = json.loads(json.dumps(decision.to_dict()))
    assert AimDecision.from_dict(fields, setting).spent == decision.spent
    fields["orders"].append([1, [], *fields["orders"][0][2:]])
    with refused(ValueError):
        AimDecision.from_dict(fields, setting)


@pytest.mark.parametrize("edit", [{"chosen": []}, {"chosen": [[]], "beta": "0"}], ids=["no choice", "free"])
def test_empty_decision_without_candidate_is_refused(edit):
    setting, counts_of = make_setting(), make_counter(make_records())
    first = first_decision(setting)
    state = initial_state(setting, first, [counts_of(order.names).astype(float) for order in first.requests])
    selection = state.selection
    decision = state.decide(selection, ((),) * selection.count).to_dict()
    assert AimDecision.from_dict(decision, setting).requests == ()
    with refused(ValueError):
        AimDecision.from_dict(decision | edit, setting)
    with refused(ValueError):
        AimDecision.from_dict(decision, make_setting((PublishedSchedule(), setting.estimator)))


def test_empty_round_changes_nothing_and_doubles_step():
    setting, counts_of = make_setting(), make_counter(make_records())
    first = first_decision(setting)
    state = initial_state(setting, first, [counts_of(order.names).astype(float) for order in first.requests])
    selection = state.selection
    after = state.after(decision := state.decide(selection, ((),) * selection.count), [])
    assert decision.requests == ()
    assert after.left == state.left - selection.count * selection.beta
    assert after.fit is state.fit
    assert after.step == 2 * (selection.step + selection.beta)


def shuffle_columns(rows=3000):
    """Return the small table with independently shuffled columns."""
    rng = np.random.default_rng(1)
    return np.stack([rng.permutation(column) for column in make_records(rows).T], axis=1)


def one_way_share(state):
    rounds = sum(len(note.chosen) * note.step for note in state.rounds if note.is_one_way)
    return float((len(NAMES) * state.setting.one_way_cost + rounds) / state.setting.beta)


def mean_error_and_share(counts_of, seeds=24, **options):
    """Return the mean error and the mean budget share of the 1-way marginals."""
    states = [
        run_loop(make_setting(beta=Fraction(1, 1000), **options), counts_of, seeded_secret(seed))
        for seed in range(seeds)
    ]
    assert all(state.left == 0 for state in states if state.setting.candidates)
    return np.mean([mean_error(state, counts_of) for state in states]), np.mean(
        [one_way_share(state) for state in states]
    )


def test_independent_table_spends_on_one_ways(monkeypatch):
    counts_of = make_counter(shuffle_columns())
    (ours, share), (product, _) = (
        mean_error_and_share(counts_of),
        mean_error_and_share(counts_of, targets=[(name,) for name in NAMES]),
    )
    assert ours < 1.2 * product
    monkeypatch.setattr(BatchedSchedule, "allows_empty", lambda *of_all: False)
    without, less = mean_error_and_share(counts_of)
    assert ours < without
    assert share > less + 0.1


def test_dependent_table_spends_on_pairs():
    state = run_loop(make_setting(beta=Fraction(1, 10)), make_counter(make_records()), seeded_secret(0))
    assert one_way_share(state) == pytest.approx(0.3)
    assert all(names for note in state.rounds for names in note.chosen)
    assert len(TRIPLES) == 10


def test_report_counts_empty_selections():
    trace = [{"round": 1, "rank": rank, "attributes": names, "privacy_cost": 1.0, "moved": 0.0, "expected_noise": 0.0}
             for rank, names in enumerate([[], ["a", "b"], []])]  # fmt: skip
    [line] = _by_round(trace)
    assert line["sets"] == "a, b; nothing, 2 times"
    assert len(line["chosen"]) == 3
    assert _by_round([trace[1]])[0]["sets"] == "a, b"
    assert trace_plot([trace[0]]) == ""


def test_one_empty_draw_does_not_end_selection_of_few_pairs():
    """With three pairs and one a round, a pair is measured after one empty draw, and none after many uninformative
    rounds.
    """
    setting = make_setting(beta=Fraction(1, 2), targets=[("a", "b", "c")])
    first = first_decision(setting)
    state = initial_state(
        setting, first, [make_counter(make_records())(order.names).astype(float) for order in first.requests]
    )
    selection = state.selection
    assert selection.count == 1
    state = state.after(state.decide(selection, [()]), [])
    while (selection := state.selection).is_empty:
        decision = state.decide(selection, ())
        state = state.after(
            decision, [make_counter(make_records())(order.names).astype(float) for order in decision.requests]
        )
    assert state.left > 0
    assert () not in selection.candidates
