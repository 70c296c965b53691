"""Task graphs of function calls and of tree sums, and the sizes of their tasks and messages.

Keys contain a name and numbers, never an argument. The tree has the same shape on every engine, so sums of
floating-point numbers are the same bytes too.

*Number of calls per task.*
Dask needs about a millisecond per task, so a task of one shorter call would cost more than the call. The first calls
are tasks of their own and are timed; each task after them contains the calls of about TASK_SECONDS. If there are many
workers and the total work W is short, k tasks end after about k e + W/k, where e is the scheduler's time per task; k is
therefore at most about √(W/e), and each task lasts at least √(W e). Times depend on public sizes and on the machine.
The boundaries of batches change no result, because each call is independent.

A call with a handle as argument is always a task of its own: the argument may be large, and a worker would need the
memory of the arguments of all calls in the batch.

The arguments of a task are pickled here, so their size is known and the scheduler need not read them to pass them on. A
message contains tasks of at most about MOST_SENT bytes. A larger task is split into chunks of one message each, which
are joined where it runs. A large result is split by the task that computed it and fetched chunk by chunk. No message is
much longer than 1.5 MOST_SENT, whatever the job.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpscale.engine.watch import RedactedCall
from dpscale.records.table import Partition

if TYPE_CHECKING:
    from distributed import Future

Value = TypeVar("Value")
Graph = dict[Any, Any]
KeyName = Callable[[str], str]
FAN_IN = 8  # lists of arrays that one task sums

TASK_SECONDS = 1.0  # predicted time of a task of many calls, about a thousand times what Dask needs for a task
MOST_CALLS = 10_000  # calls of a task; bounds the repeated work if its worker dies, and the size of a message
MOST_SENT = 1 << 22  # bytes of values in one message
SHARES = 4  # tasks per thread near the end, so that all threads finish together
LEAST_SHARES = 16  # smallest number of tasks, or SHARES per thread: calls may differ from the timed ones
SCHEDULING = 0.001  # seconds of the scheduler per task


def call_graph(function: Callable[..., Any], items: Sequence[tuple[Any, ...]], name: str) -> Graph:
    """Return a graph with one call for each item."""
    call = RedactedCall(function)
    return {(name, number): (call, *map(literal, item)) for number, item in enumerate(items)}


def exchange_graph(
    take: Callable[..., Any],
    handles: Sequence[Any],
    join: Callable[..., Any],
    numbers: Sequence[int],
    key_name: KeyName,
) -> tuple[Graph, list[Any]]:
    """Return the graph of join([take(handle, number) for all handles]) for all numbers, and the keys of the joins.

    A task `take` extracts the part of one number from one handle, so parts travel directly between the workers.
    """
    graph, taking, joining = Graph(), RedactedCall(take), RedactedCall(_ListFunction(join))
    for number in numbers:
        parts = [(key_name("take"), number, i) for i in range(len(handles))]
        graph |= {part: (taking, handle, number) for part, handle in zip(parts, handles, strict=True)}
        graph[key_name("join"), number] = (joining, *parts)
    return graph, [(key_name("join"), number) for number in numbers]


class _ListFunction:
    """Function of a list as a function of its items."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *parts: object) -> object:
        return self.function(parts)


def reduction_graph(
    function: Callable[..., Any], items: Sequence[tuple[Any, ...]], pieces: Sequence[range], key_name: KeyName,
    disjoint: bool = False,
) -> tuple[Graph, list[Any], list[Any]]:  # fmt: skip
    """Return the graph that sums lists of arrays, the keys of the calls, and the key of the sum of each part.

    A part is a place in the lists, and a piece is a range of parts that the same tasks sum; more pieces mean more
    tasks, each of which fetches less. With `disjoint`, each call has one piece, in the order of the calls, and nothing
    is summed.
    """
    graph = call_graph(function, items, key_name(""))
    call_keys, roots = list(graph), []
    for number, piece in enumerate(pieces):
        # `total` is the key of a list of sums that begins with part `before`
        if disjoint:
            total, before = call_keys[number], piece.start
        elif len(call_keys) == 1:
            total, before = call_keys[0], 0
        else:
            total, before = _add_piece(graph, call_keys, piece, number, key_name, len(pieces) > 1)
        graph |= {(key_name("part"), part): (TAKE, total, part - before) for part in piece}
        roots += [(key_name("part"), part) for part in piece]

    return graph, call_keys, roots


