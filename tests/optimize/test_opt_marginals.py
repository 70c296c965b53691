"""Weighted marginals: theorems 7 to 11 on explicit matrices, optima against Clarabel and Table 3."""

import numpy as np
import pytest

from dpscale import Domain, Workload
from dpscale.base.errors import PlanError
from dpscale.optimize.implicit_workload import implicit
from dpscale.optimize.opt_explicit import error_of, inverse_gram, sensitivity
from dpscale.optimize.opt_marginals import (
    attribute_strategies,
    certified,
    characteristic,
    closed_form,
    dimensions,
    eigenvalues,
    inverse,
    lens_of,
    marginal_error,
    multiply,
    optimise_marginals,
    over_subsets,
    polish,
    residual_traces,
    weights_of,
)
from dpscale.workload.residual import kron
from tests.messages import refused
from tests.oracles import marginal_weights

SIZES = (3, 4, 2)
DOMAIN = Domain(dict(zip("abc", SIZES, strict=True)))
NOISES = ("gaussian", "laplace")
TABLE_3 = Workload(Domain({"a": 2, "b": 5, "c": 50, "d": 100})).add("marginal", degree=2)


def explicit_gram(weights: np.ndarray) -> np.ndarray:
    """Return G(u) as an explicit matrix."""
    total = np.zeros((24, 24))
    for index in np.ndindex(weights.shape):
        factors = [np.eye(n) if bit else np.ones((n, n)) for n, bit in zip(SIZES, index, strict=True)]
        total += weights[index] * kron(factors)
    return total


def explicit_strategy(strategy, union) -> np.ndarray:
    """Return the strategy as an explicit matrix."""
    rows = []
    for names, weight in strategy.weights.items():
        factors = []
        for name, size in zip(union.names, union.sizes, strict=True):
            own = np.eye(size) if strategy.factors is None else strategy.factors[name]
            factors.append(own if name in names else np.ones((1, size)))
        rows.append(weight * kron(factors))
    return np.concatenate(rows)


def make_prefixes() -> Workload:
    return Workload(DOMAIN).add("prefix", degree=2).add("marginal", degree=1)


@pytest.mark.parametrize("seed", range(3))
def test_theorems_7_to_9_hold_for_explicit_matrices(seed):
    rng = np.random.default_rng(seed)
    left, right = rng.random((2, 2, 2)), rng.random((2, 2, 2))
    np.testing.assert_allclose(explicit_gram(multiply(left, right, SIZES)), explicit_gram(left) @ explicit_gram(right))
    np.testing.assert_allclose(explicit_gram(inverse(left, SIZES)), np.linalg.inv(explicit_gram(left)), atol=1e-10)
    values = np.repeat(eigenvalues(left, SIZES).reshape(-1), dimensions(SIZES).reshape(-1).astype(int))
    np.testing.assert_allclose(np.sort(values), np.linalg.eigvalsh(explicit_gram(left)), atol=1e-9)
    np.testing.assert_allclose(weights_of(eigenvalues(left, SIZES), SIZES), left)


def test_theorem_8_gives_pseudoinverse():
    weights = np.zeros((2, 2, 2))
    weights[1, 1, 0], weights[0, 0, 1] = 0.3, 0.7
    gram, back = explicit_gram(weights), explicit_gram(inverse(weights, SIZES))
    np.testing.assert_allclose(back, np.linalg.pinv(gram), atol=1e-10)
    np.testing.assert_allclose(gram @ back @ gram, gram, atol=1e-10)


def test_theorems_10_and_11_hold_for_explicit_matrices():
    union = implicit(make_prefixes())
    u = np.random.default_rng(0).random((2, 2, 2))
    gram, stands_for = union.gram(), explicit_gram(marginal_weights(union))
    assert np.trace(explicit_gram(u) @ gram) == pytest.approx(np.trace(explicit_gram(u) @ stands_for))
    error = np.trace(np.linalg.inv(explicit_gram(u)) @ gram)
    assert marginal_error(residual_traces(union), u, union.sizes) == pytest.approx(error)


def test_theorem_13_reaches_svd_bound():
    workload = Workload(DOMAIN)
    for degree in range(4):
        workload.add("marginal", degree=degree)
    union = implicit(workload)
    assert closed_form(residual_traces(union), union.sizes).min() > 0
    found = optimise_marginals(union, "gaussian")
    assert found.error == pytest.approx(found.bound, rel=1e-9)
    assert found.best_weights == pytest.approx(found.error, rel=1e-9)


