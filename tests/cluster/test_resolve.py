"""Choice of the engine: client= before scheduler= before the ambient client before threads; also inside a task of a
cluster.
"""

import asyncio

import pytest

import dpscale as dp
from dpscale import JobError
from dpscale.engine.schedulers import ClusterEngine, LocalEngine, resolve
from tests.audit.small import write
from tests.cluster.troubles import square
from tests.messages import refused


def test_resolve_order(cluster, client):
    from distributed import Client

    assert isinstance(resolve(), LocalEngine)
    with Client(cluster) as ambient:
        assert resolve(client).client is client
        assert resolve(client, "synchronous").client is client
        assert resolve(scheduler="synchronous").scheduler == "synchronous"
        engine = resolve(scheduler=cluster.scheduler_address)
        assert engine.client not in (client, ambient)
        engine.close()
        assert engine.client.status == "closed"
        assert resolve().client is ambient
        resolve().close()
        assert ambient.status == "running", "what the engine did not open it does not close"
    assert isinstance(resolve(), LocalEngine), "a closed ambient client does not count"


def test_closed_ambient_client_is_ignored(cluster):
    from distributed import Client

    with Client(cluster, set_as_default=False) as one, one.as_current():
        assert isinstance(resolve(), ClusterEngine)
        one.close()
        assert isinstance(resolve(), LocalEngine)


def ambient_squares(count):
    return resolve().map(square, range(count)), type(resolve()).__name__


def worker_client_squares(count):
    from distributed import worker_client

    with worker_client():
        return ambient_squares(count)


@pytest.mark.parametrize("function", [ambient_squares, worker_client_squares])
def test_resolve_inside_task_uses_own_cluster_without_deadlock(client, function):
    futures = [client.submit(function, 5, pure=False) for _ in range(4)]  # more than there are threads
    assert client.gather(futures) == [([0, 1, 4, 9, 16], "ClusterEngine")] * 4


def test_closed_client_is_refused(cluster):
    from distributed import Client

    with Client(cluster, set_as_default=False) as closed:
        pass
    with refused(JobError):
        resolve(closed)
    with refused(JobError):
        resolve(cluster)


@pytest.mark.slow
def test_asynchronous_client_is_refused_in_its_loop_only(cluster, tmp_path):
    """Within its event loop no call can wait for the client; from another thread it works like any client."""
    from distributed import Client

    job = write(tmp_path, engine={"seed": 5})

    async def run_in_loop():
        async with Client(cluster.scheduler_address, asynchronous=True):
            with refused(JobError):
                dp.run(job, tmp_path / "in the loop")
            return await asyncio.to_thread(dp.run, job, tmp_path / "in a thread")

    assert (asyncio.run(run_in_loop()).path / "report.html").exists()
    assert not list((tmp_path / "in the loop").glob("measurements/*"))
