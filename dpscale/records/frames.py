"""Data frames as tables: pandas, Polars, pyarrow, or the partitions of a Dask DataFrame.

Unlike a file, a frame may compute to different records each time it is read, and equal noise on different counts would
reveal their exact difference. A partition therefore stores the hash of its content from the start of the release. Every
reading is hashed while it is counted, and changed content is refused before its counts are used. The hash covers the
lengths, nulls and values of all columns that the release reads, independent of the frame's memory layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpscale.base.arrow import buffers_of, is_bytes, is_text, pa, text_kind
from dpscale.base.display import type_of_value
from dpscale.base.errors import DataError
from dpscale.domain import Domain
from dpscale.records.column_values import plain, plain_kind
from dpscale.records.files import Dialect, OpenFile, RecordFormat, batch_rows
from dpscale.records.table import Partition

FRAME = "frame://"  # path of in-memory data
FIELD = "data"
FRAMES = "a pandas, Polars or Dask DataFrame, or Arrow data"
REMEDY = "convert it, or pass the path of files"
OTHER = ("a frame that computes to other records than before", "a frame that is the same each time it is read",
         "fix its seed or keep it (persist, or write it to Parquet), and give that")  # fmt: skip


class FrameFormat(RecordFormat):
    """Format of partitions in memory: columns with names and types, and no file."""

    name, title, suffixes = FIELD, "data frame", ()

    def open(self, path: str, dialect: Dialect) -> OpenFile:
        raise DataError(FIELD, f"{path}, which is in memory", "a file", "read the partition")


IN_MEMORY = FrameFormat()


@dataclass(frozen=True)
class Seen:
    """Content of a partition at its first reading.

    Attributes
    ----------
    content : str
        Hash of the content.
    rows, size : int
        Number of rows and of bytes.
    schema : pyarrow Schema
        Types of the columns.
    """

    content: str = field(repr=False)
    rows: int = field(repr=False)
    size: int = field(repr=False)
    schema: pa.Schema = field(repr=False)


@dataclass(frozen=True)
class FramePartition(Partition):
    """Partition of a data frame.

    `names` are the columns that the release reads, `seen` is the content at the first reading, and the third field is a
    function that returns the frame.
    """

    names: tuple[str, ...] = field(default=(), compare=False)
    held: Callable[[], object] | None = field(default=None, compare=False, repr=False)
    seen: Seen | None = field(default=None, compare=False, repr=False)

    @property
    def format(self) -> RecordFormat:
        return IN_MEMORY

    def columns(self) -> list[str]:
        return list(self.names)

    def has(self, column: str) -> bool:
        return column in self.names

    def kinds(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        return {name: self._seen.schema.field(name).type for name in columns}

    def types(self) -> dict[str, str]:
        return {name: str(text_kind(kind)) for name, kind in self.kinds(self.names).items()}

    def row_bound(self) -> int:
        return self._seen.rows

    def pieces(self) -> list[Partition]:
        return [self]

    def unfiltered(
        self, columns: Sequence[str], ids: str = "", domain: Domain | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield batches of the named columns. Raises DataError if the content differs from the first reading."""
        table = self._read()
        if content_of(table) != self._seen.content:
            raise DataError(FIELD, *OTHER)
        for batch in table.combine_chunks().to_batches(batch_rows(len(columns))):
            yield {name: batch.column(name) for name in columns}

    def look(self) -> Seen:
        """Read the frame for the first time."""
        table = self._read()
        return Seen(content=content_of(table), rows=table.num_rows, size=table.nbytes, schema=table.schema)

    @property
    def _seen(self) -> Seen:
        assert self.seen is not None
        return self.seen

    def _read(self) -> pa.Table:
        assert self.held is not None
        return as_arrow(self.held(), self.names)


def read_stream(frame: object) -> object:
    """Return an object that is only an Arrow stream or array as a pyarrow Table; data frames as they are.

    The records of a stream can be read only once, so they are read here. Raises DataError for other objects.
    """
    if isinstance(frame, pa.Table | pa.RecordBatch) or is_frame(frame):
        return frame

    try:
        if isinstance(frame, pa.RecordBatchReader):
            return frame.read_all()
        if hasattr(frame, "__arrow_c_stream__") and not _is_library(frame, "polars", "pandas"):
            return pa.RecordBatchReader.from_stream(frame).read_all()
        if hasattr(frame, "__arrow_c_array__") and not _is_library(frame, "polars", "pandas"):
            return pa.table(pa.record_batch(frame))
    except MemoryError:
        raise
    except Exception:  # of the stream's producer; its text may contain values
        raise DataError(
            FIELD, f"{type_of_value(frame)} that is no readable Arrow stream of records", FRAMES, REMEDY
        ) from None

    raise DataError(FIELD, type_of_value(frame), FRAMES, REMEDY)


def is_frame(frame: object) -> bool:
    """Return whether an object is a pandas, Polars or Dask DataFrame, or a lazy one."""
    return _is_library(frame, "pandas", "polars", "dask") and hasattr(type(frame), "columns")


def _is_library(frame: object, *libraries: str) -> bool:
    return any(kind.__module__.partition(".")[0] in libraries for kind in type(frame).__mro__)


