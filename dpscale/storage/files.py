"""File access for a run directory: a local folder or a prefix in an object store (`s3://bucket/run`, via fsspec).

All files of a run are written here, atomically. In a folder this is a write to a temporary name, a flush and a rename.
In a store a single upload is atomic, and files that must be created only once (the lock, the secret, the manifest) use
a conditional write. S3 and compatible stores provide it (If-None-Match), and so do Google's and Azure's. A store whose
fsspec driver lacks or ignores it is refused; creating a run directory begins with a probe.

A command that follows a symbolic link in a run directory writes and removes files elsewhere, so links are refused. The
run directory itself may be a link, and so may the folders above it. Every function that opens, lists or removes
files of a run checks the path first (`check_real`), on workers too, and a command that locks the directory checks all
of it before anything is charged (`check_tree`). The directory of a run is the folder with its manifest. Runs are inside
others: below the outermost one nothing is a link.
"""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from traceback import walk_tb
from typing import Any, BinaryIO, TypeVar, cast

from dpscale.base.display import safe_repr
from dpscale.base.errors import DpscaleError, JobError, TransientError

Value = TypeVar("Value")
FIELD, PARTIAL, PROBE = "run directory", ".partial", ".probe-"
WINDOWS = os.name == "nt"
PAUSES = (0.01, 0.03, 0.1, 0.3, 0.6)  # seconds between attempts to replace a file that another process has open
MANIFEST, MARK = "manifest.json", b'"job_sha256"'  # file of a run directory, and a key in it


def place(path: str | Path, field: str = FIELD) -> Path:
    """Return an absolute local path, or a path object with the same interface for a URL of a store.

    Raises JobError for anything that is not a path.
    """
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
        raise JobError(
            FIELD,
            f"{path}, which requires the missing package {error.name or 'of its store'}",
            "a folder, or a store",
            "pip install 'dpscale[store]' and the store's own fsspec package",
        ) from None
    except ValueError:
        raise JobError(
            FIELD, f"{path}, in an unknown kind of store", "a folder, or a URL that fsspec knows", "fix it"
        ) from None


def is_path(value: object) -> bool:
    """Return whether `place` accepts the value: a text, a path or an fsspec path.

    Objects that contain records are never accepted.
    """
    return isinstance(value, str | os.PathLike) or hasattr(value, "read_bytes")


def checked_path(path: Value, field: str) -> Value:
    """Return the path unchanged. Raises JobError for other objects and for names that no file system accepts."""
    if not is_path(path):
        raise JobError(field, safe_repr(path), "a path", "give one")

    try:
        writable = b"\0" not in os.fsencode(str(path))
    except UnicodeEncodeError:
        writable = False

    if not writable:
        raise JobError(field, "a path with a character that file systems do not support", "a path", "fix it")
    return path


def is_local(path: Path) -> bool:
    """Return whether a path is in a local folder."""
    return isinstance(path, Path) and "://" not in str(path)


@contextmanager
def writing(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """Write a file atomically: readers see the old or the new file, never a part; after an error, the old one.

    Parameters
    ----------
    path : Path
    durable : bool
        Flush the content to disk before the rename.
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
        file.close()  # Windows renames no open file
        rename_over(partial, path)


def rename_over(partial: Path, path: Path) -> None:
    """Give a closed file the name of another, which it replaces. On Windows this waits for processes that read it.

    PAUSES are the seconds between attempts on Windows, where a file that is being read cannot be replaced. The last
    attempt raises its error.
    """
    for pause in PAUSES if WINDOWS else ():
        with suppress(PermissionError):
            os.replace(partial, path)
            return
        time.sleep(pause)
    os.replace(partial, path)


@contextmanager
def half_written(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Open a temporary file in the folder of `path`; yield the file and its name. It is removed after an error.

    The name is unique, so other processes do not write the same file; the caller renames it.
    """
    check_real(path)
    partial = _partial_name(path)
    try:
        with _opened(partial) as file:
            yield file, partial
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _opened(path: Path) -> BinaryIO:
    """Create a file, and its folder if missing; trying first saves one system call per file."""
    try:
        return open(path, "wb")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "wb")


