"""Toeplitz strategies of wide axes, against their explicit matrices on small axes and Python integers on large ones."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from dpscale.base.errors import PlanError
from dpscale.plans import toeplitz
from dpscale.plans.toeplitz import ToeplitzFactor, root_quadrature, toeplitz_factor
from dpscale.workload import FAMILIES, PREFIX
from dpscale.workload.residual import profile_of

SIZES = [2, 3, 22, 300]
ONE_WAY = ("marginal", "prefix", "range", "circular")
ROUNDING = 1e-6  # relative effect of the rounding of T on single variances; on means it is smaller


def uneven_factor(size, seed=0):
    """Return a strategy with random multipliers."""
    own = np.random.default_rng(seed).integers(1, 9000, size - 1)
    return replace(toeplitz_factor(size), multipliers=own)


def explicit_matrix(factor):
    """Return K by its definition."""
    behind = np.subtract.outer(np.arange(factor.rows), np.arange(factor.rows))
    lower = np.where(behind >= 0, factor.coefficients[np.abs(behind)], 0) * factor.multipliers
    return np.hstack([lower, np.zeros((factor.rows, 1), np.int64)])


def explicit_inverse(factor):
    """Return the least squares estimate of cells with sum zero."""
    inverse = np.linalg.inv(explicit_matrix(factor)[:, :-1].astype(float))
    return np.vstack([inverse, -inverse.sum(axis=0)])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", [toeplitz_factor, uneven_factor])
def test_properties_equal_explicit_matrix(size, make):
    factor = make(size)
    matrix = explicit_matrix(factor)
    np.testing.assert_array_equal(factor.explicit(), matrix)
    assert not (matrix @ profile_of(factor.weights[0], size)).any()
    exact = np.abs(matrix).astype(object)
    assert factor.squared_l2_sensitivity == max((exact**2).sum(axis=0))
    assert factor.column_norms(2) == list((exact**2).sum(axis=0))
    assert factor.l1_sensitivity == max(exact.sum(axis=0))
    assert factor.largest == exact.max()
    assert factor.largest_row_sum == max(exact.sum(axis=1))
    assert factor.spans_all
    assert factor.rows == size - 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", [toeplitz_factor, uneven_factor])
def test_estimates_equal_explicit_least_squares(size, make):
    factor, rng = make(size), np.random.default_rng(2)
    inverse = explicit_inverse(factor)
    covariance = inverse @ inverse.T
    scale = covariance.max()
    values, cells = rng.normal(size=(factor.rows, 2)), rng.normal(size=(3, size, 2))
    np.testing.assert_allclose(factor.estimate(values), (inverse @ values).T, atol=1e-12 * np.abs(inverse).max())
    np.testing.assert_allclose(factor.estimate(values.T, 1), (inverse @ values).T, atol=1e-12 * np.abs(inverse).max())
    np.testing.assert_allclose(factor.covariance, covariance, atol=1e-11 * scale)
    expected = np.tensordot(cells, covariance, axes=(1, 0))
    np.testing.assert_allclose(factor.apply_covariance(cells), expected, atol=1e-10 * np.abs(expected).max())
    assert factor.mean_variance == pytest.approx(np.diag(covariance).mean(), rel=ROUNDING)
    np.testing.assert_allclose(factor.sums_covariance(np.arange(size + 1)), covariance, atol=ROUNDING * scale)
    for name in ONE_WAY:
        found, known = factor.quadratics(FAMILIES[name]), FAMILIES[name].quadratic(covariance)
        np.testing.assert_allclose(found, known, atol=ROUNDING * known.max())
        assert factor.trace(FAMILIES[name]) == pytest.approx((FAMILIES[name].gram(size) * covariance).sum(), rel=1e-7)


def test_error_on_many_cells_equals_exact_sums():
    """The oracle adds the rows of W K⁻¹ with the inverse of the rounded T."""
    factor = toeplitz_factor(6001)
    series, scales = toeplitz._inverse_coefficients(6000), factor._scales
    np.testing.assert_allclose(np.convolve(series, factor.coefficients)[1:6000], 0, atol=1e-7)
    total = np.zeros(6000)
    for start in range(6000):
        total[start:] += np.cumsum(series[: 6000 - start] * scales[start:]) ** 2
    np.testing.assert_allclose(factor.quadratics(PREFIX)[:-1], total, rtol=1e-7)
    assert factor.trace(PREFIX) == pytest.approx(total.sum(), rel=2e-8)
    with pytest.raises(AssertionError):  # a planted error of a millionth
        np.testing.assert_allclose(factor.quadratics(PREFIX)[:-1] * (1 + 1e-6), total, rtol=1e-7)


@pytest.mark.parametrize("size", [3000, 70_000])
@pytest.mark.parametrize("words", [True, False])
def test_products_are_exact(size, words):
    factor, rng = toeplitz_factor(size), np.random.default_rng(1)
    values = rng.integers(-(2**14), 2**14, size) if words else rng.integers(-(2**60), 2**60, size).astype(object)
    found = factor.apply(values)
    for row in (0, 1, 77, size // 2, size - 2):
        terms = zip(factor.coefficients[: row + 1][::-1].tolist(), factor.multipliers.tolist(), values.tolist(),
                    strict=False)  # fmt: skip
        assert int(found[row]) == sum(t * d * value for t, d, value in terms)


def test_wider_digits_would_not_be_exact(monkeypatch):
    """The planted fault: digits for which the bound of the error is far above 1/4."""
    factor = toeplitz_factor(20_000)
    values = np.random.default_rng(3).integers(0, 2**45, 20_000).astype(object)
    exact = factor.apply(values)
    monkeypatch.setattr(toeplitz, "_digit_bits", lambda rows: 30)
    assert not np.array_equal(factor.apply(values), exact)


def test_columns_have_nearly_equal_norms():
    norms = np.array(toeplitz_factor(100_000).column_norms(2)[:-1], float)
    assert norms.min() > (1 - 1e-3) * norms.max()


def test_foreign_integers_are_refused():
    factor = toeplitz_factor(12)
    changed = factor.coefficients.copy()
    changed[3] += 1
    for name, values, text in (
        ("coefficients", changed, "square root"),
        ("multipliers", factor.multipliers[1:], "multipliers"),
        ("multipliers", factor.multipliers * 0, "multipliers"),
        ("multipliers", factor.multipliers << 20, "large"),
        ("weights", None, "last"),
    ):
        with pytest.raises(ValueError, match=text):
            replace(factor, **{name: values})
    again = pickle.loads(pickle.dumps(factor))
    assert (type(again), again.digest) == (ToeplitzFactor, factor.digest)
    with pytest.raises(PlanError, match="at most"):
        toeplitz_factor(10_000).quadratics(FAMILIES["range"])


@pytest.mark.parametrize(("spread", "count"), [(1e2, 32), (1e9, 32), (1e15, 32), (1e16, 64)])
def test_quadrature_gives_inverse_square_roots(spread, count):
    """At 10¹⁵ the elliptic functions of SciPy are wrong by far more."""
    nodes, shares = root_quadrature(1.0, spread, count)
    for value in np.geomspace(1, spread, 50):
        assert (shares / (value + nodes**2)).sum() == pytest.approx(value**-0.5, rel=1e-6)


def forged_fields(factor, **changes):
    from dpscale.plans.factor_fields import factor_fields

    return factor_fields(factor) | changes


@pytest.mark.parametrize("forgery", ["columns", "matrix", "short", "negative", "zero"])
def test_checker_refuses_other_entries_of_a_toeplitz_strategy(forgery):
    """A digest that is stated beside other integers would hide their sensitivity."""
    from dpscale.audit.evidence import sensitivities
    from dpscale.plans.factor_fields import packed

    factor = toeplitz_factor(40)
    own = np.concatenate([factor.coefficients, factor.multipliers])
    assert sensitivities.norms(forged_fields(factor))[0] == factor.squared_l2_sensitivity
    columns = {"sha256": factor.digest, "squared": ["0"] * 40, "absolute": ["0"] * 40}
    changes = {"columns": {"columns": columns}, "matrix": {"matrix": [[0] * 40]},
               "short": {"packed": packed(own[:-1])},
               "negative": {"packed": packed(np.where(np.arange(78) == 0, -own, own))},
               "zero": {"packed": packed(np.where(np.arange(78) == 77, 0, own))}}[forgery]  # fmt: skip
    with pytest.raises(ValueError, match="Toeplitz"):
        sensitivities.norms(forged_fields(factor, **changes))