def _add_piece(
    graph: Graph, call_keys: list[Any], piece: range, number: int, key_name: KeyName, cut: bool
) -> tuple[Any, int]:
    """Add the sum of a piece to the graph; return its key and the number of its first part.

    `call_keys` are the keys of the calls, each with a list of arrays, one for each part. With `cut`, tasks take the
    range `piece` of each list before it is summed, so the sum begins with part piece.start; otherwise whole lists are
    summed, from part 0. `number` is the position of the piece, which makes keys unique.
    """
    if not cut:
        return _tree(graph, call_keys, (key_name("sum"), number)), 0
    slices = [(key_name("take"), call, number) for call in range(len(call_keys))]
    graph |= {key: (SLICE, whole, piece.start, piece.stop) for key, whole in zip(slices, call_keys, strict=True)}
    return _tree(graph, slices, (key_name("sum"), number)), piece.start


def pieces_of(parts: int, pieces: int) -> list[range]:
    """Divide `parts` parts into at most `pieces` non-empty ranges of similar length."""
    cuts = [parts * number // pieces for number in range(pieces + 1)]
    return [range(first, end) for first, end in pairwise(cuts) if end > first]


def _tree(graph: Graph, level: list[Any], name: tuple[Any, ...]) -> tuple[Any, ...]:
    """Add a tree of sums over the keys to the graph; return the key of its root.

    `level` are the keys of the current level, each of a list of arrays. A task sums up to FAN_IN of them, until a
    single key remains. `name` begins the keys of new tasks; a single key is returned unchanged.
    """
    depth = 0
    while len(level) > 1:
        groups = [level[start : start + FAN_IN] for start in range(0, len(level), FAN_IN)]
        level = []
        for number, group in enumerate(groups):
            graph[(*name, depth, number)] = (TOTALS, *group)
            level.append((*name, depth, number))
        depth += 1
    return level[0]


def is_handle(value: object) -> bool:
    """Return whether a value represents a result on a cluster."""
    return type(value).__module__.startswith("distributed")


def literal(value: object) -> object:
    """Return an argument that Dask does not interpret as a key or a task; handles are returned as they are."""
    return value if is_handle(value) else (_Literal(value),)


class _Literal:
    def __init__(self, value: object) -> None:
        self.value = value

    def __call__(self) -> object:
        return self.value

    def __dask_tokenize__(self) -> str:
        return fresh_token()

    def __repr__(self) -> str:
        return "argument"


def fresh_token() -> str:
    """Return a token that Dask uses in place of the hash of an argument.

    Dask would read the whole argument to hash it, which is useless here because every key is new.
    """
    return f"dpscale-{os.getpid()}-{next(_numbers)}"


_numbers = count()


def _part(results: Sequence[Value], part: int) -> Value:
    return results[part]


def _slice(results: Sequence[Any], first: int, end: int) -> Sequence[Any]:
    return results[first:end]


def add_lists(*lists: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the element-wise sums of lists of arrays; sums of 32-bit partial counts have 64 bits."""
    return [_sum(arrays) for arrays in zip(*lists, strict=True)]


def _sum(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the sum of arrays; sums of integers have 64 bits.

    A single array is returned itself. The first sum allocates the total, to which others are added in place.
    """
    first, *others = arrays
    if not others:
        return first
    total = np.add(first, others[0], dtype=np.int64 if first.dtype.kind == "i" else None)
    for array in others[1:]:
        total += array
    return np.asarray(total)


TAKE, SLICE, TOTALS = RedactedCall(_part), RedactedCall(_slice), RedactedCall(add_lists)


class Batch:
    """Calls of one function in one task; picklable if function and arguments are. Its repr shows no argument."""

    def __init__(self, function: Callable[..., Any], items: Sequence[tuple[Any, ...]]) -> None:
        self.function, self.__name__ = function, getattr(function, "__name__", "call")
        self.handles = [argument for item in items for argument in item if is_handle(argument)]
        self.items = [tuple(_SLOT if is_handle(argument) else argument for argument in item) for item in items]

    def __call__(self, *handles: object) -> tuple[float, list[Any]]:
        """Return the seconds and the results of the calls.

        Dask replaces `handles` by their values. They are inserted at the places of the slots, in the same order.
        """
        begin, values = perf_counter(), iter(handles)
        results = []
        for item in self.items:
            arguments = (next(values) if isinstance(argument, _Slot) else argument for argument in item)
            results.append(self.function(*arguments))
        return perf_counter() - begin, results

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"handles": []}  # handles are passed as arguments of the task

    def __dask_tokenize__(self) -> str:
        return fresh_token()

    def __repr__(self) -> str:
        return self.__name__


def batch_size(calls: int, threads: int, pace: float) -> int:
    """Return how many of `calls` calls of about `pace` seconds each make one task (module docstring).

    A task lasts at most TASK_SECONDS. All threads finish together if there are several tasks per thread, unless the
    scheduler would then need longer than the calls.
    """
    shares = SHARES * threads
    # √(e W) / pace with W = calls · pace, but not so many that few tasks remain
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
        """Start at the first item; `seconds` is the expected duration of a call, if it is known."""
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
        """Return how many of the next items one task takes, from the time that an item took before.

        Items with handles of results on workers are tasks of their own.
        """
        if self.pace is None or any(map(is_handle, self._items[self._next])):
            return 1
        size = batch_size(self.remaining, self._threads, max(self.pace, 1e-9))
        within = range(self._next, min(self._next + size, len(self._items)))
        first_with_handle = next((place for place in within if any(map(is_handle, self._items[place]))), None)
        return len(within) if first_with_handle is None else max(first_with_handle - self._next, 1)


LEAST_TASKS = 32  # tasks that a pass may always have if there are as many workers


def merge_groups(groups: Sequence[tuple[Partition, ...]], most: int) -> Sequence[tuple[Partition, ...]]:
    """Return at most `most` groups; groups are merged if there are more."""
    if len(groups) <= most:
        return groups
    # the groups are dealt in turn
    return [tuple(part for group in groups[first::most] for part in group) for first in range(most)]


def useful_tasks(seconds: float) -> int:
    """Return the largest useful number of tasks: with more, scheduling would take longer than they save."""
    return max(LEAST_TASKS, math.isqrt(int(seconds / SCHEDULING)))


def split_group(group: tuple[Partition, ...], pieces: int) -> list[tuple[Partition, ...]]:
    """Divide a worker's partitions into at most `pieces` pieces of similar length."""
    step = -(-len(group) // max(pieces, 1))
    return [group[start : start + step] for start in range(0, len(group), step)]


MAX_SHARED_BYTES = MOST_SENT // 2  # bytes of a task that shares a message with others
LARGE_BYTES = 1 << 16  # bytes of a result that has its own message
RESULTS_PER_MESSAGE = MOST_SENT // LARGE_BYTES  # small results in one message
Send = Callable[[Sequence[Any]], list[Any]]


def pickle_value(value: object) -> bytes:
    """Return a value pickled as a cluster does it, including functions that no module defines."""
    from distributed.protocol.pickle import dumps

    return bytes(dumps(value))


def unpickle_value(data: bytes) -> Any:
    """Return the value of the bytes of `pickle_value`."""
    from distributed.protocol.pickle import loads

    return loads(data)


def split_chunks(data: bytes) -> list[bytes]:
    """Split bytes into chunks of one message each."""
    return [data[start : start + MOST_SENT] for start in range(0, len(data), MOST_SENT)]


def join_chunks(*pieces: bytes) -> Any:
    """Return the pickled value of some chunks."""
    return unpickle_value(b"".join(pieces))


class Call(Batch):
    """One call whose task returns its result alone."""

    def __call__(self, *handles: object) -> Any:
        return super().__call__(*handles)[1][0]


class PickledTask:
    """Pickled task, or a task whose first arguments are the chunks of its pickle. Its repr shows no argument."""

    def __init__(self, call: Batch, data: bytes, pieces: int = 0) -> None:
        self.__name__, self.data, self.pieces = call.__name__, data, pieces
        self.alone = isinstance(call, Call)

    def __call__(self, *arguments: Any) -> Any:
        data = b"".join(arguments[: self.pieces]) if self.pieces else self.data
        result = unpickle_value(data)(*arguments[self.pieces :])
        return result if self.alone else wrap_large(result)

    def __dask_tokenize__(self) -> str:
        return fresh_token()

    def __repr__(self) -> str:
        return self.__name__


def pickle_task(call: Batch, send: Send) -> tuple[tuple[Any, ...], int]:
    """Return the task of a call and the bytes that it adds to a message; a large call is sent before, in chunks."""
    data = pickle_value(call)
    if len(data) <= MAX_SHARED_BYTES:
        return (PickledTask(call, data), *call.handles), len(data)
    pieces = send(split_chunks(data))
    return (PickledTask(call, b"", len(pieces)), *pieces, *call.handles), 0


def batch_graph(function: Callable[..., Any], batches: Batches, most: int, name: str, send: Send) -> tuple[Graph, bool]:
    """Return a graph of the next batches and whether they consume handles.

    The graph has at most `most` batches and fits one message. Its keys contain the start of each batch.
    """
    graph: Graph = {}
    total, handles = 0, False
    while batches.remaining and len(graph) < most and total < MOST_SENT:
        start, items = batches.next_batch()
        batch = Batch(function, items)
        graph[name, start], size = pickle_task(batch, send)
        total, handles = total + size, handles or bool(batch.handles)
    return graph, handles


def call_graphs(function: Callable[..., Any], items: Sequence[tuple[Any, ...]], name: str, send: Send) -> list[Graph]:
    """Return graphs of one message each that contain one call for each item.

    The arguments of a task are pickled here, so that its size is known; a graph has at most MOST_SENT bytes.
    """
    graphs, total = list[Graph]([{}]), 0
    for number, item in enumerate(items):
        task, size = pickle_task(Call(function, [item]), send)
        if total + size > MOST_SENT:
            graphs.append({})
            total = 0
        graphs[-1][name, number] = task
        total += size
    return graphs


class LargeResult:
    """Result that is fetched in its own message."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def __repr__(self) -> str:
        return "result"


class ChunkedResult(LargeResult):
    """Result that is fetched chunk by chunk."""


def wrap_large(result: object) -> object:
    """Return a small result as it is, and a large one as its chunks."""
    data = pickle_value(result)
    if len(data) <= LARGE_BYTES:
        return result
    return LargeResult([data]) if len(data) <= MOST_SENT else ChunkedResult(split_chunks(data))


def group_futures(futures: Sequence[Future]) -> list[list[Future]]:
    """Group finished futures into the requests that fetch their results; small results share a request."""
    large, small = list[Any](), list[Any]()
    for future in futures:
        (large if _is(future, LargeResult) or _is(future, ChunkedResult) else small).append(future)
    together = [small[start : start + RESULTS_PER_MESSAGE] for start in range(0, len(small), RESULTS_PER_MESSAGE)]
    return together + [[future] for future in large]


def fetch_results(
    futures: Sequence[Any], gather: Callable[[Sequence[Any]], list[Any]], run_task: Callable[..., Any]
) -> list[Any]:
    """Return the results of one group; `run_task` runs a small task on a future."""
    if _is(futures[0], ChunkedResult):  # a group of its own: a task on the worker returns each chunk
        chunks = (run_task(_piece, futures[0], number) for number in range(run_task(_count, futures[0])))
        return [join_chunks(*chunks)]
    return [join_chunks(*result.pieces) if isinstance(result, LargeResult) else result for result in gather(futures)]


def _count(result: LargeResult) -> int:
    return len(result.pieces)


def _piece(result: LargeResult, number: int) -> bytes:
    return result.pieces[number]


def _is(future: Future, kind: type) -> bool:
    """Return whether the result of a future has a type, which its worker reports as the class or its name."""
    return future.type is kind or future.type == f"{kind.__module__}.{kind.__name__}"
