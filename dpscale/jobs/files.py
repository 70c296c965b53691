"""Files of a run directory: written whole or not at all, and hashed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path


def write_atomic(path: Path, content: bytes) -> None:
    """Write, flush, rename: a reader sees the old file or the new one, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with open(partial, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def digest_files(root: Path, paths: Iterable[Path]) -> str:
    """SHA-256 over names and contents of some files of a run directory."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(root)}\0{content}\n".encode())
    return digest.hexdigest()
