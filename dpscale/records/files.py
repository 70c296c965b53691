"""Data files: access to their bytes, the options of a table's files, and the protocol of formats.

A format opens a file as an `OpenFile`, which has the columns and yields the rows in batches of bounded size. A path is
local, or an address in an object store.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from dpscale.base.arrow import pa
from dpscale.storage.objects import AHEAD, is_url, looked_at, opening

if TYPE_CHECKING:
    from dpscale.domain import Domain

BATCH_ROWS = 1 << 18  # most rows of a batch, those of few columns
BATCH_VALUES = 1 << 23  # rows times columns of a batch
LEAST_ROWS = 1 << 14  # rows of a batch with many columns, even above BATCH_VALUES
SMALL_BYTES = 1 << 18  # bytes up to which a file is read instead of mapped
MOST_PAGE = 1 << 28  # default limit of an uncompressed page of Parquet, 256 MiB
NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, which Python names from 3.13 on
CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


def batch_rows(columns: int) -> int:
    """Return the number of rows of a batch with so many columns."""
    return min(BATCH_ROWS, max(BATCH_VALUES // max(columns, 1), LEAST_ROWS))


def file_size(path: str) -> int:
    """Return the number of bytes of a file."""
    return looked_at(path).size if is_url(path) else os.path.getsize(path)


@contextmanager
def mapped(path: str) -> Iterator[Any]:
    """Open a file for random access: yield its path for memory mapping, or an object that fetches ranges on demand."""
    if not is_url(path):
        yield path
        return
    with opening(path, ahead=0) as file:
        yield file


@contextmanager
def mapped_bytes(path: str) -> Iterator[Any]:
    """Yield all bytes of a local file, memory-mapped."""
    with pa.memory_map(path) as file:
        yield file.read_buffer()


@contextmanager
def fetched_bytes(path: str, size: int, ranges: Iterable[tuple[int, int]]) -> Iterator[Any]:
    """Yield a buffer as long as a file in a store, with the bytes of some ranges; the rest is zero and takes no memory.

    Parameters
    ----------
    path : str
    size : int
        Bytes of the file.
    ranges : iterable of (int, int)
        First byte and end of each range.
    """
    sparse = sparse_memory(size)
    with opening(path, ahead=0) as file:
        for first, end in ranges:
            file.seek(first)
            content = file.read(end - first)
            if len(content) != end - first:
                raise OSError(errno.EIO, "the file ends too early")
            sparse[first:end] = content

    yield pa.py_buffer(sparse)


def sparse_memory(size: int) -> mmap.mmap:
    """Return zeros whose pages take no memory until they are written, on Linux also in files larger than the machine's.

    Windows reserves all of them in its page file.
    """
    if sys.platform != "linux":
        return mmap.mmap(-1, max(size, 1))
    return mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)


def small(path: str) -> pa.Buffer | None:
    """Return all bytes of a small file, which is faster to read than to map; None for a larger one."""
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END) > SMALL_BYTES:
            return None
        file.seek(0)
        return pa.py_buffer(file.read())


@contextmanager
def streamed(path: str, ahead: int = AHEAD) -> Iterator[Any]:
    """Open a file for sequential reading and decompress it."""
    codec = codec_of(path)
    if codec is None and not is_url(path):
        with pa.OSFile(path) as plain:
            yield plain
        return

    with opening(path, ahead) as file:
        if codec is None:
            yield file
            return
        with pa.CompressedInputStream(file, codec) as stream:
            yield stream


def first_bytes(path: str) -> bytes:
    """Return the first bytes of a local file."""
    with suppress(OSError), open("" if is_url(path) else path, "rb") as file:
        return file.read(1 << 12)
    return b""


def codec_of(path: str) -> str | None:
    """Return the compression that a path's ending indicates; None if there is none."""
    return next((codec for suffix, codec in CODECS.items() if path.lower().endswith(suffix)), None)


