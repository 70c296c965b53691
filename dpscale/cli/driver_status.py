"""`driver.json`: what a submitted run's driver tells of itself, the only thing that `status` and `wait` look at.

Two names keep it true. `submission` is drawn by each submit: a driver's task that Dask starts for an older one does
nothing. `driver` is drawn by each driver as it begins: one that was lost and lives on, maybe on a machine that only
hung, finds another's name there, writes no more and stops. Who changes the file holds a lock for the moment.
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
from dpscale.storage.files import is_local, read_bytes, write_whole
from dpscale.storage.lock import where_locks_are

FILE, LOCK = "driver.json", ".driver.lock"
BEAT_SECONDS, SILENT_SECONDS, POLL_SECONDS = 1.0, 60.0, 0.2
AT_WORK, ENDED = ("submitted", "running"), ("done", "failed", "cancelled", "stopped")

Signs = dict[str, Any]


def read(path: Path) -> Signs:
    """What the file says; empty where the run was never submitted, an error where nobody can tell now.

    JobError where no driver wrote it.
    """
    try:
        signs = json.loads(read_bytes(path / FILE))
    except FileNotFoundError:
        return {}
    except ValueError:
        signs = None
    if not isinstance(signs, dict) or not _whole(signs):
        raise JobError("run directory", f"{FILE} in {path} is damaged", "the file as the driver wrote it",
                       "remove it and submit again: the run goes on where it stopped")  # fmt: skip
    return signs


def _whole(signs: Signs) -> bool:
    """Whether there is in it what its readers rely on."""
    state, at, working = signs.get("state"), signs.get("at"), signs.get("working")
    known = state in AT_WORK or (state in ENDED and isinstance(signs.get("exit_code"), int))
    works = working is None or (isinstance(working, dict) and working.keys() >= {"tasks", "done", "total"})
    return (
        known
        and works
        and isinstance(at, (int, float))
        and isinstance(signs.get("submission"), str)
        and ("driver" in signs)
    )


def change(path: Path, allowed: Callable[[Signs], bool], **changes: Any) -> bool:
    """Change entries where what stands there allows it; whether it did."""
    with _locked(path):
        signs = read(path)
        if not allowed(signs):
            return False
        write_whole(path / FILE, json.dumps(signs | changes | {"at": time.time()}).encode())
        return True


def read_status(path: Path) -> Signs:
    """What the file says, and whether a driver that should be at work has been silent for long.

    Machines' clocks differ, so one that seems silent by the clock is listened to for a few beats.
    """
    signs = read(path)
    if not signs:
        return {}
    silent = signs["state"] in AT_WORK and not 0 <= time.time() - signs["at"] <= SILENT_SECONDS
    if silent:
        end = time.monotonic() + 3 * BEAT_SECONDS
        while time.monotonic() < end and read(path) == signs:
            time.sleep(POLL_SECONDS)
        signs = read(path) or signs
        silent = signs["at"] == read(path).get("at") and time.monotonic() >= end
    return signs | {"silent": silent}


def at_work(signs: Signs) -> bool:
    """Whether a driver works, by what `told` found."""
    return bool(signs) and signs["state"] in AT_WORK and not signs["silent"]


class Silence:
    """How long signs have not changed, by the clock of who looks."""

    def __init__(self) -> None:
        self._last: Signs = {}
        self._since = time.monotonic()

    def too_long(self, signs: Signs) -> bool:
        if signs != self._last:
            self._last, self._since = signs, time.monotonic()
        return time.monotonic() - self._since > SILENT_SECONDS


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    if not is_local(path):  # an upload is whole by itself, and names tell drivers apart: a lock would cost more
        yield
        return
    descriptor = os.open(path / LOCK, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        with where_locks_are():
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
