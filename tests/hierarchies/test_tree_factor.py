"""Strategies on trees against dense matrices: sensitivity, estimates, variances, and values in wide words."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest

from dpscale.counting.count import ExactMarginal
from dpscale.domain.hierarchy import Tree
from dpscale.measurement.measurement import measure_block
from dpscale.measurement.wide import limb_product
from dpscale.plans.blocks import Block
from dpscale.plans.factor import Factor
from dpscale.plans.tree import TreeFactor
from dpscale.privacy.draws import gaussian_draw
from tests.hierarchies.small import random_factor, random_tree
from tests.messages import refused

CASES = [(seed, centred) for seed in range(40) for centred in (False, True)]


def levels_of(factor):
    return [own.astype(float) for own in factor.levels.sums(np.eye(factor.cells))]


def inverse_of(factor):
    """Return K⁺ as a matrix; for a centred strategy with estimates that sum to zero."""
    inverse = np.linalg.pinv(factor.explicit().astype(float))
    if factor.centred:
        inverse = inverse - np.outer(factor.profile(factor.levels.depth), inverse.sum(axis=0))
    return inverse


@pytest.mark.parametrize(("seed", "centred"), CASES)
def test_sensitivities_are_those_of_the_columns(seed, centred):
    factor = random_factor(seed, centred)
    matrix = factor.explicit()
    assert matrix.shape == (factor.rows, factor.cells)
    assert factor.squared_l2_sensitivity == (matrix**2).sum(axis=0).max()
    assert factor.l1_sensitivity == np.abs(matrix).sum(axis=0).max()
    assert factor.largest >= np.abs(matrix).max()
    assert factor.largest_row_sum >= np.abs(matrix).sum(axis=1).max()


@pytest.mark.parametrize(("seed", "centred"), CASES)
def test_estimates_are_least_squares_at_every_level(seed, centred):
    factor = random_factor(seed, centred)
    values = np.random.default_rng(seed).normal(size=(factor.rows, 3))
    dense = inverse_of(factor) @ values
    for found, rows in zip(factor.node_estimates(values), levels_of(factor), strict=True):
        np.testing.assert_allclose(found, rows @ dense, atol=1e-12)


@pytest.mark.parametrize(("seed", "centred"), CASES)
def test_variances_are_those_of_the_dense_inverse(seed, centred):
    factor, rng = random_factor(seed, centred), np.random.default_rng(seed)
    inverse = inverse_of(factor)
    covariance = inverse @ inverse.T
    for level, rows in enumerate(levels_of(factor)):
        own = rows @ covariance @ rows.T
        np.testing.assert_allclose(factor.passes.variances[level], np.diag(own), atol=1e-13)
        weights = rng.normal(size=len(rows))
        assert factor.sparse_variance(np.arange(len(rows)), weights, level) == pytest.approx(
            weights @ own @ weights, abs=1e-13
        )
        np.testing.assert_allclose(factor.node_covariance(weights, level), own @ weights, atol=1e-13)


@pytest.mark.parametrize("centred", [False, True])
def test_pickled_strategy_is_the_same_without_its_variances(centred):
    factor = random_factor(5, centred)
    empty = len(pickle.dumps(factor))
    _ = factor.passes, factor.levels.leaf_counts, factor.squared_l2_sensitivity
    again = pickle.loads(pickle.dumps(factor))
    assert len(pickle.dumps(factor)) == empty
    assert again.digest == factor.digest


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("size", [1 << 20, 1 << 45])
def test_products_in_limbs_are_exact(centred, size):
    factor, rng = random_factor(3, centred), np.random.default_rng(3)
    counts = rng.integers(-size, size, factor.cells)
    limbs, bits = limb_product([factor], counts)
    found = sum(limbs[place].astype(object) << bits * place for place in range(len(limbs)))
    assert (found == factor.explicit().astype(object) @ counts.astype(object)).all()


@pytest.mark.parametrize("leaves", [100_000, 400_000])
def test_values_of_large_centred_trees_are_exact(leaves):
    """One region is full and the others are empty, after a factor of large integers: sums are as large as possible."""
    region = np.repeat(np.arange(5), leaves // 5)
    tree = Tree((np.zeros(5, np.int64), region))
    spread = np.full(leaves, max((1 << 18) // leaves, 4), np.int64)
    own = (np.zeros(1, np.int64), np.full(5, 5792), np.full(leaves, 5793))
    code = TreeFactor("tree", (leaves,), tree=tree, multipliers=own, spread=spread)
    age = Factor("full", (2,), np.array([[33_554_393, 12_345], [54_321, 33_554_201], [7, 3]]))
    counts = np.zeros((2, leaves), np.int64)
    counts[0, : leaves // 5] = 1 + np.arange(leaves // 5) % 2
    block = Block(("age", "code"), (age, code), 1.0)
    draw = gaussian_draw(block.squared_l2_sensitivity, Fraction(1, 20), 1, "it")
    found = measure_block(block, draw, ExactMarginal(block.attributes, counts), b"0" * 32, {"it": 1})
    none = measure_block(block, draw, ExactMarginal(block.attributes, counts * 0), b"0" * 32, {"it": 1})
    exact = age.explicit().astype(object) @ code.apply(counts.T.astype(object)).T * draw.multiplier
    scale = np.abs(np.asarray(none)).max() + float(max(abs(exact.min()), exact.max()))
    assert np.abs(found - none - exact.astype(np.float64)).max() <= 1e-13 * scale


@pytest.mark.parametrize("wrong", ["depth", "negative", "leaf", "root", "spread", "weights"])
def test_wrong_multipliers_are_refused(wrong):
    tree = random_tree((3, 6), 0)
    own = [np.ones(size, np.int64) for size in tree.sizes]
    spread = None
    if wrong == "depth":
        own = own[1:]
    if wrong == "negative":
        own[1][0] = -1
    if wrong == "leaf":
        own[2][0] = 0
    if wrong == "root":
        spread = np.ones(6, np.int64)
    if wrong == "spread":
        own[0][0], spread = 0, np.zeros(6, np.int64)
    if wrong == "weights":  # their sum is not a 64-bit integer
        own[0][0], spread = 0, np.full(6, 1 << 62)
    with refused(ValueError):
        TreeFactor("tree", (6,), tree=tree, multipliers=tuple(own), spread=spread)
