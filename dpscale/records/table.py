"""Table: the files of a partitioned data set, opened lazily.

A partition is a file, or some row groups of a large Parquet file; it is read in batches of bounded size. Columns that
a hive-partitioned folder keeps in its path (`year=2020/part.parquet`) are read from there where the file lacks them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpscale.base.display import called
from dpscale.base.errors import DataError
from dpscale.domain import Domain
from dpscale.records.file_readers import Source, open_source
from dpscale.records.files import (
    PLAIN,
    Dialect,
    Fixed,
    check_formats,
    check_links,
    codec_of,
    common_root,
    find_files,
    find_objects,
    hive_columns,
    is_csv,
)
from dpscale.records.lake.version import Lake
from dpscale.records.raw import other_delimiter, reading
from dpscale.records.row_filter import check_column, check_type, kept, left
from dpscale.records.where import EVERYTHING, FIELD, Where
from dpscale.storage.objects import is_url, looked_at

if TYPE_CHECKING:
    import pyarrow as pa

SPLIT_ROWS = 1 << 19  # so that 10⁸ rows in one file are work for a hundred workers
PACKED = 5  # rows to a byte of a compressed file
SPLIT_BYTES = 1 << 23  # a file below it is one task's work, whatever it holds; its footer is not looked at


@dataclass(frozen=True)
class Partition:
    """Part of a table: a file, the row groups of it (all when empty) and the columns that its path fixes.

    `share` is about how many bytes of the file it is, where it is not all; equality does not look at it. `dialect`: how
    it is written. `where`: which rows are there, of conditions that its path does not decide.
    `absent`: columns that are null where the file lacks them.
    """

    path: str
    fixed: Fixed = ()
    row_groups: tuple[int, ...] = ()
    share: int | None = field(default=None, compare=False)
    dialect: Dialect = PLAIN
    where: Where = EVERYTHING
    absent: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_csv(self) -> bool:
        return is_csv(self.path, self.dialect.format)

    def source(self) -> Source:
        """The file, opened."""
        return open_source(self.path, self.dialect)

    def size(self) -> int:
        """About how many bytes there are to read."""
        with reading(self.path, self.dialect.format):
            return file_size(self.path) if self.share is None else self.share

    def columns(self) -> list[str]:
        """Names of the columns that can be read here; reads the file's header only."""
        with reading(self.path, self.dialect.format):
            return list(dict.fromkeys([*self.source().names, *dict(self.fixed), *self.absent]))

    def kind(self, column: str) -> pa.DataType:
        """The type of a column here; reads the file's header only."""
        import pyarrow as pa

        with reading(self.path, self.dialect.format):
            source = self.source()
            if column in source.names:
                return source.kind(column)
        if column in dict(self.fixed):
            return pa.string()
        if column not in self.absent:
            raise missing_column(column, self.path, named=self.dialect.format)
        return pa.null()

    def types(self) -> dict[str, str]:
        """Names and types of the file's own columns, in its order; "" for texts of a CSV."""
        with reading(self.path, self.dialect.format):
            source = self.source()
            return {name: "" if self.is_csv else str(source.kind(name)) for name in source.names}

    def row_bound(self) -> int:
        """An upper guess of the file's rows: by its footer, or one row to two bytes of a CSV, or to a fifth of a
        compressed one's byte."""
        with reading(self.path, self.dialect.format):
            if self.is_csv:
                size = file_size(self.path)
                return size * PACKED if codec_of(self.path) else size // 2
            return sum(self.source().groups())

    def pieces(self) -> list[Partition]:
        """This partition, cut by row groups where it is large."""
        if self.is_csv or self.size() < SPLIT_BYTES:
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
        """The named columns of the rows that are there, in batches of bounded length. `ids`: one of which most entries
        differ.

        `domain`: of those who encode by it. Its columns may then be cells already, which `encode` takes too; not where
        there is a filter, which looks at values, and rows that it leaves out may hold what the domain refuses.
        """
        if not self.where:
            return self.unfiltered(columns, ids, domain)
        read = self.unfiltered(list(dict.fromkeys([*columns, *self.where.columns])), ids)
        return kept(self.where, read, columns)

    def unfiltered(
        self, columns: Sequence[str], ids: str = "", domain: Domain | None = None
    ) -> Iterator[dict[str, Any]]:
        """The same of all rows."""
        fixed = dict.fromkeys(self.absent) | dict(self.fixed)
        with reading(self.path, self.dialect.format):
            source = self.source()
            present = set(source.names)
            for name in columns:
                if name not in present and name not in fixed:
                    raise missing_column(name, self.path, named=self.dialect.format)
            wanted = [name for name in columns if name in present]
            for batch in source.batches(wanted or source.names[:1], self.row_groups, ids, domain):
                rows = len(batch)
                yield {n: batch.column(n) if n in present else _repeated(fixed[n], rows) for n in columns}


def _repeated(value: str | None, rows: int) -> pa.Array:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array([value], pa.string()))


