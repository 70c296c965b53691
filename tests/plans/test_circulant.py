"""Circulant strategies, against their explicit matrices on few cells."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from dpscale.audit.evidence.sensitivities import digest, misshapen, norms
from dpscale.base.errors import PlanError
from dpscale.measurement.wide import limb_product
from dpscale.plans.circulant import CirculantFactor, gram_power, rounded_kernel
from dpscale.plans.factor import joint_quadratic
from dpscale.plans.plan import factor_fields, packed
from dpscale.workload import CIRCULAR, MARGINAL, PREFIX, RANGE
from dpscale.workload.residual import kron
from tests.messages import refused

SHAPES = [(7,), (2, 3), (5, 4), (3, 2, 4), (2, 2)]


def random_factor(shape):
    """Return a strategy with random eigenvalues at the frequencies that are 0 on no axis."""
    eigenvalues = np.abs(np.fft.fftn(np.random.default_rng(1).normal(size=shape))) + 0.1
    for axis in range(len(shape)):
        eigenvalues[(slice(None),) * axis + (0,)] = 0
    return CirculantFactor("circulant", shape, kernel=rounded_kernel(eigenvalues)), eigenvalues


def explicit_matrix(factor):
    """Return K by its definition."""
    cells = np.indices(factor.shape).reshape(len(factor.shape), -1)
    offsets = (cells[:, :, None] - cells[:, None, :]) % np.array(factor.shape)[:, None, None]
    return factor.kernel[tuple(offsets)]


@pytest.mark.parametrize("shape", SHAPES)
def test_properties_equal_explicit_matrix(shape):
    factor, eigenvalues = random_factor(shape)
    matrix = explicit_matrix(factor)
    np.testing.assert_array_equal(factor.explicit(), matrix)
    assert not matrix.reshape(-1, *shape).sum(axis=-1).any()
    assert np.linalg.matrix_rank(matrix.astype(float)) == np.prod([size - 1 for size in shape])
    exact = np.abs(matrix.astype(object))
    assert {factor.squared_l2_sensitivity} == set((exact**2).sum(axis=0))
    assert {factor.l1_sensitivity} == set(exact.sum(axis=0))
    assert factor.largest == exact.max()
    assert factor.largest_row_sum == exact.sum(axis=1).max()
    scaled = np.fft.fftn(factor.kernel).real
    np.testing.assert_allclose(scaled / scaled.max(), eigenvalues / eigenvalues.max(), atol=1e-10)
    counts = np.random.default_rng(0).integers(0, 1 << 40, (factor.cells, 2)).astype(object)
    np.testing.assert_array_equal(factor.apply(counts), matrix.astype(object) @ counts)
    assert pickle.loads(pickle.dumps(factor)).digest == factor.digest


@pytest.mark.parametrize("shape", SHAPES)
def test_estimates_equal_explicit_least_squares(shape):
    factor, rng = random_factor(shape)[0], np.random.default_rng(2)
    inverse = np.linalg.pinv(explicit_matrix(factor).astype(float), rcond=1e-12)
    covariance, scale = inverse @ inverse.T, np.abs(inverse).max()
    values, queries = rng.normal(size=(factor.cells, 2)), rng.normal(size=(3, factor.cells))
    np.testing.assert_allclose(factor.estimate(values), (inverse @ values).T, atol=1e-10 * scale)
    np.testing.assert_allclose(factor.joint_estimate(values), inverse @ values, atol=1e-10 * scale)
    np.testing.assert_allclose(factor.covariance, covariance, atol=1e-10 * scale**2)
    np.testing.assert_allclose(factor.apply_covariance(queries), queries @ covariance, atol=1e-9 * scale**2)
    assert factor.mean_variance == pytest.approx(np.diag(covariance).mean())
    known = np.einsum("ij,jk,ik->i", queries, covariance, queries)
    np.testing.assert_allclose(factor.array_quadratics(queries.reshape(3, *shape)), known, rtol=1e-8)


@pytest.mark.parametrize("shape", SHAPES)
def test_errors_of_products_equal_explicit_covariance(shape):
    factor = random_factor(shape)[0]
    inverse = np.linalg.pinv(explicit_matrix(factor).astype(float), rcond=1e-12)
    for families in ([RANGE, PREFIX, MARGINAL], [CIRCULAR, RANGE, PREFIX], [MARGINAL] * 3):
        own = families[: len(shape)]
        known = joint_quadratic(own, inverse @ inverse.T, shape)
        np.testing.assert_allclose(factor.product_quadratics(own), known, rtol=1e-8, atol=1e-9 * known.max())
        assert factor.product_trace(own) == pytest.approx(known.sum(), rel=1e-8)
    if len(shape) == 1:
        np.testing.assert_allclose(factor.quadratics(RANGE), factor.product_quadratics([RANGE]))
        assert factor.trace(PREFIX) == pytest.approx(factor.quadratics(PREFIX).sum())


@pytest.mark.parametrize("family", [MARGINAL, PREFIX, RANGE, CIRCULAR])
@pytest.mark.parametrize("size", [5, 8, 2100])
def test_power_of_a_gram_matrix_is_its_diagonal_in_the_fourier_basis(family, size):
    known = np.diag(np.fft.fft(np.fft.ifft(family.gram(size), axis=0), axis=1)).real
    np.testing.assert_allclose(gram_power(family, size), known, rtol=1e-7, atol=1e-9 * known.max())


@pytest.mark.parametrize("shape", [*SHAPES, (300, 20)])
def test_limbs_have_the_exact_product(shape):
    factor = random_factor(shape)[0]
    counts = np.random.default_rng(3).integers(0, 1 << 30, factor.cells)
    limbs, bits = limb_product([factor], counts)
    found = sum(limb.astype(object) << bits * place for place, limb in enumerate(limbs))
    spectrum = np.fft.fftn(factor.kernel) * np.fft.fftn(counts.reshape(shape))
    near = np.fft.ifftn(spectrum).real.reshape(-1)
    np.testing.assert_allclose(found.astype(float), near, atol=1e-9 * np.abs(near).max())
    if factor.cells < 100:
        np.testing.assert_array_equal(found, explicit_matrix(factor).astype(object) @ counts)


@pytest.mark.parametrize("shape", SHAPES)
def test_bundle_factor_gives_norms_and_digest(shape):
    factor = random_factor(shape)[0]
    fields = factor_fields(factor)
    assert not misshapen(fields)
    assert norms(fields) == (factor.squared_l2_sensitivity, factor.l1_sensitivity)
    assert digest(fields) == factor.digest


def planted_kernels(kernel):
    changed, longer = kernel.copy(), np.append(kernel, kernel[:1], axis=0)
    changed[1, 1] += 1
    along = kernel.copy()  # centred along the first axis alone
    along[0, 0] += 1
    along[1, 0] -= 1
    return {"entry": changed, "axis": along, "length": longer, "zero": 0 * kernel}


@pytest.mark.parametrize("fault", ["entry", "axis", "length", "zero"])
def test_planted_kernels_are_refused(fault):
    factor = random_factor((5, 4))[0]
    planted = planted_kernels(factor.kernel)[fault]
    assert misshapen(factor_fields(factor) | {"packed": packed(planted)})
    with refused(ValueError):
        replace(factor, kernel=planted)


def test_kernel_that_is_not_even_is_refused():
    kernel = np.array([[0, 1, -1], [0, -1, 1]])
    with refused(ValueError):
        CirculantFactor("circulant", (2, 3), kernel=kernel)


def test_matrix_of_many_cells_is_refused():
    factor = random_factor((150, 100))[0]
    for name in ("covariance", "inverse"):
        with refused(PlanError):
            getattr(factor, name)
    with refused(PlanError):
        factor.explicit()


def test_eigenvalues_that_rounding_would_lose_are_refused():
    eigenvalues = np.zeros((40, 40))
    eigenvalues[1:, 1:] = 1e-13
    eigenvalues[5, 5] = eigenvalues[-5, -5] = 1.0
    with refused(PlanError):
        rounded_kernel(eigenvalues)


def test_random_kernel_has_the_kron_form_of_products():
    """The kernel n·1₀ − 1 of every axis gives the product of centring matrices."""
    kernel = np.multiply.outer([4, -1, -1, -1, -1], [2, -1, -1])
    factor = CirculantFactor("circulant", (5, 3), kernel=kernel)
    np.testing.assert_array_equal(factor.explicit(), kron([5 * np.eye(5) - 1, 3 * np.eye(3) - 1]))
