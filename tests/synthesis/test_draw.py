"""Drawn rows have the wanted counts, in one part or many, and depend on names and numbers only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.pairwise import CellDistribution, PairwiseModel, learn, pair_targets
from dpscale.synthesis.cells import refine_to_cells
from dpscale.synthesis.draw import PairwiseSampler, RowPart, draw, one_way_counts, rake_weights
from dpscale.synthesis.one_way_rounding import apportion, match_one_ways
from dpscale.synthesis.quality import compare, compared_sets, mean_distances
from dpscale.workload.residual import Groups
from tests.reconstruction.pairwise.small import MEMORY, SIZES, count_pair, draw_joint, make_model

SIZE_LIST = list(SIZES.values())


@pytest.fixture(scope="module")
def learnt() -> PairwiseModel:
    return learn(pair_targets(make_model(draw_joint()), MEMORY), "release", 4000)


def pair_error(rows: np.ndarray, table: np.ndarray) -> float:
    """Return the mean over pairs of the L1 distance to the wanted shares."""
    found = []
    for i in range(4):
        for j in range(i + 1, 4):
            want = table.sum(axis=tuple(k for k in range(4) if k not in (i, j)))
            found.append(np.abs(count_pair(rows, i, j, SIZE_LIST) / len(rows) - want).sum())
    return float(np.mean(found))


def test_pairs_of_rows_are_nearer_than_independent_draws(learnt: PairwiseModel) -> None:
    table, rows = draw_joint(), draw(learnt, RowPart(5000, 1, 0), "release")
    chance = np.random.default_rng(0).choice(table.size, 5000, p=table.ravel())
    sampled = np.stack(np.unravel_index(chance, table.shape), axis=1)
    assert pair_error(rows, table) < 0.006
    assert pair_error(rows, table) < 0.15 * pair_error(sampled, table)


def test_one_row_and_no_row(learnt: PairwiseModel) -> None:
    assert draw(learnt, RowPart(1, 1, 0), "release").shape == (1, 4)
    assert [len(draw(learnt, RowPart(1, 3, number), "release")) for number in range(3)] == [0, 0, 1]


def test_parts_together_have_counts_of_one_draw(learnt: PairwiseModel) -> None:
    parts = [draw(learnt, RowPart(8000, 8, number), "release") for number in range(8)]
    assert sum(map(len, parts)) == 8000
    assert pair_error(np.concatenate(parts), draw_joint()) < 0.006


def test_part_depends_on_its_numbers_only(learnt: PairwiseModel) -> None:
    part = RowPart(2000, 2, 1)
    assert (draw(learnt, part, "release") == draw(learnt, part, "release")).all()
    assert (draw(learnt, part, "release") != draw(learnt, part, "another")).any()
    assert (draw(learnt, RowPart(2000, 2, 0), "release") != draw(learnt, part, "release")).any()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 30), min_size=1, max_size=20), st.integers(1, 9))
def test_part_targets_are_integers_with_correct_sum(cells: list[float], parts: int) -> None:
    whole = np.array(cells)
    shares = [RowPart(100, parts, number).share(whole, PublicStream("r", "dither")) for number in range(parts)]
    total = np.sum(shares, axis=0)
    assert (np.abs(total - whole) < 1 + 1e-9).all()
    if parts > 1:
        assert all((share == np.rint(share)).all() and (share >= 0).all() for share in shares)
        spread_out = np.max(shares, axis=0) - np.min(shares, axis=0)
        assert (spread_out <= 1).all()


def test_unmeasured_pair_follows_pairwise_model() -> None:
    """In a chain a — b — c the pair (a, c) is not measured and independent in the estimates, but not in the rows."""
    rng = np.random.default_rng(3)
    a, given_a = rng.dirichlet(np.ones(3)), rng.dirichlet(np.full(4, 0.3), 3)
    given_b = rng.dirichlet(np.full(2, 0.3), 4)
    table = np.einsum("a,ab,bc,d->abcd", a, given_a, given_b, np.full(6, 1 / 6))
    full = make_model(table)
    measured = {("a", "b"), ("b", "c")}
    tables = {names: full.tables[names] for names in measured}
    known = LowOrder(full.ones, full.groups, tables, full.total, frozenset(measured))
    chained = learn(pair_targets(known, MEMORY), "r", 20_000)
    layout = chained.targets.layout
    truth = table.sum(axis=(1, 3))
    product = np.outer(truth.sum(axis=1), truth.sum(axis=0))
    found = layout.of(chained.targets.shares, 0, 2)
    assert np.abs(found - truth).sum() < 0.5 * np.abs(product - truth).sum()
    assert found.sum(axis=0) == pytest.approx(truth.sum(axis=0), abs=1e-6)


def test_cells_within_groups_follow_one_way_counts() -> None:
    grouped = make_model(draw_joint(), groups={"d": Groups(6, (0, 2, 3)), "b": Groups(4, (0, 3))})
    fitted = learn(pair_targets(grouped, MEMORY), "release", 4000)
    part = RowPart(5000, 1, 0)
    groups = draw(fitted, part, "release")
    cells = refine_to_cells(
        fitted.targets, CellDistribution(grouped.groups, grouped.ones), groups, PublicStream("release", "cells", 0)
    )
    for i, name in enumerate(SIZES):
        own = np.bincount(cells[:, i], minlength=SIZE_LIST[i]) / 5000
        assert own == pytest.approx(grouped.ones[name] / grouped.total, abs=0.002)
        assert (grouped.groups[name].labels[cells[:, i]] == groups[:, i]).all()
    joint_cells = count_pair(cells, 1, 3, SIZE_LIST) / 5000
    b, d = ([0, 0, 0, 1], (0, 3)), ([0, 0, 1, 2, 2, 2], (0, 2, 3))
    inside = [
        grouped.ones[name] / np.add.reduceat(grouped.ones[name], starts)[labels]
        for name, (labels, starts) in (("b", b), ("d", d))
    ]
    implied = np.outer(*inside) * grouped.tables["b", "d"][np.ix_(b[0], d[0])] / grouped.total
    assert np.abs(joint_cells - implied).sum() < 0.012


def test_one_ways_are_exact_and_pairs_stay_near(learnt: PairwiseModel) -> None:
    """Planted: a value of forty rows too many, and one that nobody has; only rows that fit the pairs move."""
    table, model = draw_joint(), make_model(draw_joint())
    cells = CellDistribution(model.groups, model.ones)
    drawn = draw(learnt, RowPart(5000, 1, 0), "release")
    wrong = drawn.copy()
    wrong[np.flatnonzero(wrong[:, 0] != 1)[:40], 0] = 1
    wrong[wrong[:, 3] == 5, 3] = 4
    wanted = one_way_counts(tuple(SIZES), cells, RowPart(5000, 1, 0), "release")
    for rows in (drawn, wrong):
        moved = match_one_ways(learnt.targets, cells, rows, wanted)
        for i, name in enumerate(SIZES):
            counts = np.bincount(moved[:, i], minlength=SIZE_LIST[i])
            assert (counts == apportion(model.ones[name], 5000)).all()
            assert np.abs(counts - 5000 * model.ones[name] / model.total).max() < 1
        assert pair_error(moved, table) < max(pair_error(rows, table), 0.008)


def test_first_rows_are_a_sample_of_the_part(learnt: PairwiseModel) -> None:
    """Planted: rows in the order in which they are drawn, whose first quarter is farther from all than a sample is."""
    model, part, rng = make_model(draw_joint()), RowPart(20_000, 1, 0), np.random.default_rng(0)
    sampler = PairwiseSampler(learnt, CellDistribution(model.groups, model.ones), model.total)

    def departure(rows: np.ndarray, some: np.ndarray) -> float:
        pairs = [(i, j) for i in range(4) for j in range(i)]
        cells = [[np.bincount(own[:, i] * 6 + own[:, j], minlength=36) / len(own) for i, j in pairs]
                 for own in (rows, some)]  # fmt: skip
        return float(np.abs(np.subtract(*cells)).sum())

    rows, drawn = sampler.rows(part, "release"), draw(learnt, part, "release")
    sampled = np.mean([departure(rows, rows[rng.permutation(len(rows))[:5000]]) for _ in range(8)])
    assert departure(rows, rows[:5000]) < 1.4 * sampled < departure(drawn, drawn[:5000])


def test_cells_with_few_rows_are_in_some_parts() -> None:
    """Planted: a level of 3 rows in 40 parts; rounded part by part, no part would have it."""
    ones = {"a": np.array([600.0, 397.0, 3.0]), "b": np.array([500.0, 500.0])}
    cells = CellDistribution({}, ones)
    parts = [one_way_counts(("a", "b"), cells, RowPart(1000, 40, number), "release") for number in range(40)]
    assert all(counts.sum() == 25 and (counts >= 0).all() for part in parts for counts in part)
    sums = [np.sum([part[i] for part in parts], axis=0) for i in range(2)]
    assert sums[0][2] == 3
    assert np.abs(sums[0] - ones["a"]).max() <= 3
    assert np.abs(sums[1] - ones["b"]).max() <= 3
    assert sum(apportion(ones["a"], 25)[2] for _ in parts) == 0
    [whole] = one_way_counts(("a",), cells, RowPart(1000, 1, 0), "release")
    assert whole.tolist() == [600, 397, 3]


def test_few_weighted_rows_have_counts_of_many(learnt: PairwiseModel) -> None:
    rows = draw(learnt, RowPart(400, 1, 0), "release")
    weights = rake_weights(learnt.targets, rows, RowPart(400, 1, 0), 5000.0)
    assert weights.sum() == pytest.approx(5000)
    table = draw_joint()

    def weighted_error(own: np.ndarray) -> float:
        return float(np.mean([
            np.abs(np.bincount(rows[:, i] * SIZE_LIST[j] + rows[:, j], own, SIZE_LIST[i] * SIZE_LIST[j]) / own.sum()
                   - table.sum(axis=tuple(k for k in range(4) if k not in (i, j))).ravel()).sum()
            for i in range(4) for j in range(i + 1, 4)
        ]))  # fmt: skip

    assert weighted_error(weights) < 0.6 * weighted_error(np.ones(400))


def test_one_attribute_and_memory_for_few_pairs() -> None:
    whole = make_model(draw_joint())
    alone = LowOrder({"d": whole.ones["d"]}, {"d": whole.groups["d"]}, {}, whole.total)
    fitted = learn(pair_targets(alone, MEMORY), "r", 100)
    rows = draw(fitted, RowPart(1000, 1, 0), "r")
    assert np.bincount(rows[:, 0], minlength=6) / 1000 == pytest.approx(alone.ones["d"] / alone.total, abs=0.001)
    few = pair_targets(whole, 64 * 20)  # bytes: room for 20 cells
    assert 0 < few.layout.cells <= 20
    assert draw(learn(few, "r", 100), RowPart(50, 1, 0), "r").shape == (50, 4)


def test_mean_distances_detect_shuffled_rows(learnt: PairwiseModel) -> None:
    whole, names = make_model(draw_joint()), list(SIZES)
    layout = compared_sets([(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)], SIZE_LIST)

    def distances(rows: np.ndarray) -> dict[str, float]:
        return mean_distances(compare(layout, names, layout.count(rows), len(rows), whole.marginal))

    drawn = distances(draw(learnt, RowPart(5000, 1, 0), "release"))
    rng = np.random.default_rng(0)
    shuffled = np.stack([rng.permutation(column) for column in draw(learnt, RowPart(5000, 1, 0), "release").T], axis=1)
    shuffled = np.ascontiguousarray(shuffled)
    assert drawn["1"] == pytest.approx(distances(shuffled)["1"])
    assert drawn["2"] < 0.1 * distances(shuffled)["2"]
    assert drawn["3"] < distances(shuffled)["3"]
