"""Laws of many attributes: selected by themselves, at a share of the budget, and told apart from noise."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from dpscale.counting import ExactMarginal
from dpscale.measurement.adaptive import Scores, build_shard, sensitivity
from dpscale.mechanisms.aim import setting as settings_of
from dpscale.mechanisms.aim.decision import AimDecision
from dpscale.mechanisms.aim.estimators import EntropyEstimator
from dpscale.mechanisms.aim.setting import LAW_SHARE, LAW_STEPS, BatchedSchedule, Setting
from dpscale.mechanisms.aim.state import first_decision, initial_state
from dpscale.plans.measurement_plan import SCALE
from dpscale.privacy.selection import scale_for
from dpscale.privacy.streams import seeded_secret
from tests.measurement.small import run_loop
from tests.measurement.test_adaptive_loop import random_value

BITS = tuple(f"x{i}" for i in range(7))
ROWS = 20_000


def make_bits(law: int = 4, seed: int = 0) -> np.ndarray:
    """Return fair bits; the last is the parity of the first `law` − 1, with 5 % of errors."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (ROWS, len(BITS)))
    bits[:, -1] = bits[:, : law - 1].sum(axis=1) % 2 ^ (rng.random(ROWS) < 0.05)
    return bits


def make_setting(degree: int, beta: Fraction = Fraction(1, 25), targets: int = 3) -> Setting:
    return Setting(dict.fromkeys(BITS, 2), tuple(combinations(BITS, targets)), beta,
                   schedule=BatchedSchedule(degree=degree), estimator=EntropyEstimator())  # fmt: skip


def counter(table: np.ndarray):
    def counts_of(names):
        if not names:
            return np.array(len(table))
        cells = np.ravel_multi_index(table[:, [BITS.index(name) for name in names]].T, (2,) * len(names))
        return np.bincount(cells, minlength=2 ** len(names)).reshape((2,) * len(names))

    return counts_of


def parity(table: np.ndarray) -> float:
    return float(abs(((1 - 2 * (np.indices(table.shape).sum(axis=0) % 2)) * table).sum()) / table.sum())


@pytest.mark.parametrize("law", [4, 5])
def test_law_outside_the_targets_is_found(law: int) -> None:
    state = run_loop(make_setting(degree=law), counter(make_bits(law)), seeded_secret(1))
    names = (*BITS[: law - 1], BITS[-1])
    chosen = [note.chosen for note in state.rounds if note.law_degree == law]
    assert chosen[0] == (names,)
    assert parity(state.fit.table(names)) == pytest.approx(0.9, abs=0.05)


def test_rounds_alone_do_not_find_it() -> None:
    """Planted: the same budget without selections of laws."""
    names = (*BITS[:3], BITS[-1])
    state = run_loop(make_setting(degree=3, targets=4), counter(make_bits()), seeded_secret(1))
    assert parity(state.fit.table(names)) < 0.1


def test_selection_ends_with_the_first_empty_one() -> None:
    """Independent bits have no law: each degree takes one selection, and its measurements are left to other rounds."""
    bits = np.random.default_rng(3).integers(0, 2, (ROWS, len(BITS)))
    setting = make_setting(degree=5)
    state = run_loop(setting, counter(bits), seeded_secret(2))
    taken = [(note.law_degree, note.chosen) for note in state.rounds if note.law_degree]
    assert taken == [(4, ((),)), (5, ((),))]
    assert state.left == 0


@pytest.mark.parametrize("degree", [4, 6])
def test_cost_of_all_rounds_is_the_budget(degree: int) -> None:
    setting = make_setting(degree)
    state, spent, _ = run_randomly(setting, np.random.default_rng(degree))
    assert state.left == 0
    assert spent <= setting.beta
    for law in range(4, degree + 1):
        notes = [note for note in state.rounds if note.law_degree == law]
        assert 1 <= len(notes) <= LAW_STEPS
        cost = sum((note.step if note.chosen != ((),) else note.selection_cost for note in notes), Fraction(0))
        assert cost <= LAW_SHARE * setting.beta
    ordinary = [note for note in state.rounds if not note.law_degree]
    assert all(len(names) <= 3 for note in ordinary for names in note.chosen)


