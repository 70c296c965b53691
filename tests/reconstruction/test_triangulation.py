"""The own triangulation against pgmpy's, on random connected models: valid, chordal, and about as small."""

from itertools import combinations
from math import prod

import networkx as nx
import numpy as np
import pytest

from dpscale.reconstruction.junction_tree import junction_tree

HEURISTICS = ("H1", "H2", "H3", "H4", "H5", "H6")


def random_model(seed):
    """Return sizes and the pairs of a connected graph: a spanning tree and some more edges."""
    rng = np.random.default_rng(seed)
    names = [f"v{i}" for i in range(rng.integers(4, 9))]
    sizes = {name: int(rng.integers(2, 5)) for name in names}
    pairs = [(names[rng.integers(i)], name) for i, name in enumerate(names) if i]
    others = [pair for pair in combinations(names, 2) if pair not in pairs]
    extra = rng.permutation(len(others))[: rng.integers(0, len(names))]
    return sizes, pairs + [others[i] for i in extra]


def cells_of_pgmpy(sizes, pairs, heuristic):
    """Return the cells of the cliques of pgmpy's triangulation."""
    factors, models = pytest.importorskip("pgmpy.factors.discrete"), pytest.importorskip("pgmpy.models")
    network = models.DiscreteMarkovNetwork(pairs)
    for pair in pairs:
        shape = [sizes[name] for name in pair]
        network.add_factors(factors.DiscreteFactor(list(pair), shape, np.ones(prod(shape))))
    chordal = network.triangulate(heuristic=heuristic)
    assert nx.is_chordal(nx.Graph(chordal.edges()))
    return sum(prod(sizes[name] for name in clique) for clique in nx.find_cliques(nx.Graph(chordal.edges())))


@pytest.mark.parametrize("seed", range(12))
def test_triangulation_is_valid_and_at_most_a_tenth_larger_than_the_best_of_pgmpy(seed):
    sizes, pairs = random_model(seed)
    tree = junction_tree(sizes, pairs)
    graph = nx.Graph(edge for clique in tree.cliques for edge in combinations(clique, 2))
    assert nx.is_chordal(graph)
    assert all(graph.has_edge(*pair) for pair in pairs)
    assert {frozenset(one) for one in tree.cliques} == {frozenset(one) for one in nx.find_cliques(graph)}
    assert tree.cells <= 1.1 * min(cells_of_pgmpy(sizes, pairs, one) for one in HEURISTICS)


def test_planted_missing_fill_is_no_triangulation():
    """A circle of four without a chord is not chordal, so the check above detects a missing fill-in edge."""
    circle = [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")]
    assert not nx.is_chordal(nx.Graph(circle))
    tree = junction_tree(dict.fromkeys("abcd", 2), circle)
    assert nx.is_chordal(nx.Graph(edge for clique in tree.cliques for edge in combinations(clique, 2)))
