"""Run whose driver is a task on the cluster: `dpscale job submit` and the commands that query it.

The driver is one task on a worker. It secedes from the worker's thread pool and submits the tasks of the stages, so the
submitting machine may disconnect. Its only state is the run directory, whose file `driver.json` describes it: the only
thing that `status` and `wait` read. Dask restarts a driver that is lost with its worker, and the new one resumes from
the run directory. The lock of the run directory prevents two drivers at a time. The ledger file must be on a disk of
the machine where the driver runs and restarts: workers of that machine declare the resource DRIVER, or the cluster is
one machine.

Two names make this file reliable. Each submit creates `submission`: a driver's task that Dask restarts for an earlier
one does nothing. Each driver creates `driver` when it starts: a lost driver that is still alive, for example on a
machine that was suspended, finds another name, writes no more and stops. A lock protects changes of the file.

The content of the file is a `DriverStatus`: these names, the `state`, the time `at` of the last change, the process of
the driver, that of an `earlier` one, the tasks at work (`working`), and at the end the exit code and the error.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpscale.base.error_redaction import hint
from dpscale.base.errors import Cancelled, DpscaleError, JobError, Stopped, TransientError
from dpscale.cli.group import show_cause
from dpscale.engine.admission import SameVersions, ask, installed_versions, unanswered, version_faults
from dpscale.engine.base import Progress, silent
from dpscale.engine.watch import FIELD, answer_seconds, cluster_errors, scheduler_answer
from dpscale.ledger.location import is_address, network_kind, refused, standing
from dpscale.ledger.transfer import unreached
from dpscale.runs.manifest import disk_errors
from dpscale.runs.opening import open_run
from dpscale.runs.run import DRIVER_STATUS, STOP_REQUEST, Run
from dpscale.storage.files import PARTIAL, is_local, place, present, read_bytes, remove, write_whole
from dpscale.storage.lock import file_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from distributed import Client

    from dpscale.engine.cluster import ClusterEngine


RESOURCE, STOP = "DRIVER", STOP_REQUEST
INTERNAL = 70  # exit code of a fault of dpscale, EX_SOFTWARE of sysexits.h
KNOWN_SECONDS = 20.0  # in which the scheduler must know the driver's task, or the driver begin
FILE, LOCK = DRIVER_STATUS, ".driver.lock"
# between heartbeats; without a heartbeat, after which a driver is silent; between looks at its status
BEAT_SECONDS, SILENT_SECONDS, POLL_SECONDS = 1.0, 60.0, 0.2
AT_WORK, ENDED = ("submitted", "running"), ("done", "failed", "cancelled", "stopped")
DriverStatus = dict[str, Any]


def submit(run: Run, engine: ClusterEngine) -> DriverStatus:
    """Start the driver of a run on a cluster and return its status. A run with a working driver is left unchanged."""
    with disk_errors(run.path):
        declared = _check_cluster(run, engine)
    known, submission = read_status(run.path), secrets.token_hex(8)

    def idle(status: DriverStatus) -> bool:
        """Return whether no driver works: it ended or was cancelled, or is silent since `known` was read."""
        if status.get("state") not in AT_WORK or _stop_requested(run.path, status):
            return True
        return bool(known.get("silent") and status["at"] == known["at"])

    with disk_errors(run.path):
        address = engine.client.scheduler.address  # type: ignore[union-attr]
        mine = change(run.path, idle, submission=submission, driver=None, state="submitted",
                            scheduler=address, earlier=_process(known), host=None, pid=None, exit_code=None,
                            error=None, working=None)  # fmt: skip
    if mine:  # otherwise another driver works
        try:
            _send(run.path, submission, engine, declared)
        except Exception:
            error = TransientError(FIELD, "the scheduler did not take the driver's task", "", "submit it again")
            _end(
                run.path, lambda status: (status.get("submission"), status["state"]) == (submission, "submitted"), error
            )
            raise error from None
    return read_status(run.path)


def _check_cluster(run: Run, engine: ClusterEngine) -> bool:
    """Return whether workers declare DRIVER. Any worker may have the driver if none does.

    A ledger in a file needs a driver on the machine with its disk, so that all possible drivers must be on one machine.

    Raises
    ------
    JobError
        If a driver could not work on the cluster, or not with a single ledger.
    """
    with cluster_errors(engine.client, "check"):
        workers = engine.worker_info()
    declared = {address: info for address, info in workers.items() if RESOURCE in info.get("resources", {})}
    drivers = declared or workers
    ledger = standing(run.job.privacy.ledger)
    if len({info["host"] for info in drivers.values()}) > 1 and not is_address(ledger):
        who = f"several machines have workers {'with' if declared else 'and none of them'} the resource {RESOURCE}"
        raise JobError(FIELD, who, "one machine for the driver, with the disk of the ledger",
                       f'start the workers of one machine with --resources "{RESOURCE}=100"')  # fmt: skip
    files = [path for path in run.content.data_paths if not set("*?[") & set(path)]
    engine.check_file_access(run.path, files)
    answering = [worker for worker in drivers if engine.admitted is None or worker in engine.admitted]
    if not answering:
        raise unanswered(sorted(drivers), answer_seconds())
    _check_ledger(run, engine.client, answering, is_address(ledger))
    return bool(declared)


def _check_ledger(run: Run, client: Client, drivers: list[str], served: bool) -> None:
    """Raise JobError if a driver could not reach the ledger's server, or if the ledger file is on a network.

    `drivers` are the addresses of the workers that may have the driver; `served` states that a server has the ledger.
    """
    ledger = run.job.privacy.ledger
    found, _ = ask(client, drivers, unreached if served else network_kind, ledger)
    for worker, fault in found.items():
        if isinstance(fault, str) and fault and served:
            raise JobError(FIELD, f"worker {worker} cannot reach the ledger ({fault})", "workers that can",
                           "install psycopg and set the credentials in their environment")  # fmt: skip
        if isinstance(fault, str) and fault:
            raise refused(ledger, fault, f" at worker {worker}")


def _send(path: Path, submission: str, engine: ClusterEngine, declared: bool) -> None:
    """Submit the driver's task, which survives this client; its key is new, so no earlier task replaces it."""
    from distributed import fire_and_forget

    key = f"dpscale-driver-{hashlib.sha256(str(path).encode()).hexdigest()[:16]}-{submission}"
    client = engine.client
    future = client.submit(drive, str(path), submission, installed_versions(), key=key, pure=False, retries=3,
                           resources={RESOURCE: 1} if declared else None, workers=engine.admitted)  # fmt: skip
    fire_and_forget(future)
    end = time.monotonic() + KNOWN_SECONDS
    while not _begun(path) and not _known(client, key):
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(POLL_SECONDS)


