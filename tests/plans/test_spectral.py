"""Spectral strategies of wide axes, against their explicit matrices on small axes and the bound on large ones."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

import dpscale as dp
from dpscale.audit.evidence.sensitivities import cyclic_product, digest, misshapen, norms, of_columns
from dpscale.base.errors import PlanError
from dpscale.optimize.baselines import hierarchical, layered_tree, layered_wavelet, wavelet
from dpscale.optimize.long_axis import whole_bound
from dpscale.plans.plan import factor_fields, packed
from dpscale.plans.spectral import ordered_products, ordered_sums, spectral_factor
from dpscale.workload import CIRCULAR, FAMILIES, MARGINAL, PREFIX, RANGE
from tests.messages import refused

SIZES = (2, 3, 7, 20, 21)
BOTH = pytest.mark.parametrize("even", [False, True])


def explicit_matrix(factor):
    """Return K by its definition."""
    cells, known = np.arange(factor.cells), factor.coefficients.astype(object)
    near, far = known[np.abs(np.subtract.outer(cells, cells))], np.add.outer(cells, cells)
    if factor.even:  # t is odd about N/4
        last, turned = len(known) - 1, 2 * factor.cells - far
        near = near + np.where(far < last, known[np.minimum(far + 1, last)], -known[np.minimum(turned, last)])
    else:
        near = near - known[np.minimum(far + 2, 2 * factor.cells + 2 - (far + 2))]
    root = near * factor.multipliers
    (weights,) = factor.weights
    return root * sum(weights) - (root @ np.array(weights, object))[:, None]


def explicit_covariance(factor):
    """Return the covariance of the centred part of the cells, by the pseudo-inverse."""
    matrix, (weights,) = explicit_matrix(factor).astype(float), factor.weights
    centring = np.eye(factor.cells) - np.outer(weights, np.ones(factor.cells)) / sum(weights)
    inverse = centring @ np.linalg.pinv(matrix, rcond=1e-9)
    return inverse, inverse @ inverse.T


@BOTH
@pytest.mark.parametrize("size", SIZES)
def test_properties_equal_explicit_matrix(size, even):
    factor = spectral_factor(size, even)
    matrix, (weights,) = explicit_matrix(factor), factor.weights
    assert not (matrix @ np.array(weights, object)).any()
    counts = np.random.default_rng(0).integers(0, 1 << 40, (size, 2)).astype(object)
    np.testing.assert_array_equal(factor.apply(counts), matrix @ counts)
    small = counts.astype(np.int64) >> 30
    np.testing.assert_array_equal(factor.apply(small), matrix @ small.astype(object))
    assert factor.column_norms(2) == (matrix**2).sum(axis=0).tolist()
    assert all(bound >= own for bound, own in zip(factor.column_norms(1), abs(matrix).sum(axis=0), strict=True))
    assert factor.squared_l2_sensitivity == (matrix**2).sum(axis=0).max()
    assert factor.largest >= abs(matrix).max()
    assert factor.largest_row_sum >= abs(matrix).sum(axis=1).max()
    assert pickle.loads(pickle.dumps(factor)).digest == factor.digest


@BOTH
@pytest.mark.parametrize("size", SIZES)
def test_estimates_equal_explicit_least_squares(size, even):
    factor, rng = spectral_factor(size, even), np.random.default_rng(2)
    inverse, covariance = explicit_covariance(factor)
    scale = covariance.max()
    values, cells = rng.normal(size=(size, 2)), rng.normal(size=(3, size, 2))
    np.testing.assert_allclose(factor.estimate(values), (inverse @ values).T, atol=1e-10 * np.abs(inverse).max())
    expected = np.tensordot(cells, covariance, axes=(1, 0))
    np.testing.assert_allclose(factor.apply_covariance(cells), expected, atol=1e-9 * np.abs(expected).max())
    assert factor.mean_variance == pytest.approx(np.diag(covariance).mean())
    np.testing.assert_allclose(factor.sums_covariance(np.arange(size + 1)), covariance, atol=1e-9 * scale)
    for queries in (RANGE, PREFIX, MARGINAL, CIRCULAR):
        known = np.einsum("ij,jk,ik->i", queries.matrix(size), covariance, queries.matrix(size))
        np.testing.assert_allclose(factor.quadratics(queries), known, rtol=1e-8, atol=1e-9 * scale)
        if queries is not CIRCULAR:
            assert factor.trace(queries) == pytest.approx(known.sum(), rel=1e-8)


@BOTH
@pytest.mark.parametrize("size", [64, 500])
def test_total_and_centred_part_lose_nothing(size, even):
    """With the total, the Gram matrix is that of the root on all cells, whose columns are nearly equal."""
    factor, family = spectral_factor(size, even), PREFIX if even else RANGE
    matrix = explicit_matrix(factor).astype(float) / factor.scale
    root = np.array(factor.squared_norms, float)
    gram, least = matrix.T @ matrix, root.max() - factor.squared_l2_sensitivity / factor.scale**2
    assert least > 0
    assert np.ptp(np.diag(gram) + least) < 2e-3 * root.max()
    error = (factor.trace(family) * factor.squared_l2_sensitivity) ** 0.5
    profile = np.array(factor.weights[0]) / factor.scale
    total = (profile @ family.times_gram(profile)) ** 0.5
    assert 1 <= (error + total) ** 2 / whole_bound(family, size) < 1.001 + 0.003 * even


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


@BOTH
def test_variances_of_many_sums_equal_products_with_the_covariance(even):
    factor, ends = spectral_factor(20_000, even), np.array([1, 2, 77, 9000, 19_999])
    sums = (np.arange(20_000) < ends[:, None]).astype(float)
    known = (factor.apply_covariance(sums) * sums).sum(axis=1)
    np.testing.assert_allclose(factor.quadratics(PREFIX)[ends - 1], known, rtol=1e-8)


def test_ordered_sums_equal_double_sum():
    rng = np.random.default_rng(5)
    values, kernel = rng.random(21), rng.random(42)
    known = [sum(values[j] * kernel[i + j] for j in range(i)) for i in range(21)]
    np.testing.assert_allclose(ordered_sums(values, kernel), known, atol=1e-12)


KINDS = {"range": "spectral", "circular": "circulant", "prefix": "spectral"}


@pytest.mark.parametrize("families", [["range"], ["circular"], ["prefix"], ["range", "marginal"], ["range", "prefix"],
                                      ["range", "circular"], ["circular", "marginal"]])  # fmt: skip
@pytest.mark.parametrize("mechanism", ["weighted-residuals", "hdmm"])
def test_plan_error_is_that_of_dense_strategies(families, mechanism):
    workload = dp.Workload(dp.Domain({"a": 2100}))
    for family in families:
        workload.add(family, degree=1)
    made = dp.plan(workload.add("marginal", degree=0), mechanism)
    (factor,) = (factor for block in made.blocks for factor in block.factors)
    kind = KINDS["circular" if "circular" in families else families[0]]
    assert factor.kind == kind
    (share,) = (block.share for block in made.blocks if block.factors)
    covariance = factor.apply_covariance(np.eye(2100)[None])[0]
    profile = np.full(2100, 1 / 2100) if kind == "circulant" else np.array(factor.weights[0]) / sum(factor.weights[0])
    gram = sum(FAMILIES[family].gram(2100) for family in families) + 1
    centred = (gram * covariance).sum() * factor.squared_l2_sensitivity / share
    assert made.error == pytest.approx(centred + profile @ gram @ profile / (1 - share), rel=1e-6)
    if mechanism == "weighted-residuals":
        bound = made.bound_all**2 * made.query_count
        assert made.error < {"spectral": 1.005, "circulant": 1.02}[kind] * bound


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
    with refused(PlanError):
        dp.plan(workload, "baseline", strategy="wavelet", noise="laplace")


@BOTH
@pytest.mark.parametrize("size", [*SIZES, 500])
def test_bundle_factor_gives_norms_and_digest(size, even):
    factor = spectral_factor(size, even)
    fields = factor_fields(factor)
    assert not misshapen(fields)
    assert of_columns(fields) == list(zip(factor.column_norms(2), factor.column_norms(1), strict=True))
    assert norms(fields) == (factor.squared_l2_sensitivity, factor.l1_sensitivity)
    assert digest(fields) == factor.digest
    raised = fields | {"multipliers": packed(factor.multipliers + 1)}
    assert norms(raised) > norms(fields)
    assert digest(raised) != factor.digest


def test_cyclic_product_is_exact():
    first, second = [7, 5, 5, 2, 0, 2, 5, 5], [1, 0, 99, 3, 4, 0, 0, 8]
    known = [sum(first[i - k] * second[k] for k in range(8)) for i in range(8)]
    assert cyclic_product(first, second) == known


@pytest.mark.parametrize("planted", [{"shape": [20]}, {"multipliers": packed(np.zeros(21, np.int64))},
                                     {"spread": packed(np.zeros(21, np.int64))}, {"spread": packed(np.ones(20, int))},
                                     {"coefficients": packed(np.arange(23))}, {"even": True},
                                     {"columns": {"sha256": "", "squared": ["0"] * 21, "absolute": ["0"] * 21}},
                                     {"levels": []}, {"matrix": [[0] * 21]}])  # fmt: skip
def test_bundle_refuses_planted_integers(planted):
    """Other entries beside the integers would hide their sensitivity."""
    assert misshapen(factor_fields(spectral_factor(21)) | planted)


def test_wrong_integers_are_refused():
    factor = spectral_factor(21)
    for wrong in ({"coefficients": factor.coefficients[:-1]}, {"coefficients": factor.coefficients[::-1]},
                  {"multipliers": factor.multipliers * 0}, {"multipliers": factor.multipliers[:-1]},
                  {"shape": (22,)}, {"coefficients": factor.coefficients * (1 << 20)}, {"weights": None},
                  {"even": True},
                  {"weights": ((1,) * 20,)}, {"weights": ((0,) * 21,)}, {"weights": ((-1, *[1] * 20),)}):  # fmt: skip
        with refused(ValueError):
            replace(factor, **wrong)
