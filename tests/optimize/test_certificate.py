"""Certificates of plans by cvxpy: closed forms of marginals, errors of whole plans, and planted worse strategies."""

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.optimize.certificate import certify, solver, strategy_error, summarize
from dpscale.plans.blocks import Blocks
from dpscale.plans.factor import Factor

pytest.importorskip("cvxpy", reason="cvxpy is not installed")
DOMAIN = dp.Domain(a=4, b=5, c=3)


def plan_of(mechanism="query-smasher", family="marginal", domain=DOMAIN):
    return dp.plan(dp.Workload(domain).add(family, degree=2), mechanism=mechanism)


def test_values_of_marginals_equal_their_closed_form():
    """The identity is optimal: over the sets that contain τ, the sum of Π (n−1)²/n inside and 1/n outside of τ."""
    for one in certify(plan_of()):
        inside = math.prod((DOMAIN[name].size - 1) ** 2 / DOMAIN[name].size for name in one.attributes)
        others = [name for name in DOMAIN.names if name not in one.attributes]
        left = 2 - len(one.attributes)
        outside = [1 / DOMAIN[name].size for name in others]
        times = {0: 1.0, 1: sum(outside), 2: sum(outside) ** 2 / 2 - sum(x**2 for x in outside) / 2}[left]
        assert one.planned == pytest.approx(inside * times, rel=1e-9)
        assert one.optimum == pytest.approx(inside * times, rel=1e-6)


@pytest.mark.parametrize("mechanism", ["query-smasher", "weighted-residuals"])
@pytest.mark.parametrize("family", ["prefix", "range"])
def test_spaces_add_up_to_the_error_of_the_plan_and_are_optimal(mechanism, family):
    plan = plan_of(mechanism, family)
    certified = certify(plan)
    assert sum(one.spaces * one.planned**0.5 for one in certified) ** 2 == pytest.approx(plan.error, rel=1e-9)
    assert all(1 - 1e-6 < one.ratio < 1 + 1e-5 for one in certified)
    assert summarize(certified)["ratio"] == pytest.approx(1, abs=1e-5)


def test_spaces_that_are_measured_together_are_one_program():
    plan = plan_of("weighted-residuals", "affine", dp.Domain(a=3, b=4))
    (one,) = certify(plan)
    assert one.spaces == 1
    assert one.planned == pytest.approx(plan.error, rel=1e-9)
    assert one.ratio == pytest.approx(1, abs=1e-4)


def test_spaces_beside_those_measured_together_add_up_to_the_error():
    plan = dp.plan(dp.Workload(dp.Domain(a=3, b=4, c=5)).add("affine", attributes=[["a", "b"]]).add("prefix", degree=1))
    certified = certify(plan)
    assert len(plan.blocks) == len(certified)
    assert sum(one.spaces * one.planned**0.5 for one in certified) ** 2 == pytest.approx(plan.error, rel=1e-9)


def test_merged_cells_are_certified_on_their_classes():
    groups = ["z in 0..999", "z in 0..2999", "z in 4000..4999"]
    plan = dp.plan(dp.Workload(dp.Domain(z=5000, s=3)).add_product({"z": groups, "s": "identity"}))
    certified = certify(plan)
    assert plan.blocks.merged is not None
    assert sum(one.spaces * one.planned**0.5 for one in certified) ** 2 == pytest.approx(plan.error, rel=1e-9)
    assert all(one.ratio == pytest.approx(1, abs=1e-5) for one in certified)


def test_planted_worse_strategy_has_a_ratio_above_one():
    plan = plan_of(family="prefix")
    strategies = list(plan.blocks.strategies)
    place = next(i for i, one in enumerate(strategies) if len(one) == 1 and one[0].matrix is not None)
    matrix = strategies[place][0].matrix.copy()
    matrix[0] *= 2
    strategies[place] = (Factor("matrix", strategies[place][0].shape, matrix, strategies[place][0].weights),)
    blocks = plan.blocks
    worse = Blocks(blocks.sets, tuple(strategies), blocks.which, blocks.share, blocks.whole, blocks.noise)
    ratios = [one.ratio for one in certify(replace(plan, blocks=worse))]
    assert max(ratios) > 1.05
    assert max(one.ratio for one in certify(plan)) < 1 + 1e-5


def test_no_random_strategy_is_better_than_the_program():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(5, 4))
    least = solver()(rows)
    found = [strategy_error(rows, rng.normal(size=(6, 4))) for _ in range(300)]
    assert min(found) >= least * (1 - 1e-7)
    assert strategy_error(rows, rows) >= least * (1 - 1e-7)


def test_large_spaces_are_listed_without_values():
    summary = summarize(certify(plan_of(domain=dp.Domain(a=3, b=40))))
    assert [one["attributes"] for one in summary["spaces"] if one["ratio"] is None] == [["b"], ["a", "b"]]
    assert (summary["solved"], summary["too_large"]) == (2, 2)
    assert "32 dimensions" in summary["limit"]


def write_job(folder, mechanism="query-smasher", delta="delta = 1e-9"):
    (folder / "d.toml").write_text("".join(f"[attributes.{one}]\nkind = 'coded'\nsize = {size}\n"
                                           for one, size in {"a": 4, "b": 40}.items()))  # fmt: skip
    (folder / "job.toml").write_text(
        f"[data]\npath = 'none.csv'\ndomain = 'd.toml'\n[privacy]\nepsilon = 1.0\n{delta}\n"
        f"[mechanism]\nname = '{mechanism}'\n[[workload]]\nfamily = 'prefix'\ndegree = 1\n"
    )
    return str(folder / "job.toml")


def run_plan(*arguments, code=0):
    result = CliRunner().invoke(main, ["plan", *arguments, "--certify"])
    assert result.exit_code == code, result.output
    return result.stdout if not code else result.stderr


def test_command_prints_both_values_and_the_spaces_that_are_too_large(tmp_path):
    text = run_plan(write_job(tmp_path), "--quiet")
    assert "by cvxpy and Clarabel, ratio" in text
    assert "too large for at most 32 dimensions and 1,024 cells in one program: 1 space, b" in text
    found = json.loads(run_plan(write_job(tmp_path), "--json"))["certificate"]
    assert {tuple(one["attributes"]): one["ratio"] and round(one["ratio"], 5) for one in found["spaces"]} == {
        (): 1.0, ("a",): 1.0, ("b",): None}  # fmt: skip
    table = dp.plan(write_job(tmp_path)).certify()
    assert table["ratio"].round(5).tolist()[:2] == [1.0, 1.0]


def test_refusals_name_the_remedy(tmp_path, monkeypatch):
    assert "pure epsilon, whose least error is no convex program" in run_plan(write_job(tmp_path, delta=""), code=2)
    assert "a plan by hdmm, which measures whole marginals" in run_plan(write_job(tmp_path, "hdmm"), code=2)
    assert "given for the adaptive mechanism mst" in run_plan(write_job(tmp_path, "mst"), code=2)
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    message = run_plan(write_job(tmp_path), code=2)
    assert "cvxpy is not installed; expected cvxpy 1.5 or later; pip install 'dpscale[certify]'" in message
