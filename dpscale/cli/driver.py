"""A run driven on the cluster: `dpscale submit` and what asks about it afterwards.

The driver is one task on a worker, which leaves the worker's thread and submits the stages' tasks from there; the
laptop that submitted it may go. All it has and leaves is the run directory: `driver.json` (see `signs`) says how it is.
A driver lost with its worker is started again by Dask, and goes on where the run directory says. Two drivers never work
in one run directory (its lock). The ledger's file must be on a disk of the machine where the driver runs, and on the
same one when it is started again: that machine's workers declare the resource DRIVER, or the cluster is one machine.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpscale.base.error_redaction import hint
from dpscale.base.errors import Cancelled, DpscaleError, JobError, Stopped, TransientError
from dpscale.cli import driver_status
from dpscale.cli.group import show_cause
from dpscale.engine.waiting import FIELD, dependable
from dpscale.ledger.location import is_address, network_kind, refused, standing
from dpscale.ledger.transfer import unreached
from dpscale.runs.fingerprints import disk_errors
from dpscale.runs.run import Run
from dpscale.storage.files import place, present, read_bytes, write_whole

RESOURCE, STOP = "DRIVER", "cancel"
INTERNAL = 70
KNOWN_SECONDS = 20.0


def submit(run: Run, client: Any) -> driver_status.Signs:
    """Start the driver of a run on a cluster; what `driver.json` says then. A run that is driven is left alone."""
    with disk_errors(run.path):
        declared = _check_cluster(run, client)
    known, submission = driver_status.read_status(run.path), secrets.token_hex(8)

    def idle(stands: driver_status.Signs) -> bool:
        if stands.get("state") not in driver_status.AT_WORK or _stop_requested(run.path, stands):
            return True
        return bool(known.get("silent") and stands["at"] == known["at"])

    with disk_errors(run.path):
        mine = driver_status.change(run.path, idle, submission=submission, driver=None, state="submitted",
                            scheduler=client.scheduler.address, host=None, pid=None, exit_code=None, error=None,
                            working=None)  # fmt: skip
    if mine:
        try:
            _send(run.path, submission, client, declared)
        except Exception:
            error = TransientError(FIELD, "the scheduler did not take the driver's task", "", "submit it again")
            _end(
                run.path, lambda stands: (stands.get("submission"), stands["state"]) == (submission, "submitted"), error
            )
            raise error from None
    return driver_status.read_status(run.path)


def _check_cluster(run: Run, client: Any) -> bool:
    """Whether workers declare DRIVER; JobError where a driver could not work, or not with one ledger."""
    from dpscale.engine.cluster import ClusterEngine

    with dependable(client, "check"):
        workers = dict(client.scheduler_info(n_workers=-1)["workers"])
    declared = {address: told for address, told in workers.items() if RESOURCE in told.get("resources", {})}
    drivers = declared or workers
    ledger = standing(run.job.privacy.ledger)
    if len({told["host"] for told in drivers.values()}) > 1 and not is_address(ledger):
        who = f"several machines have workers {'with' if declared else 'and none of them'} the resource {RESOURCE}"
        raise JobError(FIELD, who, "one machine for the driver, where the ledger's disk is",
                       f'start the workers of one machine with --resources "{RESOURCE}=100"')  # fmt: skip
    data = run.job.data.path
    ClusterEngine(client).check_sight(run.path, [] if set("*?[") & set(data) else [data])
    _check_ledger(run, client, list(drivers), is_address(ledger))
    return bool(declared)


def _check_ledger(run: Run, client: Any, drivers: list[str], served: bool) -> None:
    """JobError where a driver could not ask the ledger's server, or the ledger's file is on a network."""
    ledger = run.job.privacy.ledger
    with dependable(client, "check"):
        found = client.run(unreached if served else network_kind, ledger, workers=drivers, on_error="return")
    for worker, fault in found.items():
        if isinstance(fault, str) and fault and served:
            raise JobError(FIELD, f"worker {worker} cannot ask the ledger ({fault})", "workers that can",
                           "give them psycopg and, in their environment, the credentials")  # fmt: skip
        if isinstance(fault, str) and fault:
            raise refused(ledger, fault, f" at worker {worker}")


def _send(path: Path, submission: str, client: Any, declared: bool) -> None:
    """Submit the driver's task, which stays when this client goes; its key is new, so no older one stands for it."""
    from distributed import fire_and_forget

    key = f"dpscale-driver-{hashlib.sha256(str(path).encode()).hexdigest()[:16]}-{submission}"
    future = client.submit(drive, str(path), submission, key=key, pure=False, retries=3,
                           resources={RESOURCE: 1} if declared else None)  # fmt: skip
    fire_and_forget(future)
    end = time.monotonic() + KNOWN_SECONDS
    while not _begun(path) and not _known(client, key):
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(driver_status.POLL_SECONDS)


def _begun(path: Path) -> bool:
    with suppress(OSError, TransientError):  # a store that is away for a moment: asked again
        return bool(driver_status.read(path)["state"] != "submitted")
    return False


def _known(client: Any, key: str) -> bool:
    """Whether the scheduler has a task: a client that goes too early may take it along."""
    status = client.sync(client.scheduler.get_task_status, keys=[key])
    return status.get(key) not in (None, "released")


