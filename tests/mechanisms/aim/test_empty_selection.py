"""Choices of nothing: what a run on a table without structure buys, and the law of the draws."""

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
from dpscale.mechanisms.aim.schedule import BatchedSchedule, PublishedSchedule
from dpscale.mechanisms.aim.state import first_decision, initial_state, make_decision, next_selection, next_state
from dpscale.plans.measurement_plan import SCALE
from dpscale.privacy.selection import scale_for
from dpscale.privacy.streams import open_stream, seeded_secret
from dpscale.runs.stages.report import _by_round
from dpscale.workload.residual.in_axis import every_cell
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

SETS = (("a", "b"), ("a", "d"), ("b", "d"))


def selection_of(count=2, beta=Fraction(1, 4), nothing=3):
    groups = {name: every_cell(size) for name, size in SIZES.items()}
    weights = dict.fromkeys(SETS, 2)
    candidates = (*SETS, *[()] * nothing)
    return AimSelection(1, candidates, weights, groups, count, beta, Fraction(1), 0.0, 1)


def law(scores, scale):
    """Chances of two draws, a set never twice, nothing as often as it comes."""
    chances = Counter()
    first = np.exp(scale * np.array(scores, float))
    for one, other in product(range(len(scores)), repeat=2):
        left = first.copy()
        left[one] *= one >= len(SETS)
        pair = tuple(SETS[i] if i < len(SETS) else () for i in (one, other))
        chances[pair] += first[one] / first.sum() * left[other] / left.sum()
    return chances


def drawn_pairs(selection, scores, seeds):
    def stream_of(seed):
        return lambda label: open_stream(seeded_secret(seed), "selection", label)

    return Counter(select_candidates(selection, scores, 1, stream_of(seed)) for seed in range(seeds))


def test_draws_have_the_law_of_the_exponential_mechanism_with_nothing_put_back():
    selection, scores = selection_of(), Scores()
    distances = dict(zip(SETS, (0, SCALE, 3 * SCALE), strict=True))
    scores._known.update(distances)
    every = scores.of(selection)
    assert every == [2 * distances[names] for names in SETS] + [0] * len(SETS)
    expected = law(every, float(scale_for(selection.beta, selection.sensitivity)))
    found = drawn_pairs(selection, every, 3000)
    keys = [key for key, chance in expected.items() if chance > 0]
    assert set(found) <= set(keys)
    told = chisquare([found[key] for key in keys], [3000 * expected[key] for key in keys])
    assert told.pvalue > 1e-4
    assert found[((), ())] > 200  # put back; were it taken out, copy by copy, other chances follow
    wrong = law([*every[:3], every[0]], float(scale_for(selection.beta, selection.sensitivity)))
    assert chisquare([found[k] for k in keys], [3000 * wrong[k] + 1e-9 for k in keys], sum_check=False).pvalue < 1e-6


def test_nothing_has_score_0_on_every_table_and_moves_no_sensitivity():
    selection = selection_of()
    assert selection.sensitivity == 2 * SCALE == selection_of(nothing=0).sensitivity
    for distance in (0, SCALE, 10**9):
        scores = Scores()
        scores._known.update(dict.fromkeys(SETS, distance))
        assert scores.missing(selection.candidates) == []
        assert scores.of(selection)[-1] == 0


def test_it_is_offered_until_something_is_found():
    schedule = BatchedSchedule()
    assert schedule.allows_empty([], [])
    assert schedule.allows_empty([0.0, 1.0], [0.0, 4.0])
    assert not schedule.allows_empty([0.0, 3.0], [0.0, 4.0])
    assert not PublishedSchedule().allows_empty([], [])
    assert schedule.one_way_share([0.0] * 8, [0.0] * 8, 0.0) == Fraction(8, 10)  # whatever the noise of the 1-ways
    assert schedule.one_way_share([9.0, *[0.0] * 7], [1.0] * 8, 0.0) == 0


def test_a_decision_with_nothing_costs_its_choice_and_is_read_back():
    asked, counts_of = make_setting(beta=Fraction(1, 2)), make_counter(make_records())
    first = first_decision(asked)
    state = initial_state(asked, first, [counts_of(order.names).astype(float) for order in first.requests])
    selection = next_selection(state)
    made = make_decision(state, selection, (("a", "b"), (), ("b", "d"), ()))
    assert made.spent == 4 * selection.beta + 2 * selection.step
    assert {order.source for order in made.requests} == {("a", "b"), ("b", "d")}
    assert all(made.chosen[order.rank] == order.source for order in made.requests)
    told = json.loads(json.dumps(made.to_dict()))
    assert AimDecision.from_dict(told, asked).spent == made.spent
    told["orders"].append([1, [], *told["orders"][0][2:]])
    with pytest.raises(ValueError, match="outside"):
        AimDecision.from_dict(told, asked)


