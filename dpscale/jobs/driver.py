"""A run driven on the cluster: `dpscale submit` and what asks about it afterwards.

The driver is one task on a worker, which leaves the worker's thread and submits the stages' tasks from there; the
laptop that submitted it may go. All it has and leaves is the run directory: `driver.json` says where it was submitted,
its latest sign of life and how it ended. A driver lost with its worker is started again by Dask, and goes on where the
run directory says. Two drivers never work in one run directory (its lock), nor on one ledger at a time (its
transactions); the ledger's file must be on a disk of the machine where the driver runs, so that machine's workers
declare the resource DRIVER, or the cluster is one machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpscale.errors import DpscaleError, JobError, TransientError
from dpscale.jobs.rundir import RunDirectory
from dpscale.places import place, write_whole

RESOURCE = "DRIVER"
FILE, STOP = "driver.json", "cancel"
BEAT_SECONDS, SILENT_SECONDS, POLL_SECONDS = 1.0, 60.0, 0.2
INTERNAL = 70


def submit(run: RunDirectory, client: Any) -> dict[str, Any]:
    """Start the driver of a run on a cluster; what `driver.json` says then. A run that is driven is left alone."""
    from distributed import fire_and_forget

    known = told(run.path)
    if known.get("state") in ("submitted", "running") and not known["silent"]:
        return known
    (run.path / STOP).unlink(missing_ok=True)
    address = client.scheduler.address
    _tell(run.path, state="submitted", scheduler=address, host=None, exit_code=None, error=None, working=None)
    declared = any(RESOURCE in worker.get("resources", {}) for worker in client.scheduler_info()["workers"].values())
    future = client.submit(drive, str(run.path), key=_key(run.path), pure=False, retries=3,
                           resources={RESOURCE: 1} if declared else None)  # fmt: skip
    fire_and_forget(future)
    return told(run.path)


def drive(path: str) -> int:
    """The driver's task: all stages that are left; its exit code, which `driver.json` keeps."""
    from distributed import worker_client

    from dpscale.jobs.release import run_stages

    folder = place(path)
    if not (folder / "manifest.json").exists():  # nothing can be told there
        raise JobError("run directory", f"{path} is not seen by the workers", "a directory on shared storage",
                       "choose another --run-dir")  # fmt: skip
    try:
        with Heart(folder) as heart, worker_client(separate_thread=True) as client:
            run_stages(RunDirectory(folder), client=client, progress=heart)
    except DpscaleError as error:
        return _ended(folder, "failed", error.exit_code, str(error))
    except Exception as error:  # its text may tell of records
        return _ended(folder, "failed", INTERNAL, f"the driver failed with {type(error).__name__}")
    return _ended(folder, "done", 0, None)


class Heart:
    """A progress function that leaves signs of life in the run directory, and stops where it is asked to."""

    def __init__(self, path: Path) -> None:
        self.path, self._working, self._ended = path, dict[str, Any](), threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Heart:
        _tell(self.path, state="running", host=socket.gethostname(), exit_code=None, error=None)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def __call__(self, label: str, done: int, total: int) -> None:
        self._working = {"tasks": label, "done": done, "total": total}
        if (self.path / STOP).exists():
            raise TransientError("run", "cancelled", "", "submit it again: it goes on where it stopped")

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(OSError):
                _tell(self.path, state="running", working=self._working or None)


def told(path: Path) -> dict[str, Any]:
    """What `driver.json` says, and whether a driver that should be at work has been silent for a minute."""
    try:
        found = dict(json.loads((path / FILE).read_text()))
    except (OSError, ValueError):
        return {}
    return found | {"silent": time.time() - found["at"] > SILENT_SECONDS and found["state"] in ("submitted", "running")}


def wait(path: Path, seconds: float | None = None) -> int:
    """Until the run ends: its exit code. TransientError when its driver is silent, or after so many seconds."""
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        found = told(path)
        if not found:
            raise JobError("run directory", f"{path} was never submitted", "a run that `dpscale submit` began",
                           "submit it, or run it here")  # fmt: skip
        if found["state"] in ("done", "failed"):
            return int(found["exit_code"])
        if found["silent"]:
            raise TransientError("run", "its driver has given no sign of life for a minute", "",
                                 "see whether the cluster is up, and submit it again: it goes on there")  # fmt: skip
        if end is not None and time.monotonic() > end:
            raise TransientError("run", f"not done after {seconds:g} seconds", "", "wait on")
        time.sleep(POLL_SECONDS)


def cancel(path: Path) -> None:
    """Ask the driver to stop at its next task; what is measured stays, and a later submit goes on from there."""
    if told(path).get("state") in ("submitted", "running"):
        write_whole(path / STOP, b"")


def _ended(path: Path, state: str, code: int, error: str | None) -> int:
    _tell(path, state=state, exit_code=code, error=error, working=None)
    return code


def _tell(path: Path, **changes: Any) -> None:
    old = told(path)
    old.pop("silent", None)
    write_whole(path / FILE, json.dumps(old | changes | {"at": time.time(), "pid": os.getpid()}).encode())


def _key(path: Path) -> str:
    return f"dpscale-driver-{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
