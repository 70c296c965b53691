"""The snapshot: which exact bytes a release was made from.

SHA-256 over every file's name (relative to the data's root), size and content hash, in the order of the names. It goes
into the manifest and into the key of every noise stream, so that changed data never meets old noise. `footers` reads
only the Parquet footers, for data too large to read once more; it can miss a change that keeps every footer the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from io import BufferedReader
from typing import BinaryIO, NoReturn, cast

from dpscale.base.errors import DataError, Unreadable
from dpscale.base.parallel import Each, plainly
from dpscale.records.files import common_root, find_files, find_objects, hive_columns, is_parquet, name_below
from dpscale.records.frames import FRAME, FramePartition
from dpscale.records.row_filter import left
from dpscale.records.table import Table
from dpscale.records.where import EVERYTHING, Where
from dpscale.storage.objects import is_url, listed, opening

Fingerprint = tuple[str, int, str]
Stamp = tuple[str, int, int, int | str]
Stamps = list[Stamp]
MOST_TASKS = 1000
TAIL = 8  # the last bytes of a Parquet file: the footer's length, and a mark


def fingerprint(path: str, footers: bool = False, named: str = "") -> Fingerprint:
    """Path, size and content hash of one file."""
    try:
        with opening(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if footers and is_parquet(path, named):
                return path, size, hashlib.blake2b(_footer(file, size)).hexdigest()
            return path, size, hashlib.file_digest(cast(BufferedReader, file), hashlib.blake2b).hexdigest()
    except OSError:
        raise Unreadable("data.path", f"{path} cannot be read", "a readable file", "check its permissions") from None


def _footer(file: BinaryIO, size: int) -> bytes:
    file.seek(max(size - TAIL, 0))
    length = int.from_bytes(file.read(4), "little")
    file.seek(max(size - TAIL - length, 0))
    return file.read()


def _fingerprints(footers: bool, named: str, paths: Sequence[str]) -> list[Fingerprint]:
    return [fingerprint(path, footers, named) for path in paths]


def _chunks(files: Sequence[str]) -> list[Sequence[str]]:
    length = -(-len(files) // MOST_TASKS)
    return [files[start : start + length] for start in range(0, len(files), length)]


def snapshot(table: Table, footers: bool = False, each: Each = plainly) -> str:
    """SHA-256 of the table's files, in hexadecimal; `each` maps over chunks of the files. Of a frame its content's."""
    if not table.root:
        contents = [part.seen.content for part in table.partitions if isinstance(part, FramePartition) and part.seen]
        return hashlib.sha256("\n".join(["frame", *contents]).encode()).hexdigest()
    named = table.partitions[0].dialect.format
    prints = [one for chunk in each(partial(_fingerprints, footers, named), _chunks(table.files)) for one in chunk]
    entries = sorted((os.fsencode(name_below(table.root, path)), size, content) for path, size, content in prints)
    digest = hashlib.sha256()
    for name, size, content in entries:
        digest.update(name + f"\0{size}\0{content}\n".encode())
    digest.update(table.lake.identity().encode() if table.lake else b"")
    return digest.hexdigest()


def stamps(table: Table) -> Stamps:
    """Path, size, time of change and inode of every file: cheap to take again, to see that nothing was rewritten.

    Of a store what one listing tells, with the name that the store gives an object's content instead of an inode. Of a
    version of a table its commit too.
    """
    commit: Stamps = [] if table.lake is None else [(table.lake.commit, 0, 0, table.lake.identity())]
    if is_url(table.root):
        found = {one.url: (one.url, one.size, one.time, one.tag) for one in listed(table.root)}
        return commit + [found[url] if url in found else _gone(url) for url in table.files]
    return commit + [_stamp(path) for path in table.files]


def _stamp(path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        _gone(path)
    return path, status.st_size, status.st_mtime_ns, status.st_ino


def _gone(path: str) -> NoReturn:
    raise DataError("data.path", f"{path} is gone", "the files as they were", "restore it") from None


Layout = dict[str, int]
Entry = tuple[str, int, int]


def layout(path: str, where: Where = EVERYTHING, named: str = "") -> Layout | None:
    """`size` in bytes, `time` of the latest change in nanoseconds, `number` of files; None where no file is.

    Of files whose folders' names a filter passes over nothing is asked. `named`: the format, if a job says it.
    """
    if path == FRAME:
        return None
    objects = find_objects([path], named) if is_url(path) else []
    found = [(one.url, one.size, one.time) for one in objects] if is_url(path) else list(_in_folders(path, named))
    entries = _asked(path, found, where)
    if not entries:
        return None
    _, sizes, times = zip(*entries, strict=True)
    return {"size": sum(sizes), "time": max(times), "number": len(entries)}


def _asked(path: str, found: list[Entry], where: Where) -> list[Entry]:
    if not (found and where):
        return found
    root = common_root([path], [file for file, *_ in found])
    return [one for one in found if left(where, dict(hive_columns(one[0], root))) is not None]


def differing(one: Layout, other: Layout) -> list[str]:
    """Which of size, time and number, or of a table the version, are not the same."""
    return [name for name in ("size", "time", "number", "version") if one.get(name) != other.get(name)]


def _in_folders(path: str, named: str) -> Iterator[Entry]:
    try:
        files = find_files([path], named)
    except DataError:
        if os.path.exists(path) and os.access(path, os.R_OK):
            raise
        return  # not for this user's eyes: as good as gone
    for file in files:
        with suppress(FileNotFoundError):
            status = os.stat(file)
            yield file, status.st_size, status.st_mtime_ns
