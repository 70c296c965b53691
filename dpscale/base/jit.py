"""Compiled loops, with their machine code in the cache folder of the user.

numba's own default is `__pycache__` beside the source. There pip does not know the files, leaves them behind when the
package is removed, and the folder that stays hides a later editable install. So the machine code goes to
`$NUMBA_CACHE_DIR`, else `$XDG_CACHE_HOME/dpscale/compiled`, else `~/.cache/dpscale/compiled`; where none of these can
be written, every process compiles anew.
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
    """`numba.njit` with a cache in the folder of the user.

    Parameters
    ----------
    signature: types to compile for at once; none compiles at the first call.
    cache: whether to keep the machine code on disk, where there is a place for it.
    options: those of numba.
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
    """A folder that this process can write to, or None."""
    named, caches = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    with suppress(OSError, RuntimeError):  # no right to write, no home
        folder = Path(named) if named else Path(caches or Path.home() / ".cache") / "dpscale" / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    return None
