"""The one thing that mathematics may be handed to share its work: a parallel map.

In a plain loop it is `plainly`; `engine` hands in one whose calls are Dask tasks. What is mapped does not depend on who
maps it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numba
from numba import config


class Each(Protocol):
    """function(item) for every item, in order."""

    def __call__(self, function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterable[Any]: ...


def plainly(function: Callable[[Any], Any], items: Iterable[Any], /) -> list[Any]:
    """One call after the other, here."""
    return [function(item) for item in items]


_lock = Lock()
_holders = 0
_limit: Any = None


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold BLAS at one thread."""
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _holders, _limit
    from threadpoolctl import threadpool_limits

    with _lock:
        _holders += 1
        if _holders == 1:
            _limit = threadpool_limits(1, "blas")


def _leave() -> None:
    global _holders
    with _lock:
        _holders -= 1
        if _holders == 0:
            _limit.restore_original_limits()


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
