"""Junction trees, messages and marginals of a model, against sums over the whole joint distribution."""

from itertools import chain, combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import dpscale as dp
from dpscale.reconstruction.junction_tree import GraphicalModel, junction_tree, model_cells
from dpscale.workload.residual import Groups, every_cell
from tests.messages import refused
from tests.reconstruction.explicit import NAMES, SHAPES, SIZES, axes_outside

GROUPS = {"a": every_cell(3), "b": every_cell(2), "c": Groups(4, (0, 1)), "d": every_cell(2), "e": Groups(3, (0, 2))}
SETS = st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True), max_size=7)


def order_names(names):
    return tuple(name for name in NAMES if name in names)


def make_model(sets, seed=0, groups=GROUPS):
    rng = np.random.default_rng(seed)
    factors = {names: 2 * rng.standard_normal([groups[name].count for name in names])
               for names in dict.fromkeys(map(order_names, sets)) if len(names) > 1}  # fmt: skip
    return GraphicalModel(groups, factors, {name: rng.standard_normal(size) for name, size in SIZES.items()}, 50.0)


def explicit_log_potentials(model):
    """Return the log-potential of every cell of the joint, and log Z."""
    grid = np.meshgrid(*map(np.arange, SIZES.values()), indexing="ij")
    codes = dict(zip(NAMES, grid, strict=True))
    logs = sum(table[codes[name]] for name, table in model.cells.items())
    for names, table in model.factors.items():
        logs = logs + table[tuple(model.groups[name].labels[codes[name]] for name in names)]
    return logs, float(np.log(np.exp(logs).sum()))


@pytest.mark.parametrize("name", SHAPES)
def test_marginals_equal_brute_force(name):
    model = make_model(SHAPES[name])
    logs, log_total = explicit_log_potentials(model)
    joint = model.total * np.exp(logs - log_total)
    assert model.calibrated.log_total == pytest.approx(log_total, rel=1e-12)
    for attributes in chain.from_iterable(combinations(NAMES, degree) for degree in range(6)):
        assert model.marginal(attributes) == pytest.approx(joint.sum(axis=axes_outside(attributes)), abs=1e-10)
    assert model.marginal(("e", "a")) == pytest.approx(joint.sum(axis=axes_outside(("a", "e"))).T, abs=1e-10)


@settings(max_examples=60, deadline=None)
@given(SETS, st.integers(0, 2**32 - 1))
def test_marginals_of_any_clique_set_equal_brute_force(sets, seed):
    model = make_model(sets, seed)
    logs, log_total = explicit_log_potentials(model)
    for attributes in (("a", "e"), ("b", "c", "d"), NAMES):
        expected = model.total * np.exp(logs - log_total).sum(axis=axes_outside(attributes))
        assert model.marginal(attributes) == pytest.approx(expected, abs=1e-10)


@settings(max_examples=100, deadline=None)
@given(SETS)
def test_junction_tree_is_chordal_with_running_intersection(sets):
    """Its graph is chordal and contains the sets; a common part of two cliques lies on the whole path between them."""
    tree = junction_tree(SIZES, [order_names(names) for names in sets])
    graph = nx.Graph()
    graph.add_nodes_from(NAMES)
    graph.add_edges_from(chain.from_iterable(combinations(clique, 2) for clique in tree.cliques))
    assert nx.is_chordal(graph)
    assert {frozenset(clique) for clique in tree.cliques} == set(map(frozenset, nx.find_cliques(graph)))
    assert all(tree.smallest_clique(names) >= 0 for names in sets)
    ways = nx.Graph()
    ways.add_nodes_from(range(len(tree.cliques)))
    ways.add_edges_from((i, parent) for i, parent in enumerate(tree.parents) if parent >= 0)
    assert nx.is_tree(ways)
    for one, other in combinations(range(len(tree.cliques)), 2):
        shared = set(tree.cliques[one]) & set(tree.cliques[other])
        assert all(shared <= set(tree.cliques[at]) for at in nx.shortest_path(ways, one, other))
    assert tree.cells == model_cells(SIZES, map(order_names, sets))


def test_large_potentials_do_not_overflow():
    model = make_model(SHAPES["a circle of five"])
    far = GraphicalModel(GROUPS, {names: 60 * table for names, table in model.factors.items()}, model.cells, 1.0)
    logs, _ = explicit_log_potentials(far)
    law = np.exp(logs - logs.max())
    assert far.marginal(NAMES) == pytest.approx(law / law.sum(), abs=1e-9)


def test_entropy_likelihood_and_conditioning_equal_joint():
    model = make_model(SHAPES["two circles"])
    logs, log_total = explicit_log_potentials(model)
    joint = np.exp(logs - log_total)
    assert model.entropy == pytest.approx(-(joint * (logs - log_total)).sum(), rel=1e-10)
    codes = {name: np.arange(20) % size for name, size in SIZES.items()}
    assert model.log_likelihood(codes) == pytest.approx((logs - log_total)[tuple(codes.values())])
    given_two = model.given(c=2, e=0)
    sliced = joint[:, :, 2, :, 0]
    assert given_two.total == pytest.approx(model.total * sliced.sum())
    assert given_two.marginal(("a", "b", "d")) == pytest.approx(model.total * sliced)
    assert given_two.marginal(("c",)) == pytest.approx(model.total * sliced.sum() * np.eye(4)[2])
    with refused(dp.JobError):
        model.given(c=4)
    with refused(dp.JobError):
        model.marginal(("f",))


def test_junction_tree_does_not_depend_on_hash_seed():
    """Ties follow the order of the domain, not the order of Python sets."""
    import subprocess
    import sys

    script = ("from dpscale.reconstruction.junction_tree import junction_tree as j; "
              "n = [f'x{i}' for i in range(12)]; "
              "print(j(dict.fromkeys(n, 3), [(n[i], n[(5 * i + 1) % 12]) for i in range(12)]).cliques)")  # fmt: skip
    found = {subprocess.run([sys.executable, "-c", script], env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
                            capture_output=True, text=True, check=True).stdout for seed in "123"}  # fmt: skip
    assert len(found) == 1
