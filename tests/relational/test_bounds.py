"""Sensitivities, by brute force over all tiny databases and all their neighbours, of what the product sums."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from dpscale.multitable.link_data import ExactLinks
from dpscale.privacy.protection import ADD_REMOVE, REPLACE
from dpscale.relational.budget_shares import degrees_squared
from dpscale.relational.features import BITS, Features, squared_distance

U_SIZES, V_SIZES = (2, 3), (2,)
U_PROFILES, V_PROFILES = list(product(*map(range, U_SIZES))), list(product(*map(range, V_SIZES)))
USERS, MOVIES = 2, 3
CLIPS = [(None, None), (0.7, None), (None, 0.6), (0.8, 0.5)]
PRECISIONS = [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (3, 1, 5), (1, 7, 2)]


def features(sizes: tuple[int, ...], clip: float | None, seed: int) -> Features:
    """Public shares that are not even."""
    rng = np.random.default_rng(seed)
    return Features(sizes, tuple(rng.dirichlet(np.ones(size)) for size in sizes), clip)


def links_of(row: int, ends: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(row, end) for end in ends]


def subsets(most: int) -> list[tuple[int, ...]]:
    """Of the movies, at most so many."""
    return [tuple(np.flatnonzero(bits)) for bits in product((0, 1), repeat=MOVIES) if sum(bits) <= most]


def exact(users: list, movies: list, links: list) -> ExactLinks:
    pairs = np.array(links, np.int64).reshape(-1, 2)
    return ExactLinks(pairs, np.array(users, np.int32).reshape(-1, len(U_SIZES)), np.array(movies, np.int32))


def moved_by_a_user(u: Features, v: Features, most: int, replaced: bool):
    """Per sum, |Δ|² of every neighbour that differs in one user: all old and new profiles, all sets of links.

    What other users' links add is the same before and after, so it is left out.
    """
    movies = [V_PROFILES[i % len(V_PROFILES)] for i in range(MOVIES)]
    sums = {}
    for profile, ends in product(U_PROFILES, subsets(most)):
        found = exact([profile], movies, links_of(0, ends)).sums(u, v)
        sums[profile, ends] = np.concatenate([np.ravel(one) for one in found]), [one.size for one in found]
    values = np.stack([one for one, _ in sums.values()]).astype(float)
    sizes = next(iter(sums.values()))[1]
    values /= 2.0**BITS
    values[:, sum(sizes[:2]) :] /= 2.0**BITS
    other = values if replaced else np.zeros((1, values.shape[1]))
    parts = np.split(values, np.cumsum(sizes)[:-1], axis=1), np.split(other, np.cumsum(sizes)[:-1], axis=1)
    return [((a[:, None] - b[None]) ** 2).sum(axis=2).ravel() for a, b in zip(*parts, strict=True)]


def bounds_of(u: Features, v: Features):
    return ((Fraction(u.squared, 4**BITS), Fraction(u.least, 4**BITS)),
            (Fraction(v.squared, 4**BITS), Fraction(v.least, 4**BITS)))  # fmt: skip


@pytest.mark.parametrize("clips", CLIPS)
@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_neighbour_moves_the_sums_further(clips, relation: str, most: int) -> None:
    u, v = features(U_SIZES, clips[0], 1), features(V_SIZES, clips[1], 2)
    moves = moved_by_a_user(u, v, most, relation == REPLACE)
    for precisions in PRECISIONS:
        claimed = most**2 * squared_distance(relation, *bounds_of(u, v), [Fraction(one) for one in precisions])
        true = sum(p * move for p, move in zip(precisions, moves, strict=True)).max()
        assert true <= float(claimed) * (1 + 1e-12)


def test_the_bound_is_met_where_features_are_centred_uniformly() -> None:
    """One link: some neighbour moves as far as is claimed, up to the cutting of features to steps."""
    u, v = features(U_SIZES, None, 1), features(V_SIZES, None, 2)
    moves = moved_by_a_user(u, v, 1, True)
    for precisions in PRECISIONS:
        claimed = float(squared_distance(REPLACE, *bounds_of(u, v), [Fraction(one) for one in precisions]))
        true = sum(p * move for p, move in zip(precisions, moves, strict=True)).max()
        assert true >= 0.99 * claimed


def test_a_bound_that_forgets_the_corners_is_caught() -> None:
    """The planted fault: twice the largest link, as if a link's two ends could not both turn over."""
    u, v = features(U_SIZES, None, 1), features(V_SIZES, None, 2)
    moves = moved_by_a_user(u, v, 1, True)
    wrong = 2 * float(squared_distance(ADD_REMOVE, *bounds_of(u, v), [Fraction(1)] * 3))
    assert sum(moves).max() > wrong


@pytest.mark.parametrize("clip", [None, 0.3, 0.9, 2.0])
@pytest.mark.parametrize("sizes", [(2,), (3,), (2, 2), (3, 2, 7), (200, 2)])
def test_norms_and_inner_products_are_within_their_bounds(sizes: tuple[int, ...], clip: float | None) -> None:
    """In whole numbers: of every two rows where these are few, else of many."""
    one = features(sizes, clip, 5)
    rng = np.random.default_rng(0)
    rows = np.stack([rng.integers(0, size, 400) for size in sizes], axis=1)
    table = one.whole(rows)
    products = table @ table.T
    assert np.diag(products).max() <= one.squared
    assert products.min() >= one.least


def degrees_move(relation: str, most: int, both: bool) -> int:
    """The most that counts by degree move, squared, over all databases of two users and three movies."""
    worst = 0
    choices = subsets(most)
    before = list(product(choices, repeat=USERS))
    for kept in choices:  # the other user's links
        tables = [_by_degree([ends, kept], most, both) for ends in choices]
        gone = _by_degree([kept], most, both)
        others = tables if relation == REPLACE else [gone]
        worst = max(worst, *(int(((a - b) ** 2).sum()) for a in tables for b in others))
    assert before
    return worst


def _by_degree(links: list[tuple[int, ...]], most: int, both: bool) -> np.ndarray:
    pairs = [pair for row, ends in enumerate(links) for pair in links_of(row, ends)]
    found = exact([U_PROFILES[0]] * len(links), [V_PROFILES[0]] * MOVIES, pairs)
    return np.concatenate([found.by_degree(side, np.arange(most)) for side in range(1 + both)])


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_neighbour_moves_the_counts_by_degree_further(relation: str, most: int) -> None:
    sides = 2
    assert degrees_move(relation, most, True) <= degrees_squared(relation, most, 1, sides)
    if relation == ADD_REMOVE:
        assert degrees_move(relation, most, False) <= degrees_squared(relation, most, 1, 1)
        assert degrees_move(relation, most, False) == most  # a user without links comes or goes


def test_counts_by_degree_of_one_side_alone_do_not_bound_those_of_both() -> None:
    """The planted fault: forgetting the rows at the other ends."""
    assert degrees_move(ADD_REMOVE, 3, True) > degrees_squared(ADD_REMOVE, 3, 1, 1)
