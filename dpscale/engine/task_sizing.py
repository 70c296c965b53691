"""Number of calls per task, for tasks of about a second.

Dask needs about a millisecond per task, so a task of one shorter call would cost more than the call. The first calls
are tasks of their own and are timed; each task after them contains the calls of about TASK_SECONDS. If there are many
workers and the total work W is short, k tasks end after about k e + W/k, where e is the scheduler's time per task; k is
therefore at most about √(W/e), and each task lasts at least √(W e). Times depend on public sizes and on the machine.
The boundaries of batches change no result, because each call is independent.

A call with a handle as argument is always a task of its own: the argument may be large, and a worker would need the
memory of the arguments of all calls in the batch.
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
MOST_CALLS = 10_000  # calls of a task; bounds the repeated work if its worker dies, and the size of a message
MOST_SENT = 1 << 22  # bytes of values in one message
SHARES = 4  # tasks per thread near the end, so that all threads finish together
LEAST_SHARES = 16  # smallest number of tasks, or SHARES per thread: calls may differ from the timed ones
SCHEDULING = 0.001  # seconds of the scheduler per task


class Batch:
    """Calls of one function in one task; picklable if function and arguments are. Its repr shows no argument."""

    def __init__(self, function: Callable[..., Any], items: Sequence[tuple[Any, ...]]) -> None:
        self.function, self.__name__ = function, getattr(function, "__name__", "call")
        self.handles = [argument for item in items for argument in item if is_handle(argument)]
        self.items = [tuple(_SLOT if is_handle(argument) else argument for argument in item) for item in items]

    def __call__(self, *handles: Any) -> tuple[float, list[Any]]:
        begin, values = perf_counter(), iter(handles)
        results = []
        for item in self.items:
            results.append(self.function(*(next(values) if isinstance(a, _Slot) else a for a in item)))
        return perf_counter() - begin, results

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"handles": []}  # handles are passed as arguments of the task

    def __dask_tokenize__(self) -> str:
        return fresh_token()

    def __repr__(self) -> str:
        return self.__name__


def batch_size(calls: int, threads: int, pace: float) -> int:
    """Return how many of `calls` calls of about `pace` seconds each make one task."""
    shares = SHARES * threads
    amortized = min(math.isqrt(int(SCHEDULING * calls / pace)), -(-calls // min(shares, LEAST_SHARES)))
    return max(1, min(int(TASK_SECONDS / pace), max(-(-calls // shares), amortized), MOST_CALLS))


def message_of(values: Sequence[Any]) -> Sequence[Any]:
    """Return the first values that fit one message; at least one."""
    sizes = np.cumsum([sys.getsizeof(value) for value in values])
    return values[: max(1, int(np.searchsorted(sizes, MOST_SENT)))]


class _Slot:
    """Placeholder for the result of a handle."""


_SLOT = _Slot()


class Batches:
    """Division of items into batches that improves as the duration of calls becomes known."""

    def __init__(self, items: Sequence[tuple[Any, ...]], threads: int, seconds: float | None = None) -> None:
        self._items, self._threads, self._next = items, threads, 0
        self._calls, self._seconds = 0.0, 0.0
        if seconds is not None:
            self.learn(1, seconds)

    @property
    def remaining(self) -> int:
        """Number of items that are in no batch yet."""
        return len(self._items) - self._next

    @property
    def pace(self) -> float | None:
        """Seconds per call; None before any call was timed."""
        return self._seconds / self._calls if self._calls else None

    def learn(self, calls: int, seconds: float) -> None:
        """Record that `calls` calls lasted `seconds`; older records have less weight."""
        weight = 0.5 if self._calls > MOST_CALLS else 1.0
        self._calls, self._seconds = weight * self._calls + calls, weight * self._seconds + seconds

    def next_batch(self) -> tuple[int, Sequence[tuple[Any, ...]]]:
        """Return the start of the next batch and its items."""
        start = self._next
        self._next += self._size()
        return start, self._items[start : self._next]

    def _size(self) -> int:
        if self.pace is None or any(map(is_handle, self._items[self._next])):
            return 1
        size = batch_size(self.remaining, self._threads, max(self.pace, 1e-9))
        within = range(self._next, min(self._next + size, len(self._items)))
        mixed = next((i for i in within if any(map(is_handle, self._items[i]))), None)
        return len(within) if mixed is None else max(mixed - self._next, 1)


LEAST_TASKS = 32  # tasks that a pass may always have if there are as many workers


def merge_groups(groups: Sequence[tuple[Partition, ...]], most: int) -> Sequence[tuple[Partition, ...]]:
    """Return at most `most` groups; groups are merged if there are more."""
    if len(groups) <= most:
        return groups
    return [tuple(part for group in groups[k::most] for part in group) for k in range(most)]


def useful_tasks(seconds: float) -> int:
    """Return the largest useful number of tasks: with more, scheduling would take longer than they save."""
    return max(LEAST_TASKS, math.isqrt(int(seconds / SCHEDULING)))


def split_group(group: tuple[Partition, ...], pieces: int) -> list[tuple[Partition, ...]]:
    """Divide a worker's partitions into at most `pieces` pieces of similar length."""
    step = -(-len(group) // max(pieces, 1))
    return [group[start : start + step] for start in range(0, len(group), step)]
