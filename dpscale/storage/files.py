"""Where a run directory is: a folder, or a prefix in an object store (`s3://bucket/run`, any file system of fsspec).

All files of a run are written here, whole or not at all. In a folder that is a write under another name, a flush and a
rename. In a store one upload is whole by itself, and what must be made once (the lock, the secret, the manifest) is
made by a conditional write. S3 and its kin have it (If-None-Match), Google's and Azure's stores too; one whose fsspec
driver has none, or takes no notice, is refused (a run directory begins with a probe).
"""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import Any, BinaryIO, cast

from dpscale.base.display import shown
from dpscale.base.errors import DpscaleError, JobError, TransientError

FIELD, PARTIAL, PROBE = "run directory", ".partial", ".probe-"


def place(path: str | Path, field: str = FIELD) -> Path:
    """A path in a folder, absolute; or, for a URL, one of the same manners in a store. JobError for what is no path."""
    path = checked_path(path, field)
    path = path.removeprefix("file://") if isinstance(path, str) else path
    if "://" not in str(path):
        return Path(path).absolute()
    if not isinstance(path, str):
        return path
    try:
        from upath import UPath

        return cast(Path, UPath(path, use_listings_cache=False))
    except ImportError as error:
        raise JobError(FIELD, f"{path}, for which {error.name or 'a package'} is missing", "a folder, or a store",
                       "pip install 'dpscale[store]' and the store's own fsspec package") from None  # fmt: skip
    except ValueError:
        raise JobError(FIELD, f"{path}, of no known kind of store", "a folder, or a URL that fsspec knows",
                       "mend it") from None  # fmt: skip


def is_path(value: Any) -> bool:
    """Whether `place` takes it: a text, a path, or one of fsspec's kind, and nothing that has records in it."""
    return isinstance(value, str | os.PathLike) or hasattr(value, "read_bytes")


def checked_path(path: Any, field: str) -> Any:
    """A path as it is; JobError for another thing, and for what no file system can have as a name."""
    if not is_path(path):
        raise JobError(field, shown(path), "a path", "give one")
    try:
        writable = b"\0" not in os.fsencode(str(path))
    except UnicodeEncodeError:
        writable = False
    if not writable:
        raise JobError(field, "a path with a letter that no file system writes", "a path", "mend it")
    return path


def is_local(path: Path) -> bool:
    """Whether a place is in a folder."""
    return isinstance(path, Path) and "://" not in str(path)


@contextmanager
def writing(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to be written whole: a reader sees the old one or the new one, never a part; the old one on an error.

    `durable`: flushed to the disk before it has its name.
    """
    if not is_local(path):
        buffer = io.BytesIO()
        yield buffer
        with store_errors(path):
            path.write_bytes(buffer.getbuffer())
        return
    with half_written(path) as (file, partial):
        yield file
        file.flush()
        if durable:
            os.fsync(file.fileno())
        os.replace(partial, path)


@contextmanager
def half_written(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A file in a folder under another name, and that name; gone after an error."""
    partial = _partial_name(path)
    try:
        with _opened(partial) as file:
            yield file, partial
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _opened(path: Path) -> BinaryIO:
    """A new file, in a folder that is made where it lacks: most are there, and asking costs each file a call."""
    try:
        return open(path, "wb")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "wb")