def test_derivatives_equal_finite_differences():
    traces, u = residual_traces(implicit(make_prefixes())), np.random.default_rng(1).random((2, 2, 2)) + 0.1
    state, h, c = certified(traces, u, SIZES), 1e-6, characteristic(SIZES)
    for index in np.ndindex(u.shape):
        step = np.zeros_like(u)
        step[index] = h
        up, down = certified(traces, u + step, SIZES), certified(traces, u - step, SIZES)
        assert -state.slopes[index] == pytest.approx((up.error - down.error) / (2 * h), rel=1e-6)
        both = np.array([state.curves[tuple(np.array(index) & np.array(other))] for other in np.ndindex(u.shape)])
        change = -(up.slopes - down.slopes).reshape(-1) / (2 * h)
        np.testing.assert_allclose(2 * c[index] * c.reshape(-1) * both, change, rtol=1e-5)


def solve_with_clarabel(traces: np.ndarray, sizes: tuple[int, ...]) -> float:
    import cvxpy as cp

    unit = np.eye(traces.size).reshape(-1, *traces.shape)
    levels = np.stack([eigenvalues(one, sizes).reshape(-1) for one in unit], axis=1)
    needed = traces.reshape(-1) > 0
    u = cp.Variable(traces.size, nonneg=True)
    objective = cp.Minimize(traces.reshape(-1)[needed] @ cp.inv_pos(levels[needed] @ u))
    return float(cp.Problem(objective, [cp.sum(u) == 1]).solve(solver=cp.CLARABEL))


@pytest.mark.parametrize(
    "workload",
    [
        make_prefixes(),
        Workload(Domain({"a": 9, "b": 2, "c": 2, "d": 5})).add("marginal", degree=2),
        Workload(Domain({"a": 30, "b": 2, "c": 3})).add("range", attributes=[["a"], ["b", "c"]]),
        Workload(DOMAIN).add("marginal", attributes=[["a"], ["b"]]),
    ],
)
def test_gaussian_weights_equal_clarabel(workload):
    union = implicit(workload)
    found = optimise_marginals(union, "gaussian")
    assert found.error / found.best_weights - 1 < 2e-6
    assert found.error == pytest.approx(solve_with_clarabel(residual_traces(union), union.sizes), rel=1e-5)
    assert sum(weight**2 for weight in found.weights.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("noise", NOISES)
def test_error_equals_explicit_strategy(noise):
    union = implicit(make_prefixes())
    for factors in (None, attribute_strategies(union, noise)):
        found = optimise_marginals(union, noise, factors=factors)
        strategy = explicit_strategy(found, union)
        assert sensitivity(strategy, noise) == pytest.approx(1.0)
        assert error_of(union.gram(), strategy, noise) == pytest.approx(found.error, rel=1e-5)
        assert found.bound <= found.error


def test_algebra_holds_for_any_attribute_strategy():
    """A sum of Kronecker products of X or 11ᵀ is inverted through ν and the split of the Gram matrix alone."""
    rng = np.random.default_rng(2)
    union, u = implicit(make_prefixes()), rng.random((2, 2, 2))
    grams = [(rows := rng.normal(size=(n + 1, n)) + 1).T @ rows for n in SIZES]
    lenses = [lens_of(inverse_gram(np.linalg.cholesky(gram).T)) for gram in grams]
    total = np.zeros((24, 24))
    for index in np.ndindex(u.shape):
        pairs = zip(grams, index, SIZES, strict=True)
        total += u[index] * kron([gram if bit else np.ones((n, n)) for gram, bit, n in pairs])
    error = np.trace(np.linalg.inv(total) @ union.gram())
    sizes = tuple(lens.total for lens in lenses)
    assert marginal_error(residual_traces(union, lenses), u, sizes) == pytest.approx(error, rel=1e-9)


def test_table_3_is_reproduced():
    found = optimise_marginals(implicit(TABLE_3), "laplace")
    assert found.error == pytest.approx(62_886, abs=1)
    shown = {names: round(weight, 2) for names, weight in found.weights.items()}
    assert shown == {("c", "d"): 0.44, ("a", "b", "d"): 0.31, ("a", "b", "c"): 0.25}


def test_attribute_strategies_reduce_prefix_error():
    domain = Domain({"a": 30, "b": 30, "c": 5})
    union = implicit(Workload(domain).add("hybrid", degree=2, numeric=["a", "b"]))
    for noise in NOISES:
        plain = optimise_marginals(union, noise)
        better = optimise_marginals(union, noise, factors=attribute_strategies(union, noise))
        assert better.error < 0.75 * plain.error


def test_more_than_fifteen_attributes_are_refused():
    union = implicit(Workload(Domain({f"x{i}": 3 for i in range(16)})).add("marginal", degree=1))
    with refused(PlanError):
        optimise_marginals(union, "gaussian")


def test_polish_converges_from_uniform_weights():
    traces, sizes = residual_traces(implicit(TABLE_3)), (2, 5, 50, 100)
    state = polish(traces, np.full((2,) * 4, 1 / 16), sizes, 1e-8)
    assert state.error / state.least - 1 < 1e-7
    assert over_subsets(state.weights).max() == pytest.approx(1.0)
