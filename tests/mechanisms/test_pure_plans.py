"""The default mechanism under pure epsilon: never above other mechanisms, exact errors, plan files, refusals."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tomli_w

import dpscale as dp
from dpscale.mechanisms import hdmm
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


@pytest.mark.parametrize("mechanism", ["weighted-residuals", "hdmm"])
@pytest.mark.parametrize("sizes", [(3, 4, 3, 5, 4, 3), (3, 4, 3, 5, 4, 3, 2)])
def test_errors_of_many_narrow_attributes_are_those_of_the_estimates(tmp_path, sizes, mechanism):
    """Cells that no query distinguishes have a small weight; their noise must cancel in floating point."""
    rng = np.random.default_rng(0)
    names = [f"x{number}" for number in range(len(sizes))]
    rows = pd.DataFrame({name: rng.integers(0, size, 500) for name, size in zip(names, sizes, strict=True)})
    rows.to_parquet(tmp_path / "rows.parquet")
    domain = {"attributes": {name: {"kind": "coded", "size": size} for name, size in zip(names, sizes, strict=True)}}
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(domain))
    sets = list(itertools.combinations(names, 5))
    conditions = [" and ".join(f"{name} >= 1" for name in some) for some in sets]
    release = dp.run({
        "data": {"path": str(tmp_path / "rows.parquet"), "domain": str(tmp_path / "domain.toml")},
        "privacy": {"epsilon": 1.0, "dataset": "rows", "ledger": str(tmp_path / "ledger.sqlite")},
        "workload": [{"family": "predicates", "conditions": conditions}],
        "mechanism": {"name": mechanism}, "engine": {"scheduler": "synchronous"},
    }, tmp_path / "run", progress=None)  # fmt: skip
    for some in sets:
        [answer] = release.table(some, family="conditions").to_dict("records")
        exact = (rows[list(some)] >= 1).all(axis=1).sum()
        assert answer["estimate"] == pytest.approx(exact, abs=16 * answer["std_error"])  # once in 10^9


def test_auto_leaves_out_a_mechanism_whose_solver_fails(monkeypatch):
    def fail(*_):
        raise np.linalg.LinAlgError

    monkeypatch.setattr(hdmm, "plan", fail)
    monkeypatch.setattr(hdmm, "MECHANISM", replace(hdmm.MECHANISM, plan=fail))
    made = dp.plan(dp.Workload(dp.Domain(a=3, b=4)).add("prefix", degree=2), "auto")
    assert "hdmm does not take it" in made.notes[-1]
