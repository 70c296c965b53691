"""Persistent cache of solutions of optimisation problems, keyed by the hash of the problem.

Only the weights μ of an optimum, a small array, are stored. The strategy and its certificate are recomputed from them,
so a damaged or manipulated file can cost time but never correctness. Problems depend only on workloads and domains,
which are public. The folder is set by the environment variable DPSCALE_STORE ("off" disables the cache) and defaults to
the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpscale.base.numerics import Floats

VERSION = 1
VARIABLE = "DPSCALE_STORE"


@dataclass(frozen=True)
class PlanStore:
    """Arrays by key, one file each; a folder that cannot be read or written behaves like an empty one."""

    folder: Path

    def get(self, *key: object) -> Floats | None:
        """Return the array under a key, or None."""
        try:
            array = np.load(self._path(key), allow_pickle=False)
        except (
            OSError,
            ValueError,
            EOFError,
            SystemError,
        ):  # SystemError: Python 3.11 parses headers in one thread only
            return None
        return np.asarray(array) if array.dtype == np.float64 and np.isfinite(array).all() else None

    def put(self, array: Floats, *key: object) -> None:
        """Store an array under a key atomically."""
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


def user_store() -> PlanStore | None:
    """Return the cache of the current user; None if it is disabled or there is no home directory."""
    named = os.environ.get(VARIABLE)
    if named == "off":
        return None
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # no home directory
        return None
    return PlanStore(Path(named) if named else Path(cache) / "dpscale" / "optima")