@dataclass(frozen=True)
class Dialect:
    """Format of a table's files and its options; a format takes those that its `options` list.

    Attributes
    ----------
    delimiter : str
        Field separator of delimited text. Default: that of the format.
    encoding : str
        Encoding of delimited text.
    null_values : tuple of str
        Texts that denote a null in delimited text, in addition to the empty text.
    names : tuple of str
        Column names of delimited text without a header.
    format : str
        Name of the format of all files. Default: derived from the file names' endings.
    decimal, thousands : str
        Decimal mark of numbers in delimited text, and the mark between groups of three digits.
    escape : str
        Letter before which a quote or delimiter in delimited text is part of a value.
    comment : str
        Beginning of lines of delimited text that are no records.
    skip_lines : int
        Lines before the header, or before the first record.
    most_page : int
        Largest number of unpacked bytes of a page of a Parquet file.
    """

    delimiter: str = ""
    encoding: str = "utf-8"
    null_values: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    format: str = ""
    decimal: str = ""
    thousands: str = ""
    escape: str = ""
    comment: str = ""
    skip_lines: int = 0
    most_page: int = MOST_PAGE


PLAIN = Dialect()


class OpenFile(ABC):
    """Open file: the names of its columns, and the rows of requested columns.

    Attributes
    ----------
    names : sequence of str
        Columns in the order of the file.
    expected : object
        Content that a reading of a database must have; None if readings are not compared.
    """

    names: Sequence[str]
    expected: Any = None

    def kind(self, name: str) -> pa.DataType:
        """Return the type of a column; by default text, the type of every column of an untyped format."""
        return pa.string()

    def is_null(self, name: str) -> bool:
        """Return whether a column is known to have rows and no values without reading it."""
        return False

    def groups(self) -> list[int]:
        """Return the rows of each separately readable part, at least roughly; empty if there are no such parts."""
        return []

    @abstractmethod
    def batches(
        self, columns: Sequence[str], row_groups: Sequence[int] = (), ids: str = "", domain: Domain | None = None
    ) -> Iterator[Any]:
        """Yield batches with `len(batch)` rows and `batch.column(name)`.

        Parameters
        ----------
        columns : sequence of str
            Columns to read; if there are none, batches need only their length.
        row_groups : sequence of int
            Parts to read. Default: all.
        ids : str
            Column with mostly distinct values, which need not be dictionary-encoded.
        domain : Domain, optional
            If given, a column may be its cells instead of an array.
        """


class RecordFormat(ABC):
    """Format of data files.

    Attributes
    ----------
    name : str
        Name in a job.
    title : str
        Name in messages.
    suffixes : tuple of str
        Endings of file names, in lower case.
    options : tuple of str
        Fields of `Dialect` that the format takes.
    magic : bytes
        First bytes of every file; empty if files have no mark.
    compressed : bool
        Whether whole files may be compressed, which a further ending .gz or .zst indicates.
    typed : bool
        Whether a file states the types of its columns. Otherwise all columns are texts.
    lists_columns : bool
        Whether a file lists its columns. Otherwise it has every column, and a row without it has a null there; a column
        in the file's path has the value of the path.
    splittable : bool
        Whether `OpenFile.groups` splits a large file.
    trims : bool
        Whether blanks around a text are removed when it is read.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    options: tuple[str, ...] = ()
    magic = b""
    compressed = False
    typed = True
    lists_columns = True
    splittable = False
    trims = False

    @abstractmethod
    def open(self, path: str, dialect: Dialect) -> OpenFile:
        """Open a file and read its header or footer, if it has one."""

    def row_bound(self, path: str, dialect: Dialect) -> int:
        """Return an upper estimate of the rows of a file; by default the number that its parts state."""
        return sum(self.open(path, dialect).groups())

    def footer(self, file: BinaryIO, size: int) -> bytes | None:
        """Return the bytes hashed for snapshot = "footers"; None for all bytes."""
        return None

    def remedy(self, path: str, start: bytes, error: object) -> str:
        """Return a remedy for an uncompressed file that cannot be parsed, from its first bytes and the error.

        The remedy quotes neither of them.
        """
        return "fix or remove it"

    def other_delimiter(self, start: bytes) -> str:
        """Return the probable delimiter of a file with another delimiter than expected; "" if there is none."""
        return ""
