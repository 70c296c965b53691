"""Suspended workers, drivers and schedulers: a command goes on without them or ends with a sentence, and afterwards the
release is that of an uninterrupted run, with one charge.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress

import dask
import pytest
from distributed import Client

from dpscale import TransientError
from dpscale.cli import driver, group
from dpscale.engine import admission, schedulers
from dpscale.engine.schedulers import open_cluster, resolve
from dpscale.job import Job
from tests.audit.small import write
from tests.cluster.chaos import PLAN, write_job
from tests.cluster.machines import ROOT, kill
from tests.cluster.released import assert_same_release, charge_states
from tests.cluster.suspension import Suspendable, proceed
from tests.cluster.test_failures import make_arrays, sum_array
from tests.cluster.test_workers import mismatched_workers
from tests.cluster.troubles import return_slowly, square
from tests.cluster.waiting import eventually
from tests.messages import refused
from tests.running import begin_table, run_stages

LIMIT = 3.0  # for an answer; a worker of a busy machine that misses it is asked again


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["workers", "nannies"])
def pair(request, tmp_path_factory):
    """A cluster of two workers that have imported what they run."""
    made = Suspendable(tmp_path_factory.mktemp("pair"), request.param, OMP_NUM_THREADS="1")
    try:
        with (
            dask.config.set({"dpscale.worker-answer": 120}),
            Client(made.address, timeout=120, set_as_default=False) as client,
        ):
            client.wait_for_workers(2, timeout=500)
            with closing(resolve(client)) as engine:
                engine.map(square, range(8))
        yield made
    finally:
        made.stop()


@pytest.fixture(autouse=True)
def short_limits(monkeypatch):
    monkeypatch.setattr(schedulers, "CONNECT_SECONDS", 10)
    with dask.config.set({"dpscale.worker-answer": LIMIT}):
        yield


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Directory of a run in this process."""
    place = tmp_path_factory.mktemp("suspended")
    run_stages(begin_table(Job.read(write(place)), place / "expected"))
    return place / "expected"


@pytest.fixture
def directory(expected, tmp_path):
    """A run of the same job with a new ledger."""
    for path in expected.parent.glob("ledger.sqlite*"):
        path.unlink()
    return begin_table(Job.read(expected.parent / "job.toml"), expected.parent / tmp_path.name)


def show_nothing(label, done, total):
    """Ignore progress."""


def run(directory, pair, progress=show_nothing):
    """Run all stages except the report."""
    for stage in ("plan", "measure", "reconstruct"):
        run_stages(directory, scheduler=pair.address, progress=progress, only=stage)


def run_again(directory, pair):
    """Repeat the run until it is done; a busy machine may miss a limit."""

    def done():
        with suppress(TransientError):
            run(directory, pair)
            return True

    assert eventually(done)


def worker_addresses(pair):
    """Return the address of each worker by its process id."""
    with dask.config.set({"dpscale.worker-answer": 120}), Client(pair.address, set_as_default=False) as client:
        return {pid: address for address, pid in client.run(os.getpid).items()}


def test_run_goes_on_without_suspended_worker(pair, directory, expected):
    """The worker is named, gets no task, and is checked when it answers again."""
    named = set()
    address = worker_addresses(pair)[pair.pids(pair.workers[:1])[0]]
    with pair.suspended(pair.workers[0]):
        run_again(directory, pair)
        with closing(resolve(scheduler=pair.address, progress=lambda label, *_: named.add(label))) as engine:
            assert engine.map(return_slowly, range(20), "work") == list(range(20))
            assert address in engine._admission.silent
            assert address not in engine.admitted
            proceed(pair.pids(pair.workers[:1]))
            assert eventually(lambda: engine.map(square, [1]) == [1] and engine.admitted is None)
            assert set(engine.map(_pid, range(40), "work")) <= set(worker_addresses(pair))
    assert_same_release(directory.path, expected)


def _pid(_):
    return os.getpid()


