"""Rounding of links to integers: unbiased, exact in total, and at least as accurate in marginals as plain rounding."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from dpscale.relational.features import Side
from dpscale.relational.rounding import round_cells, round_children, round_totals
from tests.relational.small import draw_links, make_side, make_stream

TIMES = 3000


def marginal_error(u: Side, v: Side, found: np.ndarray, want: np.ndarray) -> float:
    """Return the squared error over all pairs of attributes of one side with one attribute of the other, by plain
    sums.
    """
    error = 0.0
    for one, two, turned in ((u, v, False), (v, u, True)):
        off = (found - want).T if turned else found - want
        for pair in combinations(range(len(two.sizes)), 2):
            for single in range(len(one.sizes)):
                sums: dict[tuple[int, ...], float] = {}
                for (i, j), value in np.ndenumerate(off):
                    key = (one.profiles[i, single], *two.profiles[j, list(pair)])
                    sums[key] = sums.get(key, 0.0) + value
                error += sum(value**2 for value in sums.values())
    return error


def test_cells_are_rounded_up_with_their_fraction_as_probability() -> None:
    want = np.array([[0.1, 1.7, 0.0], [2.45, 0.05, 3.0], [0.5, 0.9, 0.3]])
    caps = np.full(want.shape, 4.0)
    found = np.stack([round_cells(want, caps, make_stream(i)) for i in range(TIMES)])
    assert (found.sum(axis=(1, 2)) == 9).all()
    assert ((found == np.floor(want)) | (found == np.floor(want) + 1)).all()
    spread = np.sqrt((want % 1) * (1 - want % 1) / TIMES)
    assert (np.abs(found.mean(axis=0) - want) <= 4 * spread + 1e-12).all()


@pytest.mark.parametrize("links", [3.0, 40.0, 200.0, 470.0, 500.0])
@pytest.mark.parametrize("seed", range(4))
def test_rounded_totals_respect_floors_bounds_and_total(links: float, seed: int) -> None:
    u, v = make_side(25, (3, 2), seed), make_side(20, (2, 3, 2), seed + 50)
    want, caps = draw_links(u, v, links, seed), np.multiply.outer(u.counts, v.counts)
    found = round_totals(want, u, v, caps, make_stream(seed))
    assert (found >= np.floor(want)).all()
    assert (found <= np.minimum(np.floor(want) + 1, caps)).all()
    assert found.sum() == links
    alone = round_cells(want, caps, make_stream(seed))
    assert marginal_error(u, v, found, want) <= marginal_error(u, v, alone, want) + 1e-9


def test_rounded_totals_have_smaller_marginal_error() -> None:
    u, v = make_side(60, (3, 4), 1), make_side(60, (2, 3, 2), 2)
    want, caps = draw_links(u, v, 300, 3), np.multiply.outer(u.counts, v.counts)
    found, alone = round_totals(want, u, v, caps, make_stream(0)), round_cells(want, caps, make_stream(0))
    assert marginal_error(u, v, found, want) < 0.5 * marginal_error(u, v, alone, want)


@pytest.mark.parametrize("most", [None, 2, 3, 10])
@pytest.mark.parametrize("seed", range(4))
def test_rounded_children_have_one_parent_within_bounds(most: int | None, seed: int) -> None:
    """60 children of 30 parents: 2 children for each are just enough."""
    u, v = make_side(30, (3, 2), seed), make_side(60, (2, 3), seed + 9)
    want = draw_links(u, v, 60, seed, 0.3)
    found = round_children(want, u, v, most, make_stream(seed))
    assert (found == np.rint(found)).all()
    assert found.min() >= 0
    assert found.sum(axis=0).tolist() == v.counts.tolist()
    if most is not None:
        assert (found.sum(axis=1) <= most * u.counts).all()


def test_children_beyond_all_bounds_have_no_parent() -> None:
    u, v = make_side(10, (3,), 1), make_side(25, (2, 2), 2)
    found = round_children(draw_links(u, v, 25, 3), u, v, 2, make_stream(4))
    assert found.sum() == 20
    assert (found.sum(axis=1) == 2 * u.counts).all()
    assert (found.sum(axis=0) <= v.counts).all()


def test_rounded_children_have_smaller_marginal_error() -> None:
    u, v = make_side(30, (3, 2), 7), make_side(200, (2, 3), 8)
    want = draw_links(u, v, 200, 9)
    want *= v.counts / want.sum(axis=0)
    found = round_children(want, u, v, None, make_stream(1))
    caps = np.full(len(want), np.inf)
    alone = np.stack([round_cells(column, caps, make_stream(i)) for i, column in enumerate(want.T)], 1)
    assert marginal_error(u, v, found, want) < 0.6 * marginal_error(u, v, alone, want)
