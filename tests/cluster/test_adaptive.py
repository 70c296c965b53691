"""The adaptive job on a cluster: rounds draw the same, whoever dies in which part of one; one charge."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from dpscale.job import Job
from dpscale.runs.run import Run
from dpscale.runs.stages.runner import run_stages
from tests.audit.small import write
from tests.cluster.conftest import ROOT
from tests.cluster.released import check, everything
from tests.cluster.troubles import ROUNDS, arm
from tests.cluster.waiting import eventually

JOB = {
    "mechanism": {"name": "aim-grem"},
    "workload": [{"family": "marginal", "degree": 3}],
    "privacy": {"rho": 0.5, "dataset": "small"},
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """A run on threads, of two rounds or more."""
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
    """All stages but the report, which has no tasks."""
    directory = Run.create(Job.read(job), job.parent / name)
    for stage in ("plan", "measure", "reconstruct"):
        run_stages(directory, client, scheduler, only=stage)
    return directory.path


def test_a_cluster_gives_the_bytes_of_threads(client, job, expected):
    check(run(job, "cluster", client), expected)


@pytest.mark.parametrize("place", ROUNDS)
def test_workers_killed_in_a_part_of_a_round_are_made_good(cluster, client, job, expected, place):
    before = {worker.pid for worker in cluster.workers.values()}
    client.run(arm, place)
    found = run(job, place, client)
    assert {worker.pid for worker in cluster.workers.values()} != before, "the test's kill hit"
    check(found, expected)


def test_held_counts_that_die_between_rounds_are_counted_again(cluster, client, job, expected):
    """All workers die as the second round is decided: nothing of the first is left in any memory but the driver's."""
    pids = set(client.run(os.getpid).values())

    def kill_them(label, done, total):
        if (job.parent / "held/measurements/round-001.json").exists():
            while pids:
                with suppress(ProcessLookupError):  # one that an earlier test has armed
                    os.kill(pids.pop(), signal.SIGKILL)

    directory = Run.create(Job.read(job), job.parent / "held")
    run_stages(directory, client, progress=kill_them, only="plan")
    run_stages(directory, client, progress=kill_them, only="measure")
    run_stages(directory, client, only="reconstruct")
    assert not pids
    check(directory.path, expected)


def test_a_driver_killed_in_a_round_goes_on_on_threads(cluster, client, slow, secured, job, expected):
    place, environment = job.parent / "resumed", os.environ | {"DASK_CONFIG": str(secured), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dpscale", "run", str(job), "--run-dir", str(place), "--quiet", "--scheduler"]
    begun = subprocess.Popen([*command, cluster.scheduler_address], env=environment, cwd=ROOT)
    assert eventually(lambda: (place / "measurements/round-001.json").exists())
    begun.kill()
    begun.wait()
    kept = everything(place)
    assert len(kept) < len(everything(expected))
    assert (place / "secret.key").exists()
    run(job, "resumed", scheduler="threads")
    assert everything(place).items() >= kept.items()
    check(place, expected)
