"""One BLAS thread while strategies are solved: the last bits of a plan must not depend on how many cores a machine has.

It also keeps Dask's tasks and the threads of BLAS from fighting for cores. The limit is the process's own, so the first
of several concurrent solves sets it and the last one lifts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

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
