"""Readers of one CSV, Arrow or Parquet file: column names, and rows in batches of bounded size."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from dpscale.base.arrow import arrow_csv, is_text, pa, pc, pq
from dpscale.base.errors import DataError
from dpscale.base.numerics import Integers
from dpscale.domain import Domain
from dpscale.records.files import PLAIN, Dialect, codec_of, is_csv, is_parquet
from dpscale.records.raw import batch_rows, mapped, mapped_bytes, small, streamed
from dpscale.storage.objects import is_url

if TYPE_CHECKING:
    from dpscale.records.pages import Bytes, Group

BLOCK_BYTES = 1 << 24
HEAD_BYTES = 1 << 16


class CsvSource:
    """CSV file whose columns are all texts; the column names are in its header or given by the dialect."""

    def __init__(self, path: str, dialect: Dialect) -> None:
        self.path, self.dialect = path, dialect
        self._raw = list(dialect.names) or _first_line(path, dialect)
        self.names = [name.strip() for name in self._raw]

    def kind(self, name: str) -> pa.DataType:
        """Return the text type, the type of every CSV column."""
        return pa.string()

    def groups(self) -> list[int]:
        """Return an empty list: a CSV file cannot be split and its number of rows is unknown."""
        return []

    def batches(self, columns: Sequence[str], row_groups: Sequence[int] = (), ids: str = "",
                domain: Domain | None = None) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Yield batches of the columns as dictionary-encoded texts."""
        self._check_width()
        raw = [self._raw[self.names.index(name)] for name in columns]
        kinds = dict.fromkeys(raw, pa.dictionary(pa.int32(), pa.string()))
        convert = arrow_csv.ConvertOptions(include_columns=raw, column_types=kinds, strings_can_be_null=False)
        read = arrow_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False, encoding=self.dialect.encoding,
                                     column_names=list(self.dialect.names) or None)  # fmt: skip
        parse = arrow_csv.ParseOptions(newlines_in_values=True, delimiter=self.dialect.of(self.path))
        rows = batch_rows(len(columns))
        nothing = pa.array(["", *self.dialect.null_values], pa.string())
        with _read_on(self.path) as where, arrow_csv.open_csv(where, read, parse, convert) as reader:
            for block in reader:
                tidy = pa.RecordBatch.from_arrays([_tidy(column, nothing) for column in block.columns], list(columns))
                for start in range(0, len(tidy), rows):
                    yield tidy.slice(start, rows)

    def _check_width(self) -> None:
        """Raise DataError if a file without a header has a different number of columns than the given names."""
        names = self.dialect.names
        if names and len(found := _first_line(self.path, self.dialect)) != len(names):
            raise DataError("data.names", f"{len(names)} names for the {len(found)} columns of {self.path}",
                            "a name for every column", "name all columns in order")  # fmt: skip


def _read_on(path: str) -> AbstractContextManager[Any]:
    return streamed(path) if codec_of(path) or is_url(path) else nullcontext(path)


def _first_line(path: str, dialect: Dialect) -> list[str]:
    encoding = "utf-8-sig" if dialect.encoding == "utf-8" else dialect.encoding
    with streamed(path, HEAD_BYTES) as file:
        text = io.TextIOWrapper(file, encoding=encoding, newline="")
        for line in csv.reader(text, delimiter=dialect.of(path)):
            if line:
                return line
    raise DataError("data.path", f"{path} is empty", "a CSV file with a header", "fix or remove it")


def _tidy(column: pa.DictionaryArray, nothing: pa.Array) -> pa.DictionaryArray:
    """Return the column with surrounding blanks removed and with null for empty texts and null values."""
    texts = pc.utf8_trim_whitespace(column.dictionary)
    told = pc.if_else(pc.is_in(texts, value_set=nothing), None, texts)
    return pa.DictionaryArray.from_arrays(column.indices, told)


