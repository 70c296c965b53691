"""Table: the files of a partitioned data set, opened lazily.

A partition is a file or some parts of a large one, read in batches of bounded size. Columns that a
hive-partitioned folder stores in its path (`year=2020/part.parquet`) are taken from the path. A file that has such a
column too must have the same value in it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dpscale.base.arrow import pa, pc, types
from dpscale.base.display import display_path, type_of_value
from dpscale.base.errors import DataError
from dpscale.domain import Domain
from dpscale.records.column_values import plain, plain_kind, repeated, same_value
from dpscale.records.database_rows import ranges_of
from dpscale.records.files import PLAIN, Dialect, OpenFile, RecordFormat, file_size
from dpscale.records.formats import check_distinct, check_formats, format_of, other_delimiter, reading
from dpscale.records.lake import Lake
from dpscale.records.listing import (
    Fixed,
    calendar_names,
    check_links,
    common_root,
    find_objects,
    hive_columns,
    list_files,
)
from dpscale.records.where import EVERYTHING, FIELD, Where, check_column, check_type, reduce_filter, select_rows
from dpscale.storage.databases import is_database, read_address
from dpscale.storage.objects import is_url

SPLIT_ROWS = 1 << 19  # 10⁸ rows in one file are enough work for a hundred workers
SPLIT_BYTES = 1 << 23  # a smaller file is one task; its footer is not read


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
        found = format_of(self.path, self.dialect.format)
        assert found is not None  # `find_files` has refused other files
        return found

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
            found = {name: _kind_of(source, name) for name in columns if name in present}
        return {name: found[name] if name in found else self._kind_without_file(name) for name in columns}

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
            return {name: str(plain_kind(source.kind(name))) if self.format.typed else "" for name in distinct}

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
            listed, given = self.format.lists_columns, dict(self.fixed)
            own = set(source.names) if listed else set(columns) - set(fixed)
            both = [name for name in columns if name in own and name in given]
            present = own - set(given)

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
                    self._check_same(name, given[name], batch.column(name))
                yield {n: plain(batch.column(n)) if n in present else repeated(fixed[n], rows) for n in columns}

    def _check_same(self, name: str, given: str | None, column: Any) -> None:
        """Raise DataError if a column of the file has other values than its folder's name."""
        if not all(same_value(value, given) for value in pc.unique(plain(column)).to_pylist()):
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
            every = tuple(dict.fromkeys(name for part in parts for name in part.columns()))
            parts = tuple(replace(part, absent=every) for part in parts)

        if note:
            warnings.warn(note, LeftOutWarning, stacklevel=2)
        table = cls(domain, parts, root).filtered(where)
        dates = {period, *(attribute.column for attribute in domain.attributes if attribute.kind == "date")}
        whole = tuple(replace(part, fixed=calendar_names(part.fixed, dates)) for part in table.partitions)

        return replace(table, partitions=whole)

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

        rest = [(part, reduce_filter(where, dict(part.fixed))) for part in self.partitions]
        parts = tuple(replace(part, where=own) for part, own in rest if own is not None)
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
            If a column is missing.

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
                there = [one for one in known if one in present]
                raise missing_column(name, first.path, there, first.dialect.format)

    def types(self) -> dict[str, str]:
        """Return names and types of the domain's attributes and formats in the first file, in its order.

        Attributes derived from another column are last and have the type "".

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
        made = {
            attribute.name: ""
            for attribute in self.domain.attributes
            if attribute.source and attribute.source in present
        }

        names = {*self.domain.names, *(one.name for one in self.domain.formats)}
        return {name: kind for name, kind in present.items() if name in names} | made

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
    for one in paths:
        if not isinstance(one, str | os.PathLike):
            raise DataError(
                "data.path", type_of_value(one), "a file, folder or glob, or a list of these", "pass its path"
            )
    return [os.fspath(one).removeprefix("file://") for one in paths]


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
        found = list_files(paths, named)
        return dict.fromkeys(found.files), found.note
    if len(urls) < len(paths) or len({url.partition("://")[2].partition("/")[0] for url in urls}) > 1:
        raise DataError(
            "data.path", "files in several locations", "one bucket, or this machine", "copy them to one location"
        )
    return {one.url: one.size for one in find_objects(urls, named)}, ""


def warn_left_out(path: str, named: str = "") -> None:
    """Warn of files beside the data at a path that are left out; nothing if they cannot be listed here."""
    with suppress(DataError):
        if not is_url(path) and (note := list_files([path], named).note):
            warnings.warn(note, LeftOutWarning, stacklevel=2)


def missing_column(name: str, path: str, present: Sequence[str] = (), named: str = "") -> DataError:
    """Return the error for a missing column.

    It names only columns of the domain, because a file without a header has a record in its first line.
    """
    has = f"of the domain's it has {', '.join(present)}" if present else "see whether it has a header"
    if not present and (mark := other_delimiter(path, named)):
        has = f'its fields seem set apart by {mark!r}: set delimiter = "{mark}" in [data]'.replace("\t", "\\t")
    return DataError("data.path", f"no column {name!r} in {path}", "a column for every attribute used", has)
