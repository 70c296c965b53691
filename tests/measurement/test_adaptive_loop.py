import json
from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpscale.base.errors import PlanError
from dpscale.counting import ExactMarginal
from dpscale.measurement.adaptive import (
    Scores,
    SparseMarginal,
    all_distances,
    build_shard,
    distance,
    select_candidates,
    sensitivity,
)
from dpscale.mechanisms.aim import setting as aim_setting
from dpscale.mechanisms.aim.decision import AimDecision
from dpscale.mechanisms.aim.estimators import EntropyEstimator
from dpscale.mechanisms.aim.setting import BatchedSchedule, PublishedSchedule, Setting
from dpscale.mechanisms.aim.state import first_decision, initial_state
from dpscale.plans.measurement_plan import SCALE, TableEstimates
from dpscale.privacy.streams import open_stream, seeded_secret
from dpscale.workload.residual import center, every_cell, subsets
from tests.measurement.small import (
    NAMES,
    OWN,
    PUBLISHED,
    SIZES,
    TRIPLES,
    make_counter,
    make_records,
    make_setting,
    mean_error,
    measure_request,
    run_loop,
)
from tests.messages import refused

COUNTS = make_counter(make_records())
either = pytest.mark.parametrize("options", [OWN, PUBLISHED], ids=["own", "published"])


def random_value(order, rng):
    """Return a random value of the shape of a request, independent of any table."""
    shape = [own.count for own in order.groups]
    if order.by_cell:
        return rng.gamma(1.0, 100.0, size=shape)
    return center(rng.normal(0, 30, size=shape), range(len(shape))) if shape else np.array(3000 + rng.normal())


def run_on_random_values(setting, rng, choose):
    """Run the loop on random values and return the last state and the total cost."""
    decision = first_decision(setting)
    spent = sum(order.draw.cost for order in decision.requests)
    state = initial_state(setting, decision, [random_value(order, rng) for order in decision.requests])
    while not state.done:
        decision = state.decide(selection := state.selection, choose(selection))
        spent += selection.beta * len(decision.chosen) + sum(order.draw.cost for order in decision.requests)
        state = state.after(decision, [random_value(order, rng) for order in decision.requests])
    return state, spent


def state_after_one_ways(setting, seed=1):
    """Return the state after random values of the 1-way marginals."""
    decision, rng = first_decision(setting), np.random.default_rng(seed)
    return initial_state(setting, decision, [random_value(order, rng) for order in decision.requests])


def score_candidates(state, counts_of):
    selection, scores = state.selection, Scores()
    sets = scores.missing(selection.candidates)
    shard = build_shard([ExactMarginal(names, counts_of(names)) for names in sets], sets, state.groups, state.rows)
    scores.learn(shard.distances(state.estimates(sets), sets, {}))
    return scores.of(selection)


asked_anything = given(
    st.lists(st.sets(st.sampled_from(NAMES), min_size=1, max_size=5), min_size=1, max_size=6),
    st.fractions(Fraction(1, 10**7), 5) | st.floats(1e-12, 1e3).map(Fraction),
    st.booleans(),
    st.integers(1, 3),
    st.integers(0, 99),
)


def check_budget(sets, beta, published, rows, seed):
    targets = {tuple(name for name in NAMES if name in own) for own in sets}
    setting = make_setting(PUBLISHED if published else OWN, beta, sorted(targets), rows_per_unit=rows)
    rng = np.random.default_rng(seed)

    def choose_randomly(selection):
        order = rng.permutation(len(selection.candidates))
        return [selection.candidates[index] for index in order[: selection.count]]

    state, spent = run_on_random_values(setting, rng, choose_randomly)
    assert beta * (1 - Fraction(1, 10**5)) < spent <= beta
    if state.setting.candidates:
        assert state.left == 0
        rounds = sum(note.step if names else note.selection_cost for note in state.rounds for names in note.chosen)
        measurement_plan = len(setting.names) * setting.one_way_cost + rounds
        assert measurement_plan == beta


