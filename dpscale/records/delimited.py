"""Delimited text, CSV and TSV: every column is read as texts, and a file is read as a whole.

pyarrow splits a file into blocks and drops the line feed of a quoted CR LF whose halves are in two blocks, so blocks
never end with a carriage return here. Numbers in another notation (`decimal`, `thousands`) are rewritten with a decimal
point in every column. In a file of one column an empty line is a record with a null, as other programs write it.

A quote that opens a value and is not closed takes the records after it. If a file has fewer records than lines, its
quotes are checked: a value of several lines must be closed, and nothing may follow its closing quote.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrow import arrow_csv, pa, pc
from dpscale.base.compilation import compiled
from dpscale.base.errors import DataError, RefusedValue
from dpscale.base.numerics import Integers
from dpscale.records.files import Dialect, OpenFile, RecordFormat, batch_rows, codec_of, file_size, streamed

if TYPE_CHECKING:
    from dpscale.domain import Domain

BLOCK_BYTES = 1 << 24  # 16 MiB, which pyarrow parses at once
HEAD_BYTES = 1 << 16  # 64 KiB: first read of a file, and reads that skip lines
POINTED = r"^[+-]?(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?$"
PACKED = 5  # upper estimate of rows per byte of a compressed file
LINE_FEED, RETURN, QUOTE, BLANKS = 10, 13, 34, (32, 9)  # bytes of UTF-8
# places in a line: at the beginning of a field, in a plain one, within quotes, after a closing quote, in text after it
BEGIN, PLAIN, QUOTED, CLOSED, AFTER, PLAIN_ESCAPE, QUOTED_ESCAPE = range(7)
PLACE, SEVERAL, FAULT = range(3)  # entries of the state of `scan_quotes`


class OpenDelimited(OpenFile):
    """File of delimited text; the column names are in its header or given by the dialect."""

    def __init__(self, path: str, dialect: Dialect, delimiter: str) -> None:
        self.path, self.dialect, self.delimiter = path, dialect, delimiter
        self._raw = list(dialect.names) or _first_line(path, dialect, delimiter)
        self.names = [name.strip() for name in self._raw]

    def batches(
        self, columns: Sequence[str], row_groups: Sequence[int] = (), ids: str = "", domain: Domain | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of the columns as dictionary-encoded texts without outer blanks.

        Empty texts and the null values of the dialect are nulls.

        The file is read as a whole: `row_groups`, `ids` and `domain` belong to the interface and have no effect. Raises
        DataError at the end of the file if a quote that is not closed has taken the records after it.
        """
        self._check_width()
        options = self._arrow_options(columns)
        null_texts = pa.array(["", *self.dialect.null_values], pa.string())
        batch_size, records = batch_rows(len(columns)), 0

        with streamed(self.path) as file:
            text = _Blocks(_as_utf8(file, self.dialect.encoding), self.dialect, self.delimiter)
            with arrow_csv.open_csv(pa.PythonFile(text, "r"), **options) as reader:
                for block in reader:
                    records += len(block)
                    tidy_columns = [_tidy(column, null_texts, self.dialect) for column in block.columns]
                    tidy_block = pa.RecordBatch.from_arrays(tidy_columns, list(columns))
                    for start in range(0, len(tidy_block), batch_size):
                        yield tidy_block.slice(start, batch_size)

        # the records are compared with the lines of the file, of which the header is one
        has_header = not self.dialect.names
        self._check_quotes(text, records + has_header)

    def _arrow_options(self, columns: Sequence[str]) -> dict[str, Any]:
        """Return the options of `open_csv` that read some columns as texts, without any conversion by pyarrow."""
        raw_names = [self._raw[self.names.index(name)] for name in columns]  # with the blanks around them in the header
        text_type = pa.dictionary(pa.int32(), pa.string())
        read = arrow_csv.ReadOptions(
            block_size=BLOCK_BYTES, use_threads=False, column_names=list(self.dialect.names) or None
        )
        # in a file of one column an empty line is a null
        parse = arrow_csv.ParseOptions(newlines_in_values=True, delimiter=self.delimiter,
                                       escape_char=self.dialect.escape or False,
                                       ignore_empty_lines=len(self.names) > 1)  # fmt: skip
        convert = arrow_csv.ConvertOptions(
            include_columns=raw_names, column_types=dict.fromkeys(raw_names, text_type), strings_can_be_null=False
        )
        return {"read_options": read, "parse_options": parse, "convert_options": convert}

    def _check_quotes(self, blocks: _Blocks, records: int) -> None:
        """Raise DataError for a quote that takes the records after it.

        `records` is the number of records of the file, with its header. Only if it is not the number of lines, a value
        has several lines, and the file is read again; else such a quote can be in the last line only.
        """
        if not blocks.has_quotes:
            return
        state = np.zeros(3, np.int64)
        marks = np.array([ord(self.delimiter), ord(self.dialect.escape or "\0"), bool(self.dialect.escape)], np.int64)
        if records == blocks.lines:
            scan_quotes(np.frombuffer(blocks.last_lines, np.uint8).copy(), marks, state)
        else:
            with streamed(self.path) as file:
                again = _Blocks(_as_utf8(file, self.dialect.encoding), self.dialect, self.delimiter)
                while not state[FAULT] and (block := again.read(BLOCK_BYTES)):
                    scan_quotes(np.frombuffer(block, np.uint8).copy(), marks, state)

        if state[FAULT] or state[PLACE] in (QUOTED, QUOTED_ESCAPE):
            got = "text after the closing quote of a value of several lines" if state[FAULT] else (
                "a value with a quote that is not closed")  # fmt: skip
            raise DataError("data.path", f"{got} in {self.path}", "each quote closed before a delimiter or line end",
                            "double quotes that are part of a value, or complete the file")  # fmt: skip

    def _check_width(self) -> None:
        """Raise DataError if a file without a header has a different number of columns than the given names."""
        names = self.dialect.names
        if names and len(fields := _first_line(self.path, self.dialect, self.delimiter)) != len(names):
            raise DataError("data.names", f"{len(names)} names for the {len(fields)} columns of {self.path}",
                            "a name for every column", "name all columns in order")  # fmt: skip


