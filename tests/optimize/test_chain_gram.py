"""Gram matrices with a tridiagonal inverse: their optima against the general solver, and their dual bounds."""

import numpy as np
import pytest

from dpscale.optimize.convex import optimise
from dpscale.optimize.long_axis import (
    LinearAxis,
    WideRoot,
    centred_bound,
    chain_of,
    chain_of_family,
    rooted_weights,
    spread_weights,
    whole_bound,
)
from dpscale.optimize.opt_explicit import p_identity_error
from dpscale.workload import FAMILIES, PREFIX, RANGE, root_of
from dpscale.workload.residual import profile_of
from dpscale.workload.wide import WideGram, weighted_piece, wide_scale

CHAINS = ("prefix", "range")


@pytest.mark.parametrize("family", CHAINS)
def test_optimum_equals_that_of_general_solver(family):
    gram = FAMILIES[family].gram(160)
    gram = gram / np.trace(gram)
    found, known = chain_of(gram).optimum(1e-7), optimise(root_of(gram), (160,), 1e-7)
    assert found.gap < 1e-7
    assert found.primal == pytest.approx(known.primal, rel=1e-6)
    assert (found.root**2).sum(axis=0).max() == pytest.approx(1)
    assert np.trace(gram @ np.linalg.inv(found.root.T @ found.root)) == pytest.approx(found.primal, rel=1e-9)


@pytest.mark.parametrize("family", CHAINS)
def test_inverse_and_products_equal_explicit_matrix(family):
    chain, gram = chain_of_family(FAMILIES[family], 40), FAMILIES[family].gram(40)
    inverse = np.diag(chain.diagonal) + np.diag(chain.off_diagonal, 1) + np.diag(chain.off_diagonal, -1)
    np.testing.assert_allclose(inverse @ gram, np.eye(40), atol=1e-9)
    rows = np.random.default_rng(0).random((3, 40))
    np.testing.assert_allclose(chain.times(rows), rows @ gram)
    weights = np.random.default_rng(1).dirichlet(np.ones(40))
    nuclear = np.sqrt(np.linalg.eigvalsh(gram * np.sqrt(np.outer(weights, weights)))).sum()
    assert chain.evaluate(weights).trace == pytest.approx(nuclear, rel=1e-7)


def test_matrices_without_tridiagonal_inverse_are_not_chains():
    prefix = PREFIX.gram(200)
    assert chain_of(prefix + 3) is not None  # Total is added to the last cell of every query
    assert chain_of(prefix + np.eye(200)) is None
    assert chain_of(prefix[:50, :50]) is None  # few cells
    assert chain_of(FAMILIES["circular"].gram(200)) is None


@pytest.mark.parametrize("family", CHAINS)
def test_bounds_are_nearly_the_optimum_and_not_above_it(family):
    size = 1200
    chain = chain_of_family(FAMILIES[family], size)
    optimum, bound = chain.optimum(1e-6), whole_bound(FAMILIES[family], size)
    assert optimum.dual * (1 - 1e-3) < bound <= optimum.primal
    gram = weighted_piece(FAMILIES[family].gram(80), np.full(80, 1 / 80))[0]
    centred = optimise(root_of(gram), (80,), 1e-8)
    assert centred.primal * (1 - 1e-2) < centred_bound(FAMILIES[family], 80, None) <= centred.primal
    assert whole_bound(FAMILIES["circular"], size) is None


@pytest.mark.parametrize("size", [10_000, 1_000_000])
@pytest.mark.parametrize("family", CHAINS)
def test_sums_of_roots_on_many_cells_equal_closed_form(family, size):
    """With equal weights the dual value is the sum of the singular values of the queries."""
    point = chain_of_family(FAMILIES[family], size).evaluate(np.full(size, 1 / size))
    assert point.trace * size**0.5 == pytest.approx(FAMILIES[family].whole_trace(size), rel=2e-8)


@pytest.mark.parametrize("family", CHAINS)
def test_centred_sums_of_roots_on_many_cells_equal_closed_form(family):
    size = 300_000
    axis, profile = LinearAxis("", FAMILIES[family], size, (None,)), np.full(size, 1 / size)
    found = axis.evaluate(profile).trace * size**0.5
    assert found == pytest.approx(FAMILIES[family].centred_trace(profile), rel=1e-6 if family == "prefix" else 1e-3)


@pytest.mark.parametrize("family", [PREFIX, RANGE])
def test_error_and_bound_of_a_root_enclose_the_dense_optimum(family):
    size = 300
    weights = rooted_weights([family], size, alone=False)
    profile = profile_of(weights, size)
    centred, square = weighted_piece(family.gram(size), profile)
    trace, known = wide_scale(family, size, weights)
    assert (trace, known) == pytest.approx((np.trace(centred), square), rel=1e-9)
    problem = WideRoot(WideGram("", size, weights, ((family, 1 / trace),)))
    optimum = problem.solved(None)
    factor, error = problem.rounded(optimum, 25, "gaussian")
    dense = optimise(root_of((centred + centred.T) / (2 * trace)), (size,), 1e-7)
    assert dense.primal * (1 - 1e-3) < optimum.dual <= dense.primal
    assert dense.primal * (1 - 1e-7) < error < 1.005 * dense.primal
    covariance = factor.apply_covariance(np.eye(size)[None])[0]
    expected = (centred * covariance).sum() / trace * factor.squared_l2_sensitivity
    assert error == pytest.approx(expected, rel=1e-7)


def test_interpolated_weights_keep_their_sums():
    coarse = np.random.default_rng(2).dirichlet(np.ones(10))
    fine = spread_weights(coarse, 50)
    np.testing.assert_allclose(fine.reshape(10, 5).sum(axis=1), coarse)


def test_p_identity_error_is_the_same_with_products_of_a_chain():
    gram, parameters = PREFIX.gram(150), np.random.default_rng(3).random((4, 150))
    plain, fast = p_identity_error(gram, parameters), p_identity_error(gram, parameters, chain_of(gram).times)
    assert fast[0] == pytest.approx(plain[0], rel=1e-9)
    np.testing.assert_allclose(fast[1], plain[1], rtol=1e-7, atol=1e-6)


def scaled(weights):
    return weights[:, None] * PREFIX.gram(len(weights)) * weights


@pytest.mark.parametrize(
    "gram",
    [
        scaled(np.resize([1.0, 0.5], 160)),
        scaled(np.linspace(1, 5, 160)),
        scaled(np.random.default_rng(0).uniform(0.3, 1, 160)),
        PREFIX.gram(160) + 1e9,
    ],
    ids=["alternating", "rising", "random", "large total"],
)
def test_gram_with_negative_or_tiny_row_sums_of_its_inverse_is_no_chain(gram):
    """The loops need row sums of at least 0; a sum that is set to 0 would be another problem."""
    assert chain_of(gram) is None


@pytest.mark.parametrize("gram", [PREFIX.gram(160), PREFIX.gram(160) + 1e7, PREFIX.gram(2048)])
def test_chain_states_the_dual_of_its_own_gram_matrix(gram):
    chain = chain_of(gram)
    weights = np.full(len(gram), 1 / len(gram))
    dual = np.sqrt(np.linalg.eigvalsh(gram / len(gram))).sum() ** 2
    assert chain.evaluate(weights).trace ** 2 == pytest.approx(dual, rel=1e-6)
