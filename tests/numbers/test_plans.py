"""Plans of sums: errors against dense least squares, optima against Clarabel, weights in units of half a range."""

import math
from functools import reduce

import cvxpy as cp
import numpy as np
import pytest

import dpscale as dp
from dpscale.base.errors import PlanError
from dpscale.domain import Domain
from dpscale.workload import Workload
from dpscale.workload.sums import centred_rows, sum_queries
from tests.messages import refused
from tests.numbers.small import make_domain

MECHANISMS = ("weighted-residuals", "query-smasher", "residual-planner", "residual-planner-plus", "weighted-fourier",
              "identity", "hdmm", "eigen-design", "auto")  # fmt: skip


def make_workload() -> Workload:
    workload = Workload(make_domain()).add("marginal", degree=2).add("sum", attributes=[["a"], []], of="pay")
    return workload.add("mean", degree=1, of="wait").add_product({"a": "prefix", "pay": "sum"})


def test_figures_of_sums_are_those_of_their_matrix():
    number = make_domain({"pay": {"low": -20, "high": 130, "step": 5}})["pay"]
    queries = sum_queries(number)
    (entries,) = queries.matrix(number.size)
    assert queries.trace(number.size) == pytest.approx(entries @ entries)
    assert queries.entry_sum(number.size) == pytest.approx(abs(entries.sum()))
    assert queries.largest(number.size) == pytest.approx([max(abs(entries))])


def dense_covariance(plan) -> np.ndarray:
    """Return the covariance of generalised least squares on all cells of all axes at privacy cost 1."""
    domain, rows = plan.domain, []
    for block in plan.blocks:
        joint = len(block.factors) == 1 and len(block.attributes) > 1
        own = (
            block.factors[0].explicit()
            if joint
            else reduce(np.kron, [f.explicit() for f in block.factors], np.ones((1, 1)))
        )
        onto = [np.eye(domain[name].size) if name in block.attributes else np.ones((1, domain[name].size))
                for name in domain.axis_names]  # fmt: skip
        rows.append(own @ reduce(np.kron, onto) / math.sqrt(block.unit_variance))
    strategy = np.concatenate(rows)
    return np.linalg.pinv(strategy.T @ strategy, rcond=1e-11)


def whole_query(domain: Domain, axes: dict[str, np.ndarray]) -> np.ndarray:
    return reduce(np.kron, [axes.get(name, np.ones(domain[name].size)) for name in domain.axis_names])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_errors_are_those_of_least_squares(mechanism):
    plan = dp.plan(make_workload(), mechanism)
    covariance, domain = dense_covariance(plan), plan.domain
    wait = centred_rows(domain["wait"])
    for axes in (
        {"pay": domain["pay"].cell_values},
        {"a": np.eye(4)[2], "pay": domain["pay"].cell_values},
        {"a": np.eye(4)[1], "wait": wait["t"]},
        {"b": np.eye(3)[0], "wait": wait["t"] + wait["n"]},
        {"a": np.array([1.0, 1, 0, 0]), "pay": domain["pay"].cell_values},
    ):
        query = whole_query(domain, axes)
        expected = float(query @ covariance @ query)
        found = plan.variance(tuple(axes), reduce(np.multiply.outer, axes.values()))
        assert found == pytest.approx(expected, rel=1e-6)


def one_number(squares: bool) -> Domain:
    numbers = {"v": {"low": 0, "high": 100, "squares": squares}}
    return Domain.from_dict({"attributes": {"a": {"kind": "coded", "size": 2}}, "numbers": numbers})


def optimum_on_grid(queries: np.ndarray) -> float:
    """Return min Σ q X⁻¹ q over X ≥ 0 with φ(t)ᵀ X φ(t) ≤ 1 on a grid, φ = (1, t, t²) as long as the queries."""
    t = np.linspace(-1, 1, 101)
    points = np.stack([t**power for power in range(queries.shape[1])], axis=1)
    form = cp.Variable((queries.shape[1],) * 2, PSD=True)
    error = sum(cp.matrix_frac(query, form) for query in queries)
    problem = cp.Problem(cp.Minimize(error), [cp.sum(cp.multiply(points @ form, points), axis=1) <= 1])
    problem.solve(solver=cp.CLARABEL)
    return float(problem.value)


@pytest.mark.parametrize(("squares", "above"), [(False, 1e-6), (True, 0.012)])
def test_plan_of_one_number_is_near_the_optimum(squares, above):
    """Count, centred sum and square of one number: 4.0 and 6.4; four cells cost 1.2 % of the latter."""
    domain = one_number(squares)
    rows = np.stack(list(centred_rows(domain["v"]).values()))
    plan = dp.plan(Workload(domain).add_queries(("v",), rows))
    optimum = optimum_on_grid(np.eye(len(rows)))
    assert optimum == pytest.approx(6.4 if squares else 4.0, rel=1e-3)
    assert 1 - 1e-4 <= plan.error / optimum <= 1 + above + 1e-4
    assert plan.optimality_gap < 1e-6


def test_weights_refer_to_half_the_range():
    """A sum in pounds and the same in pence get equal errors, relative to their ranges."""

    def plan_for(factor):
        numbers = {"v": {"low": 0, "high": 50 * factor}}
        domain = Domain.from_dict({"attributes": {"a": {"kind": "coded", "size": 3}}, "numbers": numbers})
        return dp.plan(Workload(domain).add("marginal", degree=1).add("sum", degree=1, of="v"))

    pounds, pence = plan_for(1), plan_for(100)
    assert pounds.rmse() == pytest.approx(pence.rmse())
    query = np.outer([1.0, 0, 0], pounds.domain["v"].cell_values)
    assert pence.variance(("a", "v"), 100 * query) == pytest.approx(1e4 * pounds.variance(("a", "v"), query))


def test_sum_that_was_not_measured_is_refused():
    domain = make_domain()
    plan = dp.plan(Workload(domain).add("sum", degree=1, of="pay"))
    with refused(PlanError):
        plan.variance(("a", "b", "pay"), np.multiply.outer(np.eye(12)[0].reshape(4, 3), domain["pay"].cell_values))
    with refused(PlanError):
        plan.variance(("wait",), domain["wait"].cell_values)


def test_variance_changes_the_cells_of_earlier_parts():
    workload = Workload(make_domain()).add("sum", degree=1, of="pay").add_product({"a": "prefix", "pay": "sum"})
    before = [part.weights for part in workload.parts]
    workload.add("variance", degree=1, of="pay")
    assert workload.domain["pay"].squares
    assert all(part.domain is workload.domain for part in workload.parts)
    assert [part.weights for part in workload.parts[:2]] == before
    assert [part.queries(part.sets[0]).shape[-1] for part in workload.parts] == [4, 4, 4]


def test_numbers_of_many_steps_are_not_multiplied():
    """One strategy of two numbers would need more parts of a record than 64-bit counts hold."""
    numbers = {name: {"low": 0, "high": 1_000_000} for name in ("v", "w")}
    domain = Domain.from_dict({"attributes": {"a": {"kind": "coded", "size": 3}}, "numbers": numbers})
    workload = Workload(domain).add("sum", degree=1, of="v").add("mean", degree=1, of="w")
    with refused(PlanError):
        dp.plan(workload, "eigen-design")
    for mechanism in ("weighted-residuals", "hdmm", "auto"):
        plan = dp.plan(workload, mechanism)
        assert all(not {"v", "w"} <= set(names) for names in plan.counted_sets)
