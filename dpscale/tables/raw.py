"""A file's bytes as pyarrow opens them, and what a broken file raises."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dpscale.discreet import out_of_memory
from dpscale.errors import DataError, Unreadable
from dpscale.storage.objects import AHEAD, is_url, of_store, opening, telling
from dpscale.tables.formats import TAKEN, codec_of

BATCH_ROWS = 1 << 18
BATCH_VALUES = 1 << 23  # of all columns: a batch of many columns has fewer rows
LEAST_ROWS = 1 << 14
SMALL_BYTES = 1 << 18
MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}


def batch_rows(columns: int) -> int:
    """How many rows of so many columns are a batch."""
    return min(BATCH_ROWS, max(BATCH_VALUES // max(columns, 1), LEAST_ROWS))


@contextmanager
def mapped(path: str) -> Iterator[Any]:
    """A file read at places: its path, which pyarrow maps to memory, or an object, fetched as it is asked."""
    if not is_url(path):
        yield path
        return
    with opening(path, ahead=0) as file:
        yield file


@contextmanager
def mapped_bytes(path: str) -> Iterator[Any]:
    """All bytes of a file of this machine, mapped to memory and not read before they are looked at."""
    import pyarrow as pa

    with pa.memory_map(path) as file:
        yield file.read_buffer()


def small(path: str) -> Any:
    """All bytes of a file that is quicker read at once than mapped; None of a larger one."""
    import pyarrow as pa

    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END) > SMALL_BYTES:
            return None
        file.seek(0)
        return pa.py_buffer(file.read())


@contextmanager
def streamed(path: str, ahead: int = AHEAD) -> Iterator[Any]:
    """A file read from its beginning to its end, without its compression."""
    import pyarrow as pa

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


class reading:
    """Turns what a broken file raises into one sentence that names the file and nothing of its content."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        import pyarrow as pa

        broken = (pa.ArrowException, OSError, UnicodeError, csv.Error)
        if isinstance(error, broken) and out_of_memory(error):
            raise MemoryError from None
        if is_url(self.path) and error is not None and of_store(error):
            with telling(self.path, "read"):
                raise error
        if isinstance(error, broken):
            unreadable = isinstance(error, OSError) and error.errno is not None
            reason = "cannot be read" if isinstance(error, OSError) else "is damaged or not of its format"
            told = Unreadable if unreadable else DataError
            raise told("data.path", f"{self.path} {reason}", TAKEN, why_broken(self.path, error)) from None


def why_broken(path: str, error: Any = None) -> str:
    """What to do about a file that is not of its format, by its first bytes and what was met, telling none of it."""
    first, packed = _head(path), codec_of(path)
    text = str(path).endswith((".csv", ".tsv"))
    if packed and first and not first.startswith(MAGIC[packed]):
        return f"it is not compressed by {packed}: name it without the ending, or compress it"
    for name, ending in (("gzip", ".gz"), ("zstd", ".zst")):
        if text and first.startswith(MAGIC[name]):
            return f"it is compressed by {name}: name it {os.path.basename(str(path))}{ending}"
    if text and first.startswith((b"\xff\xfe", b"\xfe\xff")):
        return 'it is UTF-16: set encoding = "utf-16" in [data]'
    if text and (isinstance(error, UnicodeError) or "UTF8" in str(error) or "UTF-8" in str(error)):
        return 'it is not UTF-8: set its encoding in [data], as encoding = "latin-1"'
    if "Expected" in str(error) and "columns" in str(error):
        return "some line has more or fewer fields than the header: set delimiter in [data], or quote its texts"
    return "mend or remove it"


def other_delimiter(path: str) -> str:
    """What may set the fields of a CSV apart, where its first line has no comma; "" where that cannot be told."""
    first = _head(path).partition(b"\n")[0] if str(path).endswith(".csv") else b""
    found = [mark for mark in ";\t|" if mark.encode() in first]
    return found[0] if found and b"," not in first else ""


def _head(path: str) -> bytes:
    """The first bytes of a file of this machine."""
    with suppress(OSError), open("" if is_url(path) else path, "rb") as file:
        return file.read(1 << 12)
    return b""