def _partial_name(path: Path) -> Path:
    """Return a random temporary name for an incomplete file; process ids would not be unique across containers."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{PARTIAL}")


def is_partial(path: Path) -> bool:
    """Return whether the file is an incomplete one."""
    return path.name.startswith(".") and path.name.endswith(PARTIAL)


def remove_partial(folder: Path, nested: bool = False, spared: Collection[str] = ()) -> None:
    """Remove incomplete files of killed processes from a folder to which no process is writing.

    Parameters
    ----------
    folder : Path
    nested : bool
        Whether to search the folders in it too.
    spared : collection of str
        Names of files that another process may be writing.
    """
    if not is_local(folder):
        return
    check_real(folder)
    for partial in (folder.rglob if nested else folder.glob)(f".*{PARTIAL}"):
        if not any(partial.name.startswith(f".{name}.") for name in spared):
            partial.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a file, if it exists."""
    if is_local(path):
        check_real(path)
    path.unlink(missing_ok=True)


def open_in_place(path: Path, flags: int, mode: int = 0o666) -> int:
    """Return the descriptor of a local file that is changed in place; `mode` is that of a new one."""
    check_real(path)
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), mode)


def flush_names(folder: Path) -> None:
    """Wait until the directory entries of a folder are on disk; `writing` has flushed the contents."""
    if is_local(folder) and folder.exists():
        flush(folder)


def flush(path: Path) -> None:
    """Wait until the directory entries of a folder are on disk. Windows opens no folder; NTFS logs its entries."""
    if WINDOWS:
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def present(path: Path) -> bool:
    """Return whether a file exists.

    Raises an error if this is unknown, where `exists` of many drivers returns False.
    """
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
    """Return the names in a folder; empty if it does not exist.

    `store` is the path of an object store, whose names are below `root`.
    """
    if is_local(folder):
        check_real(folder)
        return os.listdir(folder) if folder.exists() else []

    store: Any = folder
    root = store.path.rstrip("/")
    with store_errors(folder):
        try:
            entries = [str(name).rstrip("/") for name in store.fs.ls(root, detail=False)]
        except FileNotFoundError:
            return []

    return [name.rpartition("/")[2] for name in entries if name != root]  # some stores list the folder as an object


def sizes(path: Path) -> dict[Path, int]:
    """Return all files in a folder and its subfolders, or one file, with their numbers of bytes; no partial files.

    Objects that consoles and other programs write for folders are no files. Raises FileNotFoundError without any file.
    """
    if is_local(path):
        check_real(path)
        files = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]
        return {file: file.stat().st_size for file in files if not file.name.endswith(PARTIAL)}

    store: Any = path
    root = store.path.rstrip("/")
    with store_errors(path):
        entries = store.fs.find(root, detail=True)
    folders = {str(parent) for name in entries for parent in PurePosixPath(name).parents}
    found = {name: one for name, one in entries.items() if name not in folders and not name.endswith("/")}
    if not found:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return {path if name == root else path.joinpath(name[len(root) :].lstrip("/")): int(entry["size"] or 0)
            for name, entry in found.items() if not name.endswith(PARTIAL)}  # fmt: skip


def reading(path: Path) -> BinaryIO:
    """Open a file for random access; the caller closes it.

    An object in a store is read as a whole into memory.
    """
    if not is_local(path):
        return io.BytesIO(read_bytes(path))
    check_real(path)
    return path.open("rb")


