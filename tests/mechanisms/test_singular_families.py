"""Families with singular Grams through all mechanisms: variances of generalised least squares, or a refusal."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import dpscale as dp
from dpscale.mechanisms import MECHANISMS, PlanningProblem, mechanism, plan_problem
from dpscale.mechanisms.contract import Tools
from dpscale.privacy.accounting import Budget
from dpscale.workload import FAMILIES, workload as asking
from tests.oracles import explicit_strategy
from tests.toys.singular import MATRICES, family_of

ADAPTIVE = ("aim-grem", "aim-pgm", "mst")
BEFOREHAND = [name for name in MECHANISMS if name not in ADAPTIVE]
SETS = {(5,): [["a0"]], (5, 4): [["a0"], ["a0", "a1"]], (4, 3, 2): [["a0", "a1"], ["a1", "a2"]]}
BESIDE = (None, "prefix", "affine")


def workload(patch, name, matrix, sizes, beside=None):
    """A family, made from its matrix, over some sets, and a family of dpscale's own beside it."""
    patch.setitem(FAMILIES, name, family_of(name, matrix))
    patch.setattr(asking, "NAMES", (*asking.NAMES, name))
    domain = dp.Domain({f"a{i}": size for i, size in enumerate(sizes)})
    asked = dp.Workload(domain).add(name, attributes=SETS[sizes])
    pairs = [names for names in SETS[sizes] if beside != "affine" or len(names) == 2]
    return asked.add(beside, attributes=pairs) if beside and pairs else asked


def spread(domain, names, queries):
    """Queries over a set as queries over all cells."""
    shape = [domain[name].size if name in names else 1 for name in domain.names]
    whole = np.broadcast_to(queries.reshape(len(queries), *shape), (len(queries), *domain.shape(domain.names)))
    return whole.reshape(len(queries), -1)


def check(asked, plan):
    """Every query of the workload is in the span of the plan's strategy, and has the variance of least squares."""
    strategy = explicit_strategy(plan, plan.blocks.unit_variances)
    inverse = np.linalg.pinv(strategy, rcond=1e-9)
    for part in asked.parts:
        for names in part.sets:
            shape = asked.domain.shape(names)
            cells = np.eye(int(np.prod(shape))).reshape(-1, *shape)
            queries = np.stack([part.answers(names, cell).reshape(-1) for cell in cells], axis=1)
            back = spread(asked.domain, names, queries) @ inverse
            np.testing.assert_allclose(back @ strategy, spread(asked.domain, names, queries), atol=1e-6)
            expected = (back**2).sum(axis=1)
            told = plan.accuracy.part_variances(part, names).reshape(-1)
            single = [plan.variance(names, query.reshape(shape)) for query in queries]
            np.testing.assert_allclose(told, expected, rtol=1e-6, atol=1e-6 * expected.max())
            np.testing.assert_allclose(single, expected, rtol=1e-6, atol=1e-6 * expected.max())
    assert plan.optimality_gap >= 0


def through(name, matrix, sizes, planner, noise="gaussian", beside=None):
    with pytest.MonkeyPatch.context() as patch:
        asked = workload(patch, name, matrix, sizes, beside)
        if planner == "baseline" and any(part.name == "affine" for part in asked.parts):
            with pytest.raises(dp.PlanError, match="no product"):
                dp.plan(asked, planner, noise=noise)
            return
        check(asked, dp.plan(asked, planner, noise=noise))


@pytest.mark.parametrize("name", MATRICES)
def test_the_default_plans_every_singular_family(name):
    through(name, MATRICES[name], (5, 4), "weighted-residuals")


@pytest.mark.parametrize("planner", BEFOREHAND)
def test_every_mechanism_plans_windows_and_halves(planner):
    for name in ("windows", "halves"):
        through(name, MATRICES[name], (4, 3, 2), planner)


@pytest.mark.parametrize("planner", ADAPTIVE)
@pytest.mark.parametrize("name", MATRICES)
def test_adaptive_mechanisms_plan_singular_families(planner, name, monkeypatch):
    asked = workload(monkeypatch, name, MATRICES[name], (4, 3, 2))
    chosen = mechanism(planner)
    assert plan_problem(chosen, PlanningProblem(asked, Budget("gaussian", 1.0)), chosen.Options(), Tools()).candidates


def drawn(seed, rows, density):
    """A family of random 0/1 queries, no more than `rows` of them independent, some repeated."""

    def matrix(size):
        random = np.random.default_rng([seed, size])
        queries = random.random((rows, size)) < density
        queries[0, random.integers(size)] = True  # not all of them ask for nothing
        return queries[random.integers(rows, size=rows + 1)].astype(float) + queries[:1]

    return matrix


CASES = {
    "seed": st.integers(0, 10**6), "rows": st.integers(1, 4), "density": st.sampled_from([0.2, 0.5, 0.9]),
    "sizes": st.sampled_from(list(SETS)), "planner": st.sampled_from(BEFOREHAND), "beside": st.sampled_from(BESIDE),
    "noise": st.sampled_from(["gaussian", "gaussian", "laplace"]),
}  # fmt: skip


def random_family(seed, rows, density, sizes, planner, beside, noise):
    planner = "hdmm" if (planner, noise) == ("eigen-design", "laplace") else planner  # which has Gaussian noise alone
    through(f"drawn{seed}-{rows}-{density}", drawn(seed, rows, density), sizes, planner, noise, beside)


@settings(max_examples=25, derandomize=True, suppress_health_check=list(HealthCheck))
@given(**CASES)
def test_random_families(**case):
    random_family(**case)


@pytest.mark.slow
@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(**CASES)
def test_many_random_families(**case):
    random_family(**case)
