"""Polished rows have the released counts over three attributes; other triples follow the pairwise model."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.pairwise import PairLayout, PairwiseModel, learn, pair_targets
from dpscale.reconstruction.pairwise_loops import BEHIND
from dpscale.synthesis import loops, set_targets as module
from dpscale.synthesis.draw import RowPart, draw, rake_weights
from dpscale.synthesis.set_layout import SetLayout
from dpscale.synthesis.set_targets import (
    Polisher,
    SetTargets,
    TripleLayout,
    laws_of,
    read_targets,
    set_targets,
    sets_of,
    write_targets,
)
from dpscale.workload.residual import every_cell
from tests.reconstruction.pairwise.small import MEMORY, SIZES, draw_joint, make_model

SIZE_LIST = list(SIZES.values())
SETS = list(combinations(range(4), 3))
ROWS, NOTHING = 5000.0, np.zeros(0)


@pytest.fixture(scope="module")
def learnt() -> PairwiseModel:
    return learn(pair_targets(make_model(draw_joint()), MEMORY), "release")


@pytest.fixture(scope="module")
def model_of_threes(learnt: PairwiseModel) -> SetTargets:
    """Return targets of all triples alone: without sets of four, which small tables have too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "LARGER", ())
        return make_targets(learnt)


def make_targets(learnt: PairwiseModel) -> SetTargets:
    return set_targets(learnt, make_model(draw_joint()), "release", MEMORY, ROWS)


def maximum_entropy(table: np.ndarray) -> np.ndarray:
    """Return the distribution of largest entropy with the pairs of `table`, by fitting all cells."""
    found = np.full_like(table, 1 / table.size)
    for _ in range(2000):
        for pair in combinations(range(4), 2):
            others = tuple(k for k in range(4) if k not in pair)
            found *= table.sum(axis=others, keepdims=True) / found.sum(axis=others, keepdims=True)
    return found


def margin(table: np.ndarray, subset: tuple[int, ...]) -> np.ndarray:
    return table.sum(axis=tuple(k for k in range(4) if k not in subset))


def count_rows(rows: np.ndarray, subset: tuple[int, ...]) -> np.ndarray:
    """Count the cells of a set by brute force."""
    found = np.zeros([SIZE_LIST[i] for i in subset])
    for row in rows:
        found[tuple(row[list(subset)])] += 1
    return found


def mean_error(rows: np.ndarray, table: np.ndarray, degree: int) -> float:
    sets = list(combinations(range(4), degree))
    return float(
        np.mean([np.abs(count_rows(rows, subset) / len(rows) - margin(table, subset)).sum() for subset in sets])
    )


def test_three_way_targets_equal_pairwise_model(model_of_threes: SetTargets) -> None:
    explicit, layout = maximum_entropy(draw_joint()), model_of_threes.triples
    assert layout.sets.tolist() == [list(subset) for subset in SETS]
    for number, subset in enumerate(SETS):
        found = layout.of(model_of_threes.shares, number)
        truth, data = margin(explicit, subset), margin(draw_joint(), subset)
        assert np.abs(found - truth).sum() < 0.03
        assert np.abs(found - truth).sum() < 0.15 * np.abs(data - truth).sum(), "it follows no three-way effect"
        for axis in range(3):
            pair = tuple(i for place, i in enumerate(subset) if place != axis)
            assert found.sum(axis=axis) == pytest.approx(margin(draw_joint(), pair), abs=1e-3)


def test_released_triple_is_used_as_target(learnt: PairwiseModel) -> None:
    """`draw_joint` has a three-way effect that is not visible in pairs."""
    names, total = tuple(SIZES)[:3], make_model(draw_joint()).total
    table = margin(draw_joint(), (0, 1, 2)) * total
    model = make_model(draw_joint())
    made = set_targets(learnt, replace(model, tables={**model.tables, names: table}), "release", MEMORY, ROWS)
    assert made.triples.of(made.shares, 0) * total == pytest.approx(table, abs=1e-3)
    rows = draw(learnt, RowPart(5000, 1, 0), "release", made)
    assert np.abs(count_rows(rows, (0, 1, 2)) / 5000 - table / total).sum() < 0.02