class ArrowSource:
    """Arrow file; its footer is read once."""

    def __init__(self, path: str) -> None:
        self.path = path
        with self._reader() as reader:
            self.schema, self._count = reader.schema, reader.num_record_batches
        self.names: list[str] = list(self.schema.names)

    def kind(self, name: str) -> pa.DataType:
        """Return the type of a column."""
        return self.schema.field(name).type

    def groups(self) -> list[int]:
        """Return the number of rows of each record batch."""
        with self._reader(self.names[:1]) as reader:
            return [reader.get_batch(number).num_rows for number in range(self._count)]

    def batches(self, columns: Sequence[str], row_groups: Sequence[int] = (), ids: str = "",
                domain: Domain | None = None) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Yield the columns of the given record batches (default: all)."""
        with self._reader(columns) as reader:
            for number in row_groups or range(self._count):
                batch, rows = reader.get_batch(number).select(list(columns)), batch_rows(len(columns))
                for start in range(0, len(batch), rows):
                    yield batch.slice(start, rows)

    @contextmanager
    def _reader(self, columns: Sequence[str] = ()) -> Iterator[Any]:
        """Open the file and read only the given columns (default: all)."""
        fields = [self.names.index(name) for name in columns]
        with mapped(self.path) as where, pa.PythonFile(where) if is_url(self.path) else pa.memory_map(where) as file:
            yield pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False))


class Source(Protocol):
    """Open file: the names of its columns, and the rows of requested columns."""

    names: list[str]

    def kind(self, name: str) -> pa.DataType: ...

    def groups(self) -> list[int]:
        """Return the number of rows of each separately readable part."""

    def batches(self, columns: Sequence[str], row_groups: Sequence[int], ids: str = "",
                domain: Domain | None = None) -> Iterator[Any]:  # fmt: skip
        """Yield batches with `len(batch)` rows and `batch.column(name)`.

        A column is an array or, if a domain is given, possibly its cells.
        """
        ...


def open_source(path: str, dialect: Dialect = PLAIN) -> Source:
    """Open a file and read its header or footer once."""
    source: Source
    if is_csv(path, dialect.format):
        source = CsvSource(path, dialect)
    else:
        source = ParquetSource(path) if is_parquet(path, dialect.format) else ArrowSource(path)
    if len(set(source.names)) != len(source.names):
        raise DataError("data.path", f"{path} has two columns with the same name", "distinct names", "rename one")
    return source


class ParquetSource:
    """Parquet file; its footer is read once."""

    def __init__(self, path: str) -> None:
        self.path, self._small = path, None if is_url(path) else small(path)
        self.metadata = footer(path, self._small)
        self.schema = self.metadata.schema.to_arrow_schema()
        self.names: list[str] = list(self.schema.names)
        self._chunks: Integers | None = None
        self.places = {name: place for place, name in enumerate(self.names)}

    def kind(self, name: str) -> pa.DataType:
        """Return the type of a column."""
        return self.schema.field(name).type

    def groups(self) -> list[int]:
        """Return the number of rows of each row group."""
        return [self.metadata.row_group(number).num_rows for number in range(self.metadata.num_row_groups)]

    def chunks(self, data: pa.Buffer | Bytes) -> Integers:
        """Return the footer's metadata of every column chunk (`chunk_table`).

        pyarrow could read it too, but a damaged footer terminates its process.
        """
        from dpscale.records.parquet.headers import chunk_table

        if self._chunks is None:
            self._chunks = chunk_table(data, self.metadata.num_row_groups, len(self.names))
        return self._chunks

    def batches(self, columns: Sequence[str], row_groups: Sequence[int] = (), ids: str = "",
                domain: Domain | None = None) -> Iterator[Any]:  # fmt: skip
        """Yield the columns of the given row groups (default: all); texts except `ids` are dictionary-encoded.

        If a domain is given and the file is local, columns stored with dictionaries are returned as cells.
        """
        from dpscale.records.pages import Group

        groups = list(row_groups or range(self.metadata.num_row_groups))
        if domain is None or is_url(self.path) or self.metadata.num_columns != len(self.names):
            yield from self._plainly(columns, groups, ids)
            return
        with nullcontext(self._small) if self._small else mapped_bytes(self.path) as data:
            for number in groups:
                group = Group(self, data, number, [name for name in columns if name != ids], domain)
                yield from self._group(group, number, columns, ids)

    def _group(self, group: Group, number: int, columns: Sequence[str], ids: str) -> Iterator[Any]:
        """Yield the batches of a row group: columns decoded by `pages` together with those read by pyarrow."""
        from dpscale.records.pages import Decoded

        rows = batch_rows(len(columns))
        odd = [name for name in columns if name not in group.ours]
        if not odd:
            for start in range(0, group.rows, rows):
                length = min(rows, group.rows - start)
                yield Decoded(length, group.take(length))
            return
        for batch in self._plainly(odd, [number], ids, rows):
            yield Decoded(len(batch), {name: batch.column(name) for name in odd} | group.take(len(batch)))

    def _plainly(
        self, columns: Sequence[str], groups: Sequence[int], ids: str, rows: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches read by pyarrow, with texts as dictionaries.

        pyarrow cannot decode DELTA_LENGTH_BYTE_ARRAY pages into dictionaries, so these texts are encoded here.
        """
        texts, done = [name for name in columns if name != ids and is_text(self.schema.field(name).type)], 0
        try:
            for batch in self._decoded(columns, groups, texts, rows):
                yield batch
                done += len(batch)
        except OSError as error:
            if not texts or "Not yet implemented" not in str(error):
                raise
            for batch in self._decoded(columns, groups, (), rows):
                begun, done = min(done, len(batch)), max(done - len(batch), 0)
                if begun < len(batch):
                    yield _with_dictionaries(batch.slice(begun), texts)

    def _decoded(
        self, columns: Sequence[str], groups: Sequence[int], dictionaries: Sequence[str], rows: int
    ) -> Iterator[pa.RecordBatch]:
        with mapped(self.path) as where:
            far = is_url(self.path)  # fetch only the requested columns, in few large pieces
            with pq.ParquetFile(where, metadata=self.metadata, memory_map=not far, read_dictionary=list(dictionaries),
                                pre_buffer=far) as file:  # fmt: skip
                yield from file.iter_batches(rows or batch_rows(len(columns)), row_groups=list(groups),
                                             columns=list(columns), use_threads=False)  # fmt: skip


def _with_dictionaries(batch: pa.RecordBatch, texts: Sequence[str]) -> pa.RecordBatch:
    """Return the batch with the given columns dictionary-encoded."""
    for name in texts:
        batch = batch.set_column(batch.schema.get_field_index(name), name, batch.column(name).dictionary_encode())
    return batch


def footer(path: str, held: pa.Buffer | None = None) -> pq.FileMetaData:
    """Return the metadata of a Parquet file, from its bytes if they are given."""
    if held is not None:
        return pq.read_metadata(pa.BufferReader(held))
    with mapped(path) as where:
        return pq.read_metadata(where)
