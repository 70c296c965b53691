"""Lock that allows one process at a time in a run directory.

In a folder it is a lock of the operating system (by `filelock`), which is released when the process ends; on a file
system without locks there is none. In a store it is an object that only one process can create. The owner renews it
every few seconds, and an object not renewed for a minute belongs to a dead process. If locks are missing, clocks or
networks fail, or two processes take over a dead one's lock at the same moment, two processes may work in one directory.
Even then they draw the same noise, an adaptive round has one decision (the first one written), and the ledger accepts
one charge.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpscale.base.errors import TransientError
from dpscale.storage.files import create, is_local, open_in_place, read_bytes, store_errors, write_whole

NAME = ".lock"
BEAT_SECONDS, STALE_SECONDS = 10.0, 60.0  # between renewals of a lock in a store; age at which its owner counts as dead
GLANCE_SECONDS, POLL_SECONDS = 0.2, 0.01  # longer than `free` locks the file; between attempts to lock one
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the directory. Raises TransientError if another process is working in it."""
    with _folder_lock(folder) if is_local(folder) else _object_lock(folder):
        yield


def free(folder: Path) -> bool:
    """Return whether no process is known to work in the directory.

    Local locks are visible on this machine only, unless the file system shares them. Without locks the answer is False.
    """
    if is_local(folder):
        return is_free(folder / NAME)
    with suppress(FileNotFoundError):
        return _stale(read_bytes(folder / NAME))
    return True


def is_free(path: Path) -> bool:
    """Return whether no process is known to lock a local file. Without locks, or for a locked file, False."""
    try:
        descriptor = os.open(path, os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        return acquired(descriptor, 2 * POLL_SECONDS)  # another process may ask the same at this moment
    except OSError:
        return False
    finally:
        os.close(descriptor)


def acquired(descriptor: int, seconds: float = math.inf) -> bool:
    """Lock an open local file until it is closed; return whether it was free within some seconds.

    Raises OSError if there are no locks.
    """
    from filelock import lock_descriptor

    end = time.monotonic() + seconds
    while not lock_descriptor(descriptor, blocking=False):
        if time.monotonic() > end:
            return False
        time.sleep(POLL_SECONDS)
    return True


@contextmanager
def where_locks_are() -> Iterator[None]:
    """Ignore that a file system has no locks, such as Lustre or FUSE mounted without them."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


@contextmanager
def file_lock(path: Path, seconds: float = math.inf, mode: int = 0o666) -> Iterator[bool]:
    """Lock a local file, which is created if missing; yield False if another process has locked it all that time."""
    descriptor = open_in_place(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        taken = True
        with where_locks_are():
            taken = acquired(descriptor, seconds)
        yield taken
    finally:
        os.close(descriptor)


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Lock the folder while the context is active. Raises an error if another process has locked it."""
    with file_lock(folder / NAME, GLANCE_SECONDS) as taken:
        if not taken:
            raise _taken(folder)
        yield


@contextmanager
def _object_lock(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder of an object store, as an object that names its owner and is renewed by a thread.

    A lock that was not renewed for some time is stale and is taken over.
    """
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
    """Return the entries of a lock object; none if it is incomplete or damaged."""
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