def test_polished_rows_are_nearer_in_triples_and_as_near_in_pairs(
    learnt: PairwiseModel, model_of_threes: SetTargets
) -> None:
    table, part = maximum_entropy(draw_joint()), RowPart(5000, 1, 0)
    plain, polished = draw(learnt, part, "release"), draw(learnt, part, "release", model_of_threes)
    assert polished.shape == (5000, 4)
    assert mean_error(polished, table, 3) < 0.5 * mean_error(plain, table, 3)
    assert mean_error(polished, table, 2) < 1.5 * mean_error(plain, table, 2) < 0.01


def test_polished_parts_have_counts_of_one_draw(learnt: PairwiseModel, model_of_threes: SetTargets) -> None:
    table = maximum_entropy(draw_joint())
    parts = [draw(learnt, RowPart(20_000, 4, number), "release", model_of_threes) for number in range(4)]
    plain = [draw(learnt, RowPart(20_000, 4, number), "release") for number in range(4)]
    assert list(map(len, parts)) == [5000] * 4
    assert mean_error(np.concatenate(parts), table, 3) < 0.6 * mean_error(np.concatenate(plain), table, 3)
    assert (parts[2] == draw(learnt, RowPart(20_000, 4, 2), "release", model_of_threes)).all()
    assert (parts[2] != parts[1]).any()


def make_polisher(model_of_threes: SetTargets, learnt: PairwiseModel) -> Polisher:
    targets, chance = learnt.targets, PublicStream("test", "polisher")
    rows = learnt.rows[:600].copy()
    return Polisher(model_of_threes, model_of_threes.shares * 600, NOTHING, targets.layout, targets.ones, rows,
                    targets.shares * 600, learnt.theta, targets.layout.used, chance)  # fmt: skip


def expected_weights(made: Polisher, rows: np.ndarray, aims: np.ndarray, beta: float) -> np.ndarray:
    """Return weights and slopes by definition: one line for each pair of values of the others, followed by slopes."""
    lines = []
    for number, subset in enumerate(SETS):
        count, aim = count_rows(rows, subset), made._sets.of(aims, number)
        slope = beta / (aim + 1)
        for axis in range(3):
            both = [np.moveaxis(one, axis, -1) for one in (slope * (aim - count - 0.5), slope)]
            lines.append(np.concatenate(both, axis=-1).ravel())
    return np.concatenate(lines)


def test_weights_are_gradient_of_energy_and_follow_changes(learnt: PairwiseModel, model_of_threes: SetTargets) -> None:
    made, aims = make_polisher(model_of_threes, learnt), model_of_threes.shares * 600
    before = made.rows.copy()
    made.polish(2.0, 3.0, 1.0, 1.0)
    updated = made._threes[:-BEHIND]
    assert (made.rows != before).any()
    assert updated == pytest.approx(expected_weights(made, made.rows, aims, 3.0), abs=2e-3)
    assert np.abs(updated - expected_weights(made, before, aims, 3.0)).max() > 0.5


def test_counts_of_triples_equal_brute_force(learnt: PairwiseModel, model_of_threes: SetTargets) -> None:
    layout, counts = model_of_threes.triples, np.zeros(model_of_threes.triples.cells)
    loops.count_triples(learnt.rows[:500], layout.sets, layout.ends, layout.sizes, counts)
    for number, subset in enumerate(SETS):
        assert (layout.of(counts, number) == count_rows(learnt.rows[:500], subset)).all()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 30), min_size=1, max_size=20), st.integers(2, 9))
def test_triple_targets_of_parts_are_integers_with_correct_sum(cells: list[float], parts: int) -> None:
    whole = np.array(cells)
    shares = [RowPart(100, parts, number).share(whole, PublicStream("r", "dither threes")) for number in range(parts)]
    assert all((share == np.rint(share)).all() for share in shares)
    assert (np.abs(np.sum(shares, axis=0) - whole) < 1 + 1e-9).all()


