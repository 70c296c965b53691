"""Published tables over hierarchies: whole, non-negative, equal sums over trees and tables, near least squares."""

from __future__ import annotations

from itertools import combinations

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpscale.answers.publish import publish
from dpscale.answers.tables import Answered
from dpscale.answers.whole_tables import CONTRADICTION, TableLattice
from dpscale.domain import Domain
from dpscale.domain.rules import possible
from dpscale.optimize.nonnegative_counts import Grids, Lines
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.tree_estimates import TreeEstimates
from dpscale.workload.residual import kron
from tests.hierarchies.small import dense, domain_of, lift, ordered, planned

LEVELS = ("country", "region", "place")


def exact_table(domain, names, counts):
    """Return the table of a set from counts over the leaf attributes."""
    axes = ordered(domain, names)
    table = (lift(domain, names) @ counts.reshape(-1)).reshape([domain[name].size for name in axes])
    return table.transpose([axes.index(name) for name in names])


def make_answers(domain, sets, counts, rng=None):
    """Return answers of a plan, with its noise if a generator is given."""
    made = planned(domain, sets)
    values = []
    for block in made.blocks:
        strategy = kron([factor.explicit().astype(float) for factor in block.factors])
        exact = (strategy @ exact_table(domain, block.attributes, counts).reshape(-1)).reshape(block.rows)
        values.append(exact if rng is None else exact + rng.normal(0, np.sqrt(block.unit_variance), block.rows))
    kind = TreeEstimates if made.blocks.has_trees else LeastSquaresEstimates
    return Answered(kind(made, [block.unit_variance for block in made.blocks], values.__getitem__), "release")


def true_counts(domain, rng, mean=3.0):
    owns = {name: own.leaf for own in domain.hierarchies for name in own.names}
    shape = [one.size for one in domain.attributes if owns.get(one.name, one.name) == one.name]
    return rng.poisson(rng.gamma(0.4, mean / 0.4, shape))


def list_faults(domain, published):
    """Return the faults of published tables as a list of sentences, by brute force over all pairs."""
    lattice, found = TableLattice(domain), []
    for names, table in published.tables.items():
        if table.dtype != np.int64 or table.min() < 0:
            found.append(f"{names} is not of whole numbers from 0 on")
        if table.sum() != published.total:
            found.append(f"{names} has another total")
    for one, other in combinations(published.tables, 2):
        common = lattice.common(one, other)
        sums = [brute_sums(domain, published.tables[names], names, common) for names in (one, other)]
        if not np.array_equal(*sums):
            found.append(f"{one} and {other} differ on {common}")
    return found


def brute_sums(domain, table, names, upper):
    """Return sums to higher levels cell by cell."""
    found = np.zeros(domain.shape(upper), np.int64)
    for cell in np.ndindex(*table.shape):
        place = []
        for name in upper:
            own = domain.hierarchy_of(name)
            lower = next(one for one in names if one == name or (own and one in own.names))
            at = cell[names.index(lower)]
            while lower != name:
                at = own.tree.parents[own.position(lower)][at]
                lower = own.names[own.position(lower) - 1]
            place.append(at)
        found[tuple(place)] += table[cell]
    return found


SETS = {
    "leaves": [["place"]],
    "one table": [["place", "sex"]],
    "levels": [["country", "age", "sex"], ["region", "age"], ["region", "sex"], ["place"]],
    "several maximal sets": [["place", "age"], ["place", "sex"], ["region", "age", "sex"]],
    "nested sets": [[level, *own] for level in LEVELS for own in ((), ("age",), ("sex",), ("age", "sex"))],
}


@pytest.mark.parametrize("name", SETS)
@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.3, 3.0, 40.0]))
def test_tables_add_up(name, seed, mean):
    check_tables(name, seed, mean)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.3, 3.0, 40.0]))
def test_tables_add_up_in_many_cases(name, seed, mean):
    check_tables(name, seed, mean)