def read_bytes(path: Path) -> bytes:
    """Return the content of a file of a run.

    Raises FileNotFoundError if it does not exist, and TransientError if it cannot be read now.
    """
    if is_local(path):
        check_real(path)
    with store_errors(path):
        try:
            return path.read_bytes() if is_local(path) else _whole_object(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise TransientError(FIELD, f"{path} cannot be read ({error.strerror or type(error).__name__})",
                                 "a file that this user can read", "fix that and run again") from None  # fmt: skip

    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _whole_object(path: Any) -> bytes:
    """Return an object by one request for all bytes from the first; other ways to read it ask for its size before."""
    try:
        return bytes(path.fs.cat_file(path.path, start=0))
    except FileNotFoundError:
        raise
    except Exception:  # an empty object has no first byte
        return bytes(path.read_bytes())


def read_text(path: Path) -> str:
    """Return the text of a user's file. Raises OSError for a local file, TransientError if a store cannot be read."""
    return (path.read_bytes() if is_local(path) else read_bytes(path)).decode("utf-8-sig")


def toml_fault(error: ValueError | RecursionError, path: Any) -> str:
    """Return the position of a TOML syntax error in a file without quoting it, because it may contain records.

    The line is read only to see whether a decimal comma stands at the position; it is not quoted.
    """
    if isinstance(error, RecursionError):
        return " (brackets or keys are nested too deeply)"
    found = re.search(r"\(at (line (\d+), column (\d+))\)$", str(error))
    if found is None:
        at_end = re.search(r"\(at (.*)\)$", str(error))
        return f" ({at_end[1]})" if at_end else ""
    line = read_text(path).split("\n")[int(found[2]) - 1 : int(found[2])]
    at = int(found[3]) - 1
    comma = bool(line) and re.match(r"\d,\d", line[0][max(at - 1, 0) :])
    return f" ({found[1]}{', where a number needs a decimal point' * bool(comma)})"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with writing(path) as file:
        file.write(content)


def create(path: Path, content: bytes) -> bool:
    """Create a file and return True, or return False if it exists.

    Only one of several concurrent processes creates it.
    """
    if is_local(path):
        return _create_file(path, content)

    try:
        with store_errors(path), _new_object(path) as file:
            file.write(content)
    except FileExistsError:
        return False
    return True


def write_private(path: str | Path, text: str) -> None:
    """Write a new file that only its owner can read. Raises FileExistsError."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _new_object(path: Any) -> BinaryIO:
    """Open an object that must not exist yet; a driver without conditional writes is refused."""
    try:
        return cast(BinaryIO, path.fs.open(path.path, "xb"))  # a driver without this mode raises here
    except (ValueError, NotImplementedError):
        raise _unconditional(path) from None


def check_conditional(folder: Path) -> None:
    """Raise JobError if the store overwrites an existing object in a conditional write, as some drivers silently do.

    The preceding plain write verifies that the store is writable, so that a failure of `create` concerns the condition.
    """
    probe = folder / f"{PROBE}{secrets.token_hex(8)}"
    with store_errors(probe):
        try:
            probe.write_bytes(b"first")
        except FileNotFoundError:
            raise JobError(
                FIELD,
                f"{folder}, in a bucket that does not exist",
                "an existing bucket",
                "create it, or fix the address",
            ) from None

    try:
        overwritten = create(probe, b"second")
    finally:
        with store_errors(probe):
            probe.unlink(missing_ok=True)

    if overwritten:
        raise _unconditional(folder)


def _unconditional(path: Path) -> JobError:
    return JobError(FIELD, f"{path}, in a store whose driver lacks conditional writes",
                    "a store with conditional writes", "use another store, or a shared file system")  # fmt: skip


def _create_file(path: Path, content: bytes) -> bool:
    """Write and flush a temporary file, then link it to its name, which fails if the name exists.

    The result is False if the name exists. A link, in contrast to a renaming, never replaces a file.
    """
    check_real(path)
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
    """Convert an error of a store's driver to one TransientError without its text, which may be long or contain keys.

    Drivers raise arbitrary exceptions, so errors are recognised by the module that raised them.
    """
    try:
        yield
    except (DpscaleError, FileExistsError):
        raise
    except Exception as error:
        if is_local(path) or not _of_driver(error, path):
            raise
        raise TransientError(
            FIELD,
            f"{path} cannot be reached ({type(error).__name__})",
            "a store that can be read and written",
            "check address, keys and permissions, and run again",
        ) from None


def _of_driver(error: Exception, path: Any) -> bool:
    drivers = {"fsspec", "upath", type(path.fs).__module__.partition(".")[0]}
    modules = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return any(module.partition(".")[0] in drivers for module in modules)


def check_real(path: Path) -> None:
    """Raise JobError if a local path, or a folder of it below the outermost run directory, is a symbolic link.

    Parameters
    ----------
    path : Path
        Absolute path, which need not exist.
    """
    link = ""
    for place in map(str, (path, *path.parents)):
        if link and _is_run(place):
            raise linked(link)
        if os.path.islink(place):
            link = place


def _is_run(folder: str) -> bool:
    """Return whether a folder is a run directory; other programs write files of the same name."""
    with suppress(OSError), open(os.path.join(folder, MANIFEST), "rb") as file:
        return MARK in file.read()
    return False


def check_tree(folder: Path) -> None:
    """Raise JobError if a local run directory contains a symbolic link at any depth."""
    pending = [str(folder)]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:  # removed meanwhile, or not readable
            for entry in entries:
                if entry.is_symlink():
                    raise linked(entry.path)
                if entry.is_dir():
                    pending.append(entry.path)


def linked(path: str | Path) -> JobError:
    """Return the error for a symbolic link in a run directory."""
    return JobError("run directory", f"{path} is a symbolic link", "real folders and files in a run directory, which"
                    " itself may be a link", "replace it by what it points to")  # fmt: skip
