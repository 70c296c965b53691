"""Rows of towns in regions: groups of towns of several regions are told apart by the row's region."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from dpscale.domain.structural_zeros import Follows
from dpscale.privacy.streams import Chance
from dpscale.reconstruction.constraints import agreed
from dpscale.reconstruction.low_order import NoisyResidual, low_order
from dpscale.reconstruction.pairwise.learn import learn, read_learnt, write_learnt
from dpscale.reconstruction.pairwise.pairs import Spread, wanted
from dpscale.synthesis.cells import _Refined, spread
from dpscale.synthesis.draw import Part, draw
from dpscale.workload.residual import center
from dpscale.workload.residual.in_axis import Groups, coarsened, every_cell
from tests.reconstruction.pairwise.small import MEMORY

SIZES = {"town": 8, "region": 3, "x": 4}
REGION = Follows("town", "region", (0, 2, 1, 0, 2, 2, 1, 0))
GROUPS = {"town": Groups(8, (0, 3, 5)), "region": every_cell(3), "x": Groups(4, (0, 1, 3))}
TOTAL = 1e5


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(2)
    drawn = {name: rng.random(size) + 0.2 for name, size in SIZES.items()}
    ones = agreed({name: one * TOTAL / one.sum() for name, one in drawn.items()}, dict.fromkeys(SIZES, 1.0), (REGION,))
    law = rng.dirichlet(np.ones(4), 3)  # of x in a region
    truth = {("town", "x"): ones["town"][:, None] * law[list(REGION.of)],
             ("region", "x"): ones["region"][:, None] * law}  # fmt: skip
    ones["x"] = truth["region", "x"].sum(axis=0)
    told = {names: coarsened(table, [GROUPS[name] for name in names]) for names, table in truth.items()}
    noisy = {names: NoisyResidual(center(table, (0, 1)), 0.1) for names, table in told.items()}
    made = low_order(ones, GROUPS, noisy, list(combinations(SIZES, 2)), rules=(REGION,))
    assert made.marginal(("town", "x")) == pytest.approx(coarse(truth["town", "x"], made), rel=0.02, abs=20)
    return made


def coarse(table, made):
    """x's cells share within their groups."""
    inside = made.ones["x"] / made.coarse["x"][GROUPS["x"].labels]
    return coarsened(table, [every_cell(8), GROUPS["x"]])[:, GROUPS["x"].labels] * inside


def test_what_rows_are_held_to_is_what_is_answered(model):
    """Two ways to the same table: of three by its pairs, and estimates' marginals."""
    learnt = learn(wanted(model, MEMORY), "release", 4000)
    cells = Spread(model.groups, model.ones, model.rules)
    rows = draw(learnt, Part(1000, 1, 0), "release")
    for fine in (frozenset(), frozenset({1, 2})):
        own = _Refined(learnt.wanted, cells, rows, fine, 0)
        x = model.marginal(("x", "town")) / TOTAL
        held = x if fine else coarsened(x, [GROUPS["x"], every_cell(8)])
        assert own._shares(2) == pytest.approx(held, abs=2e-3)
        assert own._shares(1) == pytest.approx(model.marginal(("region", "town")) / TOTAL, abs=1e-9)


def test_rows_have_their_towns_regions_and_what_these_have_in_common_with_x(model, tmp_path):
    learnt = learn(wanted(model, MEMORY), "release", 4000)
    write_learnt(tmp_path / "learnt.npz", learnt, Spread(model.groups, model.ones, model.rules), TOTAL)
    learnt, cells, _ = read_learnt(tmp_path / "learnt.npz")
    assert cells.rules == (REGION,)
    groups = draw(learnt, Part(20_000, 1, 0), "release")
    off = {}
    for told in (cells, Spread(cells.groups, cells.ones)):
        rows = spread(learnt.wanted, told, groups, Chance("release", "cells", 0))
        found = np.bincount(rows[:, 0] * 4 + rows[:, 2], minlength=32).reshape(8, 4) / 20_000
        wrong = float((np.array(REGION.of)[rows[:, 0]] != rows[:, 1]).mean())
        off[bool(told.rules)] = wrong, np.abs(found - model.marginal(("town", "x")) / TOTAL).sum()
    assert off[True][0] < 0.01 < 0.2 < off[False][0]
    assert off[True][1] < 0.03 < 0.1 < off[False][1]
