"""Status file `driver.json` of a submitted run, the only thing that `status` and `wait` read.

Two names make it reliable. Each submit creates `submission`: a driver's task that Dask restarts for an earlier one does
nothing. Each driver creates `driver` when it starts: a lost driver that is still alive, for example on a machine that
was suspended, finds another name, writes no more and stops. A lock protects changes of the file.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpscale.base.errors import JobError
from dpscale.runs.run import DRIVER_STATUS
from dpscale.storage.files import PARTIAL, is_local, open_in_place, read_bytes, remove, write_whole
from dpscale.storage.lock import where_locks_are

FILE, LOCK = DRIVER_STATUS, ".driver.lock"
BEAT_SECONDS, SILENT_SECONDS, POLL_SECONDS = 1.0, 60.0, 0.2
AT_WORK, ENDED = ("submitted", "running"), ("done", "failed", "cancelled", "stopped")

DriverStatus = dict[str, Any]


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
    known = state in AT_WORK or (state in ENDED and isinstance(status.get("exit_code"), int))
    works = working is None or (isinstance(working, dict) and working.keys() >= {"tasks", "done", "total"})
    return (
        known
        and works
        and isinstance(at, (int, float))
        and isinstance(status.get("submission"), str)
        and ("driver" in status)
    )


def change(path: Path, allowed: Callable[[DriverStatus], bool], **changes: Any) -> bool:
    """Change entries if `allowed(status)`; return whether it did."""
    with _locked(path):
        status = read(path)
        if not allowed(status):
            return False
        for partial in path.glob(f".{FILE}.*{PARTIAL}") if is_local(path) else ():  # of killed drivers
            remove(partial)
        write_whole(path / FILE, json.dumps(status | changes | {"at": time.time()}).encode())
        return True


def read_status(path: Path) -> DriverStatus:
    """Return the content of the file and whether a driver that should be working is silent.

    Clocks of machines differ, so a driver that seems silent by the clock is observed for a few heartbeats.
    """
    status = read(path)
    if not status:
        return {}
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
        if status != self._last:
            self._last, self._since = status, time.monotonic()
        return time.monotonic() - self._since > SILENT_SECONDS


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    if not is_local(path):  # an upload is atomic and names distinguish drivers, so a lock would not pay
        yield
        return
    descriptor = open_in_place(path / LOCK, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        with where_locks_are():
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
