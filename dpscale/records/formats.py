"""Formats of files, known by their names or as a job says it, and how a CSV is written.

A Parquet or Arrow file is read by row groups or batches; a CSV is one task's work, from its beginning to its end,
compressed or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from dpscale.base.errors import DataError

FORMATS = {
    ".parquet": "Parquet", ".pq": "Parquet", ".csv": "CSV", ".tsv": "TSV", ".csv.gz": "gzipped CSV",
    ".tsv.gz": "gzipped TSV", ".csv.zst": "zstd CSV", ".tsv.zst": "zstd TSV", ".arrow": "Arrow", ".feather": "Arrow",
    ".ipc": "Arrow",
}  # fmt: skip
SUFFIXES = tuple(FORMATS)
TAKEN = "Parquet, CSV or Arrow files"
CODECS = {".gz": "gzip", ".zst": "zstd"}
NAMED = {"parquet": "Parquet", "csv": "CSV", "tsv": "TSV", "arrow": "Arrow"}  # as a job says it
COMPRESSED = {None: "", "gzip": "gzipped ", "zstd": "zstd "}


@dataclass(frozen=True)
class Dialect:
    """How files are written. `format`: of all of them, a key of NAMED; empty where their endings say it.

    The others are of CSV files. `delimiter`: empty for a comma, or a tab in a TSV; `null_values`: texts that say
    nothing, beside the empty one; `names`: of the columns of files without a header.
    """

    delimiter: str = ""
    encoding: str = "utf-8"
    null_values: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    format: str = ""

    def of(self, path: str) -> str:
        """The delimiter of a file."""
        return self.delimiter or ("\t" if format_of(path, self.format).endswith("TSV") else ",")


PLAIN = Dialect()


def format_of(path: str, named: str = "") -> str:
    """The format that is named, or that the path's ending says; empty for none."""
    if named:
        codec = codec_of(path) if named in ("csv", "tsv") else None
        return COMPRESSED[codec] + NAMED[named]
    return next((found for suffix, found in FORMATS.items() if path.lower().endswith(suffix)), "")


def is_data(path: str) -> bool:
    return path.lower().endswith(SUFFIXES)


def is_csv(path: str, named: str = "") -> bool:
    return format_of(path, named).endswith(("CSV", "TSV"))


def is_parquet(path: str, named: str = "") -> bool:
    return format_of(path, named) == "Parquet"


def codec_of(path: str) -> str | None:
    """What a whole file is compressed by; None for none."""
    return next((codec for suffix, codec in CODECS.items() if path.lower().endswith(suffix)), None)


def check_formats(files: Iterable[str], dialect: Dialect = PLAIN) -> None:
    """DataError where formats are mixed: that is mostly one table kept in two ways, and would count twice.

    And where a dialect is told of files that have none.
    """
    met = {format_of(file, dialect.format) for file in files}
    found = [named for named in dict.fromkeys(FORMATS.values()) if named in met]
    if len(found) > 1:
        raise DataError("data.path", f"{' and '.join(found)} files together", "files of one format",
                        "name those of one, as FOLDER/*.parquet, or convert the others")  # fmt: skip
    told = [one.name for one in fields(Dialect) if one.name != "format" and getattr(dialect, one.name) != one.default]
    if told and not found[0].endswith(("CSV", "TSV")):
        raise DataError(f"data.{told[0]}", f"given for {found[0]} files", "CSV files", "leave it out")