def check_tables(name, seed, mean):
    rng = np.random.default_rng(seed)
    domain = domain_of({"place": (3, 7, 19)}, seed, age=4, sex=2)
    sets = [domain.ordered(names) for names in SETS[name]]
    published = publish(make_answers(domain, sets, true_counts(domain, rng, mean), rng), sets)
    assert published.left_out == {}
    assert set(published.tables) == set(sets)
    assert list_faults(domain, published) == []


@pytest.mark.parametrize("name", SETS)
def test_without_noise_tables_are_true(name):
    rng = np.random.default_rng(0)
    domain = domain_of({"place": (3, 7, 19)}, 1, age=4, sex=2)
    sets, counts = [domain.ordered(names) for names in SETS[name]], true_counts(domain, rng)
    published = publish(make_answers(domain, sets, counts), sets)
    for names in sets:
        np.testing.assert_array_equal(published.tables[names], exact_table(domain, names, counts))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32))
def test_two_hierarchies_add_up(seed):
    rng = np.random.default_rng(seed)
    domain = domain_of({"place": (2, 5, 9), "code": (2, 4, 7)}, seed, sex=2)
    sets = [domain.ordered(names) for names in (["place", "code"], ["region", "group", "sex"], ["code", "sex"])]
    published = publish(make_answers(domain, sets, true_counts(domain, rng), rng), sets)
    assert published.left_out == {}
    assert list_faults(domain, published) == []


def test_tables_rounded_separately_are_detected():
    rng = np.random.default_rng(0)
    domain = domain_of({"place": (3, 7, 19)}, 0, age=4, sex=2)
    sets = [domain.ordered(names) for names in SETS["levels"]]
    answered = make_answers(domain, sets, true_counts(domain, rng), rng)
    published = publish(answered, sets)
    for names in sets:
        published.tables[names][...] = np.maximum(np.rint(answered.estimates.marginal(names)), 0).astype(int)
    assert len(list_faults(domain, published)) > 5


def test_set_of_two_levels_follows_from_the_deeper_one():
    rng = np.random.default_rng(3)
    domain = domain_of({"place": (3, 7, 19)}, 0, sex=2)
    sets = [domain.ordered(names) for names in (["country", "place", "sex"], ["place", "sex"])]
    published = publish(make_answers(domain, sets[1:], true_counts(domain, rng), rng), sets)
    both, deeper = (published.tables[names] for names in sets)
    np.testing.assert_array_equal(both.sum(axis=sets[0].index("country")), deeper)
    assert ((both > 0).sum(axis=sets[0].index("country")) <= 1).all()
    assert list_faults(domain, published) == []


def test_many_overlapping_sets_are_consistent_or_left_out():
    """Three tables of three attributes at a level share pairs: some have no whole table with these margins."""
    rng = np.random.default_rng(0)
    domain = domain_of({"place": (3, 7, 19)}, 0, age=3, sex=2, work=3, home=2)
    sets = [domain.ordered(("region", *own)) for own in combinations(("age", "sex", "work", "home"), 3)]
    sets += [domain.ordered(("region", *own)) for own in combinations(("age", "sex", "work", "home"), 2)]
    published = publish(make_answers(domain, sets, true_counts(domain, rng, 9), rng), sets)
    assert {*published.tables, *published.left_out} == set(sets)
    assert list_faults(domain, published) == []
    assert len(published.tables) >= 6
    assert set(published.left_out.values()) <= {CONTRADICTION} | {
        reason for reason in published.left_out.values() if "of which it consists" in reason
    }


def test_sparse_pairs_are_left_out_only_where_they_contradict_others():
    """Of the pairs of three attributes at the leaves, two have whole tables that agree, whatever the noise."""
    rng = np.random.default_rng(0)
    domain = domain_of({"place": (3, 30, 300)}, 0, age=5, sex=2, work=3)
    pairs = list(combinations(("age", "sex", "work"), 2))
    sets = [domain.ordered((level, *own)) for level in LEVELS for own in pairs]
    published = publish(make_answers(domain, sets, true_counts(domain, rng, 0.5), rng), sets)
    assert list_faults(domain, published) == []
    assert sum("place" in names for names in published.tables) >= 2
    assert len(published.tables) >= 7


