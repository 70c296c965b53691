"""Connection to a running scheduler, and checks of its address, its certificates and its workers."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

from dpscale.base.display import sized
from dpscale.base.errors import DpscaleError, JobError, PlanError, TransientError
from dpscale.engine.waiting import FIELD, dependable, no_workers, worker_seconds
from dpscale.storage.files import is_local, place, write_whole
from dpscale.storage.objects import is_url, opening

PACKAGES = ("dpscale", "dask", "distributed", "numpy", "pyarrow", "numba", "cryptography")
SHOWN = 3  # workers that a sentence names
SAMPLE = 100  # files that every worker is asked for
BASE = 1 << 28  # bytes that a worker has of its own, once all libraries are loaded
ENDS = 1 << 16  # bytes at either end of a file that are looked at: most of a Parquet file's footer is there
DATA = ("read the file", "see the file")
SAME = "install the same versions everywhere: see cluster/README.md"


def check_versions(client: Any, workers: list[str] | None = None) -> None:
    """Raise JobError if a version of some workers (default: all) differs from that of this process."""
    differing: dict[str, list[str]] = {}
    for name in ("python", *PACKAGES):
        here, there = _here(name), _there(client, name, workers)
        for worker, installed in there.items():
            if installed != here:
                differing.setdefault(worker, []).append(f"{name} {installed} (here {here})")
    if differing:
        raise JobError(f"{FIELD}.scheduler", _listed(differing, "has"), "the driver's versions", SAME)


def _here(name: str) -> str:
    return _minor(platform.python_version()) if name == "python" else version(name)


def _there(client: Any, name: str, workers: list[str] | None) -> dict[str, str]:
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


def check_sight(client: Any, folder: Path, files: Sequence[str]) -> None:
    """Raise JobError if a worker cannot work in `folder` as the driver does, or cannot read some of the files.

    A temporary token with the permissions of a release's noise key is written there; only its owner may read it.
    """
    token = folder / f".seen-{secrets.token_hex(8)}"
    content = secrets.token_bytes(16)
    try:
        _put(token, content)
        faces = {file: face(file, content) for file in files[:SAMPLE]}
        with dependable(client, "check"):  # and no more: this disk's errors are not the cluster's
            answers = client.run(blind_spot, str(token), content, faces, on_error="return")
    finally:
        token.unlink(missing_ok=True)
    blind = {worker: [blindness] for worker, blindness in answers.items() if isinstance(blindness, str) and blindness}
    if blind:
        raise JobError(
            "data.path" if all(blindness.startswith(DATA) for [blindness] in blind.values()) else "run directory",
            _listed(blind, "cannot"),
            "paths that are the same on every machine, for the same user",
            "mount a shared file system, or run workers as this user",
        )


def _put(token: Path, content: bytes) -> None:
    if not is_local(token):
        write_whole(token, content)
        return
    descriptor = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def face(file: str, key: bytes) -> bytes:
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


def blind_spot(token: str, content: bytes, faces: Mapping[str, bytes]) -> str:
    """Return a description of the first thing that this worker cannot do; "" if there is none. Runs on the worker.

    Parameters
    ----------
    token : str
        Path of a file that the driver wrote.
    content : bytes
        Content of the token.
    faces : mapping of str to bytes
        Fingerprint of each file, computed by the driver.
    """
    folder, path = os.path.dirname(token), place(token)
    try:
        if path.read_bytes() != content:
            return f"see {folder} as it is here"
    except PermissionError:
        return f"read what only its owner may read in {folder}"
    except OSError:
        return f"see {folder}"
    except Exception as error:  # of a store's driver, whose text may tell keys
        return f"reach {folder} ({type(error).__name__})"
    if is_local(path) and not os.access(folder, os.W_OK | os.X_OK):
        return f"write in {folder}"
    for file, seen in faces.items():
        if not is_url(file) and not os.access(file, os.R_OK):
            return f"{DATA[0]} {file}"
        if face(file, content) != seen:
            return f"{DATA[1]} {file} as it is here"
    return ""


def check_room(client: Any, needed: int, what: str) -> None:
    """Raise PlanError if a task needs more bytes than the smallest worker has per thread."""
    rooms = {
        worker: max(info["memory_limit"] - BASE, 0) // info["nthreads"]
        for worker, info in _workers(client).items()
        if info.get("memory_limit")
    }
    if not rooms:
        return
    smallest = min(rooms, key=lambda worker: rooms[worker])
    if needed > rooms[smallest]:
        raise PlanError(
            f"{FIELD}.memory",
            f"a task on {what} needs {sized(needed)}",
            f"at most the {sized(rooms[smallest])} that worker {smallest} has for each of its threads",
            "set less, give workers more (--memory-limit) or fewer threads, or leave the set out",
        )


def declared(client: Any, resource: str) -> int | None:
    """Return the smallest amount of a resource that a worker declares; None unless all workers declare it."""
    amounts = [info.get("resources", {}).get(resource) for info in _workers(client).values()]
    return None if not amounts or None in amounts else int(min(amounts))


def _workers(client: Any) -> Mapping[str, Any]:
    return dict(client.scheduler_info(n_workers=-1)["workers"])  # some versions tell of five workers only


def _listed(findings: Mapping[str, Sequence[str]], verb: str) -> str:
    """Return a phrase that names the first SHOWN workers with their findings."""
    first = [f"worker {worker} {verb} {', '.join(whats)}" for worker, whats in list(findings.items())[:SHOWN]]
    more = len(findings) - len(first)
    return " and ".join([*first, *([f"{more} more workers"] if more else [])])


SCHEDULER_FIELD = "engine.scheduler"
CONNECT_SECONDS = 20
TLS = "distributed.comm.tls"
HOW = "see cluster/README.md"
ADDRESSES = "tcp://HOST:PORT or tls://HOST:PORT"
ADDRESS = re.compile(r"(?:tcp|tls)://(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^][:/@\s]+)):(?P<port>[0-9]{1,5})")


def connect(address: str, seconds: float, takes: str = ADDRESSES) -> Any:
    """Return a client of the scheduler at an address; `takes` describes the accepted values in an error message."""
    if not _is_address(address):
        raise JobError(SCHEDULER_FIELD, f"{address!r}", takes, "fix it")
    from distributed import Client  # first: it adds its defaults to Dask's configuration

    _check_encryption(address)
    security = _security() if address.startswith("tls://") else None
    try:
        return Client(address, timeout=seconds, security=security, set_as_default=False)
    except ValueError:
        raise JobError(SCHEDULER_FIELD, f"{address!r}", takes, "fix it") from None
    except (OSError, TimeoutError) as error:
        raise _refused(address, error) from None


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Yield a client of an existing cluster whose workers have passed the checks; close it afterwards."""
    client = connect(address, CONNECT_SECONDS)
    try:
        await_worker(client)
        check_versions(client)
        yield client
    finally:
        client.close()


