"""Checks that a worker passes before a task of an engine runs on it, and the errors for those that do not.

A check has a question, a function that the worker calls and that returns a description of its fault or "", and an error
that names workers with their faults.
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from dpscale.base.display import format_bytes
from dpscale.base.error_redaction import AGAIN, FIELD
from dpscale.base.errors import DpscaleError, JobError, PlanError, TransientError
from dpscale.storage.files import is_local, place, write_whole
from dpscale.storage.lock import file_lock, is_free
from dpscale.storage.objects import is_url, opening

Workers = Mapping[str, Mapping[str, Any]]  # what the scheduler states about each worker
Question = tuple[Any, ...]  # a function that a worker calls, and its arguments
PACKAGES = ("dpscale", "dask", "distributed", "numpy", "pyarrow", "numba", "cryptography")
SHOWN = 3  # workers named in an error message
SAMPLE = 100  # files that every worker checks
BASE = 1 << 28  # bytes of a worker process after all libraries are loaded
ENDS = 1 << 16  # bytes read at each end of a file; they include most of a Parquet footer
FILE_PROBLEMS = ("read the file", "see the file")
TOKEN, LOCK = ".seen-", ".lock"  # the lock is a file of its own: some file systems forbid to read a locked one
VERSION_REMEDY = "install the same versions everywhere: see cluster/README.md"


class Check(Protocol):
    """A condition that a worker fulfils."""

    def questions(self) -> Any:
        """Return a context manager of the questions to ask; they can be answered within it."""

    def error(self, faults: Mapping[str, str]) -> DpscaleError:
        """Return the error for workers with their faults."""


@dataclass(frozen=True)
class SameVersions:
    """The versions of Python and packages are those of this process."""

    @contextmanager
    def questions(self) -> Iterator[list[Question]]:
        """Yield the question for the versions."""
        yield [(version_faults, installed_versions())]

    def error(self, faults: Mapping[str, str]) -> JobError:
        """Return the error that names the workers and their versions."""
        text = _describe_workers(faults, "has")
        return JobError(f"{FIELD}.scheduler", text, "the driver's versions", VERSION_REMEDY)


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages on which results depend."""
    return {"python": ".".join(platform.python_version().split(".")[:2])} | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    """Return the version of an installed distribution, or "missing"."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def version_faults(expected: Mapping[str, str]) -> str:
    """Return the versions of this process that differ from the expected ones; "" if none does."""
    here = installed_versions()
    differing = [(name, here.get(name, "missing"), one) for name, one in expected.items() if here.get(name) != one]
    return ", ".join(f"{name} {found} (here {wanted})" for name, found, wanted in differing)


@dataclass(frozen=True)
class SameFiles:
    """A worker can work in a folder as this process does, and reads the same files.

    A temporary token with the permissions of a release's noise key is written there; only its owner may read it.
    """

    folder: Path
    files: tuple[str, ...]

    @contextmanager
    def questions(self) -> Iterator[list[Question]]:
        """Yield the question for the folder and the first SAMPLE files; none if the folder was removed since."""
        if is_local(self.folder) and not self.folder.is_dir():
            yield []
            return
        content = secrets.token_bytes(16)
        with _written_token(self.folder, content) as token:
            fingerprints = {file: file_fingerprint(file, content) for file in self.files[:SAMPLE]}
            yield [(worker_problem, str(token), content, fingerprints)]

    def error(self, faults: Mapping[str, str]) -> JobError:
        """Return the error that names the workers and what they cannot do."""
        of_data = all(fault.startswith(FILE_PROBLEMS) for fault in faults.values())
        return JobError("data.path" if of_data else "run directory", _describe_workers(faults, "cannot"),
                        "the same paths on every machine, for the same user",
                        "mount a shared file system, or run workers as this user")  # fmt: skip


@contextmanager
def _written_token(folder: Path, content: bytes) -> Iterator[Path]:
    """Write a token, yield its path and remove it, with those of killed drivers: a live driver locks its own."""
    token = folder / f"{TOKEN}{secrets.token_hex(8)}"
    try:
        if not is_local(token):
            write_whole(token, content)
            yield token
            return

        _remove_tokens(folder)
        with file_lock(token.with_suffix(LOCK)):
            with os.fdopen(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # workers on other machines read it now
            yield token
    finally:
        for path in (token, token.with_suffix(LOCK)) if is_local(token) else (token,):
            path.unlink(missing_ok=True)


def _remove_tokens(folder: Path) -> None:
    """Remove the tokens of killed drivers, whose lock is free; none where there are no locks."""
    for lock in folder.glob(f"{TOKEN}*{LOCK}"):
        token = lock.with_suffix("")
        with suppress(OSError):
            if is_free(lock) and token.exists():  # without a token, the lock is about to be taken
                for path in (token, lock):
                    path.unlink(missing_ok=True)


def file_fingerprint(file: str, key: bytes) -> bytes:
    """Return a keyed hash of the size and both ends of a file; empty if it is unreadable or a folder.

    The key is used once.
    """
    hasher = hashlib.blake2b(key=key)
    try:
        with opening(file, ENDS) as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(0)
            hasher.update(b"%d:" % size + opened.read(ENDS))
            opened.seek(max(size - ENDS, 0))
            hasher.update(opened.read(ENDS))
    except (OSError, DpscaleError):
        return b""

    return hasher.digest()


def worker_problem(token: str, content: bytes, fingerprints: Mapping[str, bytes]) -> str:
    """Return a description of the first thing that this worker cannot do; "" if there is none. Runs on the worker.

    Parameters
    ----------
    token : str
        Path of a file that the driver wrote.
    content : bytes
        Content of the token.
    fingerprints : mapping of str to bytes
        Fingerprint of each file, computed by the driver.
    """
    folder, path = os.path.dirname(token), place(token)
    try:
        if path.read_bytes() != content:
            return f"see {folder} as the driver sees it"
    except PermissionError:
        return f"read files in {folder} that only their owner can read"
    except OSError:
        return f"see {folder}"
    except Exception as error:  # error of a store's client, whose text may contain keys
        return f"reach {folder} ({type(error).__name__})"

    if is_local(path) and not os.access(folder, os.W_OK | os.X_OK):
        return f"write in {folder}"

    for file, expected in fingerprints.items():
        if not is_url(file) and not os.access(file, os.R_OK):
            return f"{FILE_PROBLEMS[0]} {file}"
        if file_fingerprint(file, content) != expected:
            return f"{FILE_PROBLEMS[1]} {file} as the driver sees it"

    return ""


def check_worker_memory(workers: Workers, needed: int, what: str) -> None:
    """Raise PlanError if a task needs more bytes than the smallest worker has per thread.

    BASE is left for the process itself. Workers without a limit are not checked.
    """
    capacities = {
        worker: max(info["memory_limit"] - BASE, 0) // info["nthreads"]
        for worker, info in workers.items()
        if info.get("memory_limit")
    }
    if not capacities:
        return

    smallest = min(capacities, key=lambda worker: capacities[worker])
    if needed > capacities[smallest]:
        raise PlanError(
            f"{FIELD}.memory",
            f"a task on {what} needs {format_bytes(needed)}",
            f"at most the {format_bytes(capacities[smallest])} that worker {smallest} has for each of its threads",
            "lower engine.memory, give workers more memory (--memory-limit) or fewer threads, or leave the set out",
        )


def smallest_declared(workers: Workers, resource: str) -> int | None:
    """Return the smallest amount of a resource that a worker declares; None unless all workers declare it."""
    amounts = [info.get("resources", {}).get(resource) for info in workers.values()]
    return None if not amounts or None in amounts else int(min(amounts))


def _describe_workers(faults: Mapping[str, str], verb: str) -> str:
    """Return a phrase that names the first SHOWN workers with their faults."""
    first = [f"worker {worker} {verb} {fault}" for worker, fault in list(faults.items())[:SHOWN]]
    more = len(faults) - len(first)
    return " and ".join([*first, *([f"{more} more workers"] if more else [])])


def unanswered(workers: Sequence[str], seconds: float) -> TransientError:
    """Return the error for workers that do not answer."""
    named = " and ".join([*workers[:SHOWN], *([f"{len(workers) - SHOWN} more"] if len(workers) > SHOWN else [])])
    return TransientError(FIELD, f"no answer within {seconds:g} s from worker{'s' * (len(workers) > 1)} {named}", "",
                          f"continue or end what is suspended, or start other workers, then {AGAIN}")  # fmt: skip
