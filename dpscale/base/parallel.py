"""The one thing that mathematics may be handed to share its work: a parallel map.

In a plain loop it is `plainly`; `engine` hands in one whose calls are Dask tasks. What is mapped does not depend on who
maps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol


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
