"""The one thing that mathematics may be handed to share its work: a parallel map.

In a plain loop it is `plainly`; `engine` hands in one whose calls are Dask tasks. What is mapped does not depend on who
maps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol


class Each(Protocol):
    """function(item) for every item, in order."""

    def __call__(self, function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterable[Any]: ...


def plainly(function: Callable[[Any], Any], items: Iterable[Any], /) -> list[Any]:
    """One call after the other, here."""
    return [function(item) for item in items]
