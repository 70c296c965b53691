"""Types of arrays and attribute sets, compilation, the parallel-map protocol and a BLAS thread limit.

Numerical packages share them. Array types are named by their element. Numerical code receives a parallel map instead of
importing Dask. The default is the serial `serial_map`; `engine` passes one whose calls are Dask tasks. Results do not
depend on the map.

By default, Numba writes machine code to `__pycache__` next to the source. pip does not know these files and leaves them
behind when the package is removed, and the remaining folder hides a later editable install. The machine code is
therefore written to `$NUMBA_CACHE_DIR`, else `$XDG_CACHE_HOME/dpscale/compiled`, else `~/.cache/dpscale/compiled`. If
none is writable, every process compiles again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray as NDArray

from dpscale.base import LazyModule as LazyModule

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Integers32 = NDArray[np.int32]
Flags = NDArray[np.bool_]
Floats32 = NDArray[np.float32]
Words = NDArray[np.uint64]
AttributeSet = tuple[str, ...]  # shared objects use the domain's order


# modules of SciPy that take long to import and are not needed to open a release
optimize: Any = LazyModule("scipy.optimize")
special: Any = LazyModule("scipy.special")
stats: Any = LazyModule("scipy.stats")


def njit(*signature: object, cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
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
    import numba

    def compile_function(function: Callable[..., Any]) -> Any:
        make: Any = numba.njit
        if not cache or (folder := cache_folder()) is None:
            return make(*signature, **options)(function)
        settings: Any = numba.config
        before, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)
        try:
            return make(*signature, cache=True, **options)(function)
        finally:
            settings.CACHE_DIR = before

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


class ParallelMap(Protocol):
    """Parallel map: function(item) for every item, in order."""

    def __call__(self, function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterable[Any]: ...


def serial_map(function: Callable[[Any], Any], items: Iterable[Any], /) -> list[Any]:
    """Call the function for one item after the other in this process."""
    return [function(item) for item in items]


def named_task(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a function the name under which its tasks appear on a cluster's dashboard."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        function.task_name = name  # type: ignore[attr-defined]
        return function

    return decorate


_lock = Lock()
_holders = 0
_limit: Any = None


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS to one thread."""
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
