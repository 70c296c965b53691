"""Where a ledger may be: on a local disk of the machine where the driver runs.

SQLite's WAL mode lets processes share memory, which no network file system can give them: on one, two machines would
each admit what only one may spend, so such a place is refused before anything is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dpscale.errors import JobError

NETWORK = (
    "nfs", "cifs", "smb", "fuse.", "lustre", "ceph", "beegfs", "gpfs", "9p", "afs", "glusterfs", "ocfs2", "gfs2",
    "orangefs", "pvfs2", "panfs", "wekafs", "virtiofs", "davfs", "ncpfs", "coda", "acfs",
)  # fmt: skip


def check_ledger_place(ledger: str | Path) -> None:
    """JobError where the ledger's folder is on a network file system."""
    kind = network_kind(str(ledger))
    if kind:
        raise refused(str(ledger), kind, "")


def refused(ledger: str, kind: str, where: str) -> JobError:
    """The sentence; `where` tells of a worker."""
    return JobError("privacy.ledger", f"{ledger} is on a network file system ({kind}){where}",
                    "a file on a local disk of the machine where the driver runs", "choose another place")  # fmt: skip


def network_kind(ledger: str) -> str:
    """The kind of network file system that the file is on, or would be; empty where its disk is local or unknown."""
    kind = kind_of(mounts(), os.path.realpath(ledger))
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
