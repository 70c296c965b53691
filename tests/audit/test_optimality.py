"""Optimality in evidence bundles: solved again if cvxpy is installed, told if not, and a planted worse strategy."""

import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence.bundle import write_bundle
from dpscale.audit.evidence.check import check_bundle
from dpscale.audit.evidence.optimality import FILE, check_optimality
from dpscale.optimize.certificate import certify
from dpscale.runs.opening import open_run
from tests.audit.small import write
from tests.messages import refused

pytest.importorskip("cvxpy", reason="cvxpy is not installed")
PASSED = [{"name": "one", "passed": True, "detail": "as it should"}]
GAUSSIAN, PURE = {"epsilon": 1.0, "delta": 1e-9, "dataset": "small"}, {"epsilon": 1.0, "dataset": "small"}


def make_bundle(place, mechanism="query-smasher", privacy=GAUSSIAN):
    job = write(place, mechanism={"name": mechanism}, privacy=privacy, engine={"scheduler": "synchronous"},
                workload=[{"family": "prefix", "degree": 2}])  # fmt: skip
    release = dp.run(job, place / "run")
    return release, write_bundle(open_run(release.path), PASSED)


def check(folder, *more):
    result = CliRunner().invoke(main, ["evidence", "--check", str(folder), *more])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_check_solves_the_programs_of_the_plan(tmp_path):
    release, folder = make_bundle(tmp_path)
    assert check_bundle(folder)["sound"]
    found = json.loads(check(folder, "--json"))["optimality"]
    assert found["solved"] == 3  # of three axes, of which all spaces are products
    assert found["ratio"] == pytest.approx(max(one.ratio for one in certify(release.plan)), abs=1e-6)
    assert "3 convex programs of the Gram matrices in the bundle solved by cvxpy" in check(folder)


def test_planted_worse_strategy_is_told(tmp_path):
    _, folder = make_bundle(tmp_path)
    strategies = json.loads((folder / "strategies.json").read_text())
    worse = next(own for own in strategies["factors"].values() if "matrix" in own)
    worse["matrix"] = (np.array(worse["matrix"]) * np.array([[3], *[[1]] * (len(worse["matrix"]) - 1)])).tolist()
    (folder / "strategies.json").write_text(json.dumps(strategies))
    assert check_optimality(folder)["ratio"] > 1.05


def test_check_says_why_it_solved_nothing(tmp_path, monkeypatch):
    _, folder = make_bundle(tmp_path / "gaussian")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "cvxpy", None)
        assert "optimality of strategies not checked: certify: cvxpy is not installed" in check(folder)
        assert "pip install 'dpscale[certify]'" in check(folder)
    content = (folder / FILE).read_text()
    (folder / FILE).write_text(content.replace('"rows"', '"lines"'))
    with refused(dp.JobError):
        check_optimality(folder)
    (folder / FILE).unlink()
    assert check_optimality(folder) == {"solved": 0, "why": f"the bundle has no {FILE}"}
    for name, mechanism, privacy in (
        ("pure", "query-smasher", PURE),
        ("whole", "hdmm", GAUSSIAN),
        ("tree", "mst", GAUSSIAN),
    ):
        _, folder = make_bundle(tmp_path / name, mechanism, privacy)
        assert "not checked: no small residual space under Gaussian noise" in check(folder)