def test_triples_of_largest_chance_variation_are_selected_within_memory(learnt: PairwiseModel, monkeypatch) -> None:
    layout = learnt.targets.layout
    root_sums = [np.floor(np.sqrt(count_rows(learnt.rows[:2000], subset)) * 64).sum() for subset in SETS]
    assert loops.count_roots(learnt.rows[:2000], np.array(SETS), layout.sizes).tolist() == root_sums
    monkeypatch.setattr(module, "MOST_SETS", 2)
    best = sorted(sorted(range(4), key=lambda number: -root_sums[number])[:2])
    assert sets_of(layout, learnt.rows[:2000], MEMORY, 1e9).tolist() == [list(SETS[number]) for number in best]
    assert sets_of(layout, learnt.rows, module.BYTES_A_CELL, 1e9).shape == (0, 3)
    used = layout.used.copy()
    used[0, 1] = used[1, 0] = False
    assert sets_of(PairLayout(layout.names, layout.sizes, used), learnt.rows, MEMORY, 1e9).tolist() == [
        [0, 2, 3],
        [1, 2, 3],
    ]


def test_number_of_triples_and_attributes_is_limited() -> None:
    count = 250
    used = ~np.eye(count, dtype=np.bool_)
    layout = PairLayout(tuple(map(str, range(count))), np.full(count, 2), used)
    rows = np.random.default_rng(0).integers(0, 2, (400, count)).astype(np.int32)
    selected = sets_of(layout, rows, MEMORY, 1e9)
    assert len(selected) == module.MOST_SETS
    assert selected.max() < module.MOST_ATTRIBUTES


def test_rows_without_triples_follow_pairs(learnt: PairwiseModel) -> None:
    none = set_targets(learnt, make_model(draw_joint()), "release", 1, ROWS)
    assert none.triples.cells == 0
    assert mean_error(draw(learnt, RowPart(5000, 1, 0), "release", none), draw_joint(), 2) < 0.01


def test_three_way_targets_round_trip_and_are_reproducible(learnt: PairwiseModel, tmp_path: Path) -> None:
    written = set_targets(learnt, make_model(draw_joint()), "release", MEMORY, ROWS)
    write_targets(tmp_path / "threes.npz", written)
    back = read_targets(tmp_path / "threes.npz")
    again = set_targets(learnt, make_model(draw_joint()), "release", MEMORY, ROWS)
    assert written.shares.tobytes() == back.shares.tobytes() == again.shares.tobytes()
    assert (back.triples.sets == written.triples.sets).all()
    assert back.wide.sets == written.wide.sets == ((0, 1, 2, 3),), "all sets of four of a small table"
    assert back.laws == written.laws == ()
    assert (set_targets(learnt, make_model(draw_joint()), "another", MEMORY, ROWS).shares != written.shares).any()


BITS = ("a", "b", "c", "d", "e")


def parity_model(degree: int, correlation: float = 0.9, total: float = 20_000.0) -> LowOrder:
    """Return tables of five fair bits of which the first `degree` have a parity, and all pairs are uniform."""
    names = BITS[:degree]
    sign = 1 - 2 * (np.indices((2,) * degree).sum(axis=0) % 2)
    law = total / 2**degree * (1 + correlation * sign)
    tables = {pair: np.full((2, 2), total / 4) for pair in combinations(BITS, 2)}
    ones, groups = {name: np.full(2, total / 2) for name in BITS}, {name: every_cell(2) for name in BITS}
    return LowOrder(ones, groups, {**tables, names: law}, total, frozenset([*tables, names]))


def parity(rows: np.ndarray, degree: int, weights: np.ndarray | None = None) -> float:
    return float(np.average(1 - 2 * (rows[:, :degree].sum(axis=1) % 2), weights=weights))


@pytest.mark.parametrize("degree", [3, 4, 5])
def test_rows_have_a_law_that_no_smaller_set_has(degree: int) -> None:
    model = parity_model(degree)
    learnt = learn(pair_targets(model, MEMORY), "release", count=4000)
    targets = set_targets(learnt, model, "release", MEMORY, 20_000, polish=False)
    assert [own for own, _ in targets.tables] == [tuple(range(degree))]

    rows = draw(learnt, RowPart(20_000, 1, 0), "release", targets)
    assert parity(rows, degree) == pytest.approx(0.9, abs=0.01)
    for subset in combinations(range(5), 2):
        counts = np.bincount(rows[:, subset[0]] * 2 + rows[:, subset[1]], minlength=4)
        assert counts == pytest.approx(np.full(4, 5000), abs=60), "pairs keep their counts"
    assert abs(parity(draw(learnt, RowPart(20_000, 1, 0), "release"), degree)) < 0.05, "pairs alone lose the law"

    parts = [draw(learnt, RowPart(20_000, 4, number), "release", targets) for number in range(4)]
    assert parity(np.concatenate(parts), degree) == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("degree", [3, 4])
