"""Files of a run directory: their hashes as a stage ends and the next begins, and what a disk says of them."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpscale.errors import DpscaleError, JobError, TransientError
from dpscale.runs.manifest import left_by

FAILING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ESTALE)
DENIED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn what a disk says into one sentence: where it is full or fails to try again, where it denies to mend that."""
    try:
        yield
    except OSError as error:
        told = _told(error, place)
        if told is None:
            raise
    else:
        return
    raise told


def _told(error: OSError, place: Path) -> DpscaleError | None:
    if error.errno in FAILING:
        return TransientError("run directory", f"cannot write in {place} ({os.strerror(error.errno)})", "",
                              "mend that and run again: it goes on where it stopped")  # fmt: skip
    if error.errno in DENIED and f"{error.filename}/".startswith(f"{place}/"):  # data and sockets may be denied as well
        return JobError("run directory", f"cannot work in {place} ({os.strerror(error.errno)})",
                        "a directory that this user can read and write", "mend that or choose another")  # fmt: skip
    return None


def digest_files(root: Path, paths: Iterable[Path]) -> str:
    """SHA-256 over names and contents of some files of a run directory; what a kill left half made does not count."""
    digest = hashlib.sha256()
    for path in sorted(paths, key=str):
        if path.name.endswith(".partial"):
            continue
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(root)}\0{content}\n".encode())
    return digest.hexdigest()


def check_left(root: Path, stage: str, entry: Mapping[str, Any]) -> None:
    """JobError where the files that an earlier stage left are not those that it left, by their hash.

    `entry`: the manifest's of that stage; one without a hash has nothing to be held against.
    """
    left = root / left_by(stage, entry)[0]
    if entry.get("sha256") is not None and digest_left(root, left) != entry["sha256"]:
        raise JobError("run directory", f"files that stage {stage} left in {left} were changed",
                       "the files as that stage left them", "restore them, or start a new run")  # fmt: skip


def digest_left(root: Path, left: Path) -> str:
    """The hash of what a stage leaves: a file, or all files of a folder."""
    return digest_files(root, [path for path in left.rglob("*") if path.is_file()] if left.is_dir() else [left])
