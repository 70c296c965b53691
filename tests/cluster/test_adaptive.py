"""Adaptive jobs on a cluster: the bytes of a threaded run and one charge, whichever part of a round is killed."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from dpscale.job import Job
from tests.audit.small import write
from tests.cluster.conftest import ROOT
from tests.cluster.released import assert_same_release, release_bytes
from tests.cluster.troubles import ROUNDS, kill_at_stage
from tests.cluster.waiting import eventually
from tests.running import begin_table, run_stages
from tests.selection import mostly_slow

JOB = {
    "mechanism": {"name": "aim-grem"},
    "workload": [{"family": "marginal", "degree": 3}],
    "privacy": {"rho": 0.5, "dataset": "small"},
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Directory of a threaded run with at least two rounds."""
    job = write(tmp_path_factory.mktemp("adaptive"), **JOB)
    found = run(job, "expected", scheduler="threads")
    assert len(list(found.glob("measurements/round-*.json"))) >= 2
    return found


@pytest.fixture
def job(expected):
    """The same job with a new ledger."""
    for path in expected.parent.glob("ledger.sqlite*"):
        path.unlink()
    return expected.parent / "job.toml"


def run(job, name, client=None, scheduler=None):
    """Run all stages except the report, which has no tasks."""
    directory = begin_table(Job.read(job), job.parent / name)
    for stage in ("plan", "measure", "reconstruct"):
        run_stages(directory, client, scheduler, only=stage)
    return directory.path


def test_cluster_gives_bytes_of_threads(client, job, expected):
    assert_same_release(run(job, "cluster", client), expected)


@pytest.mark.parametrize("place", mostly_slow(ROUNDS, ("first measuring",)))
def test_killed_workers_in_round_do_not_change_release(cluster, client, job, expected, place):
    before = {worker.pid for worker in cluster.workers.values()}
    client.run(kill_at_stage, place)
    found = run(job, place, client)
    assert {worker.pid for worker in cluster.workers.values()} != before, "the test's kill hit"
    assert_same_release(found, expected)


@pytest.mark.slow
def test_cached_counts_lost_between_rounds_are_counted_again(cluster, client, job, expected):
    """All workers are killed when the second round is decided, so only the driver still has data of the first round."""
    pids = set(client.run(os.getpid).values())

    def kill_workers(label, done, total):
        if (job.parent / "held/measurements/round-001.json").exists():
            while pids:
                with suppress(ProcessLookupError):  # one that an earlier test has armed
                    os.kill(pids.pop(), signal.SIGKILL)

    directory = begin_table(Job.read(job), job.parent / "held")
    run_stages(directory, client, progress=kill_workers, only="plan")
    run_stages(directory, client, progress=kill_workers, only="measure")
    run_stages(directory, client, only="reconstruct")
    assert not pids
    assert_same_release(directory.path, expected)


@pytest.mark.slow
def test_driver_killed_in_round_resumes_on_threads(cluster, client, slow, secured, job, expected):
    place, environment = job.parent / "resumed", os.environ | {"DASK_CONFIG": str(secured), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dpscale", "run", str(job), "--run-dir", str(place), "--quiet", "--scheduler"]
    begun = subprocess.Popen([*command, cluster.scheduler_address], env=environment, cwd=ROOT)
    assert eventually(lambda: (place / "measurements/round-001.json").exists())
    begun.kill()
    begun.wait()
    before = release_bytes(place)
    assert len(before) < len(release_bytes(expected))
    assert (place / "secret.key").exists()
    run(job, "resumed", scheduler="threads")
    assert release_bytes(place).items() >= before.items()
    assert_same_release(place, expected)
