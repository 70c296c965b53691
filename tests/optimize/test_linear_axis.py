"""Long axes: leverages by tridiagonal solves against an eigendecomposition, optima against the general solver."""

from itertools import product

import numpy as np
import pytest

from dpscale import Domain, Workload, plan
from dpscale.optimize import residual_problems
from dpscale.optimize.convex import optimise
from dpscale.optimize.integer_strategies import FactorBits
from dpscale.optimize.long_axis import LinearAxis, decompose_symmetric
from dpscale.plans.factor import Factor
from dpscale.workload import FAMILIES, root_of
from dpscale.workload.residual import centred, profile_of, whole_weights

KNOWN, ROUND = ("prefix", "range"), "circular"


def draw_weights(size, seed=0):
    return whole_weights(np.random.default_rng(seed).dirichlet(np.full(size, 5.0)), 14)


@pytest.mark.parametrize("family", KNOWN)
@pytest.mark.parametrize("size", [5, 30])
@pytest.mark.parametrize("weighted", [False, True])
def test_evaluation_equals_eigendecomposition(family, size, weighted):
    axis = LinearAxis("", FAMILIES[family], size, (draw_weights(size) if weighted else None,))
    weights = np.random.default_rng(1).dirichlet(np.full(size, 3.0))
    rows = root_of(axis.gram)[-(size - 1) :]
    values, vectors = np.linalg.eigh((rows * weights) @ rows.T)
    leverage = ((vectors.T @ rows) ** 2 / np.sqrt(values)[:, None]).sum(axis=0)
    point = axis.evaluate(weights)
    assert point.leverage == pytest.approx(leverage, rel=1e-10)
    assert point.trace == pytest.approx(np.sqrt(values).sum(), rel=1e-10)


@pytest.mark.parametrize(("family", "weighted"), [*product(KNOWN, [False, True]), (ROUND, False)])
@pytest.mark.parametrize("size", [24, 25])
def test_optimum_equals_general_solver(family, size, weighted):
    own = draw_weights(size) if weighted else None
    axis = LinearAxis("", FAMILIES[family], size, (own,))
    found = axis.solved(None)
    rows = root_of(axis.gram / np.trace(axis.gram))[-(size - 1) :]
    other = optimise(rows, (size,), 1e-9)
    assert found.gap < 1e-6
    assert found.dual == pytest.approx(other.dual, rel=1e-6)
    assert (found.root**2).sum(axis=0).max() == pytest.approx(1)
    assert np.abs(found.root @ profile_of(own, size)).max() < 1e-9
    factor, error = axis.rounded(found, FactorBits(25, 25), "gaussian")
    covariance = factor.inverse @ factor.inverse.T
    expected = (axis.gram * covariance).sum() / np.trace(axis.gram) * factor.squared_l2_sensitivity
    assert error == pytest.approx(expected, rel=1e-9)
    assert error == pytest.approx(other.dual, rel=1e-4)


@pytest.mark.parametrize("size", [6, 7])
def test_symmetric_forms_are_decomposed_by_halves(size):
    root = np.random.default_rng(2).normal(size=(size, size))
    form = root @ root.T
    for given in (form, form + form[::-1, ::-1]):
        values, rows = decompose_symmetric(given)
        assert np.allclose((rows.T * values) @ rows, given)
        assert np.allclose(rows @ rows.T, np.eye(size))
        assert (np.diff(values) >= 0).all()


def test_running_sums_equal_gram_product():
    values = np.random.default_rng(3).normal(size=(9, 2))
    for family in (*KNOWN, ROUND):
        assert np.allclose(FAMILIES[family].times_gram(values), FAMILIES[family].gram(9) @ values)


@pytest.mark.parametrize("family", KNOWN)
@pytest.mark.parametrize("weighted", [False, True])
def test_cholesky_factor_equals_eigendecomposition(family, weighted):
    own = draw_weights(60) if weighted else None
    axis = LinearAxis("", FAMILIES[family], 60, (own,))
    weights = np.random.default_rng(5).dirichlet(np.full(60, 3.0))
    found, known = axis._factored(weights), axis.certified(weights)
    assert np.allclose(found.root.T @ found.root, known.root.T @ known.root, rtol=0, atol=1e-9)
    assert np.abs(found.root @ axis.profile).max() < 1e-12
    assert found.primal == pytest.approx(known.primal, rel=1e-9)
    assert known.dual * (1 - 2e-9) < found.dual < known.dual


@pytest.mark.parametrize("weights", [None, draw_weights(40)])
def test_inverse_of_long_axis_equals_short_axis(weights, monkeypatch):
    rng = np.random.default_rng(4)
    rows = centred(rng.integers(-99, 99, (39, 40)), weights or (1,) * 40)
    before = Factor("matrix", (40,), rows, (weights,) if weights else None).inverse
    monkeypatch.setattr("dpscale.plans.factor.LONG", 8)
    assert np.allclose(Factor("matrix", (40,), rows, (weights,) if weights else None).inverse, before)


@pytest.mark.parametrize("mechanism", ["query-smasher", "weighted-residuals"])
@pytest.mark.parametrize("family", ["prefix", "circular"])
def test_long_and_short_axis_give_same_plan(mechanism, family, monkeypatch):
    workload = Workload(Domain({"a": 30, "b": 3})).add(family, attributes=[("a",), ("a", "b")])
    before = plan(workload, mechanism)
    monkeypatch.setattr("dpscale.optimize.long_axis.LONG", 8)
    called = []
    wrapped = residual_problems.LinearAxis.solved
    monkeypatch.setattr(residual_problems.LinearAxis, "solved", lambda *a: called.append(1) or wrapped(*a))
    after = plan(workload, mechanism)
    assert called
    assert after.error == pytest.approx(before.error, rel=1e-6)
    assert after.optimality_gap < 1e-4
