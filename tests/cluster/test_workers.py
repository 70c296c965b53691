"""A scheduler that has no workers, or wrong ones."""

import os
import sys
from contextlib import closing, contextmanager

import dask
import pytest

from dpscale import JobError, TransientError
from dpscale.engine import resolve
from dpscale.engine.watch import worker_seconds
from tests.cluster.machines import machines
from tests.cluster.test_refusals import refused
from tests.cluster.waiting import eventually


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A scheduler without workers, as a user starts it."""
    with machines(tmp_path_factory.mktemp("bare")) as made:
        made.scheduler()
        from distributed import Client

        Client(made.address, timeout=30, set_as_default=False).close()
        yield made


def test_a_scheduler_without_workers(bare):
    with dask.config.set({"dpscale.worker-wait": 0.5}):
        refused(TransientError, "no worker", "start workers", scheduler=bare.address)


@pytest.mark.parametrize(("told", "seconds"), [("1h", 3600), ("90 s", 90), ("2.5", 2.5), (0.5, 0.5), ("30m", 1800)])
def test_the_wait_for_workers_is_what_dask_takes_for_a_time(told, seconds):
    with dask.config.set({"dpscale.worker-wait": told}):
        assert worker_seconds() == seconds


@pytest.mark.parametrize("told", ["abc", "1 fortnight", "", "-5", -5, "1e999", "nan", float("inf"), True, None, [1]])
def test_a_wait_that_is_no_time_is_refused(bare, told):
    with dask.config.set({"dpscale.worker-wait": told}), pytest.raises(JobError) as caught:
        resolve(scheduler=bare.address)
    assert str(caught.value).startswith(f"dpscale.worker-wait: {told!r} in Dask's configuration; expected seconds")


@contextmanager
def strange(bare, place):
    """Machines that have another numpy and lack pyarrow, as far as their package metadata tell."""
    (place / "sitecustomize.py").write_text(
        "import importlib.metadata as m\n"
        "found = m.version\n"
        "def version(name):\n"
        "    if name == 'pyarrow': raise m.PackageNotFoundError(name)\n"
        "    return '1.0.0' if name == 'numpy' else found(name)\n"
        "m.version = version\n"
    )
    with machines(place, PYTHONPATH=f"{place}{os.pathsep}{os.pathsep.join(sys.path)}") as made:
        made.port, made.address = bare.port, bare.address
        yield made


def test_a_worker_of_other_versions(bare, tmp_path):
    with strange(bare, tmp_path) as other:
        other.worker("--no-nanny")
        with dask.config.set({"dpscale.worker-wait": 30}):
            text = refused(
                JobError, "has numpy 1.0.0 (here", "pyarrow missing", "cluster/README.md", scheduler=bare.address
            )
        assert text.count("worker tcp://") == 1
        assert "dask" not in text.split(";")[0].replace("dpscale", "")


def test_a_worker_of_other_versions_that_comes_later(tmp_path):
    """It is asked before the next tasks go out."""
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    with machines(tmp_path / "good") as good:
        good.scheduler()
        good.worker("--no-nanny")
        with closing(resolve(scheduler=good.address)) as engine, strange(good, tmp_path / "bad") as other:
            assert engine.map(abs, [-1]) == [1]
            other.worker("--no-nanny")
            assert eventually(lambda: len(engine.client.nthreads()) == 2)
            with pytest.raises(JobError, match=r"has numpy 1\.0\.0"):
                engine.map(abs, [-1])