@pytest.mark.parametrize("edit", [{"chosen": []}, {"chosen": [[]], "beta": "0"}], ids=["no choice", "free"])
def test_a_decision_of_nothing_that_none_was_offered_is_refused(edit):
    asked, counts_of = make_setting(), make_counter(make_records())
    first = first_decision(asked)
    state = initial_state(asked, first, [counts_of(order.names).astype(float) for order in first.requests])
    selection = next_selection(state)
    made = make_decision(state, selection, ((),) * selection.count).to_dict()
    assert AimDecision.from_dict(made, asked).requests == ()
    with pytest.raises(ValueError, match="an empty set that is not a candidate"):
        AimDecision.from_dict(made | edit, asked)
    with pytest.raises(ValueError, match="an empty set that is not a candidate"):
        AimDecision.from_dict(made, make_setting((PublishedSchedule(), asked.estimator)))


def test_a_round_of_nothing_moves_nothing_and_doubles_the_step():
    asked, counts_of = make_setting(), make_counter(make_records())
    first = first_decision(asked)
    state = initial_state(asked, first, [counts_of(order.names).astype(float) for order in first.requests])
    selection = next_selection(state)
    after = next_state(state, made := make_decision(state, selection, ((),) * selection.count), [])
    assert made.requests == ()
    assert after.left == state.left - selection.count * selection.beta
    assert after.fit is state.fit
    assert after.step == 2 * (selection.step + selection.beta)


def shuffled(rows=3000):
    """The small table with its columns shuffled apart."""
    rng = np.random.default_rng(1)
    return np.stack([rng.permutation(column) for column in make_records(rows).T], axis=1)


def spent_on_ones(state):
    rounds = sum(len(note.chosen) * note.step for note in state.rounds if note.is_one_way)
    return float((len(NAMES) * state.setting.one_way_cost + rounds) / state.setting.beta)


def told(counts_of, seeds=24, **asked):
    """Errors and shares of the 1-ways."""
    states = [
        run_loop(make_setting(beta=Fraction(1, 1000), **asked), counts_of, seeded_secret(seed)) for seed in range(seeds)
    ]
    assert all(state.left == 0 for state in states if state.setting.candidates)
    return np.mean([mean_error(state, counts_of) for state in states]), np.mean(
        [spent_on_ones(state) for state in states]
    )


def test_where_nothing_is_to_be_had_the_1_ways_get_most_and_their_product_is_hardly_nearer(monkeypatch):
    counts_of = make_counter(shuffled())
    (ours, share), (product, _) = told(counts_of), told(counts_of, targets=[(name,) for name in NAMES])
    assert ours < 1.2 * product
    monkeypatch.setattr(BatchedSchedule, "allows_empty", lambda *of_all: False)
    without, less = told(counts_of)
    assert ours < without
    assert share > less + 0.1


def test_where_something_is_to_be_had_it_is_bought():
    state = run_loop(make_setting(beta=Fraction(1, 10)), make_counter(make_records()), seeded_secret(0))
    assert spent_on_ones(state) == pytest.approx(0.3)
    assert all(names for note in state.rounds for names in note.chosen)
    assert len(TRIPLES) == 10


def test_the_report_tells_how_often_nothing_was_chosen():
    trace = [{"round": 1, "rank": rank, "attributes": names, "privacy_cost": 1.0, "moved": 0.0, "expected_noise": 0.0}
             for rank, names in enumerate([[], ["a", "b"], []])]  # fmt: skip
    [line] = _by_round(trace)
    assert line["sets"] == "a, b; nothing, 2 times"
    assert len(line["chosen"]) == 3
    assert _by_round([trace[1]])[0]["sets"] == "a, b"
    assert trace_plot([trace[0]]) == ""


def test_of_few_pairs_one_choice_of_nothing_does_not_forgo_all():
    """Three pairs, one a round: after one draw of nothing a pair is still measured; after many in vain none is."""
    asked = make_setting(beta=Fraction(1, 2), targets=[("a", "b", "c")])
    first = first_decision(asked)
    state = initial_state(
        asked, first, [make_counter(make_records())(order.names).astype(float) for order in first.requests]
    )
    selection = next_selection(state)
    assert selection.count == 1
    state = next_state(state, make_decision(state, selection, [()]), [])
    while (selection := next_selection(state)).is_empty:
        made = make_decision(state, selection, ())
        state = next_state(
            state, made, [make_counter(make_records())(order.names).astype(float) for order in made.requests]
        )
    assert state.left > 0
    assert () not in selection.candidates
