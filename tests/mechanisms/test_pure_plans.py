"""The default mechanism under pure epsilon: never above other mechanisms, exact errors, plan files, refusals."""

import numpy as np
import pytest

import dpscale as dp
from dpscale.plans.plan import read_plan, write_plan

SIZES = (2, 2, 3, 5, 8)


def drawn_workload(seed: int) -> dp.Workload:
    """Return a random workload of small attributes."""
    rng = np.random.default_rng(seed)
    number = int(rng.integers(2, 5))
    workload = dp.Workload(dp.Domain({f"a{i}": int(rng.choice(SIZES)) for i in range(number)}))
    for _ in range(int(rng.integers(1, 3))):
        degree = int(rng.integers(1, min(number, 3) + 1))
        workload.add(str(rng.choice(["marginal", "prefix", "range"])), degree=degree, weight=float(rng.integers(1, 4)))
    return workload


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(6))
def test_default_is_not_above_other_mechanisms(seed):
    workload = drawn_workload(seed)
    default = dp.plan(workload, noise="laplace")
    assert default.mechanism == "weighted-residuals"
    assert default.accuracy.total_error(workload) == pytest.approx(default.error, rel=1e-9)
    for name in ("hdmm", "identity", "query-smasher"):
        assert default.error <= dp.plan(workload, name, noise="laplace").error * (1 + 1e-9)


def test_merged_marginals_are_below_all_other_mechanisms():
    workload = dp.Workload(dp.Domain({f"a{i}": 2 for i in range(20)})).add("marginal", degree=2)
    default = dp.plan(workload, noise="laplace")
    others = [dp.plan(workload, name, noise="laplace").rmse() for name in ("identity", "weighted-fourier")]
    assert default.rmse() < 0.5 * min(others)
    assert "merged marginals has the least" in default.notes[0]
    assert sum(default.blocks.share) <= 1


@pytest.mark.slow
def test_attribute_strategies_are_below_hdmm():
    workload = dp.Workload(dp.Domain({name: 20 for name in "abcd"})).add("prefix", degree=2)
    default, other = (dp.plan(workload, name, noise="laplace") for name in ("weighted-residuals", "hdmm"))
    assert default.rmse() < 0.98 * other.rmse()


def test_plan_file_keeps_merged_marginals(tmp_path):
    workload = dp.Workload(dp.Domain({"a": 2, "b": 2, "c": 3, "d": 12})).add("marginal", degree=2)
    default = dp.plan(workload, noise="laplace")
    write_plan(tmp_path, default)
    found = read_plan(tmp_path, workload).blocks
    assert [block.digest for block in found] == [block.digest for block in default.blocks]


def test_joint_families_are_planned():
    workload = dp.Workload(dp.Domain({"a": 3, "b": 4, "c": 2})).add("affine", attributes=[("a", "b")])
    workload.add("marginal", attributes=[("b", "c")])
    default = dp.plan(workload, noise="laplace")
    assert default.error <= dp.plan(workload, "identity", noise="laplace").error
    assert default.accuracy.total_error(workload) == pytest.approx(default.error, rel=1e-9)
