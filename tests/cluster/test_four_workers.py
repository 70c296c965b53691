"""Four worker processes with nannies over TLS; the other tests use two to save time."""

import os
import signal

import pytest

import dpscale as dp
from tests.audit.small import answers, measurements, write


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["residual-planner", "aim-grem"])
def test_four_workers_give_bytes_of_threads(secured, tmp_path, mechanism):
    """One worker is killed before the run starts."""
    from distributed import Client, LocalCluster, Security

    job = write(tmp_path, mechanism={"name": mechanism}, engine={"seed": 5})
    expected = dp.run(job, tmp_path / "threads", scheduler="threads")
    (tmp_path / "ledger.sqlite").unlink()
    with (
        LocalCluster(n_workers=4, threads_per_worker=1, processes=True, dashboard_address=None, protocol="tls://",
                     security=Security(), host="127.0.0.1") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        client.wait_for_workers(4, timeout=500)
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        found = dp.run(job, tmp_path / "cluster", client=client)
    assert measurements(found.path) == measurements(expected.path)
    assert answers(found.path) == answers(expected.path)
