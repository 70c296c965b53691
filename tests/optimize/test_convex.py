"""The convex solver against Clarabel, and its certificate against random strategies."""

import numpy as np
import pytest

from dpscale.optimize.convex import optimise
from dpscale.workload import FAMILIES, axis_of, root_of


def solve_with_clarabel(gram: np.ndarray) -> float:
    """Return min tr(G X⁻¹) over X ⪰ 0 with diag X ≤ 1, by cvxpy with matrix fractions of the rows of G."""
    import cvxpy as cp

    values, vectors = np.linalg.eigh(gram)
    keep = values > values[-1] * 1e-10
    rows = (vectors[:, keep] * np.sqrt(values[keep])).T
    n = len(gram)
    x = cp.Variable((n, n), PSD=True)
    problem = cp.Problem(cp.Minimize(cp.matrix_frac(rows.T, x)), [cp.diag(x) <= 1])
    return float(problem.solve(solver=cp.CLARABEL))


@pytest.mark.parametrize(("family", "size"), [("marginal", 4), ("prefix", 3), ("prefix", 9), ("range", 7)])
def test_optimum_equals_clarabel_on_families(family, size):
    optimum = optimise(axis_of(FAMILIES[family], size).factor.rows)
    assert optimum.gap < 1e-8
    assert optimum.primal == pytest.approx(solve_with_clarabel(axis_of(FAMILIES[family], size).factor.gram), rel=2e-5)


@pytest.mark.parametrize("seed", range(3))
def test_optimum_equals_clarabel_on_random_queries(seed):
    rng = np.random.default_rng(seed)
    queries = rng.random((9, 6)) < 0.4
    gram = queries.T.astype(float) @ queries + 1e-3 * np.eye(6)
    assert optimise(root_of(gram)).primal == pytest.approx(solve_with_clarabel(gram), rel=2e-5)


@pytest.mark.parametrize("size", [2, 3, 10, 40, 100])
@pytest.mark.parametrize("family", ["marginal", "prefix", "range", "circular"])
def test_returned_strategy_has_stated_primal_value(family, size):
    """tr(G (BᵀB)⁺) of the returned strategy, at largest column norm 1, equals the primal value."""
    gram = axis_of(FAMILIES[family], size).factor.gram
    optimum = optimise(root_of(gram))
    strategy = optimum.root
    assert (strategy**2).sum(axis=0).max() == pytest.approx(1.0, abs=1e-12)
    value = np.trace(gram @ np.linalg.pinv(strategy.T @ strategy, rcond=1e-11, hermitian=True))
    assert value == pytest.approx(optimum.primal, rel=1e-7)
    assert 0 <= optimum.gap < 1e-8


def test_dual_is_below_every_strategy():
    """Random feasible strategies never beat the certificate, so that a bound that is too high would be detected."""
    rng = np.random.default_rng(0)
    gram = axis_of(FAMILIES["prefix"], 6).factor.gram
    bound = optimise(root_of(gram)).dual
    values = []
    for _ in range(200):
        strategy = rng.normal(size=(8, 6)) + 2 * np.eye(8, 6)
        strategy /= np.sqrt((strategy**2).sum(axis=0).max())
        values.append(np.trace(gram @ np.linalg.pinv(strategy.T @ strategy)))
    assert min(values) > bound
    assert min(values) < 3 * bound


def test_low_rank_gram_is_solved_in_row_space():
    query = np.array([[1.0, 1, 0, 0, 0], [0, 0, 1, 1, 1]])
    optimum = optimise(query)
    assert optimum.primal == pytest.approx(2.0)  # one cell sees one query: each measured once, variance 1 each