def frame_columns(frame: Any) -> list[str]:
    """Return the names of a frame's columns. Raises DataError for other objects."""
    frame = read_stream(frame)
    if isinstance(frame, pa.Table | pa.RecordBatch):
        return list(frame.schema.names)
    return list(frame.collect_schema().names() if hasattr(frame, "collect_schema") else frame.columns)


def as_arrow(frame: object, names: Sequence[str]) -> pa.Table:
    """Return columns of a pandas, Polars or pyarrow table as a pyarrow Table.

    Raises DataError for other objects, and for a column that is missing, occurs twice, or has no type of its own.

    A lazy frame of Polars is computed here.
    """
    read: Any = read_stream(frame)
    known = frame_columns(read)
    for name in names:
        if known.count(name) != 1:
            got = "twice" if name in known else "missing in a partition"
            raise DataError(
                f"data column {name!r}", got, "one column of this name in every partition", "rename or add it"
            )

    if not _is_library(read, "pandas", "polars", "pyarrow"):
        raise DataError(FIELD, type_of_value(read), FRAMES, REMEDY)

    if _is_library(read, "polars"):
        read = read.select(list(names))
        read = read.collect() if hasattr(read, "collect") else read

    return pa.table({name: _plain_column(name, read[name]) for name in names})


def _plain_column(name: str, column: Any) -> pa.ChunkedArray:
    """Return a column of a frame in a plain type without a dictionary, whose order depends on the frame."""
    stated = str(getattr(column, "dtype", getattr(column, "type", "")))
    try:
        converted = _arrow_column(column)
        kind = plain_kind(converted.type)
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        kind = pa.large_binary() if is_bytes(kind) else kind
        return plain(converted).cast(pa.large_string() if is_text(kind) else kind)
    except MemoryError:
        raise
    except Exception:  # of the frame's library; its text may contain values
        is_mixed = stated == "object"
        got = "values of several types" if is_mixed else f"type {stated}"
        raise DataError(f"data column {name!r}", got, "numbers, texts, dates or times",
                        "convert it to one type" if is_mixed else "convert it") from None  # fmt: skip


def _arrow_column(column: Any) -> pa.ChunkedArray:
    """Return a column of pandas, Polars or Arrow as an Arrow array in chunks."""
    import pandas as pd

    if isinstance(column, pa.ChunkedArray):
        return column
    if isinstance(column, pa.Array):
        return pa.chunked_array([column])
    if _is_library(column, "polars"):
        if str(column.dtype) == "Object":  # Arrow gets the addresses of objects, which differ for equal ones
            raise TypeError(str(column.dtype))
        wide = str(column.dtype) in ("Int128", "UInt128")  # Arrow has no such integers; a cast refuses larger values
        return pa.chunked_array([(column.cast(_polars().Int64) if wide else column).to_arrow()])

    if isinstance(column.dtype, pd.PeriodDtype):  # Arrow gets numbers of periods
        raise TypeError(str(column.dtype))
    if isinstance(column.dtype, pd.SparseDtype):
        column = column.sparse.to_dense()
    if isinstance(column.dtype, pd.CategoricalDtype):  # labels of intervals, as of pandas.cut, are their texts
        categories = column.cat.categories
        if isinstance(categories.dtype, pd.IntervalDtype):
            column = column.cat.rename_categories(categories.astype(str))

    converted = pa.Array.from_pandas(column)
    return converted if isinstance(converted, pa.ChunkedArray) else pa.chunked_array([converted])


def _polars() -> Any:
    import polars

    return polars


def content_of(table: pa.Table) -> str:
    """Return the hash of a table's content. Raises DataError for a type that no attribute has."""
    hasher = hashlib.blake2b(digest_size=32)
    for name, column in zip(table.column_names, table.columns, strict=True):
        hasher.update(f"{name}\0{text_kind(column.type)}\0{len(column)}\0".encode())
        hasher.update(np.packbits(column.is_null().to_numpy()).data)
        for part in _values(column.drop_null(), name):
            hasher.update(np.ascontiguousarray(part).data)
    return hasher.hexdigest()


def _values(column: pa.ChunkedArray, name: str) -> list[Any]:
    """Return the bytes of the non-null values, in order.

    A column of texts or bytes gives two arrays: the lengths of its values and their bytes. Other columns give the bytes
    of their values.
    """
    values = column.combine_chunks()
    values = pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values
    if pa.types.is_null(values.type):
        return []

    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    if is_text(values.type) or is_bytes(values.type):
        # lengths as well: equal bytes may be divided in other ways
        data, offsets = buffers_of(values)
        return [np.diff(offsets), data[offsets[0] : offsets[-1]]]
    if not (pa.types.is_primitive(values.type) or pa.types.is_decimal(values.type)):
        raise DataError(f"data column {name!r}", f"type {values.type}", "numbers, texts, dates or times", "convert it")

    # a slice begins at `offset` in the buffer
    width = values.type.bit_width // 8
    stored = values.buffers()[1]
    return [np.frombuffer(stored, np.uint8, len(values) * width, values.offset * width)] if len(values) else []
