"""The Airflow DAG in an Airflow 3 environment, on the sample data.

AIRFLOW_CONSTRAINTS names a constraints file (that of the publisher is on a host that this test does not use);
without it the newest versions are installed. DPSCALE_AIRFLOW names an environment that already has Airflow.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

import dpscale as dp
from dpscale.ledger import Ledger
from tests.links import small as shop
from tests.periods import growing
from tests.pipelines.paper_jobs import JOBS, write_paper_jobs

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    """Function that runs an airflow command and returns its exit code and output."""
    home = tmp_path_factory.mktemp("airflow")
    binary = Path(os.environ.get("DPSCALE_AIRFLOW") or install_airflow(home)) / "bin/airflow"
    (home / "dags").mkdir()
    shutil.copy(ROOT / "pipelines/airflow_dag.py", home / "dags")
    command = Path(sys.executable).with_name("dpscale")
    environment = os.environ | {
        "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "DPSCALE": str(command), "DPSCALE_RETRY_SECONDS": "1",
    }  # fmt: skip

    def run_airflow(*arguments, **changed):
        done = subprocess.run(
            [binary, *arguments], env=environment | changed, cwd=home, capture_output=True, text=True, timeout=600
        )
        return done.returncode, done.stdout + done.stderr

    assert run_airflow("db", "migrate")[0] == 0
    return run_airflow


def install_airflow(home):
    """Create an environment with Airflow."""
    subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
    constraints = os.environ.get("AIRFLOW_CONSTRAINTS")
    pinned = ["--constraint", constraints] if constraints else []
    install = [home / "venv/bin/pip", "install", "-q", "apache-airflow>=3.0,<4", *pinned]
    if subprocess.run(install, capture_output=True).returncode:
        pytest.skip("Airflow cannot be installed here: no registry")
    return home / "venv"


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """Directory with the sample data and the adaptive pipeline."""
    from dpscale.cli.demo import write_demo

    place = tmp_path_factory.mktemp("sample")
    write_demo(place / "dpscale-demo")
    (place / "pipelines").mkdir()
    for name in ("adaptive.toml", "main.toml"):
        shutil.copy(ROOT / "pipelines" / name, place / "pipelines")
    return place


def test_failed_task_is_retried_and_charged_once(airflow, sample, tmp_path):
    """Another process works in the run directory when the stage starts: exit code 75, and a retry after a second."""
    job, run_dir = sample / "pipelines/adaptive.toml", sample / "retried"
    command = write_locking_command(run_dir, tmp_path)
    configuration = json.dumps({"job": str(job), "run_dir": str(run_dir)})
    code, output = airflow("dags", "test", "dpscale", "-c", configuration, DPSCALE=str(command))
    assert code == 0, output[-4000:]
    assert "another process works in" in output
    manifest = json.loads((run_dir / "manifest.json").read_text())
    assert {name: stage["state"] for name, stage in manifest["stages"].items()} == dict.fromkeys(
        ("plan", "measure", "reconstruct", "report"), "done"
    )
    with Ledger.open(sample / "dpscale-demo/ledger.sqlite") as ledger:
        [row] = ledger.summary("rand-hie")["datasets"]["rand-hie"]["releases"]
    assert (row["release"], row["state"]) == (manifest["release"], "released")


def write_locking_command(run_dir, folder):
    """Write a replacement of the dpscale command that locks the run directory during the first measure command."""
    command = folder / "dpscale"
    command.write_text(f"""#!{sys.executable}
import fcntl, os, subprocess, sys
own = [{str(Path(sys.executable).with_name("dpscale"))!r}, *sys.argv[1:]]
if "measure" not in sys.argv or os.path.exists({str(folder / "held")!r}):
    os.execv(own[0], own)
