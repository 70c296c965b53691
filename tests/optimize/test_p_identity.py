"""p-Identity strategies against explicit matrices, finite differences and HDMM's Table 4."""

import numpy as np
import pytest

from dpscale.optimize.opt_explicit import optimise_p_identity, p_identity_error
from dpscale.workload import FAMILIES


def laplace_rmse(error: float, queries: int) -> float:
    return float(np.sqrt(2 * error / queries))


def error_coefficient(gram: np.ndarray, matrix: np.ndarray) -> float:
    return float(np.trace(gram @ np.linalg.inv(matrix.T @ matrix)))


@pytest.mark.parametrize("seed", range(3))
def test_objective_and_gradient_equal_explicit_values(seed):
    rng = np.random.default_rng(seed)
    queries = rng.normal(size=(9, 6))
    gram, parameters = queries.T @ queries, rng.random((3, 6))
    value, gradient = p_identity_error(gram, parameters)
    column = 1 / (1 + parameters.sum(axis=0))
    assert value == pytest.approx(error_coefficient(gram, np.concatenate([np.diag(column), parameters * column])))
    for _ in range(5):
        step = rng.normal(size=parameters.shape) * 1e-5
        change = p_identity_error(gram, parameters + step)[0] - p_identity_error(gram, parameters - step)[0]
        assert change == pytest.approx(2 * (gradient * step).sum(), rel=1e-6)


@pytest.mark.parametrize(
    ("family", "size", "paper"),
    [
        ("range", 64, 5.55),
        ("prefix", 64, 5.32),
        pytest.param("range", 256, 8.07, marks=pytest.mark.slow),
        pytest.param("prefix", 256, 7.35, marks=pytest.mark.slow),
    ],
)
def test_table_4_is_reproduced(family, size, paper):
    gram = FAMILIES[family].gram(size)
    found = optimise_p_identity(gram, seed=1)
    assert laplace_rmse(found.error, FAMILIES[family].count(size)) < paper + 0.005
    assert np.abs(found.matrix).sum(axis=0) == pytest.approx(np.ones(size))
    assert error_coefficient(gram, found.matrix) == pytest.approx(found.error, rel=1e-9)


def test_width_32_and_permuted_ranges_reach_published_error():
    queries = np.array([[float(i <= j < i + 32) for j in range(64)] for i in range(33)])
    order = np.random.default_rng(0).permutation(64)
    for gram, count, paper in (
        (queries.T @ queries, 33, 5.88),
        (FAMILIES["range"].gram(64)[np.ix_(order, order)], 2080, 5.55),
    ):
        assert laplace_rmse(optimise_p_identity(gram).error, count) < paper + 0.005


def test_seed_is_reproducible_and_warm_start_is_no_worse():
    gram = FAMILIES["prefix"].gram(40)
    first, second = (optimise_p_identity(gram, starts=2, seed=7) for _ in range(2))
    assert first.parameters.tobytes() == second.parameters.tobytes()
    again = optimise_p_identity(gram, starts=0, seed=8, warm=first.parameters)
    assert again.error <= first.error * (1 + 1e-9)


@pytest.mark.parametrize(("inner", "outer"), [(1.0, 0.0), (1.0, 1.0), (1.0, 40.0), (0.3, 1000.0)])
def test_one_extra_query_suffices_for_marginals(inner, outer):
    """On a·I + b·11ᵀ a longer search with more queries gains less than 0.3 %."""
    gram = inner * np.eye(10) + outer
    found = optimise_p_identity(gram)
    assert error_coefficient(gram, found.matrix) == pytest.approx(found.error, rel=1e-9)
    nudged = gram + np.diag(np.linspace(0, 1e-9, 10))
    assert found.error <= optimise_p_identity(nudged, p=3, starts=8).error * 1.003


def test_total_query_and_single_cell_limits():
    assert optimise_p_identity(np.full((5, 5), 2.0)).error == pytest.approx(2.0, rel=3e-3)
    assert optimise_p_identity(np.array([[3.0]])).error == pytest.approx(3.0)


@pytest.mark.parametrize("size", [2, 3, 5, *(pytest.param(size, marks=pytest.mark.slow) for size in (4, 6, 7, 8, 9))])
@pytest.mark.parametrize("family", ["prefix", "range"])
def test_error_equals_matrix_near_total_query(family, size):
    """Regression test: diverging parameters gave errors of 0 and below by cancellation."""
    gram = FAMILIES[family].gram(size)
    found = optimise_p_identity(gram)
    matrix = found.matrix
    assert np.abs(matrix).sum(axis=0) == pytest.approx(np.ones(size))
    assert found.error == pytest.approx(np.trace(gram @ np.linalg.inv(matrix.T @ matrix)), rel=1e-5)


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_error_of_small_problems_is_accurate(size):
    """With a vanishing weight of the identity, the error is still that of the matrix and above the SVD bound."""
    gram = FAMILIES["prefix"].gram(size)
    found = optimise_p_identity(gram)
    assert error_coefficient(gram, found.matrix) == pytest.approx(found.error, rel=1e-7)
    assert np.sqrt(np.linalg.eigvalsh(gram)).sum() ** 2 / size <= found.error <= np.trace(gram)
