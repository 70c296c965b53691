"""Many small files, each written whole, that wait for the disk together.

A flush costs a disk about the same for one file as for hundreds, and other processes' flushes wait behind it. So files
are written under other names; once enough of them wait, one call flushes them all, each is made sure of, and then each
gets its name. A reader sees what `places.writing` shows it: whole files.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dpscale.storage.files import flush, half_written, is_local, writing

MOST_FILES, MOST_SECONDS = 512, 1.0
LARGE_BYTES = 1 << 23


class Together:
    """`with Together() as files: with files.writing(path) as file: …`

    Files have their names at the end, or once MOST_FILES or the work of MOST_SECONDS wait. One of LARGE_BYTES is
    flushed alone: its bytes take longer than its flush. After an error those that wait are gone.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Path, Path]] = []
        self._since = time.monotonic()

    def __enter__(self) -> Together:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            for partial, _path in self._waiting:
                with suppress(OSError):
                    partial.unlink()

    @contextmanager
    def writing(self, path: Path) -> Iterator[BinaryIO]:
        """A file to be written whole, as `places.writing`, but for when it has its name."""
        if not is_local(path):  # an upload is durable by itself
            with writing(path) as file:
                yield file
            return
        with half_written(path) as (file, partial):
            yield file
            if large := file.tell() >= LARGE_BYTES:
                file.flush()
                os.fsync(file.fileno())
                os.replace(partial, path)
        if not large:
            self._wait(partial, path)

    def _wait(self, partial: Path, path: Path) -> None:
        self._waiting.append((partial, path))
        if len(self._waiting) >= MOST_FILES or self._late():
            self._flush()

    def _late(self) -> bool:
        return time.monotonic() - self._since > MOST_SECONDS

    def _flush(self) -> None:
        if len(self._waiting) > 1:
            _flush_all(self._waiting[0][0])
        for partial, _ in self._waiting:
            flush(partial)
        while self._waiting:
            os.replace(*self._waiting[-1])
            self._waiting.pop()
        self._since = time.monotonic()


def _flush_all(path: Path) -> None:
    """Flush the file system that holds a file, where the operating system can; then `flush` has little to do."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(AttributeError):  # not on macOS
            if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)
