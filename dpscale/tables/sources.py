"""Readers of one file: its column names, and its rows in batches of bounded size.

Every column of a CSV is read as text, and each text is judged alone (see `numbers`): a type guessed from other rows
would make a record's cell depend on other records. Blanks around a CSV field are not part of it, and an empty field is
a null. Texts come as dictionaries, which are encoded once an entry.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from dpscale.discreet import out_of_memory
from dpscale.errors import DataError, Unreadable
from dpscale.storage.objects import AHEAD, is_url, of_store, opening, telling
from dpscale.tables.files import is_csv
from dpscale.tables.numbers import is_text

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 1 << 18
BATCH_VALUES = 1 << 23  # of all columns: a batch of many columns has fewer rows
LEAST_ROWS = 1 << 14
BLOCK_BYTES = 1 << 24
HEAD_BYTES = 1 << 16


class Source(Protocol):
    """An open file: names of its columns, and the rows of some of them."""

    names: list[str]

    def kind(self, name: str) -> pa.DataType: ...

    def batches(self, columns: Sequence[str], row_groups: Sequence[int], ids: str = "") -> Iterator[pa.RecordBatch]: ...


def open_source(path: str) -> Source:
    """Read the header or footer of a file, once."""
    source: Source = CsvSource(path) if is_csv(path) else ParquetSource(path)
    if len(set(source.names)) != len(source.names):
        raise DataError("data.path", f"{path} has two columns of one name", "distinct names", "rename one")
    return source


class ParquetSource:
    """A Parquet file; its footer is read once."""

    def __init__(self, path: str) -> None:
        self.path, self.metadata = path, footer(path)
        self.schema = self.metadata.schema.to_arrow_schema()
        self.names: list[str] = list(self.schema.names)

    def kind(self, name: str) -> pa.DataType:
        """The type of a column."""
        return self.schema.field(name).type

    def batches(
        self, columns: Sequence[str], row_groups: Sequence[int] = (), ids: str = ""
    ) -> Iterator[pa.RecordBatch]:
        """The columns of some row groups (all when none are named); texts as dictionaries, but those of `ids`."""
        import pyarrow.parquet as pq

        texts = [name for name in columns if name != ids and is_text(self.schema.field(name).type)]
        groups, rows = list(row_groups or range(self.metadata.num_row_groups)), _batch_rows(len(columns))
        with _mapped(self.path) as where:
            far = is_url(self.path)  # fetched in few and large pieces, of the columns asked alone
            with pq.ParquetFile(where, metadata=self.metadata, memory_map=not far, read_dictionary=texts,
                                pre_buffer=far) as file:  # fmt: skip
                yield from file.iter_batches(rows, row_groups=groups, columns=list(columns), use_threads=False)


def footer(path: str) -> Any:
    """What the footer of a Parquet file says."""
    import pyarrow.parquet as pq

    with _mapped(path) as where:
        return pq.read_metadata(where)


@contextmanager
def _mapped(path: str, ahead: int = 0) -> Iterator[Any]:
    """What pyarrow opens: a path, which it maps to memory, or an object, whose bytes are fetched as they are asked."""
    if not is_url(path):
        yield path
        return
    with opening(path, ahead) as file:
        yield file


def _batch_rows(columns: int) -> int:
    return min(BATCH_ROWS, max(BATCH_VALUES // max(columns, 1), LEAST_ROWS))


class CsvSource:
    """A CSV file with a header, all texts."""

    def __init__(self, path: str) -> None:
        self.path, self._raw = path, _header(path)
        self.names = [name.strip() for name in self._raw]

    def kind(self, name: str) -> pa.DataType:
        """Text, whatever it says."""
        import pyarrow as pa

        return pa.string()

    def batches(
        self, columns: Sequence[str], row_groups: Sequence[int] = (), ids: str = ""
    ) -> Iterator[pa.RecordBatch]:
        """The columns, as dictionaries of texts; a CSV has no row groups."""
        import pyarrow as pa
        import pyarrow.csv as arrow_csv

        raw = [self._raw[self.names.index(name)] for name in columns]
        kinds = dict.fromkeys(raw, pa.dictionary(pa.int32(), pa.string()))
        convert = arrow_csv.ConvertOptions(include_columns=raw, column_types=kinds, strings_can_be_null=False)
        read = arrow_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False)
        parse = arrow_csv.ParseOptions(newlines_in_values=True)
        with _mapped(self.path, AHEAD) as where, arrow_csv.open_csv(where, read, parse, convert) as reader:
            for block in reader:
                tidy = pa.RecordBatch.from_arrays([_tidy(column) for column in block.columns], list(columns))
                for start in range(0, len(tidy), BATCH_ROWS):
                    yield tidy.slice(start, BATCH_ROWS)


def _header(path: str) -> list[str]:
    with opening(path, HEAD_BYTES) as file:
        for line in csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline="")):
            if line:
                return line
    raise DataError("data.path", f"{path} is empty", "a CSV file with a header", "mend or remove it")


def _tidy(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The column with blanks trimmed and empty fields null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(column.dictionary)
    return pa.DictionaryArray.from_arrays(column.indices, pc.if_else(pc.equal(texts, ""), None, texts))


class reading:
    """Turns what a broken file raises into one sentence that names the file and nothing of its content."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        import pyarrow as pa

        broken = (pa.ArrowException, OSError, UnicodeError, csv.Error)
        if isinstance(error, broken) and out_of_memory(error):
            raise MemoryError from None
        if is_url(self.path) and error is not None and of_store(error):
            with telling(self.path, "read"):
                raise error
        if isinstance(error, broken):
            unreadable = isinstance(error, OSError) and error.errno is not None
            reason = "cannot be read" if isinstance(error, OSError) else "is damaged or not of its format"
            told = Unreadable if unreadable else DataError
            raise told("data.path", f"{self.path} {reason}", "readable Parquet or CSV", "mend or remove it") from None
