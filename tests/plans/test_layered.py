"""Layered strategies of wide axes, against their explicit matrices on small axes."""

import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dpscale.audit.evidence.sensitivities import digest, misshapen, norms
from dpscale.plans.blocks import centred_variance, gram_table, profile_of, query_table, total_variance
from dpscale.plans.factor import Factor, identity_factor
from dpscale.plans.layered import LayeredFactor
from dpscale.plans.plan import factor_fields, packed
from dpscale.workload import FAMILIES
from dpscale.workload.node_grams import node_gram, node_sums
from tests.messages import refused

ONE_WAY = ("marginal", "prefix", "range", "circular")
CASES = [(24, (6, 3, 1), True), (23, (6, 2, 1), True), (29, (8, 4, 2, 1), False), (10, (4, 1), True), (7, (7, 1), True)]


def drawn_factor(size, widths, whole=True, seed=0):
    """Return a strategy of random integers; if not `whole`, the second level is not measured."""
    rng, blocks = np.random.default_rng(seed), -(-size // widths[0])
    multipliers = rng.integers(1, 30, (len(widths), blocks))
    multipliers[1] *= whole
    return LayeredFactor(
        "layered", (size,), top=rng.integers(-9, 50, (3, blocks)), multipliers=multipliers, widths=widths
    )


def explicit_matrix(factor):
    """Return K by its definition, on all cells of whole blocks."""
    cells = np.arange(factor.blocks * factor.widths[0])
    rows = [[row[cell // factor.widths[0]] for cell in cells] for row in factor.top]
    for width, multipliers in zip(factor.widths, factor.multipliers, strict=True):
        for node in range(len(cells) // width):
            row = [multipliers[cell // factor.widths[0]] if cell // width == node else 0 for cell in cells]
            rows += [row] if any(row) else []
    return np.array(rows)


@pytest.mark.parametrize(("size", "widths", "whole"), CASES)
def test_properties_equal_explicit_matrix(size, widths, whole):
    factor = drawn_factor(size, widths, whole)
    matrix = explicit_matrix(factor)[:, :size]
    np.testing.assert_array_equal(factor.explicit(), matrix)
    counts = np.random.default_rng(1).integers(0, 1 << 20, (size, 2)).astype(object)
    np.testing.assert_array_equal(factor.apply(counts), matrix.astype(object) @ counts)
    assert factor.rows == len(matrix)
    assert factor.squared_l2_sensitivity == (matrix**2).sum(axis=0).max()
    assert factor.l1_sensitivity == np.abs(matrix).sum(axis=0).max()
    assert factor.largest == np.abs(matrix).max()
    assert factor.largest_row_sum >= np.abs(matrix).sum(axis=1).max()
    again = pickle.loads(pickle.dumps(factor))
    assert again.digest == factor.digest
    np.testing.assert_array_equal(again.explicit(), matrix)


@pytest.mark.parametrize(("size", "widths", "whole"), CASES)
def test_estimates_equal_explicit_least_squares(size, widths, whole):
    factor, rng = drawn_factor(size, widths, whole), np.random.default_rng(2)
    matrix = explicit_matrix(factor).astype(float)
    inverse = np.linalg.pinv(matrix)[:size]
    covariance = inverse @ inverse.T
    values, cells = rng.normal(size=(factor.rows, 2)), rng.normal(size=(3, size, 2))
    np.testing.assert_allclose(factor.estimate(values), (inverse @ values).T, atol=1e-12)
    np.testing.assert_allclose(factor.estimate(values.T, 1), (inverse @ values).T, atol=1e-12)
    np.testing.assert_allclose(factor.covariance, covariance, atol=1e-12)
    np.testing.assert_allclose(factor.apply_covariance(cells), np.tensordot(cells, covariance, axes=(1, 0)), atol=1e-12)
    assert factor.mean_variance == pytest.approx(np.diag(covariance).mean())

    ends = np.array([0, 1, 3, 6, size])
    sums = np.array([(np.arange(size) >= low) & (np.arange(size) < high) for low, high in pairwise(ends)], float)
    np.testing.assert_allclose(factor.sums_covariance(ends), sums @ covariance @ sums.T, atol=1e-12)
    for family in map(FAMILIES.get, ONE_WAY):
        known = np.einsum("ij,jk,ik->i", family.matrix(size), covariance, family.matrix(size))
        np.testing.assert_allclose(factor.quadratics(family), known, rtol=1e-9)
        assert factor.trace(family) == pytest.approx(known.sum())


@pytest.mark.parametrize("name", ONE_WAY)
@pytest.mark.parametrize(("size", "width"), [(20, 4), (23, 4), (23, 5), (6, 6), (5, 7)])
def test_sums_over_nodes_equal_dense_gram(name, size, width):
    family, nodes = FAMILIES[name], np.arange(size) // width
    sums = (nodes == np.arange(nodes[-1] + 1)[:, None]).astype(float)
    known = 2 * sums @ family.gram(size) @ sums.T
    np.testing.assert_allclose(node_gram([(family, 2.0)], size, width), known)
    np.testing.assert_allclose(node_sums([(family, 2.0)], size, width), np.diag(known))


def test_bundle_factor_gives_norms_and_digest():
    factor = drawn_factor(29, (8, 4, 2, 1), whole=False)
    fields = factor_fields(factor)
    assert not misshapen(fields)
    assert norms(fields) == (factor.squared_l2_sensitivity, factor.l1_sensitivity)
    assert digest(fields) == factor.digest
    raised = factor.multipliers + 1
    assert digest(fields | {"multipliers": packed(raised)}) != factor.digest
    assert norms(fields | {"multipliers": packed(raised)}) > norms(fields)


@pytest.mark.parametrize(
    "planted",
    [
        {"widths": [8, 3, 1]},
        {"widths": [8, 4, 2]},
        {"widths": [8, 8, 1]},
        {"shape": [40]},
        {"multipliers": packed(np.zeros((4, 4), np.int64))},
        {"multipliers": packed(-np.ones((4, 4), np.int64))},
        {"top": packed(np.ones(7, np.int64))},
    ],
)
def test_bundle_refuses_planted_layers(planted):
    assert misshapen(factor_fields(drawn_factor(29, (8, 4, 2, 1))) | planted)


def test_wrong_integers_are_refused():
    factor = drawn_factor(24, (6, 3, 1))
    for wrong in (
        {"widths": (6, 4, 1)},
        {"widths": (6, 3, 2)},
        {"multipliers": factor.multipliers * 0},
        {"multipliers": -factor.multipliers},
        {"multipliers": factor.multipliers[:, :3]},
        {"top": factor.top[:, :3]},
        {"top": factor.top.astype(float)},
        {"shape": (25,)},
    ):
        with refused(ValueError):
            replace(factor, **wrong)


@pytest.mark.parametrize("family", [FAMILIES[name] for name in ONE_WAY])
@pytest.mark.parametrize("averaging", [None, tuple(range(1, 25))])
def test_tables_of_an_implicit_factor_equal_those_of_its_matrix(family, averaging):
    implicit = drawn_factor(24, (6, 3, 1))
    dense = Factor("full", (24,), implicit.explicit())
    assert total_variance(implicit) == pytest.approx(total_variance(dense))
    np.testing.assert_allclose(profile_of(implicit), profile_of(dense))
    for profiled in (True, False):
        assert centred_variance(implicit, profiled) == pytest.approx(centred_variance(dense, profiled))
    for table in (gram_table, query_table):
        for own in (averaging, dense):
            known = table(dense, own, 24, family)
            np.testing.assert_allclose(table(implicit, own, 24, family), known, atol=1e-9 * np.abs(known).max())


@pytest.mark.parametrize("family", [FAMILIES["marginal"], FAMILIES["prefix"]])
def test_tables_of_all_cells_equal_those_of_the_identity_matrix(family):
    size, rng = 600, np.random.default_rng(3)
    weights = tuple(rng.integers(1, 9, size).tolist())
    profile, queries = np.array(weights) / sum(weights), family.matrix(size)
    means = queries @ profile
    centred = queries - means[:, None]
    known = np.array(
        [[means**2 * size, means * centred.sum(axis=1)], [means * centred.sum(axis=1), (centred**2).sum(axis=1)]]
    )
    np.testing.assert_allclose(query_table(identity_factor(size), weights, size, family), known, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(gram_table(identity_factor(size), weights, size, family)[..., 0], known.sum(axis=2))