def test_suspended_workers_are_named_and_nothing_is_charged(pair, directory, expected):
    addresses = worker_addresses(pair).values()
    with pair.suspended(*pair.workers), pytest.raises(TransientError) as caught:
        run(directory, pair)
    assert all(address in str(caught.value) for address in addresses)
    assert "no answer within 3 s from workers" in str(caught.value)
    assert not (expected.parent / "ledger.sqlite").exists() or not charge_states(expected.parent)
    run_again(directory, pair)
    assert_same_release(directory.path, expected)


@pytest.mark.parametrize("label", ["snapshot", "count", "measure-marginals",
                                   pytest.param("reconstruct-set", marks=pytest.mark.slow)])  # fmt: skip
def test_workers_suspended_in_a_task_are_named_and_run_ends_right(pair, directory, expected, label):
    """They are continued when they are named, in a line of progress or in the error."""
    suspended, said = [], []

    def watch(now, done, total):
        if now == label and not suspended:
            suspended.extend(pair.suspend(*pair.workers))
        if "no answer from" in now:
            said.append(now)
            proceed(suspended)

    try:
        run(directory, pair, watch)
    except TransientError as error:
        said.append(str(error))
    finally:
        proceed(suspended)
    assert suspended
    assert any("tcp://127.0.0.1" in text for text in said), said
    run_again(directory, pair)
    assert_same_release(directory.path, expected)


def test_suspended_scheduler_is_refused_before_start(pair, directory, monkeypatch):
    monkeypatch.setattr(schedulers, "CONNECT_SECONDS", 1)
    with pair.suspended(pair.main), refused(TransientError):
        run(directory, pair)


@pytest.mark.parametrize("label", ["count", pytest.param("measure-marginals", marks=pytest.mark.slow),
                                   pytest.param("reconstruct-set", marks=pytest.mark.slow)])  # fmt: skip
def test_suspended_scheduler_is_lost_and_run_resumes(pair, directory, expected, label):
    suspended = []

    def suspend(now, done, total):
        if now == label and not suspended:
            suspended.extend(pair.suspend(pair.main))

    try:
        with pytest.raises(TransientError, match=r"connection to the Dask scheduler was lost|no answer from tcp://"):
            run(directory, pair, suspend)
    finally:
        proceed(suspended)
    run_again(directory, pair)
    assert_same_release(directory.path, expected)


def test_scheduler_that_misses_two_answers_is_not_lost(pair):
    """It is continued at the first line of progress, which comes before its third miss."""
    with closing(resolve(scheduler=pair.address)) as engine:
        suspended, said = [], []

        def watch(label, done, total):
            if not suspended:
                suspended.extend(pair.suspend(pair.main))
            if "the scheduler" in label:
                said.append(label)
                proceed(suspended)

        engine.progress = watch
        try:
            assert engine.map(return_slowly, range(40), "work") == list(range(40))
        finally:
            proceed(suspended)
    assert said


def submit_again(directory, pair):
    """Submit a run until the cluster takes it."""

    def submitted():
        with suppress(TransientError), open_cluster(pair.address) as engine:
            return driver.submit(directory.run, engine)

    assert eventually(submitted)


