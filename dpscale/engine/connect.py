"""Connection to a running scheduler, and checks of its address, its certificates and its workers."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import secrets
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from ipaddress import IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpscale.base.display import format_bytes
from dpscale.base.errors import DpscaleError, JobError, PlanError, TransientError
from dpscale.engine.watch import FIELD, cluster_errors, no_workers, worker_seconds
from dpscale.storage.files import is_local, place, write_whole
from dpscale.storage.lock import where_locks_are
from dpscale.storage.objects import is_url, opening

if TYPE_CHECKING:
    from distributed import Client, Security

PACKAGES = ("dpscale", "dask", "distributed", "numpy", "pyarrow", "numba", "cryptography")
SHOWN = 3  # workers named in an error message
SAMPLE = 100  # files that every worker checks
BASE = 1 << 28  # bytes of a worker process after all libraries are loaded
ENDS = 1 << 16  # bytes read at each end of a file; they include most of a Parquet footer
FILE_PROBLEMS = ("read the file", "see the file")
TOKEN, LOCKED_BYTE = ".seen-", 1 << 20  # beyond the content, because some file systems forbid to read locked bytes
VERSION_REMEDY = "install the same versions everywhere: see `dpscale help cluster-setup`"


def check_versions(client: Client, workers: list[str] | None = None) -> None:
    """Raise JobError if a version of some workers (default: all) differs from that of this process."""
    differing: dict[str, list[str]] = {}
    for name in ("python", *PACKAGES):
        here, there = _driver_version(name), _worker_versions(client, name, workers)
        for worker, installed in there.items():
            if installed != here:
                differing.setdefault(worker, []).append(f"{name} {installed} (here {here})")
    if differing:
        raise JobError(
            f"{FIELD}.scheduler", _describe_workers(differing, "has"), "the driver's versions", VERSION_REMEDY
        )


def _driver_version(name: str) -> str:
    return _minor(platform.python_version()) if name == "python" else version(name)


def _worker_versions(client: Client, name: str, workers: list[str] | None) -> dict[str, str]:
    """Return the version of each worker; workers that were lost during the request are omitted."""
    if name == "python":
        answers = client.run(platform.python_version, workers=workers, on_error="return")
    else:
        answers = client.run(version, name, workers=workers, on_error="return")
    versions = {worker: "missing" if isinstance(one, PackageNotFoundError) else one for worker, one in answers.items()}
    return {
        worker: _minor(one) if name == "python" else one for worker, one in versions.items() if isinstance(one, str)
    }


def _minor(text: str) -> str:
    return ".".join(text.split(".")[:2])


def check_file_access(client: Client, folder: Path, files: Sequence[str]) -> None:
    """Raise JobError if a worker cannot work in `folder` as the driver does, or cannot read some of the files.

    A temporary token with the permissions of a release's noise key is written there; only its owner may read it.
    """
    content = secrets.token_bytes(16)
    with _written_token(folder, content) as token:
        fingerprints = {file: file_fingerprint(file, content) for file in files[:SAMPLE]}
        with cluster_errors(client, "check"):  # only here: an error of the driver's disk is not an error of the cluster
            answers = client.run(worker_problem, str(token), content, fingerprints, on_error="return")
    problems = {worker: [problem] for worker, problem in answers.items() if isinstance(problem, str) and problem}
    if problems:
        raise JobError(
            "data.path"
            if all(problem.startswith(FILE_PROBLEMS) for [problem] in problems.values())
            else "run directory",
            _describe_workers(problems, "cannot"),
            "the same paths on every machine, for the same user",
            "mount a shared file system, or run workers as this user",
        )


@contextmanager
def _written_token(folder: Path, content: bytes) -> Iterator[Path]:
    """Write a token, yield its path and remove it, with those of killed drivers: a live driver locks its own."""
    token = folder / f"{TOKEN}{secrets.token_hex(8)}"
    _own_tokens.add(token.name)
    try:
        if not is_local(token):
            write_whole(token, content)
            yield token
            return
        _remove_tokens(folder)
        descriptor = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            with where_locks_are():
                fcntl.lockf(file, fcntl.LOCK_EX, 1, LOCKED_BYTE)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # workers on other machines read it while it is open here
            yield token
    finally:
        token.unlink(missing_ok=True)
        _own_tokens.discard(token.name)


_own_tokens: set[str] = set()  # of this process, which would get the locks of its own files


def _remove_tokens(folder: Path) -> None:
    """Remove the tokens of killed drivers, whose lock is free; none where there are no locks."""
    for token in (path for path in folder.glob(f"{TOKEN}*") if path.name not in _own_tokens):
        with suppress(OSError), open(token, "r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, LOCKED_BYTE)
            if os.fstat(file.fileno()).st_size:  # an empty one is about to be locked
                token.unlink()


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


def check_worker_memory(client: Client, needed: int, what: str) -> None:
    """Raise PlanError if a task needs more bytes than the smallest worker has per thread."""
    capacities = {
        worker: max(info["memory_limit"] - BASE, 0) // info["nthreads"]
        for worker, info in _workers(client).items()
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


def smallest_declared(client: Client, resource: str) -> int | None:
    """Return the smallest amount of a resource that a worker declares; None unless all workers declare it."""
    amounts = [info.get("resources", {}).get(resource) for info in _workers(client).values()]
    return None if not amounts or None in amounts else int(min(amounts))


def _workers(client: Client) -> Mapping[str, Any]:
    return dict(client.scheduler_info(n_workers=-1)["workers"])  # some versions return five workers by default


def _describe_workers(findings: Mapping[str, Sequence[str]], verb: str) -> str:
    """Return a phrase that names the first SHOWN workers with their findings."""
    first = [f"worker {worker} {verb} {', '.join(items)}" for worker, items in list(findings.items())[:SHOWN]]
    more = len(findings) - len(first)
    return " and ".join([*first, *([f"{more} more workers"] if more else [])])


SCHEDULER_FIELD = "engine.scheduler"
CONNECT_SECONDS = 20
TLS = "distributed.comm.tls"
CLUSTER_DOCS = "see `dpscale help cluster-setup several-machines-with-tls`"
ADDRESSES = "tcp://HOST:PORT or tls://HOST:PORT"
ADDRESS = re.compile(r"(?:tcp|tls)://(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^][:/@\s]+)):(?P<port>[0-9]{1,5})")


def connect(address: str, seconds: float, expected: str = ADDRESSES) -> Client:
    """Return a client of the scheduler at an address; `expected` describes the accepted values in an error message."""
    if not _is_address(address):
        raise JobError(SCHEDULER_FIELD, f"{address!r}", expected, "fix it")
    from distributed import Client  # imported first: it adds its defaults to Dask's configuration

    _check_encryption(address)
    security = _security() if address.startswith("tls://") else None
    try:
        return Client(address, timeout=seconds, security=security, set_as_default=False)
    except ValueError:
        raise JobError(SCHEDULER_FIELD, f"{address!r}", expected, "fix it") from None
    except (OSError, TimeoutError) as error:
        raise _connection_error(address, error) from None


@contextmanager
def open_client(address: str) -> Iterator[Client]:
    """Yield a client of an existing cluster whose workers have passed the checks; close it afterwards."""
    client = connect(address, CONNECT_SECONDS)
    try:
        await_worker(client)
        check_versions(client)
        yield client
    finally:
        client.close()


def await_worker(client: Client) -> None:
    """Wait for a first worker; raise TransientError if none joins in time."""
    seconds = worker_seconds()
    try:
        client.wait_for_workers(1, timeout=seconds)
    except TimeoutError:
        raise no_workers(seconds) from None


def _is_address(address: str) -> bool:
    """Return whether Dask accepts the address; for an invalid one it would retry for long and end with a traceback."""
    matched = ADDRESS.fullmatch(address)
    if matched is None or not 0 < int(matched["port"]) < 2**16:
        return False
    try:
        IPv6Address(matched["v6"]) if matched["v6"] else matched["host"].encode("idna")
    except ValueError:
        return False
    return True


def _check_encryption(address: str) -> None:
    import dask

    if address.startswith("tcp://") and dask.config.get("distributed.comm.require-encryption", None):
        raise JobError(SCHEDULER_FIELD, f"{address}, but Dask's configuration requires encryption",
                       "tls://HOST:PORT", f"use the TLS address of the scheduler: {CLUSTER_DOCS}")  # fmt: skip


def _security() -> Security:
    """Return the TLS settings of Dask's configuration; raise JobError if they are incomplete or unusable."""
    import dask
    from distributed import Security

    where = {"ca-file": f"{TLS}.ca-file", "cert": f"{TLS}.client.cert", "key": f"{TLS}.client.key"}
    missing = [name for name in where.values() if not dask.config.get(name, None)]
    if missing:
        raise _certificate_error(f"tls:// without {' and '.join(missing)} in Dask's configuration")
    try:
        security = Security()
        security.get_connection_args("client")
    except (OSError, ValueError) as error:
        broken = "unreadable or not a matching pair"
        kind = broken if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None) or broken
        raise _certificate_error(f"the certificates in Dask's configuration cannot be used ({kind})") from None
    return security


def _certificate_error(got: str) -> JobError:
    return JobError(SCHEDULER_FIELD, got, "files of a certificate authority, a client certificate and its key",
                    "create them and set them in Dask's configuration: "
                    f"{CLUSTER_DOCS}")  # fmt: skip


def _connection_error(address: str, error: BaseException) -> JobError | TransientError:
    if any(isinstance(one, ssl.SSLError) or "SSL" in str(one) for one in _causes(error)):
        return JobError(SCHEDULER_FIELD, f"{address} and this client do not accept each other's certificates",
                        "certificates of one authority for both",
                        f"use the certificates of this cluster: {CLUSTER_DOCS}")  # fmt: skip
    other = "tls://" if address.startswith("tcp://") else "tcp://"
    return TransientError(
        SCHEDULER_FIELD,
        f"no answer from {address} ({type(error).__name__})",
        "the address of a running Dask scheduler",
        f"start it, or check host and port, or try {other}",
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
