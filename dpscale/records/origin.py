"""Origin of the data as described in a job, plain files or a table with a log, and the snapshot of its bytes.

The snapshot is SHA-256 over every file's name (relative to the data's root), size and content hash, sorted by name. It
is part of the manifest and of the noise key of every stream, so that changed data never receive the same noise. The
option `footers` reads only the footers of files that have one, for data too large to be read twice; it can miss a
change that leaves every footer unchanged.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from io import BufferedReader
from typing import NoReturn, cast

from dpscale.base.errors import DataError, DpscaleError, Unreadable
from dpscale.base.numerics import ParallelMap, serial_map
from dpscale.domain import Domain
from dpscale.records.database_rows import content_of_range
from dpscale.records.databases import WORD, RangeContent
from dpscale.records.files import PLAIN, Dialect
from dpscale.records.formats import check_formats, format_of
from dpscale.records.frames import FRAME, FramePartition
from dpscale.records.lake import FIELD, NAMES, READERS, Lake
from dpscale.records.table import Partition, Table, common_root, find_files, find_objects, hive_columns, name_below
from dpscale.records.where import EVERYTHING, Where, reduce_filter
from dpscale.storage.databases import is_database
from dpscale.storage.objects import is_url, listed, opening

PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg"}


@dataclass(frozen=True)
class Origin:
    """Description of the data's storage in a job.

    Attributes
    ----------
    links : bool
        Whether a file with two names is counted once for each.
    dialect : Dialect
    where : Where
        Row filter.
    format : str
        Format of a table with a log ("delta" or "iceberg"); empty for plain files.
    version : int, optional
        Version of a table with a log. Default: the latest.
    period : str
        Column of the periods of a growing table.
    fills : bool
        Whether a column that only some files have is null in the others.
    """

    links: bool = False
    dialect: Dialect = PLAIN
    where: Where = EVERYTHING
    format: str = ""
    version: int | None = None
    period: str = ""
    fills: bool = False

    def table(self, path: str | Sequence[str], domain: Domain) -> Table:
        """Return the table at a path. Raises DataError if there is none."""
        if not self.format:
            table = Table.open(path, domain, self.links, self.dialect, self.where, self.period, self.fills)
            return table.split()

        if not isinstance(path, str):
            if len(path) != 1:
                raise DataError(FIELD, f"{len(path)} paths", f"one {NAMES[self.format]} table", "set its folder")
            path = str(path[0])
        return _table(self.lake(path), domain, self.dialect, self.where)

    def lake(self, path: str) -> Lake:
        """Return the requested version of a table with a log, or the latest."""
        with _table_errors(path, self.format):
            lake = READERS[self.format](path, self.version)

        if not lake.files:
            raise DataError(
                FIELD,
                f"{path} has no file at version {lake.version}",
                "a table with records",
                "choose another version",
            )
        return lake


def _table(lake: Lake, domain: Domain, dialect: Dialect, where: Where) -> Table:
    """Return the table of the files of a table with a log, in the order of their paths, filtered by `where`.

    `lake.columns` are the columns that a file may lack; they are then null.
    """
    check_formats([file.path for file in lake.files], dialect)
    parts = [
        Partition(path=file.path, fixed=file.fixed, row_groups=(), share=file.size, absent=lake.columns)
        for file in lake.files
    ]
    lake.check(where.columns)
    parts.sort(key=lambda part: part.path)
    return Table(domain=domain, partitions=tuple(parts), root=lake.root, lake=lake).filtered(where).split()


@contextmanager
def _table_errors(path: str, kind: str) -> Iterator[None]:
    """Replace a library's exceptions by one sentence without their text, which may contain keys."""
    try:
        import_module(PACKAGES[kind])
    except ImportError:
        raise DataError(
            "data.format",
            f"{kind!r}, which requires the missing package {PACKAGES[kind]}",
            "an installed reader",
            f"pip install 'dpscale[{kind}]'",
        ) from None
    try:
        yield
    except DpscaleError:
        raise
    except Exception as error:
        raise DataError(
            FIELD,
            f"{path} cannot be read as a table of {NAMES[kind]} ({type(error).__name__})",
            f"the folder of a {NAMES[kind]} table",
            "check path, version and permissions",
        ) from None


