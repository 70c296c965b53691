import json
from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpscale.base.errors import PlanError
from dpscale.counting import ExactMarginal
from dpscale.measurement.adaptive import Scores, SparseMarginal, build_shard, distance, select_candidates, sensitivity
from dpscale.mechanisms.aim import setting as aim_setting
from dpscale.mechanisms.aim.decision import AimDecision
from dpscale.mechanisms.aim.estimators import EntropyEstimator
from dpscale.mechanisms.aim.schedule import BatchedSchedule, PublishedSchedule
from dpscale.mechanisms.aim.setting import Setting
from dpscale.mechanisms.aim.state import first_decision, initial_state, make_decision, next_selection, next_state
from dpscale.plans.measurement_plan import SCALE, TableEstimates
from dpscale.privacy.streams import open_stream, seeded_secret
from dpscale.workload.residual import center, subsets
from dpscale.workload.residual.in_axis import every_cell
from tests.measurement.small import (
    NAMES,
    OWN,
    PUBLISHED,
    SIZES,
    TRIPLES,
    counter,
    error,
    measure,
    records,
    run,
    setting,
)

COUNTS = counter(records())
either = pytest.mark.parametrize("options", [OWN, PUBLISHED], ids=["own", "published"])


def made_up(order, rng):
    """A released value of the right form that no table had a part in."""
    shape = [own.count for own in order.groups]
    if order.by_cell:
        return rng.gamma(1.0, 100.0, size=shape)
    return center(rng.normal(0, 30, size=shape), range(len(shape))) if shape else np.array(3000 + rng.normal())


def scripted(asked, rng, choose):
    """A run on made-up values; yields states, and what each round chose and ordered."""
    decision = first_decision(asked)
    spent = sum(order.draw.cost for order in decision.requests)
    state = initial_state(asked, decision, [made_up(order, rng) for order in decision.requests])
    while not state.done:
        decision = make_decision(state, selection := next_selection(state), choose(selection))
        spent += selection.beta * len(decision.chosen) + sum(order.draw.cost for order in decision.requests)
        state = next_state(state, decision, [made_up(order, rng) for order in decision.requests])
    return state, spent


def after_ones(asked, seed=1):
    """The state after 1-ways that are made up."""
    decision, rng = first_decision(asked), np.random.default_rng(seed)
    return initial_state(asked, decision, [made_up(order, rng) for order in decision.requests])


def scores_of(state, counts_of):
    selection, scores = next_selection(state), Scores()
    sets = scores.missing(selection.candidates)
    shard = build_shard([ExactMarginal(names, counts_of(names)) for names in sets], sets, state.groups, state.rows)
    scores.learn(shard.distances(state.estimates(sets), sets))
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
    asked = setting(PUBLISHED if published else OWN, beta, sorted(targets), rows_per_unit=rows)
    rng = np.random.default_rng(seed)

    def choose(selection):
        order = rng.permutation(len(selection.candidates))
        return [selection.candidates[index] for index in order[: selection.count]]

    state, spent = scripted(asked, rng, choose)
    assert beta * (1 - Fraction(1, 10**5)) < spent <= beta
    if state.setting.candidates:
        assert state.left == 0
        rounds = sum(note.step if names else note.selection_cost for note in state.rounds for names in note.chosen)
        measurement_plan = len(asked.names) * asked.one_way_cost + rounds
        assert measurement_plan == beta


test_the_budget_is_met_exactly_and_never_passed = settings(max_examples=60, deadline=None)(asked_anything(check_budget))
test_thousands_of_budgets_are_met_exactly = pytest.mark.slow(
    pytest.mark.timeout(3600)(settings(max_examples=4000, deadline=None)(asked_anything(check_budget)))
)


@either
def test_the_next_state_is_a_function_of_released_values_alone(options):
    """Neighbouring tables with equal released values: equal states, selections and orders (algorithm 7's trap)."""
    table = records()
    tables = [counter(table), counter(table[1:])]
    asked, states = setting(options), []
    for counts_of in tables:
        rng = np.random.default_rng(5)
        scores_of(after_ones(asked), counts_of)  # looked at and thrown away: the choice is the same released one
        states.append(scripted(asked, rng, lambda selection: selection.candidates[: selection.count])[0])
    one, other = states
    assert one.rounds == other.rounds
    assert (one.left, one.step) == (other.left, other.step)
    for names in TRIPLES:
        np.testing.assert_array_equal(one.marginal(names), other.marginal(names))


