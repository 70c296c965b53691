"""Access to the bytes of files, and errors of broken files. A path is local, or an address in an object store."""

from __future__ import annotations

import csv
import errno
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from dpscale.base.arrow import pa
from dpscale.base.error_redaction import HOUSE, out_of_memory, own_frame, unexpected, with_cause, without_cause
from dpscale.base.errors import DataError, DpscaleError, Unreadable
from dpscale.records.formats import CODECS, FORMATS, accepted_formats, codec_of, format_of
from dpscale.storage.objects import AHEAD, is_url, looked_at, of_store, opening, store_faults

BATCH_ROWS = 1 << 18
BATCH_VALUES = 1 << 23  # rows times columns of a batch
LEAST_ROWS = 1 << 14
SMALL_BYTES = 1 << 18
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # of Linux; Python names it from 3.13 on
REFUSED = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR)
DECODERS = (
    "records/files.py",
    "records/pages.py",
    "records/table.py",
    "storage/",
    *(module.removeprefix("dpscale.").replace(".", "/") for module in FORMATS.values()),
)
MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "bz2": b"BZh"}


def batch_rows(columns: int) -> int:
    """Return the number of rows of a batch with so many columns."""
    return min(BATCH_ROWS, max(BATCH_VALUES // max(columns, 1), LEAST_ROWS))


def file_size(path: str) -> int:
    """Return the number of bytes of a file."""
    return looked_at(path).size if is_url(path) else os.path.getsize(path)


@contextmanager
def mapped(path: str) -> Iterator[Any]:
    """Open a file for random access: yield its path for memory mapping, or an object that fetches ranges on demand."""
    if not is_url(path):
        yield path
        return
    with opening(path, ahead=0) as file:
        yield file


@contextmanager
def mapped_bytes(path: str) -> Iterator[Any]:
    """Yield all bytes of a local file, memory-mapped."""
    with pa.memory_map(path) as file:
        yield file.read_buffer()


@contextmanager
def fetched_bytes(path: str, size: int, ranges: Iterable[tuple[int, int]]) -> Iterator[Any]:
    """Yield a buffer as long as a file in a store, with the bytes of some ranges; the rest is zero and takes no memory.

    Parameters
    ----------
    path : str
    size : int
        Bytes of the file.
    ranges : iterable of (int, int)
        First byte and end of each range.
    """
    # not reserved: pages that are never written take no memory, also in a file larger than the machine's
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    sparse = mmap.mmap(-1, max(size, 1), flags=flags)
    with opening(path, ahead=0) as file:
        for first, end in ranges:
            file.seek(first)
            found = file.read(end - first)
            if len(found) != end - first:
                raise OSError(errno.EIO, "the file ends too early")
            sparse[first:end] = found
    yield pa.py_buffer(sparse)


def small(path: str) -> pa.Buffer | None:
    """Return all bytes of a small file, which is faster to read than to map; None for a larger one."""
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END) > SMALL_BYTES:
            return None
        file.seek(0)
        return pa.py_buffer(file.read())


@contextmanager
def streamed(path: str, ahead: int = AHEAD) -> Iterator[Any]:
    """Open a file for sequential reading and decompress it."""
    codec = codec_of(path)
    if codec is None and not is_url(path):
        with pa.OSFile(path) as plain:
            yield plain
        return
    with opening(path, ahead) as file:
        if codec is None:
            yield file
            return
        with pa.CompressedInputStream(file, codec) as stream:
            yield stream


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
        broken = isinstance(error, (pa.ArrowException, OSError, UnicodeError, csv.Error))
        if error is not None and broken and out_of_memory(error):
            raise MemoryError from None
        if is_url(self.path) and error is not None and of_store(error):
            with store_faults(self.path, "read"):
                raise error
        if error is not None and broken:
            made = with_cause(_sentence(self.path, error, self.named), error)
            try:
                raise made
            finally:
                without_cause(made)


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
    met = isinstance(error, (pa.ArrowInvalid, csv.Error)) or (isinstance(error, OSError) and error.errno is None)
    frame = own_frame(error)
    return met and (frame is None or Path(frame.filename).relative_to(HOUSE).as_posix().startswith(DECODERS))


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


def first_bytes(path: str) -> bytes:
    """Return the first bytes of a local file."""
    with suppress(OSError), open("" if is_url(path) else path, "rb") as file:
        return file.read(1 << 12)
    return b""