def _partial_name(path: Path) -> Path:
    """Another name for a file that is not whole yet; containers may share process ids."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{PARTIAL}")


def is_partial(path: Path) -> bool:
    """Whether a file was left half written."""
    return path.name.startswith(".") and path.name.endswith(PARTIAL)


def remove_partial(folder: Path) -> None:
    """Remove what killed processes left half written in a folder where nobody writes any more."""
    if is_local(folder):
        for partial in folder.glob(f".*{PARTIAL}"):
            partial.unlink(missing_ok=True)


def flush_names(folder: Path) -> None:
    """Wait until the names in a folder are on the disk; what `writing` flushed are the contents."""
    if is_local(folder) and folder.exists():
        flush(folder)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def present(path: Path) -> bool:
    """Whether a file is there. An error where nobody can tell now: `exists` of many drivers takes that for a no."""
    if is_local(path):
        return path.exists()
    store: Any = path
    with store_errors(path):
        try:
            store.fs.info(store.path)
        except FileNotFoundError:
            return False
    return True


def listed(folder: Path) -> list[str]:
    """The names in a folder; none where it is not there."""
    if is_local(folder):
        return os.listdir(folder) if folder.exists() else []
    store: Any = folder
    root = store.path.rstrip("/")
    with store_errors(folder):
        try:
            entries = [str(name).rstrip("/") for name in store.fs.ls(root, detail=False)]
        except FileNotFoundError:
            return []
    return [name.rpartition("/")[2] for name in entries if name != root]  # some stores keep the folder as an object


def reading(path: Path) -> BinaryIO:
    """A file to be read at any place of it; to be closed."""
    return path.open("rb") if is_local(path) else io.BytesIO(read_bytes(path))


def read_bytes(path: Path) -> bytes:
    """A file of a run. FileNotFoundError where there is none, TransientError where nobody can tell now."""
    with store_errors(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise TransientError(FIELD, f"{path} cannot be read ({error.strerror or type(error).__name__})",
                                 "a file that this user can read", "mend that and run again") from None  # fmt: skip
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def read_text(path: Path) -> str:
    """A file that a user wrote: OSError as the operating system has it, TransientError where a store cannot tell."""
    return (path.read_bytes() if is_local(path) else read_bytes(path)).decode("utf-8-sig")


def toml_fault(error: ValueError) -> str:
    """Where a text is no TOML. Not what stands there: the file may be one of records, named by mistake."""
    found = re.search(r"\(at (.*)\)$", str(error))
    return f" ({found[1]})" if found else ""


def write_whole(path: Path, content: bytes) -> None:
    """Write, flush, rename."""
    with writing(path) as file:
        file.write(content)


def create(path: Path, content: bytes) -> bool:
    """Make a file that is not there; False where it is. Of several processes one makes it."""
    if is_local(path):
        return _create_file(path, content)
    try:
        with store_errors(path), _new_object(path) as file:
            file.write(content)
    except FileExistsError:
        return False
    return True


def _new_object(path: Any) -> BinaryIO:
    try:
        return cast(BinaryIO, path.fs.open(path.path, "xb"))  # a driver that does not know this mode says so here
    except (ValueError, NotImplementedError):
        raise _unconditional(path) from None


def check_conditional(folder: Path) -> None:
    """JobError where a store makes an object although it is there: drivers may pass over that they are asked not to.

    The plain write before tells whether the store can be written at all, so that what `create` meets is the condition.
    """
    probe = folder / f"{PROBE}{secrets.token_hex(8)}"
    with store_errors(probe):
        try:
            probe.write_bytes(b"first")
        except FileNotFoundError:
            raise JobError(FIELD, f"{folder}, in a bucket that is not there", "a bucket that is",
                           "make it, or mend the address") from None  # fmt: skip
    try:
        overwritten = create(probe, b"second")
    finally:
        with store_errors(probe):
            probe.unlink(missing_ok=True)
    if overwritten:
        raise _unconditional(folder)


def _unconditional(path: Path) -> JobError:
    return JobError(FIELD, f"{path}, in a store whose driver has no conditional writes", "a store that has them",
                    "use another store, or a shared file system")  # fmt: skip


def _create_file(path: Path, content: bytes) -> bool:
    """Written and flushed under another name, then linked to its own, which fails where that is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial_name(path)
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)
    except FileExistsError:
        return False
    finally:
        partial.unlink(missing_ok=True)
    return True


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """What a store's driver raises, as one sentence that can be tried again; its own text may be long and tell keys.

    Drivers raise what they like, so what counts is where it came from.
    """
    try:
        yield
    except (DpscaleError, FileExistsError):
        raise
    except Exception as error:
        if is_local(path) or not _of_driver(error, path):
            raise
        raise TransientError(FIELD, f"{path} cannot be reached ({type(error).__name__})",
                             "a store that can be read and written",
                             "check address, keys and rights, and run again") from None  # fmt: skip


def _of_driver(error: Exception, path: Any) -> bool:
    drivers = {"fsspec", "upath", type(path.fs).__module__.partition(".")[0]}
    modules = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return any(module.partition(".")[0] in drivers for module in modules)