def test_price_of_candidates_is_part_of_the_score() -> None:
    """Without any distance every set has exp(−penalty) / number of the weight of an empty selection."""
    setting = make_setting(degree=4)
    state, _ = run_until_laws(setting)
    selection = state.selection
    sets = [names for names in selection.candidates if names]
    assert selection.candidates.count(()) == len(sets) == math.comb(len(BITS), 4)
    scale = float(scale_for(selection.beta, sensitivity(selection, 1)))
    priced = selection.offset(sets[0]) * scale
    unpriced = replace(selection, price=0.0).offset(sets[0]) * scale
    assert priced - unpriced == pytest.approx(math.log(len(sets)), rel=1e-4)


def run_until_laws(setting: Setting):
    """Return the state before the first selection of a law, with random values, and the decisions before it."""
    state, _, decisions = run_randomly(setting, np.random.default_rng(0), lambda state: bool(state.law_degree))
    return state, decisions


def run_randomly(setting: Setting, rng: np.random.Generator, ends=lambda state: state.done):
    """Run random choices on random values of about ROWS records; return the state, the cost and all decisions."""

    def values(decision):
        return [random_value(order, rng) * (ROWS / 200 if order.by_cell else 1) for order in decision.requests]

    decision = first_decision(setting)
    spent, decisions = sum(order.draw.cost for order in decision.requests), [decision]
    state = initial_state(setting, decision, values(decision))
    while not ends(state):
        selection = state.selection
        sets = list(dict.fromkeys(selection.candidates))
        places = rng.choice(len(sets), min(selection.count, len(sets)), replace=False)
        decision = state.decide(selection, [sets[place] for place in places])
        spent += selection.beta * len(decision.chosen) + sum(order.draw.cost for order in decision.requests)
        state = state.after(decision, values(decision))
        decisions.append(decision)
    return state, spent, decisions


def test_sensitivity_of_a_law_selection_is_that_of_a_distance() -> None:
    """Brute force: one record more changes no score by more than the sensitivity, and some score by all of it."""
    setting = make_setting(degree=4)
    state, _ = run_until_laws(setting)
    selection, bits = state.selection, make_bits()[:200]

    def scores(rows: np.ndarray) -> np.ndarray:
        made, counts_of = Scores(), counter(rows)
        sets = made.missing(selection.candidates)
        shard = build_shard([ExactMarginal(names, counts_of(names)) for names in sets], sets, state.groups, state.rows)
        made.learn(shard.distances(state.estimates(sets), sets, {}))
        return np.array(made.of(selection), dtype=object)

    limit, largest = sensitivity(selection, 1), 0
    assert limit == SCALE, "the weight of every law is 1"
    for record in np.random.default_rng(5).integers(0, 2, (20, len(BITS))):
        change = np.abs(scores(np.concatenate([bits, record[None]])) - scores(bits)).max()
        largest = max(largest, int(change))
    assert largest <= limit
    assert largest > 0.5 * limit


def test_stored_decisions_are_read_again() -> None:
    setting = make_setting(degree=4)
    state, decisions = run_until_laws(setting)
    law = next(names for names in state.selection.candidates if names)
    decisions.append(state.decide(state.selection, [law]))
    decisions.append(state.decide(state.selection, [()]))
    for decision in decisions:
        again = AimDecision.from_dict(decision.to_dict(), setting)
        assert [one.label for one in again.requests] == [one.label for one in decision.requests]


def test_number_of_candidates_is_limited(monkeypatch) -> None:
    monkeypatch.setattr(settings_of, "MOST_LAWS", 20)
    sizes = {"wide": 9, **dict.fromkeys(BITS, 2)}
    setting = Setting(sizes, (("wide", *BITS[:2]), *combinations(BITS, 3)), Fraction(1),
                      schedule=BatchedSchedule(degree=4))  # fmt: skip
    assert len(setting.laws[4]) == math.comb(6, 4) <= 20
    assert all("wide" not in names for names in setting.laws[4]), "attributes with the fewest cells"
    assert set(setting.laws[4]) <= set(setting.candidates)


