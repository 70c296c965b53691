"""Interface of execution engines: map a function over items, and reduce lists of arrays over a tree.

A reduction returns *handles*. A handle is the array itself on a local engine and a future on a cluster. It can be an
argument of a later map; the array then does not pass through the driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from dpscale.base.display import display_path
from dpscale.base.errors import JobError
from dpscale.base.progress import Progress as Progress, silent as silent
from dpscale.engine.configuration import REPORT, configured, setting_name
from dpscale.storage.scratch import Use


class Engine(ABC):
    """Place where tasks run.

    The `label` of a method is the name that a progress bar shows. `memory` is an estimate of the bytes that one task
    needs, for schedulers that use it.

    Attributes
    ----------
    workers : int
        Number of tasks that run at once.
    shares_memory : bool
        Whether tasks share the memory of this process.
    progress : callable
        Called with a label, the number of finished tasks and their total.
    """

    workers: int
    shares_memory = False  # whether tasks have this process's
    progress: Progress

    @abstractmethod
    def map(
        self, function: Callable[..., Any], items: Iterable[Any], label: str = "map", memory: int | None = None
    ) -> list[Any]:
        """Return function(item) for every item, in order; a tuple item is unpacked into the arguments."""

    @abstractmethod
    def reduce(
        self,
        function: Callable[..., Sequence[Any]],
        items: Sequence[tuple[Any, ...]],
        parts: int,
        label: str = "reduce",
        memory: int | None = None,
        pieces: Sequence[range] | None = None,
        disjoint: bool = False,
    ) -> list[Any]:
        """Sum the lists of arrays function(*item) over all items.

        Parameters
        ----------
        function : callable
            Returns a list of `parts` arrays.
        items : sequence of tuple
            Arguments of the calls.
        parts : int
            Number of arrays in each list.
        pieces : sequence of range, optional
            Ranges of parts that the same tasks sum. Default: one range of all parts, which suits small arrays.
        disjoint : bool
            Whether each item contributes to exactly one piece; the items are in the order of the pieces.

        Returns
        -------
        list
            One handle for each part.
        """

    @abstractmethod
    def persist(
        self, function: Callable[..., Any], items: Iterable[tuple[Any, ...]], label: str = "keep",
        memory: int | None = None,
    ) -> list[Any]:  # fmt: skip
        """Call function(*item) for every item and leave each result where it was computed; return a handle of each."""

    @abstractmethod
    def exchange(
        self, take: Callable[..., Any], handles: Sequence[Any], join: Callable[..., Any], count: int,
        label: str = "exchange", keep: bool = False,
    ) -> list[Any]:  # fmt: skip
        """Return join([take(handle, number) for all handles]) for every number below `count`.

        Only the results of `take` travel between workers, never a whole value. Few numbers are in progress at once.

        Parameters
        ----------
        take : callable
            Returns the part with a given number of a value.
        handles : sequence
            Handles of the values.
        join : callable
            Combines the list of parts with the same number.
        count : int
            Number of parts of each value.
        keep : bool
            Leave each result where it was computed and return handles.
        """

    @abstractmethod
    def scatter(self, values: Sequence[Any], label: str = "send") -> list[Any]:
        """Return handles of values of this process, for tasks that use them more than once."""

    def broadcast(self, value: object, label: str = "send") -> object:
        """Return the representation of one value that many tasks use: the value itself, or a handle."""
        return value

    @abstractmethod
    def scratch(self) -> AbstractContextManager[Use]:
        """Return a context manager of a use of temporary files of tasks; the files are removed at its end."""

    def each(self, label: str) -> Callable[[Callable[..., Any], Iterable[Any]], list[Any]]:
        """Return `map` under a label as the parallel map that numerical code expects."""
        return partial(self._each, label)

    def _each(self, label: str, function: Callable[..., Any], items: Iterable[Any]) -> list[Any]:
        """Return function(item) for every item, also for items that are tuples; a function may name its tasks."""
        named = getattr(function.func if isinstance(function, partial) else function, "task_name", label)
        return self.map(function, [(item,) for item in items], named)

    @abstractmethod
    def check_worker_memory(self, needed: int, what: str) -> None:
        """Raise PlanError if a task on `what` that needs `needed` bytes does not fit the smallest worker."""

    @abstractmethod
    def check_file_access(self, folder: str | Path, files: Iterable[str | Path] = ()) -> None:
        """Raise JobError if a worker cannot write in a folder or read some files as the driver does."""

    def report_performance(self) -> None:
        """Begin the performance report that Dask's configuration asks for. Raises JobError without a cluster."""
        if file := configured(REPORT):
            raise JobError(setting_name(REPORT), f"{display_path(file)}, for a run without a cluster", "a cluster",
                           "leave it out, or state --scheduler")  # fmt: skip

    @abstractmethod
    def close(self) -> None:
        """Close the resources that the engine opened."""


def argument_tuples(items: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return each item as a tuple of arguments."""
    return [item if isinstance(item, tuple) else (item,) for item in items]
