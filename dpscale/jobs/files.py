"""Files of a run directory, hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


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
