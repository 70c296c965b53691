"""Types of arrays and attribute sets, the parallel-map protocol and a BLAS thread limit.

Numerical packages share them. Array types are named by their element. Numerical code receives a parallel map instead of
importing Dask. The default is the serial `serial_map`; `engine` passes one whose calls are Dask tasks. Results do not
depend on the map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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


class ScipyModule(LazyModule):
    """Module of SciPy, whose BLAS is limited as NumPy's is if the import happens inside `one_thread`."""

    _limited = False

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the module itself; the first call imports it."""
        found = super().__getattr__(name)
        if not self._limited:
            self._limited = True
            _limit_loaded()
        return found


# modules of SciPy that take long to import and are not needed to open a release
linalg: Any = ScipyModule("scipy.linalg")
optimize: Any = ScipyModule("scipy.optimize")
special: Any = ScipyModule("scipy.special")
stats: Any = ScipyModule("scipy.stats")


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
_limits: list[Any] = []  # of the libraries that were loaded when each was made


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS to one thread, also libraries that are loaded meanwhile by the modules of SciPy of this module."""
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    """Count one more user of the limit; the first one limits BLAS to a thread."""
    global _holders
    with _lock:
        _holders += 1
        if _holders == 1:
            _limits.append(_new_limit())


def _limit_loaded() -> None:
    """Limit libraries that were loaded since the limit began."""
    with _lock:
        if _holders:
            _limits.append(_new_limit())


def _new_limit() -> Any:
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1, "blas")


def _leave() -> None:
    """Count one user less; after the last one, restore the limits in reverse order."""
    global _holders
    with _lock:
        _holders -= 1
        while _holders == 0 and _limits:
            _limits.pop().restore_original_limits()