def await_worker(client: Any) -> None:
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
        raise JobError(SCHEDULER_FIELD, f"{address}, where Dask's configuration says require-encryption", "tls://HOST:PORT",
                       f"use the scheduler's tls address: {HOW}")  # fmt: skip


def _security() -> Any:
    """Return the TLS settings of Dask's configuration; raise JobError if they are incomplete or unusable."""
    import dask
    from distributed import Security

    where = {"ca-file": f"{TLS}.ca-file", "cert": f"{TLS}.client.cert", "key": f"{TLS}.client.key"}
    missing = [name for name in where.values() if not dask.config.get(name, None)]
    if missing:
        raise _no_certificates(f"tls:// without {' and '.join(missing)} in Dask's configuration")
    try:
        security = Security()
        security.get_connection_args("client")
    except (OSError, ValueError) as error:
        broken = "unreadable or not of one pair"
        kind = broken if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None) or broken
        raise _no_certificates(f"the certificates in Dask's configuration cannot be used ({kind})") from None
    return security


def _no_certificates(got: str) -> JobError:
    return JobError(SCHEDULER_FIELD, got, "files of a certificate authority, a client certificate and its key",
                    f"make them by cluster/certificates.py and name them in Dask's configuration: {HOW}")  # fmt: skip


def _refused(address: str, error: BaseException) -> JobError | TransientError:
    if any(isinstance(one, ssl.SSLError) or "SSL" in str(one) for one in _causes(error)):
        return JobError(SCHEDULER_FIELD, f"{address} and this client do not accept each other's certificates",
                        "certificates of one authority for both", f"use those of this cluster: {HOW}")  # fmt: skip
    other = "tls://" if address.startswith("tcp://") else "tcp://"
    return TransientError(
        SCHEDULER_FIELD,
        f"no answer from {address} ({type(error).__name__})",
        "the address of a running Dask scheduler",
        f"start it, or check host and port, and whether it is {other}",
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
