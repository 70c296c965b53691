"""Links between rows: exact degrees, distinct pairs, and the given number of links for every pair of profiles."""

from __future__ import annotations

import numpy as np
import pytest

from dpscale.relational.assignment import assign_links
from dpscale.relational.degrees import children, degrees, distribution, limit_degrees, limit_links, poisson_degrees
from dpscale.relational.features import Side
from dpscale.relational.rounding import round_children, round_totals
from tests.relational.small import draw_links, make_side, make_stream


def degrees_by_row(side: Side, found: list[np.ndarray]) -> np.ndarray:
    """Return the degrees (rows,) from degrees by profile."""
    all_ = np.zeros(side.rows, np.int64)
    for profile, own in enumerate(found):
        all_[side.of == profile] = own
    return all_


def count_profile_links(pairs: np.ndarray, u: Side, v: Side) -> np.ndarray:
    found = np.zeros((len(u.counts), len(v.counts)))
    for a, b in pairs:
        found[u.of[a], v.of[b]] += 1
    return found


@pytest.mark.parametrize("most", [1, 3, 10])
@pytest.mark.parametrize("full", [0.0, 0.1, 0.6, 1.0])
def test_degrees_sum_to_profile_totals_within_bounds(most: int, full: float) -> None:
    one = make_side(40, (3, 2), 1)
    totals = np.floor(full * most * one.counts)
    law = np.array([0.7] + [0.3 / most] * most)
    found = degrees(totals, one, law, make_stream(1))
    assert [own.sum() for own in found] == totals.tolist()
    assert [len(own) for own in found] == one.counts.tolist()
    assert all(own.min() >= 0 and own.max() <= most for own in found)


def test_degrees_follow_their_distribution() -> None:
    """The total of the profile is the mean of the distribution, so that counts of rows follow it."""
    one, law = Side.made(np.zeros((1000, 1), int), (2,)), np.array([0.5, 0.1, 0.1, 0.0, 0.3])
    found = degrees(np.array([1000 * law @ np.arange(5)]), one, law, make_stream(2))[0]
    assert np.bincount(found, minlength=5) == pytest.approx(1000 * law, abs=6)


def test_degrees_follow_exponential_tilt_for_other_means() -> None:
    """The oracle is the exponential tilt with the mean of the profile, by bisection."""
    one, law = Side.made(np.zeros((2000, 1), int), (2,)), np.array([0.5, 0.1, 0.1, 0.1, 0.2])
    found = degrees(np.array([4000.0]), one, law, make_stream(2))[0]
    low, high = -9.0, 9.0
    for _ in range(100):
        tilted = law * np.exp((low + high) / 2 * np.arange(5))
        tilted /= tilted.sum()
        low, high = ((low + high) / 2, high) if tilted @ np.arange(5) < 2 else (low, (low + high) / 2)
    assert np.bincount(found, minlength=5) == pytest.approx(2000 * tilted, abs=25)


@pytest.mark.parametrize("law", [poisson_degrees(500, 100, 80), np.array([0.4, 0.0, 0.3, 0.2, 0.1] + [0.0] * 76)])
def test_larger_totals_are_spread_over_rows(law: np.ndarray) -> None:
    """Twice the usual number of links gives more links to all rows rather than very many to one."""
    one = Side.made(np.zeros((100, 1), int), (2,))
    total = round(200 * law @ np.arange(81))
    found = degrees(np.array([float(total)]), one, law, make_stream(5))[0]
    assert found.sum() == total
    assert found.max() <= 30
    assert np.median(found) >= 0.7 * total / 100


def test_noisy_counts_give_degree_distribution() -> None:
    assert distribution(np.array([50.0, 80.0]), 100) == pytest.approx([0.5, 0.3, 0.2])
    noisy = distribution(np.array([-7.0, 90.0, 60.0, 130.0]), 100)
    assert noisy == pytest.approx([0, 0.75, 0, 0.25, 0])
    assert poisson_degrees(20, 10, 30) @ np.arange(31) == pytest.approx(2)


def test_limit_links_removes_excess_links_only() -> None:
    u, v = make_side(20, (3,), 1), make_side(10, (2, 2), 2)
    links = np.multiply.outer(u.counts, v.counts)
    found = limit_links(links, u, v, 4, None, make_stream(0))
    assert found.sum(axis=1).tolist() == (4 * u.counts).tolist()
    assert (found <= links).all()
    assert (limit_links(links, u, v, 10, 20, make_stream(0)) == links).all()
    both = limit_links(links, u, v, 4, 5, make_stream(0))
    assert (both.sum(axis=1) <= 4 * u.counts).all()
    assert (both.sum(axis=0) <= 5 * v.counts).all()


