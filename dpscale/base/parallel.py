"""Parallel-map protocol, and a context in which BLAS uses one thread.

Numerical code receives a parallel map instead of importing Dask. The default is the serial `plainly`; `engine` passes
one whose calls are Dask tasks. The results do not depend on the map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol


class Each(Protocol):
    """Parallel map: function(item) for every item, in order."""

    def __call__(self, function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterable[Any]: ...


def plainly(function: Callable[[Any], Any], items: Iterable[Any], /) -> list[Any]:
    """Call the function for one item after the other in this process."""
    return [function(item) for item in items]


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
