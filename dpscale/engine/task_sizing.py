"""Batches: how many calls make one task of about a second.

Dask takes about a millisecond for a task, so calls that are shorter than that would cost more than they do. The first
calls are tasks of their own and are timed; the tasks that follow hold as many as take about TASK_SECONDS. Where workers
are many and the work W is short, k tasks end after about k e + W/k, e the scheduler's seconds for one: they take √(W e)
at least. Times depend on public sizes and on the machine; where a batch ends changes no result, since every call stands
for itself.

A call that is given a handle is a task of its own always: its argument may be large, and a worker would have to hold
those of all calls of a batch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from dpscale.engine.graphs import fresh_token, is_handle
from dpscale.records.table import Partition

TASK_SECONDS = 1.0
MOST_CALLS = 10_000  # in a task: what a death of its worker repeats, and what one message holds
MOST_SENT = 1 << 22  # bytes of values in one message
SHARES = 4  # tasks that every thread should still get at the end, so that all end together
LEAST_SHARES = 16  # tasks at the least, or a thread's SHARES: calls may differ from those that were timed
SCHEDULING = 0.001  # seconds that the scheduler is busy with a task


class Batch:
    """Some calls of one function in one task; picklable where function and arguments are. Shows no argument."""

    def __init__(self, function: Callable[..., Any], items: Sequence[tuple[Any, ...]]) -> None:
        self.function, self.__name__ = function, getattr(function, "__name__", "call")
        self.handles = [argument for item in items for argument in item if is_handle(argument)]
        self.items = [tuple(_SLOT if is_handle(argument) else argument for argument in item) for item in items]

    def __call__(self, *handles: Any) -> tuple[float, list[Any]]:
        begin, given = perf_counter(), iter(handles)
        results = []
        for item in self.items:
            results.append(self.function(*(next(given) if isinstance(a, _Slot) else a for a in item)))
        return perf_counter() - begin, results

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"handles": []}  # they reach the task as its arguments

    def __dask_tokenize__(self) -> str:
        return fresh_token()

    def __repr__(self) -> str:
        return self.__name__


def fair(calls: int, threads: int, pace: float) -> int:
    """How many of so many calls, of about `pace` seconds each, make one task."""
    shares = SHARES * threads
    worth = min(math.isqrt(int(SCHEDULING * calls / pace)), -(-calls // min(shares, LEAST_SHARES)))
    return max(1, min(int(TASK_SECONDS / pace), max(-(-calls // shares), worth), MOST_CALLS))


def message_of(values: Sequence[Any]) -> Sequence[Any]:
    """The first of some values, as many as one message may hold; one at least."""
    sizes = np.cumsum([sys.getsizeof(value) for value in values])
    return values[: max(1, int(np.searchsorted(sizes, MOST_SENT)))]


class _Slot:
    """Stands where a handle's result goes."""


_SLOT = _Slot()


class Batches:
    """Cuts items into batches, ever better as it learns how long a call takes."""

    def __init__(self, items: Sequence[tuple[Any, ...]], threads: int, seconds: float | None = None) -> None:
        self._items, self._threads, self._next = items, threads, 0
        self._calls, self._seconds = 0.0, 0.0
        if seconds is not None:
            self.learn(1, seconds)

    @property
    def left(self) -> int:
        """Items that are in no batch yet."""
        return len(self._items) - self._next

    @property
    def pace(self) -> float | None:
        """Seconds a call; None before anything is known."""
        return self._seconds / self._calls if self._calls else None

    def learn(self, calls: int, seconds: float) -> None:
        """So many calls took so long. What was long ago counts less."""
        keep = 0.5 if self._calls > MOST_CALLS else 1.0
        self._calls, self._seconds = keep * self._calls + calls, keep * self._seconds + seconds

    def take(self) -> tuple[int, Sequence[tuple[Any, ...]]]:
        """The next batch: where it starts, and its items."""
        start = self._next
        self._next += self._size()
        return start, self._items[start : self._next]

    def _size(self) -> int:
        if self.pace is None or any(map(is_handle, self._items[self._next])):
            return 1
        size = fair(self.left, self._threads, max(self.pace, 1e-9))
        within = range(self._next, min(self._next + size, len(self._items)))
        mixed = next((i for i in within if any(map(is_handle, self._items[i]))), None)
        return len(within) if mixed is None else max(mixed - self._next, 1)


LEAST_TASKS = 32  # that a pass may have, where there are as many workers


def fewer(groups: Sequence[tuple[Partition, ...]], most: int) -> Sequence[tuple[Partition, ...]]:
    """The groups, or so many of several."""
    if len(groups) <= most:
        return groups
    return [tuple(part for group in groups[k::most] for part in group) for k in range(most)]


def worth(seconds: float) -> int:
    """How many tasks so much work may be, however many workers: more would take longer to hand out than they save."""
    return max(LEAST_TASKS, math.isqrt(int(seconds / SCHEDULING)))


def cut(group: tuple[Partition, ...], pieces: int) -> list[tuple[Partition, ...]]:
    """A worker's partitions in at most so many pieces of similar length."""
    step = -(-len(group) // max(pieces, 1))
    return [group[start : start + step] for start in range(0, len(group), step)]
