"""Bounds and optimal precisions of trees against eigenvalues, dense optima and closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from dpscale.domain.hierarchy import Tree
from dpscale.optimize.convex import optimise
from dpscale.optimize.tree import (
    TreeGram,
    _Problem,
    best_precisions,
    classes_of,
    integer_multipliers,
    product_bound,
    root_trace,
    tree_bound,
)
from tests.hierarchies.small import random_tree

SIZES = [(5,), (3, 9), (2, 7, 20), (4, 4, 15), (1, 6, 6, 30)]


def gram_of(tree, weights):
    rows = [np.sqrt(w) * own for w, own in zip(weights, tree.sums(np.eye(tree.sizes[-1])), strict=True)]
    stacked = np.vstack(rows)
    return stacked.T @ stacked


def error_of(classes, found, weights):
    return sum(w * float(n @ p) for w, n, p in zip(weights, classes.counts, found.variances, strict=True))


def dense_optimum(gram):
    values, vectors = np.linalg.eigh(gram)
    rows = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
    return optimise(rows, rows.shape[1:], 1e-6)


@pytest.mark.parametrize("sizes", SIZES)
def test_trace_of_root_and_its_slope(sizes):
    rng, tree = np.random.default_rng(1), random_tree(sizes, 4)
    classes, weights = classes_of(tree), rng.uniform(0, 2, tree.depth + 1).tolist()
    leaves = rng.uniform(0.1, 1, len(classes.counts[-1]))
    value, slope = root_trace(classes, weights, leaves)

    def dense(own):
        root = np.sqrt(own[classes.of[-1]])
        matrix = root[:, None] * gram_of(tree, weights) * root
        return np.sqrt(np.maximum(np.linalg.eigvalsh(matrix), 0)).sum()

    assert value == pytest.approx(dense(leaves), rel=1e-6)
    for at in range(len(leaves)):
        step = np.eye(len(leaves))[at] * 1e-6
        numeric = (dense(leaves + step) - dense(leaves - step)) / 2e-6 / classes.counts[-1][at]
        assert slope[at] == pytest.approx(numeric, rel=1e-4)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("even", [True, False])
def test_bound_is_below_the_dense_optimum_and_plans_are_close(sizes, even):
    tree = random_tree(sizes, 2)
    classes = classes_of(tree)
    weights = [1 / n if even else 1.0 + n % 3 for n in tree.sizes]
    best = dense_optimum(gram_of(tree, weights))
    bound = tree_bound(classes, [[TreeGram(tuple(weights))]])
    error = error_of(classes, best_precisions(classes, weights), weights)
    assert bound <= best.primal
    assert bound >= best.dual * (1 - 1e-3)
    assert best.dual <= error <= best.primal * 1.03


def test_optimum_of_an_even_tree_is_the_closed_form():
    """On an even tree the optimum is (Σ dim_k √g_k)² / n, with g_k = Σ_{l >= k} ω_l n / N_l."""
    tree = Tree(tuple(np.repeat(np.arange(4**level), 4) for level in range(3)))
    weights, sizes = [0.3, 1.0, 0.1, 2.0], np.array(tree.sizes)
    grams = [sum(weights[i] * sizes[-1] / sizes[i] for i in range(k, 4)) for k in range(4)]
    dims = np.diff(np.append(0, sizes))
    exact = (dims @ np.sqrt(grams)) ** 2 / sizes[-1]
    classes = classes_of(tree)
    assert [len(own) for own in classes.counts] == [1, 1, 1, 1]
    assert tree_bound(classes, [[TreeGram(tuple(weights))]]) == pytest.approx(exact, rel=1e-6)
    assert error_of(classes, best_precisions(classes, weights), weights) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("sizes", [(3, 9), (3, 7, 40), (8, 30, 200)])
def test_bound_with_known_nodes_is_below_the_optimum_of_the_rest(sizes):
    tree = random_tree(sizes, 2)
    classes, weights = classes_of(tree), [1.0] * (tree.depth + 1)
    rows = [own.astype(float) for own in tree.sums(np.eye(tree.sizes[-1]))]
    spread = (rows[1].T / rows[1].sum(axis=1)) @ rows[1]
    centred = np.vstack(rows[2:]) @ (np.eye(tree.sizes[-1]) - spread)
    best = dense_optimum(centred.T @ centred)
    bound = tree_bound(classes, [[TreeGram(tuple(weights), known=1)]])
    found = best_precisions(classes, [0.0, 0.0, *weights[2:]], known=1)
    assert 0 < bound <= best.primal
    assert error_of(classes, found, weights) >= best.dual


def test_gradient_of_the_error_is_exact():
    classes = classes_of(random_tree((3, 8, 25), 5))
    problem = _Problem(classes, [w * own for w, own in zip((1, 0, 2, 1), classes.counts, strict=True)])
    at = np.random.default_rng(0).normal(size=classes.groups[1])
    _, slope = problem(at)
    for place in range(len(at)):
        step = np.eye(len(at))[place] * 1e-5
        assert slope[place] == pytest.approx((problem(at + step)[0] - problem(at - step)[0]) / 2e-5, rel=1e-4, abs=1e-9)


def test_paths_of_integer_multipliers_cost_about_the_same():
    tree = random_tree((5, 30, 200), 1)
    classes = classes_of(tree)
    own = integer_multipliers(classes, best_precisions(classes, [1.0, 1.0, 1.0, 1.0]).precisions)
    paths = tree.lift([one**2 for one in own])
    assert 0.999 < paths.min() / paths.max() <= 1


@pytest.mark.parametrize("cells", ["few", "many"])
def test_bound_of_two_trees_is_below_the_dense_optimum(cells, monkeypatch):
    trees = [random_tree((2, 5), 0), random_tree((3, 6), 1)]
    table = np.outer([1.0, 0.5, 0.2], [1.0, 0.3, 0.2])
    table[0, 0] = 0.0
    if cells == "many":
        monkeypatch.setattr("dpscale.optimize.tree.DENSE", 0)
    levels = [tree.sums(np.eye(tree.sizes[-1])) for tree in trees]
    rows = np.vstack([np.sqrt(table[i, j]) * np.kron(levels[0][i], levels[1][j]) for i in range(3) for j in range(3)])
    best = dense_optimum(rows.T @ rows)
    bound = product_bound([classes_of(tree) for tree in trees], table)
    assert best.dual * (0.999 if cells == "few" else 0.6) <= bound <= best.primal
