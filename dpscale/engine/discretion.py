"""Errors of tasks that tell nothing of the data.

An error text is an output: it stands on the terminal, in a worker's log and on Dask's dashboard. Our own errors are
written for that. Others' are not: NumPy says how many rows it found no memory for, Arrow names the value that it could
not convert. So of those only the kind is passed on, with the places in the code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dpscale.errors import DpscaleError, TransientError

FIELD = "engine"


class Discreet:
    """A task's function; picklable where the function is."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self.function(*arguments)
        except DpscaleError:
            raise
        except Exception as error:
            redacted = _told(error, self.__name__).with_traceback(error.__traceback__)
            error.__traceback__ = None
        raise redacted

    def __repr__(self) -> str:
        return self.__name__


def _told(error: Exception, task: str) -> Exception:
    if isinstance(error, MemoryError):
        return TransientError(f"{FIELD}.memory", f"task {task} ran out of memory", "", "set less, or use fewer workers")
    if isinstance(error, OSError):
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        return TransientError(FIELD, f"task {task} failed: {reason}", "", "mend it and run again: it goes on there")
    return RuntimeError(f"task {task} failed with {type(error).__name__}; its text may tell of records and is left out")


@contextmanager
def lost_workers(kind: type[BaseException]) -> Iterator[None]:
    """Turn what a scheduler raises for the loss of worker processes into an error that can be tried again."""
    try:
        yield
    except kind:
        raise TransientError(FIELD, "a worker process died", "", "run again: it goes on where it stopped") from None
