"""The layout of data: how many files, of what size in all, changed last when. What a listing tells; no file is opened.

By it a job that is asked for again knows whether its data are still those that it was answered from. Size, number and
time of files are taken as public (docs/privacy.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

from dpscale.errors import DataError, TransientError
from dpscale.tables.files import find_files, is_data

Layout = dict[str, int]
TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")  # as the drivers of stores call it


def layout(path: str) -> Layout | None:
    """`size` in bytes, `time` of the latest change in nanoseconds, `number` of files; None where there is no file."""
    entries = list(_in_store(path) if "://" in path else _in_folders(path))
    if not entries:
        return None
    sizes, times = zip(*entries, strict=True)
    return {"size": sum(sizes), "time": max(times), "number": len(entries)}


def differing(one: Layout, other: Layout) -> list[str]:
    """Which of size, time and number are not the same."""
    return [name for name in ("size", "time", "number") if one.get(name) != other.get(name)]


def _in_folders(path: str) -> Iterator[tuple[int, int]]:
    try:
        files = find_files([path])
    except DataError:
        if os.path.exists(path) and os.access(path, os.R_OK):
            raise
        return  # not for this user's eyes: as good as gone
    for file in files:
        with suppress(FileNotFoundError):
            status = os.stat(file)
            yield status.st_size, status.st_mtime_ns


def _in_store(path: str) -> Iterator[tuple[int, int]]:
    for entry in _listed(path):
        below = str(entry["name"]).removeprefix(path.partition("://")[2].partition("*")[0])
        hidden = any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in below.split("/"))
        if is_data(str(entry["name"])) and not hidden:
            yield int(entry.get("size") or 0), _nanoseconds(entry)


def _listed(path: str) -> Iterable[dict[str, Any]]:
    """What a store's driver says of the files at a prefix, an object or a glob."""
    from fsspec.core import url_to_fs

    try:
        store, root = url_to_fs(path)
        store.invalidate_cache()
        found = store.glob(root, detail=True) if set("*?[") & set(root) else store.find(root, detail=True)
    except FileNotFoundError:
        return []
    except Exception as error:  # drivers raise what they like, in texts that may tell keys
        raise TransientError("data.path", f"{path} cannot be listed ({type(error).__name__})", "a store that can be",
                             "check address, keys and rights, and run again") from None  # fmt: skip
    return [entry for entry in found.values() if entry.get("type") != "directory"]


def _nanoseconds(entry: dict[str, Any]) -> int:
    told = next((entry[name] for name in TIMES if entry.get(name) is not None), 0)
    with suppress(ValueError):
        told = datetime.fromisoformat(told) if isinstance(told, str) else told
    seconds = told.timestamp() if isinstance(told, datetime) else told
    return int(seconds * 1e9) if isinstance(seconds, int | float) else 0