def test_run_of_suspended_driver_is_submitted_again(pair, directory, expected, monkeypatch):
    """The second driver names the process of the first, which has the lock; after it is continued, the run is right."""
    monkeypatch.setattr(driver, "SILENT_SECONDS", 4)
    with dask.config.set({"dpscale.worker-answer": 120}), Client(pair.address, set_as_default=False) as client:
        client.run(set_limits)
    submit_again(directory, pair)
    assert eventually(lambda: driver.read(directory.path).get("pid"))
    pid = driver.read(directory.path)["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        if driver.read(directory.path)["state"] != "done":
            with pytest.raises(TransientError, match="no heartbeat"):
                driver.wait(directory.path)
            submit_again(directory, pair)
            assert eventually(lambda: driver.read(directory.path)["state"] not in driver.AT_WORK)
            ended = driver.read(directory.path)
            if ended["exit_code"]:
                assert ended["exit_code"] == 75
                assert f"process {pid} on" in ended["error"]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert eventually(lambda: driver.read(directory.path)["state"] == "done" or submit_until_ended(directory, pair))
    assert_same_release(directory.path, expected)


def submit_until_ended(directory, pair):
    """Submit a run, wait for its end and return whether it is done."""
    submit_again(directory, pair)
    with suppress(TransientError):
        return driver.wait(directory.path)["state"] == "done"


def set_limits():
    """Shorten the limits of a driver on this worker."""
    import dask

    from dpscale.cli import driver

    driver.SILENT_SECONDS = 4
    dask.config.set({"dpscale.worker-answer": 2})


def test_wait_shows_progress_of_driver(directory):
    driver.change(directory.path, lambda _: True, submission="s", driver="d", state="running",
                         working={"tasks": "count", "done": 1, "total": 3})  # fmt: skip
    shown = []
    with refused(TransientError):
        driver.wait(directory.path, 0.1, lambda *now: shown.append(now))
    assert shown[0] == ("count", 1, 3)


def test_messages_of_loggers_are_not_printed(capsys, monkeypatch):
    """Planted: with DPSCALE_DEBUG they are printed."""
    logger = logging.getLogger("distributed.client")
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    try:
        for debugging, printed in (("", ""), ("1", "a traceback\n")):
            monkeypatch.setenv("DPSCALE_DEBUG", debugging)
            with group._quiet_loggers():
                logger.error("a traceback")
            assert capsys.readouterr().err == printed
    finally:
        logger.removeHandler(handler)


@pytest.mark.slow
def test_command_that_loses_its_scheduler_prints_one_sentence(tmp_path):
    """Dask's client logs a traceback."""
    job, run_dir = write_job(tmp_path / "job", PLAN), tmp_path / "run"
    made = Suspendable(tmp_path, False, "--preload", "tests.cluster.slow_store", DPSCALE_TEST_STORING="0.5")
    try:
        command = [sys.executable, "-m", "dpscale", "run", job, "--run-dir", run_dir, "--scheduler", made.address]
        client = subprocess.Popen(list(map(str, command)), cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert eventually(lambda: list(run_dir.glob("measurements/*.parquet")))
        kill(made.main)
        _, text = client.communicate(timeout=500)
    finally:
        made.stop()
    assert client.returncode == 75
    assert len(text.strip().splitlines()) == 1, text
    assert text.startswith("dpscale: engine: the connection to the Dask scheduler was lost")


# ---- workers that were not checked -----------------------------------------------------------------------------------


def test_task_in_process_without_admission_is_rescheduled(monkeypatch):
    from distributed import Reschedule

    monkeypatch.setattr(admission, "RESCHEDULE_SECONDS", 0.01)
    call = admission.AdmittedCall(square, "mark")
    with pytest.raises(Reschedule):
        call(3)
    assert admission.admit("mark", [(str.strip, " a fault "), (str.strip, "")]) == (0, "a fault")
    with pytest.raises(Reschedule):
        call(3)
    assert admission.admit("mark", [(str.strip, "")]) is None
    assert call(3) == 9


def mark_process(folder, value):
    """Write this process's id, so that a test knows where tasks ran."""
    (folder / f"{os.getpid()}").touch()
    time.sleep(1)
    return value


def test_worker_of_another_version_that_joins_during_a_map_runs_no_task(pair, tmp_path):
    """The map ends when the worker is checked; before, the worker returns its tasks."""
    marks, machine = tmp_path / "marks", tmp_path / "other"
    marks.mkdir()
    machine.mkdir()
    with mismatched_workers(pair, machine) as other, closing(resolve(scheduler=pair.address)) as engine:
        started = []

        def start(label, done, total):
            if done and not started:
                started.append(other.worker("--no-nanny"))
                assert eventually(lambda: len(engine.client.nthreads()) == 3)
                eventually((marks / f"{started[0].pid}").exists, 8)  # the scheduler gives it waiting tasks

        engine.progress = start
        with refused(Exception):
            engine.map(mark_process, [(marks, value) for value in range(2000)], "work")
        assert not (marks / f"{started[0].pid}").exists()
    assert eventually(lambda: len(worker_addresses(pair)) == 2)


def test_worker_without_the_data_that_joins_later_runs_no_task(pair, tmp_path):
    """The path of the data, in /proc/self, leads elsewhere on it."""
    here, there = pair.folder / "x.parquet", tmp_path / "x.parquet"
    here.write_bytes(b"the data")
    there.write_bytes(b"other data")
    before = os.getcwd()
    os.chdir(pair.folder)
    pids = dict.fromkeys(worker_addresses(pair))
    other = Suspendable.__new__(Suspendable)
    try:
        with closing(resolve(scheduler=pair.address)) as engine:
            engine.check_file_access(tmp_path, ["/proc/self/cwd/x.parquet"])
            other.folder, other._environment, other.processes, other.address = (
                tmp_path,
                pair._environment,
                [],
                pair.address,
            )
            other.worker("--no-nanny")
            assert eventually(lambda: len(engine.client.nthreads()) == 3)
            with refused(Exception):
                engine.map(square, [1])
    finally:
        os.chdir(before)
        for process in other.processes:
            kill(process)
    assert eventually(lambda: dict.fromkeys(worker_addresses(pair)) == pids)


@pytest.mark.slow
def test_process_at_the_address_of_an_earlier_one_is_checked(tmp_path):
    made = Suspendable(tmp_path, False)
    port = made.port + 1
    kill(made.workers[0])
    kill(made.workers[1])
    try:
        first = made.worker("--no-nanny", "--worker-port", port)
        with dask.config.set({"dpscale.worker-wait": 120}), closing(resolve(scheduler=made.address)) as engine:
            assert engine.map(square, [3]) == [9]
            kill(first)
            made.worker("--no-nanny", "--worker-port", port)
            assert engine.map(square, range(10)) == [value**2 for value in range(10)]
    finally:
        made.stop()


@pytest.mark.slow
def test_lost_results_of_tasks_that_no_worker_may_run_end_the_command(tmp_path):
    """While one worker is suspended, tasks may run on the others only, of which none is left."""
    made = Suspendable(tmp_path, False)
    try:
        with dask.config.set({"dpscale.worker-answer": 20}), closing(resolve(scheduler=made.address)) as engine:
            assert eventually(lambda: engine.map(square, range(8)) and len(engine.worker_info()) == 2)
        with (
            dask.config.set({"dpscale.worker-answer": 8}),
            made.suspended(made.workers[1]),
            closing(resolve(scheduler=made.address)) as engine,
        ):
            handles, before = engine.reduce(make_arrays, [(1,), (2,)], 2), set(engine.worker_info())
            kill(made.workers[0])
            made.worker("--no-nanny")
            assert eventually(lambda: len(engine.worker_info()) == 2 and set(engine.worker_info()) != before)
            with refused(TransientError):
                engine.map(sum_array, handles)
    finally:
        made.stop()


@pytest.mark.slow
@pytest.mark.parametrize("nannies", [False, True])
def test_scheduler_replaces_worker_that_stays_suspended(tmp_path, expected, directory, nannies):
    """After `worker-ttl` its tasks run elsewhere."""
    made = Suspendable(tmp_path, nannies, DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL="5s")
    suspended = []

    def suspend(label, done, total):
        if label == "count" and not suspended:
            suspended.extend(made.suspend(made.workers[0]))

    try:
        with dask.config.set({"dpscale.worker-answer": 20, "dpscale.worker-wait": 120}):
            run(directory, made, suspend)
    finally:
        made.stop()
    assert suspended
    assert_same_release(directory.path, expected)