def _begun(path: Path) -> bool:
    with suppress(OSError, TransientError):  # a store that is briefly unavailable: read again later
        return bool(read(path)["state"] != "submitted")
    return False


def _known(client: Client, key: str) -> bool:
    """Return whether the scheduler has a task; a client that disconnects too early may remove it."""
    status = scheduler_answer(client, lambda: client.scheduler.get_task_status(keys=[key]))  # type: ignore[union-attr]
    return status.get(key) not in (None, "released")


def drive(path: str, submission: str, versions: Mapping[str, str]) -> int:
    """Run all remaining stages as the driver's task and return the exit code, which `json` stores.

    `versions` are those of the process that submitted it.
    """
    folder, name = place(path), secrets.token_hex(8)
    if not present(folder / "manifest.json"):  # no status can be written there
        raise JobError("run directory", f"the workers cannot see {path}", "a directory on shared storage",
                       "choose another --run-dir")  # fmt: skip

    def awaits_driver(status: DriverStatus) -> bool:
        """Return whether the run is not ended and its last submission is that of this task."""
        return status.get("submission") == submission and status["state"] in AT_WORK

    # the process of a driver that was lost before, if the status has one
    earlier = _process(read(folder))
    if not change(folder, awaits_driver, driver=name, state="running", earlier=earlier,
                                host=socket.gethostname(), pid=os.getpid()):  # fmt: skip
        return 0  # ended, cancelled before its start, or submitted again
    try:
        with Heartbeat(folder, name) as heartbeat:
            if fault := version_faults(versions):
                raise SameVersions().error({f"of the driver on {socket.gethostname()}": fault})
            _run(folder, heartbeat)
    except BaseException as error:
        if _worker_is_leaving():  # Dask restarts the driver; otherwise its silence shows the failure
            return TransientError.exit_code
        return _end(folder, lambda found: found.get("driver") == name, error)
    return _end(folder, lambda found: found.get("driver") == name, None)