open({str(folder / "held")!r}, "w").close()
with open({str(run_dir / ".lock")!r}, "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    sys.exit(subprocess.run(own).returncode)
""")
    command.chmod(0o755)
    return command


@pytest.mark.slow
def test_killed_command_is_retried(airflow, sample, tmp_path):
    """The first measure command ends by signal 9, as from the out-of-memory killer."""
    command, job, run_dir = tmp_path / "dpscale", sample / "pipelines/main.toml", sample / "killed"
    command.write_text(f"""#!/bin/sh
if [ "$4" = measure ] && mkdir {tmp_path}/killed; then kill -9 $$; fi
exec {Path(sys.executable).with_name("dpscale")} "$@"
""")
    command.chmod(0o755)
    configuration = json.dumps({"job": str(job), "run_dir": str(run_dir)})
    code, output = airflow("dags", "test", "dpscale", "-c", configuration, DPSCALE=str(command))
    assert code == 0, output[-4000:]
    assert f"dpscale run {run_dir} --only measure was ended by signal 9 (Killed)" in output
    assert json.loads((run_dir / "manifest.json").read_text())["stages"]["report"]["state"] == "done"


@pytest.mark.slow
def test_job_of_several_tables_runs(airflow, tmp_path):
    job, run_dir = shop.write_job(tmp_path), tmp_path / "run"
    code, output = airflow("dags", "test", "dpscale", "-c", json.dumps({"job": str(job), "run_dir": str(run_dir)}))
    assert code == 0, output[-4000:]
    stages = json.loads((run_dir / "manifest.json").read_text())["stages"]
    assert {name: stage["state"] for name, stage in stages.items()} == dict.fromkeys(
        ("plan", "measure", "reconstruct", "synthesize", "report"), "done"
    )
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        [row] = ledger.summary("shop")["datasets"]["shop"]["releases"]
    assert row["state"] == "released"


@pytest.mark.slow
def test_generated_hospital_runs(airflow, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "pipelines")
    databases, hospital = map(importlib.import_module, ("databases", "hospital"))
    databases.write(tmp_path / "dpscale-hospital", hospital.prepare(tmp_path, 200))
    shutil.copytree(ROOT / "pipelines/hospital", tmp_path / "pipelines/hospital")
    given = {"job": str(tmp_path / "pipelines/hospital/job.toml"), "run_dir": str(tmp_path / "run")}
    code, output = airflow("dags", "test", "dpscale", "-c", json.dumps(given))
    assert code == 0, output[-4000:]
    assert json.loads((tmp_path / "run/manifest.json").read_text())["stages"]["report"]["state"] == "done"


@pytest.mark.slow
def test_year_of_monthly_runs_is_charged_once(airflow, tmp_path):
    """Each run adds a month; repeating a month and one out of order draw nothing."""
    months = growing.frames(50, months=[f"2025-{number:02d}" for number in range(1, 13)])
    growing.write(tmp_path, months)
    job = growing.make_job(tmp_path)
    job["time"] = {"horizon": 12, "answers": ["cumulative"]}
    text = (tmp_path / "domain.toml").read_text().replace("2026-01", "2025-01").replace("2026-06", "2025-12")
    (tmp_path / "domain.toml").write_text(text)
    (tmp_path / "job.toml").write_text(tomli_w.dumps(job))
    for month in [*months, "2025-12"]:
        given = json.dumps({"job": str(tmp_path / "job.toml"), "run_dir": str(tmp_path / "run"), "period": month})
        code, output = airflow("dags", "test", "dpscale_period", "-c", given)
        assert code == 0, output[-4000:]
    assert dp.Release.open(tmp_path / "run").periods == list(months)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        [row] = ledger.summary("growing")["datasets"]["growing"]["releases"]
    assert row["state"] == "released"


@pytest.mark.slow
def test_refused_budget_is_not_retried(airflow, sample):
    job, run_dir = sample / "pipelines/adaptive.toml", sample / "refused"
    with Ledger.open(sample / "dpscale-demo/ledger.sqlite") as ledger:
        ledger.set_cap("rand-hie", 0.5, 1e-9)
    code, output = airflow("dags", "test", "dpscale", "-c", json.dumps({"job": str(job), "run_dir": str(run_dir)}))
    assert code != 0 or "state=failed" in output
    assert "rand-hie" in output
    assert not list((run_dir / "measurements").glob("*.parquet"))
    started = re.findall(r"\[DAG TEST\] starting task_id=(\w+)", output)
    assert started
    assert len(started) == len(set(started))


@pytest.mark.slow
@pytest.mark.parametrize("paper", JOBS)
def test_job_of_a_paper_runs(airflow, papers, paper):
    """The relational paper's job is that of several tables."""
    job, run_dir = papers / f"pipelines/papers/{paper}.toml", papers / paper
    code, output = airflow("dags", "test", "dpscale", "-c", json.dumps({"job": str(job), "run_dir": str(run_dir)}))
    assert code == 0, output[-4000:]
    assert abs(dp.Release.open(run_dir).total().estimate - 2000) < 200


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    return write_paper_jobs(tmp_path_factory.mktemp("papers"))
