"""Where a ledger may be: on a local disk of the machine where the driver runs, or on a PostgreSQL server.

SQLite's WAL mode lets processes share memory, which no network file system can give them: on one, two machines would
each admit what only one may spend, so such a place is refused before anything is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dpscale.base.errors import JobError
from dpscale.ledger.address import checked_address, driver, is_address
from dpscale.ledger.store import FIELD
from dpscale.storage.files import checked_path

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