@dataclass(frozen=True)
class Table:
    """A partitioned table and the domain of its records. Opening reads no record. `root`: the folder that its files are
    in; empty for a frame, which has none. `lake`: the version that it is of a table with a log."""

    domain: Domain
    partitions: tuple[Partition, ...]
    root: str
    lake: Lake | None = None

    @classmethod
    def open(cls, path: str | Path | Sequence[str | Path], domain: Domain, links: bool = False,
             dialect: Dialect = PLAIN, where: Where = EVERYTHING) -> Table:  # fmt: skip
        """Open a file, a folder (hive-partitioned or not) or a glob of Parquet, CSV or Arrow files, or a list of these.

        An address (`s3://bucket/folder`) is of an object store; its keys are those of the environment.

        `links`: a file of two names counts once for each; else that is refused. `where`: which rows are there; what no
        row of a file can match by its folders' names is no file of the table, and is never opened.
        """
        if not isinstance(domain, Domain):
            raise DataError("domain", f"a {type(domain).__name__}", "a Domain", "read one: Domain.read(path)")
        paths = _paths(path)
        sizes = _sizes(paths, dialect.format)
        files = list(sizes)
        if not files:
            told = ", ".join(map(called, paths)) or "no path"
            raise DataError("data.path", f"no file at {told}", "a file, folder or glob", "check the path")
        check_formats(files, dialect)
        if not links:
            check_links(files)
        root = common_root(paths, files)
        parts = tuple(Partition(file, hive_columns(file, root), (), size, dialect) for file, size in sizes.items())
        return cls(domain, parts, root).filtered(where)

    def filtered(self, where: Where) -> Table:
        """The rows that match, by headers of the first file left; DataError for a filter that does not fit them."""
        if not where:
            return self
        rest = [(part, left(where, dict(part.fixed))) for part in self.partitions]
        parts = tuple(replace(part, where=own) for part, own in rest if own is not None)
        if not parts:
            raise DataError(
                FIELD, f"{where}, which no folder's name or partition matches", "a filter that leaves a file", "mend it"
            )
        first = parts[0]
        known = [*self.domain.names, *dict(first.fixed)]
        for one in first.where.conditions:
            check_column(one, first.columns(), known)
            check_type(one, first.kind(one.column))
        return replace(self, partitions=parts)

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The files, in the order of their names; none of a frame."""
        return tuple(dict.fromkeys(part.path for part in self.partitions if self.root))

    def require(self, columns: Sequence[str]) -> None:
        """DataError when the first file lacks one of the columns."""
        if self.lake is not None:
            self.lake.check(columns)
        first = self.partitions[0]
        present = first.columns()
        for name in columns:
            if name not in present:
                known = self.domain.columns(self.domain.names)
                there = [one for one in known if one in present]
                raise missing_column(name, first.path, there, first.dialect.format)

    def types(self) -> dict[str, str]:
        """Names and types of the domain's attributes as the first file has them, in its order; "" for texts of a CSV.

        Attributes that are made of another column stand last, and have the type of their kind."""
        present = self.partitions[0].types()
        made = {one.name: "" for one in self.domain.attributes if one.source and one.source in present}
        return {name: kind for name, kind in present.items() if name in self.domain.names} | made

    def split(self) -> Table:
        """The same table, large Parquet and Arrow files cut by row groups into partitions of about SPLIT_ROWS rows."""
        return replace(self, partitions=tuple(part for partition in self.partitions for part in partition.pieces()))


def _paths(path: Any) -> list[str]:
    """The paths asked for, as texts; what is none may be a table itself, of which nothing is told."""
    paths = path if isinstance(path, list | tuple) else [path]
    for one in paths:
        if not isinstance(one, str | os.PathLike):
            raise DataError(
                "data.path", f"a {type(one).__name__}", "a file, folder or glob, or a list of these", "give its path"
            )
    return [os.fspath(one).removeprefix("file://") for one in paths]


def _sizes(paths: list[str], named: str) -> dict[str, int | None]:
    """The files, and how large they are where finding them tells that."""
    urls = [path for path in paths if is_url(path)]
    if not urls:
        return dict.fromkeys(find_files(paths, named))
    if len(urls) < len(paths) or len({url.partition("://")[2].partition("/")[0] for url in urls}) > 1:
        raise DataError("data.path", "files of several places", "one bucket, or this machine", "copy them together")
    return {one.url: one.size for one in find_objects(urls, named)}


def file_size(path: str) -> int:
    """How many bytes a file has."""
    return looked_at(path).size if is_url(path) else os.path.getsize(path)


def missing_column(name: str, path: str, present: Sequence[str] = (), named: str = "") -> DataError:
    """Of the file's own columns only those that the domain names: without a header its first record stands there."""
    has = f"of the domain's it has {', '.join(present)}" if present else "see whether it has a header"
    if not present and (mark := other_delimiter(path, named)):
        has = f'its fields seem set apart by {mark!r}: set delimiter = "{mark}" in [data]'.replace("\t", "\\t")
    return DataError("data.path", f"no column {name!r} in {path}", "a column for every attribute used", has)
