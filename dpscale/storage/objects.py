"""Data in an object store: listing of prefixes, objects and globs, and reading of objects.

Every file system of fsspec is supported (s3, gs, abfs, …). Credentials come from the environment, as read by the
store's own driver. An address that contains credentials is refused, because addresses appear in manifests, logs and
errors. Errors of a driver are replaced by one sentence with their type only, because their text may contain
credentials.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from traceback import walk_tb
from typing import Any, BinaryIO, cast

from dpscale.base.errors import DataError, DpscaleError, TransientError, Unreadable
from dpscale.storage.databases import is_database, located_database, read_address

FIELD = "data.path"
TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")  # keys used by the stores' drivers
TAGS = ("ETag", "etag", "generation", "content_settings")  # keys of values that change whenever an object is written
AHEAD = 1 << 24  # read-ahead in bytes for sequential reading
PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}
EXTRAS = {"s3fs": "store", "gcsfs": "gcs", "adlfs": "azure"}
SEVERAL = "a file system that lists files, as s3, gs or abfs"


@dataclass(frozen=True)
class Found:
    """Object in a store.

    Attributes
    ----------
    url : str
    size : int
        Bytes.
    time : int
        Time of the last change in nanoseconds.
    tag : str
        The store's tag of the content.
    """

    url: str
    size: int
    time: int
    tag: str


def is_url(path: str) -> bool:
    return "://" in path


def real(path: str) -> str:
    """Return a path with links resolved; an address is unchanged. For rows in a database it is that of the database."""
    if is_database(path):
        found = read_address(path)
        return os.path.realpath(found.place) if found.is_file else found.database
    return path if is_url(path) else os.path.realpath(path)


def slashed(path: object) -> str:
    """Return a path as files of a run state it on every system: with "/" between its parts."""
    return str(path).replace(os.sep, "/")


def relative_path(path: str | Path, folder: str | Path) -> str:
    """Return the path of a file from a folder, with "/"; on another drive of Windows, its absolute path."""
    try:
        return slashed(os.path.relpath(path, folder))
    except ValueError:
        return slashed(path)


def common_folder(paths: list[str]) -> str:
    """Return the folder that contains local files. Raises DataError for files on several drives of Windows."""
    try:
        return os.path.commonpath(paths)
    except ValueError:
        raise DataError(FIELD, f"{paths[0]} and files on another drive", "files on one drive", "move them") from None


def located(folder: Path, path: str) -> str:
    """Return a path relative to a folder, which may be in a store; an absolute path stays absolute."""
    path = path.removeprefix("file://")
    if is_database(path):
        return located_database(folder, path)
    if is_url(path):
        return path
    if not is_url(str(folder)) or os.path.isabs(path):
        return os.path.normpath(os.path.join(str(folder), path))
    scheme, _, rest = str(folder).partition("://")
    return f"{scheme}://{os.path.normpath(os.path.join(rest, path))}"


def check_url(path: str) -> None:
    """Raise DataError for an address with credentials, which is not repeated, or of a store that cannot list files.

    `user` is the part of the address before an @, in which a colon separates a password.
    """
    if is_database(path):
        read_address(path)
    if not is_url(path) or is_database(path):
        return

    scheme, _, rest = path.partition("://")
    user = rest.partition("/")[0].rpartition("@")[0]
    query = rest.partition("?")[2].partition("/")[0]
    # a password, parameters such as keys, or a chain of fsspec file systems
    if ":" in user or "=" in query or "::" in path:
        raise DataError(
            FIELD,
            f"an address of {scheme.rpartition(':')[2]}:// that contains a key",
            "an address without credentials",
            "set keys in the environment, as for the store's own tools",
        )
    if scheme in ("http", "https", "ftp"):
        raise DataError(FIELD, f"an address of {scheme}://", SEVERAL, "copy the files there")


def listed(url: str) -> list[Found]:
    """Return the objects below a prefix, the object itself, or the matches of a glob; empty if there are none."""
    check_url(url)
    with store_faults(url, "listed"):
        try:
            store, root = _store(url)
            return [_found(url, root, entry) for entry in _entries(store, root)]
        except FileNotFoundError:
            return []


def children(url: str) -> list[str]:
    """Return the names of objects and prefixes directly below a prefix; empty if it cannot be listed."""
    with suppress(Exception):  # keys may permit reading below a prefix without listing it
        store, root = _store(url)
        return [str(name).rstrip("/").rpartition("/")[2] for name in store.ls(root, detail=False)]
    return []


def looked_at(url: str) -> Found:
    """Return the current state of one object. Raises Unreadable if it is missing."""
    with store_faults(url, "read"):
        store, root = _store(url)
        return _found(url, root, store.info(root))


@contextmanager
def opening(path: str, ahead: int = AHEAD) -> Iterator[BinaryIO]:
    """Open a file or object for random access.

    Parameters
    ----------
    path : str
    ahead : int
        Bytes fetched in advance from a store; 0 fetches only the requested ranges.
    """
    if not is_url(path):
        with open(path, "rb") as file:
            yield file
        return

    with store_faults(path, "read"):
        store, root = _store(path)
        opened = store.open(root, "rb", block_size=ahead or None, cache_type="readahead" if ahead else "none")

    with opened:
        yield cast(BinaryIO, opened)


@contextmanager
def store_faults(url: str, done: str) -> Iterator[None]:
    """Convert a driver's exceptions to errors without their text."""
    try:
        yield
    except DpscaleError:
        raise
    except ImportError as error:
        package = PACKAGES.get(url.partition("://")[0])
        remedy = f"pip install 'dpscale[{EXTRAS[package]}]'" if package else "install the store's own fsspec package"
        raise DataError(FIELD, f"{url}, which requires the missing package {package or error.name or 'of its store'}",
                        "a folder, or a store", remedy) from None  # fmt: skip
    except (FileNotFoundError, PermissionError):
        raise Unreadable(
            FIELD, f"{url} cannot be {done}", "an address that these keys may read", "check address and permissions"
        ) from None
    except Exception as error:
        if isinstance(error, ValueError) and "rotocol" in str(error):
            raise DataError(FIELD, f"{url}, in an unknown kind of store", SEVERAL, "fix it") from None
        raise TransientError(
            FIELD,
            f"{url} cannot be {done} ({type(error).__name__})",
            "an available store",
            "check address, keys and permissions, and run again",
        ) from None


