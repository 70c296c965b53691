"""A scheduler that has no workers, or wrong ones."""

import os
import sys

import dask
import pytest

from dpscale import JobError, TransientError
from tests.cluster.machines import machines
from tests.cluster.test_refusals import refused


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


def test_a_worker_of_other_versions(bare, tmp_path):
    """One of two workers has another numpy and lacks pyarrow, as far as its package metadata tell."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as m\n"
        "found = m.version\n"
        "def version(name):\n"
        "    if name == 'pyarrow': raise m.PackageNotFoundError(name)\n"
        "    return '1.0.0' if name == 'numpy' else found(name)\n"
        "m.version = version\n"
    )
    with machines(tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{os.pathsep.join(sys.path)}") as strange:
        strange.port, strange.address = bare.port, bare.address
        strange.worker("--no-nanny")
        with dask.config.set({"dpscale.worker-wait": 30}):
            text = refused(
                JobError, "has numpy 1.0.0 (here", "pyarrow missing", "cluster/README.md", scheduler=bare.address
            )
        assert text.count("worker tcp://") == 1
        assert "dask" not in text.split(";")[0].replace("dpscale", "")
