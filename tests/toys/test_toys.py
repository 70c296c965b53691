"""Toy plug-ins (mechanisms, reconstruction, stage) run end to end with the same bytes on threads and on a cluster."""

import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.base.display import figure
from dpscale.runs.opening import open_part
from tests.audit.composition import audit_run
from tests.audit.small import answers, measurements, write
from tests.messages import refused
from tests.toys import register, unregister

PAIRS = [{"family": "marginal", "degree": 2}]
ONES = [{"family": "marginal", "degree": 1}]
JOBS = {
    "one-ways": {"mechanism": {"name": "one-ways", "used": 0.5}, "workload": ONES,
                 "reconstruct": {"method": "cut-at-zero"}},
    "tree": {"mechanism": {"name": "tree"}, "workload": PAIRS},
}  # fmt: skip


@pytest.fixture(autouse=True)
def registered():
    register()
    yield
    unregister()


@pytest.fixture(scope="module")
def cluster():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as workers,
        Client(workers) as client,
    ):
        client.run(register)
        yield client


@pytest.mark.parametrize("name", JOBS)
def test_toys_give_same_bytes_on_threads_and_cluster(tmp_path, name, cluster):
    path = write(tmp_path, **JOBS[name])
    release = dp.run(path, tmp_path / "threads", scheduler="threads")
    assert audit_run(release.path, tmp_path / "ledger.sqlite").sound
    assert [stage["state"] for stage in release.manifest["stages"].values()] == ["done"] * 5
    totals = json.loads((release.path / "totals/totals.json").read_text())
    assert all(abs(total - 400) < 100 for total in totals.values())
    assert (release.path / "report.html").exists()
    dp.run(path, tmp_path / "cluster", client=cluster)
    for what in (measurements, answers):
        assert what(tmp_path / "threads") == what(tmp_path / "cluster")


def test_toy_options_are_validated(tmp_path):
    with refused(dp.JobError):
        dp.run(write(tmp_path, mechanism={"name": "one-ways", "used": 2.0}), tmp_path / "run")
    with refused(dp.JobError):
        dp.run(write(tmp_path, mechanism={"name": "one-ways", "usd": 2.0}), tmp_path / "run")
    with refused(dp.JobError):
        dp.run(write(tmp_path, mechanism={"name": "tree"}, reconstruct={"method": "cut-at-zero"}), tmp_path / "run")


def test_toy_reconstruction_is_used(tmp_path):
    release = dp.run(write(tmp_path, **JOBS["one-ways"]), tmp_path / "run")
    assert (release.marginal(("a",)) >= 0).all()
    assert np.isnan(release.answer(("a",), query=np.ones(4))[1])
    assert "Estimates are cut at zero." in (release.path / "report.html").read_text()


def test_excluded_candidates_leave_spanning_tree(tmp_path):
    """Three attributes: the two selected pairs contain all of them, and the third pair is never a candidate."""
    for number in range(6):
        place = tmp_path / str(number)
        release = dp.run(
            write(place, **JOBS["tree"], engine={"scheduler": "synchronous", "seed": number}), place / "run"
        )
        chosen = json.loads((release.path / "measurements/round-001.json").read_text())["chosen"]
        assert len(chosen) == 2
        assert {name for pair in chosen for name in pair} == {"a", "b", "c"}


def test_toy_stage_checks_hashes_of_its_input(tmp_path):
    """The stage reads the measurements, and edited measurements are refused."""
    release = dp.run(write(tmp_path, **JOBS["one-ways"]), tmp_path / "run")
    shutil.rmtree(release.path / "totals")
    path = next((release.path / "measurements").glob("*.parquet"))
    content = path.read_bytes()
    path.write_bytes(content + b"\n")
    done = CliRunner().invoke(main, ["run", str(tmp_path / "job.toml"), "--run-dir", str(release.path), "--quiet"])
    assert done.exit_code == 2
    assert "files that stage measure wrote" in done.stderr
    path.write_bytes(content)
    dp.run(tmp_path / "job.toml", release.path)
    assert open_part(release.path).done("totals")


@pytest.mark.slow
def test_toy_section_is_in_report_and_its_failure_is_named(tmp_path, monkeypatch):
    from tests.toys import section

    release = dp.run(write(tmp_path, **JOBS["tree"]), tmp_path / "run")
    page = (release.path / "report.html").read_text()
    assert '<a href="#largest">Largest count</a>' in page
    assert f"<p>a: {figure(float(release.marginal(('a',)).max()))}</p>" in page
    monkeypatch.setattr(section, "values", lambda run: {"name": lambda: "a", "count": lambda: 1 / 0})
    (release.path / "report.html").unlink()
    with refused(dp.ReportError):
        dp.run(tmp_path / "job.toml", release.path)
    assert "Key results" in (release.path / "report.html").read_text()