def _entries(store: Any, root: str) -> list[dict[str, Any]]:
    """Return a driver's entries of the objects, including those below folders that match a glob."""
    found = store.glob(root, detail=True) if set("*?[") & set(root) else store.find(root, detail=True)
    folders = [name for name, entry in found.items() if entry.get("type") == "directory"]
    for folder in folders:
        found |= store.find(folder, detail=True)
    return [entry for entry in found.values() if entry.get("type") != "directory"]


def of_store(error: BaseException) -> bool:
    """Return whether a store's driver raised the error, rather than the code that read the bytes."""
    modules = (str(frame.f_globals.get("__name__", "")) for frame, _ in walk_tb(error.__traceback__))
    return not isinstance(error, DpscaleError) and any(name.partition(".")[0] == "fsspec" for name in modules)


def _store(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    return cast(tuple[Any, str], url_to_fs(url, use_listings_cache=False))


def _found(url: str, root: str, entry: dict[str, Any]) -> Found:
    name = str(entry["name"])
    tag = next((str(entry[one]) for one in TAGS if entry.get(one) is not None), "")
    return Found(url=_address(url, root, name), size=int(entry.get("size") or 0), time=_nanoseconds(entry), tag=tag)


def _address(url: str, root: str, name: str) -> str:
    """Return the address of the object `name`, where the driver calls the requested address `root`.

    The authority of an address may contain more than the bucket or container, such as Azure's account.
    """
    scheme, _, rest = url.partition("://")
    authority, bucket = rest.partition("/")[0], root.lstrip("/").partition("/")[0]
    if bucket in (authority, authority.partition("@")[0]):
        return f"{scheme}://{authority}/{name.lstrip('/').partition('/')[2]}"
    return f"{scheme}://{authority}/{name.lstrip('/')}"


def _nanoseconds(entry: dict[str, Any]) -> int:
    """Return the time of last change of an object in nanoseconds since 1970; 0 if the store states none."""
    stated = next((entry[name] for name in TIMES if entry.get(name) is not None), 0)
    with suppress(ValueError):
        stated = datetime.fromisoformat(stated) if isinstance(stated, str) else stated
    seconds = stated.timestamp() if isinstance(stated, datetime) else stated
    return int(seconds * 1e9) if isinstance(seconds, int | float) else 0
