"""Sensitivities of link sums, by brute force over all tiny databases and all their neighbours."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from dpscale.privacy.protection import ADD_REMOVE, REPLACE
from dpscale.relational.budget_shares import degrees_squared
from dpscale.relational.features import BITS, Features, squared_distance
from dpscale.runs.links.link_data import ExactLinks

U_SIZES, V_SIZES = (2, 3), (2,)
U_PROFILES, V_PROFILES = list(product(*map(range, U_SIZES))), list(product(*map(range, V_SIZES)))
USERS, MOVIES = 2, 3
CLIPS = [(None, None), (0.7, None), (None, 0.6), (0.8, 0.5)]
PRECISIONS = [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (3, 1, 5), (1, 7, 2)]


def make_features(sizes: tuple[int, ...], clip: float | None, seed: int) -> Features:
    """Return features with uneven public shares."""
    rng = np.random.default_rng(seed)
    return Features(sizes, tuple(rng.dirichlet(np.ones(size)) for size in sizes), clip)


def links_of_row(row: int, ends: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(row, end) for end in ends]


def movie_subsets(most: int) -> list[tuple[int, ...]]:
    """Return the sets of at most `most` movies."""
    return [tuple(np.flatnonzero(bits)) for bits in product((0, 1), repeat=MOVIES) if sum(bits) <= most]


def make_exact_links(users: list, movies: list, links: list) -> ExactLinks:
    pairs = np.array(links, np.int64).reshape(-1, 2)
    return ExactLinks(pairs, np.array(users, np.int32).reshape(-1, len(U_SIZES)), np.array(movies, np.int32))


def squared_changes(u: Features, v: Features, most: int, replaced: bool):
    """Return, by sum, |Δ|² of every neighbour that differs in one user: all old and new profiles, all sets of links.

    The contributions of other users are the same before and after, and are left out.
    """
    movies = [V_PROFILES[i % len(V_PROFILES)] for i in range(MOVIES)]
    sums = {}
    for profile, ends in product(U_PROFILES, movie_subsets(most)):
        found = make_exact_links([profile], movies, links_of_row(0, ends)).sums(u, v)
        sums[profile, ends] = np.concatenate([np.ravel(one) for one in found]), [one.size for one in found]
    values = np.stack([one for one, _ in sums.values()]).astype(float)
    sizes = next(iter(sums.values()))[1]
    values /= 2.0**BITS
    values[:, sum(sizes[:2]) :] /= 2.0**BITS
    other = values if replaced else np.zeros((1, values.shape[1]))
    parts = np.split(values, np.cumsum(sizes)[:-1], axis=1), np.split(other, np.cumsum(sizes)[:-1], axis=1)
    return [((a[:, None] - b[None]) ** 2).sum(axis=2).ravel() for a, b in zip(*parts, strict=True)]


def feature_bounds(u: Features, v: Features):
    return ((Fraction(u.squared, 4**BITS), Fraction(u.least, 4**BITS)),
            (Fraction(v.squared, 4**BITS), Fraction(v.least, 4**BITS)))  # fmt: skip


@pytest.mark.parametrize("clips", CLIPS)
@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_neighbour_exceeds_sensitivity_of_sums(clips, relation: str, most: int) -> None:
    u, v = make_features(U_SIZES, clips[0], 1), make_features(V_SIZES, clips[1], 2)
    moves = squared_changes(u, v, most, relation == REPLACE)
    for precisions in PRECISIONS:
        claimed = most**2 * squared_distance(relation, *feature_bounds(u, v), [Fraction(one) for one in precisions])
        true = sum(p * move for p, move in zip(precisions, moves, strict=True)).max()
        assert true <= float(claimed) * (1 + 1e-12)


def test_sensitivity_is_reached_for_uniform_features() -> None:
    """One link: some neighbour reaches the bound, up to the rounding of features to steps."""
    u, v = make_features(U_SIZES, None, 1), make_features(V_SIZES, None, 2)
    moves = squared_changes(u, v, 1, True)
    for precisions in PRECISIONS:
        claimed = float(squared_distance(REPLACE, *feature_bounds(u, v), [Fraction(one) for one in precisions]))
        true = sum(p * move for p, move in zip(precisions, moves, strict=True)).max()
        assert true >= 0.99 * claimed


def test_planted_bound_without_corners_is_detected() -> None:
    """Planted fault: twice the largest link, which ignores that both ends of a link can change."""
    u, v = make_features(U_SIZES, None, 1), make_features(V_SIZES, None, 2)
    moves = squared_changes(u, v, 1, True)
    wrong = 2 * float(squared_distance(ADD_REMOVE, *feature_bounds(u, v), [Fraction(1)] * 3))
    assert sum(moves).max() > wrong


@pytest.mark.parametrize("clip", [None, 0.3, 0.9, 2.0])
@pytest.mark.parametrize("sizes", [(2,), (3,), (2, 2), (3, 2, 7), (200, 2)])
def test_norms_and_inner_products_are_within_bounds(sizes: tuple[int, ...], clip: float | None) -> None:
    """In integers: every two rows of a small table, and a sample for larger ones."""
    one = make_features(sizes, clip, 5)
    rng = np.random.default_rng(0)
    rows = np.stack([rng.integers(0, size, 400) for size in sizes], axis=1)
    table = one.whole(rows)
    products = table @ table.T
    assert np.diag(products).max() <= one.squared
    assert products.min() >= one.least


def degree_sensitivity(relation: str, most: int, both: bool) -> int:
    """Return the largest squared change of counts by degree, over all databases of two users and three movies."""
    worst = 0
    choices = movie_subsets(most)
    before = list(product(choices, repeat=USERS))
    for other_ends in choices:  # the other user's links
        tables = [_degree_counts([ends, other_ends], most, both) for ends in choices]
        removed = _degree_counts([other_ends], most, both)
        others = tables if relation == REPLACE else [removed]
        worst = max(worst, *(int(((a - b) ** 2).sum()) for a in tables for b in others))
    assert before
    return worst


def _degree_counts(links: list[tuple[int, ...]], most: int, both: bool) -> np.ndarray:
    pairs = [pair for row, ends in enumerate(links) for pair in links_of_row(row, ends)]
    found = make_exact_links([U_PROFILES[0]] * len(links), [V_PROFILES[0]] * MOVIES, pairs)
    return np.concatenate([found.by_degree(side, np.arange(most)) for side in range(1 + both)])


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_neighbour_exceeds_sensitivity_of_degree_counts(relation: str, most: int) -> None:
    sides = 2
    assert degree_sensitivity(relation, most, True) <= degrees_squared(relation, most, 1, sides)
    if relation == ADD_REMOVE:
        assert degree_sensitivity(relation, most, False) <= degrees_squared(relation, most, 1, 1)
        assert degree_sensitivity(relation, most, False) == most  # a user without links is added or removed


def test_planted_one_sided_degree_bound_is_detected() -> None:
    """Planted fault: the rows at the other ends are ignored."""
    assert degree_sensitivity(ADD_REMOVE, 3, True) > degrees_squared(ADD_REMOVE, 3, 1, 1)
