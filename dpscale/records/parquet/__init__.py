"""Parquet files: reader, and compiled loops over the bytes of footers, pages, levels and packed values.

The loops (`headers`, `values`) are independent of tables and domains, and validate everything that they read
from a file. `records.pages` decodes columns to cell numbers by them; other columns are read by pyarrow.

A row group is a range of rows, and a column chunk is a column in one row group, stored in pages. `ids` names a column
with mostly distinct values, whose texts are not encoded as a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from dpscale.base.arrow import is_text, pa, pq, types
from dpscale.base.display import format_bytes
from dpscale.base.errors import DataError
from dpscale.records.files import (
    MOST_PAGE,
    Dialect,
    OpenFile,
    RecordFormat,
    batch_rows,
    fetched_bytes,
    file_size,
    mapped,
    mapped_bytes,
    small,
)
from dpscale.storage.objects import is_url

if TYPE_CHECKING:
    from dpscale.base.numerics import Integers
    from dpscale.domain import Domain
    from dpscale.records.pages import Bytes, Decoded, Group

SMALL_GROUP, FEW_COLUMNS = 1 << 14, 12  # rows and columns of a row group that pyarrow reads sooner
FIRST_VALUES = 1 << 22  # of a process that pyarrow reads, because compiling or loading the loops takes longer
INT96_UNIT = "us"
TAIL = 8  # last bytes of a Parquet file: the footer's length and a magic number


_values_read = 0


def _among_first(values: int) -> bool:
    """Return whether some values are among the first of this process, and count them."""
    global _values_read
    first = _values_read + values <= FIRST_VALUES
    _values_read += values if first else 0
    return first


class OpenParquet(OpenFile):
    """Parquet file; its footer is read once."""

    def __init__(self, path: str, most_page: int = MOST_PAGE) -> None:
        """Read the footer; a small local file is read as a whole.

        A page of more than `most_page` bytes, unpacked, is refused when its column is read.
        """
        self.most_page = most_page
        self.path, self._small = path, None if is_url(path) else small(path)
        self.metadata = footer(path, self._small)
        self.schema = _without_int96(self.metadata)
        self.names = list(self.schema.names)
        self._chunks: Integers | None = None
        self.places = {name: place for place, name in enumerate(self.names)}

    def kind(self, name: str) -> pa.DataType:
        """Return the type of a column."""
        return self.schema.field(name).type

    def is_null(self, name: str) -> bool:
        """Return whether the footer states that a column has no values."""
        place, has_rows = self.places[name], False
        # a nested column has several leaves, and the places of the others are then unknown
        is_flat = self.metadata.num_columns == len(self.names)
        for number in range(self.metadata.num_row_groups if is_flat else 0):
            group = self.metadata.row_group(number)
            stated = group.column(place).statistics
            if stated is None or not stated.has_null_count or stated.null_count < group.num_rows:
                return False
            has_rows = has_rows or group.num_rows > 0
        return has_rows

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

    def batches(
        self, columns: Sequence[str], row_groups: Sequence[int] = (), ids: str = "", domain: Domain | None = None
    ) -> Iterator[Any]:
        """Yield the columns of the given row groups (default: all); texts except `ids` are dictionary-encoded.

        If a domain is given, columns stored with dictionaries are returned as cells.

        Without a domain, with nested columns, or with little data (`_is_little`) pyarrow decodes faster.
        """
        from dpscale.records.pages import Decoded, Group

        groups = list(row_groups or range(self.metadata.num_row_groups))
        for number in groups:
            self._check_pages(columns, number)
        if domain is None or self.metadata.num_columns != len(self.names) or self._is_little(columns, groups):
            yield from self._plainly(columns, groups, ids)
            return

        wanted = [name for name in columns if name != ids]
        for number in groups:
            with self._bytes(number, wanted) as data:
                if data is None:
                    yield from self._plainly(columns, [number], ids)
                else:
                    yield from self._group(
                        Group(source=self, data=data, number=number, names=wanted, domain=domain),
                        Decoded,
                        number,
                        columns,
                        ids,
                    )

    def _check_pages(self, columns: Sequence[str], number: int) -> None:
        """Raise DataError if a page of some columns is too large to be unpacked; its header states its size.

        The sizes in the footer are checked first, because they bound those of the pages; headers of pages are read only
        for a large chunk.
        """
        # the whole row group is smaller than the largest page that is permitted
        if self.metadata.row_group(number).total_byte_size <= self.most_page:
            return

        from dpscale.records.parquet import headers

        size, schema = file_size(self.path), self.metadata.schema
        with self._ranges([(size - TAIL - self.metadata.serialized_size, size)]) as data:
            chunks = headers.chunk_table(data, self.metadata.num_row_groups, self.metadata.num_columns)[number]
        paths = [schema.column(place).path for place in range(self.metadata.num_columns)]
        names = [path if path in self.places else path.split(".")[0] for path in paths]

        for name, chunk in zip(names, chunks.tolist(), strict=True):
            places = [place for place in (chunk[headers.DATA_PLACE], chunk[headers.DICTIONARY_PLACE]) if place > 0]
            # columns that are not read, and chunks that are small enough
            if name not in columns or chunk[headers.UNPACKED] <= self.most_page or not places:
                continue

            start = min(places)
            with self._ranges([(start, start + chunk[headers.BYTES])]) as data:
                most = int(headers.largest_page(data, start, chunk[headers.COUNT]))
            if most > self.most_page:
                raise DataError(f"data column {name!r}", f"a page in {self.path} that is too large to be unpacked",
                                f"pages of at most {format_bytes(self.most_page)}, a sixteenth of engine.memory",
                                "raise it, or write the file with smaller values or pages")  # fmt: skip

    @contextmanager
    def _ranges(self, ranges: Sequence[tuple[int, int]]) -> Iterator[Bytes]:
        """Yield the bytes of the file, from a store at least those of some ranges."""
        far = is_url(self.path)
        with fetched_bytes(self.path, file_size(self.path), ranges) if far else mapped_bytes(self.path) as data:
            yield np.frombuffer(data, np.uint8)

    def _is_little(self, columns: Sequence[str], groups: Sequence[int]) -> bool:
        """Return whether pyarrow reads the values sooner: than loops that are not loaded, or than many calls of them.

        A row group costs the loops about as much as pyarrow a group of FEW_COLUMNS columns.
        """
        rows = sum(self.metadata.row_group(number).num_rows for number in groups)
        small = rows < SMALL_GROUP * len(groups) and len(columns) < FEW_COLUMNS
        return small or _among_first(len(columns) * rows)

    @contextmanager
    def _bytes(self, number: int, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the file's bytes, from a store those of a row group; None if pyarrow has to read the columns."""
        if self._small:
            yield self._small
        elif not is_url(self.path):
            with mapped_bytes(self.path) as data:
                yield data
        elif (span := self._span(number, columns)) is None:
            yield None
        else:
            size = file_size(self.path)
            with fetched_bytes(self.path, size, [span, (size - TAIL - self.metadata.serialized_size, size)]) as data:
                yield data

    def _span(self, number: int, columns: Sequence[str]) -> tuple[int, int] | None:
        """Return the first byte of a row group's columns and the end of the group, between which no byte is left out.

        Pages are followed to their own end, which a wrong size in the footer may understate. None if the columns are
        less than half of the bytes, or if row groups are not in order.
        """
        group, last = self.metadata.row_group(number), number + 1 == self.metadata.num_row_groups
        wanted = [group.column(self.places[name]) for name in columns]
        first = min(map(_start_of, wanted), default=0)
        if last:
            end = file_size(self.path) - TAIL - self.metadata.serialized_size
        else:
            after = self.metadata.row_group(number + 1)
            end = min(_start_of(after.column(place)) for place in range(after.num_columns))

        wanted_bytes = sum(chunk.total_compressed_size for chunk in wanted)
        return (first, end) if 0 < first < end and 2 * wanted_bytes >= end - first else None

    def _group(
        self, group: Group, make_batch: type[Decoded], number: int, columns: Sequence[str], ids: str
    ) -> Iterator[Any]:
        """Yield the batches of a row group: columns decoded by `pages` together with those read by pyarrow."""
        rows = batch_rows(len(columns))
        odd = [name for name in columns if name not in group.ours]
        if not odd:
            for start in range(0, group.rows, rows):
                length = min(rows, group.rows - start)
                yield make_batch(length, group.take(length))
            return
        for batch in self._plainly(odd, [number], ids, rows):
            yield make_batch(len(batch), {name: batch.column(name) for name in odd} | group.take(len(batch)))

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
                # skips the rows that were yielded before the error
                skipped, done = min(done, len(batch)), max(done - len(batch), 0)
                if skipped < len(batch):
                    yield _with_dictionaries(batch.slice(skipped), texts)

    def _decoded(
        self, columns: Sequence[str], groups: Sequence[int], dictionaries: Sequence[str], rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of columns from some row groups, at most `rows` rows each.

        `dictionaries` are the columns that are read as dictionaries.
        """
        with mapped(self.path) if self._small is None else nullcontext(pa.BufferReader(self._small)) as source:
            is_remote = is_url(self.path)  # fetch only the requested columns, in few large pieces
            with pq.ParquetFile(source, metadata=self.metadata, memory_map=not is_remote, pre_buffer=is_remote,
                                read_dictionary=list(dictionaries),
                                coerce_int96_timestamp_unit=INT96_UNIT) as file:  # fmt: skip
                yield from file.iter_batches(
                    rows or batch_rows(len(columns)), row_groups=list(groups), columns=list(columns), use_threads=False
                )


def _without_int96(metadata: pq.FileMetaData) -> pa.Schema:
    """Return the schema of a file, with the times that old writers store in 96 bits in the unit in which they are read.

    pyarrow reads them as 64-bit nanoseconds, in which times before 1677 and after 2262 wrap around.
    """
    schema = metadata.schema.to_arrow_schema()
    for place, field in enumerate(schema):
        if types.is_timestamp(field.type) and field.type.unit == "ns" and _is_int96(metadata, field.name):
            schema = schema.set(place, field.with_type(pa.timestamp(INT96_UNIT, field.type.tz)))
    return schema


def _is_int96(metadata: pq.FileMetaData, name: str) -> bool:
    columns = (metadata.schema.column(place) for place in range(metadata.num_columns))
    return any(column.path == name and column.physical_type == "INT96" for column in columns)


def _start_of(chunk: pq.ColumnChunkMetaData) -> int:
    """Return the first byte of a column chunk."""
    return int(min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset))


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


class ParquetFormat(RecordFormat):
    """Parquet files, read by row groups."""

    name = "parquet"
    title = "Parquet"
    magic = b"PAR1"
    suffixes = (
        ".parquet",
        ".pq",
        ".parq",
        *(f".parquet.{codec}" for codec in ("snappy", "gzip", "gz", "zstd", "brotli", "lz4")),
    )
    splittable = True

    def open(self, path: str, dialect: Dialect) -> OpenParquet:
        return OpenParquet(path, dialect.most_page)

    def footer(self, file: BinaryIO, size: int) -> bytes:
        """Return the bytes of the metadata and of the tail, which has their length in its first 4 bytes."""
        file.seek(max(size - TAIL, 0))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(size - TAIL - length, 0))
        return file.read()


PARQUET = ParquetFormat()
