"""Strategies that mix residuals: variances against the coefficients of the estimates and against least squares."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpscale import Domain, Workload
from dpscale.plans.blocks import Block
from dpscale.plans.factor import Factor, identity_factor, joint_quadratic
from dpscale.plans.plan import Plan
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from tests.oracles import explicit_strategy, explicit_workload, least_squares_variances

DOMAIN = Domain({"a": 3, "b": 4, "c": 2})
SETS = {
    "one": [("a", "b", "c")],
    "two that overlap": [("a", "b"), ("b", "c")],
    "one inside another": [("a", "b", "c"), ("b",)],
    "three and the total": [("a", "b"), ("a", "c"), ("b", "c"), ()],
}


def make_workload() -> Workload:
    rng = np.random.default_rng(5)
    products = (
        Workload(DOMAIN)
        .add("prefix", attributes=[("a", "b"), ("c",)], weight=[2.0, 1.0])
        .add("range", attributes=[("b",)])
    )
    return products.add("marginal", attributes=[("b", "c")]).add_queries(
        ("b", "c"), rng.normal(size=(3, 4, 2)), [1, 2, 3]
    )


def make_plan(sets, identity: bool = False, noise: str = "gaussian") -> Plan:
    rng = np.random.default_rng(1)

    def make_factor(size: int) -> Factor:
        if identity and size == 4:
            return identity_factor(size)
        return Factor("full", (size,), rng.integers(-3, 9, (size + 2, size)))

    shares = rng.random(len(sets))
    blocks = tuple(
        Block(names, tuple(map(make_factor, DOMAIN.shape(names))), share / shares.sum() * 0.99, True, noise)
        for names, share in zip(sets, shares, strict=True)
    )
    return Plan(make_workload(), "test", blocks, 1.0, 0.0)


def make_joint_plan() -> Plan:
    rng = np.random.default_rng(2)
    factor = Factor("full", (3, 4, 2), rng.integers(-3, 9, (30, 24)))
    return Plan(make_workload(), "test", (Block(("a", "b", "c"), (factor,), 0.9, True),), 1.0, 0.0)


def make_shared_plan(sets) -> Plan:
    """Return a plan in which every attribute has one strategy in all blocks, so that averages are least squares."""
    rng = np.random.default_rng(4)
    own = {
        name: Factor("full", (n,), rng.integers(-3, 9, (n + 2, n))) for name, n in zip("abc", (3, 4, 2), strict=True)
    }
    blocks = tuple(Block(names, tuple(own[name] for name in names), 0.9 / len(sets), True) for names in sets)
    return Plan(make_workload(), "test", blocks, 1.0, 0.0)


PLANS = (
    {name: make_plan(sets) for name, sets in SETS.items()}
    | {
        "with identity": make_plan(SETS["two that overlap"], identity=True),
        "laplace": make_plan(SETS["two that overlap"], noise="laplace"),
        "joint": make_joint_plan(),
    }
    | {f"shared, {name}": make_shared_plan(sets) for name, sets in SETS.items()}
)


def make_estimates(plan: Plan, values) -> LeastSquaresEstimates:
    return LeastSquaresEstimates(plan, [block.unit_variance for block in plan.blocks], lambda index: values[index])


def variances_by_coefficients(plan: Plan, read) -> np.ndarray:
    """Return the variances of the results of `read`, from its coefficient for every measured value."""
    total = 0.0
    zero = [np.zeros(block.rows) for block in plan.blocks]
    for index, block in enumerate(plan.blocks):
        for place in np.ndindex(block.rows):
            values = [array.copy() for array in zero]
            values[index][place] = 1.0
            total = total + block.unit_variance * np.asarray(read(make_estimates(plan, values))) ** 2
    return total


@pytest.mark.parametrize("name", PLANS)
def test_part_variances_equal_coefficients(name):
    plan = PLANS[name]
    for part in plan.workload.parts:
        for attributes in part.sets:
            if not all(subset in plan.accuracy.residuals for subset in [attributes]):
                continue
            found = make_estimates(plan, None).part_variances(part, attributes)
            np.testing.assert_allclose(
                found, variances_by_coefficients(plan, lambda e, p=part, a=attributes: e.span_answers(p, a)), rtol=1e-9
            )


@pytest.mark.parametrize("name", PLANS)
def test_query_variance_equals_coefficients(name):
    plan = PLANS[name]
    query = np.random.default_rng(0).normal(size=(4, 2) if ("b", "c") in plan.accuracy.residuals else (4,))
    attributes = ("b", "c") if query.ndim == 2 else ("b",)
    expected = variances_by_coefficients(plan, lambda e: e.answer(attributes, query)[0])
    assert plan.variance(attributes, query) == pytest.approx(float(expected), rel=1e-9)
    assert make_estimates(plan, [np.zeros(b.rows) for b in plan.blocks]).answer(attributes, query)[
        1
    ] ** 2 == pytest.approx(float(expected), rel=1e-9)
    if query.ndim == 2:
        assert plan.variance(("c", "b"), query.T) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("name", PLANS)
def test_estimates_are_unbiased(name):
    plan = PLANS[name]
    counts = np.random.default_rng(3).integers(0, 50, (3, 4, 2)).astype(float)
    values = []
    for block in plan.blocks:
        others = tuple(i for i, n in enumerate(DOMAIN.names) if n not in block.attributes)
        table = counts.sum(axis=others)
        if block.joint:
            values.append(block.factors[0].explicit() @ table.reshape(-1))
            continue
        for axis, factor in enumerate(block.factors):
            table = np.moveaxis(np.tensordot(factor.explicit(), table, axes=(1, axis)), 0, axis)
        values.append(table)
    for attributes in [("b",), ("b", "c"), ("a", "b")]:
        if attributes in plan.accuracy.residuals:
            others = tuple(i for i, n in enumerate(DOMAIN.names) if n not in attributes)
            np.testing.assert_allclose(
                make_estimates(plan, values).marginal(attributes), counts.sum(axis=others), atol=1e-9
            )


@pytest.mark.parametrize("name", ["one", "joint", *(f"shared, {name}" for name in SETS if name.startswith("one"))])
def test_one_block_or_shared_strategies_are_least_squares(name):
    plan = PLANS[name]
    queries, weights = explicit_workload(plan.workload)
    strategy = explicit_strategy(plan, [block.unit_variance for block in plan.blocks])
    expected = least_squares_variances(strategy, queries)
    found = [
        make_estimates(plan, None).part_variances(part, attributes).reshape(-1)
        for part in plan.workload.parts
        for attributes in part.sets
    ]
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-8)
    if name != "joint":
        assert plan.accuracy.total_error(plan.workload) == pytest.approx(float(weights @ expected), rel=1e-9)


@pytest.mark.parametrize("name", [name for name in PLANS if name.startswith("shared")])
def test_shared_strategies_of_overlapping_marginals_are_least_squares(name):
    """Only the sets that the plan measures are checked."""
    plan = PLANS[name]
    strategy = explicit_strategy(plan, [block.unit_variance for block in plan.blocks])
    for part in plan.workload.parts:
        for attributes in part.sets:
            if attributes in plan.accuracy.residuals:
                alone = Workload(DOMAIN)
                alone.parts.append(part if len(part.sets) == 1 else replace(part, sets=(attributes,), weights=(1.0,)))
                expected = least_squares_variances(strategy, explicit_workload(alone)[0])
                found = make_estimates(plan, None).part_variances(part, attributes).reshape(-1)
                np.testing.assert_allclose(found, expected, rtol=1e-7)


@pytest.mark.parametrize("name", [name for name in PLANS if name != "joint"])
def test_part_error_is_sum_of_variances(name):
    plan = PLANS[name]
    for part in plan.workload.parts:
        for attributes in part.sets:
            if attributes in plan.accuracy.residuals:
                variances = make_estimates(plan, None).part_variances(part, attributes).reshape(-1)
                expected = variances @ part.query_weights(attributes)
                assert plan.accuracy.part_error(part, attributes) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "families", [("range", "range"), ("range", "prefix"), ("circular", "range"), ("marginal", "circular")]
)
def test_joint_quadratic_equals_explicit_queries(families):
    from dpscale.workload import FAMILIES

    rng = np.random.default_rng(0)
    root = rng.normal(size=(20, 12))
    own = tuple(FAMILIES[name] for name in families)
    queries = np.kron(own[0].matrix(3), own[1].matrix(4))
    found = joint_quadratic(own, root.T @ root, (3, 4))
    np.testing.assert_allclose(found.reshape(-1), ((queries @ root.T) ** 2).sum(axis=1), rtol=1e-9)


def exact_variances(strategy, queries):
    """Return qᵀ (KᵀK)⁻¹ q in rational numbers, by Gauss-Jordan elimination of an integer K with independent columns."""
    gram = strategy.T.astype(object) @ strategy.astype(object)
    rows = [[*map(Fraction, own), *map(Fraction, map(int, right))] for own, right in zip(gram, queries.T, strict=True)]
    for pivot in range(len(rows)):
        first = next(i for i in range(pivot, len(rows)) if rows[i][pivot])
        rows[pivot], rows[first] = rows[first], rows[pivot]
        rows[pivot] = [value / rows[pivot][pivot] for value in rows[pivot]]
        for i, row in enumerate(rows):
            if i != pivot and row[pivot]:
                rows[i] = [value - row[pivot] * own for value, own in zip(row, rows[pivot], strict=True)]
    solved = np.array([row[len(rows) :] for row in rows])
    return np.array([float(sum(q * x for q, x in zip(map(int, query), column, strict=True)))
                     for query, column in zip(queries, solved.T, strict=True)])  # fmt: skip


def test_variances_of_ill_conditioned_joint_strategy_are_exact():
    """Cells have large and sums small variances, so that sums over entries of (KᵀK)⁺ cancel to few digits."""
    sums = np.repeat(np.eye(12, dtype=np.int64), 2, axis=1)
    strategy = np.concatenate([np.eye(24, dtype=np.int64), 10**5 * sums])
    block = Block(("a", "b", "c"), (Factor("full", (3, 4, 2), strategy),), 1.0, True)
    plan = Plan(make_workload(), "test", (block,), 1.0, 0.0)
    for names, queries in ((("a", "b", "c"), np.eye(24, dtype=np.int64)), (("a", "b"), sums)):
        shape = DOMAIN.shape(names)
        found = [plan.variance(names, query.astype(float)) for query in np.eye(len(queries)).reshape(-1, *shape)]
        exact = exact_variances(strategy, queries) * block.unit_variance
        np.testing.assert_allclose(found, exact, rtol=1e-8)
