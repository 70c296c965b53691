"""Maps and reductions when a part of the cluster is lost."""

import os
import signal
import threading
from contextlib import closing, contextmanager, suppress

import dask
import numpy as np
import pytest

from dpscale import TransientError
from dpscale.engine import schedulers
from dpscale.engine.schedulers import resolve
from tests.cluster.machines import kill, machines
from tests.cluster.troubles import consume_memory, die, die_once, return_slowly, square, suspend_for_a_while
from tests.cluster.waiting import eventually
from tests.messages import refused


def make_arrays(value):
    return [np.full(3, value), np.full(3, 2 * value)]


def sum_array(array):
    return int(np.sum(array))


def test_map_survives_killed_worker(client, tmp_path):
    assert resolve(client).map(die_once, [(str(tmp_path / "m"), i) for i in range(40)]) == list(range(40))
    assert (tmp_path / "m").exists()


def test_lost_handles_are_computed_again(cluster, client):
    engine = resolve(client)
    handles = engine.reduce(make_arrays, [(i,) for i in range(20)], 2)
    before = {worker.pid for worker in cluster.workers.values()}
    client.run(die, on_error="ignore")
    assert eventually(lambda: not before & {worker.pid for worker in cluster.workers.values()})
    assert engine.map(sum_array, handles) == [3 * 190, 6 * 190]


def test_lost_results_are_computed_again(cluster, client):
    """The worker is killed after its task has finished and before the driver has fetched the result."""
    from dpscale.engine.watch import Watch

    watch = Watch(client)
    future = client.submit(square, 7, pure=False)
    watch.add([future])
    [ended] = watch.next()
    client.run(die, on_error="ignore")
    assert eventually(lambda: future.status != "finished" or not cluster.scheduler.workers)
    assert watch.gather([ended]) == [49]


class Leaving:
    """A check in which the first worker passes and ends soon after, and the second ends before it answers."""

    def __init__(self, folder):
        self.folder = folder

    @contextmanager
    def questions(self):
        yield [(leave, self.folder)]

    def error(self, faults):
        raise AssertionError(faults)


def leave(folder):
    with suppress(FileExistsError):
        (folder / "first").touch(exist_ok=False)
        threading.Timer(0.5, die).start()
        return ""
    with suppress(FileExistsError):
        (folder / "second").touch(exist_ok=False)
        die()
    return ""


def test_workers_that_leave_while_they_are_checked_are_not_waited_for(tmp_path, secured):
    """Tasks may run on the worker that joins in their place."""
    with machines(tmp_path, secured) as made, dask.config.set({"dpscale.worker-wait": 120}):
        made.scheduler()
        for _ in range(2):
            made.worker("--no-nanny")
        with closing(resolve(scheduler=made.address)) as engine:
            engine.client.wait_for_workers(2, timeout=120)
            engine._admission._passed.clear()
            engine._admission._checks.append(Leaving(tmp_path))
            threading.Timer(4, made.worker, ["--no-nanny"]).start()
            assert engine.map(square, range(20)) == [value**2 for value in range(20)]
            assert (tmp_path / "second").exists()
            assert engine.admitted is None


@pytest.mark.slow
def test_worker_that_leaves_while_a_suspended_one_is_asked_gets_no_task(tmp_path, secured):
    """A third worker joins meanwhile, and the tasks run there."""
    with (
        machines(tmp_path, secured) as made,
        dask.config.set({"dpscale.worker-wait": 120, "dpscale.worker-answer": 20}),
    ):
        made.scheduler()
        suspended, left = made.worker("--no-nanny"), made.worker("--no-nanny")
        with closing(resolve(scheduler=made.address)) as engine:
            engine.client.wait_for_workers(2, timeout=120)
            assert engine.map(square, range(3)) == [0, 1, 4]
            addresses = {pid: address for address, pid in engine.client.run(os.getpid).items()}
            os.kill(suspended.pid, signal.SIGSTOP)
            engine._admission._passed.discard(addresses[suspended.pid])  # as if it had just joined
            threading.Timer(2, kill, [left]).start()
            threading.Timer(3, made.worker, ["--no-nanny"]).start()
            try:
                assert engine.map(square, range(3)) == [0, 1, 4]
                assert addresses[left.pid] not in engine.admitted
            finally:
                os.kill(suspended.pid, signal.SIGCONT)


def test_map_waits_for_suspended_worker(client):
    engine = resolve(client)
    client.run(suspend_for_a_while, wait=False, workers=list(client.nthreads())[:1])
    assert engine.map(return_slowly, range(10)) == list(range(10))


def test_task_that_kills_workers_fails_with_memory_message(cluster, client, monkeypatch):
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        allowed = client.cluster.scheduler.allowed_failures
        client.cluster.scheduler.allowed_failures = 0
        try:
            with refused(TransientError):
                resolve(client).map(die, [1], "boom")
        finally:
            client.cluster.scheduler.allowed_failures = allowed


@pytest.mark.slow
def test_workers_out_of_memory_fail_with_memory_message(tmp_path, secured):
    """Nannies kill workers at 95 % of their limit, and the same task kills each of them."""
    with machines(tmp_path, secured, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="1") as made:
        made.scheduler()
        made.worker("--nworkers", 2, "--memory-limit", "600MB")
        with dask.config.set({"dpscale.worker-wait": 60}):
            engine = resolve(scheduler=made.address)
            with refused(TransientError):
                engine.map(consume_memory, [1], "growth")
            engine.close()


def test_loss_of_all_workers_times_out(tmp_path, secured):
    with machines(tmp_path, secured) as made:
        made.scheduler()
        worker = made.worker("--no-nanny")
        with dask.config.set({"dpscale.worker-wait": 60}):
            engine = resolve(scheduler=made.address)
        assert engine.map(return_slowly, [1]) == [1]

        def kill_worker(*_):
            kill(worker)

        engine.progress = kill_worker
        with dask.config.set({"dpscale.worker-wait": 1}), refused(TransientError):
            engine.map(return_slowly, range(200))
        engine.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_map_fails_if_scheduler_is_killed(tmp_path, secured, monkeypatch, how):
    monkeypatch.setattr(schedulers, "CONNECT_SECONDS", 5)
    with machines(tmp_path, secured) as made:
        scheduler = made.scheduler()
        made.worker("--no-nanny")
        with dask.config.set({"dpscale.worker-wait": 60}):
            engine = resolve(scheduler=made.address)
        handles = engine.reduce(make_arrays, [(1,)], 2)
        engine.progress = lambda *_: scheduler.send_signal(how)
        with refused(TransientError):
            engine.map(return_slowly, range(200))
        for again in (lambda: engine.map(square, [1]), lambda: engine.reduce(make_arrays, [(1,)], 2)):
            with pytest.raises(TransientError):
                again()
        with pytest.raises(TransientError):
            engine.map(sum_array, handles)
        engine.close()
