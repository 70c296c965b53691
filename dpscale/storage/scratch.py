"""Scratch: bytes on a local disk that nobody else can read, and that are gone with who wrote them.

A file has mode 600 and is written under a key that is drawn for it and only ever in memory (AES in counter mode, so
any part can be read alone). It has no name: when nobody has it open any more, or the process that has is killed, the
system takes it back. Processes that share one need a name; theirs are in a folder of their parent's, mode 700, that
goes at the end, and that of a parent who was killed with the next one that is made. Files are of a *use*, whose end
closes them in each process, whoever still holds them: a logged error may hold all that was in sight of it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol
from weakref import WeakSet

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

BLOCK = 16
_open: dict[str, WeakSet[Sealed]] = {}


@dataclass(frozen=True)
class Use:
    """What some scratch is for, by a name of its own, and the folder of its named files, where it has any."""

    name: str = field(default_factory=lambda: secrets.token_hex(8))
    folder: str | None = None


NAME, LOCK = "dpscale-scratch-", ".lock"


class Store(Protocol):
    """Arrays that are appended, and read back in parts."""

    @property
    def size(self) -> int: ...
    def append(self, array: NDArray[Any]) -> int:
        """What the array is called here."""

    def read(self, called: int, first: int, count: int, kind: Any) -> NDArray[Any]:
        """`count` numbers of a kind from an array, from its number `first` on."""


class Memory:
    """Arrays in the memory of a process, for its own threads."""

    def __init__(self) -> None:
        self._arrays: list[NDArray[Any]] = []
        self.size = 0

    def append(self, array: NDArray[Any]) -> int:
        self._arrays.append(array.reshape(-1))
        self.size += array.nbytes
        return len(self._arrays) - 1

    def read(self, called: int, first: int, count: int, kind: Any) -> NDArray[Any]:
        return self._arrays[called][first : first + count]

    def __repr__(self) -> str:
        return "Memory(hidden)"


class Sealed:
    """A file to which arrays are appended, and of which any part is read back, from any thread.

    It can be pickled: one with a name by that, any other with all that it holds, still sealed, which becomes a file
    where it is unpickled.
    """

    def __init__(self, use: Use, file: IO[bytes], key: bytes, size: int = 0, path: str | None = None) -> None:
        self._use, self._file, self._key, self.size, self._path = use, file, key, size, path
        _open.setdefault(use.name, WeakSet()).add(self)

    @classmethod
    def new(cls, use: Use, base: str | None = None) -> Sealed:
        """An empty one, without a name unless its use has a folder. `base`: where, if not in the system's own place."""
        key = secrets.token_bytes(BLOCK)
        if use.folder is None:
            return cls(use, tempfile.TemporaryFile(dir=base), key)
        place, path = tempfile.mkstemp(dir=use.folder)
        return cls(use, os.fdopen(place, "w+b"), key, path=path)

    def close(self) -> None:
        """Nothing can be read from it any more."""
        self._file.close()

    def append(self, array: NDArray[Any]) -> int:
        """Where the array begins: at a multiple of BLOCK bytes."""
        start, plain = self.size, np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._file.write(_turned(self._key, start // BLOCK, plain.data))
        self._file.write(bytes(-len(plain) % BLOCK))
        self._file.flush()
        self.size += -(-len(plain) // BLOCK) * BLOCK
        return start

    def read(self, called: int, first: int, count: int, kind: Any) -> NDArray[Any]:
        """`count` numbers of a kind, from the array that begins there."""
        start, size = called + first * np.dtype(kind).itemsize, count * np.dtype(kind).itemsize
        skipped = start % BLOCK
        sealed = os.pread(self._file.fileno(), skipped + size, start - skipped)
        return np.frombuffer(_turned(self._key, start // BLOCK, sealed), kind, count, skipped)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._path is not None:
            return _named, (self._use, self._path, self._key, self.size)
        return _restored, (self._use, os.pread(self._file.fileno(), self.size, 0), self._key)

    def __repr__(self) -> str:
        return "Sealed(hidden)"


def _turned(key: bytes, block: int, content: bytes | memoryview) -> memoryview:
    """Content sealed or opened, which is the same, from a block on; into memory that nobody fills with zeros before."""
    turned = np.empty(len(content) + BLOCK - 1, np.uint8)
    cipher = Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(BLOCK, "big"))).encryptor()
    return turned.data[: cipher.update_into(content, turned.data)]


def _named(use: Use, path: str, key: bytes, size: int) -> Sealed:
    return Sealed(use, open(path, "rb"), key, size, path)


def _restored(use: Use, content: bytes, key: bytes) -> Sealed:
    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(content)
    file.flush()
    return Sealed(use, file, key, len(content))


def end(use: Use) -> None:
    """Close the files of a use in this process."""
    for file in list(_open.pop(use.name, ())):
        file.close()


@contextmanager
def used(folder: str | None = None) -> Iterator[Use]:
    """A use of this process and its threads."""
    use = Use(folder=folder)
    try:
        yield use
    finally:
        end(use)


@contextmanager
def shared_folder(base: str | None = None) -> Iterator[str]:
    """A folder for the named files of this process and its children, until the end; those of the dead go now.

    A process holds a lock on its folder's file for as long as it lives; the system lets go of that of a dead one.
    """
    base = base or tempfile.gettempdir()
    sweep(base)
    folder = tempfile.mkdtemp(prefix=NAME, dir=base)
    with open(Path(folder, LOCK), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(base: str) -> None:
    """Remove the folders whose process is dead: they have a lock that nobody holds."""
    for lock in Path(base).glob(f"{NAME}*/{LOCK}"):
        with suppress(OSError), open(lock) as file:  # another's, or held
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_uid == os.getuid():
                shutil.rmtree(lock.parent, ignore_errors=True)
