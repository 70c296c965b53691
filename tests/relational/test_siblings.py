"""Sums over siblings by brute force; swaps of children bring them to their targets with unchanged degrees."""

from __future__ import annotations

import numpy as np
import pytest

from dpscale.privacy.streams import PublicStream
from dpscale.relational.assignment import STEP, PairTables, estimate_sums, sibling_sums, swap_children
from dpscale.relational.budget_shares import LinkProblem, plan_shares
from dpscale.relational.features import Side
from dpscale.relational.link_estimation import Sums, expected_links
from dpscale.relational.rounding import Cross

SIZES = (3, 2)


def make_families(seed: int, similarity: float = 0.8, parents: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of children, often those of their parent, and the parent of each child."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(parents), rng.integers(0, 6, parents))
    own = np.stack([rng.integers(0, size, parents) for size in SIZES], axis=1)[owner]
    other = np.stack([rng.integers(0, size, len(owner)) for size in SIZES], axis=1)
    return np.where(rng.random(len(owner))[:, None] < similarity, own, other), owner


def sums_by_pairs(rows: np.ndarray, owner: np.ndarray, tables: PairTables) -> np.ndarray:
    """Return the sums over every ordered pair of siblings: the oracle."""
    found = np.zeros(int(tables.starts[-1]))
    for parent in np.unique(owner):
        mine = np.flatnonzero(owner == parent)
        weight = (4096 // (len(mine) - 1)) if len(mine) > 1 else 0
        for x in mine:
            for y in mine:
                if x != y:
                    for t, (i, j) in enumerate(tables.pairs):
                        found[tables.starts[t] + rows[x, i] * tables.sizes[j] + rows[y, j]] += weight
    return found


def test_sibling_sums_equal_sums_over_pairs() -> None:
    rows, owner = make_families(0, parents=40)
    assert (sibling_sums(rows, owner, PairTables(SIZES)) == sums_by_pairs(rows, owner, PairTables(SIZES))).all()
    assert not sibling_sums(rows[:0], owner[:0], PairTables(SIZES)).any()


@pytest.mark.parametrize("children", [2, 3, 7])
def test_sibling_sensitivity_is_reached_and_never_exceeded(children: int) -> None:
    tables = PairTables(SIZES)
    worst = 0
    for seed in range(200):
        rows = np.stack([np.random.default_rng(seed).integers(0, size, children) for size in SIZES], axis=1)
        worst = max(worst, int((sibling_sums(rows, np.zeros(children, np.int64), tables) ** 2).sum()))
    same = np.zeros((children, 2), np.int64)
    worst = max(worst, int((sibling_sums(same, np.zeros(children, np.int64), tables) ** 2).sum()))
    limit = tables.squared(children, 1)
    assert 0.98 * limit <= worst <= limit


def make_setting() -> tuple[np.ndarray, np.ndarray, Side, Side, np.ndarray]:
    rows, owner = make_families(1)
    rng = np.random.default_rng(2)
    u, v = Side.made(np.stack([rng.integers(0, 2, 300)], axis=1), (2,)), Side.made(rows, SIZES)
    shares = plan_shares(LinkProblem(u, v, len(rows), "add/remove", 1.0, True))
    expected = expected_links(u, v, shares, Sums(None, None, None), len(rows), True)
    return rows, owner, u, v, expected


def test_swaps_reach_sibling_sums() -> None:
    rows, owner, u, v, expected = make_setting()
    tables, chance = PairTables(SIZES), PublicStream("release", "siblings")
    true = sibling_sums(rows, owner, tables) * STEP
    links = np.stack([np.random.default_rng(3).permutation(owner), np.arange(len(rows))], axis=1)
    after = swap_children(links, rows, u, v, expected, true, tables, chance)
    assert sorted(after[:, 1]) == list(range(len(rows)))
    assert (np.bincount(after[:, 0], minlength=300) == np.bincount(links[:, 0], minlength=300)).all()

    def sibling_error(some: np.ndarray) -> float:
        return float(np.abs(sibling_sums(rows[some[:, 1]], some[:, 0], tables) * STEP - true).sum())

    assert sibling_error(after) < 0.1 * sibling_error(links)
    cross = Cross.of(u, v)

    def cross_error(some: np.ndarray) -> float:
        whole = np.zeros(expected.shape)
        np.add.at(whole, (u.of[some[:, 0]], v.of[some[:, 1]]), 1.0)
        return float((cross.marginals(whole - expected) ** 2).sum())

    assert cross_error(after) < 1.5 * cross_error(links) + 100


def test_noise_alone_is_shrunk() -> None:
    rows, owner, *_ = make_setting()
    tables, rng = PairTables(SIZES), np.random.default_rng(5)
    now = sibling_sums(rows, rng.permutation(owner), tables) * STEP
    target = estimate_sums(now + rng.normal(0, 200, now.size), now, tables, 200.0**-2)
    assert np.abs(target - now).sum() < 0.2 * np.abs(now).sum()
    true = sibling_sums(rows, owner, tables) * STEP
    near = estimate_sums(true + rng.normal(0, 0.5, now.size), now, tables, 4.0)
    assert np.abs(near - true).sum() < 0.1 * np.abs(now - true).sum()
