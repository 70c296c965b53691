"""Where a ledger may be: on a local disk of the machine where the driver runs, or on a PostgreSQL server.

SQLite's WAL mode lets processes share memory, which no network file system can give them: on one, two machines would
each admit what only one may spend, so such a place is refused before anything is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from dpscale.base.errors import JobError
from dpscale.ledger.store import FIELD
from dpscale.storage.files import checked_path

SCHEME = "postgresql"
TAKES = "a file, or postgresql://HOST/DATABASE"
OPTIONS = ("host", "port", "sslmode", "sslrootcert")  # none of them a secret
FROM_ENVIRONMENT = "leave them out and set PGUSER and PGPASSWORD, or PGPASSFILE, in the environment"
NUL = "\0"


def is_address(ledger: object) -> bool:
    """Whether it is written as an address, of whatever kind, and not as a path."""
    return isinstance(ledger, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", ledger) is not None


def checked_address(ledger: str) -> str:
    """The address as it is; JobError for what is none, or holds credentials."""
    connection(ledger)
    return ledger


def connection(ledger: str) -> dict[str, Any]:
    """What libpq is told of an address; JobError as `checked_address`."""
    try:
        parts = urlsplit(ledger)
        port, strict = parts.port, bool(parts.query)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=strict))
    except ValueError:  # its text would repeat the address
        raise _refused("an address that cannot be read", "mend it") from None
    _check(ledger, parts.scheme, "@" in parts.netloc or bool(parts.fragment), options)
    database = unquote(parts.path.removeprefix("/"))
    if not database or "/" in database or NUL in database or "=" in database:
        raise _refused("an address that names no database", "name one: postgresql://HOST/DATABASE")
    named = {"host": unquote(parts.hostname or ""), "port": str(port or ""), "dbname": database}
    return {name: value for name, value in (named | options).items() if value}


def _check(ledger: str, scheme: str, credentials: bool, options: dict[str, str]) -> None:
    if scheme != SCHEME:
        raise _refused(f"an address of {scheme}://", f"write {SCHEME}://, or the path of a file")
    if credentials or {"user", "password", "passfile"} & options.keys():
        raise _refused("an address with a user's name or a password in it", FROM_ENVIRONMENT)
    if strangers := sorted(options.keys() - set(OPTIONS)):
        raise _refused(f"an address with {len(strangers)} options that are not known",
                       f"keep to {', '.join(OPTIONS)}; libpq takes the others from the environment")  # fmt: skip
    if not ledger.isprintable():
        raise _refused("an address with a letter that is none", "mend it")


def _refused(got: str, remedy: str) -> JobError:
    return JobError(FIELD, f"got {got}", TAKES, remedy)


def driver() -> Any:
    """The module psycopg; JobError where it is not installed."""
    try:
        import psycopg
    except ImportError:
        raise JobError(FIELD, "names a PostgreSQL server, and psycopg cannot be imported here",
                       "psycopg 3", 'install it: pip install "dpscale[postgres]"') from None  # fmt: skip
    return psycopg


INSTEAD = "DPSCALE_LEDGER"  # in the environment: where a ledger is that moved, whatever the job says
NETWORK = (
    "nfs", "cifs", "smb", "fuse.", "lustre", "ceph", "beegfs", "gpfs", "9p", "afs", "glusterfs", "ocfs2", "gfs2",
    "orangefs", "pvfs2", "panfs", "wekafs", "virtiofs", "davfs", "ncpfs", "coda", "acfs",
)  # fmt: skip


def resolved(folder: str | Path, ledger: str | os.PathLike[str]) -> str:
    """The ledger's absolute path, starting at a folder, or its address; JobError for what is neither."""
    if is_address(ledger):
        return checked_address(str(ledger))
    return os.path.normpath(os.path.join(str(folder), checked_path(ledger, FIELD)))


def standing(ledger: str) -> str:
    """Where a run's ledger is now: as the environment says, or the job."""
    instead = os.environ.get(INSTEAD)
    return resolved(os.getcwd(), instead) if instead else ledger


def check_one_file(ledger: str | Path) -> None:
    """JobError where the file has a second name, or is a mount point and so has one elsewhere.

    SQLite keeps its journal beside the name that it was opened by: through two names of one file, processes do not see
    each other's locks and charges, and each admits what only one may spend.
    """
    real = os.path.realpath(ledger)
    if os.path.isfile(real) and os.stat(real).st_nlink > 1 and not _alone_after_drafts(real):
        raise _second_name(ledger, "has a second name (a hard link)", "remove the other name, or name another file")
    if any(place == real for place, _ in mounts()):
        raise _second_name(ledger, "is a mount point of its own", "mount its folder, not the file")


def _alone_after_drafts(real: str) -> bool:
    """Whether it has one name once the drafts are gone that who made it leaves for a moment, or where it was killed."""
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
    """JobError where the ledger's folder is on a network file system, or the file has a second name.

    Of an address, where it is none, or the driver is not there.
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
    """The sentence; `where` tells of a worker."""
    return JobError("privacy.ledger", f"{ledger} is on a network file system ({kind}){where}",
                    "a file on a local disk of the machine where the driver runs", "choose another place")  # fmt: skip


def network_kind(ledger: str) -> str:
    """The kind of network file system that the file is on, or would be; empty where its disk is local or unknown."""
    kind = "" if is_address(ledger) else kind_of(mounts(), os.path.realpath(ledger))
    return kind if kind.startswith(NETWORK) else ""


def mounts() -> list[tuple[str, str]]:
    """Every mount point of this machine and its file system, in the order of mounting; empty where nobody tells."""
    import psutil

    try:
        return [(one.mountpoint, one.fstype) for one in psutil.disk_partitions(all=True)]
    except (OSError, psutil.Error):
        return []


def kind_of(mounted: Iterable[tuple[str, str]], path: str) -> str:
    """The kind of the file system that holds an absolute path: of the longest mount points above it the last."""
    best, kind = "", ""
    for place, file_system in mounted:
        if len(place) >= len(best) and (path + "/").startswith(place.rstrip("/") + "/"):
            best, kind = place, file_system
    return "" if best == "/" and kind == "9p" else kind  # the disk of a sandbox