def _process(status: DriverStatus) -> str:
    """Return the process of a driver in words, or else that of the earlier one; "" if there is none."""
    return f"process {status['pid']} on {status['host']}" if status.get("pid") else str(status.get("earlier") or "")


def _run(folder: Path, heartbeat: Heartbeat) -> None:
    """Run the stages outside the worker's thread pool, which the thread does not rejoin."""
    from distributed import get_client, secede

    from dpscale.runs.runner import run_stages

    client = get_client()
    secede()
    run = open_run(folder)
    _await_free(run, heartbeat)
    run_stages(run, client=client, progress=heartbeat)


def _await_free(run: Run, heartbeat: Heartbeat) -> None:
    """Wait for the lock of the run directory: a lost driver that is still alive stops at its next task."""
    end = time.monotonic() + SILENT_SECONDS
    while time.monotonic() < end:
        heartbeat("wait for run directory", 0, 1)
        with suppress(TransientError), run.locked():
            return
        time.sleep(POLL_SECONDS)
    if earlier := read(run.path).get("earlier"):
        got = f"an earlier driver ({earlier}) still works in {run.path} or is suspended"
        raise TransientError("run directory", got, "", "end or continue it, and submit again to resume")


def _worker_is_leaving() -> bool:
    from distributed import Status, get_worker

    return get_worker().status not in (Status.running, Status.paused)


