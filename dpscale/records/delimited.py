"""Delimited text, CSV and TSV: every column is read as texts, and a file is read as a whole."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from dpscale.base.arrow import arrow_csv, pa, pc
from dpscale.base.errors import DataError
from dpscale.records.files import batch_rows, file_size, streamed
from dpscale.records.formats import Dialect, RecordFormat, Source, check_columns, codec_of
from dpscale.storage.objects import is_url

if TYPE_CHECKING:
    from dpscale.domain import Domain

BLOCK_BYTES = 1 << 24
HEAD_BYTES = 1 << 16
PACKED = 5  # upper estimate of rows per byte of a compressed file


class DelimitedSource(Source):
    """File of delimited text; the column names are in its header or given by the dialect."""

    def __init__(self, path: str, dialect: Dialect, delimiter: str) -> None:
        self.path, self.dialect, self.delimiter = path, dialect, delimiter
        self._raw = list(dialect.names) or _first_line(path, dialect, delimiter)
        self.names = [name.strip() for name in self._raw]
        check_columns(path, self.names)

    def batches(self, columns: Sequence[str], row_groups: Sequence[int] = (), ids: str = "",
                domain: Domain | None = None) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Yield batches of the columns as dictionary-encoded texts."""
        self._check_width()
        raw = [self._raw[self.names.index(name)] for name in columns]
        kinds = dict.fromkeys(raw, pa.dictionary(pa.int32(), pa.string()))
        convert = arrow_csv.ConvertOptions(include_columns=raw, column_types=kinds, strings_can_be_null=False)
        read = arrow_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False, encoding=self.dialect.encoding,
                                     column_names=list(self.dialect.names) or None)  # fmt: skip
        parse = arrow_csv.ParseOptions(newlines_in_values=True, delimiter=self.delimiter)
        rows = batch_rows(len(columns))
        nothing = pa.array(["", *self.dialect.null_values], pa.string())
        packed = codec_of(self.path) or is_url(self.path)
        with (
            streamed(self.path) if packed else nullcontext(self.path) as where,
            arrow_csv.open_csv(where, read, parse, convert) as reader,
        ):
            for block in reader:
                tidy = pa.RecordBatch.from_arrays([_tidy(column, nothing) for column in block.columns], list(columns))
                for start in range(0, len(tidy), rows):
                    yield tidy.slice(start, rows)

    def _check_width(self) -> None:
        """Raise DataError if a file without a header has a different number of columns than the given names."""
        names = self.dialect.names
        if names and len(found := _first_line(self.path, self.dialect, self.delimiter)) != len(names):
            raise DataError("data.names", f"{len(names)} names for the {len(found)} columns of {self.path}",
                            "a name for every column", "name all columns in order")  # fmt: skip


def _first_line(path: str, dialect: Dialect, delimiter: str) -> list[str]:
    encoding = "utf-8-sig" if dialect.encoding == "utf-8" else dialect.encoding
    with streamed(path, HEAD_BYTES) as file:
        text = io.TextIOWrapper(file, encoding=encoding, newline="")
        for line in csv.reader(text, delimiter=delimiter):
            if line:
                return line
    raise DataError("data.path", f"{path} is empty", "a CSV file with a header", "fix or remove it")


def _tidy(column: pa.DictionaryArray, nothing: pa.Array) -> pa.DictionaryArray:
    """Return the column with surrounding blanks removed and with null for empty texts and null values."""
    texts = pc.utf8_trim_whitespace(column.dictionary)
    values = pc.if_else(pc.is_in(texts, value_set=nothing), None, texts)
    return pa.DictionaryArray.from_arrays(column.indices, values)


class DelimitedFormat(RecordFormat):
    """Text with one record per line and fields separated by a character."""

    options = ("delimiter", "encoding", "null_values", "names")
    compressed = True
    typed = False

    def __init__(self, name: str, delimiter: str) -> None:
        self.name, self.title, self.suffixes, self.delimiter = name, name.upper(), (f".{name}",), delimiter

    def open(self, path: str, dialect: Dialect) -> DelimitedSource:
        return DelimitedSource(path, dialect, dialect.delimiter or self.delimiter)

    def row_bound(self, path: str, dialect: Dialect) -> int:
        """Return one row per two bytes, or five rows per byte of a compressed file."""
        size = file_size(path)
        return size * PACKED if codec_of(path) else size // 2

    def remedy(self, path: str, start: bytes, error: object) -> str:
        text = str(error)
        if start.startswith((b"\xff\xfe", b"\xfe\xff")):
            return 'it is UTF-16: set encoding = "utf-16" in [data]'
        if not codec_of(path) and (isinstance(error, UnicodeError) or "UTF8" in text or "UTF-8" in text):
            return 'it is not UTF-8: set its encoding in [data], as encoding = "latin-1"'
        if "Expected" in text and "columns" in text:
            return "some line has more or fewer fields than the header: set delimiter in [data], or quote its texts"
        return super().remedy(path, start, error)

    def other_delimiter(self, start: bytes) -> str:
        first = start.partition(b"\n")[0]
        found = [mark for mark in ";\t|" if mark != self.delimiter and mark.encode() in first]
        return found[0] if found and self.delimiter.encode() not in first else ""


CSV, TSV = DelimitedFormat("csv", ","), DelimitedFormat("tsv", "\t")
