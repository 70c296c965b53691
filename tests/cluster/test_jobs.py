"""Whole jobs on a cluster: the bytes of a run in one process after the loss of any process, one charge and one draw."""

import json
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from dpscale import TransientError
from dpscale.engine.cluster import ClusterEngine
from dpscale.job import Job
from tests.audit.small import answers, measurements, write
from tests.cluster.conftest import ROOT
from tests.cluster.machines import kill, machines
from tests.cluster.troubles import PLACES, kill_at_stage
from tests.cluster.waiting import eventually
from tests.messages import refused
from tests.running import begin_table, run_stages
from tests.selection import mostly_slow


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Directory with the data of the job and its run in this process."""
    place = tmp_path_factory.mktemp("expected")
    run(write(place), "run")
    return place


@pytest.fixture
def job(expected):
    """The same job with a new ledger; the release id of a seeded run depends on the job, so each run is the same
    release.
    """
    for path in expected.glob("ledger.sqlite*"):
        path.unlink()
    return expected / "job.toml"


def run(job, name, client=None):
    """Run all stages except the report, which has no tasks."""
    directory = begin_table(Job.read(job), job.parent / name)
    for stage in ("plan", "measure", "reconstruct"):
        run_stages(directory, client, only=stage)


def assert_same_release(run, expected):
    """Check for the bytes of the run in one process and for one charge."""
    assert measurements(run) == measurements(expected / "run")
    assert answers(run) == answers(expected / "run")
    assert not (run / "secret.key").exists()
    assert charge_states(run.parent) == ["released"]


def charge_states(folder):
    """Return the state of each release in the ledger; each release has one charge."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        return [state for (state,) in db.execute("SELECT state FROM releases")]


def test_cluster_gives_bytes_of_one_process(client, job, expected):
    run(job, "cluster", client)
    assert_same_release(job.parent / "cluster", expected)


@pytest.mark.parametrize("stage", mostly_slow(PLACES, ("measuring",)))
def test_killed_workers_in_stage_do_not_change_release(cluster, client, job, expected, stage):
    before = {worker.pid for worker in cluster.workers.values()}
    client.run(kill_at_stage, stage)
    run(job, stage, client)
    assert {worker.pid for worker in cluster.workers.values()} != before, "the test's kill hit"
    assert_same_release(job.parent / stage, expected)


def test_lost_scheduler_is_reported_and_run_resumes_elsewhere(tmp_path, certificates, job, expected):
    """The scheduler is killed after the first measurement: the command exits with 75, and with 0 on another engine."""
    run = job.parent / "resumed"
    with machines(tmp_path, certificates / "dask.yaml") as made:
        scheduler = made.scheduler()
        made.worker("--preload", "tests.cluster.slow_store")
        command = [sys.executable, "-m", "dpscale", "run", str(job), "--run-dir", str(run), "--scheduler"]
        environment = made._environment | {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "20s"}
        begun = subprocess.Popen([*command, made.address], env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert eventually(lambda: list((run / "measurements").glob("*.parquet")))
        kill(scheduler)
        _, message = begun.communicate(timeout=500)
    assert begun.returncode == 75, message
    lost = "dpscale: engine: the connection to the Dask scheduler was lost; start it, then run it again to resume"
    assert lost in message
    assert "Traceback" not in message.split("dpscale: engine")[1]
    left = measurements(run)
    assert 0 < len(left) < len(measurements(expected / "run"))
    assert json.loads((run / "manifest.json").read_text())["stages"]["measure"]["state"] == "failed"
    assert subprocess.run([*command, "synchronous"], cwd=ROOT, check=False).returncode == 0
    assert_same_release(run, expected)


def test_two_jobs_share_cluster_and_ledger(client, job, expected):
    other = write(job.parent, "other.toml", workload=[{"family": "prefix", "degree": 1}])
    runs = [begin_table(Job.read(path), job.parent / name) for path, name in ((job, "one"), (other, "two"))]
    threads = [threading.Thread(target=run_stages, args=(run, client)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert measurements(runs[0].path) == measurements(expected / "run")
    assert charge_states(job.parent) == ["released"] * 2


def test_closed_client_is_reported(client):
    engine = ClusterEngine(client)
    client.close()
    with refused(TransientError):
        engine.map(abs, [1])
