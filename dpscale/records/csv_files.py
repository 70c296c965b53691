"""CSV files.

Every column is read as text, and each text is judged alone (see `numbers`): a type guessed from other rows would make a
record's cell depend on other records. Blanks around a field are not part of it, and an empty field is a null. Texts
come as dictionaries, which are encoded once an entry.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from dpscale.base.errors import DataError
from dpscale.domain import Domain
from dpscale.records.formats import Dialect, codec_of
from dpscale.records.raw import batch_rows, streamed
from dpscale.storage.objects import is_url

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 1 << 24
HEAD_BYTES = 1 << 16


class CsvSource:
    """A CSV file, all texts; its names are in its header, or told by the dialect."""

    def __init__(self, path: str, dialect: Dialect) -> None:
        self.path, self.dialect = path, dialect
        self._raw = list(dialect.names) or _first_line(path, dialect)
        self.names = [name.strip() for name in self._raw]

    def kind(self, name: str) -> pa.DataType:
        """Text, whatever it says."""
        import pyarrow as pa

        return pa.string()

    def groups(self) -> list[int]:
        """A CSV is one piece, of a length that nobody knows."""
        return []

    def batches(self, columns: Sequence[str], row_groups: Sequence[int] = (), ids: str = "",
                domain: Domain | None = None) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """The columns, as dictionaries of texts."""
        import pyarrow as pa
        import pyarrow.csv as arrow_csv

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
        """DataError where a file without a header has not as many columns as names are told."""
        names = self.dialect.names
        if names and len(found := _first_line(self.path, self.dialect)) != len(names):
            raise DataError("data.names", f"{len(names)} names for the {len(found)} columns of {self.path}",
                            "a name for every column", "name them all, in their order")  # fmt: skip


def _read_on(path: str) -> AbstractContextManager[Any]:
    return streamed(path) if codec_of(path) or is_url(path) else nullcontext(path)


def _first_line(path: str, dialect: Dialect) -> list[str]:
    encoding = "utf-8-sig" if dialect.encoding == "utf-8" else dialect.encoding
    with streamed(path, HEAD_BYTES) as file:
        text = io.TextIOWrapper(file, encoding=encoding, newline="")
        for line in csv.reader(text, delimiter=dialect.of(path)):
            if line:
                return line
    raise DataError("data.path", f"{path} is empty", "a CSV file with a header", "mend or remove it")


def _tidy(column: pa.DictionaryArray, nothing: pa.Array) -> pa.DictionaryArray:
    """The column with blanks trimmed, and null where that leaves nothing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(column.dictionary)
    told = pc.if_else(pc.is_in(texts, value_set=nothing), None, texts)
    return pa.DictionaryArray.from_arrays(column.indices, told)