class Heartbeat:
    """Progress function that writes a heartbeat into the run directory and stops on request."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self._working, self._taken, self._ended = dict[str, Any](), False, threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def __call__(self, label: str, done: int, total: int) -> None:
        self._working = {"tasks": label, "done": done, "total": total}
        self.check()

    def check(self) -> None:
        """Raise Stopped if another driver took over, or Cancelled if the run was cancelled."""
        if self._taken:
            raise Stopped("run", "another driver took over", "", "wait for that one")
        if self._stopped():
            raise _cancelled()

    def _stopped(self) -> bool:
        with suppress(OSError, DpscaleError):
            return _stop_requested(self.path, read(self.path))
        return False

    def _beat(self) -> None:
        """Write a heartbeat every BEAT_SECONDS until the run ends.

        `change` writes only while `driver.json` names this driver, so `_taken` states that another driver has the run.
        """
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(OSError, DpscaleError):  # a failed heartbeat does not end the run
                self._taken = not change(
                    self.path, lambda status: status.get("driver") == self.name, working=self._working or None
                )


def wait(path: Path, seconds: float | None = None, progress: Progress = silent) -> DriverStatus:
    """Wait until the run ends and return its status.

    Raises
    ------
    TransientError
        If the driver is silent, or after `seconds`.
    """
    end, silence = None if seconds is None else time.monotonic() + seconds, Silence()
    found = read(path)
    while True:
        if not found:
            raise JobError("run directory", f"{path} was never submitted", "a run that `dpscale job submit` began",
                           "submit it, or run it here")  # fmt: skip
        if found["state"] not in AT_WORK:
            return found
        if silence.too_long(found):
            raise _silent(found)
        if end is not None and time.monotonic() > end:
            raise TransientError("run", f"not done after {seconds:g} seconds", "", "continue to wait")
        working = found.get("working") or {"tasks": found["state"], "done": 0, "total": 1}
        progress(working["tasks"], working["done"], working["total"])
        time.sleep(POLL_SECONDS)
        with suppress(OSError, TransientError):  # a store that is briefly unavailable
            found = read(path)


def _silent(status: DriverStatus) -> TransientError:
    """Return the error for a run without a heartbeat; its text depends on whether a worker has started the run."""
    if status["state"] == "submitted":
        return TransientError("run", f"no worker has started it in {SILENT_SECONDS:g} s", "",
                              "check that workers are free; wait, or submit it again")  # fmt: skip
    return TransientError("run", f"its driver has sent no heartbeat for {SILENT_SECONDS:g} s", "",
                          "check that the cluster is up, and submit it again to resume")  # fmt: skip


def cancel(path: Path) -> None:
    """Ask the driver to stop at its next task. Measurements remain, and a later submit resumes the run."""
    status = read_status(path)
    if status.get("state") not in AT_WORK:
        return
    with disk_errors(path):
        write_whole(path / STOP, status["submission"].encode())
    if status["state"] == "submitted" or status["silent"]:  # no driver may read the request
        same = ("submission", "driver")
        _end(path, lambda now: all(now[name] == status[name] for name in same), _cancelled())


def _stop_requested(path: Path, status: DriverStatus) -> bool:
    with suppress(FileNotFoundError):
        return read_bytes(path / STOP).decode() == status.get("submission")
    return False


def _cancelled() -> Cancelled:
    return Cancelled("run", "cancelled", "", "submit it again to resume")


def _end(path: Path, allowed: Callable[[DriverStatus], bool], error: BaseException | None) -> int:
    """Store how a run ended, if `allowed` holds for the status of a run at work, and return the exit code.

    Errors that are not dpscale's are stored by type only, because their text may describe records.
    """
    code, text, state = 0, None, "done"
    show_cause(error)
    if isinstance(error, DpscaleError):
        code, text, state = error.exit_code, str(error), error.state
    elif error is not None:
        code, text, state = INTERNAL, f"the driver failed with {type(error).__name__}{hint()}", "failed"
    with suppress(OSError, DpscaleError):
        change(
            path,
            lambda status: allowed(status) and status["state"] in AT_WORK,
            exit_code=code,
            state=state,
            error=text,
            working=None,
        )
    return code


def read(path: Path) -> DriverStatus:
    """Return the content of the file; empty if the run was never submitted.

    Raises
    ------
    JobError
        If no driver wrote the file.
    OSError, TransientError
        If the file cannot be read now.
    """
    try:
        status = json.loads(read_bytes(path / FILE))
    except FileNotFoundError:
        return {}
    except ValueError:
        status = None
    if not isinstance(status, dict) or not _whole(status):
        raise JobError("run directory", f"{FILE} in {path} is damaged", "the file as the driver wrote it",
                       "remove it and submit the run again to resume")  # fmt: skip
    return status


def _whole(status: DriverStatus) -> bool:
    """Return whether all entries that readers use are present."""
    state, at, working = status.get("state"), status.get("at"), status.get("working")
    has_state = state in AT_WORK or (state in ENDED and isinstance(status.get("exit_code"), int))
    has_tasks = working is None or (isinstance(working, dict) and working.keys() >= {"tasks", "done", "total"})
    return (
        has_state
        and has_tasks
        and isinstance(at, (int, float))
        and isinstance(status.get("submission"), str)
        and ("driver" in status)
    )


def change(path: Path, allowed: Callable[[DriverStatus], bool], **changes: Any) -> bool:
    """Change entries of the file, and its time, if `allowed` holds for the present status; return whether it did."""
    with _locked(path):
        status = read(path)
        if not allowed(status):
            return False
        for partial in path.glob(f".{FILE}.*{PARTIAL}") if is_local(path) else ():  # of killed drivers
            remove(partial)
        write_whole(path / FILE, json.dumps(status | changes | {"at": time.time()}).encode())
        return True


def read_status(path: Path) -> DriverStatus:
    """Return the content of the file with the entry `silent`: whether a driver that should be working sends nothing.

    `at` is the time of the last heartbeat by the clock of the driver's machine. Clocks of machines differ, so a driver
    that seems silent by the clock is observed for a few heartbeats.
    """
    status = read(path)
    if not status:
        return {}
    # a time in the future shows that clocks differ
    silent = status["state"] in AT_WORK and not 0 <= time.time() - status["at"] <= SILENT_SECONDS
    if silent:
        end = time.monotonic() + 3 * BEAT_SECONDS
        while time.monotonic() < end and read(path) == status:
            time.sleep(POLL_SECONDS)
        status = read(path) or status
        silent = status["at"] == read(path).get("at") and time.monotonic() >= end
    return status | {"silent": silent}


def at_work(status: DriverStatus) -> bool:
    """Return whether a driver is working, given the result of `read_status`."""
    return bool(status) and status["state"] in AT_WORK and not status["silent"]


class Silence:
    """Time since the status last changed, by the clock of the observer."""

    def __init__(self) -> None:
        self._last: DriverStatus = {}
        self._since = time.monotonic()

    def too_long(self, status: DriverStatus) -> bool:
        """Return whether the status, which was just read, is the same for more than SILENT_SECONDS."""
        if status != self._last:
            self._last, self._since = status, time.monotonic()
        return time.monotonic() - self._since > SILENT_SECONDS


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock `driver.json` of a local run directory while the context is active."""
    if not is_local(path):  # an upload is atomic and names distinguish drivers, so a lock would not pay
        yield
        return
    with file_lock(path / LOCK, mode=0o600):
        yield
