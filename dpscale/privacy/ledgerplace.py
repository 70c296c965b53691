"""Where a ledger may be: on a local disk of the machine where the driver runs.

SQLite's WAL mode lets processes share memory, which no network file system can give them: on one, two machines would
each admit what only one may spend, so such a place is refused before anything is read.
"""

from __future__ import annotations

import os
from pathlib import Path

from dpscale.errors import JobError

MOUNTS = Path("/proc/mounts")
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
    """The kind of network file system that the file is on, or would be; empty where its disk is local."""
    try:
        mounts = MOUNTS.read_text(errors="surrogateescape")
    except OSError:  # no Linux: nothing is known
        return ""
    kind = kind_of(mounts, os.path.realpath(ledger))
    return kind if kind.startswith(NETWORK) else ""


def kind_of(mounts: str, path: str) -> str:
    """The kind of the file system that holds an absolute path, by the text of /proc/mounts: the last, longest match."""
    best, kind = "", ""
    for line in mounts.splitlines():
        _, place, found, *_ = [*line.split(" "), "", "", ""]
        place = _unescaped(place)
        if len(place) >= len(best) and (path + "/").startswith(place.rstrip("/") + "/"):
            best, kind = place, found
    return "" if best == "/" and kind == "9p" else kind  # the disk of a sandbox


def _unescaped(place: str) -> str:
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        place = place.replace(code, letter)
    return place
