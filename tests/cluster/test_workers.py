"""Schedulers without workers or with unsuitable workers."""

import os
import sys
from contextlib import closing, contextmanager

import dask
import pytest

from dpscale import JobError, TransientError
from dpscale.engine.schedulers import resolve
from dpscale.engine.watch import answer_seconds, worker_seconds
from tests.cluster.machines import machines
from tests.cluster.test_refusals import assert_refused
from tests.cluster.waiting import eventually
from tests.messages import refused


@pytest.fixture(scope="module")
def bare_scheduler(tmp_path_factory):
    """A scheduler without workers, started as a user does."""
    with machines(tmp_path_factory.mktemp("bare")) as made:
        made.scheduler()
        from distributed import Client

        Client(made.address, timeout=30, set_as_default=False).close()
        yield made


def test_scheduler_without_workers_is_reported(bare_scheduler):
    with dask.config.set({"dpscale.worker-wait": 0.5}):
        assert_refused(TransientError, "no worker", "start workers", scheduler=bare_scheduler.address)


@pytest.mark.parametrize(("wait", "seconds"), [("1h", 3600), ("90 s", 90), ("2.5", 2.5), (0.5, 0.5), ("30m", 1800)])
def test_worker_wait_accepts_dask_time_formats(wait, seconds):
    with dask.config.set({"dpscale.worker-wait": wait}):
        assert worker_seconds() == seconds
    with dask.config.set({"dpscale.worker-answer": wait}):
        assert answer_seconds() == seconds


@pytest.mark.parametrize("wait", ["abc", "1 fortnight", "", "-5", -5, "1e999", "nan", float("inf"), True, None, [1]])
def test_invalid_worker_wait_is_refused(bare_scheduler, wait):
    with dask.config.set({"dpscale.worker-wait": wait}), pytest.raises(JobError) as caught:
        resolve(scheduler=bare_scheduler.address)
    assert str(caught.value).startswith(f"dpscale.worker-wait: {wait!r} in Dask's configuration; expected seconds")


@contextmanager
def mismatched_workers(bare_scheduler, place):
    """Start machines whose package metadata give another numpy and no pyarrow."""
    (place / "sitecustomize.py").write_text(
        "import importlib.metadata as m\n"
        "found = m.version\n"
        "def version(name):\n"
        "    if name == 'pyarrow': raise m.PackageNotFoundError(name)\n"
        "    return '1.0.0' if name == 'numpy' else found(name)\n"
        "m.version = version\n"
    )
    with machines(place, PYTHONPATH=f"{place}{os.pathsep}{os.pathsep.join(sys.path)}") as made:
        made.port, made.address = bare_scheduler.port, bare_scheduler.address
        yield made


def test_worker_with_other_versions_is_refused(bare_scheduler, tmp_path):
    with mismatched_workers(bare_scheduler, tmp_path) as other:
        other.worker("--no-nanny")
        with dask.config.set({"dpscale.worker-wait": 30}):
            text = assert_refused(
                JobError,
                "has numpy 1.0.0 (here",
                "pyarrow missing",
                "cluster/README.md",
                scheduler=bare_scheduler.address,
            )
        assert text.count("worker tcp://") == 1
        assert "dask" not in text.split(";")[0].replace("dpscale", "")


def test_late_worker_with_other_versions_is_refused(tmp_path):
    """Its versions are checked before the next tasks are sent."""
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    with machines(tmp_path / "good") as good:
        good.scheduler()
        good.worker("--no-nanny")
        with closing(resolve(scheduler=good.address)) as engine, mismatched_workers(good, tmp_path / "bad") as other:
            assert engine.map(abs, [-1]) == [1]
            other.worker("--no-nanny")
            assert eventually(lambda: len(engine.client.nthreads()) == 2)
            with refused(JobError):
                engine.map(abs, [-1])
