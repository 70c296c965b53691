"""Plans that complete earlier releases: the convex optimum given what is known, and ratios to one release."""

import math
from itertools import combinations

import numpy as np
import pytest

import dpscale as dp
from dpscale.mechanisms.contract import Instalments, PlanningProblem
from dpscale.mechanisms.matrix_mechanism import EarlierBlocks, FixedPlan, check_poolable, completing_plan
from dpscale.plans.measurement_plan import plan_draws
from dpscale.privacy.accounting import GAUSSIAN, Budget, Cost
from dpscale.reconstruction.base import PlanEvidence
from tests.messages import refused

DOMAIN = dp.Domain({"a": 5, "b": 3, "c": 7, "d": 2})
MECHANISMS = ["residual-planner", "weighted-residuals", "query-smasher"]


def marginals(*sets):
    return dp.Workload(DOMAIN).add("marginal", attributes=[list(names) for names in sets])


def of_degree(degree, family="marginal"):
    return dp.Workload(DOMAIN).add(family, degree=degree)


def planned(workload, mechanism="residual-planner", rows=1):
    return FixedPlan(dp.plan(workload, mechanism), PlanningProblem(workload, Budget(GAUSSIAN, 1.0), rows))


def refined(first, workload, mechanism="residual-planner", rows=1):
    """Return the refined plan of a second workload, each release at squared mu 1."""
    drawn = first.draws.variances
    plan = first.plan
    earlier = PlanEvidence(dp.Plan(workload, plan.mechanism, plan.blocks, plan.error, 0.0), drawn, lambda _: None)
    target = planned(workload, mechanism, rows)
    made = FixedPlan(completing_plan(target.plan, target.problem, earlier), target.problem)
    costs = Instalments((first.cost,), (first.cost,), 1e-9)
    return made.starting_from(EarlierBlocks(earlier, costs, target.plan))


def ratio(plan):
    """Return the root mean square error of a refined plan relative to one release."""
    return plan.forecast(plan.problem.budget).ratio_to_one_release


def least_error(first, workload):
    """Return the least error of the second workload over all divisions of its budget, by a convex solver."""
    import cvxpy as cp

    target = dp.plan(workload, "residual-planner")
    known = dict(zip(first.plan.blocks.sets, first.plan.blocks.share, strict=True))
    alone = {names: share**2 for names, share in zip(target.blocks.sets, target.blocks.share, strict=True)}
    scale = target.error / sum(math.sqrt(value) for value in alone.values()) ** 2  # by the square root rule
    worth = np.array([value * scale for value in alone.values()])
    had = np.array([known.get(names, 0.0) for names in alone])
    spent = cp.Variable(len(worth), nonneg=True)
    problem = cp.Problem(cp.Minimize(worth @ cp.inv_pos(spent + had + 1e-12)), [cp.sum(spent) <= 1])
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    return problem.value


@pytest.mark.parametrize(("one", "other"), [(2, 3), (3, 2), (1, 3), (2, 2)])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_completing_plans_are_the_convex_optimum(one, other, mechanism):
    first, workload = planned(of_degree(one), mechanism), of_degree(other)
    made = refined(first, workload, mechanism)
    error = made.pool.plan.error / made.pool.budget
    assert error == pytest.approx(least_error(first, workload), rel=1e-4)
    assert made.cost.gaussian <= 1
    assert made.cost.gaussian == pytest.approx(1, rel=1e-6)


def test_the_same_workload_completes_to_one_release():
    made = refined(planned(of_degree(2)), of_degree(2))
    assert ratio(made) == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(made.plan.blocks.share, made.earlier.target.blocks.share, rtol=1e-4)


def test_rows_of_a_unit_scale_all_variances():
    one, three = (refined(planned(of_degree(2), rows=rows), of_degree(3), rows=rows) for rows in (1, 3))
    np.testing.assert_allclose(three.pool.variances, 9 * one.pool.variances, rtol=1e-4)
    assert ratio(one) == pytest.approx(ratio(three), rel=1e-4)


def test_ratios_of_workloads_that_grow_or_change_their_degree():
    """Workloads that keep the old sets and add sets of the same degree lose at most 4 %; other degrees lose a third."""
    sizes = (85, 9, 16, 16, 7, 15, 6, 5, 2, 100, 100, 99)
    domain = dp.Domain({f"x{number}": size for number, size in enumerate(sizes)})
    names = domain.names

    def workload(sets):
        return dp.Workload(domain).add("marginal", attributes=[list(one) for one in sets])

    every = workload(combinations(names, 3))
    first = planned(workload([one for one in combinations(names, 3) if names[0] in one]))
    assert 1 < ratio(refined(first, every)) <= 1.04
    pairs = workload(combinations(names, 2))
    assert 1.3 < ratio(refined(planned(pairs), every)) < 1.37
    assert 1.3 < ratio(refined(planned(every), pairs)) < 1.38


def test_prefix_queries_of_more_sets_are_completed():
    first = planned(dp.Workload(DOMAIN).add("prefix", attributes=[["a"], ["b"]]), "query-smasher")
    made = refined(first, dp.Workload(DOMAIN).add("prefix", attributes=[["a"], ["b"], ["c"]]), "query-smasher")
    assert ratio(made) < 1.1


def test_strategies_that_differ_are_refused():
    marginal, prefix = (dp.plan(of_degree(2, family), "query-smasher") for family in ("marginal", "prefix"))
    with refused(dp.PlanError):
        check_poolable(marginal.blocks, prefix.blocks)
    whole = dp.plan(of_degree(2), "identity")
    with refused(dp.PlanError):
        check_poolable(whole.blocks, marginal.blocks)
    weighted = dp.plan(of_degree(2, "range"), "weighted-residuals")
    if weighted.accuracy.weights:
        with refused(dp.PlanError):
            check_poolable(dp.plan(of_degree(2, "range"), "query-smasher").blocks, weighted.blocks)
    laplace = dp.plan(of_degree(2), "residual-planner", noise="laplace")
    with refused(dp.PlanError):
        check_poolable(laplace.blocks, laplace.blocks)


def test_totals_of_instalments():
    cost = plan_draws(dp.plan(of_degree(1), "residual-planner"), 1.0).cost
    costs = Instalments((cost, cost), (cost, cost), 1e-9)
    assert costs.epsilon(cost) == pytest.approx(Cost(gaussian=3).epsilon_or_inf(1e-9), rel=1e-6)
    assert costs.budget(Budget(GAUSSIAN, 1.0)).amount == pytest.approx(3, rel=1e-6)
    assert "all 3 releases" in costs.sentence(cost)
