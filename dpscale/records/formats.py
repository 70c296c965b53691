"""Table of the formats of data files, and errors of files that are not of their format.

A format is one module with a `RecordFormat`. Other distributions register formats by entry points of the group
`dpscale.formats`. Such a format is loaded only if a job names it, and its files may have any ending.
"""

from __future__ import annotations

import csv
import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import TracebackType

from dpscale.base.arrow import pa
from dpscale.base.error_redaction import HOUSE, out_of_memory, own_frame, unexpected, with_cause, without_cause
from dpscale.base.errors import DataError, DpscaleError, Unreadable
from dpscale.base.plugins import all_names, distribution_of, load
from dpscale.records.database_rows import DATABASE
from dpscale.records.files import CODECS, PLAIN, Dialect, RecordFormat, codec_of, first_bytes
from dpscale.storage.databases import is_database
from dpscale.storage.objects import is_url, of_store, store_faults

FORMATS = {
    "parquet": "dpscale.records.parquet",
    "csv": "dpscale.records.delimited",
    "tsv": "dpscale.records.delimited",
    "arrow": "dpscale.records.arrow_files",
    "ndjson": "dpscale.records.ndjson",
}
GROUP = "dpscale.formats"
COMPRESSED = {None: "", "gzip": "gzipped ", "zstd": "zstd ", "bz2": "bzip2 "}
MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "bz2": b"BZh"}
REFUSED = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR)
DECODERS = (
    "records/files.py",
    "records/pages.py",
    "records/table.py",
    "storage/",
    *(module.removeprefix("dpscale.").replace(".", "/") for module in FORMATS.values()),
)


def format_names() -> list[str]:
    """Return the names of all formats, those of other distributions last."""
    return list(all_names(GROUP, FORMATS))


@cache
def format_named(name: str) -> RecordFormat:
    """Return the format with a name. Raises JobError if it is unknown."""
    return load(GROUP, FORMATS, name, name.upper(), "data.format")


@cache
def endings() -> dict[str, RecordFormat]:
    """Return the formats of dpscale by the endings of file names, compressed files included."""
    formats: dict[str, RecordFormat] = {}
    for kind in map(format_named, FORMATS):
        for codec in ("", *CODECS) if kind.compressed else ("",):
            formats |= {suffix + codec: kind for suffix in kind.suffixes}
    return formats


def format_of(path: str, named: str = "") -> RecordFormat | None:
    """Return the format of a database, the one with the given name, or that of the path's ending; None if unknown."""
    if is_database(path):
        return DATABASE
    if named:
        return format_named(named)
    return next((kind for suffix, kind in endings().items() if path.lower().endswith(suffix)), None)


def is_data(path: str) -> bool:
    """Return whether a path has the ending of a format of dpscale."""
    return path.lower().endswith(tuple(endings()))


def accepted_formats() -> str:
    """Return the formats of dpscale for messages."""
    return f"{_listed([format_named(name) for name in FORMATS])} files"


def _listed(formats: Iterable[RecordFormat]) -> str:
    titles = [kind.title for kind in formats]
    return " or ".join([", ".join(titles[:-1]), titles[-1]] if len(titles) > 1 else titles)


def check_formats(files: Iterable[str], dialect: Dialect = PLAIN) -> None:
    """Raise DataError if formats are mixed, or if the format does not take a given option.

    Files of several formats are usually two copies of one table, which would be counted twice.
    """
    formats_by_title: dict[str, RecordFormat] = {}
    for file in files:
        if file_format := format_of(file, dialect.format):
            compression = COMPRESSED[codec_of(file)] if file_format.compressed else ""
            formats_by_title[compression + file_format.title] = file_format

    if len(formats_by_title) > 1:
        names = format_names()
        titles = sorted(formats_by_title, key=lambda title: (names.index(formats_by_title[title].name), title))
        raise DataError("data.path", f"{' and '.join(titles)} files together", "files of one format",
                        "select one format, for example FOLDER/*.parquet, or convert the others")  # fmt: skip

    [(title, kind)] = formats_by_title.items()
    options = [
        option.name
        for option in fields(Dialect)
        if option.name not in ("format", "most_page") and getattr(dialect, option.name) != option.default
    ]
    if wrong := [name for name in options if name not in kind.options]:
        takes = _listed(other for other in map(format_named, FORMATS) if wrong[0] in other.options)
        raise DataError(f"data.{wrong[0]}", f"given for {title} files", f"{takes} files", "leave it out")


