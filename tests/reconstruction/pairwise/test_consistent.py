"""Pairs that contradict each other move to pairs that one table has; pairs that agree stay."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.pairwise import consistent_pairs, learn, pair_targets
from dpscale.workload.residual import every_cell
from tests.reconstruction.pairwise.small import MEMORY, draw_joint, make_model

TOTAL = 10_000.0


def make_triangle(correlation: float) -> LowOrder:
    """Return three fair bits of which every pair has one correlation."""
    even, odd = TOTAL * (1 + correlation) / 4, TOTAL * (1 - correlation) / 4
    tables = {pair: np.array([[even, odd], [odd, even]]) for pair in combinations("abc", 2)}
    ones, groups = {name: np.full(2, TOTAL / 2) for name in "abc"}, {name: every_cell(2) for name in "abc"}
    return LowOrder(ones, groups, tables, TOTAL, frozenset(tables))


def moved(model: LowOrder) -> LowOrder:
    return consistent_pairs(model, learn(pair_targets(model, MEMORY), "release"), "release")


def correlation(table: np.ndarray) -> float:
    return float((table[0, 0] + table[1, 1] - table[0, 1] - table[1, 0]) / table.sum())


@pytest.mark.parametrize("stated", [-0.5, -0.9])
def test_contradicting_pairs_move_to_the_nearest_of_one_table(stated: float) -> None:
    """Of three bits at least one pair is equal in every record, so the correlations of a table sum to −1 or more."""
    found = moved(make_triangle(stated))
    for table in found.tables.values():
        assert correlation(table) == pytest.approx(-1 / 3, abs=0.05)
        assert table.sum(axis=0) == pytest.approx(np.full(2, TOTAL / 2), rel=1e-6)


@pytest.mark.parametrize("stated", [-0.3, 0.0, 0.9])
def test_pairs_of_one_table_stay(stated: float) -> None:
    for table in moved(make_triangle(stated)).tables.values():
        assert correlation(table) == pytest.approx(stated, abs=0.01)


def test_error_of_agreeing_pairs_does_not_grow() -> None:
    model = make_model(draw_joint())
    for names, table in moved(model).tables.items():
        assert np.abs(table - model.tables[names]).sum() / model.total < 0.01


def test_larger_tables_are_fitted_to_the_moved_pairs() -> None:
    model = make_triangle(-0.9)
    tables = {**model.tables, ("a", "b", "c"): np.full((2, 2, 2), TOTAL / 8)}
    found = moved(replace(model, tables=tables, measured=frozenset(tables)))
    whole = found.tables["a", "b", "c"]
    for axis, pair in ((2, ("a", "b")), (1, ("a", "c")), (0, ("b", "c"))):
        assert correlation(whole.sum(axis=axis)) == pytest.approx(correlation(found.tables[pair]), abs=0.03)


def test_pairs_that_were_not_measured_stay() -> None:
    model = replace(make_triangle(-0.9), measured=frozenset([("a", "b")]))
    found = moved(model)
    assert (found.tables["b", "c"] == model.tables["b", "c"]).all()
    assert (found.tables["a", "c"] == model.tables["a", "c"]).all()
