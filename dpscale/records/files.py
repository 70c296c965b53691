"""Files of a table at a path, and the columns stored in the paths of a hive-partitioned folder.

If the job states the format, every file that is not hidden belongs to the table, regardless of its name. A path is
local, or an address in an object store to which the same rules apply.

As in Spark and Hive, names that begin with a dot or an underscore are hidden, at any level below the given path;
`_year=2020` is nevertheless a folder of data. A file named explicitly is never hidden.
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
NAMED = {"parquet": "Parquet", "csv": "CSV", "tsv": "TSV", "arrow": "Arrow"}  # format names in a job
COMPRESSED = {None: "", "gzip": "gzipped ", "zstd": "zstd "}


@dataclass(frozen=True)
class Dialect:
    """Format of a table's files.

    Attributes
    ----------
    delimiter : str
        Field separator of CSV files. Default: a comma, or a tab in a TSV file.
    encoding : str
        Encoding of CSV files.
    null_values : tuple of str
        Texts that denote a null in CSV files, in addition to the empty text.
    names : tuple of str
        Column names of CSV files without a header.
    format : str
        Format of all files, a key of NAMED. Default: derived from the file names' endings.
    """

    delimiter: str = ""
    encoding: str = "utf-8"
    null_values: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    format: str = ""

    def of(self, path: str) -> str:
        """Return the delimiter of a file."""
        return self.delimiter or ("\t" if format_of(path, self.format).endswith("TSV") else ",")


PLAIN = Dialect()


def format_of(path: str, named: str = "") -> str:
    """Return the given format, or the one of the path's ending; empty if unknown."""
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
    """Return the compression of a whole file; None if uncompressed."""
    return next((codec for suffix, codec in CODECS.items() if path.lower().endswith(suffix)), None)


def check_formats(files: Iterable[str], dialect: Dialect = PLAIN) -> None:
    """Raise DataError if formats are mixed, or if CSV options are given for files of another format.

    Files of several formats are usually two copies of one table, which would be counted twice.
    """
    met = {format_of(file, dialect.format) for file in files}
    found = [named for named in dict.fromkeys(FORMATS.values()) if named in met]
    if len(found) > 1:
        raise DataError("data.path", f"{' and '.join(found)} files together", "files of one format",
                        "select one format, for example FOLDER/*.parquet, or convert the others")  # fmt: skip
    told = [one.name for one in fields(Dialect) if one.name != "format" and getattr(dialect, one.name) != one.default]
    if told and not found[0].endswith(("CSV", "TSV")):
        raise DataError(f"data.{told[0]}", f"given for {found[0]} files", "CSV files", "leave it out")


HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
Fixed = tuple[tuple[str, str | None], ...]


def find_files(paths: Iterable[str], named: str = "") -> list[str]:
    """Return the data files at the given files, folders and globs: absolute, unique and sorted by name.

    Parameters
    ----------
    paths : iterable of str
    named : str
        Format of the files. Default: derived from their endings.
    """
    return _all_data(sorted({os.path.abspath(file) for path in paths for file in _at(path, named)}), named)


def find_objects(urls: Iterable[str], named: str = "") -> list[Found]:
    """Return the objects at the given prefixes, objects and globs of an object store, with their sizes."""
    found = {one.url: one for url in urls for one in listed(url) if _counts(url, one.url, named)}
    return [found[url] for url in _all_data(sorted(found), named)]


def _counts(asked: str, url: str, format_named: str) -> bool:
    """Return whether an object at or below the requested address is data; one named explicitly always is."""
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
    """Raise DataError if two names are hard or symbolic links to one file: its records would be counted twice."""
    names: dict[tuple[int, int] | str, str] = {}
    for file in files:
        other = names.setdefault(_which(file), file)
        if other != file:
            raise DataError("data.path", f"{other} and {file} are the same file", "one name for every file",
                            "remove one, or set links = true in [data] to count it under each")  # fmt: skip


def _which(file: str) -> tuple[int, int] | str:
    """Return an identifier of the file: device and inode, or its real path on file systems without inode numbers."""
    try:
        status = os.stat(file)
    except OSError:  # reported when the file is read
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
    """Return the data files anywhere below a folder; ignore files of unknown formats unless a format is given."""
    files: list[str] = []
    seen: set[str] = set()
    for where, folders, names in os.walk(folder, followlinks=True, onerror=_unreadable):
        real = os.path.realpath(where)
        folders[:] = [] if real in seen else [name for name in folders if not _is_hidden(name)]
        if real not in seen:  # a symbolic link to a parent folder would count records twice
            files += [os.path.join(where, name) for name in names if (named or is_data(name)) and not _is_hidden(name)]
        seen.add(real)
    return files


def _unreadable(error: OSError) -> None:
    got = f"{error.filename} cannot be listed"
    raise DataError("data.path", got, "readable folders", "check its permissions") from None


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def common_root(paths: list[str], files: list[str]) -> str:
    """Return the folder to which file names are relative; never a hive folder, because its name is data."""
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
    """Return a file's name relative to the root."""
    return file.removeprefix(root).lstrip("/") if is_url(file) else os.path.relpath(file, root)


def hive_columns(file: str, root: str) -> Fixed:
    """Return the columns fixed by the folders between the root and the file, such as `year=2020`."""
    folders = os.path.dirname(name_below(root, file)).split("/" if is_url(file) else os.sep)
    pairs = [folder.split("=", 1) for folder in folders if "=" in folder]
    return tuple((unquote(key), None if value == HIVE_NULL else unquote(value)) for key, value in pairs)
