"""Which files a path stands for, and which columns a hive-partitioned folder keeps in their paths.

Where the format is named, every file that is not hidden is one of the table, whatever it is called.

A path is of this machine, or an address in an object store, which is found by the same rules.

Hidden are, as Spark and Hive have it, names that begin with a dot or an underscore, at any level below the path asked
for; but `_year=2020` is a folder of data. What is named outright is never hidden.
"""

from __future__ import annotations

import glob
import os
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from urllib.parse import unquote

from dpscale.base.errors import DataError
from dpscale.storage.objects import Found, is_url, listed

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


HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
Fixed = tuple[tuple[str, str | None], ...]


def find_files(paths: Iterable[str], named: str = "") -> list[str]:
    """The files at some files, folders and globs: absolute, each once, in the order of their names. `named`: their
    format, where it is not by their endings."""
    return _all_data(sorted({os.path.abspath(file) for path in paths for file in _at(path, named)}), named)


def find_objects(urls: Iterable[str], named: str = "") -> list[Found]:
    """The same of a store's prefixes, objects and globs, each with its size."""
    found = {one.url: one for url in urls for one in listed(url) if _counts(url, one.url, named)}
    return [found[url] for url in _all_data(sorted(found), named)]


def _counts(asked: str, url: str, format_named: str) -> bool:
    """Whether an object at or below what is asked for is data: the object named itself is, whatever it is called."""
    named = re.split(r"[*?\[]", asked, maxsplit=1)
    below = url.removeprefix(named[0].rpartition("/")[0] if len(named) > 1 else asked).strip("/")
    data = not url.endswith("/") if format_named else is_data(url)
    return url == asked or (data and not any(map(_is_hidden, below.split("/"))))


def _all_data(files: list[str], named: str) -> list[str]:
    for file in files:
        if not named and not is_data(file):
            remedy = f'name it *{", *".join(SUFFIXES)}, or say what it is, as format = "csv" in [data]'
            raise DataError("data.path", f"{file}", TAKEN, remedy)
    return files


def check_links(files: Iterable[str]) -> None:
    """DataError where two names lead to one file, by hard or symbolic links: its records would count twice."""
    names: dict[tuple[int, int] | str, str] = {}
    for file in files:
        other = names.setdefault(_which(file), file)
        if other != file:
            raise DataError("data.path", f"{other} and {file} are one file", "one name for every file",
                            "remove one, or set links = true in [data] to count it under each")  # fmt: skip


def _which(file: str) -> tuple[int, int] | str:
    """What tells a file from others; some file systems number none."""
    try:
        status = os.stat(file)
    except OSError:  # told when it is read
        return file
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(file)


def _at(path: str, named: str) -> list[str]:
    if os.path.isdir(path):
        return _below(path, named)
    if os.path.exists(path):
        return [path]
    matches = [match for match in glob.glob(path, recursive=True) if not _is_hidden(os.path.basename(match))]
    return [file for match in matches for file in (_below(match, named) if os.path.isdir(match) else [match])]


def _below(folder: str, named: str) -> list[str]:
    """Data files anywhere below a folder; what is of no known format is left alone, where none is named."""
    files: list[str] = []
    seen: set[str] = set()
    for where, folders, names in os.walk(folder, followlinks=True, onerror=_unreadable):
        real = os.path.realpath(where)
        folders[:] = [] if real in seen else [name for name in folders if not _is_hidden(name)]
        if real not in seen:  # a link back up would count records twice
            files += [os.path.join(where, name) for name in names if (named or is_data(name)) and not _is_hidden(name)]
        seen.add(real)
    return files


def _unreadable(error: OSError) -> None:
    got = f"{error.filename} cannot be listed"
    raise DataError("data.path", got, "readable folders", "check its permissions") from None


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def common_root(paths: list[str], files: list[str]) -> str:
    """The folder that the files' names are told from; never a hive folder, whose name is data."""
    if is_url(files[0]):
        return _common_prefix(paths, files)
    root = os.path.abspath(paths[0]) if len(paths) == 1 and os.path.isdir(paths[0]) else os.path.commonpath(files)
    while not os.path.isdir(root) or "=" in os.path.basename(root):
        root = os.path.dirname(root)
    return root


def _common_prefix(paths: list[str], files: list[str]) -> str:
    scheme, names = files[0].partition("://")[0], [file.partition("://")[2] for file in files]
    asked = paths[0].partition("://")[2].rstrip("/")
    root = asked if len(paths) == 1 and names[0].startswith(asked + "/") else posixpath.commonpath(names)
    while root in names or "=" in posixpath.basename(root):
        root = posixpath.dirname(root)
    return f"{scheme}://{root}"


def name_below(root: str, file: str) -> str:
    """A file's name from the root."""
    return file.removeprefix(root).lstrip("/") if is_url(file) else os.path.relpath(file, root)


def hive_columns(file: str, root: str) -> Fixed:
    """Columns that the folders between the root and the file fix, as `year=2020`."""
    folders = os.path.dirname(name_below(root, file)).split("/" if is_url(file) else os.sep)
    pairs = [folder.split("=", 1) for folder in folders if "=" in folder]
    return tuple((unquote(key), None if value == HIVE_NULL else unquote(value)) for key, value in pairs)
