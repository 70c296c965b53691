"""Arbitrary queries over many cells, against the variances of generalised least squares."""

import numpy as np
import pytest

import dpscale as dp
from tests.messages import refused
from tests.oracles import explicit_strategy


@pytest.mark.parametrize("mechanism", ["weighted-residuals", "query-smasher"])
@pytest.mark.parametrize("shape", [(450,), (20, 21)])
def test_arbitrary_queries_have_least_squares_variance(mechanism, shape):
    queries = np.round(np.random.default_rng(0).random((8, *shape)) * 50, 2)
    names = tuple(f"a{i}" for i in range(len(shape)))
    workload = dp.Workload(dp.Domain(dict(zip(names, shape, strict=True)))).add_queries(names, queries)
    plan = dp.plan(workload, mechanism)
    strategy = explicit_strategy(plan, plan.blocks.unit_variances)
    flat = queries.reshape(len(queries), -1)
    back = flat @ np.linalg.pinv(strategy, rcond=1e-9)
    np.testing.assert_allclose(back @ strategy, flat, atol=1e-6 * flat.max())
    stated = plan.accuracy.part_variances(workload.parts[0], names)
    np.testing.assert_allclose(stated, (back**2).sum(axis=1), rtol=1e-6)
    single = [plan.variance(names, query) for query in queries]
    np.testing.assert_allclose(single, stated, rtol=1e-6)
    assert 0 <= plan.optimality_gap < 0.2


def test_queries_on_many_cells_have_circulant_strategies():
    """The stated variances are those of the queries' pieces on the covariance, by its definition."""
    queries = np.random.default_rng(0).random((5, 60, 60))
    workload = dp.Workload(dp.Domain({"a": 60, "b": 60})).add_queries(("a", "b"), queries)
    plan = dp.plan(workload, "weighted-fourier")
    assert plan.error >= dp.plan(workload, "query-smasher").error * (1 - 1e-6)
    (block,) = (block for block in plan.blocks if block.joint)
    kernel = np.fft.fft2(block.factors[0].kernel).real[1:, 1:]
    rest = [block for block in plan.blocks if not block.joint]
    known = block.unit_variance * (np.abs(np.fft.fft2(queries)[:, 1:, 1:]) ** 2 / kernel**2).sum(axis=(1, 2)) / 3600
    for other in rest:
        averaged = queries.mean(axis=tuple({"a": 1, "b": 2}[name] for name in "ab" if name not in other.attributes))
        covariance = other.factors[0].covariance if other.factors else np.ones((1, 1))
        flat = averaged.reshape(5, -1)
        known += other.unit_variance * np.einsum("ij,jk,ik->i", flat, covariance, flat)
    stated = plan.accuracy.part_variances(workload.parts[0], ("a", "b"))
    np.testing.assert_allclose(stated, known, rtol=1e-8)
    assert (stated.sum()) == pytest.approx(plan.error)


def test_circulant_strategies_of_arbitrary_queries_are_accurate():
    workload = dp.Workload(dp.Domain({"a": 300})).add_queries(("a",), np.random.default_rng(0).random((5, 300)))
    assert dp.plan(workload, "weighted-fourier").rmse() < 5 * dp.plan(workload, "query-smasher").rmse()


@pytest.mark.parametrize("way", [None, "union"])
def test_hdmm_refuses_joint_families_with_a_mechanism_that_plans_them(way):
    workload = dp.Workload(dp.Domain({"a": 60, "b": 60})).add("affine", degree=2)
    with refused(dp.PlanError) as caught:
        dp.plan(workload, "hdmm", way=way)
    assert 'set way = "explicit", or use weighted-residuals' in str(caught.value)
    assert dp.plan(workload, "weighted-residuals").error > 0
