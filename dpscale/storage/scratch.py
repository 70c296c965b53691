"""Encrypted temporary files on a local disk, removed with the process that wrote them.

A file has mode 600 and is encrypted with a random key that exists only in memory (AES in counter mode, so any part can
be read separately). It has no name: the system frees it when it is closed or the process is killed. Files shared by
processes need a name; they are in a folder of the parent process, mode 700, which is removed at the end, or, if the
parent was killed, when the next such folder is created. Every file belongs to a *use*, whose end closes the file in
each process regardless of remaining references: a logged error may reference all local variables.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol
from weakref import WeakSet

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import DTypeLike, NDArray

from dpscale.storage.lock import file_lock, is_free

BLOCK = 16  # bytes of a block of AES, and of the key
_open: dict[str, WeakSet[Sealed]] = {}


@dataclass(frozen=True)
class Use:
    """Purpose of scratch files: a random name, and the folder of its named files, if any."""

    name: str = field(default_factory=lambda: secrets.token_hex(8))
    folder: str | None = None


NAME, LOCK = "dpscale-scratch-", ".lock"


class ArrayStore(Protocol):
    """Append-only arrays that can be read back in parts."""

    @property
    def size(self) -> int: ...
    def append(self, array: NDArray[Any]) -> int:
        """Append an array and return its identifier."""

    def read(self, called: int, first: int, count: int, kind: DTypeLike) -> NDArray[Any]:
        """Return `count` numbers of dtype `kind` from an array, starting at number `first`."""


class Memory:
    """Arrays in the memory of a process, for its own threads."""

    def __init__(self) -> None:
        self._arrays: list[NDArray[Any]] = []
        self.size = 0

    def append(self, array: NDArray[Any]) -> int:
        self._arrays.append(array.reshape(-1))
        self.size += array.nbytes
        return len(self._arrays) - 1

    def read(self, called: int, first: int, count: int, kind: DTypeLike) -> NDArray[Any]:
        return self._arrays[called][first : first + count]

    def __repr__(self) -> str:
        return "Memory(hidden)"


class Sealed:
    """Encrypted file to which arrays are appended and whose parts can be read from any thread.

    It can be pickled: a named file by its name, any other with its encrypted content, which is written to a new file
    when unpickled.
    """

    def __init__(self, use: Use, file: IO[bytes], key: bytes, size: int = 0, path: str | None = None) -> None:
        self._use, self._file, self._key, self.size, self._path = use, file, key, size, path
        self._place = threading.Lock()
        _open.setdefault(use.name, WeakSet()).add(self)

    @classmethod
    def new(cls, use: Use, base: str | None = None) -> Sealed:
        """Create an empty file, unnamed unless its use has a folder.

        Parameters
        ----------
        use : Use
        base : str, optional
            Folder of an unnamed file. Default: the system's temporary folder.
        """
        key = secrets.token_bytes(BLOCK)
        if use.folder is None:
            return cls(use, tempfile.TemporaryFile(dir=base), key)
        place, path = tempfile.mkstemp(dir=use.folder)
        return cls(use, os.fdopen(place, "w+b"), key, path=path)

    def close(self) -> None:
        """Close the file; it can no longer be read."""
        self._file.close()

    def append(self, array: NDArray[Any]) -> int:
        """Append an array and return its start in bytes, a multiple of BLOCK."""
        start, plain = self.size, np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        with self._place:
            self._file.write(_turned(self._key, start // BLOCK, plain.data))
            self._file.write(bytes(-len(plain) % BLOCK))
            self._file.flush()
        self.size += -(-len(plain) // BLOCK) * BLOCK
        return start

    def read(self, called: int, first: int, count: int, kind: DTypeLike) -> NDArray[Any]:
        """Return `count` numbers of dtype `kind`, from number `first` of the array that starts there."""
        start, size = called + first * np.dtype(kind).itemsize, count * np.dtype(kind).itemsize
        skipped = start % BLOCK
        sealed = self._bytes(skipped + size, start - skipped)
        return np.frombuffer(_turned(self._key, start // BLOCK, sealed), kind, count, skipped)

    def _bytes(self, count: int, start: int) -> bytes:
        """Return bytes of the file from a position on; without `pread` (Windows), threads wait for each other."""
        if hasattr(os, "pread"):
            return os.pread(self._file.fileno(), count, start)
        with self._place:
            before = self._file.tell()
            try:
                self._file.seek(start)
                return self._file.read(count)
            finally:
                self._file.seek(before)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._path is not None:
            return _named, (self._use, self._path, self._key, self.size)
        return _restored, (self._use, self._bytes(self.size, 0), self._key)

    def __repr__(self) -> str:
        return "Sealed(hidden)"


def _turned(key: bytes, block: int, content: bytes | memoryview) -> memoryview:
    """Encrypt or decrypt content (the same operation) from a block on, into uninitialised memory."""
    turned = np.empty(len(content) + BLOCK - 1, np.uint8)
    cipher = Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(BLOCK, "big"))).encryptor()
    return turned.data[: cipher.update_into(content, turned.data)]


def _named(use: Use, path: str, key: bytes, size: int) -> Sealed:
    return Sealed(use=use, file=open(path, "rb"), key=key, size=size, path=path)


def _restored(use: Use, content: bytes, key: bytes) -> Sealed:
    """Return unpickled content in a new file without a name; `content` is encrypted with `key`."""
    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(content)
    file.flush()
    return Sealed(use=use, file=file, key=key, size=len(content))


def end(use: Use) -> None:
    """Close the files of a use in this process."""
    for file in list(_open.pop(use.name, ())):
        file.close()


@contextmanager
def used(folder: str | None = None) -> Iterator[Use]:
    """Create a use for this process and its threads, and end it afterwards."""
    use = Use(folder=folder)
    try:
        yield use
    finally:
        end(use)


@contextmanager
def shared_folder(base: str | None = None) -> Iterator[str]:
    """Create a folder for named files of this process and its children; remove it at the end.

    Folders of dead processes are removed now. A process locks a file in its folder while it lives; the system releases
    the lock of a dead process.
    """
    base = base or tempfile.gettempdir()
    sweep(base)
    folder = tempfile.mkdtemp(prefix=NAME, dir=base)

    try:
        with file_lock(Path(folder, LOCK)):
            yield folder
    finally:  # Windows removes no open file
        shutil.rmtree(folder, ignore_errors=True)


def sweep(base: str) -> None:
    """Remove the folders of dead processes, whose lock is free."""
    for lock in Path(base).glob(f"{NAME}*/{LOCK}"):
        with suppress(OSError):  # removed meanwhile
            if _is_ours(lock.stat()) and is_free(lock):
                shutil.rmtree(lock.parent, ignore_errors=True)


def _is_ours(status: os.stat_result) -> bool:
    """Return whether a file is that of this user; on Windows each user has a temporary folder."""
    return not hasattr(os, "getuid") or status.st_uid == os.getuid()
