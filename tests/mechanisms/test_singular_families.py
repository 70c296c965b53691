"""Families with singular Gram matrices in every mechanism: least-squares variances, or a refusal."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import dpscale as dp
from dpscale.mechanisms import MECHANISMS, PlanningProblem, mechanism, plan_problem
from dpscale.mechanisms.contract import Tools
from dpscale.privacy.accounting import Budget
from dpscale.workload import FAMILIES
from tests.oracles import explicit_strategy
from tests.toys.singular import MATRICES, family_of

ADAPTIVE = ("aim-grem", "aim-pgm", "mst")
NONADAPTIVE = [name for name in MECHANISMS if name not in ADAPTIVE]
SETS = {(5,): [["a0"]], (5, 4): [["a0"], ["a0", "a1"]], (4, 3, 2): [["a0", "a1"], ["a1", "a2"]]}
COMPANIONS = (None, "prefix", "affine")


def make_workload(patch, name, matrix, sizes, companion=None):
    """Return a workload of a family given by its matrix and, with `companion`, of another family over the same sets."""
    patch.setitem(FAMILIES, name, family_of(name, matrix))
    domain = dp.Domain({f"a{i}": size for i, size in enumerate(sizes)})
    asked = dp.Workload(domain).add(name, attributes=SETS[sizes])
    pairs = [names for names in SETS[sizes] if companion != "affine" or len(names) == 2]
    return asked.add(companion, attributes=pairs) if companion and pairs else asked


def extend_queries(domain, names, queries):
    """Return queries over an attribute set as queries over all cells."""
    shape = [domain[name].size if name in names else 1 for name in domain.names]
    whole = np.broadcast_to(queries.reshape(len(queries), *shape), (len(queries), *domain.shape(domain.names)))
    return whole.reshape(len(queries), -1)


def check_variances(asked, plan):
    """Check that every query is in the span of the plan's strategy and has its least-squares variance."""
    strategy = explicit_strategy(plan, plan.blocks.unit_variances)
    inverse = np.linalg.pinv(strategy, rcond=1e-9)
    for part in asked.parts:
        for names in part.sets:
            shape = asked.domain.shape(names)
            cells = np.eye(int(np.prod(shape))).reshape(-1, *shape)
            queries = np.stack([part.answers(names, cell).reshape(-1) for cell in cells], axis=1)
            back = extend_queries(asked.domain, names, queries) @ inverse
            np.testing.assert_allclose(back @ strategy, extend_queries(asked.domain, names, queries), atol=1e-6)
            expected = (back**2).sum(axis=1)
            stated = plan.accuracy.part_variances(part, names).reshape(-1)
            single = [plan.variance(names, query.reshape(shape)) for query in queries]
            np.testing.assert_allclose(stated, expected, rtol=1e-6, atol=1e-6 * expected.max())
            np.testing.assert_allclose(single, expected, rtol=1e-6, atol=1e-6 * expected.max())
    assert plan.optimality_gap >= 0


def plan_and_check(name, matrix, sizes, planner, noise="gaussian", companion=None):
    with pytest.MonkeyPatch.context() as patch:
        asked = make_workload(patch, name, matrix, sizes, companion)
        if planner == "baseline" and any(part.name == "affine" for part in asked.parts):
            with pytest.raises(dp.PlanError, match="is not a product of one-way families"):
                dp.plan(asked, planner, noise=noise)
            return
        check_variances(asked, dp.plan(asked, planner, noise=noise))


@pytest.mark.parametrize("name", MATRICES)
def test_default_mechanism_plans_every_singular_family(name):
    plan_and_check(name, MATRICES[name], (5, 4), "weighted-residuals")


@pytest.mark.parametrize("planner", NONADAPTIVE)
def test_every_mechanism_plans_windows_and_halves(planner):
    for name in ("windows", "halves"):
        plan_and_check(name, MATRICES[name], (4, 3, 2), planner)


@pytest.mark.parametrize("planner", ADAPTIVE)
@pytest.mark.parametrize("name", MATRICES)
def test_adaptive_mechanisms_plan_singular_families(planner, name, monkeypatch):
    asked = make_workload(monkeypatch, name, MATRICES[name], (4, 3, 2))
    chosen = mechanism(planner)
    assert plan_problem(chosen, PlanningProblem(asked, Budget("gaussian", 1.0)), chosen.Options(), Tools()).candidates


def random_matrix(seed, rows, density):
    """Return a family of random 0/1 queries of rank at most `rows`, with some repeated queries."""

    def make_matrix(size):
        random = np.random.default_rng([seed, size])
        queries = random.random((rows, size)) < density
        queries[0, random.integers(size)] = True  # not all of them ask for nothing
        return queries[random.integers(rows, size=rows + 1)].astype(float) + queries[:1]

    return make_matrix


CASES = {
    "seed": st.integers(0, 10**6), "rows": st.integers(1, 4), "density": st.sampled_from([0.2, 0.5, 0.9]),
    "sizes": st.sampled_from(list(SETS)), "planner": st.sampled_from(NONADAPTIVE),
    "companion": st.sampled_from(COMPANIONS),
    "noise": st.sampled_from(["gaussian", "gaussian", "laplace"]),
}  # fmt: skip


def check_random_family(seed, rows, density, sizes, planner, companion, noise):
    planner = "hdmm" if (planner, noise) == ("eigen-design", "laplace") else planner  # which has Gaussian noise alone
    plan_and_check(
        f"drawn{seed}-{rows}-{density}", random_matrix(seed, rows, density), sizes, planner, noise, companion
    )


@settings(max_examples=10, derandomize=True, suppress_health_check=list(HealthCheck))
@given(**CASES)
def test_random_singular_families(**case):
    check_random_family(**case)


@pytest.mark.slow
@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(**CASES)
def test_many_random_singular_families(**case):
    check_random_family(**case)


@pytest.mark.parametrize("mechanism", ["weighted-residuals", "query-smasher", "hdmm", "auto"])
def test_two_conditions_are_planned_near_the_optimum(mechanism):
    """Newton's system of the pair becomes singular in floats. An optimal strategy measures both disjoint counts."""
    workload = dp.Workload(dp.Domain({"a": 4, "b": 3, "c": 5})).add_conditions(["a = 0 and b = 0", "a = 1 and b = 2"])
    assert dp.plan(workload, mechanism).rmse() == pytest.approx(1.0, abs=1e-4)
