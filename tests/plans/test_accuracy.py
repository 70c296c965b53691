"""Accuracy against explicit matrices, for planned and for drawn noise, where residuals are independent or coupled."""

import math
from functools import cache

import numpy as np
import pytest

from dpscale import Domain, PlanError, Workload, plan
from dpscale.plans.accuracy import IndependentResiduals, accuracy_of
from dpscale.plans.coupled import CoupledResiduals
from dpscale.workload import ExplicitPart, JointPart
from dpscale.workload.residual import subsets
from tests.oracles import joint_queries, kron, one_way_queries
from tests.plans.test_coupled import PLANS as COUPLED

DOMAIN = Domain({"a": 3, "b": 4, "c": 2})


def asked() -> Workload:
    rng = np.random.default_rng(7)
    products = Workload(DOMAIN).add("prefix", degree=2, weight=[2.0, 1.0, 0.5]).add("range", attributes=[("b",)])
    return products.add("affine", attributes=[("a", "b")]).add_queries(("c", "b"), rng.normal(size=(3, 2, 4)))


@cache
def independent(name: str):
    if name == "identity":
        return plan(asked(), "identity")
    if name == "joint residuals":
        rng = np.random.default_rng(3)
        joint = Workload(DOMAIN).add_queries(("a", "b", "c"), rng.random((9, 3, 4, 2)) < 0.4)
        return plan(joint.add("prefix", degree=2), "query-smasher")
    return plan(asked(), name)


INDEPENDENT = ("query-smasher", "residual-planner", "identity", "joint residuals")
CASES = [*INDEPENDENT, *COUPLED]


def made(name: str):
    return independent(name) if name in INDEPENDENT else COUPLED[name]


def drawn(blocks) -> list[float]:
    """Noise of the planned size, and each block's off by a factor of its own."""
    factors = np.random.default_rng(9).uniform(0.3, 3, len(blocks))
    return [block.unit_variance * factor for block, factor in zip(blocks, factors, strict=True)]


def profiles(blocks) -> dict[str, np.ndarray]:
    """S1 / 1ᵀS1 where all blocks have one factor on an attribute that mixes residuals; even where not."""
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


def residual_map(names, kept, spread) -> np.ndarray:
    """Marginal on `names` to the residual on `kept`, as a matrix."""
    own = [(np.eye(len(spread[n])) - np.outer(spread[n], np.ones(len(spread[n])))) if n in kept
           else np.ones((1, len(spread[n]))) for n in names]  # fmt: skip
    return kron(own)


def told(blocks, spread):
    """Of every residual, by block: what it tells of the residual as a matrix on its cells, and its covariance."""
    found = {}
    for index, block in enumerate(blocks):
        matrix = kron([factor.explicit().astype(float) for factor in block.factors])
        covariance = np.linalg.pinv(matrix.T @ matrix, rcond=1e-11, hermitian=True)
        for kept in subsets(block.attributes) if block.whole else [block.attributes]:
            onto = residual_map(block.attributes, kept, spread)
            found.setdefault(kept, {})[index] = (onto, covariance)
    return found


def spreads(kept, own) -> dict[int, float]:
    """Mean variance of a residual's coordinates, as every block tells it at unit noise."""
    dimensions = math.prod(DOMAIN[name].size - 1 for name in kept)
    return {index: float(np.trace(onto @ cov @ onto.T)) / dimensions for index, (onto, cov) in own.items()}


def brute(name, attributes, queries) -> np.ndarray:
    """Variances of queries (m, cells) under the drawn noise, with the planned weights, from whole matrices."""
    blocks, spread = made(name).blocks, profiles(made(name).blocks)
    parts = [np.zeros((len(queries), math.prod(DOMAIN.shape(block.attributes)))) for block in blocks]
    known = told(blocks, spread)
    for kept in subsets(attributes):
        piece = _pieces(queries, attributes, kept, spread)
        if np.abs(piece).max() < 1e-12:
            continue
        inverse = {i: 1 / (blocks[i].unit_variance * s) for i, s in spreads(kept, known[kept]).items()}
        for index, (onto, _) in known[kept].items():
            parts[index] += inverse[index] / sum(inverse.values()) * (piece @ onto)
    total = np.zeros(len(queries))
    for block, variance, part in zip(blocks, drawn(blocks), parts, strict=True):
        matrix = kron([factor.explicit().astype(float) for factor in block.factors])
        covariance = np.linalg.pinv(matrix.T @ matrix, rcond=1e-11, hermitian=True)
        total += variance * np.einsum("ij,jk,ik->i", part, covariance, part)
    return total