def test_cells_of_candidates_are_limited_in_total(monkeypatch) -> None:
    sizes = {"a": 6, "b": 6, "c": 6, "d": 6, "e": 2}
    targets = tuple(combinations(sizes, 3))
    setting = Setting(sizes, targets, Fraction(1), schedule=BatchedSchedule(degree=4))
    assert setting.laws[4] == tuple(combinations(sizes, 4)), "wide attributes too"
    monkeypatch.setattr(settings_of, "MOST_LARGER_CELLS", 4 * 6**3 * 2)
    few = Setting(sizes, targets, Fraction(1), schedule=BatchedSchedule(degree=4))
    assert few.laws[4] == tuple(names for names in combinations(sizes, 4) if "e" in names)


def test_sets_of_three_are_laws_where_they_are_no_candidates_of_rounds(monkeypatch) -> None:
    """Planted: a parity of three bits among so many attributes that rounds offer pairs only."""
    monkeypatch.setattr(settings_of, "MOST_ATTRIBUTES", len(BITS) - 1)
    setting, names = make_setting(degree=3), (*BITS[:2], BITS[-1])
    assert setting.round_candidates == tuple(combinations(BITS, 2))
    assert setting.laws == {3: tuple(combinations(BITS, 3))}
    state = run_loop(setting, counter(make_bits(3)), seeded_secret(1))
    assert next(note.chosen for note in state.rounds if note.law_degree) == (names,)
    assert parity(state.fit.table(names)) == pytest.approx(0.9, abs=0.05)
    alone = replace(setting, schedule=BatchedSchedule(degree=3, revision=1))
    assert parity(run_loop(alone, counter(make_bits(3)), seeded_secret(1)).fit.table(names)) < 0.1, "pairs only"


def make_grown(monkeypatch) -> tuple[Setting, np.ndarray, tuple[str, ...]]:
    """Return a setting, records and the law of four attributes in them, which only grows from a set of three.

    The parity of three bits is right if the attribute `wide` is below 2 and random otherwise, so the set of three is a
    law as well. The attributes with the fewest cells, of which all sets of four are candidates, do not include `wide`.
    """
    monkeypatch.setattr(settings_of, "MOST_LAWS", math.comb(len(BITS), 4))
    rng, bits = np.random.default_rng(8), make_bits(3)
    wide = rng.integers(0, 4, (ROWS, 1))
    bits[:, -1] = np.where(wide[:, 0] < 2, bits[:, -1], rng.integers(0, 2, ROWS))
    sizes = {**dict.fromkeys(BITS, 2), "wide": 4, "other": 4}
    targets = (*combinations(BITS, 3), ("wide", "other", BITS[0]))
    setting = Setting(sizes, targets, Fraction(1, 25), schedule=BatchedSchedule(degree=4), estimator=EntropyEstimator())
    return setting, np.concatenate([bits, wide, rng.integers(0, 4, (ROWS, 1))], axis=1), (*BITS[:2], BITS[-1], "wide")


def counter_of(sizes: dict[str, int], table: np.ndarray):
    def counts_of(names):
        shape = [sizes[name] for name in names]
        if not names:
            return np.array(len(table))
        cells = np.ravel_multi_index(table[:, [list(sizes).index(name) for name in names]].T, shape)
        return np.bincount(cells, minlength=math.prod(shape)).reshape(shape)

    return counts_of


def law_of_halves(table: np.ndarray) -> float:
    """Return the parity of the first three attributes where the last is below 2, less the parity elsewhere."""
    signs = 1 - 2 * (np.indices(table.shape[:3]).sum(axis=0) % 2)
    each = (signs[..., None] * table).sum(axis=(0, 1, 2)) / table.sum(axis=(0, 1, 2))
    return float(abs(each[:2].mean() - each[2:].mean()))


def test_law_grows_from_a_confirmed_set(monkeypatch) -> None:
    setting, table, names = make_grown(monkeypatch)
    assert all("wide" not in law for law in setting.laws[4])
    counts_of = counter_of(dict(setting.sizes), table)
    state = run_loop(setting, counts_of, seeded_secret(1))
    assert names in [one for note in state.rounds if note.law_degree == 4 for one in note.chosen]
    assert law_of_halves(counts_of(names)) == pytest.approx(0.9, abs=0.05)
    assert law_of_halves(state.fit.table(names)) == pytest.approx(0.9, abs=0.1)

    monkeypatch.setattr(Setting, "grown_laws", lambda self, degree, confirmed: ())
    without = run_loop(setting, counts_of, seeded_secret(1))
    assert law_of_halves(without.fit.table(names)) < 0.2, "planted: candidates do not grow"


