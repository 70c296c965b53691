"""Permitted locations of a ledger: a local disk of the driver's machine or a PostgreSQL server.

SQLite's WAL mode requires shared memory between processes, which network file systems do not provide: two machines
could each admit a charge that only one of them may spend. Such a location is refused before anything is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from dpscale.base.display import quantity
from dpscale.base.errors import JobError
from dpscale.ledger.store import FIELD
from dpscale.storage.files import WINDOWS, checked_path
from dpscale.storage.objects import slashed

SCHEME = "postgresql"
TAKES = "a file, or postgresql://HOST/DATABASE"
OPTIONS = ("host", "port", "sslmode", "sslrootcert")  # none of them a secret
FROM_ENVIRONMENT = "leave them out and set PGUSER and PGPASSWORD, or PGPASSFILE, in the environment"
NUL = "\0"


def is_address(ledger: object) -> bool:
    """Return whether `ledger` is written as an address of any scheme rather than as a path."""
    return isinstance(ledger, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", ledger) is not None


def checked_address(ledger: str) -> str:
    """Return the address unchanged. Raises JobError if it is invalid or contains credentials."""
    connection(ledger)
    return ledger


def connection(ledger: str) -> dict[str, Any]:
    """Return the libpq parameters of an address: host, port, dbname and its options, those that are not empty.

    Raises JobError like `checked_address`.
    """
    try:
        parts = urlsplit(ledger)
        # older versions of Python refuse an empty query when they parse strictly
        port, strict = parts.port, bool(parts.query)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=strict))
    except ValueError:  # the text of the error would repeat the address
        raise _refused("an address that cannot be read", "fix it") from None
    _check(ledger, parts.scheme, "@" in parts.netloc or bool(parts.fragment), options)
    database = unquote(parts.path.removeprefix("/"))
    if not database or "/" in database or NUL in database or "=" in database:
        raise _refused("an address without a database", "add one: postgresql://HOST/DATABASE")
    parameters = {"host": unquote(parts.hostname or ""), "port": str(port or ""), "dbname": database}
    return {name: value for name, value in (parameters | options).items() if value}


def _check(ledger: str, scheme: str, credentials: bool, options: dict[str, str]) -> None:
    """Raise JobError for an address with another scheme, with secrets, or with options that are not permitted.

    `credentials` states whether the address has a user name or a fragment, which may be part of a password.
    """
    if scheme != SCHEME:
        raise _refused(f"an address of {scheme}://", f"write {SCHEME}://, or the path of a file")
    if credentials or {"user", "password", "passfile"} & options.keys():
        raise _refused("an address with a user name or a password", FROM_ENVIRONMENT)
    unknown = options.keys() - set(OPTIONS)
    if unknown:
        raise _refused(
            f"an address with {quantity(len(unknown), 'unknown option')}",
            f"use {', '.join(OPTIONS)}; libpq reads the others from the environment",
        )
    if not ledger.isprintable():
        raise _refused("an address with an invalid character", "fix it")


def _refused(got: str, remedy: str) -> JobError:
    return JobError(FIELD, f"got {got}", TAKES, remedy)


def driver() -> ModuleType:
    """Return the module psycopg. Raises JobError if it is not installed."""
    try:
        import psycopg
    except ImportError:
        raise JobError(FIELD, "names a PostgreSQL server, but psycopg is not installed",
                       "psycopg 3", 'install it: pip install "dpscale[postgres]"') from None  # fmt: skip
    return psycopg


INSTEAD = "DPSCALE_LEDGER"  # environment variable with the location of a moved ledger; overrides the job
REMOTE = "remote"  # a share of Windows
NETWORK = (
    "nfs", "cifs", "smb", "fuse.", "lustre", "ceph", "beegfs", "gpfs", "9p", "afs", "glusterfs", "ocfs2", "gfs2",
    "orangefs", "pvfs2", "panfs", "wekafs", "virtiofs", "davfs", "ncpfs", "coda", "acfs", "webdav", "macfuse",
    "osxfuse", REMOTE,
)  # fmt: skip


def resolved(folder: str | Path, ledger: str | os.PathLike[str]) -> str:
    """Return the absolute path of the ledger, relative to `folder`, or its address.

    Raises JobError for anything else.
    """
    if is_address(ledger):
        return checked_address(str(ledger))
    return os.path.normpath(os.path.join(str(folder), checked_path(ledger, FIELD)))


def standing(ledger: str) -> str:
    """Return the current location of a run's ledger: the one in the environment, or else the job's."""
    instead = os.environ.get(INSTEAD)
    return resolved(os.getcwd(), instead) if instead else ledger


def check_one_file(ledger: str | Path) -> None:
    """Raise JobError if the file has a second name (a hard link) or is itself a mount point.

    SQLite keys its journal by the name with which the file was opened. Processes that use two names of one file do not
    see each other's locks and charges, so each could admit a charge that only one of them may spend.
    """
    real = os.path.realpath(ledger)
    if os.path.isfile(real) and os.stat(real).st_nlink > 1 and not _alone_after_drafts(real):
        raise _second_name(ledger, "has a second name (a hard link)", "remove the other name, or name another file")
    if any(place == real for place, _ in mounts()):
        raise _second_name(ledger, "is a mount point of its own", "mount its folder, not the file")


def _alone_after_drafts(real: str) -> bool:
    """Return whether the file has one name after its leftover drafts (NAME.*.new) are removed.

    The process that creates a ledger has such a draft for a moment, or leaves it behind when it is killed.
    """
    folder, name = os.path.split(real)
    for entry in os.scandir(folder):
        if entry.name.startswith(f"{name}.") and entry.name.endswith(".new"):
            with suppress(FileNotFoundError):
                if os.path.samefile(entry.path, real):
                    os.unlink(entry.path)
    return os.stat(real).st_nlink == 1


def _second_name(ledger: str | Path, got: str, remedy: str) -> JobError:
    return JobError("privacy.ledger", f"{ledger} {got}", "a file with one name on a local disk", remedy)


def check_ledger_place(ledger: str | Path) -> None:
    """Raise JobError if the ledger's folder is on a network file system or the file has a second name.

    For an address, raise it if the address is invalid or psycopg is not installed.
    """
    if is_address(ledger):
        checked_address(str(ledger))
        driver()
        return
    kind = network_kind(str(ledger))
    if kind:
        raise refused(str(ledger), kind, "")
    check_one_file(ledger)


def refused(ledger: str, kind: str, where: str) -> JobError:
    """Return the error for a ledger on a network file system; `where` is appended and may name a worker."""
    return JobError("privacy.ledger", f"{ledger} is on a network file system ({kind}){where}",
                    "a file on a local disk of the machine where the driver runs", "choose another place")  # fmt: skip


def network_kind(ledger: str) -> str:
    """Return the kind of network file system of the (future) file; empty if the disk is local or unknown."""
    path = "" if is_address(ledger) else os.path.realpath(ledger)
    kind = REMOTE if path.startswith("\\\\") else kind_of(mounts(), path)
    return kind if kind.startswith(NETWORK) else ""


def mounts() -> list[tuple[str, str]]:
    """Return every mount point of this machine with its file system, in mount order; empty if unavailable."""
    import psutil

    try:
        return [(mount.mountpoint, REMOTE if REMOTE in mount.opts.split(",") and WINDOWS else mount.fstype)
                for mount in psutil.disk_partitions(all=True)]  # fmt: skip
    except (OSError, psutil.Error):
        return []


def kind_of(mounted: Iterable[tuple[str, str]], path: str) -> str:
    """Return the file system of an absolute path: that of its longest mount point, the last one mounted if several.

    `mounted` has the mount points with their file systems, in mount order (`mounts`).
    """
    longest, kind, path = "", "", slashed(os.path.normcase(path))
    for mount, file_system in mounted:
        place = slashed(os.path.normcase(mount))
        if len(place) >= len(longest) and (path + "/").startswith(place.rstrip("/") + "/"):
            longest, kind = place, file_system
    return "" if longest == "/" and kind == "9p" else kind  # a sandbox may report its local root disk as 9p
