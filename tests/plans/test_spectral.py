"""Spectral strategies of wide axes, against their explicit matrices on small axes and the bound on large ones."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

import dpscale as dp
from dpscale.audit.evidence.sensitivities import autocorrelation, digest, misshapen, norms, of_columns
from dpscale.base.errors import PlanError
from dpscale.optimize.baselines import hierarchical, layered_tree, layered_wavelet, wavelet
from dpscale.optimize.long_axis import whole_bound
from dpscale.plans.factor_fields import factor_fields, packed
from dpscale.plans.spectral import ordered_products, ordered_sums, spectral_factor
from dpscale.workload import CIRCULAR, FAMILIES, MARGINAL, PREFIX, RANGE

CASES = [(family, size) for family in (RANGE, CIRCULAR) for size in (2, 3, 7, 20, 21)]


def explicit_matrix(factor):
    """Return K by its definition."""
    cells, period = np.arange(factor.cells), factor.period
    distances = lambda values: np.minimum(values % period, -values % period)  # noqa: E731
    matrix = factor.coefficients[distances(np.subtract.outer(cells, cells))]
    if not factor.circle:
        matrix = matrix - factor.coefficients[distances(np.add.outer(cells, cells) + 2)]
    return matrix * factor.multipliers


@pytest.mark.parametrize(("family", "size"), CASES)
def test_properties_equal_explicit_matrix(family, size):
    factor = spectral_factor(family, size)
    matrix = explicit_matrix(factor)
    np.testing.assert_array_equal(factor.explicit(), matrix)
    exact = np.abs(matrix.astype(object))
    assert factor.column_norms(2) == (exact**2).sum(axis=0).tolist()
    assert factor.column_norms(1) == exact.sum(axis=0).tolist()
    assert factor.squared_l2_sensitivity == (exact**2).sum(axis=0).max()
    assert factor.largest >= exact.max()
    assert factor.largest_row_sum >= exact.sum(axis=1).max()
    counts = np.random.default_rng(0).integers(0, 1 << 40, (size, 2)).astype(object)
    np.testing.assert_array_equal(factor.apply(counts), matrix.astype(object) @ counts)
    assert pickle.loads(pickle.dumps(factor)).digest == factor.digest


@pytest.mark.parametrize(("family", "size"), CASES)
def test_estimates_equal_explicit_least_squares(family, size):
    factor, rng = spectral_factor(family, size), np.random.default_rng(2)
    inverse = np.linalg.inv(explicit_matrix(factor).astype(float))
    covariance = inverse @ inverse.T
    scale = covariance.max()
    values, cells = rng.normal(size=(size, 2)), rng.normal(size=(3, size, 2))
    np.testing.assert_allclose(factor.estimate(values), (inverse @ values).T, atol=1e-10 * np.abs(inverse).max())
    np.testing.assert_allclose(factor.covariance, covariance, atol=1e-10 * scale)
    expected = np.tensordot(cells, covariance, axes=(1, 0))
    np.testing.assert_allclose(factor.apply_covariance(cells), expected, atol=1e-9 * np.abs(expected).max())
    assert factor.mean_variance == pytest.approx(np.diag(covariance).mean())
    np.testing.assert_allclose(factor.sums_covariance(np.arange(size + 1)), covariance, atol=1e-9 * scale)
    for queries in (RANGE, PREFIX, MARGINAL, *[CIRCULAR] * factor.circle):
        known = np.einsum("ij,jk,ik->i", queries.matrix(size), covariance, queries.matrix(size))
        np.testing.assert_allclose(factor.quadratics(queries), known, rtol=1e-8)
        assert factor.trace(queries) == pytest.approx(known.sum(), rel=1e-8)


@pytest.mark.parametrize("size", [1, 2, 5, 16, 33])
def test_ordered_products_equal_double_sum(size):
    left, right = np.random.default_rng(1).random((2, size))
    known = np.zeros(2 * size)
    for i in range(size):
        for j in range(i + 1, size):
            known[i + j] += left[i] * right[j]
    found = ordered_products(left, right)
    np.testing.assert_allclose(found[: 2 * size], known, atol=1e-12)
    np.testing.assert_allclose(found[2 * size :], 0, atol=1e-12)


def test_variances_of_many_sums_equal_products_with_the_covariance():
    factor, ends = spectral_factor(RANGE, 20_000), np.array([1, 2, 77, 9000, 19_999, 20_000])
    sums = (np.arange(20_000) < ends[:, None]).astype(float)
    known = (factor.apply_covariance(sums) * sums).sum(axis=1)
    np.testing.assert_allclose(factor.quadratics(PREFIX)[ends - 1], known, rtol=1e-8)


def test_ordered_sums_equal_double_sum():
    rng = np.random.default_rng(5)
    values, kernel = rng.random(21), rng.random(42)
    known = [sum(values[j] * kernel[i + j] for j in range(i)) for i in range(21)]
    np.testing.assert_allclose(ordered_sums(values, kernel), known, atol=1e-12)


@pytest.mark.parametrize("size", [3000, 20_000])
def test_range_error_is_near_the_bound(size):
    factor = spectral_factor(RANGE, size)
    assert 1 <= factor.trace(RANGE) * factor.squared_l2_sensitivity / whole_bound(RANGE, size) < 1.0002


@pytest.mark.parametrize("size", [3000, 20_001])
def test_arc_error_is_the_optimum(size):
    """The optimum of an invariant workload is (Σ σ)²/n, with σ² the eigenvalues of its Gram matrix."""
    factor = spectral_factor(CIRCULAR, size)
    eigenvalues = np.fft.fft(CIRCULAR.times_gram(np.eye(1, size)[0])).real
    known = np.sqrt(eigenvalues).sum() ** 2 / size
    assert factor.trace(CIRCULAR) * factor.squared_l2_sensitivity == pytest.approx(known, rel=1e-8)


@pytest.mark.parametrize("families", [["range"], ["circular"], ["range", "marginal"], ["range", "prefix"]])
@pytest.mark.parametrize("mechanism", ["weighted-residuals", "hdmm"])
def test_plan_error_is_that_of_dense_strategies(families, mechanism):
    """The optimum of the same queries on fewer cells grows by the logarithm of the cells."""
    workload = dp.Workload(dp.Domain({"a": 2100}))
    for family in families:
        workload.add(family, degree=1)
    made = dp.plan(workload.add("marginal", degree=0), mechanism)
    (factor,) = (factor for block in made.blocks for factor in block.factors)
    assert factor.kind == "spectral"
    covariance = factor.apply_covariance(np.eye(2100))
    gram = sum(FAMILIES[family].gram(2100) for family in families) + 1
    assert made.error == pytest.approx((gram * covariance).sum() * factor.squared_l2_sensitivity, rel=1e-8)
    assert made.error < 1.001 * made.bound


def test_ranges_beside_arcs_keep_two_levels():
    workload = dp.Workload(dp.Domain({"a": 2100})).add("range", degree=1).add("circular", degree=1)
    with pytest.raises(PlanError, match="use weighted-residuals"):
        dp.plan(workload, "hdmm")
    assert {factor.kind for block in dp.plan(workload).blocks for factor in block.factors} == {"nested"}


@pytest.mark.parametrize("strategy", ["wavelet", "hierarchical", "hb"])
def test_baselines_of_a_wide_attribute(strategy):
    made = dp.plan(dp.Workload(dp.Domain({"a": 4096})).add("range", degree=1), "baseline", strategy=strategy)
    assert [factor.kind for block in made.blocks for factor in block.factors] == ["layered"]
    assert made.error > 1.1 * made.bound


@pytest.mark.parametrize(
    ("layered", "dense"),
    [(layered_wavelet(64), wavelet(64)), (layered_tree(64), hierarchical(64)),
     (layered_tree(64, 4, root=False), hierarchical(64, 4, root=False))],
)  # fmt: skip
def test_trees_have_the_gram_matrix_of_dense_baselines(layered, dense):
    matrix = layered.explicit().astype(float)
    scale = np.abs(dense.T @ dense).max() / np.abs(matrix.T @ matrix).max()
    np.testing.assert_allclose(scale * matrix.T @ matrix, dense.T @ dense, atol=1e-4)


def test_wavelet_of_a_wide_attribute_is_refused_under_pure_noise():
    workload = dp.Workload(dp.Domain({"a": 4096})).add("range", degree=1)
    with pytest.raises(PlanError, match="use hierarchical or hb"):
        dp.plan(workload, "baseline", strategy="wavelet", noise="laplace")


@pytest.mark.parametrize(("family", "size"), [*CASES, (RANGE, 500)])
def test_bundle_factor_gives_norms_and_digest(family, size):
    factor = spectral_factor(family, size)
    fields = factor_fields(factor)
    assert not misshapen(fields)
    assert of_columns(fields) == list(zip(factor.column_norms(2), factor.column_norms(1), strict=True))
    assert norms(fields) == (factor.squared_l2_sensitivity, factor.l1_sensitivity)
    assert digest(fields) == factor.digest
    raised = fields | {"multipliers": packed(factor.multipliers + 1)}
    assert norms(raised) > norms(fields)
    assert digest(raised) != factor.digest


def test_autocorrelation_is_exact():
    half = [7, 5, 5, 2, 0]
    series = half + half[1:-1][::-1]
    known = [sum(series[i] * series[i - k] for i in range(len(series))) for k in range(len(series))]
    assert autocorrelation(series) == known


@pytest.mark.parametrize("planted", [{"shape": [20]}, {"circle": True}, {"multipliers": packed(np.zeros(21, np.int64))},
                                     {"coefficients": packed(np.arange(23))}])  # fmt: skip
def test_bundle_refuses_planted_coefficients(planted):
    assert misshapen(factor_fields(spectral_factor(RANGE, 21)) | planted)


def test_wrong_integers_are_refused():
    factor = spectral_factor(RANGE, 21)
    for wrong in ({"coefficients": factor.coefficients[:-1]}, {"coefficients": factor.coefficients[::-1]},
                  {"multipliers": factor.multipliers * 0}, {"multipliers": factor.multipliers[:-1]}, {"circle": True},
                  {"shape": (22,)}, {"coefficients": factor.coefficients * (1 << 12)}):  # fmt: skip
        with pytest.raises(ValueError, match="spectral strategy"):
            replace(factor, **wrong)