class _Blocks(io.RawIOBase):
    """UTF-8 text in blocks that do not end with a carriage return.

    It is without a byte order mark, skipped lines, comments, and empty lines before the header.
    """

    def __init__(self, text: Any, dialect: Dialect, delimiter: str) -> None:
        """Skip a byte order mark and `skip_lines` lines; `text` is the file decoded to UTF-8.

        `_rest` has bytes that were read and not yet returned. `_quoted` states whether the next line begins within
        quotes.
        """
        super().__init__()
        self.has_quotes, self._ends, self.last_lines = False, 0, b""
        self._text, self._comment = text, dialect.comment.encode()
        self._quoting, self._quoted = _Quoting(delimiter, dialect.escape), False
        self._rest = self._take_first().removeprefix(codecs.BOM_UTF8)
        for _ in range(dialect.skip_lines):
            self._skip_line()
        self._skips_empty = not dialect.names

    def _take_first(self) -> bytes:
        self._rest = b""
        return self._take(HEAD_BYTES)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes, without empty lines before a header; empty at the end."""
        # one byte remains for what follows a carriage return at the end
        room = size - 1 if size > 1 else size
        block = self._block(room)
        while self._skips_empty and block:
            block = block.lstrip(b"\r\n")
            self._skips_empty = not block
            block = block or self._block(room)

        while block.endswith(b"\r") and len(block) < size and (more := self._block(1)):
            block += more
        self._note(block)
        return block

    @property
    def lines(self) -> int:
        """Number of lines of what was read, as if no line end were part of a value."""
        return self._ends + (not self.last_lines.endswith((b"\n", b"\r")))

    def _note(self, block: bytes) -> None:
        """Count the line ends of a block, and keep the last lines of the file: the last that is not empty, and more."""
        self.has_quotes = self.has_quotes or b'"' in block
        letters = np.frombuffer(block, np.uint8)
        self._ends += int(np.count_nonzero(letters == LINE_FEED))
        if b"\r" in block:
            self._ends += int(np.count_nonzero(letters == RETURN)) - block.count(b"\r\n")
        end = len(block.rstrip(b"\r\n"))
        begin = max(block.rfind(b"\n", 0, end), block.rfind(b"\r", 0, end)) + 1
        self.last_lines = block[begin:] if begin else self.last_lines + block

    def _block(self, size: int) -> bytes:
        """Return the next block of about `size` bytes; empty at the end.

        Only if the dialect has comments, a block has whole lines, without those of comments.
        """
        if not self._comment:
            return self._take(size)

        while lines := self._take(size):
            complete = lines.rpartition(b"\n")
            if len(lines) == size and complete[1]:
                lines, self._rest = complete[0] + complete[1], complete[2] + self._rest
            if kept_lines := self._without_comments(lines):
                return kept_lines
        return b""

    def _without_comments(self, lines: bytes) -> bytes:
        """Return the lines that do not begin with the mark of a comment; a line within quotes is part of a value."""
        stays = []
        for line in lines.splitlines(keepends=True):
            if self._quoted or not line.startswith(self._comment):
                stays.append(line)
                self._quoted = self._quoting.ends_within(line, self._quoted)
        return b"".join(stays)

    def _take(self, size: int) -> bytes:
        """Return the next `size` bytes, first those of `_rest`; fewer at the end of the file."""
        if self._rest:
            taken, self._rest = self._rest[:size], self._rest[size:]
            return taken if len(taken) == size else taken + bytes(self._text.read(size - len(taken)))
        return bytes(self._text.read(size))

    def _skip_line(self) -> None:
        """Skip the bytes up to and including the next line feed; quotes have no effect on it."""
        while block := self._take(HEAD_BYTES):
            _, end, after = block.partition(b"\n")
            if end:
                self._rest = after + self._rest
                return


class _Quoting:
    """Rule by which a quote opens and closes a value: it opens one at the beginning of a field only."""

    def __init__(self, delimiter: str, escape: str) -> None:
        """Compile the patterns of a closing quote with the rest of its field, a field without quotes, and a quote.

        Within a quoted value, two quotes are one quote of the value. The character after `escape` has no effect.
        """
        mark, escaped = re.escape(delimiter.encode()), re.escape(escape.encode())
        skipped = escaped + b"(?s:.)|" if escape else b""
        plain = b"(?:" + skipped + b"[^" + mark + (escaped if escape else b"") + b"])*"
        within = b"(?:" + skipped + b'""|[^"' + (escaped if escape else b"") + b"])*"
        self._closing = re.compile(within + b'"(?!")' + plain)
        self._field, self._opening = re.compile(b'(?!")' + plain), re.compile(b'"')

    def ends_within(self, line: bytes, quoted: bool) -> bool:
        """Return whether the end of a line is within a quoted value, given that its beginning is."""
        if b'"' not in line and not quoted:
            return False

        place = 0
        while True:
            if quoted:
                if (closed := self._closing.match(line, place)) is None:
                    return True
                place, quoted = closed.end(), False
            elif self._opening.match(line, place):
                place, quoted = place + 1, True
                continue
            elif (field := self._field.match(line, place)) is not None:
                place = field.end()

            if place >= len(line):
                return False
            place += 1  # the delimiter


@compiled("void(uint8[::1], int64[::1], int64[::1])", few=1 << 16)
def scan_quotes(data: NDArray[np.uint8], marks: Integers, state: Integers) -> None:
    """Follow the quotes of a block of delimited text; stop at text after the closing quote of a value of several lines.

    Parameters
    ----------
    data : ndarray of uint8
    marks : ndarray of int64, shape (3,)
        Delimiter, escape, and whether there is an escape.
    state : ndarray of int64, shape (3,)
        Place in the grammar, whether the value in quotes has several lines, and whether there is a fault. It is changed
        in place, for the next block.
    """
    place, several = state[PLACE], state[SEVERAL]
    for at in range(len(data)):
        letter = data[at]
        ends = letter in (LINE_FEED, RETURN)
        if place == QUOTED:
            if letter == QUOTE:
                place = CLOSED
            elif marks[2] and letter == marks[1]:
                place = QUOTED_ESCAPE
            elif ends:
                several = 1
        elif place == QUOTED_ESCAPE:
            place = QUOTED
            several = 1 if ends else several
        elif place == CLOSED and letter == QUOTE:
            place = QUOTED
        elif ends or (letter == marks[0] and place != PLAIN_ESCAPE):
            place, several = BEGIN, 0
        elif place in (CLOSED, AFTER):
            place = AFTER
            if several and letter not in BLANKS:
                state[FAULT] = 1
                return
        elif place == BEGIN and letter == QUOTE:
            place = QUOTED
        elif place == PLAIN_ESCAPE:
            place = PLAIN
        else:
            place = PLAIN_ESCAPE if marks[2] and letter == marks[1] else PLAIN

    state[PLACE], state[SEVERAL] = place, several


def _first_line(path: str, dialect: Dialect, delimiter: str) -> list[str]:
    """Return the fields of the first line that is neither skipped nor empty nor a comment."""
    encoding = "utf-8-sig" if dialect.encoding == "utf-8" else dialect.encoding
    with streamed(path, HEAD_BYTES) as file:
        text = io.TextIOWrapper(file, encoding=encoding, newline="")
        for _ in range(dialect.skip_lines):
            text.readline()
        lines = (line for line in text if not (dialect.comment and line.startswith(dialect.comment)))
        for line in csv.reader(lines, delimiter=delimiter, escapechar=dialect.escape or None):
            if line:
                return line

    raise DataError("data.path", f"{path} is empty", "a CSV file with a header", "fix or remove it")


def _as_utf8(file: Any, encoding: str) -> Any:
    """Return a file of this encoding as a stream of UTF-8."""
    return file if encoding == "utf-8" else pa.transcoding_input_stream(file, encoding, "utf-8")


def _tidy(column: pa.DictionaryArray, nothing: pa.Array, dialect: Dialect) -> pa.DictionaryArray:
    """Return the column with surrounding blanks removed and with null for empty texts and null values."""
    texts = pc.utf8_trim_whitespace(column.dictionary)
    values = pc.if_else(pc.is_in(texts, value_set=nothing), None, texts)
    if dialect.decimal or dialect.thousands:
        values = _with_points(values, dialect.decimal or ".", dialect.thousands)
    return pa.DictionaryArray.from_arrays(column.indices, values)


def _with_points(texts: pa.Array, decimal: str, thousands: str) -> pa.Array:
    """Return texts that are numbers in another notation with a decimal point and without marks of thousands.

    Raises RefusedValue for a number with a point that this notation does not have, because it would be read as another.
    """
    point, mark = re.escape(decimal), re.escape(thousands)
    grouped = rf"\d{{1,3}}(?:{mark}\d{{3}})+|" if thousands else ""
    numbers = pc.match_substring_regex(texts, rf"^[+-]?(?:{grouped}\d+)(?:{point}\d*)?$")
    other = pc.and_(pc.match_substring_regex(texts, POINTED), pc.invert(numbers))
    if decimal != "." and pc.any(other).as_py():
        raise RefusedValue("data.decimal", f"a number with a decimal point, though decimal is {decimal!r}",
                           "numbers in one notation", "convert the files, or leave decimal out")  # fmt: skip

    plain = pc.replace_substring(texts, thousands, "") if thousands else texts
    return pc.if_else(numbers, pc.replace_substring(plain, decimal, "."), texts)


class DelimitedFormat(RecordFormat):
    """Text with one record per line and fields separated by a character."""

    options = (
        "delimiter",
        "encoding",
        "null_values",
        "names",
        "decimal",
        "thousands",
        "escape",
        "comment",
        "skip_lines",
    )
    compressed = True
    typed = False
    trims = True

    def __init__(self, name: str, delimiter: str) -> None:
        self.name, self.title, self.suffixes, self.delimiter = name, name.upper(), (f".{name}",), delimiter

    def open(self, path: str, dialect: Dialect) -> OpenDelimited:
        """Return an opened file. Raises DataError if the delimiter is also the decimal mark.

        Numbers with the delimiter as the mark of thousands are in quotes.
        """
        delimiter = dialect.delimiter or self.delimiter
        if delimiter == dialect.decimal:
            raise DataError("data.decimal", f"{delimiter!r}, which separates the fields", "another delimiter",
                            'set delimiter = ";" in [data], as in the files')  # fmt: skip
        return OpenDelimited(path, dialect, delimiter)

    def row_bound(self, path: str, dialect: Dialect) -> int:
        """Return one row per two bytes, or five rows per byte of a compressed file."""
        size = file_size(path)
        return size * PACKED if codec_of(path) else size // 2

    def remedy(self, path: str, start: bytes, error: object) -> str:
        """Return how to repair a file that cannot be read: its encoding, or lines with more or fewer fields."""
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
        marks = [mark for mark in ";\t|" if mark != self.delimiter and mark.encode() in first]
        return marks[0] if marks and self.delimiter.encode() not in first else ""


CSV, TSV = DelimitedFormat("csv", ","), DelimitedFormat("tsv", "\t")