@either
def test_one_record_moves_a_score_by_the_sensitivity_at_most(options):
    table, state = records(), after_ones(setting(options))
    selection, here = next_selection(state), scores_of(state, counter(table))
    for row in range(0, 40, 4):
        there = scores_of(state, counter(np.delete(table, row, axis=0)))
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
def test_the_same_secret_gives_the_same_bytes_and_a_round_can_be_replayed(options):
    asked, secret = setting(options), seeded_secret(3)
    one, other = run(asked, COUNTS, secret, {"release": "r"}), run(asked, COUNTS, secret, {"release": "r"})
    assert one.rounds == other.rounds
    for names in TRIPLES:
        assert one.marginal(names).tobytes() == other.marginal(names).tobytes()
    assert run(asked, COUNTS, secret, {"release": "s"}).rounds != one.rounds
    replay = _replayed(asked, secret, [note.chosen for note in one.rounds])
    assert replay.rounds == one.rounds
    assert replay.marginal(TRIPLES[0]).tobytes() == one.marginal(TRIPLES[0]).tobytes()


def _replayed(asked, secret, choices):
    """From the choices and the values alone, as they would be read back from disk."""

    def values(decision):
        return [measure(o, COUNTS, secret, {"release": "r", **o.label}) for o in decision.requests]

    decision = reread(first_decision(asked), asked)
    state = initial_state(asked, decision, values(decision))
    for chosen in choices:
        decision = reread(make_decision(state, next_selection(state), chosen), asked)
        state = next_state(state, decision, values(decision))
    return state


def reread(decision, asked):
    return AimDecision.from_dict(json.loads(json.dumps(decision.to_dict())), asked)


