"""The layout of data: how many files, of what size in all, changed last when. What a listing tells; no file is opened.

By it a job that is asked for again knows whether its data are still those that it was answered from. Size, number and
time of files are taken as public (docs/privacy.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from dpscale.base.errors import DataError
from dpscale.records.files import common_root, find_files, find_objects, hive_columns
from dpscale.records.frames import FRAME
from dpscale.records.matching import left
from dpscale.records.where import EVERYTHING, Where
from dpscale.storage.objects import is_url

Layout = dict[str, int]
Entry = tuple[str, int, int]


def layout(path: str, where: Where = EVERYTHING, named: str = "") -> Layout | None:
    """`size` in bytes, `time` of the latest change in nanoseconds, `number` of files; None where no file is.

    Of files whose folders' names a filter passes over nothing is asked. `named`: the format, if a job says it.
    """
    if path == FRAME:
        return None
    objects = find_objects([path], named) if is_url(path) else []
    found = [(one.url, one.size, one.time) for one in objects] if is_url(path) else list(_in_folders(path, named))
    entries = _asked(path, found, where)
    if not entries:
        return None
    _, sizes, times = zip(*entries, strict=True)
    return {"size": sum(sizes), "time": max(times), "number": len(entries)}


def _asked(path: str, found: list[Entry], where: Where) -> list[Entry]:
    if not (found and where):
        return found
    root = common_root([path], [file for file, *_ in found])
    return [one for one in found if left(where, dict(hive_columns(one[0], root))) is not None]


def differing(one: Layout, other: Layout) -> list[str]:
    """Which of size, time and number, or of a table the version, are not the same."""
    return [name for name in ("size", "time", "number", "version") if one.get(name) != other.get(name)]


def _in_folders(path: str, named: str) -> Iterator[Entry]:
    try:
        files = find_files([path], named)
    except DataError:
        if os.path.exists(path) and os.access(path, os.R_OK):
            raise
        return  # not for this user's eyes: as good as gone
    for file in files:
        with suppress(FileNotFoundError):
            status = os.stat(file)
            yield file, status.st_size, status.st_mtime_ns
