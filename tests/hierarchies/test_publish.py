"""Published tables over hierarchies: whole, non-negative, equal sums over trees and tables, near least squares."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpscale.answers.publish import publish
from dpscale.answers.table_lattice import TableLattice
from dpscale.answers.tables import Answered
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.tree_estimates import TreeEstimates
from dpscale.workload.residual import kron
from tests.hierarchies.small import domain_of, lift, ordered, planned

LEVELS = ("country", "region", "place")


def exact_table(domain, names, counts):
    """Return the table of a set from counts over the leaf attributes."""
    axes = ordered(domain, names)
    table = (lift(domain, names) @ counts.reshape(-1)).reshape([domain[name].size for name in axes])
    return table.transpose([axes.index(name) for name in names])


def make_answers(domain, sets, counts, rng=None, **options):
    """Return answers of a plan, with its noise if a generator is given."""
    made = planned(domain, sets, **options)
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
                at = own.parents[own.position(lower) - 1][at]
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
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.3, 3.0, 40.0]))
def test_tables_add_up(name, seed, mean):
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