def test_a_decision_read_back_is_the_same_and_a_changed_one_is_refused():
    asked = setting(rows_per_unit=2)
    state = after_ones(asked)
    selection = next_selection(state)
    made = make_decision(state, selection, selection.candidates[: selection.count])
    read = reread(made, asked)
    assert read.spent == made.spent
    assert [o.label for o in read.requests] == [o.label for o in made.requests]
    assert [o.draw for o in read.requests] == [o.draw for o in made.requests]
    told = made.to_dict()
    finer = [[rank, names, m, str(int(v) // 2)] for rank, names, m, v in told["orders"]]
    wrong = [
        told | {"orders": finer},
        told | {"orders": told["orders"] * 2},
        told | {"chosen": [["a"], *told["chosen"][1:]]},
        told | {"chosen": [told["chosen"][0], *told["chosen"][:-1]]},
        told | {"beta": "-1/7"},
        told | {"orders": [[-1, *row[1:]] for row in told["orders"]]},
        told | {"step": "0"},
        told | {"groups": told["groups"] | {"a": [4, 0, 3, 2]}},
        told | {"groups": told["groups"] | {"a": [9, 0]}},
    ]
    for one in wrong:
        with pytest.raises(ValueError):
            AimDecision.from_dict(one, asked)


def test_a_round_draws_distinct_candidates():
    state = after_ones(setting((BatchedSchedule(rounds=2), EntropyEstimator())))
    selection, scores = next_selection(state), scores_of(state, COUNTS)
    for seed in range(20):
        chosen = select_candidates(
            selection, scores, 1, lambda r, s=seed: open_stream(seeded_secret(s), "selection", r)
        )
        sets = [names for names in chosen if names]
        assert len(set(sets)) == len(sets) <= selection.count == len(chosen) == 5


def test_a_sparse_table_has_the_distance_of_the_dense_one():
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.2, (30, 40))
    marginals = [ExactMarginal(("c", "e"), counts)]
    groups = {"c": every_cell(30), "e": every_cell(40)}
    few, many = (build_shard(marginals, [("c", "e")], groups, rows) for rows in (300, 10**6))
    assert isinstance(few.tables["c", "e"], SparseMarginal)
    np.testing.assert_array_equal(few.marginal(("c", "e")).counts, many.marginal(("c", "e")).counts)
    believed = TableEstimates({("c", "e"): rng.normal(0.2, 1, (30, 40))})
    assert few.distances(believed, [("c", "e")]).found == many.distances(believed, [("c", "e")]).found
    assert "0" not in repr(few.distances(believed, [("c", "e")]))


@pytest.mark.parametrize("cells", [8, 64, 1000])
def test_no_sum_wraps_around(cells):
    """Estimates at the clip, as of hopeless budgets: one record moves the distance by SCALE, not by 2^64."""
    estimate = np.where(np.arange(cells) % 2, 1e300, -1e300)
    counts = np.arange(cells)
    more = counts + (np.arange(cells) == 3)
    assert abs(distance(more, estimate) - distance(counts, estimate)) == SCALE
    assert distance(counts, estimate) > 2**62
    held = [SparseMarginal((cells,), np.flatnonzero(own), own[own > 0]).distance(estimate) for own in (counts, more)]
    assert held == [distance(counts, estimate), distance(more, estimate)]


def test_attributes_of_one_cell_are_refused():
    with pytest.raises(PlanError, match="one cell"):
        Setting({"a": 1, "b": 3}, (("a", "b"),), Fraction(1))


def test_weights_of_targets_count():
    asked = setting(targets=[("a", "b", "c"), ("a", "d")], target_weights=(3, 5))
    assert asked.weights[("a", "b")] == 3
    assert asked.weights[("a", "d")] == 5
    published = setting(PUBLISHED, targets=[("a", "b", "c"), ("a", "d")], target_weights=(3, 5))
    assert published.weights[("a", "b")] == 3 * 2 + 5


def test_ours_is_far_better_than_published_and_than_independence():
    ours = np.mean([error(run(setting(), COUNTS, seeded_secret(s)), COUNTS) for s in range(3)])
    theirs = np.mean([error(run(setting(PUBLISHED), COUNTS, seeded_secret(s)), COUNTS) for s in range(3)])
    alone = [(name,) for name in NAMES]
    independent = run(setting(targets=alone), COUNTS, seeded_secret(0))
    assert ours < 0.8 * theirs
    assert ours < 0.8 * error(independent, COUNTS)


def test_with_budget_to_spare_pairs_come_out_exact():
    pairs = [names for names in subsets(NAMES) if len(names) == 2]
    state = run(setting(beta=Fraction(10**4), targets=pairs), COUNTS, seeded_secret(0))
    assert error(state, COUNTS, pairs) < 0.01
    state = run(setting(PUBLISHED, Fraction(10**4), pairs), COUNTS, seeded_secret(0))
    assert error(state, COUNTS, pairs) < 0.02


def test_workloads_of_one_attribute_and_of_everything():
    one = run(setting(targets=[("c",)], beta=Fraction(10)), COUNTS, seeded_secret(0))
    assert one.rounds == ()
    np.testing.assert_allclose(one.marginal(("c",)), COUNTS(("c",)), atol=2)
    everything = run(setting(targets=[NAMES]), COUNTS, seeded_secret(0))
    assert everything.marginal(NAMES).shape == tuple(SIZES.values())
    turned = everything.marginal(("e", "a"))
    np.testing.assert_allclose(turned, everything.marginal(("a", "e")).T)


def test_a_budget_for_nothing_still_runs():
    state = run(setting(beta=Fraction(1, 10**12)), COUNTS, seeded_secret(0))
    assert state.left == 0
    assert np.isfinite(state.marginal(TRIPLES[0])).all()
    with pytest.raises(PlanError):
        setting(beta=Fraction(0))
    with pytest.raises(PlanError):
        setting(targets=[])


def test_more_rows_a_unit_mean_more_noise():
    single = first_decision(setting()).requests[0]
    triple = first_decision(setting(rows_per_unit=3)).requests[0]
    assert triple.variance == pytest.approx(9 * single.variance, rel=1e-4)
    assert triple.draw.cost <= setting().one_way_cost


def test_pairs_inside_many_targets_are_candidates_once():
    """45,760 triples hold 137,280 pairs, of which 2,145 differ."""
    sizes = {f"x{i}": 2 for i in range(66)}
    setting = Setting(sizes, tuple(combinations(sizes, 3)), Fraction(1))
    assert len(setting.candidates) == 2145  # and no triple: beside 64 targets none of them would count
    assert set(setting.weights.values()) == {64}


@pytest.mark.parametrize(("rules", "remedy"), [
    (BatchedSchedule(degree=6), "marginals over fewer attributes"),
    (PublishedSchedule(), "set mechanism.published = false"),
])  # fmt: skip
def test_too_many_candidates_are_refused_before_they_are_made(rules, remedy, monkeypatch):
    monkeypatch.setattr(aim_setting, "MOST_CANDIDATES", 1000)
    sizes = {f"x{i}": 2 for i in range(60)}
    with pytest.raises(PlanError, match=f"over 1,000 candidate sets.*{remedy}") as refused:
        first_decision(Setting(sizes, (tuple(sizes),), Fraction(1), schedule=rules))
    assert "degree" not in str(refused.value)


def test_larger_sets_are_candidates_where_they_have_few_cells(monkeypatch):
    """Those with the fewest cells, up to a number and up to cells of all together; pairs always are."""
    cells = {names: int(np.prod([SIZES[name] for name in names])) for names in TRIPLES}
    assert {names for names in setting().candidates if len(names) == 3} == set(TRIPLES)
    assert setting((BatchedSchedule(degree=2), EntropyEstimator())).candidates == tuple(combinations(NAMES, 2))
    monkeypatch.setattr(aim_setting, "MOST_LARGER", 4)
    few = [names for names in setting().candidates if len(names) == 3]
    assert sorted(cells[names] for names in few) == sorted(cells.values())[:4]
    monkeypatch.setattr(aim_setting, "MOST_LARGER_CELLS", sum(sorted(cells.values())[:3]))
    assert [names for names in setting().candidates if len(names) == 3] == [n for n in few if n in setting().weights]
    assert len(setting().candidates) == 10 + 3
    assert {len(n) for n in setting((BatchedSchedule(degree=4), EntropyEstimator()), targets=[NAMES]).candidates} == {
        2,
        3,
    }


def test_what_is_mostly_noise_is_not_offered():
    """σ of an even step over the groups of a set, against the records, by hand. Pairs are offered all the same."""
    for beta in (Fraction(1, 1000), Fraction(1, 10), Fraction(10), Fraction(100)):
        asked = setting(beta=beta)
        state = after_ones(asked)
        sigma = float(beta * Fraction(7, 10) / 10) ** -0.5
        noise = {names: np.sqrt(2 / np.pi) * sigma * np.prod([state.groups[name].count for name in names]) / state.rows
                 for names in asked.candidates}  # fmt: skip
        pairs = np.mean([noise[names] for names in asked.candidates if len(names) == 2])
        share = min(1, max(0.25, round(16 * pairs / 0.025) / 16))
        most = 0.15 * (1 + (1 - share) / 0.75)
        wanted = [names for names in asked.candidates if len(names) == 2 or noise[names] <= most]
        assert list(state.offered) == wanted
        assert list(next_selection(state).candidates) == [*wanted, *[()] * len(wanted)]
        assert state.step == asked.first_step * Fraction(share if len(wanted) > 10 else 1)
    assert len(state.offered) == 20  # the largest budget: all triples


def vain_run(asked, seed=3):
    """Decisions of a run in which nothing is found: released values are what was believed, as exactly as noise lets."""
    rng, decision = np.random.default_rng(seed), first_decision(asked)
    state = initial_state(asked, decision, [made_up(order, rng) for order in decision.requests])
    taken = [decision]
    while not state.done:
        selection = next_selection(state)
        decision = make_decision(state, selection, selection.candidates[: selection.count])
        values = [
            state.counts[o.names[0]].values if o.by_cell else _believed_residual(state, o) for o in decision.requests
        ]
        taken.append(decision)
        state = next_state(state, decision, values)
    return state, taken


def _believed_residual(state, order):
    table = state.fit.table(order.names) if order.names else np.array(float(state.rows))
    return center(table, range(table.ndim))


def test_after_vain_rounds_what_is_left_goes_back_to_the_1_ways():
    asked = setting(beta=Fraction(1, 5000))
    state, taken = vain_run(asked)
    again = [one for one in taken[1:] if one.is_one_way]
    assert again
    assert not any(one.is_one_way and other.is_one_way for one, other in pairwise(taken))
    first = taken.index(again[0])
    left = asked.beta - sum(one.spent for one in taken[:first])
    chosen = len(taken[first - 1].chosen)
    assert again[0].spent == left * Fraction(chosen, chosen + 2)
    assert [order.names for order in again[0].requests] == [(name,) for name in NAMES]
    assert all(order.groups[0].count == SIZES[order.names[0]] for order in again[0].requests)
    assert state.left == 0
    assert sum(one.spent for one in taken) == asked.beta
    labels = [order.label for one in taken for order in one.requests]  # without the law: that may well be the same
    names = [(one["round"], one["rank"], tuple(one["residual"]), one["whole"]) for one in labels]
    assert len(set(names)) == len(names)
    precision = sum(1 / one.requests[0].variance for one in taken if one.is_one_way)
    assert 1 / state.counts["a"].variance == pytest.approx(precision)
    one = reread(again[0], asked)
    assert [o.label for o in one.requests] == [o.label for o in again[0].requests]
    with pytest.raises(ValueError, match="not a candidate"):
        AimDecision.from_dict(again[0].to_dict() | {"beta": "1/100000000"}, asked)


def test_uninformative_rounds_are_followed_by_larger_steps():
    """And not by the 1-ways, where these have little noise, unless all was in vain."""
    step, moved, noise = Fraction(1, 7), [0.0, 0.0, 0.0, 9.0], [1.0] * 4
    assert (
        BatchedSchedule().next_step(step, moved, noise)
        == 2 * step
        == 2 * BatchedSchedule().next_step(step, noise, noise)
    )
    assert BatchedSchedule().one_way_share(moved, noise, 0.01) == 0 < BatchedSchedule().one_way_share(moved, noise, 0.1)
    assert BatchedSchedule().one_way_share([0.0] * 4, noise, 0.01) == Fraction(4, 6)


def test_the_last_round_takes_what_is_left_and_no_pair_is_forgone():
    """Full batches while more than one is affordable, then the rest: all ten pairs, and not nine of them."""
    asked = setting((BatchedSchedule(rounds=4, degree=2, patience=0.0), EntropyEstimator()), beta=Fraction(10))
    rng = np.random.default_rng(0)
    state, _ = scripted(asked, rng, lambda selection: selection.candidates[: selection.count])
    assert [len(note.chosen) for note in state.rounds] == [3, 3, 3, 1]


def test_three_way_effects_are_found_where_pairs_show_nothing():
    """z is x ⊕ y with some noise: every pair looks independent."""
    rng = np.random.default_rng(0)
    a, d = rng.integers(4, size=20_000), rng.integers(2, size=20_000)
    table = np.stack([a, rng.integers(3, size=20_000), (a % 2 ^ d) * 6 + rng.integers(6, size=20_000), d,
                      rng.integers(5, size=20_000)], axis=1)  # fmt: skip
    counts = counter(table)
    pairs = setting((BatchedSchedule(degree=2), EntropyEstimator()), beta=Fraction(1, 20))
    found = error(run(setting(beta=Fraction(1, 20)), counts, seeded_secret(0)), counts, [("a", "c", "d")])
    assert found < 0.3 * error(run(pairs, counts, seeded_secret(0)), counts, [("a", "c", "d")])


def test_where_there_is_nothing_to_find_the_1_ways_are_measured_again(monkeypatch):
    """Independent columns at a small budget: nearer than pairs to what the 1-ways alone would be."""
    rng, rows = np.random.default_rng(0), 4000
    table = np.stack([rng.integers(size, size=rows) for size in SIZES.values()], axis=1)
    counts, beta = counter(table), Fraction(1, 4000)
    ours = np.mean([error(run(setting(beta=beta), counts, seeded_secret(s)), counts) for s in range(30)])
    monkeypatch.setattr(BatchedSchedule, "one_way_share", lambda *of_all: Fraction(0))
    pairs = np.mean([error(run(setting(beta=beta), counts, seeded_secret(s)), counts) for s in range(30)])
    assert ours < 0.97 * pairs