def _pieces(queries, attributes, kept, spread) -> np.ndarray:
    """Queries averaged outside `kept`; a centred residual makes centring them needless."""
    own = [np.eye(len(spread[n])) if n in kept else spread[n][None] for n in attributes]
    return queries @ kron(own).T


def explicit(part, attributes) -> np.ndarray:
    if isinstance(part, ExplicitPart):
        return part.array.reshape(len(part.array), -1)
    if isinstance(part, JointPart):
        return joint_queries(part, attributes).reshape(part.count(attributes), -1)
    return kron([one_way_queries(part.family, n) for n in DOMAIN.shape(attributes)])


def covered(name):
    """The parts and sets whose every residual some block tells of."""
    known = set(told(made(name).blocks, profiles(made(name).blocks)))
    for part in made(name).workload.parts:
        for attributes, weight in zip(part.sets, part.weights, strict=True):
            if set(subsets(attributes)) <= known:
                yield part, attributes, weight


@pytest.mark.parametrize("name", CASES)
def test_variances_under_drawn_noise_are_those_of_explicit_matrices(name):
    accuracy, checked = accuracy_of(DOMAIN, made(name).blocks, drawn(made(name).blocks)), 0
    assert isinstance(accuracy, IndependentResiduals if name in INDEPENDENT else CoupledResiduals)
    for part, attributes, _ in covered(name):
        queries = explicit(part, attributes)
        expected = brute(name, attributes, queries)
        np.testing.assert_allclose(accuracy.part_variances(part, attributes).reshape(-1), expected, rtol=1e-7)
        one = queries[len(queries) // 2].reshape(DOMAIN.shape(attributes))
        assert accuracy.variance(attributes, one) == pytest.approx(expected[len(queries) // 2], rel=1e-7)
        assert accuracy.variance(attributes[::-1], one.T) == pytest.approx(expected[len(queries) // 2], rel=1e-7)
        each = part.query_weights(attributes) if hasattr(part, "query_weights") else 1.0
        assert accuracy.part_error(part, attributes) == pytest.approx(float((each * expected).sum()), rel=1e-7)
        checked += 1
    assert checked


@pytest.mark.parametrize("name", [*INDEPENDENT, "one", "joint", "shared, one"])
def test_the_total_error_is_the_weighted_sum_of_explicit_variances(name):
    accuracy, total = accuracy_of(DOMAIN, made(name).blocks, drawn(made(name).blocks)), 0.0
    for part, attributes, weight in covered(name):
        each = part.query_weights(attributes) if hasattr(part, "query_weights") else 1.0
        total += weight * float((each * brute(name, attributes, explicit(part, attributes))).sum())
    assert accuracy.total_error(made(name).workload) == pytest.approx(total, rel=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_a_residuals_covariance_has_the_true_trace(name):
    """For coupled residuals its form is taken to be even, but the mean variance of a coordinate is exact."""
    blocks, spread = made(name).blocks, profiles(made(name).blocks)
    accuracy = accuracy_of(DOMAIN, blocks, drawn(blocks))
    for kept, own in told(blocks, spread).items():
        estimator, expected = accuracy.residuals[kept], 0.0
        for source in estimator.sources:
            onto, covariance = own[source.block]
            trace = float(np.trace(onto @ covariance @ onto.T))
            expected += source.weight**2 * drawn(blocks)[source.block] * trace
        found = estimator.scale * math.prod(float(np.trace(factor.covariance)) for factor in estimator.factors)
        assert found == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("name", ["query-smasher", "one"])
def test_planned_noise_is_that_of_the_plan(name):
    """A plan's own accuracy is of its planned noise; twice the noise is twice the variance, and the weights stay."""
    own, blocks = made(name).accuracy, made(name).blocks
    twice = accuracy_of(DOMAIN, blocks, [2 * block.unit_variance for block in blocks])
    for kept, estimator in own.residuals.items():
        assert twice.residuals[kept].sources == estimator.sources
        assert twice.residuals[kept].scale == pytest.approx(2 * estimator.scale)


def test_a_query_out_of_the_span_is_refused():
    accuracy = plan(Workload(DOMAIN).add("marginal", attributes=[("a",), ("b",)])).accuracy
    with pytest.raises(PlanError, match="a, b"):
        accuracy.spanned(("a", "b"), np.eye(3, 4))
    with pytest.raises(PlanError, match="shape"):
        accuracy.spanned(("a", "b"), np.eye(4, 3))
