"""What is said of tasks that failed, and of workers that were lost (see `discreet`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dpscale.base.discreet import AGAIN, FIELD, Discreet
from dpscale.base.errors import TransientError

__all__ = ["FIELD", "Discreet", "lost_workers"]


@contextmanager
def lost_workers(kind: type[BaseException]) -> Iterator[None]:
    """Turn what a scheduler raises for the loss of worker processes into an error that can be tried again."""
    try:
        yield
    except kind:
        raise TransientError(FIELD, "a worker process died", "", AGAIN) from None
