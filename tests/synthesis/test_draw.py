"""Rows have the counts that are wanted, in one part or in many, and follow from nothing but names and numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.pairwise.learn import PairwiseModel, learn
from dpscale.reconstruction.pairwise.pairs import CellDistribution, pair_targets
from dpscale.synthesis.cells import refine_to_cells
from dpscale.synthesis.draw import RowPart, draw, rake_weights
from dpscale.synthesis.quality import count_sampled_sets, distances_by_degree
from dpscale.workload.residual.in_axis import Groups
from tests.reconstruction.pairwise.small import MEMORY, SIZES, count_pair, draw_joint, make_model

SIZE_LIST = list(SIZES.values())


@pytest.fixture(scope="module")
def learnt() -> PairwiseModel:
    return learn(pair_targets(make_model(draw_joint()), MEMORY), "release", 4000)


def off(rows: np.ndarray, table: np.ndarray) -> float:
    """Mean over pairs of the L1 distance to what is wanted, as a share of the rows."""
    found = []
    for i in range(4):
        for j in range(i + 1, 4):
            want = table.sum(axis=tuple(k for k in range(4) if k not in (i, j)))
            found.append(np.abs(count_pair(rows, i, j, SIZE_LIST) / len(rows) - want).sum())
    return float(np.mean(found))


def test_pairs_of_rows_are_what_is_wanted_far_nearer_than_by_chance(learnt: PairwiseModel) -> None:
    table, rows = draw_joint(), draw(learnt, RowPart(5000, 1, 0), "release")
    chance = np.random.default_rng(0).choice(table.size, 5000, p=table.ravel())
    sampled = np.stack(np.unravel_index(chance, table.shape), axis=1)
    assert off(rows, table) < 0.006
    assert off(rows, table) < 0.15 * off(sampled, table)


def test_one_row_and_none(learnt: PairwiseModel) -> None:
    assert draw(learnt, RowPart(1, 1, 0), "release").shape == (1, 4)
    assert [len(draw(learnt, RowPart(1, 3, number), "release")) for number in range(3)] == [0, 0, 1]


def test_parts_together_have_the_counts_of_the_whole(learnt: PairwiseModel) -> None:
    parts = [draw(learnt, RowPart(8000, 8, number), "release") for number in range(8)]
    assert sum(map(len, parts)) == 8000
    assert off(np.concatenate(parts), draw_joint()) < 0.006


def test_a_part_follows_from_its_numbers_alone(learnt: PairwiseModel) -> None:
    part = RowPart(2000, 2, 1)
    assert (draw(learnt, part, "release") == draw(learnt, part, "release")).all()
    assert (draw(learnt, part, "release") != draw(learnt, part, "another")).any()
    assert (draw(learnt, RowPart(2000, 2, 0), "release") != draw(learnt, part, "release")).any()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 30), min_size=1, max_size=20), st.integers(1, 9))
def test_targets_of_parts_are_whole_and_add_up(cells: list[float], parts: int) -> None:
    whole = np.array(cells)
    shares = [RowPart(100, parts, number).share(whole, PublicStream("r", "dither")) for number in range(parts)]
    total = np.sum(shares, axis=0)
    assert (np.abs(total - whole) < 1 + 1e-9).all()
    if parts > 1:
        assert all((share == np.rint(share)).all() and (share >= 0).all() for share in shares)
        spread_out = np.max(shares, axis=0) - np.min(shares, axis=0)
        assert (spread_out <= 1).all()


def test_what_was_not_measured_is_what_the_model_implies() -> None:
    """A chain a — b — c: the pair (a, c) is not measured and said to be independent; rows know better."""
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


def test_cells_inside_groups_share_by_their_one_way() -> None:
    grouped = make_model(draw_joint(), groups={"d": Groups(6, (0, 2, 3)), "b": Groups(4, (0, 3))})
    asked = learn(pair_targets(grouped, MEMORY), "release", 4000)
    part = RowPart(5000, 1, 0)
    groups = draw(asked, part, "release")
    cells = refine_to_cells(
        asked.targets, CellDistribution(grouped.groups, grouped.ones), groups, PublicStream("release", "cells", 0)
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


def test_fewer_rows_with_weights_have_the_counts_of_many(learnt: PairwiseModel) -> None:
    rows = draw(learnt, RowPart(400, 1, 0), "release")
    weights = rake_weights(learnt.targets, rows, RowPart(400, 1, 0), 5000.0)
    assert weights.sum() == pytest.approx(5000)
    table = draw_joint()

    def distance(own: np.ndarray) -> float:
        return float(np.mean([
            np.abs(np.bincount(rows[:, i] * SIZE_LIST[j] + rows[:, j], own, SIZE_LIST[i] * SIZE_LIST[j]) / own.sum()
                   - table.sum(axis=tuple(k for k in range(4) if k not in (i, j))).ravel()).sum()
            for i in range(4) for j in range(i + 1, 4)
        ]))  # fmt: skip

    assert distance(weights) < 0.6 * distance(np.ones(400))


def test_one_attribute_and_too_little_memory_for_pairs() -> None:
    whole = make_model(draw_joint())
    alone = LowOrder({"d": whole.ones["d"]}, {"d": whole.groups["d"]}, {}, whole.total)
    asked = learn(pair_targets(alone, MEMORY), "r", 100)
    rows = draw(asked, RowPart(1000, 1, 0), "r")
    assert np.bincount(rows[:, 0], minlength=6) / 1000 == pytest.approx(alone.ones["d"] / alone.total, abs=0.001)
    few = pair_targets(whole, 64 * 20)  # bytes: room for 20 cells
    assert 0 < few.layout.cells <= 20
    assert draw(learn(few, "r", 100), RowPart(50, 1, 0), "r").shape == (50, 4)


def test_rows_that_are_far_from_the_estimates_are_told_to_be(learnt: PairwiseModel) -> None:
    whole, names = make_model(draw_joint()), list(SIZES)

    def off_by(rows: np.ndarray) -> dict[str, float]:
        return distances_by_degree(count_sampled_sets(rows, SIZE_LIST), names, SIZE_LIST, whole.marginal)

    drawn = off_by(draw(learnt, RowPart(5000, 1, 0), "release"))
    rng = np.random.default_rng(0)
    shuffled = np.stack([rng.permutation(column) for column in draw(learnt, RowPart(5000, 1, 0), "release").T], axis=1)
    assert drawn["1"] == pytest.approx(off_by(shuffled)["1"])
    assert drawn["2"] < 0.1 * off_by(shuffled)["2"]
    assert drawn["3"] < off_by(shuffled)["3"]
