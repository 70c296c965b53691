"""Accuracy against explicit matrices, for planned and realised noise, with independent and coupled residuals."""

import math
from functools import cache

import numpy as np
import pytest

from dpscale import Domain, PlanError, Workload, plan
from dpscale.plans.accuracy import IndependentResiduals, accuracy_of
from dpscale.plans.accuracy_base import CoupledResiduals
from dpscale.workload import ExplicitPart, JointPart
from dpscale.workload.residual import subsets
from tests.messages import refused
from tests.oracles import joint_queries, kron, one_way_queries
from tests.plans.test_coupled import PLANS as COUPLED

DOMAIN = Domain({"a": 3, "b": 4, "c": 2})


def make_workload() -> Workload:
    rng = np.random.default_rng(7)
    products = Workload(DOMAIN).add("prefix", degree=2, weight=[2.0, 1.0, 0.5]).add("range", attributes=[("b",)])
    return products.add("affine", attributes=[("a", "b")]).add_queries(("c", "b"), rng.normal(size=(3, 2, 4)))


@cache
def plan_independent(name: str):
    if name == "identity":
        return plan(make_workload(), "identity")
    if name == "joint residuals":
        rng = np.random.default_rng(3)
        joint = Workload(DOMAIN).add_queries(("a", "b", "c"), rng.random((9, 3, 4, 2)) < 0.4)
        return plan(joint.add("prefix", degree=2), "query-smasher")
    return plan(make_workload(), name)


INDEPENDENT = ("query-smasher", "residual-planner", "identity", "joint residuals")
CASES = [*INDEPENDENT, *COUPLED]


def get_plan(name: str):
    return plan_independent(name) if name in INDEPENDENT else COUPLED[name]


def draw_variances(blocks) -> list[float]:
    """Return the planned variances, each multiplied by a random factor."""
    factors = np.random.default_rng(9).uniform(0.3, 3, len(blocks))
    return [block.unit_variance * factor for block, factor in zip(blocks, factors, strict=True)]


def attribute_profiles(blocks) -> dict[str, np.ndarray]:
    """Return S1/1ᵀS1 if all blocks share one factor that mixes residuals on an attribute, else the uniform profile."""
    own = {}
    for block in blocks:
        for name, factor in () if block.joint else zip(block.attributes, block.factors, strict=True):
            own.setdefault(name, []).append(factor)
    found = {a.name: np.full(a.size, 1 / a.size) for a in DOMAIN.attributes}
    for name, factors in own.items():
        if factors[0].kind == "full" and len({factor.digest for factor in factors}) == 1:
            matrix = factors[0].explicit().astype(float)
            sums = np.linalg.inv(matrix.T @ matrix).sum(axis=1)
            found[name] = sums / sums.sum()
    return found


def residual_map(names, subset, spread) -> np.ndarray:
    """Return the matrix from the marginal on `names` to the residual on `subset`."""
    own = [(np.eye(len(spread[n])) - np.outer(spread[n], np.ones(len(spread[n])))) if n in subset
           else np.ones((1, len(spread[n]))) for n in names]  # fmt: skip
    return kron(own)


def residual_observations(blocks, spread):
    """Return, by residual and block, the matrix from the cells of the block to the residual and its covariance."""
    found = {}
    for index, block in enumerate(blocks):
        matrix = kron([factor.explicit().astype(float) for factor in block.factors])
        covariance = np.linalg.pinv(matrix.T @ matrix, rcond=1e-11, hermitian=True)
        for subset in subsets(block.attributes) if block.whole else [block.attributes]:
            onto = residual_map(block.attributes, subset, spread)
            found.setdefault(subset, {})[index] = (onto, covariance)
    return found


def residual_variances(subset, own) -> dict[int, float]:
    """Return, by block, the mean variance of the coordinates of a residual at unit noise."""
    dimensions = math.prod(DOMAIN[name].size - 1 for name in subset)
    return {index: float(np.trace(onto @ cov @ onto.T)) / dimensions for index, (onto, cov) in own.items()}


def brute_force_variances(name, attributes, queries) -> np.ndarray:
    """Return the variances of queries (m, cells) under the realised noise with the planned weights, from explicit
    matrices.
    """
    blocks, spread = get_plan(name).blocks, attribute_profiles(get_plan(name).blocks)
    parts = [np.zeros((len(queries), math.prod(DOMAIN.shape(block.attributes)))) for block in blocks]
    known = residual_observations(blocks, spread)
    for subset in subsets(attributes):
        piece = _average_outside(queries, attributes, subset, spread)
        if np.abs(piece).max() < 1e-12:
            continue
        inverse = {i: 1 / (blocks[i].unit_variance * s) for i, s in residual_variances(subset, known[subset]).items()}
        for index, (onto, _) in known[subset].items():
            parts[index] += inverse[index] / sum(inverse.values()) * (piece @ onto)
    total = np.zeros(len(queries))
    for block, variance, part in zip(blocks, draw_variances(blocks), parts, strict=True):
        matrix = kron([factor.explicit().astype(float) for factor in block.factors])
        covariance = np.linalg.pinv(matrix.T @ matrix, rcond=1e-11, hermitian=True)
        total += variance * np.einsum("ij,jk,ik->i", part, covariance, part)
    return total