def test_impossible_cells_are_0_at_all_levels():
    """A rule on places also empties a region all of whose places it excludes."""
    rng = np.random.default_rng(0)
    content = domain_of({"place": (3, 7, 19)}, 0, age=4).to_dict()
    own = domain_of({"place": (3, 7, 19)}, 0).hierarchies[0]
    region = {c: [f"place {i}" for i in np.flatnonzero(own.tree.parents[2] == c)] for c in range(7)}
    emptied, single = 0, 1
    places = ", ".join(f"'{place}'" for place in region[emptied])
    rules = [f"if place in ({places}) then age > 1", f"not (place = '{region[single][0]}' and age = 2)",
             "if country = 'country 0' then age != 3"]  # fmt: skip
    content["rule"] = [{"rule": rule} for rule in rules]
    domain = Domain.from_dict(content)
    sets = [("country", "age"), ("region", "age"), ("place", "age")]
    sets = [domain.ordered(names) for names in sets]
    counts = true_counts(domain, rng) * possible(domain.rules, sets[2], domain.shape(sets[2]))
    for seed in range(5):
        published = publish(make_answers(domain, sets, counts, np.random.default_rng(seed)), sets)
        assert published.left_out == {}
        assert list_faults(domain, published) == []
        for names in sets:
            held = possible(domain.rules, names, domain.shape(names))
            assert not published.tables[names][~held].any()
        assert not np.moveaxis(published.tables[sets[1]], sets[1].index("region"), 0)[emptied][:2].any()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_fits_equal_a_reference_solver_and_rounding_moves_less_than_1(seed):
    rng = np.random.default_rng(seed)
    height, width, number = rng.integers(1, 7, 3) + 1
    true = rng.poisson(rng.gamma(0.5, 6, (number, height, width)))
    grid = np.arange(true.size) // (height * width)
    row, column = (np.arange(true.size) // width), grid * width + np.arange(true.size) % width
    shuffled = rng.permutation(true.size)
    values = (true.ravel() + rng.normal(0, 5, true.size))[shuffled]
    variances, allowed = rng.uniform(0.5, 3, true.size), np.ones(true.size, bool)
    targets = true.sum(axis=2).ravel(), true.sum(axis=1).ravel()
    grids = Grids.of((row[shuffled], column[shuffled]),
                     (np.repeat(np.arange(number), height), np.repeat(np.arange(number), width)), targets)  # fmt: skip
    lines = Lines.of(row[shuffled], targets[0])
    for shape, sums in ((grids, [(row, targets[0]), (column, targets[1])]), (lines, [(row, targets[0])])):
        found, free = shape.fit(values, variances, allowed), cvxpy.Variable(true.size)
        matrices = [(np.arange(len(target))[:, None] == part[shuffled]).astype(float) for part, target in sums]
        problem = cvxpy.Problem(
            cvxpy.Minimize(cvxpy.sum(cvxpy.multiply(cvxpy.square(free - values), 1 / variances))),
            [free >= 0, *(one @ free == target for one, (_, target) in zip(matrices, sums, strict=True))],
        )
        problem.solve(cvxpy.CLARABEL, tol_gap_abs=1e-10, tol_feas=1e-10)
        np.testing.assert_allclose(found, free.value, atol=5e-3)  # the solver is the less exact one
        whole = shape.round(found, allowed) if shape is grids else shape.round(found)
        assert np.abs(whole - found).max() < 1
        assert whole.min() >= 0
        for one, (_, target) in zip(matrices, sums, strict=True):
            np.testing.assert_array_equal(one @ whole, target)


def test_rounding_of_a_grid_is_the_nearest():
    """Against all roundings down or up of 3 × 3 cells with the same sums."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        fitted = rng.dirichlet(np.ones(9)).reshape(3, 3) * 5
        fitted = scaled(fitted, [2, 2, 1], [1, 3, 1])
        grids = Grids.of((np.repeat(np.arange(3), 3), np.tile(np.arange(3), 3)), (np.zeros(3, int), np.zeros(3, int)),
                         (np.array([2, 2, 1]), np.array([1, 3, 1])))  # fmt: skip
        whole = grids.round(fitted.ravel(), np.ones(9, bool)).reshape(3, 3)
        ups = np.array(list(np.ndindex(*[2] * 9))).reshape(-1, 3, 3) + np.floor(fitted)
        fits = ups[(ups.sum(axis=2) == [2, 2, 1]).all(axis=1) & (ups.sum(axis=1) == [1, 3, 1]).all(axis=1)]
        assert ((whole - fitted) ** 2).sum() == pytest.approx(((fits - fitted) ** 2).sum(axis=(1, 2)).min())


def scaled(table, rows, columns):
    for _ in range(2000):
        table = table * (np.array(rows) / table.sum(axis=1))[:, None]
        table = table * (np.array(columns) / table.sum(axis=0))
    return table


def test_grid_without_allowed_cells_is_refused():
    allowed = np.array([True, False, True, True])
    parts = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    grids = Grids.of(parts, (np.zeros(2, int), np.zeros(2, int)), (np.array([5, 0]), np.array([0, 5])))
    assert grids.round(grids.fit(np.ones(4), np.ones(4), allowed), allowed) is None


def test_variances_below_equal_dense_least_squares_of_a_subtree():
    """Weights of cells: the variance from the measurements of the nodes at and below the cell's node alone."""
    domain = domain_of({"place": (2, 5, 11)}, 4, sex=3)
    made = planned(domain, [["country", "sex"], ["region", "sex"], ["place", "sex"]])
    rows, precisions, _ = dense(made)
    estimates = TreeEstimates(made, [block.unit_variance for block in made.blocks], lambda i: np.zeros(1))
    for level in LEVELS:
        found = estimates.trees.variances_below((level, "sex"))
        of_leaf = domain.hierarchies[0].ancestors(level)
        for node in nodes_with_siblings(domain.hierarchies[0], level):
            cells = np.repeat(of_leaf == node, 3)
            inside = ~(rows[:, ~cells] != 0).any(axis=1)
            matrix = rows[inside][:, cells]
            covariance = np.linalg.pinv((matrix.T * precisions[inside]) @ matrix, rcond=1e-12)
            line = np.tile([1.0, 0.0, 0.0], int(cells.sum()) // 3)
            assert found[node, 0] == pytest.approx(line @ covariance @ line)


def nodes_with_siblings(own, level):
    """Return the nodes below which there are other leaves than below their parents."""
    depth = own.position(level)
    parents = own.tree.parents[depth]
    return np.flatnonzero(np.bincount(parents)[parents] > 1)


@pytest.mark.parametrize("mean", [0.5, 5.0])
def test_errors_by_level_are_not_above_those_of_clipped_leaves(mean):
    rng = np.random.default_rng(0)
    domain = domain_of({"place": (4, 30, 500)}, 0, age=4, sex=2)
    sets = [domain.ordered((level, "age", "sex")) for level in LEVELS]
    lattice, counts = TableLattice(domain), true_counts(domain, rng, mean)
    answered = make_answers(domain, sets, counts, rng)
    published = publish(answered, sets)
    clipped = np.maximum(answered.estimates.marginal(sets[2]), 0)
    for names in sets:
        true = lattice.summed(counts.reshape(domain.shape(sets[2])), sets[2], names)
        own = np.abs(published.tables[names] - true).sum()
        assert own <= np.abs(lattice.summed(clipped, sets[2], names) - true).sum()
        assert own <= 1.02 * np.abs(answered.estimates.marginal(names) - true).sum()
