"""Files of a table: their list at a path, and the columns that hive folders fix.

If the job states the format, every file that is not hidden belongs to the table, regardless of its name. A path is
local, or an address in an object store to which the same rules apply.

As in Spark and Hive, names that begin with a dot or an underscore are hidden, at any level below the given path;
`_year=2020` is nevertheless a folder of data. A file named explicitly is never hidden. Run directories of dpscale below
the given path are not data. Files of a Delta, Iceberg or Hudi table are refused unless the job states their format,
because such a folder contains deleted and superseded records too. Other files of unknown formats are left out, and
named; those that begin like data are refused.
"""

from __future__ import annotations

import errno
import glob
import os
import posixpath
import re
from collections.abc import Collection, Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote

from dpscale.base.errors import DataError
from dpscale.records.files import first_bytes
from dpscale.records.formats import accepted_formats, endings, is_data
from dpscale.storage.objects import Found, children, common_folder, is_url, listed, relative_path

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
Fixed = tuple[tuple[str, str | None], ...]
MOST_NAMED = 5  # files that a message names
LAKES = {"delta": "Delta", "iceberg": "Iceberg", "hudi": "Hudi"}
LOGS, METADATA = {"delta": "_delta_log", "hudi": ".hoodie"}, ".metadata.json"


@dataclass(frozen=True)
class Listing:
    """Files at some paths.

    Attributes
    ----------
    files : tuple of str
        Data files: absolute, unique and sorted by name.
    left_out : tuple of str
        Files in the same folders that are not data because of their endings.
    """

    files: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """Sentence on the files that are left out; empty if there are none."""
        if not self.left_out:
            return ""

        names = sorted({os.path.basename(file) for file in self.left_out})
        shown = ", ".join(names[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
        return (
            f"{len(self.left_out)} file{'s' * (len(self.left_out) > 1)} beside the data left out because of the"
            f" ending ({shown}); a format in [data] reads every file"
        )


def find_files(paths: Iterable[str], named: str = "") -> list[str]:
    """Return the data files of `list_files`."""
    return list(list_files(paths, named).files)


def list_files(paths: Iterable[str], named: str = "") -> Listing:
    """Return the files at the given files, folders and globs.

    Parameters
    ----------
    paths : iterable of str
    named : str
        Format of the files. Default: derived from their endings.

    Raises
    ------
    DataError
        If a folder cannot be listed, a file is of no known format, or files belong to a table with a log.
    """
    places = [_at(path) for path in paths]
    meant = {os.path.abspath(file) for matches, _ in places for file in matches}
    below = {os.path.abspath(file) for _, files in places for file in files} - meant
    data = sorted(meant | {file for file in below if named or is_data(file)})
    rest = sorted(below.difference(data))
    if not named:
        _check_lakes(data)
        _check_left_out(rest if data else [])
    return Listing(tuple(_all_data(data, named)), tuple(rest))


def find_objects(urls: Iterable[str], named: str = "") -> list[Found]:
    """Return the objects at the given prefixes, objects and globs of an object store, with their sizes."""
    urls = list(urls)
    found = {one.url: (one, url) for url in urls for one in listed(url)}
    if not named:
        _check_lake_prefixes(urls, found)
    data = [name for name, (_, url) in found.items() if _counts(url, name, named)]
    return [found[name][0] for name in _all_data(sorted(data), named)]


def format_of_content(file: str) -> str:
    """Return the format whose mark a file of any name begins with; empty if there is none."""
    start = first_bytes(file)
    known = {one.name: one.magic for one in endings().values() if one.magic}
    return next((name for name, magic in known.items() if start.startswith(magic)), "")


def _check_left_out(files: Iterable[str]) -> None:
    """Raise DataError if files that are left out because of their endings begin like data."""
    if like := [(file, form) for file in files if (form := format_of_content(file))]:
        (first, form), names = like[0], ", ".join(os.path.basename(file) for file, _ in like[:MOST_NAMED])
        raise DataError("data.path", f"{len(like)} of the files in {os.path.dirname(first)} with unknown endings"
                        f" begin like {form} ({names})", "endings that show which files are data",
                        f'set format = "{form}" in [data] to read every file, or move them')  # fmt: skip


def _check_lakes(files: Collection[str]) -> None:
    """Raise DataError if a folder at or above some files is that of a table with a log."""
    places = {os.path.dirname(file) for file in files}
    targets = {os.path.dirname(os.path.realpath(file)) for file in files if os.path.islink(file)}
    folders, seen = places | targets | set(map(os.path.realpath, places)), set[str]()
    while folders := folders - seen:
        for folder in sorted(folders):
            if kind := _lake_at(folder):
                raise _lake(kind, folder)
        seen |= folders
        folders = set(map(os.path.dirname, folders))


def _lake_at(folder: str) -> str:
    """Return the format of a table with a log whose folder this is; empty for other folders."""
    for kind, log in LOGS.items():
        if os.path.isdir(os.path.join(folder, log)):
            return kind
    with suppress(OSError), os.scandir(os.path.join(folder, "metadata")) as entries:
        return "iceberg" if any(entry.name.endswith(METADATA) for entry in entries) else ""
    return ""


def _check_lake_prefixes(urls: Iterable[str], found: Iterable[str]) -> None:
    """Raise DataError if a prefix at or above some objects is that of a table with a log.

    `urls` are the given paths, perhaps with wildcards, and `found` the objects below them. A log marks the folder of a
    table; so does a metadata file of Iceberg.
    """
    for name in found:
        folder, _, last = name.rpartition("/")
        parts = folder.split("/")
        for kind, log in LOGS.items():
            if log in parts:
                raise _lake(kind, "/".join(parts[: parts.index(log)]))
        if parts[-1] == "metadata" and last.endswith(METADATA):
            raise _lake("iceberg", "/".join(parts[:-1]))
    for url in urls:
        # the folder above the part without wildcards
        above = re.split(r"[*?\[]", url, maxsplit=1)[0].rstrip("/").rpartition("/")[0]
        # a path may point into a table: its log is then in a folder above
        while not above.endswith(("/", ":")):
            names = children(above)
            if kind := next((kind for kind, log in LOGS.items() if log in names), ""):
                raise _lake(kind, above)
            if "metadata" in names and any(one.endswith(METADATA) for one in children(f"{above}/metadata")):
                raise _lake("iceberg", above)
            above = above.rpartition("/")[0]


def _lake(kind: str, folder: str) -> DataError:
    """Return the error for a folder of a table with a log that is read as plain files."""
    known = f'set format = "{kind}" in [data], and this folder as the path'
    unknown = 'export its current records, or set format = "parquet" in [data] to count every file'
    return DataError("data.path", f"{folder} is the folder of a table of {LAKES[kind]}, whose files contain deleted and"
                     " superseded records too", "files of which every record counts",
                     unknown if kind == "hudi" else known)  # fmt: skip


def _counts(asked: str, url: str, format_named: str) -> bool:
    """Return whether an object at or below the requested address is data; one named explicitly always is."""
    named = re.split(r"[*?\[]", asked, maxsplit=1)
    below = url.removeprefix(named[0].rpartition("/")[0] if len(named) > 1 else asked).strip("/")
    data = not url.endswith("/") if format_named else is_data(url)
    return url == asked or (data and not any(map(_is_hidden, below.split("/"))))


DATABASES = {"duckdb": "duckdb", **dict.fromkeys(("db", "sqlite", "sqlite3"), "sqlite")}  # by the ending of a file


def _all_data(files: list[str], named: str) -> list[str]:
    """Return files unchanged if each name has the ending of a data format or `named` says the format; refuse others."""
    for file in files:
        if not named and not is_data(file):
            remedy = f'name it *{", *".join(endings())}, or say what it is, as format = "csv" in [data]'
            if (kind := DATABASES.get(file.rpartition(".")[2].lower())) is not None:
                remedy = f"write {kind}:///{file}?table=NAME for a table of a database"
            raise DataError("data.path", f"{file}", accepted_formats(), remedy)
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


def _at(path: str) -> tuple[list[str], list[str]]:
    """Return the files that a path names or matches, and those below folders that it names or matches.

    A path may be a folder, a file, or a glob, whose literal part is listed.
    """
    if os.path.isdir(path):
        return [], _below(path)
    if os.path.exists(path):
        return [path], []

    fixed, pattern = _literal_part(os.path.abspath(path))
    _check_listable(fixed, pattern)
    matches = [match for match in glob.glob(os.path.join(glob.escape(fixed), pattern), recursive=True)
               if not _is_hidden(os.path.basename(match)) and not _within_run(match, fixed)]  # fmt: skip
    folders = [match for match in matches if os.path.isdir(match) and not is_run(match)]
    files = [match for match in matches if not os.path.isdir(match)]

    return files, [file for folder in folders for file in _below(folder)]


def _check_listable(fixed: str, pattern: str) -> None:
    """Raise DataError for a folder that a pattern lists and that cannot be listed; a glob omits it."""
    parts = pattern.split(os.sep)
    for count, part in enumerate(parts):
        if not glob.has_magic(part):
            continue
        for folder in glob.iglob(os.path.join(glob.escape(fixed), *parts[:count], ""), recursive=True):
            if not os.access(folder, os.R_OK | os.X_OK) and os.path.isdir(folder):
                _unreadable(PermissionError(errno.EACCES, "", folder))

    if len(parts) == 1 and not os.access(fixed, os.X_OK):
        _unreadable(PermissionError(errno.EACCES, "", fixed))


def _literal_part(path: str) -> tuple[str, str]:
    """Return the longest existing folder with which a path begins, and the rest, a pattern."""
    drive, rest_of_path = os.path.splitdrive(path)
    fixed, rest = drive + os.sep, rest_of_path.lstrip(os.sep).split(os.sep)
    while len(rest) > 1 and os.path.isdir(os.path.join(fixed, rest[0])):
        fixed = os.path.join(fixed, rest.pop(0))
    return fixed, os.sep.join(rest)


def _within_run(path: str, base: str) -> bool:
    """Return whether a folder between `base` and a path is a run directory."""
    folder = os.path.dirname(path)
    while len(folder) > len(base):
        if is_run(folder):
            return True
        folder = os.path.dirname(folder)
    return False


def is_run(folder: str) -> bool:
    """Return whether a folder is a run directory of dpscale."""
    with suppress(OSError), open(os.path.join(folder, "manifest.json"), "rb") as file:
        return b'"job_sha256"' in file.read()
    return False


def _below(folder: str) -> list[str]:
    """Return the files anywhere below a folder that are not hidden.

    A folder of a run of dpscale below the given one is left out.
    """
    files: list[str] = []
    seen: set[str] = set()
    for where, folders, names in os.walk(folder, followlinks=True, onerror=_unreadable):
        real = os.path.realpath(where)
        inside = where == folder or "manifest.json" not in names or not is_run(where)
        folders[:] = [] if real in seen or not inside else [name for name in folders if not _is_hidden(name)]
        if real not in seen and inside:  # a symbolic link to a parent folder would count records twice
            files += [os.path.join(where, name) for name in names if not _is_hidden(name)]
        seen.add(real)

    return files


def _unreadable(error: OSError) -> None:
    got = f"{os.path.normpath(error.filename)} cannot be listed"
    raise DataError("data.path", got, "readable folders", "check its permissions") from None


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def common_root(paths: list[str], files: list[str]) -> str:
    """Return the folder to which file names are relative; never a hive folder, because its name is data.

    A folder such as year=2025 states a column, which would get lost if it were the root.
    """
    if is_url(files[0]):
        return _common_prefix(paths, files)
    root = os.path.abspath(paths[0]) if len(paths) == 1 and os.path.isdir(paths[0]) else common_folder(files)
    while not os.path.isdir(root) or "=" in os.path.basename(root):
        root = os.path.dirname(root)
    return root


def _common_prefix(paths: list[str], files: list[str]) -> str:
    """Return the folder that all files on an object store have in common, above folders such as `year=2025`.

    `paths` are those of the job. A single path that is a folder of the files is the root itself. The loop leaves
    folders of columns, and a root that is a file.
    """
    scheme, names = files[0].partition("://")[0], [file.partition("://")[2] for file in files]
    asked = paths[0].partition("://")[2].rstrip("/")
    root = asked if len(paths) == 1 and names[0].startswith(asked + "/") else posixpath.commonpath(names)
    while root in names or "=" in posixpath.basename(root):
        root = posixpath.dirname(root)
    return f"{scheme}://{root}"


def name_below(root: str, file: str) -> str:
    """Return a file's name relative to the root, with "/"."""
    return file.removeprefix(root).lstrip("/") if is_url(file) else relative_path(file, root)


def hive_columns(file: str, root: str) -> Fixed:
    """Return the columns fixed by the folders between the root and the file, such as `year=2020`."""
    folders = posixpath.dirname(name_below(root, file)).split("/")
    pairs = [folder.split("=", 1) for folder in folders if "=" in folder]
    named = [(unquote(key), unquote(value)) for key, value in pairs]
    return tuple((key, None if value == HIVE_NULL else value) for key, value in named)


def calendar_names(fixed: Fixed, dates: Set[str]) -> Fixed:
    """Return the columns with whole dates: month=01 below year=2024 is 2024-01, and month=2024-1 is too.

    `parts` are year, month and day as far as a folder's name states them.

    Parameters
    ----------
    fixed : tuple of (str, str or None)
        Columns in the order of their folders.
    dates : set of str
        Columns that contain dates; others are unchanged.
    """
    known: list[str] = []  # year, month and day of the folders so far
    found = []
    for name, value in fixed:
        parts = re.fullmatch(r"(?:(\d{4})-)?(?:(\d{1,2})-)?(\d{1,2})", value or "")
        if re.fullmatch(r"\d{4}", value or ""):
            known = [str(value)]
        elif parts is not None:
            stated = [part.zfill(2) for part in parts.groups() if part is not None]
            # a name with a year restarts the date; a bare number continues that of the folders above, up to a day
            known = stated if parts[1] else [*known, *stated][:3] if known and len(stated) == 1 else []
            value = "-".join(known) if known and name in dates else value
        found.append((name, value))

    return tuple(found)
