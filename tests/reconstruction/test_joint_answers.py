"""Estimates and covariances of queries that are sums over sets, against single queries over all attributes."""

import numpy as np
import pytest

from dpscale.base.errors import PlanError
from dpscale.domain import Domain
from dpscale.reconstruction.joint_answers import SetQueries, joint_answers
from tests.answers.exact import estimates, measurement_plan
from tests.messages import refused

DOMAIN = Domain({"a": 3, "b": 4, "c": 2})
COUNTS = np.random.default_rng(0).integers(0, 40, (3, 4, 2)).astype(float)
WORKLOADS = [
    [("marginal", ("a", "b")), ("marginal", ("b", "c")), ("prefix", ("a", "c"))],
    [("prefix", ("a", "b", "c"))],
]


def drawn_queries():
    """Return queries in parts over sets, and as arrays over all attributes."""
    rng = np.random.default_rng(1)
    ab, bc, ac = rng.normal(size=(3, 3, 4)), rng.normal(size=(3, 4, 2)), rng.normal(size=(2, 3, 2))
    parts = [SetQueries(("a", "b"), np.array([0, 1, 3]), ab), SetQueries(("b", "c"), np.array([0, 1, 2]), bc),
             SetQueries(("a", "c"), np.array([2, 4]), ac)]  # fmt: skip
    whole = np.zeros((5, 3, 4, 2))
    whole[[0, 1, 3]] += ab[..., None]
    whole[[0, 1, 2]] += bc[:, None]
    whole[[2, 4]] += ac[:, :, None, :]
    return parts, whole


@pytest.mark.parametrize("workload", WORKLOADS, ids=["pairs", "joint"])
@pytest.mark.parametrize("mechanism", ["weighted-residuals", "residual-planner", "hdmm", "weighted-fourier"])
def test_covariance_follows_from_errors_of_sums(mechanism, workload):
    plan = measurement_plan(DOMAIN, workload, mechanism)
    exact, noisy = estimates(plan, COUNTS), estimates(plan, COUNTS, np.random.default_rng(2))
    parts, whole = drawn_queries()
    answers, covariance = joint_answers(noisy, parts, 5)
    np.testing.assert_allclose(joint_answers(exact, parts, 5)[0], (whole * COUNTS).sum((1, 2, 3)))

    one_set = len({noisy.accuracy.source_of(noisy.accuracy.spanned(DOMAIN.names, query)) for query in whole}) == 1
    for i in range(5) if one_set else ():
        estimate, error = noisy.answer(DOMAIN.names, whole[i])
        assert answers[i] == pytest.approx(estimate)
        for j in range(5):
            both = noisy.answer(DOMAIN.names, whole[i] + whole[j])[1] ** 2
            assert 2 * covariance[i, j] == pytest.approx(both - covariance[i, i] - covariance[j, j], abs=1e-8 * both)
        assert covariance[i, i] == pytest.approx(error**2)


def test_query_outside_the_measurements_is_refused():
    plan = measurement_plan(DOMAIN, [("marginal", ("a", "b"))])
    queries = [SetQueries(("b", "c"), np.array([0]), np.random.default_rng(0).normal(size=(1, 4, 2)))]
    with refused(PlanError):
        joint_answers(estimates(plan, COUNTS), queries, 1)
