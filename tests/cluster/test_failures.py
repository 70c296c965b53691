"""What becomes of a map or a reduction when a part of the cluster is lost."""

import signal

import dask
import numpy as np
import pytest

from dpscale import TransientError
from dpscale.engine import connect, resolve
from tests.cluster.machines import kill, machines
from tests.cluster.troubles import die, die_once, grow, slowly, squared, stop_for_a_while
from tests.cluster.waiting import eventually


def twice(value):
    return [np.full(3, value), np.full(3, 2 * value)]


def total(array):
    return int(np.sum(array))


def test_a_worker_that_dies_in_a_map_is_made_good(client, tmp_path):
    assert resolve(client).map(die_once, [(str(tmp_path / "m"), i) for i in range(40)]) == list(range(40))
    assert (tmp_path / "m").exists()


def test_handles_that_died_with_their_worker_are_computed_again(cluster, client):
    engine = resolve(client)
    handles = engine.reduce(twice, [(i,) for i in range(20)], 2)
    before = {worker.pid for worker in cluster.workers.values()}
    client.run(die, on_error="ignore")
    assert eventually(lambda: not before & {worker.pid for worker in cluster.workers.values()})
    assert engine.map(total, handles) == [3 * 190, 6 * 190]


def test_results_that_died_before_they_were_gathered_are_computed_again(cluster, client):
    """A worker that dies after its task ended and before the driver has the result."""
    from dpscale.engine.watch import Watch

    watch = Watch(client)
    future = client.submit(squared, 7, pure=False)
    watch.add([future])
    [ended] = watch.next()
    client.run(die, on_error="ignore")
    assert eventually(lambda: future.status != "finished" or not cluster.scheduler.workers)
    assert watch.gather([ended]) == [49]


def test_a_worker_that_hangs_for_a_while_is_waited_for(client):
    engine = resolve(client)
    client.run(stop_for_a_while, wait=False, workers=list(client.nthreads())[:1])
    assert engine.map(slowly, range(10)) == list(range(10))


def test_a_task_that_kills_every_worker_is_a_failure_that_speaks_of_memory(cluster, client, monkeypatch):
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        allowed = client.cluster.scheduler.allowed_failures
        client.cluster.scheduler.allowed_failures = 0
        try:
            with pytest.raises(
                TransientError, match=r"engine.memory: 1 worker died at task boom, probably because of memory"
            ):
                resolve(client).map(die, [1], "boom")
        finally:
            client.cluster.scheduler.allowed_failures = allowed


@pytest.mark.slow
def test_workers_out_of_memory_are_a_failure_that_speaks_of_memory(tmp_path, secured):
    """Nannies end workers at 95 % of their limit; the same task ends each."""
    with machines(tmp_path, secured, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="1") as made:
        made.scheduler()
        made.worker("--nworkers", 2, "--memory-limit", "600MB")
        with dask.config.set({"dpscale.worker-wait": 60}):
            engine = resolve(scheduler=made.address)
            with pytest.raises(
                TransientError, match=r"engine.memory: 2 workers died one after the other at task growth"
            ):
                engine.map(grow, [1], "growth")
            engine.close()


def test_all_workers_gone_is_not_waited_for_for_ever(tmp_path, secured):
    with machines(tmp_path, secured) as made:
        made.scheduler()
        worker = made.worker("--no-nanny")
        with dask.config.set({"dpscale.worker-wait": 60}):
            engine = resolve(scheduler=made.address)
        assert engine.map(slowly, [1]) == [1]

        def gone(*_):
            kill(worker)

        engine.progress = gone
        with dask.config.set({"dpscale.worker-wait": 1}), pytest.raises(TransientError, match="had no worker in 1 s"):
            engine.map(slowly, range(200))
        engine.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_scheduler_that_dies_under_a_map(tmp_path, secured, monkeypatch, how):
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 5)
    with machines(tmp_path, secured) as made:
        scheduler = made.scheduler()
        made.worker("--no-nanny")
        with dask.config.set({"dpscale.worker-wait": 60}):
            engine = resolve(scheduler=made.address)
        handles = engine.reduce(twice, [(1,)], 2)
        engine.progress = lambda *_: scheduler.send_signal(how)
        with pytest.raises(TransientError, match="connection to the Dask scheduler was lost"):
            engine.map(slowly, range(200))
        for again in (lambda: engine.map(squared, [1]), lambda: engine.reduce(twice, [(1,)], 2)):
            with pytest.raises(TransientError):
                again()
        with pytest.raises(TransientError):
            engine.map(total, handles)
        engine.close()