def test_grown_sets_contain_a_confirmed_one_and_are_new(monkeypatch) -> None:
    """Brute force: all sets of four, of those with at most as many cells as the largest candidate."""
    setting, _, names = make_grown(monkeypatch)
    confirmed = [names[:3], ("x1", "wide", "other")]
    most = max(math.prod(setting.sizes[name] for name in one) for one in setting.candidates)
    wanted = [one for one in combinations(setting.sizes, 4)
              if any(set(small) < set(one) for small in confirmed) and one not in setting.candidates
              and math.prod(setting.sizes[name] for name in one) <= most]  # fmt: skip
    assert list(setting.grown_laws(4, confirmed)) == wanted
    assert names in wanted
    assert not any({"wide", "other"} < set(one) for one in wanted), "64 cells are more than those of a candidate"
    assert all(setting.may_select(one) for one in wanted)
    assert not setting.may_select(("x1", "x2", "wide", "other"))
    assert not setting.may_select(("wide", "x1", "x2", "x3")), "not in the order of the domain"
    assert not replace(setting, schedule=BatchedSchedule(degree=3)).may_select(names)


def test_price_counts_grown_sets_and_their_decisions_are_read_again(monkeypatch) -> None:
    setting, table, names = make_grown(monkeypatch)
    state = run_loop(setting, counter_of(dict(setting.sizes), table), seeded_secret(1))
    place = next(number for number, note in enumerate(state.rounds) if names in note.chosen)
    before = replace(state, rounds=state.rounds[:place], left=LAW_STEPS * setting.law_step(4))
    selection = before.selection
    sets = [one for one in selection.candidates if one]
    assert names in before.grown
    assert set(before.grown) <= set(sets)
    assert selection.price == math.log(len(sets))
    decision = before.decide(selection, [names])
    again = AimDecision.from_dict(decision.to_dict(), setting)
    assert [one.label for one in again.requests] == [one.label for one in decision.requests]
    assert set(before.grown) <= set(before.changed_sets(state)), "their distances are computed again"


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("degree", [3, 4])
def test_tables_without_larger_targets_have_no_laws_of_three(monkeypatch, targets: int, degree: int) -> None:
    """Without pairs the 1-ways spend all, at any degree; with pairs alone no set of three is counted."""
    monkeypatch.setattr(settings_of, "MOST_ATTRIBUTES", len(BITS) - 1)
    setting = make_setting(degree, targets=targets)
    assert set(setting.laws) == ({4} if (targets, degree) == (2, 4) else set())
    state, spent, _ = run_randomly(setting, np.random.default_rng(0))
    assert (state.left, spent <= setting.beta) == (0, True)


def test_large_laws_are_no_candidates_unless_a_plan_is_older(monkeypatch) -> None:
    """A law has at most LAW_CELLS cells, or those of the largest candidate, so that it fits the memory of counting."""
    monkeypatch.setattr(settings_of, "LAW_CELLS", 100)
    sizes = {"a": 6, "b": 6, "c": 6, "d": 2, "e": 2}
    setting = Setting(sizes, tuple(combinations(sizes, 2)), Fraction(1), schedule=BatchedSchedule(degree=4))
    assert setting.laws[4] == ()
    monkeypatch.setattr(settings_of, "LAW_CELLS", 200)
    larger = replace(setting)
    assert larger.laws[4] == tuple(names for names in combinations(sizes, 4) if {"d", "e"} <= set(names))
    older = replace(setting, schedule=BatchedSchedule(degree=4, revision=1))
    assert older.laws[4] == tuple(combinations(sizes, 4))
    assert older.grown_laws(4, [("a", "b", "c")]) == ()


def test_degree_three_has_no_selection_of_laws() -> None:
    setting = make_setting(degree=3)
    assert setting.laws == {}
    assert setting.candidates == setting.round_candidates