test_cost_equals_budget_exactly = settings(max_examples=60, deadline=None)(asked_anything(check_budget))
test_cost_equals_thousands_of_budgets_exactly = pytest.mark.slow(
    pytest.mark.timeout(3600)(settings(max_examples=4000, deadline=None)(asked_anything(check_budget)))
)


@either
def test_next_state_depends_on_released_values_only(options):
    """Neighbouring tables with equal released values give equal states, selections and requests (the error in
    algorithm 7).
    """
    table = make_records()
    tables = [make_counter(table), make_counter(table[1:])]
    setting, states = make_setting(options), []
    for counts_of in tables:
        rng = np.random.default_rng(5)
        score_candidates(state_after_one_ways(setting), counts_of)  # unused: both choices are the same
        states.append(run_on_random_values(setting, rng, lambda selection: selection.candidates[: selection.count])[0])
    one, other = states
    assert one.rounds == other.rounds
    assert (one.left, one.step) == (other.left, other.step)
    for names in TRIPLES:
        np.testing.assert_array_equal(one.marginal(names), other.marginal(names))


@either
def test_one_record_changes_score_by_at_most_sensitivity(options):
    table, state = make_records(), state_after_one_ways(make_setting(options))
    selection, here = state.selection, score_candidates(state, make_counter(table))
    for row in range(0, 40, 4):
        there = score_candidates(state, make_counter(np.delete(table, row, axis=0)))
        moved = max(abs(one - other) for one, other in zip(here, there, strict=True))
        assert moved <= sensitivity(selection, 1)
    largest = max(selection.weights[names] for names in state.offered)
    assert sensitivity(selection, 1) == selection.sensitivity == SCALE * largest
    assert sensitivity(selection, 3) == 3 * SCALE * largest


def test_distance_is_exact_in_integers():
    estimate = np.array([1.25, -3.5, 0.0])
    assert distance(np.array([1, 0, 2]), estimate) == (0.25 + 3.5 + 2) * SCALE
    assert distance(np.array([2**40, 0, 0]), np.full(3, 1e300)) > 0


@either
def test_same_secret_gives_same_bytes_and_rounds_replay(options):
    setting, secret = make_setting(options), seeded_secret(3)
    one, other = (
        run_loop(setting, COUNTS, secret, {"release": "r"}),
        run_loop(setting, COUNTS, secret, {"release": "r"}),
    )
    assert one.rounds == other.rounds
    for names in TRIPLES:
        assert one.marginal(names).tobytes() == other.marginal(names).tobytes()
    assert run_loop(setting, COUNTS, secret, {"release": "s"}).rounds != one.rounds
    replay = _replay(setting, secret, [note.chosen for note in one.rounds])
    assert replay.rounds == one.rounds
    assert replay.marginal(TRIPLES[0]).tobytes() == one.marginal(TRIPLES[0]).tobytes()


def _replay(setting, secret, choices):
    """Repeat a run from its choices and values alone, with decisions read back from JSON."""

    def measure_requests(decision):
        return [measure_request(o, COUNTS, secret, {"release": "r", **o.label}) for o in decision.requests]

    decision = round_trip(first_decision(setting), setting)
    state = initial_state(setting, decision, measure_requests(decision))
    for chosen in choices:
        decision = round_trip(state.decide(state.selection, chosen), setting)
        state = state.after(decision, measure_requests(decision))
    return state


def round_trip(decision, setting):
    return AimDecision.from_dict(json.loads(json.dumps(decision.to_dict())), setting)


