"""Table: the files of a partitioned data set, listed at a path and opened lazily.

A partition is a file or some parts of a large one, read in batches of bounded size. Columns that a
hive-partitioned folder stores in its path (`year=2020/part.parquet`) are taken from the path. A file that has such a
column too must have the same value in it.

*Files at a path.*
If the job states the format, every file that is not hidden belongs to the table, regardless of its name. A path is
local, or an address in an object store to which the same rules apply.

As in Spark and Hive, names that begin with a dot or an underscore are hidden, at any level below the given path;
`_year=2020` is nevertheless a folder of data. A file named explicitly is never hidden. Run directories of dpscale below
the given path are not data. Files of a Delta, Iceberg or Hudi table are refused unless the job states their format,
because such a folder contains deleted and superseded records too. Other files of unknown formats are left out, and
named; those that begin like data are refused.
"""

from __future__ import annotations

import errno
import glob
import os
import posixpath
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dpscale.base.arrow import as_text, pa, pc, text_kind, types
from dpscale.base.display import display_path, type_of_value
from dpscale.base.errors import DataError
from dpscale.domain import Domain
from dpscale.records.column_values import plain, plain_kind, repeated, same_value
from dpscale.records.database_rows import ranges_of
from dpscale.records.encode import check_trimmed
from dpscale.records.files import PLAIN, Dialect, OpenFile, RecordFormat, file_size, first_bytes
from dpscale.records.formats import (
    accepted_formats,
    check_distinct,
    check_formats,
    endings,
    format_of,
    is_data,
    other_delimiter,
    reading,
)
from dpscale.records.lake import Lake
from dpscale.records.where import EVERYTHING, FIELD, Where, check_column, check_type, reduce_filter, select_rows
from dpscale.storage.databases import is_database, read_address
from dpscale.storage.objects import Found, children, common_folder, is_url, listed, relative_path

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
Fixed = tuple[tuple[str, str | None], ...]
MOST_NAMED = 5  # files that a message names
LAKES = {"delta": "Delta", "iceberg": "Iceberg", "hudi": "Hudi"}
LOGS, METADATA = {"delta": "_delta_log", "hudi": ".hoodie"}, ".metadata.json"

SPLIT_ROWS = 1 << 19  # 10⁸ rows in one file are enough work for a hundred workers
SPLIT_BYTES = 1 << 23  # a smaller file is one task; its footer is not read


