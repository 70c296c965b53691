"""client= before scheduler= before the ambient client before threads; and inside a task of a cluster."""

import asyncio

import pytest

import dpscale as dp
from dpscale import JobError
from dpscale.engine import ClusterEngine, LocalEngine, resolve
from tests.audit.small import write
from tests.cluster.troubles import squared


def test_the_order_of_what_is_given(cluster, client):
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


def test_an_ambient_client_that_is_closed_within_its_block(cluster):
    from distributed import Client

    with Client(cluster, set_as_default=False) as one, one.as_current():
        assert isinstance(resolve(), ClusterEngine)
        one.close()
        assert isinstance(resolve(), LocalEngine)


def ambient_squares(count):
    return resolve().map(squared, range(count)), type(resolve()).__name__


def worker_client_squares(count):
    from distributed import worker_client

    with worker_client():
        return ambient_squares(count)


@pytest.mark.parametrize("function", [ambient_squares, worker_client_squares])
def test_inside_a_task_its_own_cluster_is_ambient_and_no_thread_waits_for_itself(client, function):
    futures = [client.submit(function, 5, pure=False) for _ in range(4)]  # more than there are threads
    assert client.gather(futures) == [([0, 1, 4, 9, 16], "ClusterEngine")] * 4


def test_what_is_no_open_client_is_refused(cluster):
    from distributed import Client

    with Client(cluster, set_as_default=False) as closed:
        pass
    with pytest.raises(JobError, match="client: a closed client; expected an open"):
        resolve(closed)
    with pytest.raises(JobError, match="client: a LocalCluster; expected"):
        resolve(cluster)


def test_an_asynchronous_ambient_client_is_refused_in_its_loop_and_taken_in_a_thread(cluster, tmp_path):
    """In its own loop nothing can wait for it; where another thread asks, it answers as any other."""
    from distributed import Client

    job = write(tmp_path, engine={"seed": 5})

    async def tried():
        async with Client(cluster.scheduler_address, asynchronous=True):
            with pytest.raises(JobError, match=r"client: an asynchronous client; .*in a thread"):
                dp.run(job, tmp_path / "in the loop")
            return await asyncio.to_thread(dp.run, job, tmp_path / "in a thread")

    assert (asyncio.run(tried()).path / "report.html").exists()
    assert not list((tmp_path / "in the loop").glob("measurements/*"))
