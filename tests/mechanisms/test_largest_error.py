"""Plans of least largest error against the convex program of all strategies, and their remarks against variances."""

import numpy as np
import pytest

from dpscale import Domain, Workload, plan
from dpscale.base.errors import JobError, PlanError
from dpscale.mechanisms import largest_error
from tests.messages import refused
from tests.selection import mostly_slow


def some_workload(name: str) -> Workload:
    workload = Workload(Domain({"a": 3, "b": 4}))
    if name == "prefix":
        return workload.add("prefix", degree=2)
    if name == "weights":
        return workload.add("range", degree=1, weight=[3.0, 1.0]).add("prefix", degree=2)
    if name == "joint":
        return workload.add("affine", degree=2).add("prefix", degree=1)
    queries = np.random.default_rng(4).integers(0, 2, (6, 3, 4)).astype(float)
    return workload.add_queries(["a", "b"], queries, weights=[1, 2, 1, 1, 4, 1]).add("marginal", degree=1)


def explicit(workload: Workload) -> np.ndarray:
    """Return all queries of positive weight on all cells, each times the root of its weight."""
    rows, shape = [], workload.domain.shape(workload.domain.names)
    for part in workload.parts:
        for names, weight in zip(part.sets, part.weights, strict=True):
            sizes = [n if name in names else 1 for name, n in zip(workload.domain.names, shape, strict=True)]
            each = np.sqrt(weight * part.query_weights(names))
            for query, root in zip(part.queries(names), each, strict=True):
                rows.append(root * np.broadcast_to(query.reshape(sizes), shape).reshape(-1))
    return np.array(rows)


def least_of_all_strategies(queries: np.ndarray) -> float:
    """Return the least largest variance by Clarabel: q X⁻¹ q ≤ t for every query, diag(X) ≤ 1."""
    import cvxpy as cp

    size = queries.shape[1]
    strategy, most = cp.Variable((size, size), PSD=True), cp.Variable((1, 1))
    limits = [cp.bmat([[strategy, query[:, None]], [query[None], most]]) >> 0 for query in queries]
    return float(cp.Problem(cp.Minimize(most[0, 0]), [*limits, cp.diag(strategy) <= 1]).solve(solver=cp.CLARABEL))


def largest_variance(made) -> float:
    found = []
    for part in made.workload.parts:
        for names, weight in zip(part.sets, part.weights, strict=True):
            each = part.query_weights(names)
            for query, own in zip(part.queries(names), each, strict=True):
                found.append(weight * own * made.variance(names, query))
    return max(found)


def told(made) -> tuple[float, float]:
    """Return the largest variance and its bound that the first remark states."""
    words = made.notes[0].replace("(", "").replace(",", "").split()
    bound = words[words.index("bound") + 1]
    return float(words[words.index("1:") + 1]) ** 2, 0.0 if bound == "not" else float(bound) ** 2


@pytest.mark.parametrize("name", ["prefix", "weights", "joint", "array"])
def test_largest_variance_is_near_that_of_the_convex_program(name):
    workload = some_workload(name)
    optimum = least_of_all_strategies(explicit(workload))
    made = plan(workload, objective="max")
    largest, bound = told(made)
    assert largest == pytest.approx(largest_variance(made), rel=1e-5)
    assert bound <= optimum * (1 + 1e-5)
    assert optimum * (1 - 1e-5) <= largest <= optimum * 1.04
    assert largest < largest_variance(plan(workload))


def test_equal_weights_alone_have_a_large_gap(monkeypatch):
    """The comparison above finds weights that do not follow the variances."""
    monkeypatch.setattr(largest_error, "ROUNDS", 1)
    workload = some_workload("prefix")
    largest, _ = told(plan(workload, objective="max"))
    assert largest > 1.1 * least_of_all_strategies(explicit(workload))


QUICK = ["query-smasher", "residual-planner", "residual-planner-plus", "eigen-design", "identity", "weighted-fourier",
         "baseline"]  # fmt: skip


@pytest.mark.parametrize("name", mostly_slow([*QUICK, "hdmm", "auto"], QUICK))
def test_every_matrix_mechanism_lowers_its_largest_variance(name):
    workload = some_workload("weights")
    least, usual = plan(workload, name, objective="max"), plan(workload, name)
    assert told(least)[0] == pytest.approx(largest_variance(least), rel=1e-5)
    assert told(least)[0] <= largest_variance(usual) * (1 + 1e-9)
    assert least.error == pytest.approx(least.accuracy.total_error(workload))
    assert least.bound <= usual.error * (1 + 1e-9)


def test_refusals_name_the_reason():
    with refused(JobError):
        plan(some_workload("prefix"), noise="laplace", objective="max")
    many = Workload(Domain({f"x{i}": 40 for i in range(12)})).add("prefix", degree=3)
    with refused(PlanError):
        plan(many, objective="max")
