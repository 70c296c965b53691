"""Files of a run directory: written whole or not at all, and hashed."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dpscale.errors import TransientError


def write_atomic(path: Path, content: bytes) -> None:
    """Write, flush, rename: a reader sees the old file or the new one, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


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
    """SHA-256 over names and contents of some files of a run directory."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(root)}\0{content}\n".encode())
    return digest.hexdigest()
