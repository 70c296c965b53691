"""What every engine does: map a function over items, and reduce lists of arrays over a tree.

What a reduction leaves is a *handle*: the array itself locally, a future on a cluster, to be given to a later map
without passing through the driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from dpscale.storage.scratch import Use

Progress = Callable[[str, int, int], None]


def silent(label: str, done: int, total: int) -> None:
    """A progress function that shows nothing."""


class Engine(ABC):
    """Where tasks run. `workers` is how many run at once; `label`s name what a progress bar shows.

    `memory` is about how many bytes a task holds, for the schedulers that can make use of it.
    """

    workers: int
    shares_memory = False  # whether tasks have this process's
    progress: Progress

    @abstractmethod
    def map(
        self, function: Callable[..., Any], items: Iterable[Any], label: str = "map", memory: int | None = None
    ) -> list[Any]:
        """function(item) for every item, in order; a tuple item is spread over the arguments."""

    @abstractmethod
    def reduce(
        self,
        function: Callable[..., Sequence[Any]],
        items: Sequence[tuple[Any, ...]],
        parts: int,
        label: str = "reduce",
        memory: int | None = None,
        pieces: Sequence[range] | None = None,
        apart: bool = False,
    ) -> list[Any]:
        """Sum over items of function(*item), a list of `parts` arrays: one handle for each part.

        `pieces`: the parts that the same tasks sum, all unless told; right where the arrays are small. `apart`: each
        item has one piece, and the others nothing of it.
        """

    @abstractmethod
    def keep(
        self, function: Callable[..., Any], items: Iterable[tuple[Any, ...]], label: str = "keep",
        memory: int | None = None,
    ) -> list[Any]:  # fmt: skip
        """function(*item) for every item, left where it was made: a handle each."""

    @abstractmethod
    def exchange(
        self, take: Callable[..., Any], kept: Sequence[Any], join: Callable[..., Any], count: int,
        label: str = "exchange",
    ) -> list[Any]:  # fmt: skip
        """join([take(one, number) for one in kept]) for every number below `count`: all to all.

        `kept`: handles, of which the parts travel and never the whole. Few numbers are under way at once.
        """

    @abstractmethod
    def sent(self, values: Sequence[Any], label: str = "send") -> list[Any]:
        """Handles of values that this process has, for tasks that need them more than once."""

    def shared(self, value: Any, label: str = "send") -> Any:
        """What stands for one value in the items of many tasks: itself, or a handle."""
        return value

    @abstractmethod
    def scratch(self) -> AbstractContextManager[Use]:
        """A use of files that tasks write and read, until its end."""

    def each(self, label: str) -> Callable[[Callable[..., Any], Iterable[Any]], list[Any]]:
        """`map` under a label, in the shape that the rooms of mathematics take."""
        return partial(self._each, label)

    def _each(self, label: str, function: Callable[..., Any], items: Iterable[Any]) -> list[Any]:
        return self.map(function, [(item,) for item in items], label)

    @abstractmethod
    def check_room(self, needed: int, what: str) -> None:
        """PlanError where a task on `what` that holds so many bytes does not fit the smallest worker."""

    @abstractmethod
    def check_sight(self, folder: str | Path, files: Iterable[str | Path] = ()) -> None:
        """JobError where a worker cannot work in a folder as the driver does, or read some files."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what the engine itself opened."""


def spread(items: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Items as tuples of arguments."""
    return [item if isinstance(item, tuple) else (item,) for item in items]
