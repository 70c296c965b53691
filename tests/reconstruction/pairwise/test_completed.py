"""Completion of unmeasured pairs by a pairwise model, which is more accurate than a chain."""

from __future__ import annotations

import numpy as np
import pytest

from dpscale.reconstruction import pairwise as learning
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.pairwise import (
    CellDistribution,
    complete_pairs,
    learn,
    learning_steps,
    pair_targets,
    read_pairwise,
    write_pairwise,
)
from tests.reconstruction.pairwise.small import MEMORY, SIZES, make_model


def two_path_distribution() -> np.ndarray:
    """Return a distribution in which d depends on a through b and through c: no single chain describes it."""
    rng = np.random.default_rng(5)
    a = rng.dirichlet(np.ones(3))
    b, c = rng.dirichlet(np.full(4, 0.4), 3), rng.dirichlet(np.full(2, 0.4), 3)
    d = rng.dirichlet(np.full(6, 0.25), (4, 2))
    return np.einsum("a,ab,ac,bcd->abcd", a, b, c, d)


@pytest.fixture(scope="module")
def tables() -> tuple[LowOrder, LowOrder]:
    """All pairs of a distribution, and the same model without a measured pair (a, d)."""
    full = make_model(two_path_distribution())
    known = {names: table for names, table in full.tables.items() if names != ("a", "d")}
    return full, LowOrder(full.ones, full.groups, known, full.total, frozenset(known))


def test_completed_pair_is_nearer_than_independence_and_chains(tables: tuple[LowOrder, LowOrder]) -> None:
    full, partial = tables
    learnt = learn(pair_targets(partial, MEMORY), "release")
    done = complete_pairs(partial, learnt)
    truth = full.tables["a", "d"]
    off = np.abs(done.tables["a", "d"] - truth).sum()
    chains = [
        (full.tables["a", by] / full.coarse[by]) @ full.tables[by, "d"]
        for by in ("b", "c")
    ]  # fmt: skip
    assert off < 0.95 * min(np.abs(chain - truth).sum() for chain in chains)
    assert off < 0.6 * np.abs(np.outer(full.ones["a"], full.ones["d"]) / full.total - truth).sum()
    assert all(done.tables[names] is partial.tables[names] for names in partial.tables)
    assert done.tables["a", "d"].sum(axis=1) == pytest.approx(full.ones["a"], rel=1e-4)


def test_independent_pairs_are_completed_as_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chance departures of the drawn rows must be shrunk."""
    rng = np.random.default_rng(2)
    law = np.einsum("a,b,c,d->abcd", *(rng.dirichlet(np.full(size, 2.0)) for size in SIZES.values()))
    full = make_model(law, measured=[("a", "b")])
    bare = LowOrder(full.ones, full.groups, {("a", "b"): full.tables["a", "b"]}, full.total, full.measured)

    def completion_error() -> float:
        done = complete_pairs(bare, learn(pair_targets(bare, MEMORY), "release", 1000))
        return sum(np.abs(done.tables[names] - full.tables[names]).sum() for names in full.tables)

    ours = completion_error()
    monkeypatch.setattr(learning, "_shrunk_target", lambda pair_targets, one, other: (one + other) / 2)
    assert ours < 0.5 * completion_error()


def test_pairwise_model_round_trips_through_file(tables: tuple[LowOrder, LowOrder], tmp_path) -> None:
    _, partial = tables
    learnt = learn(pair_targets(partial, MEMORY), "release", 500)
    write_pairwise(tmp_path / "learnt.npz", learnt, CellDistribution(partial.groups, partial.ones), partial.total)
    back, cells, total = read_pairwise(tmp_path / "learnt.npz")
    assert (back.rows == learnt.rows).all()
    assert (back.theta == learnt.theta).all()
    assert (back.targets.shares == learnt.targets.shares).all()
    assert (total, dict(cells.groups)) == (partial.total, dict(partial.groups))


def test_rounding_differences_do_not_change_model(tables: tuple[LowOrder, LowOrder]) -> None:
    """Another machine may differ in the last bits of the tables."""
    _, partial = tables
    near = {names: table * (1 + 1e-15) for names, table in partial.tables.items()}
    other = LowOrder(partial.ones, partial.groups, near, partial.total, partial.measured)
    one, two = (learn(pair_targets(which, MEMORY), "release", 500) for which in (partial, other))
    assert (one.rows == two.rows).all()
    assert (one.targets.shares == two.targets.shares).all()


def test_learning_steps_count_measured_pairs(tables: tuple[LowOrder, LowOrder]) -> None:
    full, partial = tables
    assert learning_steps(pair_targets(partial, MEMORY), 100) < learning_steps(pair_targets(full, MEMORY), 100)
    assert learning_steps(pair_targets(full, MEMORY), 100) == 14 * 100 * 3 * (3 + 4 + 2 + 6)
