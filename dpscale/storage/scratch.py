"""Scratch: bytes on a local disk that nobody else can read, and that are gone with who wrote them.

A file has mode 600 and is written under a key that is drawn for it and only ever in memory (AES in counter mode, so
any part can be read alone). It has no name: when nobody has it open any more, or the process that has is killed, the
system takes it back. Processes that share one need a name; theirs are in a folder of their parent's, mode 700, that
goes at the end, and that of a parent who was killed with the next one that is made.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

BLOCK = 16
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

    def __init__(self, file: IO[bytes], key: bytes, size: int = 0, path: str | None = None) -> None:
        self._file, self._key, self.size, self._path = file, key, size, path

    @classmethod
    def new(cls, folder: str | None = None, named: bool = False) -> Sealed:
        """An empty one in a folder (the system's for temporary files by default). OSError where there is no room."""
        key = secrets.token_bytes(BLOCK)
        if not named:
            return cls(tempfile.TemporaryFile(dir=folder), key)
        place, path = tempfile.mkstemp(dir=folder)
        return cls(os.fdopen(place, "w+b"), key, path=path)

    def append(self, array: NDArray[Any]) -> int:
        """Where the array begins: at a multiple of BLOCK bytes."""
        writing, start = _cipher(self._key, self.size // BLOCK), self.size
        plain = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._file.write(writing.update(plain.data))
        self._file.write(bytes(-len(plain) % BLOCK))
        self._file.flush()
        self.size += -(-len(plain) // BLOCK) * BLOCK
        return start

    def read(self, called: int, first: int, count: int, kind: Any) -> NDArray[Any]:
        """`count` numbers of a kind, from the array that begins there."""
        start, size = called + first * np.dtype(kind).itemsize, count * np.dtype(kind).itemsize
        skipped = start % BLOCK
        sealed = os.pread(self._file.fileno(), skipped + size, start - skipped)
        return np.frombuffer(_cipher(self._key, start // BLOCK).update(sealed), kind, count, skipped)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._path is not None:
            return _named, (self._path, self._key, self.size)
        return _restored, (os.pread(self._file.fileno(), self.size, 0), self._key)

    def __repr__(self) -> str:
        return "Sealed(hidden)"


def _cipher(key: bytes, block: int) -> CipherContext:
    """What seals and opens alike, from a block on."""
    return Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(BLOCK, "big"))).encryptor()


def _named(path: str, key: bytes, size: int) -> Sealed:
    return Sealed(open(path, "rb"), key, size, path)


def _restored(content: bytes, key: bytes) -> Sealed:
    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(content)
    file.flush()
    return Sealed(file, key, len(content))


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
