"""The plan store: what solving a problem found, under the hash of the problem, so that it is never solved twice.

Kept are the weights μ of an optimum, a few numbers: the strategy and its certificate are made from them again, so a
file that is damaged or is not what it should be can cost time, and never truth. Problems come from workloads and
domains, which are public. The folder is that of the environment variable DPSCALE_STORE ("off" for none), else the
user's cache.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpscale.base.arrays import Floats

VERSION = 1
VARIABLE = "DPSCALE_STORE"


@dataclass(frozen=True)
class Store:
    """Arrays by key, a file each; a folder that cannot be read or written is an empty one."""

    folder: Path

    def get(self, *key: object) -> Floats | None:
        """The array under a key, or None."""
        try:
            array = np.load(self._path(key), allow_pickle=False)
        except (OSError, ValueError, EOFError, SystemError):  # the last: Python 3.11 parses headers in one thread only
            return None
        return np.asarray(array) if array.dtype == np.float64 and np.isfinite(array).all() else None

    def put(self, array: Floats, *key: object) -> None:
        """Keep an array under a key, whole or not at all."""
        path = self._path(key)
        partial = path.with_suffix(f".{secrets.token_hex(8)}.partial")
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(partial, "wb") as file:
                np.save(file, array, allow_pickle=False)
            os.replace(partial, path)

    def _path(self, key: tuple[object, ...]) -> Path:
        name = hashlib.sha256(repr((VERSION, *key)).encode()).hexdigest()
        return self.folder / name[:2] / f"{name}.npy"


def user_store() -> Store | None:
    """The store of this user on this machine; None where it is turned off or there is no home."""
    named = os.environ.get(VARIABLE)
    if named == "off":
        return None
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # no home directory
        return None
    return Store(Path(named) if named else Path(cache) / "dpscale" / "optima")
