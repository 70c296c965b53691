"""Lock that allows one process at a time in a run directory.

In a folder it is an operating system lock, which is released when the process ends; on a file system without locks
there is none. In a store it is an object that only one process can create. The owner renews it every few seconds, and
an object not renewed for a minute belongs to a dead process. If locks are missing, clocks or networks fail, or two
processes take over a dead one's lock at the same moment, two processes may work in one directory. Even then they draw
the same noise, an adaptive round has one decision (the first one written), and the ledger accepts one charge.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from dpscale.base.errors import TransientError
from dpscale.storage.files import create, is_local, open_in_place, read_bytes, store_errors, write_whole

NAME = ".lock"
BEAT_SECONDS, STALE_SECONDS = 10.0, 60.0
GLANCE_SECONDS = 0.2  # longer than `free` locks the file
TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the directory. Raises TransientError if another process is working in it."""
    with _file_lock(folder) if is_local(folder) else _object_lock(folder):
        yield


def free(folder: Path) -> bool:
    """Return whether no process is known to work in the directory.

    Local locks are visible on this machine only, unless the file system shares them. Without locks the answer is False.
    """
    if not is_local(folder):
        with suppress(FileNotFoundError):
            return _stale(read_bytes(folder / NAME))
        return True
    try:
        with open(folder / NAME) as file:
            return _locks(file, fcntl.LOCK_SH)
    except OSError as error:
        return isinstance(error, FileNotFoundError)


@contextmanager
def where_locks_are() -> Iterator[None]:
    """Ignore that a file system has no locks, such as Lustre or FUSE mounted without them."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


@contextmanager
def _file_lock(folder: Path) -> Iterator[None]:
    with os.fdopen(open_in_place(folder / NAME, os.O_WRONLY | os.O_CREAT), "w") as file:
        with where_locks_are():
            _wait_for(file, folder)
        yield


def _wait_for(file: IO[str], folder: Path) -> None:
    end = time.monotonic() + GLANCE_SECONDS
    while not _locks(file, fcntl.LOCK_EX):
        if time.monotonic() > end:
            raise _taken(folder)
        time.sleep(GLANCE_SECONDS / 10)


def _locks(file: IO[str], kind: int) -> bool:
    """Try to lock the file until it is closed; return whether it succeeded. Raises OSError if there are no locks."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in TAKEN:
            raise
        return False
    return True


@contextmanager
def _object_lock(folder: Path) -> Iterator[None]:
    path, owner = folder / NAME, secrets.token_hex(8)
    if not _made(path, owner):
        with store_errors(path), suppress(FileNotFoundError):
            if not _stale(signature := read_bytes(path)):
                raise _taken(folder)
            if read_bytes(path) == signature:
                path.unlink()
        if not _made(path, owner):
            raise _taken(folder)

    ended = threading.Event()
    thread = threading.Thread(target=_beat, args=(path, owner, ended), daemon=True)
    thread.start()

    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(TransientError, FileNotFoundError), store_errors(path):
            if _owned(path, owner):
                path.unlink()


def _beat(path: Path, owner: str, ended: threading.Event) -> None:
    """Renew the lock until the end, or until another process has taken it over as stale."""
    while not ended.wait(BEAT_SECONDS):
        with suppress(TransientError, FileNotFoundError):
            if not _owned(path, owner):
                return
            write_whole(path, _sign(owner))


def _made(path: Path, owner: str) -> bool:
    """Return whether this process created the lock.

    This includes a lock created by a first request whose answer was lost and which the driver repeated.
    """
    with suppress(FileNotFoundError):
        return create(path, _sign(owner)) or _owned(path, owner)
    return False


def _owned(path: Path, owner: str) -> bool:
    return _entries(read_bytes(path)).get("owner") == owner


def _sign(owner: str) -> bytes:
    signature = {"owner": owner, "host": socket.gethostname(), "pid": os.getpid(), "at": time.time()}
    return json.dumps(signature).encode()


def _entries(content: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError):
        return {}


def _stale(content: bytes) -> bool:
    return time.time() - float(_entries(content).get("at", 0.0)) > STALE_SECONDS


def _taken(folder: Path) -> TransientError:
    return TransientError(
        "run directory", f"another process works in {folder}", "one process at a time", "wait for it to end"
    )
