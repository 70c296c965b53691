"""A real cluster shared by the tests of this package: two worker processes with nannies, over TLS with test
certificates.

Dask is not mocked; faults are produced in processes.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import dask
import distributed
import pytest
import yaml

from tests.cluster.troubles import exit_if_changed, slow_down
from tests.cluster.waiting import eventually

ROOT = Path(__file__).parents[2]
PATIENCE = {"distributed.deploy.lost-worker-timeout": "1h"}


def load_certificates_script():
    """Import cluster/certificates.py as a module."""
    spec = importlib.util.spec_from_file_location("certificates", ROOT / "cluster" / "certificates.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def use_certificates(folder):
    """Add the Dask configuration of a certificate directory."""
    own = yaml.safe_load((folder / "dask.yaml").read_text())
    return dask.config.set(dict(flatten_settings(own)))


def flatten_settings(tree, prefix=""):
    """Yield settings by dotted name, because `dask.config.set` would replace whole branches."""
    for name, value in tree.items():
        yield from flatten_settings(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Directory of certificates for this machine."""
    folder = tmp_path_factory.mktemp("certificates") / "own"
    load_certificates_script().make_certificates(folder, ["localhost", "127.0.0.1"], 2)
    return folder


@pytest.fixture(scope="module")
def secured(certificates):
    """Path of the dask.yaml of the certificates, which is the active Dask configuration."""
    with use_certificates(certificates):
        yield certificates / "dask.yaml"


@pytest.fixture(scope="package")
def shared_cluster(certificates):
    """Two workers of one thread each, over TLS; tests/conftest.py gives this package to one process.

    It ends with the package: an idle cluster takes a tenth of a processor.
    """

    class LocalCluster(distributed.LocalCluster):
        """LocalCluster without the KeyError for a worker that was killed during its registration."""

        def _update_worker_status(self, op, msg):
            if op == "add" or msg in self.scheduler_info["workers"]:
                super()._update_worker_status(op, msg)

    with use_certificates(certificates):
        made = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
                            protocol="tls://", security=distributed.Security(), host="127.0.0.1")  # fmt: skip
    yield made
    with use_certificates(certificates):
        made.close()


@pytest.fixture(scope="package", autouse=True)
def several_files():
    """Divide values into files as drivers and workers do, and give the small job enough values for several files."""
    from dpscale.measurement import value_files
    from dpscale.runs.stages import reconstruct
    from tests.audit import small

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(value_files, "LEAST_VALUES", 1 << 12)
        patch.setattr(reconstruct, "LEAST_ROWS", 1 << 12)
        for name in "abcd":
            patch.setitem(small.SIZES, name, 70)
        yield


@pytest.fixture(scope="module")
def cluster(secured, shared_cluster):
    """The shared cluster; workers that the tests of a module changed are replaced afterwards."""
    from distributed import Client

    yield shared_cluster
    with dask.config.set(PATIENCE), Client(shared_cluster, set_as_default=False) as client:
        before = {nanny.pid for nanny in shared_cluster.workers.values()}
        changed = before - set(client.run(exit_if_changed, on_error="ignore").values())
        assert eventually(lambda: not changed & {nanny.pid for nanny in shared_cluster.workers.values()})
        client.wait_for_workers(2, timeout=500)


@pytest.fixture
def client(cluster):
    """A non-default client of the cluster, with all workers connected."""
    from distributed import Client

    with Client(cluster, set_as_default=False) as made:
        made.wait_for_workers(2, timeout=500)
        yield made


@pytest.fixture
def slow(client):
    """Delay each measurement file by one second on the current workers."""
    client.run(slow_down)


@pytest.fixture(autouse=True)
def short_timeouts():
    """Shorten the waits for workers and schedulers.

    The long lost-worker timeout prevents a LocalCluster from giving up a worker that is killed twice within 15 s.
    """
    changed = {"dpscale.worker-wait": 60, "distributed.comm.timeouts.connect": "5s"}
    with dask.config.set(changed | PATIENCE):
        yield