def test_decision_round_trips_and_edited_decision_is_refused():
    setting = make_setting(rows_per_unit=2)
    state = state_after_one_ways(setting)
    selection = state.selection
    expected = state.decide(selection, selection.candidates[: selection.count])
    read = round_trip(expected, setting)
    assert read.spent == expected.spent
    assert [o.label for o in read.requests] == [o.label for o in expected.requests]
    assert [o.draw for o in read.requests] == [o.draw for o in expected.requests]
    fields = expected.to_dict()
    finer = [[rank, names, m, str(int(v) // 2)] for rank, names, m, v in fields["orders"]]
    wrong = [
        fields | {"orders": finer},
        fields | {"orders": fields["orders"] * 2},
        fields | {"chosen": [["a"], *fields["chosen"][1:]]},
        fields | {"chosen": [fields["chosen"][0], *fields["chosen"][:-1]]},
        fields | {"beta": "-1/7"},
        fields | {"orders": [[-1, *row[1:]] for row in fields["orders"]]},
        fields | {"step": "0"},
        fields | {"groups": fields["groups"] | {"a": [4, 0, 3, 2]}},
        fields | {"groups": fields["groups"] | {"a": [9, 0]}},
    ]
    for one in wrong:
        with pytest.raises(ValueError):
            AimDecision.from_dict(one, setting)


def test_round_selects_distinct_candidates():
    state = state_after_one_ways(make_setting((BatchedSchedule(rounds=2), EntropyEstimator())))
    selection, scores = state.selection, score_candidates(state, COUNTS)
    for seed in range(20):
        chosen = select_candidates(
            selection, scores, 1, lambda r, s=seed: open_stream(seeded_secret(s), "selection", r)
        )
        sets = [names for names in chosen if names]
        assert len(set(sets)) == len(sets) <= selection.count == len(chosen) == 5


def test_sparse_marginal_has_same_distance_as_dense():
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.2, (30, 40))
    marginals = [ExactMarginal(("c", "e"), counts)]
    groups = {"c": every_cell(30), "e": every_cell(40)}
    few, many = (build_shard(marginals, [("c", "e")], groups, rows) for rows in (300, 10**6))
    assert isinstance(few.tables["c", "e"], SparseMarginal)
    np.testing.assert_array_equal(few.marginal(("c", "e")).counts, many.marginal(("c", "e")).counts)
    believed = TableEstimates({("c", "e"): rng.normal(0.2, 1, (30, 40))})
    assert few.distances(believed, [("c", "e")], {}).found == many.distances(believed, [("c", "e")], {}).found
    assert "0" not in repr(few.distances(believed, [("c", "e")], {}))


@pytest.mark.parametrize("cells", [8, 64, 1000])
def test_distance_does_not_overflow(cells):
    """For estimates at the clipping bound, one record changes the distance by SCALE, not by 2^64."""
    estimate = np.where(np.arange(cells) % 2, 1e300, -1e300)
    counts = np.arange(cells)
    more = counts + (np.arange(cells) == 3)
    assert abs(distance(more, estimate) - distance(counts, estimate)) == SCALE
    assert distance(counts, estimate) > 2**62
    distances = [
        SparseMarginal((cells,), np.flatnonzero(own), own[own > 0]).distance(estimate) for own in (counts, more)
    ]
    assert distances == [distance(counts, estimate), distance(more, estimate)]
    assert distances == all_distances([counts, more], [estimate, estimate])


def test_distances_of_a_shard_are_those_of_each_table():
    rng, sets = np.random.default_rng(2), [(name,) for name in "abcdefgh"]
    shapes = [(size,) for size in (1, 2, 7, 2, 1 << 10, (1 << 10) + 1, 3, 1)]
    tables = {names: rng.poisson(3, shape) for names, shape in zip(sets, shapes, strict=True)}
    groups = {names[0]: every_cell(shape[0]) for names, shape in zip(sets, shapes, strict=True)}
    shard = build_shard([ExactMarginal(names, table) for names, table in tables.items()], sets, groups, 10**6)
    believed = TableEstimates({names: rng.normal(3, 1, table.shape) for names, table in tables.items()})
    expected = {names: distance(table, believed.marginal(names)) for names, table in tables.items()}
    assert shard.distances(believed, sets, {}).found == expected


def test_attribute_of_one_cell_is_refused():
    with refused(PlanError):
        Setting({"a": 1, "b": 3}, (("a", "b"),), Fraction(1))


def test_target_weights_scale_candidate_weights():
    setting = make_setting(targets=[("a", "b", "c"), ("a", "d")], target_weights=(3, 5))
    assert setting.weights[("a", "b")] == 3
    assert setting.weights[("a", "d")] == 5
    published = make_setting(PUBLISHED, targets=[("a", "b", "c"), ("a", "d")], target_weights=(3, 5))
    assert published.weights[("a", "b")] == 3 * 2 + 5


def test_batched_schedule_beats_published_and_independence():
    ours = np.mean([mean_error(run_loop(make_setting(), COUNTS, seeded_secret(s)), COUNTS) for s in range(3)])
    theirs = np.mean(
        [mean_error(run_loop(make_setting(PUBLISHED), COUNTS, seeded_secret(s)), COUNTS) for s in range(3)]
    )
    alone = [(name,) for name in NAMES]
    independent = run_loop(make_setting(targets=alone), COUNTS, seeded_secret(0))
    assert ours < 0.8 * theirs
    assert ours < 0.8 * mean_error(independent, COUNTS)


def test_large_budget_gives_exact_pairs():
    pairs = [names for names in subsets(NAMES) if len(names) == 2]
    state = run_loop(make_setting(beta=Fraction(10**4), targets=pairs), COUNTS, seeded_secret(0))
    assert mean_error(state, COUNTS, pairs) < 0.01
    state = run_loop(make_setting(PUBLISHED, Fraction(10**4), pairs), COUNTS, seeded_secret(0))
    assert mean_error(state, COUNTS, pairs) < 0.02


def test_workload_of_one_attribute_and_of_all_attributes():
    one = run_loop(make_setting(targets=[("c",)], beta=Fraction(10)), COUNTS, seeded_secret(0))
    assert one.rounds == ()
    np.testing.assert_allclose(one.marginal(("c",)), COUNTS(("c",)), atol=2)
    everything = run_loop(make_setting(targets=[NAMES]), COUNTS, seeded_secret(0))
    assert everything.marginal(NAMES).shape == tuple(SIZES.values())
    transposed = everything.marginal(("e", "a"))
    np.testing.assert_allclose(transposed, everything.marginal(("a", "e")).T)


def test_tiny_budget_runs_and_zero_budget_is_refused():
    state = run_loop(make_setting(beta=Fraction(1, 10**12)), COUNTS, seeded_secret(0))
    assert state.left == 0
    assert np.isfinite(state.marginal(TRIPLES[0])).all()
    with pytest.raises(PlanError):
        make_setting(beta=Fraction(0))
    with pytest.raises(PlanError):
        make_setting(targets=[])


def test_rows_per_unit_scale_noise_quadratically():
    single = first_decision(make_setting()).requests[0]
    triple = first_decision(make_setting(rows_per_unit=3)).requests[0]
    assert triple.variance == pytest.approx(9 * single.variance, rel=1e-4)
    assert triple.draw.cost <= make_setting().one_way_cost


def test_candidate_pairs_of_many_targets_are_distinct():
    """The 45,760 triples contain 137,280 pairs, of which 2,145 are distinct."""
    sizes = {f"x{i}": 2 for i in range(66)}
    setting = Setting(sizes, tuple(combinations(sizes, 3)), Fraction(1))
    assert len(setting.round_candidates) == 2145  # and no triple: its weight would be small for 64 targets
    assert len(setting.laws[3]) == 45_760
    assert set(setting.weights.values()) == {64}


@pytest.mark.parametrize("rules", [
    BatchedSchedule(degree=6),
    PublishedSchedule(),
])  # fmt: skip
def test_too_many_candidates_are_refused_before_enumeration(rules, monkeypatch):
    monkeypatch.setattr(aim_setting, "MOST_CANDIDATES", 1000)
    sizes = {f"x{i}": 2 for i in range(60)}
    with refused(PlanError) as caught:
        first_decision(Setting(sizes, (tuple(sizes),), Fraction(1), schedule=rules))
    assert "degree" not in str(caught.value)


def test_larger_candidates_are_those_with_fewest_cells(monkeypatch):
    """Limits bound their number and their total cells; pairs are always candidates."""
    cells = {names: int(np.prod([SIZES[name] for name in names])) for names in TRIPLES}
    assert {names for names in make_setting().candidates if len(names) == 3} == set(TRIPLES)
    assert make_setting((BatchedSchedule(degree=2), EntropyEstimator())).candidates == tuple(combinations(NAMES, 2))
    monkeypatch.setattr(aim_setting, "MOST_LARGER", 4)
    few = [names for names in make_setting().candidates if len(names) == 3]
    assert sorted(cells[names] for names in few) == sorted(cells.values())[:4]
    monkeypatch.setattr(aim_setting, "MOST_LARGER_CELLS", sum(sorted(cells.values())[:3]))
    assert [names for names in make_setting().candidates if len(names) == 3] == [
        n for n in few if n in make_setting().weights
    ]
    assert len(make_setting().candidates) == 10 + 3
    assert {
        len(n) for n in make_setting((BatchedSchedule(degree=4), EntropyEstimator()), targets=[NAMES]).candidates
    } == {
        2,
        3,
    }


def test_candidates_dominated_by_noise_are_not_offered():
    """Oracle: σ of an even step over the groups of a set, relative to the records. Pairs are always offered."""
    for beta in (Fraction(1, 1000), Fraction(1, 10), Fraction(10), Fraction(100)):
        setting = make_setting(beta=beta)
        state = state_after_one_ways(setting)
        sigma = float(beta * Fraction(7, 10) / 10) ** -0.5
        noise = {names: np.sqrt(2 / np.pi) * sigma * np.prod([state.groups[name].count for name in names]) / state.rows
                 for names in setting.candidates}  # fmt: skip
        pairs = np.mean([noise[names] for names in setting.candidates if len(names) == 2])
        share = min(1, max(0.25, round(16 * pairs / 0.025) / 16))
        most = 0.1 * (1 + (1 - share) / 0.75)
        wanted = [names for names in setting.candidates if len(names) == 2 or noise[names] <= most]
        assert list(state.offered) == wanted
        assert list(state.selection.candidates) == [*wanted, *[()] * len(wanted)]
        assert state.step == setting.first_step * Fraction(share if len(wanted) > 10 else 1)
    assert len(state.offered) == 20  # the largest budget: all triples


def run_without_findings(setting, seed=3):
    """Run the loop on values equal to the current estimates, so that no round finds an effect; return state and
    decisions.
    """
    rng, decision = np.random.default_rng(seed), first_decision(setting)
    state = initial_state(setting, decision, [random_value(order, rng) for order in decision.requests])
    taken = [decision]
    while not state.done:
        selection = state.selection
        decision = state.decide(selection, selection.candidates[: selection.count])
        values = [
            state.counts[o.names[0]].values if o.by_cell else _estimated_residual(state, o) for o in decision.requests
        ]
        taken.append(decision)
        state = state.after(decision, values)
    return state, taken


def _estimated_residual(state, order):
    table = state.fit.table(order.names) if order.names else np.array(float(state.rows))
    return center(table, range(table.ndim))


def test_uninformative_rounds_return_budget_to_one_ways():
    setting = make_setting(beta=Fraction(1, 5000))
    state, taken = run_without_findings(setting)
    again = [one for one in taken[1:] if one.is_one_way]
    assert again
    assert not any(one.is_one_way and other.is_one_way for one, other in pairwise(taken))
    first = taken.index(again[0])
    left = setting.beta - sum(one.spent for one in taken[:first])
    chosen = len(taken[first - 1].chosen)
    assert again[0].spent == left * Fraction(chosen, chosen + 2)
    assert [order.names for order in again[0].requests] == [(name,) for name in NAMES]
    assert all(order.groups[0].count == SIZES[order.names[0]] for order in again[0].requests)
    assert state.left == 0
    assert sum(one.spent for one in taken) == setting.beta
    labels = [order.label for one in taken for order in one.requests]  # without the law: that may well be the same
    names = [(one["round"], one["rank"], tuple(one["residual"]), one["whole"]) for one in labels]
    assert len(set(names)) == len(names)
    precision = sum(1 / one.requests[0].variance for one in taken if one.is_one_way)
    assert 1 / state.counts["a"].variance == pytest.approx(precision)
    one = round_trip(again[0], setting)
    assert [o.label for o in one.requests] == [o.label for o in again[0].requests]
    with refused(ValueError):
        AimDecision.from_dict(again[0].to_dict() | {"beta": "1/100000000"}, setting)


def test_uninformative_rounds_double_step():
    """The budget does not go to accurate 1-way marginals unless every measurement was uninformative."""
    step, moved, noise = Fraction(1, 7), [0.0, 0.0, 0.0, 9.0], [1.0] * 4
    assert (
        BatchedSchedule().next_step(step, moved, noise)
        == 2 * step
        == 2 * BatchedSchedule().next_step(step, noise, noise)
    )
    assert BatchedSchedule().one_way_share(moved, noise, 0.01) == 0 < BatchedSchedule().one_way_share(moved, noise, 0.1)
    assert BatchedSchedule().one_way_share([0.0] * 4, noise, 0.01) == Fraction(4, 6)


def test_last_round_takes_remaining_candidates():
    """Full batches are measured while more than one is affordable, then the rest: all ten pairs are measured."""
    setting = make_setting((BatchedSchedule(rounds=4, degree=2, patience=0.0), EntropyEstimator()), beta=Fraction(10))
    rng = np.random.default_rng(0)
    state, _ = run_on_random_values(setting, rng, lambda selection: selection.candidates[: selection.count])
    assert [len(note.chosen) for note in state.rounds] == [3, 3, 3, 1]


def test_three_way_effect_without_pairwise_effect_is_found():
    """z is x ⊕ y with some noise: every pair looks independent."""
    rng = np.random.default_rng(0)
    a, d = rng.integers(4, size=20_000), rng.integers(2, size=20_000)
    table = np.stack([a, rng.integers(3, size=20_000), (a % 2 ^ d) * 6 + rng.integers(6, size=20_000), d,
                      rng.integers(5, size=20_000)], axis=1)  # fmt: skip
    counts = make_counter(table)
    pairs = make_setting((BatchedSchedule(degree=2), EntropyEstimator()), beta=Fraction(1, 20))
    found = mean_error(
        run_loop(make_setting(beta=Fraction(1, 20)), counts, seeded_secret(0)), counts, [("a", "c", "d")]
    )
    assert found < 0.3 * mean_error(run_loop(pairs, counts, seeded_secret(0)), counts, [("a", "c", "d")])


def test_independent_columns_remeasure_one_ways(monkeypatch):
    """For independent columns at a small budget, remeasured 1-way marginals give a smaller error than pairs."""
    rng, rows = np.random.default_rng(0), 4000
    table = np.stack([rng.integers(size, size=rows) for size in SIZES.values()], axis=1)
    counts, beta = make_counter(table), Fraction(1, 4000)
    ours = np.mean([mean_error(run_loop(make_setting(beta=beta), counts, seeded_secret(s)), counts) for s in range(30)])
    monkeypatch.setattr(BatchedSchedule, "one_way_share", lambda *of_all: Fraction(0))
    pairs = np.mean(
        [mean_error(run_loop(make_setting(beta=beta), counts, seeded_secret(s)), counts) for s in range(30)]
    )
    assert ours < 0.97 * pairs