def test_weighted_rows_have_a_law(degree: int) -> None:
    model = parity_model(degree, correlation=0.5)
    learnt = learn(pair_targets(model, MEMORY), "release", count=4000)
    targets = set_targets(learnt, model, "release", MEMORY, 20_000, polish=False)
    rows = draw(learnt, RowPart(2000, 1, 0), "release")
    part = RowPart(2000, 1, 0)
    assert parity(rows, degree, rake_weights(learnt.targets, rows, part, 20_000.0, targets)) == pytest.approx(
        0.5, abs=0.01
    )
    assert abs(parity(rows, degree, rake_weights(learnt.targets, rows, part, 20_000.0))) < 0.15


def test_table_without_departure_is_no_law() -> None:
    model = parity_model(4, correlation=0.0)
    assert laws_of(model, 20_000) == []
    assert laws_of(parity_model(4), 20_000) == [BITS[:4]]
    weak = parity_model(4, correlation=0.004)
    assert laws_of(weak, 1000) == [], "rows depart more by sampling"
    assert laws_of(weak, 10**7) == [BITS[:4]]


def test_sets_of_four_and_five_are_targets_of_small_tables(monkeypatch) -> None:
    model = parity_model(3)
    learnt = learn(pair_targets(model, MEMORY), "release", count=4000)
    made = set_targets(learnt, model, "release", MEMORY, 20_000)
    fours = tuple(combinations(range(5), 4))
    assert made.wide.sets == (*fours, (0, 1, 2, 3, 4))
    assert made.laws == ((0, 1, 2),)
    assert set_targets(learnt, model, "release", MEMORY, 10**8).wide.sets == (), "too many rows"
    monkeypatch.setattr(module, "MOST_STEPS", 20_000 * 2 * 4 * 5 * 4)
    assert set_targets(learnt, model, "release", MEMORY, 20_000).wide.sets == fours, "all of a degree, or none"


def test_wide_sets_are_counted_as_by_brute_force_and_weights_follow_changes() -> None:
    rng = np.random.default_rng(3)
    sizes = np.array([2, 3, 4, 2, 3], np.int64)
    wide = SetLayout(sizes, ((0, 1, 2, 3), (0, 1, 2, 3, 4), (1, 2, 3, 4)))
    rows = (rng.random((700, 5)) * sizes).astype(np.int32)
    counts = wide.count(rows)
    for number, subset in enumerate(wide.sets):
        expected = np.zeros(wide.shape(number))
        np.add.at(expected, tuple(rows[:, list(subset)].T), 1)
        assert (wide.of(counts, number) == expected).all()

    shares = rng.random(wide.cells)
    layout = PairLayout(("a", "b", "c", "d", "e"), sizes, np.zeros((5, 5), np.bool_))
    targets = SetTargets(TripleLayout(sizes, np.zeros((0, 3), np.int64)), NOTHING, wide, shares)
    ones = np.concatenate([np.full(size, 1 / size) for size in sizes])
    made = Polisher(
        targets, NOTHING, shares * 700, layout, ones, rows, NOTHING, NOTHING, layout.used, PublicStream("test", "wide")
    )
    made.polish(1.0, 1.0, 3.0, 3.0)
    after = wide.count(made.rows)
    slopes = 3.0 / (shares * 700 + 1)
    assert (after != counts).any()
    assert made._wide_weights == pytest.approx(slopes * (shares * 700 - after - 0.5), abs=2e-3), (
        "the gradient of the energy"
    )


def test_targets_of_wide_sets_round_trip(tmp_path: Path) -> None:
    model = parity_model(5)
    learnt = learn(pair_targets(model, MEMORY), "release", count=4000)
    written = set_targets(learnt, model, "release", MEMORY, 20_000, polish=False)
    write_targets(tmp_path / "laws.npz", written)
    back = read_targets(tmp_path / "laws.npz")
    assert back.laws == written.laws == ((0, 1, 2, 3, 4),)
    assert back.wide.sets == written.wide.sets == ((0, 1, 2, 3, 4),)
    assert back.wide_shares.tobytes() == written.wide_shares.tobytes()
    assert set_targets(learnt, model, "release", 100, 20_000).is_empty, "a law that does not fit the memory"