def format_distribution(name: str) -> str:
    """Return name and version of the distribution that registers a format; "" for those of dpscale."""
    return distribution_of(GROUP, FORMATS, name)


def check_distinct(path: str, names: Sequence[str], wanted: Iterable[str]) -> None:
    """Raise DataError if a column that is read has a name that occurs twice in a file."""
    if len(set(names)) != len(names) and any(names.count(name) > 1 for name in wanted):
        raise DataError("data.path", f"{path} has two columns with the same name", "distinct names of the columns that "
                        "are used", "rename one")  # fmt: skip


class reading:  # noqa: N801, a context manager
    """Convert errors from a broken file to one sentence that names the file and nothing of its content.

    A pyarrow error that does not indicate damage is a bug of dpscale: the message states its type and place instead of
    blaming the file.
    """

    def __init__(self, path: str, named: str = "") -> None:
        self.path, self.named = path, named

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Convert the error, if there is one of a broken file or a store; others pass unchanged.

        A lack of memory becomes a MemoryError without the text of pyarrow, which may state a number of rows.
        """
        broken = isinstance(error, (pa.ArrowException, OSError, UnicodeError, csv.Error))
        if error is not None and broken and out_of_memory(error):
            raise MemoryError from None

        if is_url(self.path) and error is not None and of_store(error):
            with store_faults(self.path, "read"):
                raise error

        if error is not None and broken:
            raised = with_cause(_sentence(self.path, error, self.named), error)
            try:
                raise raised
            finally:
                without_cause(raised)


def _sentence(path: str, error: BaseException, named: str) -> DpscaleError:
    """Return the error to raise for an exception that occurred while a file was read."""
    if isinstance(error, OSError) and error.errno is not None and _is_of(path, error):
        remedy = "check the path and its permissions" if error.errno in REFUSED else "run again when it can be read"
        return Unreadable(
            "data.path", f"{path} cannot be read ({os.strerror(error.errno)})", accepted_formats(), remedy
        )
    if not is_damage(error):
        return unexpected(error, f"reading {path}", "the file need not be damaged; ")

    reason = "cannot be read" if isinstance(error, OSError) else "is damaged or not of its format"
    return DataError("data.path", f"{path} {reason}", accepted_formats(), why_broken(path, error, named))


def _is_of(path: str, error: OSError) -> bool:
    """Return whether the operating system refused this file and not another one."""
    return error.filename is None or os.fspath(error.filename) == path


def is_damage(error: BaseException) -> bool:
    """Return whether an error indicates invalid bytes, judged by its type and by the module that raised it."""
    if isinstance(error, UnicodeError) or "UTF8" in str(error) or "UTF-8" in str(error):
        return True
    of_reader = isinstance(error, (pa.ArrowInvalid, csv.Error)) or (isinstance(error, OSError) and error.errno is None)
    frame = own_frame(error)
    return of_reader and (frame is None or Path(frame.filename).relative_to(HOUSE).as_posix().startswith(DECODERS))


def why_broken(path: str, error: object = None, named: str = "") -> str:
    """Return a remedy for a file that is not of its format, from its first bytes and the error.

    The remedy quotes neither of them.
    """
    kind, start, codec = format_of(path, named), first_bytes(path), codec_of(path)
    if kind is None:
        return "fix or remove it"
    if kind.compressed and codec and start and not start.startswith(MAGIC[codec]):
        return f"it is not compressed by {codec}: name it without the ending, or compress it"

    for ending, name in CODECS.items():
        if kind.compressed and not codec and start.startswith(MAGIC[name]):
            return f"it is compressed by {name}: name it {os.path.basename(str(path))}{ending}"
    return kind.remedy(path, start, error)


def other_delimiter(path: str, named: str = "") -> str:
    """Return the probable delimiter of a file of delimited text with an unexpected one; "" if unknown."""
    kind = format_of(path, named)
    return "" if kind is None or (kind.compressed and codec_of(path)) else kind.other_delimiter(first_bytes(path))
