"""Synthetic rows under a functional dependency, for groups of towns in several regions."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from dpscale.domain.rules import FunctionalDependency
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.entropy import reconcile_one_ways
from dpscale.reconstruction.low_order import NoisyResidual, low_order
from dpscale.reconstruction.pairwise import CellDistribution, learn, pair_targets, read_pairwise, write_pairwise
from dpscale.synthesis.cells import _AttributeRefinement, refine_to_cells
from dpscale.synthesis.draw import RowPart, draw
from dpscale.workload.residual import Groups, center, coarsened, every_cell
from tests.reconstruction.pairwise.small import MEMORY

SIZES = {"town": 8, "region": 3, "x": 4}
REGION = FunctionalDependency("town", "region", (0, 2, 1, 0, 2, 2, 1, 0))
GROUPS = {"town": Groups(8, (0, 3, 5)), "region": every_cell(3), "x": Groups(4, (0, 1, 3))}
TOTAL = 1e5


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(2)
    drawn = {name: rng.random(size) + 0.2 for name, size in SIZES.items()}
    ones = reconcile_one_ways(
        {name: one * TOTAL / one.sum() for name, one in drawn.items()}, dict.fromkeys(SIZES, 1.0), (REGION,)
    )
    law = rng.dirichlet(np.ones(4), 3)  # of x in a region
    truth = {("town", "x"): ones["town"][:, None] * law[list(REGION.of)],
             ("region", "x"): ones["region"][:, None] * law}  # fmt: skip
    ones["x"] = truth["region", "x"].sum(axis=0)
    grouped = {names: coarsened(table, [GROUPS[name] for name in names]) for names, table in truth.items()}
    noisy = {names: NoisyResidual(center(table, (0, 1)), 0.1) for names, table in grouped.items()}
    fitted = low_order(ones, GROUPS, noisy, list(combinations(SIZES, 2)), rules=(REGION,))
    assert fitted.marginal(("town", "x")) == pytest.approx(spread_groups(truth["town", "x"], fitted), rel=0.02, abs=20)
    return fitted


def spread_groups(table, fitted):
    """Return a table over groups of x, with x's cells in proportion within their groups."""
    inside = fitted.ones["x"] / fitted.coarse["x"][GROUPS["x"].labels]
    return coarsened(table, [every_cell(8), GROUPS["x"]])[:, GROUPS["x"].labels] * inside


def test_refinement_shares_equal_marginals(model):
    """Two computations of one table: a triple from its pairs, and the marginals of the estimates."""
    learnt = learn(pair_targets(model, MEMORY), "release", 4000)
    cells = CellDistribution(model.groups, model.ones, model.rules)
    rows = draw(learnt, RowPart(1000, 1, 0), "release")
    for fine in (frozenset(), frozenset({1, 2})):
        own = _AttributeRefinement(learnt.targets, cells, rows, rows, fine, 0)
        x = model.marginal(("x", "town")) / TOTAL
        expected = x if fine else coarsened(x, [GROUPS["x"], every_cell(8)])
        assert own._shares(2) == pytest.approx(expected, abs=2e-3)
        assert own._shares(1) == pytest.approx(model.marginal(("region", "town")) / TOTAL, abs=1e-9)


def test_rows_obey_dependency_and_share_effects_of_region(model, tmp_path):
    learnt = learn(pair_targets(model, MEMORY), "release", 4000)
    write_pairwise(tmp_path / "learnt.npz", learnt, CellDistribution(model.groups, model.ones, model.rules), TOTAL)
    learnt, cells, _ = read_pairwise(tmp_path / "learnt.npz")
    assert cells.rules == (REGION,)
    groups = draw(learnt, RowPart(20_000, 1, 0), "release")
    off = {}
    for distribution in (cells, CellDistribution(cells.groups, cells.ones)):
        rows = refine_to_cells(learnt.targets, distribution, groups, PublicStream("release", "cells", 0))
        found = np.bincount(rows[:, 0] * 4 + rows[:, 2], minlength=32).reshape(8, 4) / 20_000
        impossible = float((np.array(REGION.of)[rows[:, 0]] != rows[:, 1]).mean())
        off[bool(distribution.rules)] = impossible, np.abs(found - model.marginal(("town", "x")) / TOTAL).sum()
    assert off[True][0] < 0.01 < 0.2 < off[False][0]
    assert off[True][1] < 0.03 < 0.1 < off[False][1]
