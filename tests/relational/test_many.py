"""Many profiles: a calibrated sample, groups with the links of all pairs, and degrees that match counts."""

from __future__ import annotations

import numpy as np
import pytest

from dpscale.privacy.streams import PublicStream
from dpscale.relational import link_estimation
from dpscale.relational.budget_shares import Expected, LinkProblem, Shares, plan_shares
from dpscale.relational.degrees import GRID, sample_degrees, sample_uniform_degrees, thresholds
from dpscale.relational.features import Side
from dpscale.relational.link_estimation import Sums, expected_links, grouped_links, row_degrees

U_SIZES, V_SIZES, LINKS = (4, 3, 5), (6, 2), 20_000.0


def make_sides(rows: int = 3000) -> tuple[Side, Side]:
    rng = np.random.default_rng(0)
    tables = (np.stack([rng.integers(0, size, rows) for size in sizes], axis=1) for sizes in (U_SIZES, V_SIZES))
    u, v = (Side.made(codes, sizes) for codes, sizes in zip(tables, (U_SIZES, V_SIZES), strict=True))
    return u, v


def make_signal(u: Side, v: Side, known: bool) -> tuple[Shares, Sums]:
    """Return exact sums of links with preferred values."""
    shares = plan_shares(LinkProblem(u, v, LINKS, "add/remove", 1.0, known))
    shares = Shares(shares.u, shares.v, (1.0, 1.0, 1.0), 0.0)
    rng = np.random.default_rng(1)
    weights = (
        np.multiply.outer(u.counts, v.counts)
        * np.exp(rng.normal(0, 0.7, (4, 6)))[np.ix_(u.profiles[:, 0], v.profiles[:, 0])]
    )
    weights *= np.exp(0.5 * u.profiles[:, 1])[:, None]
    if known:
        weights *= v.counts / weights.sum(axis=0)
    weights *= LINKS / weights.sum()
    one, two = Expected.random(u, shares.u, LINKS).values, Expected.random(v, shares.v, LINKS).values
    return shares, Sums(one.T @ weights.sum(axis=1), two.T @ weights.sum(axis=0), one.T @ weights @ two)


def test_sample_has_means_of_all_rows() -> None:
    u, _ = make_sides()
    side = Expected.random(u, plan_shares(LinkProblem(u, u, LINKS, "add/remove", 1.0)).u, LINKS)
    values, weights = link_estimation.sample(side, PublicStream("r", "sample"))
    assert weights.sum() == pytest.approx(1)
    assert values.T @ weights == pytest.approx(side.sums / LINKS, abs=1e-4)


@pytest.mark.parametrize("known", [False, True])
def test_grouped_links_equal_links_of_all_pairs(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    u, v = make_sides()
    shares, sums = make_signal(u, v, known)
    monkeypatch.setattr(link_estimation, "ROWS", 3000)
    whole = expected_links(u, v, shares, sums, LINKS, known)
    found = grouped_links(u, v, shares, sums, LINKS, known, PublicStream("r", "groups"))
    of_u, of_v = (np.array([side.of[np.flatnonzero(full.of == k)[0]] for k in range(len(full.profiles))])
                  for side, full in ((found.u, u), (found.v, v)))  # fmt: skip
    by_group = np.zeros(found.links.shape)
    np.add.at(by_group, np.ix_(of_u, of_v), whole)
    assert found.links.sum() == pytest.approx(LINKS)
    assert np.abs(found.links - by_group).sum() < 0.02 * LINKS
    assert np.abs(np.bincount(u.of, found.u_ends) - whole.sum(axis=1)).sum() < 0.02 * LINKS
    assert np.abs(np.bincount(v.of, found.v_ends) - whole.sum(axis=0)).sum() < 0.02 * LINKS


def test_are_many_depends_on_number_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    u, v = make_sides()
    assert not link_estimation.are_many(u, v)
    monkeypatch.setattr(link_estimation, "MOST_CELLS", 100)
    assert link_estimation.are_many(u, v)


def make_groups(rows: int = 2000) -> tuple[Side, np.ndarray]:
    """Return rows in four groups, and the expected degree of each row."""
    rng = np.random.default_rng(3)
    side = Side.made(rng.integers(0, 4, (rows, 1)), (4,))
    return side, rng.gamma(2.0, 3.0, rows) + 0.1


def group_totals(side: Side, each: np.ndarray) -> np.ndarray:
    return np.round(np.bincount(side.of, each))


def test_uniform_degrees_meet_totals_and_expectations() -> None:
    side, each = make_groups()
    totals = group_totals(side, each)
    drawn = [np.concatenate(sample_uniform_degrees(each, side, totals, PublicStream("r", str(n)))) for n in range(40)]
    rows = np.argsort(side.of, kind="stable")
    assert [
        int(part.sum()) for part in sample_uniform_degrees(each, side, totals, PublicStream("r", "x"))
    ] == totals.astype(int).tolist()
    assert np.abs(np.mean(drawn, axis=0) - each[rows]).mean() < 0.6


def test_sampled_degrees_have_counted_spread_and_expected_sums() -> None:
    """True degrees are expectations times a random factor; the sampler sees only their counts on the grid."""
    side, each = make_groups(20_000)
    true = np.random.default_rng(4).poisson(each * np.random.default_rng(5).gamma(1.0, 1.0, len(each)))
    counts = np.array([(true <= k).sum() for k in GRID], float)
    found = sample_degrees(counts, 1.0, each, side, group_totals(side, each), PublicStream("r", "dealt"))
    degrees = np.concatenate(found)
    assert [int(part.sum()) for part in found] == group_totals(side, each).astype(int).tolist()
    for share in (0.5, 0.9, 0.99):
        assert np.quantile(degrees, share) == pytest.approx(np.quantile(true, share), rel=0.35, abs=1)
    rows = np.argsort(side.of, kind="stable")
    high = each[rows] > np.median(each)
    assert degrees[high].sum() == pytest.approx(each[rows][high].sum(), rel=0.03)


def test_noisy_counts_give_no_huge_degree() -> None:
    side, each = make_groups()
    counts = np.minimum(np.cumsum(np.full(len(GRID), 300.0)), side.rows) - 20.0
    degrees = np.concatenate(
        sample_degrees(counts, 20.0, each, side, group_totals(side, each), PublicStream("r", "noise"))
    )
    assert degrees.max() < 1000


def test_bounded_degrees_meet_group_totals() -> None:
    side, each = make_groups()
    each = np.minimum(each, 8)
    law = np.array([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    found = row_degrees(each, law, side, group_totals(side, each), PublicStream("r", "bounded"))
    assert [int(part.sum()) for part in found] == group_totals(side, each).astype(int).tolist()
    assert max(int(part.max()) for part in found) <= 9
    assert thresholds(3).tolist() == [0, 1, 2]
