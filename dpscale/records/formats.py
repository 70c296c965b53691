"""Formats of data files: their protocol, the options of a table's files, and the table of formats.

A format is one module: it opens a file as a `Source`, which has the columns and yields the rows in batches of bounded
size. Other distributions register formats by entry points of the group `dpscale.formats`. Such a format is loaded only
if a job names it, and its files may have any ending.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO

from dpscale.base.arrow import pa
from dpscale.base.errors import DataError
from dpscale.base.plugins import all_names, distribution_of, load

if TYPE_CHECKING:
    from dpscale.domain import Domain

FORMATS = {
    "parquet": "dpscale.records.parquet",
    "csv": "dpscale.records.delimited",
    "tsv": "dpscale.records.delimited",
    "arrow": "dpscale.records.arrow_files",
    "ndjson": "dpscale.records.ndjson",
}
GROUP = "dpscale.formats"
CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
COMPRESSED = {None: "", "gzip": "gzipped ", "zstd": "zstd ", "bz2": "bzip2 "}


MOST_PAGE = 1 << 28


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


class Source(ABC):
    """Open file: the names of its columns, and the rows of requested columns.

    Attributes
    ----------
    names : sequence of str
        Columns in the order of the file.
    """

    names: Sequence[str]

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
    def batches(self, columns: Sequence[str], row_groups: Sequence[int] = (), ids: str = "",
                domain: Domain | None = None) -> Iterator[Any]:  # fmt: skip
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
        Whether `Source.groups` splits a large file.
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

    @abstractmethod
    def open(self, path: str, dialect: Dialect) -> Source:
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


def format_names() -> list[str]:
    """Return the names of all formats, those of other distributions last."""
    return list(all_names(GROUP, FORMATS))


@cache
def format_named(name: str) -> RecordFormat:
    """Return the format with a name. Raises JobError if it is unknown."""
    found: RecordFormat = load(GROUP, FORMATS, name, name.upper(), "data.format")
    return found


@cache
def endings() -> dict[str, RecordFormat]:
    """Return the formats of dpscale by the endings of file names, compressed files included."""
    found: dict[str, RecordFormat] = {}
    for one in map(format_named, FORMATS):
        for codec in ("", *CODECS) if one.compressed else ("",):
            found |= {suffix + codec: one for suffix in one.suffixes}
    return found


def format_of(path: str, named: str = "") -> RecordFormat | None:
    """Return the format with the given name, or the one of the path's ending; None if unknown."""
    if named:
        return format_named(named)
    return next((one for suffix, one in endings().items() if path.lower().endswith(suffix)), None)


def is_data(path: str) -> bool:
    """Return whether a path has the ending of a format of dpscale."""
    return path.lower().endswith(tuple(endings()))


def codec_of(path: str) -> str | None:
    """Return the compression that a path's ending indicates; None if there is none."""
    return next((codec for suffix, codec in CODECS.items() if path.lower().endswith(suffix)), None)


def accepted_formats() -> str:
    """Return the formats of dpscale for messages."""
    return f"{_listed([format_named(name) for name in FORMATS])} files"


def _listed(formats: Iterable[RecordFormat]) -> str:
    titles = [one.title for one in formats]
    return " or ".join([", ".join(titles[:-1]), titles[-1]] if len(titles) > 1 else titles)


def check_formats(files: Iterable[str], dialect: Dialect = PLAIN) -> None:
    """Raise DataError if formats are mixed, or if the format does not take a given option.

    Files of several formats are usually two copies of one table, which would be counted twice.
    """
    found: dict[str, RecordFormat] = {}
    for file in files:
        if one := format_of(file, dialect.format):
            found[(COMPRESSED[codec_of(file)] if one.compressed else "") + one.title] = one
    if len(found) > 1:
        names = format_names()
        titles = sorted(found, key=lambda title: (names.index(found[title].name), title))
        raise DataError("data.path", f"{' and '.join(titles)} files together", "files of one format",
                        "select one format, for example FOLDER/*.parquet, or convert the others")  # fmt: skip
    [(title, kind)] = found.items()
    given = [
        one.name
        for one in fields(Dialect)
        if one.name not in ("format", "most_page") and getattr(dialect, one.name) != one.default
    ]
    if wrong := [name for name in given if name not in kind.options]:
        takes = _listed(one for one in map(format_named, FORMATS) if wrong[0] in one.options)
        raise DataError(f"data.{wrong[0]}", f"given for {title} files", f"{takes} files", "leave it out")


def format_distribution(name: str) -> str:
    """Return name and version of the distribution that registers a format; "" for those of dpscale."""
    return distribution_of(GROUP, FORMATS, name)


def check_distinct(path: str, names: Sequence[str], wanted: Iterable[str]) -> None:
    """Raise DataError if a column that is read has a name that occurs twice in a file."""
    if len(set(names)) != len(names) and any(names.count(name) > 1 for name in wanted):
        raise DataError("data.path", f"{path} has two columns with the same name", "distinct names of the columns that "
                        "are used", "rename one")  # fmt: skip
