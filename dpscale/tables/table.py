"""Table: the files of a partitioned data set, opened lazily.

A partition is a file, or some row groups of a large Parquet file; it is read in batches of bounded size. Columns that
a hive-partitioned folder keeps in its path (`year=2020/part.parquet`) are read from there.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from dpscale.domain import Domain
from dpscale.errors import DataError
from dpscale.names import nearest

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".parquet", ".pq", ".csv")
BATCH_ROWS = 1 << 18
SPLIT_ROWS = 1 << 23
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Partition:
    """Part of a table: a file, the row groups of it (all when empty) and the columns that its path fixes."""

    path: str
    fixed: tuple[tuple[str, str | None], ...] = ()
    row_groups: tuple[int, ...] = ()

    @property
    def is_csv(self) -> bool:
        return self.path.endswith(".csv")

    def columns(self) -> list[str]:
        """Names of the columns that can be read here; reads the file's header only."""
        with _reading(self.path):
            return [*self._names(), *dict(self.fixed)]

    def batches(self, columns: Sequence[str], texts: frozenset[str] = frozenset()) -> Iterator[dict[str, pa.Array]]:
        """The named columns, in batches of at most BATCH_ROWS rows; CSV columns in `texts` are read as text."""
        fixed = dict(self.fixed)
        with _reading(self.path):
            present = self._names()
            for name in columns:
                if name not in present and name not in fixed:
                    raise missing_column(name, self.path, [*present, *fixed])
            wanted = [name for name in columns if name in present]
            for batch in self._read(wanted or present[:1], texts):
                rows = len(batch)
                yield {n: batch.column(n) if n in present else _repeated(fixed[n], rows) for n in columns}

    def _names(self) -> list[str]:
        if self.is_csv:
            import pyarrow.csv as csv

            with csv.open_csv(self.path, read_options=csv.ReadOptions(block_size=1 << 20)) as reader:
                return list(reader.schema.names)
        import pyarrow.parquet as pq

        return list(pq.read_schema(self.path).names)

    def _read(self, columns: list[str], texts: frozenset[str]) -> Iterator[pa.RecordBatch]:
        if self.is_csv:
            yield from _csv_batches(self.path, columns, texts)
            return
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.path, memory_map=True) as file:
            groups = self.row_groups or range(file.num_row_groups)
            dictionaries = [n for n in columns if str(file.schema_arrow.field(n).type) in ("string", "large_string")]
        with pq.ParquetFile(self.path, memory_map=True, read_dictionary=dictionaries) as file:
            yield from file.iter_batches(BATCH_ROWS, row_groups=list(groups), columns=columns, use_threads=False)


def _csv_batches(path: str, columns: list[str], texts: frozenset[str]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.csv as csv

    kinds = {name: pa.string() for name in columns if name in texts}
    convert = csv.ConvertOptions(include_columns=columns, column_types=kinds, strings_can_be_null=True)
    with csv.open_csv(path, convert_options=convert, read_options=csv.ReadOptions(block_size=1 << 24)) as reader:
        for batch in reader:
            for start in range(0, len(batch), BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)


def _repeated(value: str | None, rows: int) -> pa.Array:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array([value], pa.string()))


@dataclass(frozen=True)
class Table:
    """A partitioned table and the domain of its records. Opening reads no record."""

    domain: Domain
    partitions: tuple[Partition, ...]
    root: str

    @classmethod
    def open(cls, path: str | Path | Sequence[str | Path], domain: Domain) -> Table:
        """Open a file, a folder (hive-partitioned or not) or a glob of Parquet or CSV files."""
        paths = [path] if isinstance(path, str | Path) else list(path)
        root, files = _files([str(p) for p in paths])
        return cls(domain, tuple(Partition(file, _hive(file, root)) for file in files), root)

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The files, in the order of their names."""
        return tuple(dict.fromkeys(partition.path for partition in self.partitions))

    def require(self, columns: Sequence[str]) -> None:
        """DataError when the first file lacks one of the columns."""
        first = self.partitions[0]
        present = first.columns()
        for name in columns:
            if name not in present:
                raise missing_column(name, first.path, present)

    def split(self) -> Table:
        """The same table with large Parquet files cut by row groups into partitions of about SPLIT_ROWS rows."""
        return replace(self, partitions=tuple(part for whole in self.partitions for part in _split(whole)))


def missing_column(name: str, path: str, present: Sequence[str]) -> DataError:
    return DataError("data.path", f"no column {name!r} in {path}", "a column for every attribute used",
                     nearest(name, present))


def _files(paths: list[str]) -> tuple[str, list[str]]:
    found: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            found += [f for f in glob.glob(f"{glob.escape(path)}/**", recursive=True) if f.endswith(SUFFIXES)]
        elif os.path.exists(path):
            found.append(path)
        else:
            found += [f for f in glob.glob(path, recursive=True) if os.path.isfile(f)]
    visible = sorted({os.path.abspath(f) for f in found if not os.path.basename(f).startswith(("_", "."))})
    for file in visible:
        if not file.endswith(SUFFIXES):
            raise DataError("data.path", f"{file}", "Parquet or CSV files", f"name it *{', *'.join(SUFFIXES)}")
    if not visible:
        raise DataError("data.path", f"no file at {', '.join(paths)}", "a file, folder or glob", "check the path")
    root = os.path.abspath(paths[0]) if len(paths) == 1 and os.path.isdir(paths[0]) else os.path.commonpath(visible)
    return (root if os.path.isdir(root) else os.path.dirname(root)), visible


def _hive(file: str, root: str) -> tuple[tuple[str, str | None], ...]:
    parents = os.path.relpath(os.path.dirname(file), root).split(os.sep)
    tail = root.split(os.sep)
    while tail and "=" in tail[-1]:  # a glob whose common folder is itself a partition
        parents.insert(0, tail.pop())
    pairs = [part.split("=", 1) for part in parents if "=" in part]
    return tuple((unquote(key), None if value == HIVE_NULL else unquote(value)) for key, value in pairs)


def _split(partition: Partition) -> list[Partition]:
    if partition.is_csv or os.path.getsize(partition.path) < SPLIT_ROWS:
        return [partition]
    import pyarrow.parquet as pq

    with _reading(partition.path):
        metadata = pq.read_metadata(partition.path)
    groups: list[list[int]] = [[]]
    rows = 0
    for group in range(metadata.num_row_groups):
        if rows >= SPLIT_ROWS:
            groups, rows = [*groups, []], 0
        groups[-1].append(group)
        rows += metadata.row_group(group).num_rows
    return [replace(partition, row_groups=tuple(group)) for group in groups]


class _reading:
    """Turns what a broken file raises into one sentence that names the file and nothing of its content."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        import pyarrow as pa

        if isinstance(error, pa.ArrowException | OSError) and not isinstance(error, DataError):
            reason = "cannot be read" if isinstance(error, OSError) else "is damaged or not of its format"
            raise DataError("data.path", f"{self.path} {reason}", "readable Parquet or CSV", "mend or remove it") from None
