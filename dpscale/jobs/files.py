"""Files of a run directory: hashed, and what a disk says of them."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dpscale.errors import TransientError


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn a disk that is full or fails under this process into an error that can be tried again."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ESTALE):
            raise
        told = TransientError("run directory", f"cannot write in {place} ({os.strerror(error.errno)})", "",
                              "mend that and run again: it goes on where it stopped")  # fmt: skip
    else:
        return
    raise told


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