def drive(path: str, submission: str) -> int:
    """The driver's task: all stages that are left; its exit code, which `driver.json` keeps."""
    folder, name = place(path), secrets.token_hex(8)
    if not present(folder / "manifest.json"):  # nothing can be told there
        raise JobError("run directory", f"{path} is not seen by the workers", "a directory on shared storage",
                       "choose another --run-dir")  # fmt: skip

    def stop_requested(stands: driver_status.Signs) -> bool:
        return stands.get("submission") == submission and stands["state"] in driver_status.AT_WORK

    if not driver_status.change(
        folder, stop_requested, driver=name, state="running", host=socket.gethostname(), pid=os.getpid()
    ):
        return 0  # ended, cancelled before it began, or submitted anew
    try:
        with Heart(folder, name) as heart:
            _run(folder, heart)
    except BaseException as error:
        if _worker_is_leaving():  # Dask starts the driver again, or nobody does, and the silence tells
            return TransientError.exit_code
        return _end(folder, lambda found: found.get("driver") == name, error)
    return _end(folder, lambda found: found.get("driver") == name, None)


def _run(folder: Path, heart: Heart) -> None:
    """The stages, beside the worker's threads; not to join them again, for which a driver that failed would wait."""
    from distributed import get_client, secede

    from dpscale.runs.stages.runner import run_stages

    client = get_client()
    secede()
    run = Run(folder)
    _await_free(run, heart)
    run_stages(run, client=client, progress=heart)


def _await_free(run: Run, heart: Heart) -> None:
    """A driver that was lost and lives on stops at its next task; until then it holds the run directory."""
    end = time.monotonic() + driver_status.SILENT_SECONDS
    while time.monotonic() < end:
        heart.check()
        with suppress(TransientError), run.locked():
            return
        time.sleep(driver_status.POLL_SECONDS)


def _worker_is_leaving() -> bool:
    from distributed import Status, get_worker

    return get_worker().status not in (Status.running, Status.paused)


class Heart:
    """A progress function that leaves signs of life in the run directory, and stops where it is asked to."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self._working, self._taken, self._ended = dict[str, Any](), False, threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Heart:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def __call__(self, label: str, done: int, total: int) -> None:
        self._working = {"tasks": label, "done": done, "total": total}
        self.check()

    def check(self) -> None:
        """Stopped where the run was cancelled, or another driver took over."""
        if self._taken:
            raise Stopped("run", "another driver took over", "", "wait for that one")
        if self._stopped():
            raise _cancelled()

    def _stopped(self) -> bool:
        with suppress(OSError, DpscaleError):
            return _stop_requested(self.path, driver_status.read(self.path))
        return False

    def _beat(self) -> None:
        while not self._ended.wait(driver_status.BEAT_SECONDS):
            with suppress(OSError, DpscaleError):  # a full disk, a store that is away or an edit ends no run by this
                self._taken = not driver_status.change(
                    self.path, lambda stands: stands.get("driver") == self.name, working=self._working or None
                )


def wait(path: Path, seconds: float | None = None) -> driver_status.Signs:
    """Until the run ends: what its driver tells then. TransientError when it is silent, or after so many seconds."""
    end, silence = None if seconds is None else time.monotonic() + seconds, driver_status.Silence()
    found = driver_status.read(path)
    while True:
        if not found:
            raise JobError("run directory", f"{path} was never submitted", "a run that `dpscale submit` began",
                           "submit it, or run it here")  # fmt: skip
        if found["state"] not in driver_status.AT_WORK:
            return found
        if silence.too_long(found):
            raise _silent(found)
        if end is not None and time.monotonic() > end:
            raise TransientError("run", f"not done after {seconds:g} seconds", "", "wait on")
        time.sleep(driver_status.POLL_SECONDS)
        with suppress(OSError, TransientError):  # a store that is away for a moment
            found = driver_status.read(path)


def _silent(stands: driver_status.Signs) -> TransientError:
    if stands["state"] == "submitted":
        return TransientError("run", f"no worker has begun it in {driver_status.SILENT_SECONDS:g} s", "",
                              "see whether workers are free, and wait on or submit it again")  # fmt: skip
    return TransientError("run", f"its driver has given no sign of life for {driver_status.SILENT_SECONDS:g} s", "",
                          "see whether the cluster is up, and submit it again: it goes on there")  # fmt: skip


def cancel(path: Path) -> None:
    """Ask the driver to stop at its next task; what is measured stays, and a later submit goes on from there."""
    stands = driver_status.read_status(path)
    if stands.get("state") not in driver_status.AT_WORK:
        return
    with disk_errors(path):
        write_whole(path / STOP, stands["submission"].encode())
    if stands["state"] == "submitted" or stands["silent"]:  # maybe nobody reads that
        same = ("submission", "driver")
        _end(path, lambda now: all(now[name] == stands[name] for name in same), _cancelled())


def _stop_requested(path: Path, stands: driver_status.Signs) -> bool:
    with suppress(FileNotFoundError):
        return read_bytes(path / STOP).decode() == stands.get("submission")
    return False


def _cancelled() -> Cancelled:
    return Cancelled("run", "cancelled", "", "submit it again: it goes on where it stopped")


def _end(path: Path, allowed: Any, error: BaseException | None) -> int:
    """Tell how a run ended. Of what is not an error of ours only the kind: its text may tell of records."""
    code, text, state = 0, None, "done"
    show_cause(error)
    if isinstance(error, DpscaleError):
        code, text, state = error.exit_code, str(error), error.state
    elif error is not None:
        code, text, state = INTERNAL, f"the driver failed with {type(error).__name__}{hint()}", "failed"
    with suppress(OSError, DpscaleError):
        driver_status.change(
            path,
            lambda stands: allowed(stands) and stands["state"] in driver_status.AT_WORK,
            exit_code=code,
            state=state,
            error=text,
            working=None,
        )
    return code
