"""Rows of strongly dependent attributes: shares of modes, released 1-way counts, and a warning on failure."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import tomli_w

import dpscale as dp
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction import pairwise as learning
from dpscale.reconstruction.pairwise import pair_targets
from dpscale.runs import estimates
from dpscale.runs.stages.synthesize import RowsWarning
from dpscale.synthesis.draw import spanning_tree, tree_start
from dpscale.synthesis.one_way_rounding import apportion, balance_rows
from dpscale.synthesis.quality import expected_distance
from tests.reconstruction.pairwise.small import MEMORY, draw_joint, make_model
from tests.selection import mostly_slow

RECORDS = 20_000


def make_equal_columns() -> pd.DataFrame:
    column = (np.random.default_rng(5).random(RECORDS) < 0.3).astype(int)
    return pd.DataFrame({f"x{i}": column for i in range(8)})


def make_skipped_block() -> pd.DataFrame:
    """Return eight questions of four answers that 30 % of the records skip together, and a dependent attribute."""
    rng = np.random.default_rng(5)
    skipped = rng.random(RECORDS) < 0.3
    common = 1 + rng.integers(0, 2, (RECORDS, 1))
    answers = np.where(rng.random((RECORDS, 8)) < 0.6, common, rng.integers(1, 5, (RECORDS, 8)))
    answers[skipped] = 0
    return pd.DataFrame({f"q{i}": answers[:, i] for i in range(8)} | {"sex": rng.integers(0, 2, RECORDS) | skipped})


def run_release(folder, frame, epsilon, mechanism="aim-grem"):
    sizes = {name: int(frame[name].max()) + 1 for name in frame}
    domain = {"attributes": {name: {"kind": "coded", "size": size} for name, size in sizes.items()}}
    (folder / "domain.toml").write_text(tomli_w.dumps(domain))
    frame.to_parquet(folder / "data.parquet")
    job = {"data": {"path": str(folder / "data.parquet"), "domain": str(folder / "domain.toml")},
           "privacy": {"epsilon": epsilon, "delta": 1e-9, "dataset": "linked", "ledger": str(folder / "ledger.sqlite")},
           "workload": [{"family": "marginal", "degree": 3}], "mechanism": {"name": mechanism},
           "engine": {"scheduler": "synchronous", "seed": 1}, "synthesize": {"rows": RECORDS}}  # fmt: skip
    return dp.run(job, folder / "run")


def relative_distance(release, rows, names):
    """Return the L1 distance between rows and the released estimates, relative to the number of rows."""
    estimates = release.marginal(names)
    counts = np.zeros(estimates.shape)
    np.add.at(counts, tuple(rows[name].to_numpy() for name in names), 1)
    return float(np.abs(counts / len(rows) - estimates / estimates.sum()).sum())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("frame", [make_equal_columns, make_skipped_block])
@pytest.mark.parametrize("epsilon", mostly_slow([1.0, 10.0], {1.0}))
def test_rows_of_dependent_attributes_are_near_estimates(tmp_path, frame, epsilon, recwarn):
    release = run_release(tmp_path, frame(), epsilon)
    rows = release.synthetic().compute()
    threes = list(combinations(release.domain.names, 3))
    assert np.mean([relative_distance(release, rows, names) for names in threes]) < 0.02
    assert max(relative_distance(release, rows, (name,)) for name in release.domain.names) < 0.01
    assert not [one for one in recwarn if issubclass(one.category, RowsWarning)]


def test_independent_start_is_warned_of(tmp_path, monkeypatch):
    """Planted fault: a start that single-site sampling cannot leave."""
    monkeypatch.setattr(estimates, "tree_start", learning.independent_start)
    monkeypatch.setattr(
        "dpscale.synthesis.draw.balance_rows",
        lambda targets, rows, times, chance: rows[np.repeat(np.arange(len(rows)), times)],
    )
    monkeypatch.setattr("dpscale.synthesis.draw.match_one_ways", lambda targets, cells, rows, counts: rows)
    with pytest.warns(RowsWarning, match="from the released estimates over"):
        release = run_release(tmp_path, make_equal_columns(), 10.0)
    index = json.loads((tmp_path / "run" / "synthetic" / "_rows.json").read_text())
    assert index["distances"]["3"] > 0.08  # 0.136 with a standard deviation of 0.008
    assert index["warning"] in (tmp_path / "run" / "report.html").read_text()
    assert len(release.synthetic()) == RECORDS


def test_tree_has_largest_mutual_information():
    """The oracle is every spanning tree of four attributes."""
    targets, table = pair_targets(make_model(draw_joint()), MEMORY), draw_joint()

    def information(i, j):
        pair = table.sum(axis=tuple(k for k in range(4) if k not in (i, j)))
        alone = np.outer(pair.sum(axis=1), pair.sum(axis=0))
        return float((pair * np.log(np.maximum(pair, 1e-300) / alone)).sum())

    def is_spanning(edges):
        groups = [{k} for k in range(4)]
        for i, j in edges:
            one, other = (next(g for g in groups if k in g) for k in (i, j))
            if one is other:
                return False
            groups = [g for g in groups if g not in (one, other)] + [one | other]
        return len(groups) == 1

    trees = [edges for edges in combinations(combinations(range(4), 2), 3) if is_spanning(edges)]
    best = max(trees, key=lambda edges: sum(information(*edge) for edge in edges))
    assert len(trees) == 16
    assert set(spanning_tree(targets)) == set(best)


def test_independent_attributes_have_no_edge():
    one = np.random.default_rng(1).dirichlet(np.ones(12)).reshape(3, 4)
    table = np.multiply.outer(one, np.multiply.outer([0.25, 0.75], np.full(6, 1 / 6)))
    assert spanning_tree(pair_targets(make_model(table), MEMORY)) == [(0, 1)]


def test_tree_start_has_one_ways_and_tree_pairs():
    targets = pair_targets(make_model(draw_joint()), MEMORY)
    rows, theta = tree_start(targets, 20_000, PublicStream("r", "start"))
    layout = targets.layout
    for i, size in enumerate(layout.sizes):
        assert np.bincount(rows[:, i], minlength=size) / 20_000 == pytest.approx(layout.one(targets.ones, i), abs=0.006)
    for i, j in layout.pairs:
        counts = np.zeros((layout.sizes[i], layout.sizes[j]))
        np.add.at(counts, (rows[:, i], rows[:, j]), 1)
        if (i, j) in spanning_tree(targets):
            assert np.abs(counts / 20_000 - layout.of(targets.shares, i, j)).sum() < 0.02
            assert layout.of(theta, i, j).any()
        else:
            assert not layout.of(theta, i, j).any()


def test_balanced_rows_have_released_shares_of_modes():
    """Two modes have wrong proportions, which a change of single values cannot correct."""
    targets = pair_targets(make_model(draw_joint()), MEMORY)
    rng = np.random.default_rng(0)
    rows = np.stack([rng.choice(size, 5000, p=np.roll(targets.layout.one(targets.ones, i), 1)) for i, size
                     in enumerate(targets.layout.sizes)], axis=1).astype(np.int32)  # fmt: skip
    found = balance_rows(targets, rows, np.ones(len(rows), np.int64), PublicStream("r", "balance"))
    assert found.shape == rows.shape
    assert {tuple(row) for row in found} <= {tuple(row) for row in rows}
    for i, size in enumerate(targets.layout.sizes):
        share = np.bincount(found[:, i], minlength=size) / 5000
        assert np.abs(share - targets.layout.one(targets.ones, i)).sum() < 0.02


def test_apportioned_numbers_sum_and_are_rounded():
    rng = np.random.default_rng(0)
    for count in (1, 7, 1000):
        shares = rng.dirichlet(np.ones(9))
        found = apportion(shares, count)
        assert found.sum() == count
        assert (np.abs(found - shares * count) < 1).all()


def test_expected_distance_equals_simulation():
    rng = np.random.default_rng(0)
    for shares in (np.full(10, 0.1), rng.dirichlet(np.full(200, 0.1))):
        draws = rng.multinomial(500, shares, 400) / 500
        simulated = np.abs(draws - shares).sum(axis=1).mean() / 2
        assert expected_distance(shares, 500) == pytest.approx(simulated, rel=0.1)
