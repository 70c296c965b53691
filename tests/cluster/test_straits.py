"""Whole jobs under lack of resources (full disk, workers without memory, suspended worker): an error message, then a
resumed run.
"""

import os

import dask
import pytest

from dpscale import TransientError
from dpscale.engine.schedulers import resolve
from dpscale.job import Job
from tests.audit.small import measurements, write
from tests.cluster.machines import machines
from tests.cluster.released import assert_same_release, charge_states
from tests.cluster.troubles import exhaust_memory_in_counting, suspend_for_a_while
from tests.running import begin_table, run_stages
from tests.runs.disks import needs_mounts, small_disk


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Directory of a run in this process."""
    place = tmp_path_factory.mktemp("straits")
    run(begin_table(Job.read(write(place)), place / "expected"))
    return place / "expected"


@pytest.fixture
def job(expected):
    """The same job with a new ledger."""
    for path in expected.parent.glob("ledger.sqlite*"):
        path.unlink()
    return expected.parent / "job.toml"


def run(directory, client=None):
    """Run all stages except the report, which has no tasks."""
    for stage in ("plan", "measure", "reconstruct"):
        run_stages(directory, client, only=stage)


@needs_mounts
@pytest.mark.parametrize("left", [2, 4, 6])
def test_full_disk_is_reported_and_run_resumes(client, job, expected, left):
    """`left` pages of 4 KiB are free, which is enough for some files of the measure stage only."""
    place = job.parent / f"disk-{left}"
    with small_disk(place, "1m"):
        directory = begin_table(Job.read(job), place / "run")
        run_stages(directory, client, only="plan")
        state = os.statvfs(place)
        (place / "ballast").write_bytes(bytes((state.f_bavail - left) * state.f_bsize))
        with pytest.raises(TransientError, match="No space left on device"):
            run(directory, client)
        before = measurements(directory.path)
        assert len(before) <= len(measurements(expected))
        (place / "ballast").unlink()
        run(directory, client)
        assert measurements(directory.path).items() >= before.items()
        assert_same_release(directory.path, expected)


@pytest.mark.slow
def test_workers_out_of_memory_are_reported_and_run_resumes(tmp_path, client, secured, job, expected):
    directory = begin_table(Job.read(job), job.parent / "hungry")
    with machines(tmp_path, secured, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0") as made:
        made.scheduler()
        made.worker("--nworkers", 2, "--memory-limit", "600MB")
        with dask.config.set({"dpscale.worker-wait": 60}):
            engine = resolve(scheduler=made.address)
            engine.client.run(exhaust_memory_in_counting)
            with pytest.raises(TransientError, match=r"engine.memory: 1 workers? died .*probably because of memory"):
                run(directory, engine.client)
            engine.close()
    assert not measurements(directory.path)
    assert not charge_states(job.parent)
    run(directory, client)
    assert_same_release(directory.path, expected)


def test_job_waits_for_suspended_worker(client, job, expected):
    directory = begin_table(Job.read(job), job.parent / "slow")
    client.run(suspend_for_a_while, wait=False, workers=list(client.nthreads())[:1])
    run(directory, client)
    assert_same_release(directory.path, expected)
