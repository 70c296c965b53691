"""Consistency of tables, against a convex solver and for tables that do not agree."""

from itertools import combinations

import numpy as np
import pytest

from dpscale.reconstruction.consistency import disagreement, make_consistent, margin

SIZES = {"a": 3, "b": 2, "c": 4, "d": 2}
NAMES = tuple(SIZES)


def draw_tables(sets, seed=0, total=100.0):
    random = np.random.default_rng(seed)
    tables = {names: random.gamma(0.8, size=[SIZES[name] for name in names]) for names in sets}
    return {names: table * (total / table.sum()) for names, table in tables.items()}


TRIPLES = list(combinations(NAMES, 3))


def test_consistent_tables_agree():
    tables = draw_tables(TRIPLES)
    before = disagreement(tables.__getitem__, TRIPLES)
    after = make_consistent(tables, rounds=2000)
    remaining = disagreement(after.__getitem__, TRIPLES)
    assert before.most > 0.2
    assert remaining.most < 1e-5
    assert remaining.pairs == 6
    for names in TRIPLES:
        assert (after[names] >= 0).all()
        assert after[names].sum() == pytest.approx(100)


@pytest.mark.parametrize("sets", [[("a", "b", "c"), ("c", "b", "d"), ("a", "d")], TRIPLES[:3]])
def test_consistent_tables_are_nearest(sets):
    """The oracle is cvxpy: the smallest weighted Kullback-Leibler divergence under equal margins."""
    import cvxpy as cp

    tables, weights = draw_tables(sets, 3), {names: 1.0 + i for i, names in enumerate(sets)}
    own = {names: cp.Variable(tables[names].size) for names in sets}
    limits = [cp.sum(x) == 100 for x in own.values()]
    for one, other in combinations(sets, 2):
        common = tuple(name for name in one if name in other)
        limits.append(margin_matrix(one, common) @ own[one] == margin_matrix(other, common) @ own[other])
    divergences = [w * cp.sum(cp.kl_div(own[n], tables[n].ravel())) for n, w in weights.items()]
    cp.Problem(cp.Minimize(cp.sum(divergences)), limits).solve(solver="CLARABEL")
    found = make_consistent(tables, weights, rounds=3000, tolerance=1e-9)
    for names in sets:
        np.testing.assert_allclose(found[names].ravel(), own[names].value, atol=5e-3)


def margin_matrix(names, common):
    """Return the matrix that computes a margin."""
    shape = [SIZES[name] for name in names]
    units = np.eye(int(np.prod(shape))).reshape(-1, *shape)
    return np.array([margin(unit, names, common).ravel() for unit in units]).T


def test_consistent_tables_stay_and_negative_counts_are_removed():
    joint = draw_tables([NAMES])[NAMES]
    tables = {names: margin(joint, NAMES, names) for names in TRIPLES}
    for names, own in make_consistent(tables).items():
        np.testing.assert_allclose(own, tables[names], rtol=1e-9)
    tables["a", "b", "c"] = tables["a", "b", "c"] - 1.0
    found = make_consistent(tables, rounds=1000)
    assert min(own.min() for own in found.values()) >= 0
    assert disagreement(found.__getitem__, TRIPLES).most < 1e-4


def test_table_of_large_weight_changes_little():
    tables = draw_tables(TRIPLES)
    even = make_consistent(tables)
    weighted = make_consistent(tables, dict.fromkeys(TRIPLES, 1.0) | {TRIPLES[0]: 1000.0})
    moved = [np.abs(found[TRIPLES[0]] - tables[TRIPLES[0]]).sum() for found in (even, weighted)]
    assert moved[1] < 0.1 * moved[0]


def test_disagreement_samples_pairs_and_ignores_disjoint_sets():
    tables = draw_tables(TRIPLES)
    some = disagreement(tables.__getitem__, TRIPLES, most=3)
    assert some.pairs == 3
    assert disagreement(tables.__getitem__, TRIPLES, most=3) == some
    alone = draw_tables([("a", "b"), ("c",)])
    assert disagreement(alone.__getitem__, list(alone)).farthest is None
    np.testing.assert_allclose(make_consistent(alone)["c",], alone["c",])
