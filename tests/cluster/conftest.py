"""A real cluster, shared by the room: two worker processes with nannies, over TLS with certificates made for it.

No mock of Dask stands anywhere here. What must break breaks in processes.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import dask
import distributed
import pytest
import yaml

from tests.cluster.troubles import leave_if_changed, slow_down
from tests.cluster.waiting import eventually

ROOT = Path(__file__).parents[2]
PATIENCE = {"distributed.deploy.lost-worker-timeout": "1h"}


def certificates_script():
    """cluster/certificates.py as a module."""
    spec = importlib.util.spec_from_file_location("certificates", ROOT / "cluster" / "certificates.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def configured(folder):
    """Dask's configuration with that of a folder of certificates on top."""
    own = yaml.safe_load((folder / "dask.yaml").read_text())
    return dask.config.set(dict(flat(own)))


def flat(tree, prefix=""):
    """Settings by their dotted names: `dask.config.set` would replace whole branches."""
    for name, value in tree.items():
        yield from flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A folder of certificates for this machine."""
    folder = tmp_path_factory.mktemp("certificates") / "own"
    certificates_script().make_certificates(folder, ["localhost", "127.0.0.1"], 2)
    return folder


@pytest.fixture(scope="module")
def secured(certificates):
    """Dask configured as dask.yaml of the certificates says: that file."""
    with configured(certificates):
        yield certificates / "dask.yaml"


@pytest.fixture(scope="package")
def shared(certificates):
    """Two workers of a thread each, over TLS."""

    class LocalCluster(distributed.LocalCluster):
        """Dask's own ends in a KeyError when a worker it was never told of is gone: one killed while it registers."""

        def _update_worker_status(self, op, msg):
            if op == "add" or msg in self.scheduler_info["workers"]:
                super()._update_worker_status(op, msg)

    with configured(certificates):
        made = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
                            protocol="tls://", security=distributed.Security(), host="127.0.0.1")  # fmt: skip
    with made:
        yield made


@pytest.fixture(scope="module")
def cluster(secured, shared):
    """The room's cluster, which a module leaves as it found it: workers that its tests changed are replaced."""
    from distributed import Client

    yield shared
    with dask.config.set(PATIENCE), Client(shared, set_as_default=False) as client:
        before = {nanny.pid for nanny in shared.workers.values()}
        gone = before - set(client.run(leave_if_changed, on_error="ignore").values())
        assert eventually(lambda: not gone & {nanny.pid for nanny in shared.workers.values()})
        client.wait_for_workers(2, timeout=500)


@pytest.fixture
def client(cluster):
    """A client of the cluster that is nobody's default, with all workers up."""
    from distributed import Client

    with Client(cluster, set_as_default=False) as made:
        made.wait_for_workers(2, timeout=500)
        yield made


@pytest.fixture
def slow(client):
    """A second for each file of measurements, on the workers that are up now."""
    client.run(slow_down)


@pytest.fixture(autouse=True)
def impatient():
    """No test waits two minutes for a worker, or half of one for a scheduler.

    And a LocalCluster does not give up a worker that is killed again when the last kill was 15 s ago: it would.
    """
    changed = {"dpscale.worker-wait": 60, "distributed.comm.timeouts.connect": "5s"}
    with dask.config.set(changed | PATIENCE):
        yield
