"""Readers of one file: its column names, and its rows in batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dpscale.errors import DataError
from dpscale.storage.objects import is_url
from dpscale.tables.arrow_files import ArrowSource
from dpscale.tables.csv_files import CsvSource
from dpscale.tables.formats import PLAIN, Dialect, is_csv, is_parquet
from dpscale.tables.numbers import is_text
from dpscale.tables.raw import batch_rows, mapped

if TYPE_CHECKING:
    import pyarrow as pa


class Source(Protocol):
    """An open file: names of its columns, and the rows of some of them."""

    names: list[str]

    def kind(self, name: str) -> pa.DataType: ...

    def groups(self) -> list[int]:
        """Rows of the pieces that it can be read in."""

    def batches(self, columns: Sequence[str], row_groups: Sequence[int], ids: str = "") -> Iterator[pa.RecordBatch]: ...


def open_source(path: str, dialect: Dialect = PLAIN) -> Source:
    """Read the header or footer of a file, once."""
    source: Source
    if is_csv(path):
        source = CsvSource(path, dialect)
    else:
        source = ParquetSource(path) if is_parquet(path) else ArrowSource(path)
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

    def groups(self) -> list[int]:
        """Rows of each row group."""
        return [self.metadata.row_group(number).num_rows for number in range(self.metadata.num_row_groups)]

    def batches(
        self, columns: Sequence[str], row_groups: Sequence[int] = (), ids: str = ""
    ) -> Iterator[pa.RecordBatch]:
        """The columns of some row groups (all when none are named); texts as dictionaries, but those of `ids`."""
        import pyarrow.parquet as pq

        texts = [name for name in columns if name != ids and is_text(self.schema.field(name).type)]
        groups, rows = list(row_groups or range(self.metadata.num_row_groups)), batch_rows(len(columns))
        with mapped(self.path) as where:
            far = is_url(self.path)  # fetched in few and large pieces, of the columns asked alone
            with pq.ParquetFile(where, metadata=self.metadata, memory_map=not far, read_dictionary=texts,
                                pre_buffer=far) as file:  # fmt: skip
                yield from file.iter_batches(rows, row_groups=groups, columns=list(columns), use_threads=False)


def footer(path: str) -> Any:
    """What the footer of a Parquet file says."""
    import pyarrow.parquet as pq

    with mapped(path) as where:
        return pq.read_metadata(where)
