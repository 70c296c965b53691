"""One process at a time in a run directory.

In a folder it is a lock of the operating system, which a dead process lets go. In a store it is an object that one
process can make; it is made new every few seconds, and one that has not been for a minute is of a dead process. Where
clocks or networks fail so badly that two processes work in one directory all the same, they draw the same noise, and an
adaptive round has one decision, the first that was written.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpscale.errors import TransientError
from dpscale.places import create, is_local, write_whole

NAME = ".lock"
BEAT_SECONDS, STALE_SECONDS = 10.0, 60.0


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """TransientError when another process is at work there."""
    with _file_lock(folder) if is_local(folder) else _object_lock(folder):
        yield


@contextmanager
def _file_lock(folder: Path) -> Iterator[None]:
    with open(folder / NAME, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _taken(folder) from None
        yield


@contextmanager
def _object_lock(folder: Path) -> Iterator[None]:
    path = folder / NAME
    if not create(path, _sign()):
        with suppress(FileNotFoundError):
            if not _stale(found := path.read_bytes()):
                raise _taken(folder)
            if path.read_bytes() == found:
                path.unlink()
        if not create(path, _sign()):
            raise _taken(folder)
    ended = threading.Event()
    thread = threading.Thread(target=_beat, args=(path, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        path.unlink()


def _beat(path: Path, ended: threading.Event) -> None:
    while not ended.wait(BEAT_SECONDS):
        with suppress(TransientError):
            write_whole(path, _sign())


def _sign() -> bytes:
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "at": time.time()}).encode()


def _stale(content: bytes) -> bool:
    try:
        return time.time() - float(json.loads(content)["at"]) > STALE_SECONDS
    except (ValueError, KeyError, TypeError):
        return True


def _taken(folder: Path) -> TransientError:
    return TransientError("run directory", f"another process works in {folder}", "one at a time", "wait for it to end")
