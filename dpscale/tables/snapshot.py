"""The snapshot: which exact bytes a release was made from.

SHA-256 over every file's name (relative to the data's root), size and content hash, in the order of the names. It goes
into the manifest and into the key of every noise stream, so that changed data never meets old noise. `footers` reads
only the Parquet footers, for data too large to read once more; it can miss a change that keeps every footer the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from typing import Any

from dpscale.errors import DataError
from dpscale.tables.table import Table

Fingerprint = tuple[str, int, str]
CHUNK = 1 << 22


def fingerprint(path: str, footers: bool = False) -> Fingerprint:
    """Path, size and content hash of one file."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if footers and not path.endswith(".csv"):
                return path, size, hashlib.blake2b(_footer(file, size)).hexdigest()
            return path, size, hashlib.file_digest(file, hashlib.blake2b).hexdigest()
    except OSError:
        raise DataError("data.path", f"{path} cannot be read", "a readable file", "check its permissions") from None


def _footer(file: Any, size: int) -> bytes:
    """The footer of a Parquet file: its last 8 bytes hold the length of what stands before them."""
    file.seek(max(size - 8, 0))
    length = int.from_bytes(file.read(4), "little")
    file.seek(max(size - 8 - length, 0))
    return bytes(file.read())


def snapshot(
    table: Table, footers: bool = False, each: Callable[[Callable[..., Any], Iterable[Any]], Iterable[Any]] = map
) -> str:
    """SHA-256 of the table's files, in hexadecimal; `each` maps over the files."""
    digest = hashlib.sha256()
    prints = each(_Fingerprinter(footers), list(table.files))
    for path, size, content in sorted(prints):
        digest.update(f"{os.path.relpath(path, table.root)}\0{size}\0{content}\n".encode())
    return digest.hexdigest()


class _Fingerprinter:
    """`fingerprint` with its setting bound; picklable."""

    def __init__(self, footers: bool) -> None:
        self.footers = footers

    def __call__(self, path: str) -> Fingerprint:
        return fingerprint(path, self.footers)
