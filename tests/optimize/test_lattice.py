import math

import numpy as np
import pytest

from dpscale.optimize.convex import optimise
from dpscale.optimize.integer_strategies import bits_for, error_coefficient, round_strategy
from dpscale.plans.factor import Factor, center_factor
from dpscale.workload import FAMILIES, axis_of, root_of
from dpscale.workload.residual import kron


@pytest.mark.parametrize("family", ["prefix", "range"])
@pytest.mark.parametrize("size", [3, 10, 50])
@pytest.mark.parametrize("matrices", [1, 2, 3])
def test_rounding_loses_less_than_one_thousandth(family, size, matrices):
    gram = axis_of(FAMILIES[family], size).factor.gram
    optimum = optimise(root_of(gram))
    factor = round_strategy(root_of(gram), optimum.root, (size,), bits_for(matrices))
    assert error_coefficient(factor, root_of(gram)) >= optimum.dual
    assert error_coefficient(factor, root_of(gram)) / optimum.dual - 1 < 2e-3 / matrices  # a thousandth of the RMSE


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)])
def test_rounded_rows_are_centred_on_every_axis(shape):
    rng = np.random.default_rng(0)
    cells = int(np.prod(shape))
    rank = math.prod(n - 1 for n in shape)
    root = rng.normal(size=(rank, cells))
    factor = round_strategy(kron([np.eye(n) - 1 / n for n in shape]), root, shape, 20)
    cube = factor.explicit().reshape(rank, *shape)
    for axis in range(1, cube.ndim):
        assert not cube.sum(axis=axis).any()


@pytest.mark.parametrize("factor", [center_factor(6), Factor("identity", (6,))])
def test_implicit_factors_equal_their_matrices(factor):
    matrix = factor.explicit().astype(float)
    assert factor.squared_l2_sensitivity == (matrix**2).sum(axis=0).max()
    assert factor.largest == np.abs(matrix).max()
    centring = np.eye(6) - 1 / 6
    if factor.kind == "center":
        np.testing.assert_allclose(factor.covariance, np.linalg.pinv(matrix.T @ matrix), atol=1e-12)
        np.testing.assert_allclose(factor.inverse @ matrix, centring, atol=1e-12)
    else:
        np.testing.assert_allclose(factor.covariance, centring)


def test_sensitivity_is_exact_in_integers():
    """The norms of the two columns are equal as floats and differ as integers."""
    big = 2**40
    matrix = np.array([[big, big], [1, 0], [-big - 1, -big]]).astype(np.int64)
    factor = Factor("matrix", (2,), matrix)
    assert factor.squared_l2_sensitivity == max(big**2 + 1 + (big + 1) ** 2, 2 * big**2)


def test_inverse_undoes_rounded_strategy():
    gram = axis_of(FAMILIES["prefix"], 12).factor.gram
    factor = round_strategy(root_of(gram), optimise(root_of(gram)).root, (12,), 20)
    identity = factor.inverse @ factor.explicit().astype(float)
    np.testing.assert_allclose(identity, np.eye(12) - 1 / 12, atol=1e-9)


def test_column_norms_do_not_overflow():
    matrix = np.full((16, 2), 2**59, dtype=np.int64)
    factor = Factor("full", (2,), matrix)
    assert factor.l1_sensitivity == 2**63
    assert factor.squared_l2_sensitivity == 2**122


@pytest.mark.parametrize(
    ("kind", "matrix"),
    [
        ("center", np.eye(2, dtype=np.int64)),
        ("full", None),
        ("other", None),
        ("full", np.eye(2, dtype=np.uint32)),
        ("full", np.eye(3, dtype=np.int64)),
        ("full", np.full((1, 2), -(2**63), dtype=np.int64)),
    ],
)
def test_inconsistent_factor_is_refused(kind, matrix):
    with pytest.raises(ValueError, match="factor"):
        Factor(kind, (2,), matrix)
