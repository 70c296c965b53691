"""Numba compilation with the machine code cached in the user's cache folder.

By default, Numba writes to `__pycache__` next to the source. pip does not know these files and leaves them behind when
the package is removed, and the remaining folder hides a later editable install. The machine code is therefore written
to `$NUMBA_CACHE_DIR`, else `$XDG_CACHE_HOME/dpscale/compiled`, else `~/.cache/dpscale/compiled`. If none is writable,
every process compiles again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba import config

SETTINGS: Any = config


def njit(*signature: Any, cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Apply `numba.njit` with a cache in the user's cache folder.

    Parameters
    ----------
    *signature
        Types for immediate compilation; without them, functions are compiled at the first call.
    cache : bool
        Cache the machine code on disk if a folder is writable.
    **options
        Options of `numba.njit`.
    """

    def compile_function(function: Callable[..., Any]) -> Any:
        make: Any = numba.njit
        if not cache or (folder := cache_folder()) is None:
            return make(*signature, **options)(function)
        before, SETTINGS.CACHE_DIR = SETTINGS.CACHE_DIR, str(folder)
        try:
            return make(*signature, cache=True, **options)(function)
        finally:
            SETTINGS.CACHE_DIR = before

    return compile_function


def cache_folder() -> Path | None:
    """Return a writable cache folder, or None."""
    named, caches = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    with suppress(OSError, RuntimeError):  # no write permission or no home folder
        folder = Path(named) if named else Path(caches or Path.home() / ".cache") / "dpscale" / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    return None