def test_limit_degrees_removes_excess_links_only() -> None:
    pairs = np.array([(i, j) for i in range(6) for j in range(9) if (i + j) % 3])
    found = limit_degrees(pairs, (4, None), make_stream(0))
    assert np.bincount(found[:, 0]).tolist() == [4] * 6
    assert {*map(tuple, found)} <= {*map(tuple, pairs)}
    both = limit_degrees(pairs, (4, 2), make_stream(1))
    assert np.bincount(both[:, 0]).max() <= 4
    assert np.bincount(both[:, 1]).max() <= 2
    assert (limit_degrees(pairs, (6, None), make_stream(2)) == pairs).all()


def test_children_have_one_parent_or_none() -> None:
    one = make_side(30, (3,), 3)
    assert all(own.all() for own in children(one.counts, one, make_stream(0)))
    assert [own.sum() for own in children(one.counts - 1, one, make_stream(0))] == (one.counts - 1).tolist()


@pytest.mark.parametrize("links", [50, 400, 1200])
@pytest.mark.parametrize("seed", range(3))
def test_assigned_links_have_given_counts_and_degrees(links: int, seed: int) -> None:
    u, v = make_side(80, (3, 2), seed), make_side(60, (2, 3, 2), seed + 7)
    caps = np.multiply.outer(u.counts, v.counts)
    whole = round_totals(np.minimum(draw_links(u, v, links, seed, 5.0), caps), u, v, caps, make_stream(seed))
    laws = poisson_degrees(links, u.rows, 60), poisson_degrees(links, v.rows, 80)
    one, two = (
        degrees(whole.sum(axis=1 - i), s, law, make_stream(9))
        for i, (s, law) in enumerate(zip((u, v), laws, strict=True))
    )
    pairs = assign_links(whole, u, v, one, two, make_stream(seed))
    assert len(np.unique(pairs, axis=0)) == len(pairs) == links
    assert (count_profile_links(pairs, u, v) == whole).all()
    assert np.bincount(pairs[:, 0], minlength=u.rows).tolist() == degrees_by_row(u, one).tolist()
    assert np.bincount(pairs[:, 1], minlength=v.rows).tolist() == degrees_by_row(v, two).tolist()


@pytest.mark.parametrize("bound", [2, 3, None])
def test_children_are_assigned_within_parent_bounds(bound: int | None) -> None:
    """25 children of 10 parents: with places for 20, five children have no parent."""
    u, v = make_side(10, (3,), 1), make_side(25, (2, 2), 2)
    whole = round_children(draw_links(u, v, 25, 3), u, v, bound, make_stream(4))
    most = bound or 25
    one = degrees(whole.sum(axis=1), u, poisson_degrees(25, 10, most), make_stream(5))
    pairs = assign_links(whole, u, v, one, children(whole.sum(axis=0), v, make_stream(6)), make_stream(7))
    assert len(pairs) == min(25, 10 * most)
    assert len(np.unique(pairs[:, 1])) == len(pairs)
    assert np.bincount(pairs[:, 0]).max() <= most


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 2), (3, 4), (5, 5), (8, 6)])
@pytest.mark.parametrize("missing", [0, 1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_nearly_complete_graphs_are_found(rows: int, columns: int, missing: int, seed: int) -> None:
    """All pairs except a few: the degrees are nearly even, so that a graph exists."""
    if missing >= min(rows, columns):
        return
    u, v = (Side.made(np.zeros((n, 1), int), (2,)) for n in (rows, columns))
    one, two = (np.full(n, m) - (np.arange(n) < missing).astype(int) for n, m in ((rows, columns), (columns, rows)))
    whole = np.array([[float(rows * columns - missing)]])
    pairs = assign_links(whole, u, v, [one], [two], make_stream(seed))
    assert len(np.unique(pairs, axis=0)) == len(pairs) == rows * columns - missing
    assert np.bincount(pairs[:, 0], minlength=rows).tolist() == one.tolist()


def test_impossible_links_are_left_out() -> None:
    """Three links of two rows with one row, which have two pairs."""
    u, v = (Side.made(np.zeros((n, 1), int), (2,)) for n in (2, 1))
    pairs = assign_links(np.array([[3.0]]), u, v, [np.array([2, 1])], [np.array([3])], make_stream(0))
    assert sorted(map(tuple, pairs)) == [(0, 0), (1, 0)]


def test_links_within_one_table_are_ordered_pairs() -> None:
    """Both roles of a table are separate sides: (a, b) and (b, a) are two links."""
    u = make_side(30, (3, 2), 5)
    whole = round_totals(draw_links(u, u, 300, 6, 5.0), u, u, np.multiply.outer(u.counts, u.counts), make_stream(1))
    one, two = (degrees(whole.sum(axis=1 - i), u, poisson_degrees(300, 30, 30), make_stream(i)) for i in (0, 1))
    pairs = assign_links(whole, u, u, one, two, make_stream(3))
    assert len(np.unique(pairs, axis=0)) == len(pairs) == 300
    assert (count_profile_links(pairs, u, u) == whole).all()