def _average_outside(queries, attributes, subset, spread) -> np.ndarray:
    """Return queries averaged outside `subset`; they need no centring because the residual is centred."""
    own = [np.eye(len(spread[n])) if n in subset else spread[n][None] for n in attributes]
    return queries @ kron(own).T


def explicit_queries(part, attributes) -> np.ndarray:
    if isinstance(part, ExplicitPart):
        return part.array.reshape(len(part.array), -1)
    if isinstance(part, JointPart):
        return joint_queries(part, attributes).reshape(part.count(attributes), -1)
    return kron([one_way_queries(part.name, n) for n in DOMAIN.shape(attributes)])


def answerable_sets(name):
    """Yield the parts, sets and weights for which every residual is measured by some block."""
    known = set(residual_observations(get_plan(name).blocks, attribute_profiles(get_plan(name).blocks)))
    for part in get_plan(name).workload.parts:
        for attributes, weight in zip(part.sets, part.weights, strict=True):
            if set(subsets(attributes)) <= known:
                yield part, attributes, weight


@pytest.mark.parametrize("name", CASES)
def test_variances_under_realised_noise_equal_explicit_matrices(name):
    accuracy, checked = accuracy_of(DOMAIN, get_plan(name).blocks, draw_variances(get_plan(name).blocks)), 0
    assert isinstance(accuracy, IndependentResiduals if name in INDEPENDENT else CoupledResiduals)
    for part, attributes, _ in answerable_sets(name):
        queries = explicit_queries(part, attributes)
        expected = brute_force_variances(name, attributes, queries)
        np.testing.assert_allclose(accuracy.part_variances(part, attributes).reshape(-1), expected, rtol=1e-7)
        one = queries[len(queries) // 2].reshape(DOMAIN.shape(attributes))
        assert accuracy.variance(attributes, one) == pytest.approx(expected[len(queries) // 2], rel=1e-7)
        assert accuracy.variance(attributes[::-1], one.T) == pytest.approx(expected[len(queries) // 2], rel=1e-7)
        each = part.query_weights(attributes) if hasattr(part, "query_weights") else 1.0
        assert accuracy.part_error(part, attributes) == pytest.approx(float((each * expected).sum()), rel=1e-7)
        checked += 1
    assert checked


@pytest.mark.parametrize("name", [*INDEPENDENT, "one", "joint", "shared, one"])
def test_total_error_is_weighted_sum_of_explicit_variances(name):
    accuracy, total = accuracy_of(DOMAIN, get_plan(name).blocks, draw_variances(get_plan(name).blocks)), 0.0
    for part, attributes, weight in answerable_sets(name):
        each = part.query_weights(attributes) if hasattr(part, "query_weights") else 1.0
        total += weight * float(
            (each * brute_force_variances(name, attributes, explicit_queries(part, attributes))).sum()
        )
    assert accuracy.total_error(get_plan(name).workload) == pytest.approx(total, rel=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_residual_covariance_has_exact_trace(name):
    """For coupled residuals the covariance is approximated as isotropic, but the mean variance of a coordinate is
    exact.
    """
    blocks, spread = get_plan(name).blocks, attribute_profiles(get_plan(name).blocks)
    accuracy = accuracy_of(DOMAIN, blocks, draw_variances(blocks))
    for subset, own in residual_observations(blocks, spread).items():
        estimator, expected = accuracy.residuals[subset], 0.0
        for source in estimator.sources:
            onto, covariance = own[source.block]
            trace = float(np.trace(onto @ covariance @ onto.T))
            expected += source.weight**2 * draw_variances(blocks)[source.block] * trace
        found = estimator.scale * math.prod(float(np.trace(factor.covariance)) for factor in estimator.factors)
        assert found == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("name", ["query-smasher", "one"])
def test_plan_accuracy_is_for_planned_noise(name):
    """Twice the noise is twice the variance, with the same weights."""
    own, blocks = get_plan(name).accuracy, get_plan(name).blocks
    twice = accuracy_of(DOMAIN, blocks, [2 * block.unit_variance for block in blocks])
    for subset, estimator in own.residuals.items():
        assert twice.residuals[subset].sources == estimator.sources
        assert twice.residuals[subset].scale == pytest.approx(2 * estimator.scale)


def test_query_outside_span_is_refused():
    accuracy = plan(Workload(DOMAIN).add("marginal", attributes=[("a",), ("b",)])).accuracy
    with refused(PlanError):
        accuracy.spanned(("a", "b"), np.eye(3, 4))
    with refused(PlanError):
        accuracy.spanned(("a", "b"), np.eye(4, 3))