@dataclass(frozen=True)
class Listing:
    """Files at some paths.

    Attributes
    ----------
    files : tuple of str
        Data files: absolute, unique and sorted by name.
    left_out : tuple of str
        Files in the same folders that are not data because of their endings.
    """

    files: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """Sentence on the files that are left out; empty if there are none."""
        if not self.left_out:
            return ""

        names = sorted({os.path.basename(file) for file in self.left_out})
        shown = ", ".join(names[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
        return (
            f"{len(self.left_out)} file{'s' * (len(self.left_out) > 1)} beside the data left out because of the"
            f" ending ({shown}); a format in [data] reads every file"
        )


def find_files(paths: Iterable[str], named: str = "") -> list[str]:
    """Return the data files of `list_files`."""
    return list(list_files(paths, named).files)


def list_files(paths: Iterable[str], named: str = "") -> Listing:
    """Return the files at the given files, folders and globs.

    Parameters
    ----------
    paths : iterable of str
    named : str
        Format of the files. Default: derived from their endings.

    Raises
    ------
    DataError
        If a folder cannot be listed, a file is of no known format, or files belong to a table with a log.
    """
    places = [_at(path) for path in paths]
    meant = {os.path.abspath(file) for matches, _ in places for file in matches}
    below = {os.path.abspath(file) for _, files in places for file in files} - meant
    data = sorted(meant | {file for file in below if named or is_data(file)})
    others = sorted(below.difference(data))
    if not named:
        _check_lakes(data)
        _check_left_out(others if data else [])
    return Listing(tuple(_all_data(data, named)), tuple(others))


def find_objects(urls: Iterable[str], named: str = "") -> list[Found]:
    """Return the objects at the given prefixes, objects and globs of an object store, with their sizes."""
    urls = list(urls)
    objects = {entry.url: (entry, url) for url in urls for entry in listed(url)}
    if not named:
        _check_lake_prefixes(urls, objects)
    data = [name for name, (_, url) in objects.items() if _counts(url, name, named)]
    return [objects[name][0] for name in _all_data(sorted(data), named)]


def format_of_content(file: str) -> str:
    """Return the format whose mark a file of any name begins with; empty if there is none."""
    start = first_bytes(file)
    known = {kind.name: kind.magic for kind in endings().values() if kind.magic}
    return next((name for name, magic in known.items() if start.startswith(magic)), "")


def _check_left_out(files: Iterable[str]) -> None:
    """Raise DataError if files that are left out because of their endings begin like data."""
    if like := [(file, form) for file in files if (form := format_of_content(file))]:
        (first, form), names = like[0], ", ".join(os.path.basename(file) for file, _ in like[:MOST_NAMED])
        raise DataError("data.path", f"{len(like)} of the files in {os.path.dirname(first)} with unknown endings"
                        f" begin like {form} ({names})", "endings that show which files are data",
                        f'set format = "{form}" in [data] to read every file, or move them')  # fmt: skip


def _check_lakes(files: Collection[str]) -> None:
    """Raise DataError if a folder at or above some files is that of a table with a log."""
    places = {os.path.dirname(file) for file in files}
    targets = {os.path.dirname(os.path.realpath(file)) for file in files if os.path.islink(file)}
    folders, seen = places | targets | set(map(os.path.realpath, places)), set[str]()
    # one level up in each pass, until the root of the file system
    while folders := folders - seen:
        for folder in sorted(folders):
            if kind := _lake_at(folder):
                raise _lake(kind, folder)
        seen |= folders
        folders = set(map(os.path.dirname, folders))


def _lake_at(folder: str) -> str:
    """Return the format of a table with a log whose folder this is; empty for other folders."""
    for kind, log in LOGS.items():
        if os.path.isdir(os.path.join(folder, log)):
            return kind
    with suppress(OSError), os.scandir(os.path.join(folder, "metadata")) as entries:
        return "iceberg" if any(entry.name.endswith(METADATA) for entry in entries) else ""
    return ""


def _check_lake_prefixes(urls: Iterable[str], objects: Iterable[str]) -> None:
    """Raise DataError if a prefix at or above some objects is that of a table with a log.

    `urls` are the given paths, perhaps with wildcards, and `objects` the objects below them. A log marks the folder of
    a table; so does a metadata file of Iceberg.
    """
    for name in objects:
        folder, _, last = name.rpartition("/")
        parts = folder.split("/")
        for kind, log in LOGS.items():
            if log in parts:
                raise _lake(kind, "/".join(parts[: parts.index(log)]))
        if parts[-1] == "metadata" and last.endswith(METADATA):
            raise _lake("iceberg", "/".join(parts[:-1]))
    for url in urls:
        # the folder above the part without wildcards
        above = re.split(r"[*?\[]", url, maxsplit=1)[0].rstrip("/").rpartition("/")[0]
        # a path may point into a table: its log is then in a folder above
        while not above.endswith(("/", ":")):
            names = children(above)
            if kind := next((kind for kind, log in LOGS.items() if log in names), ""):
                raise _lake(kind, above)
            if "metadata" in names and any(name.endswith(METADATA) for name in children(f"{above}/metadata")):
                raise _lake("iceberg", above)
            above = above.rpartition("/")[0]


def _lake(kind: str, folder: str) -> DataError:
    """Return the error for a folder of a table with a log that is read as plain files."""
    known = f'set format = "{kind}" in [data], and this folder as the path'
    unknown = 'export its current records, or set format = "parquet" in [data] to count every file'
    return DataError("data.path", f"{folder} is the folder of a table of {LAKES[kind]}, whose files contain deleted and"
                     " superseded records too", "files of which every record counts",
                     unknown if kind == "hudi" else known)  # fmt: skip


def _counts(asked: str, url: str, format_named: str) -> bool:
    """Return whether an object at or below the requested address is data; one named explicitly always is."""
    named = re.split(r"[*?\[]", asked, maxsplit=1)
    below = url.removeprefix(named[0].rpartition("/")[0] if len(named) > 1 else asked).strip("/")
    data = not url.endswith("/") if format_named else is_data(url)
    return url == asked or (data and not any(map(_is_hidden, below.split("/"))))


DATABASES = {"duckdb": "duckdb", **dict.fromkeys(("db", "sqlite", "sqlite3"), "sqlite")}  # by the ending of a file


def _all_data(files: list[str], named: str) -> list[str]:
    """Return files unchanged if each name has the ending of a data format or `named` says the format; refuse others."""
    for file in files:
        if not named and not is_data(file):
            remedy = f'name it *{", *".join(endings())}, or say what it is, as format = "csv" in [data]'
            if (kind := DATABASES.get(file.rpartition(".")[2].lower())) is not None:
                remedy = f"write {kind}:///{file}?table=NAME for a table of a database"
            raise DataError("data.path", f"{file}", accepted_formats(), remedy)
    return files


def check_links(files: Iterable[str]) -> None:
    """Raise DataError if two names are hard or symbolic links to one file: its records would be counted twice."""
    names: dict[tuple[int, int] | str, str] = {}
    for file in files:
        other = names.setdefault(_which(file), file)
        if other != file:
            raise DataError("data.path", f"{other} and {file} are the same file", "one name for every file",
                            "remove one, or set links = true in [data] to count it under each")  # fmt: skip


def _which(file: str) -> tuple[int, int] | str:
    """Return an identifier of the file: device and inode, or its real path on file systems without inode numbers."""
    try:
        status = os.stat(file)
    except OSError:  # reported when the file is read
        return file
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(file)


def _at(path: str) -> tuple[list[str], list[str]]:
    """Return the files that a path names or matches, and those below folders that it names or matches.

    A path may be a folder, a file, or a glob, whose literal part is listed.
    """
    if os.path.isdir(path):
        return [], _below(path)
    if os.path.exists(path):
        return [path], []

    fixed, pattern = _literal_part(os.path.abspath(path))
    _check_listable(fixed, pattern)
    matches = [match for match in glob.glob(os.path.join(glob.escape(fixed), pattern), recursive=True)
               if not _is_hidden(os.path.basename(match)) and not _within_run(match, fixed)]  # fmt: skip
    folders = [match for match in matches if os.path.isdir(match) and not is_run(match)]
    files = [match for match in matches if not os.path.isdir(match)]

    return files, [file for folder in folders for file in _below(folder)]


def _check_listable(fixed: str, pattern: str) -> None:
    """Raise DataError for a folder that a pattern lists and that cannot be listed; a glob omits it."""
    parts = pattern.split(os.sep)
    for count, part in enumerate(parts):
        if not glob.has_magic(part):
            continue
        for folder in glob.iglob(os.path.join(glob.escape(fixed), *parts[:count], ""), recursive=True):
            if not os.access(folder, os.R_OK | os.X_OK) and os.path.isdir(folder):
                _unreadable(PermissionError(errno.EACCES, "", folder))

    if len(parts) == 1 and not os.access(fixed, os.X_OK):
        _unreadable(PermissionError(errno.EACCES, "", fixed))


def _literal_part(path: str) -> tuple[str, str]:
    """Return the longest existing folder with which a path begins, and the rest, a pattern."""
    drive, rest_of_path = os.path.splitdrive(path)
    fixed, pattern = drive + os.sep, rest_of_path.lstrip(os.sep).split(os.sep)
    while len(pattern) > 1 and os.path.isdir(os.path.join(fixed, pattern[0])):
        fixed = os.path.join(fixed, pattern.pop(0))
    return fixed, os.sep.join(pattern)


def _within_run(path: str, base: str) -> bool:
    """Return whether a folder between `base` and a path is a run directory."""
    folder = os.path.dirname(path)
    while len(folder) > len(base):
        if is_run(folder):
            return True
        folder = os.path.dirname(folder)
    return False


def is_run(folder: str) -> bool:
    """Return whether a folder is a run directory of dpscale."""
    with suppress(OSError), open(os.path.join(folder, "manifest.json"), "rb") as file:
        return b'"job_sha256"' in file.read()
    return False


def _below(folder: str) -> list[str]:
    """Return the files anywhere below a folder that are not hidden.

    A folder of a run of dpscale below the given one is left out.
    """
    files: list[str] = []
    seen: set[str] = set()
    for where, folders, names in os.walk(folder, followlinks=True, onerror=_unreadable):
        real = os.path.realpath(where)
        inside = where == folder or "manifest.json" not in names or not is_run(where)
        folders[:] = [] if real in seen or not inside else [name for name in folders if not _is_hidden(name)]
        if real not in seen and inside:  # a symbolic link to a parent folder would count records twice
            files += [os.path.join(where, name) for name in names if not _is_hidden(name)]
        seen.add(real)

    return files


def _unreadable(error: OSError) -> None:
    got = f"{os.path.normpath(error.filename)} cannot be listed"
    raise DataError("data.path", got, "readable folders", "check its permissions") from None


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def common_root(paths: list[str], files: list[str]) -> str:
    """Return the folder to which file names are relative; never a hive folder, because its name is data.

    A folder such as year=2025 states a column, which would get lost if it were the root.
    """
    if is_url(files[0]):
        return _common_prefix(paths, files)
    root = os.path.abspath(paths[0]) if len(paths) == 1 and os.path.isdir(paths[0]) else common_folder(files)
    while not os.path.isdir(root) or "=" in os.path.basename(root):
        root = os.path.dirname(root)
    return root


def _common_prefix(paths: list[str], files: list[str]) -> str:
    """Return the folder that all files on an object store have in common, above folders such as `year=2025`.

    `paths` are those of the job. A single path that is a folder of the files is the root itself. The loop leaves
    folders of columns, and a root that is a file.
    """
    scheme, names = files[0].partition("://")[0], [file.partition("://")[2] for file in files]
    asked = paths[0].partition("://")[2].rstrip("/")
    root = asked if len(paths) == 1 and names[0].startswith(asked + "/") else posixpath.commonpath(names)
    while root in names or "=" in posixpath.basename(root):
        root = posixpath.dirname(root)
    return f"{scheme}://{root}"


def name_below(root: str, file: str) -> str:
    """Return a file's name relative to the root, with "/"."""
    return file.removeprefix(root).lstrip("/") if is_url(file) else relative_path(file, root)


def hive_columns(file: str, root: str) -> Fixed:
    """Return the columns fixed by the folders between the root and the file, such as `year=2020`."""
    folders = posixpath.dirname(name_below(root, file)).split("/")
    pairs = [folder.split("=", 1) for folder in folders if "=" in folder]
    named = [(unquote(key), unquote(value)) for key, value in pairs]
    return tuple((key, None if value == HIVE_NULL else value) for key, value in named)


def calendar_names(fixed: Fixed, dates: Set[str]) -> Fixed:
    """Return the columns with whole dates: month=01 below year=2024 is 2024-01, and month=2024-1 is too.

    `parts` are year, month and day as far as a folder's name states them.

    Parameters
    ----------
    fixed : tuple of (str, str or None)
        Columns in the order of their folders.
    dates : set of str
        Columns that contain dates; others are unchanged.
    """
    known: list[str] = []  # year, month and day of the folders so far
    columns = []
    for name, value in fixed:
        parts = re.fullmatch(r"(?:(\d{4})-)?(?:(\d{1,2})-)?(\d{1,2})", value or "")
        if re.fullmatch(r"\d{4}", value or ""):
            known = [str(value)]
        elif parts is not None:
            stated = [part.zfill(2) for part in parts.groups() if part is not None]
            # a name with a year restarts the date; a bare number continues that of the folders above, up to a day
            known = stated if parts[1] else [*known, *stated][:3] if known and len(stated) == 1 else []
            value = "-".join(known) if known and name in dates else value
        columns.append((name, value))

    return tuple(columns)


@dataclass(frozen=True)
class Partition:
    """Part of a table: a file or some of its row groups.

    Attributes
    ----------
    path : str
    fixed : tuple of (str, str or None)
        Columns fixed by the path.
    row_groups : tuple of int
        Row groups; empty for all.
    share : int, optional
        Approximate number of bytes, if it is only a part of the file. Ignored by equality.
    dialect : Dialect
        Format of the file.
    where : Where
        Filter conditions that the path does not decide.
    absent : tuple of str
        Columns that are null if the file lacks them.
    seen : object
        Content at the first reading, which later ones must have; None if readings are not compared.
    """

    path: str
    fixed: Fixed = ()
    row_groups: tuple[int, ...] = ()
    share: int | None = field(default=None, compare=False)
    dialect: Dialect = PLAIN
    where: Where = EVERYTHING
    absent: tuple[str, ...] = field(default=(), compare=False)
    seen: Any = field(default=None, compare=False, repr=False)

    @property
    def order(self) -> tuple[Any, ...]:
        """Key by which the partitions of a worker are sorted."""
        return self.path, self.row_groups

    @property
    def format(self) -> RecordFormat:
        """Format of the file."""
        kind = format_of(self.path, self.dialect.format)
        assert kind is not None  # `find_files` has refused other files
        return kind

    def source(self) -> OpenFile:
        """Open the file."""
        opened = self.format.open(self.path, self.dialect)
        opened.expected = self.seen
        return opened

    def size(self) -> int:
        """Return the approximate number of bytes to read."""
        with reading(self.path, self.dialect.format):
            return file_size(self.path) if self.share is None else self.share

    def columns(self) -> list[str]:
        """Return the names of the readable columns; reads only the file's header, if its format has one."""
        with reading(self.path, self.dialect.format):
            return list(dict.fromkeys([*self.source().names, *dict(self.fixed), *self.absent]))

    def has(self, column: str) -> bool:
        """Return whether a column can be read; reads only the file's header."""
        return not self.format.lists_columns or column in self.columns()

    def kind(self, column: str) -> pa.DataType:
        """Return the type of a column; reads only the file's header."""
        return self.kinds([column])[column]

    def kinds(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        """Return the types of columns; reads only the file's header, once."""
        if not self.format.lists_columns:
            return dict.fromkeys(columns, pa.string())

        with reading(self.path, self.dialect.format):
            source = self.source()
            present = set(source.names) - set(dict(self.fixed))
            check_distinct(self.path, source.names, columns)
            kinds = {name: _kind_of(source, name) for name in columns if name in present}
        return {name: kinds[name] if name in kinds else self._kind_without_file(name) for name in columns}

    def _kind_without_file(self, column: str) -> pa.DataType:
        """Return the type of a column that the file lacks."""
        if column in dict(self.fixed):
            return pa.string()
        if column not in self.absent:
            raise missing_column(column, self.path, named=self.dialect.format)
        return pa.null()

    def types(self) -> dict[str, str]:
        """Return names and types of the file's own columns, in order; "" if the format is untyped."""
        with reading(self.path, self.dialect.format):
            source = self.source()
            distinct = [name for name in source.names if source.names.count(name) == 1]
            return {
                name: str(text_kind(plain_kind(source.kind(name)))) if self.format.typed else "" for name in distinct
            }

    def row_bound(self) -> int:
        """Return an upper estimate of the file's rows: the number in its footer, or one derived from its size."""
        with reading(self.path, self.dialect.format):
            return self.format.row_bound(self.path, self.dialect)

    def pieces(self) -> list[Partition]:
        """Return this partition, split into the parts of its file if it is large.

        Parts are runs of consecutive row groups with at least SPLIT_ROWS rows, except the last; their sizes are
        estimated by the number of row groups.
        """
        if not self.format.splittable or self.size() < SPLIT_BYTES:
            return [self]

        with reading(self.path, self.dialect.format):
            lengths = self.source().groups()
        groups: list[list[int]] = [[]]
        rows = 0
        for group, length in enumerate(lengths):
            if rows >= SPLIT_ROWS:
                groups.append([])
                rows = 0
            groups[-1].append(group)
            rows += length

        shares = [len(group) * self.size() // max(len(lengths), 1) for group in groups]
        return [replace(self, row_groups=tuple(g), share=share) for g, share in zip(groups, shares, strict=True)]

    def batches(self, columns: Sequence[str], ids: str = "", domain: Domain | None = None) -> Iterator[dict[str, Any]]:
        """Yield the named columns of the rows that match the filter, in batches of bounded length.

        Parameters
        ----------
        columns : sequence of str
        ids : str
            Column with mostly distinct values, which is not dictionary-encoded.
        domain : Domain, optional
            If given, columns may be returned as cells, which `encode` accepts. Ignored if there is a filter, because it
            compares values and may exclude rows that the domain refuses.
        """
        if not self.where:
            return self.unfiltered(columns, ids, domain)
        read = self.unfiltered(list(dict.fromkeys([*columns, *self.where.columns])), ids)
        return select_rows(self.where, read, columns)

    def unfiltered(
        self, columns: Sequence[str], ids: str = "", domain: Domain | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the named columns of all rows, ignoring the filter.

        `fixed` are the columns that the path states or that are null in this file, `both` those in the path and in the
        file, which must agree. If no column is in the file, the first one is read, for the number of rows.

        `ids` and `domain` are passed to the reader, which can convert columns to cells at once; not if a column must be
        compared with the path first.
        """
        fixed = dict.fromkeys(self.absent) | dict(self.fixed)
        with reading(self.path, self.dialect.format):
            source = self.source()
            listed, in_path = self.format.lists_columns, dict(self.fixed)
            in_file = set(source.names) if listed else set(columns) - set(fixed)
            both = [name for name in columns if name in in_file and name in in_path]
            present = in_file - set(in_path)

            for name in columns:
                if name not in present and name not in fixed:
                    raise missing_column(name, self.path, named=self.dialect.format)

            check_distinct(self.path, source.names, columns)
            # columns of the path are not read again
            wanted = [name for name in columns if name in present]
            read = [*wanted, *both] or (source.names[:1] if listed else ())

            for batch in source.batches(read, self.row_groups, ids, None if both else domain):
                rows = len(batch)
                for name in both:
                    self._check_same(name, in_path[name], batch.column(name))
                yield {n: plain(batch.column(n)) if n in present else repeated(fixed[n], rows) for n in columns}

    def _check_same(self, name: str, stated: str | None, column: Any) -> None:
        """Raise DataError if a column of the file has other values than its folder's name."""
        if not all(same_value(value, stated) for value in pc.unique(as_text(plain(column))).to_pylist()):
            raise DataError(f"data column {name!r}", f"other values in {self.path} than in the name of its folder",
                            "the same value in both", "correct the folder or the column, or rename one")  # fmt: skip


def _kind_of(source: OpenFile, name: str) -> pa.DataType:
    """Return the type in which a column is read; that of nulls for a column of numbers that has only nulls.

    Programs store such a column of texts or dates as numbers.
    """
    kind = plain_kind(source.kind(name))
    numeric = types.is_floating(kind) or types.is_integer(kind)
    return pa.null() if numeric and source.is_null(name) else kind


class LeftOutWarning(UserWarning):
    """Warning of files beside the data that are not read because of their endings."""


@dataclass(frozen=True)
class Table:
    """Partitioned table and the domain of its records. Opening it reads no record.

    Parameters
    ----------
    domain : Domain
    partitions : tuple of Partition
    root : str
        Folder of the files; empty for a data frame.
    lake : Lake, optional
        Version of a table with a log.

    Examples
    --------
    >>> import dpscale as dp, pyarrow as pa, pyarrow.parquet as pq
    >>> pq.write_table(pa.table({"a": [0, 1, 1]}), "a.parquet")
    >>> table = Table.open("a.parquet", dp.Domain(a=2))
    >>> table.types(), len(table.split().partitions)
    ({'a': 'int64'}, 1)
    """

    domain: Domain
    partitions: tuple[Partition, ...]
    root: str
    lake: Lake | None = None

    @classmethod
    def open(cls, path: str | Path | Sequence[str | Path], domain: Domain, links: bool = False,
             dialect: Dialect = PLAIN, where: Where = EVERYTHING, period: str = "",
             fills: bool = False) -> Table:  # fmt: skip
        """Open a table of data files.

        Parameters
        ----------
        path : str, Path or sequence of these
            Files, folders (hive-partitioned or not) or globs. An address (`s3://bucket/folder`) refers to an object
            store, or to rows in a database (`duckdb:///shop.db?table=visits`); its credentials are taken from the
            environment.
        domain : Domain
        links : bool
            Count a file with two names once for each name. By default such files are refused.
        dialect : Dialect
            Format of the files.
        where : Where
            Row filter. Files that cannot match because of their folders' names are not opened.
        period : str
            Column of the periods of a growing table. Folders `year=2024/month=01` state the month 2024-01 for it, as
            for the date attributes of the domain.
        fills : bool
            Whether a column that only some files have is null in the others. Reads the header of every file.

        Returns
        -------
        Table

        Raises
        ------
        DataError
            If there is no file, formats are mixed, or the filter does not fit the columns.

        Examples
        --------
        >>> trips.to_parquet("trips.parquet")
        >>> len(Table.open("trips.parquet", domain).files)
        1
        """
        if not isinstance(domain, Domain):
            raise DataError("domain", type_of_value(domain), "a Domain", "read one: Domain.read(path)")

        paths = _paths(path)
        if any(map(is_database, paths)):
            return cls(domain, _ranges(paths, dialect), paths[0]).filtered(where)
        sizes, note = _sizes(paths, dialect.format)
        files = list(sizes)
        if not files:
            named = ", ".join(map(display_path, paths)) or "no path"
            raise DataError("data.path", f"no file at {named}", "a file, folder or glob", "check the path")

        check_formats(files, dialect)
        if not links:
            check_links(files)
        root = common_root(paths, files)
        parts = tuple(
            Partition(path=file, fixed=hive_columns(file, root), row_groups=(), share=size, dialect=dialect)
            for file, size in sizes.items()
        )
        if fills:
            all_columns = tuple(dict.fromkeys(name for part in parts for name in part.columns()))
            parts = tuple(replace(part, absent=all_columns) for part in parts)

        if note:
            warnings.warn(note, LeftOutWarning, stacklevel=2)
        table = cls(domain, parts, root).filtered(where)
        dates = {period, *(attribute.column for attribute in domain.attributes if attribute.kind == "date")}
        dated = tuple(replace(part, fixed=calendar_names(part.fixed, dates)) for part in table.partitions)

        return replace(table, partitions=dated)

    def filtered(self, where: Where) -> Table:
        """Return the table restricted to matching rows.

        Parameters
        ----------
        where : Where
            Row filter, checked against the header of the first remaining file.

        Returns
        -------
        Table

        Raises
        ------
        DataError
            If the filter excludes every file, or names an absent column or a value of the wrong type.
        """
        if not where:
            return self

        reduced = [(part, reduce_filter(where, dict(part.fixed))) for part in self.partitions]
        parts = tuple(replace(part, where=remaining) for part, remaining in reduced if remaining is not None)
        if not parts:
            raise DataError(
                FIELD, f"{where}, which no folder name or partition matches", "a filter that matches a file", "fix it"
            )

        first = parts[0]
        known = [*self.domain.axis_names, *dict(first.fixed)]
        for condition in first.where.conditions:
            check_column(condition, [condition.column] if first.has(condition.column) else (), known)
            check_type(condition, first.kind(condition.column))

        return replace(self, partitions=parts)

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Files in the order of their names; empty for a data frame."""
        return tuple(dict.fromkeys(part.path for part in self.partitions if self.root))

    def require(self, columns: Sequence[str]) -> None:
        """Check that the first file has the given columns.

        Parameters
        ----------
        columns : sequence of str

        Raises
        ------
        DataError
            If a column is missing, or a listed value cannot be in files of this format.

        Examples
        --------
        >>> import dpscale as dp, pyarrow as pa, pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"a": [0, 1, 1]}), "a.parquet")
        >>> Table.open("a.parquet", dp.Domain(a=2)).require(["a"])
        """
        if self.lake is not None:
            self.lake.check(columns)
        first = self.partitions[0]
        present = first.columns() if first.format.lists_columns else columns

        for name in columns:
            if name not in present:
                known = self.domain.columns(self.domain.axis_names)
                there = [column for column in known if column in present]
                raise missing_column(name, first.path, there, first.dialect.format)
        if first.format.trims:
            for attribute in self.domain.axes:
                if attribute.column in columns:
                    check_trimmed(attribute, first.format.title)

    def types(self) -> dict[str, str]:
        """Return names and types of the domain's attributes, formats and numbers in the first file.

        Attributes and formats have the order of the file. Attributes that are derived from another column follow, with
        the type "", and numbers are last.

        Returns
        -------
        dict of str to str
            Arrow types; "" if the format is untyped. The order is that of the domain if files do not list their
            columns.

        Examples
        --------
        >>> import dpscale as dp, pyarrow as pa, pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"a": [0, 1, 1]}), "a.parquet")
        >>> Table.open("a.parquet", dp.Domain(a=2)).types()
        {'a': 'int64'}
        """
        first = self.partitions[0]
        listed = first.format.lists_columns
        present = first.types() if listed else dict.fromkeys(self.domain.columns(self.domain.names), "")
        derived = {
            attribute.name: ""
            for attribute in self.domain.attributes
            if attribute.source and attribute.source in present
        }

        names = {*self.domain.names, *(text_format.name for text_format in self.domain.formats)}
        numbers = {number.name: present[number.name] for number in self.domain.numbers if number.name in present}
        return {name: kind for name, kind in present.items() if name in names} | derived | numbers

    def split(self) -> Table:
        """Return the table with large files split into partitions of about SPLIT_ROWS rows.

        Formats decide where files are split: Parquet between row groups, Arrow between record batches,
        newline-delimited JSON between lines, delimited text not at all.

        Returns
        -------
        Table
        """
        return replace(self, partitions=tuple(part for partition in self.partitions for part in partition.pieces()))


def _paths(path: object) -> list[str]:
    """Return the requested paths as texts.

    The error for other objects shows only their type, since they may contain data.
    """
    paths: Sequence[Any] = path if isinstance(path, list | tuple) else [path]
    for entry in paths:
        if not isinstance(entry, str | os.PathLike):
            raise DataError(
                "data.path", type_of_value(entry), "a file, folder or glob, or a list of these", "pass its path"
            )
    return [os.fspath(entry).removeprefix("file://") for entry in paths]


def _ranges(paths: Sequence[str], dialect: Dialect) -> tuple[Partition, ...]:
    """Return the ranges of the rows of a database as partitions."""
    if len(paths) > 1:
        raise DataError("data.path", f"{len(paths)} paths with a database", "one table or query",
                        "combine them by UNION ALL in a query")  # fmt: skip
    if dialect.format:
        raise DataError("data.format", f"{dialect.format!r} for a database", "no format", "leave it out")
    read_address(paths[0])
    check_formats(paths, dialect)
    return tuple(Partition(path=paths[0], fixed=(), row_groups=part, share=size) for part, size in ranges_of(paths[0]))


def _sizes(paths: list[str], named: str) -> tuple[dict[str, int | None], str]:
    """Return the files with their sizes, or None where listing does not give a size, and a note on other files."""
    urls = [path for path in paths if is_url(path)]
    if not urls:
        listing = list_files(paths, named)
        return dict.fromkeys(listing.files), listing.note
    if len(urls) < len(paths) or len({url.partition("://")[2].partition("/")[0] for url in urls}) > 1:
        raise DataError(
            "data.path", "files in several locations", "one bucket, or this machine", "copy them to one location"
        )
    return {entry.url: entry.size for entry in find_objects(urls, named)}, ""


def warn_left_out(path: str, named: str = "") -> None:
    """Warn of files beside the data at a path that are left out; nothing if they cannot be listed here."""
    with suppress(DataError):
        if not is_url(path) and (note := list_files([path], named).note):
            warnings.warn(note, LeftOutWarning, stacklevel=2)


def missing_column(name: str, path: str, present: Sequence[str] = (), named: str = "") -> DataError:
    """Return the error for a missing column.

    It names only columns of the domain, because a file without a header has a record in its first line.
    """
    may_lack_header = (kind := format_of(path, named)) is None or not kind.typed
    remedy = "see whether it has a header" if may_lack_header else "see how the column is named, in the same case"
    remedy = f"of the domain's it has {', '.join(present)}" if present else remedy
    if not present and (mark := other_delimiter(path, named)):
        remedy = f'its fields seem set apart by {mark!r}: set delimiter = "{mark}" in [data]'.replace("\t", "\\t")
    return DataError("data.path", f"no column {name!r} in {path}", "a column for every attribute used", remedy)
