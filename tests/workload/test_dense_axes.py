"""Families that are no intervals on 2,049 to 8,192 cells: plans against row spaces, refusals above, memory."""

import numpy as np
import pytest

from dpscale import Domain, Workload, plan
from dpscale.base.errors import PlanError
from dpscale.mechanisms.contract import planning_memory
from dpscale.workload.residual import profile_of
from tests.messages import refused

CELLS = 2100


def groups(cells, count=40):
    return np.random.default_rng(0).integers(0, 2, (count, cells)).astype(float)


@pytest.mark.parametrize("mechanism", ["query-smasher", "weighted-residuals"])
def test_plan_of_groups_is_near_the_dual_of_their_row_space(mechanism):
    """At any weights μ of the cells, the squared sum of the singular values of W diag(μ)^½ is a bound."""
    queries = groups(CELLS)
    workload = Workload(Domain({"a": CELLS, "b": 3})).add("product", predicates={"a": queries})
    made = plan(workload, mechanism)
    least = np.linalg.svd(queries / CELLS**0.5, compute_uv=False).sum() ** 2
    assert least < made.error < 1.3 * least
    assert made.optimality_gap < 5e-3
    (block,) = (block for block in made.blocks if block.attributes == ("a",))
    (factor,) = block.factors
    weights = None if factor.weights is None else factor.weights[0]
    # a strategy of residuals spans the centred queries, another one the queries
    spanned = queries if factor.spaces else queries - (queries @ profile_of(weights, CELLS))[:, None]
    found = (spanned @ factor.inverse) @ factor.matrix
    np.testing.assert_allclose(found, spanned, atol=1e-6)


def test_groups_beside_another_attribute_have_the_same_strategy():
    queries = groups(CELLS)
    workload = Workload(Domain({"a": CELLS, "b": 3})).add("product", predicates={"a": queries, "b": np.eye(3)})
    alone = Workload(Domain({"a": CELLS})).add("product", predicates={"a": queries})
    assert plan(workload, "query-smasher").rmse() == pytest.approx(plan(alone, "query-smasher").rmse(), rel=1e-3)


def test_wider_groups_are_refused():
    workload = Workload(Domain({"a": 8193})).add("product", predicates={"a": groups(8193)})
    with refused(PlanError):
        plan(workload, "query-smasher")
    assert plan(workload).optimality_gap < 0.01  # one strategy in the space of the queries


def test_memory_counts_dense_axes_and_transforms():
    base = planning_memory(Workload(Domain({"a": CELLS})).add("prefix", degree=1))
    dense = planning_memory(Workload(Domain({"a": CELLS})).add("product", predicates={"a": groups(CELLS, 2)}))
    assert dense - base == 32 * CELLS**2
    pairs = planning_memory(Workload(Domain({"a": 300, "b": 200})).add("affine", degree=2))
    assert pairs > 160 * 300 * 200