Fingerprint = tuple[str, int, str]
Stamp = tuple[str, int, int, int | str]
Stamps = list[Stamp]
MOST_TASKS = 1000  # tasks of files whose content is hashed


def fingerprint(path: str, footers: bool = False, named: str = "") -> Fingerprint:
    """Return path, size and content hash of one file; with `footers`, only the footer is hashed if its format has one.

    `named` is the format stated in the job. A footer changes with the data in most cases, and is read much faster.
    """
    try:
        with opening(path) as file:
            size = file.seek(0, os.SEEK_END)
            kind = format_of(path, named) if footers else None
            footer = None if kind is None else kind.footer(file, size)
            if footer is not None:
                return path, size, hashlib.blake2b(footer).hexdigest()
            file.seek(0)
            return path, size, hashlib.file_digest(cast(BufferedReader, file), hashlib.blake2b).hexdigest()
    except OSError:
        raise Unreadable("data.path", f"{path} cannot be read", "a readable file", "check its permissions") from None


def _fingerprints(footers: bool, named: str, paths: Sequence[str]) -> list[Fingerprint]:
    return [fingerprint(path, footers, named) for path in paths]


def _chunks(files: Sequence[str]) -> list[Sequence[str]]:
    length = -(-len(files) // MOST_TASKS)
    return [files[start : start + length] for start in range(0, len(files), length)]


def snapshot(table: Table, footers: bool = False, each: ParallelMap = serial_map) -> str:
    """Return the SHA-256 of the table's files in hexadecimal; for a frame, that of its content.

    Parameters
    ----------
    table : Table
    footers : bool
        Hash only the footers of files that have one.
    each : Each
        Map over chunks of the files.
    """
    if not table.root:
        contents = [part.seen.content for part in table.partitions if isinstance(part, FramePartition) and part.seen]
        return hashlib.sha256("\n".join(["frame", *contents]).encode()).hexdigest()
    return joint_digest(table, fingerprints(table, footers, each))


def fingerprints(table: Table, footers: bool = False, each: ParallelMap = serial_map) -> list[Fingerprint]:
    """Return path, size and content hash of every file of a table; the parameters are those of `snapshot`.

    Rows of a database have their address, their number, and the hash of their content and of the columns.
    """
    if is_database(table.root):
        contents, opened = range_contents(table, each), table.partitions[0].source()
        columns = [f"{name} {opened.kind(name)}" for name in opened.names]
        sums = [sum(content.words[k] for content in contents) % WORD for k in (0, 1)]
        rows = sum(content.rows for content in contents)
        digest = hashlib.sha256("\n".join([*columns, *map(str, sums)]).encode())
        return [(table.root, rows, digest.hexdigest())]
    named = table.partitions[0].dialect.format
    chunks = each(partial(_fingerprints, footers, named), _chunks(table.files))
    return [fingerprint for chunk in chunks for fingerprint in chunk]


def range_contents(table: Table, each: ParallelMap = serial_map) -> list[RangeContent]:
    """Return the content of every range of rows of a database, as first seen or as it is now."""
    parts = {(part.path, part.row_groups): part for part in table.partitions}
    return list(each(content_of_partition, list(parts.values())))


def content_of_partition(part: Partition) -> RangeContent:
    """Return the content of the rows of a range, as first seen or as it is now."""
    content: RangeContent = content_of_range(part.path, part.row_groups) if part.seen is None else part.seen
    return content


def as_seen(table: Table, each: ParallelMap) -> Table:
    """Return a table of a database whose readings are compared with its present content; other tables as they are."""
    if not is_database(table.root):
        return table
    contents = each(content_of_partition, table.partitions)
    parts = [replace(part, seen=content) for part, content in zip(table.partitions, contents, strict=True)]
    return replace(table, partitions=tuple(parts))


def joint_digest(table: Table, prints: Sequence[Fingerprint]) -> str:
    """Return the SHA-256 of the names, sizes and contents of the files of a table."""
    entries = sorted((os.fsencode(name_below(table.root, path)), size, content) for path, size, content in prints)
    digest = hashlib.sha256()
    for name, size, content in entries:
        digest.update(name + f"\0{size}\0{content}\n".encode())
    digest.update(table.lake.identity().encode() if table.lake else b"")
    return digest.hexdigest()


def stamps(table: Table) -> Stamps:
    """Return path, size, modification time and inode of every file: a cheap check that no file was rewritten.

    In a database the values are those of the content and the places of the rows of each range.

    In an object store the values are those of one listing, with the store's content tag instead of an inode. For a
    version of a table with a log, its commit is included.
    """
    if is_database(table.root):
        return [(table.root, content.rows, content.places, f"{content.words}") for content in range_contents(table)]
    commit: Stamps = [] if table.lake is None else [(table.lake.commit, 0, 0, table.lake.identity())]
    if is_url(table.root):
        stored = {entry.url: (entry.url, entry.size, entry.time, entry.tag) for entry in listed(table.root)}
        return commit + [stored[url] if url in stored else _raise_missing(url) for url in table.files]
    return commit + [_stamp(path) for path in table.files]


def _stamp(path: str) -> Stamp:
    """Return path, size, modification time and inode of a file. Raises DataError if it no longer exists."""
    try:
        status = os.stat(path)
    except OSError:
        _raise_missing(path)
    return path, status.st_size, status.st_mtime_ns, status.st_ino


def _raise_missing(path: str) -> NoReturn:
    raise DataError("data.path", f"{path} no longer exists", "unchanged files", "restore it") from None


Layout = dict[str, int]
Entry = tuple[str, int, int]


def layout(path: str, where: Where = EVERYTHING, named: str = "") -> Layout | None:
    """Return total `size` in bytes, latest `time` of change in nanoseconds, and `number` of files; None without files.

    No file is opened, so it is a cheap sign of changed data. Files of which the names of their folders show that no row
    matches the filter are not counted (`_asked`): a change of them does not affect the release.

    Parameters
    ----------
    path : str
    where : Where
        Row filter.
    named : str
        Format stated in the job.
    """
    if path == FRAME:
        return None
    if is_database(path):  # nothing cheap tells whether rows changed: contents are compared whenever it matters
        return {"size": 0, "time": time.time_ns(), "number": 1}

    objects = find_objects([path], named) if is_url(path) else []
    in_store = [(entry.url, entry.size, entry.time) for entry in objects]
    entries = _asked(path, in_store if is_url(path) else list(_in_folders(path, named)), where)
    if not entries:
        return None

    _, sizes, times = zip(*entries, strict=True)
    return {"size": sum(sizes), "time": max(times), "number": len(entries)}


def _asked(path: str, entries: list[Entry], where: Where) -> list[Entry]:
    """Return the files that may contain rows of the filter, by the values in the names of their folders.

    For example, with the filter year = 2025 a file below year=2024 is left out. Its rows are never read.
    """
    if not (entries and where):
        return entries
    root = common_root([path], [file for file, *_ in entries])
    return [entry for entry in entries if reduce_filter(where, dict(hive_columns(entry[0], root))) is not None]


def differing(first: Layout, second: Layout) -> list[str]:
    """Return which of size, time, number and table version differ."""
    return [name for name in ("size", "time", "number", "version") if first.get(name) != second.get(name)]


def _in_folders(path: str, named: str) -> Iterator[Entry]:
    """Yield (path, size, time of change) of the data files at a path; nothing if this user cannot read it."""
    try:
        files = find_files([path], named)
    except DataError:
        if os.path.exists(path) and os.access(path, os.R_OK):
            raise
        return  # unreadable for this user: treat as absent
    for file in files:
        with suppress(FileNotFoundError):
            status = os.stat(file)
            yield file, status.st_size, status.st_mtime_ns
