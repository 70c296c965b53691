"""Pickled tasks and results in chunks that fit one message of the scheduler.

The arguments of a task are pickled here, so their size is known and the scheduler need not read them to pass them on. A
message contains tasks of at most about MOST_SENT bytes. A larger task is split into chunks of one message each, which
are joined where it runs. A large result is split by the task that computed it and fetched chunk by chunk. No message is
much longer than 1.5 MOST_SENT, whatever the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dpscale.engine.graphs import Graph, fresh_token
from dpscale.engine.task_sizing import MOST_SENT, Batch, Batches

MAX_SHARED_BYTES = MOST_SENT // 2  # bytes of a task that shares a message with others
LARGE_BYTES = 1 << 16  # bytes of a result that has its own message
RESULTS_PER_MESSAGE = MOST_SENT // LARGE_BYTES  # small results in one message
Send = Callable[[Sequence[Any]], list[Any]]


def pickle_value(value: Any) -> bytes:
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

    def __call__(self, *handles: Any) -> Any:
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
    """Return the task of a call and the bytes that it adds to a message."""
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
    """Return graphs of one message each that contain one call for each item."""
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


def wrap_large(result: Any) -> Any:
    """Return a small result as it is, and a large one as its chunks."""
    data = pickle_value(result)
    if len(data) <= LARGE_BYTES:
        return result
    return LargeResult([data]) if len(data) <= MOST_SENT else ChunkedResult(split_chunks(data))


def group_futures(futures: Sequence[Any]) -> list[list[Any]]:
    """Group finished futures into the requests that fetch their results; small results share a request."""
    alone = [_is(future, LargeResult) or _is(future, ChunkedResult) for future in futures]
    small = [future for future, own in zip(futures, alone, strict=True) if not own]
    together = [small[start : start + RESULTS_PER_MESSAGE] for start in range(0, len(small), RESULTS_PER_MESSAGE)]
    return together + [[future] for future, own in zip(futures, alone, strict=True) if own]


def fetch_results(
    futures: Sequence[Any], gather: Callable[[Sequence[Any]], list[Any]], run_task: Callable[..., Any]
) -> list[Any]:
    """Return the results of one group; `run_task` runs a small task on a future."""
    if _is(futures[0], ChunkedResult):
        return [join_chunks(*(run_task(_piece, futures[0], number) for number in range(run_task(_count, futures[0]))))]
    return [join_chunks(*result.pieces) if isinstance(result, LargeResult) else result for result in gather(futures)]


def _count(result: LargeResult) -> int:
    return len(result.pieces)


def _piece(result: LargeResult, number: int) -> bytes:
    return result.pieces[number]


def _is(future: Any, kind: type) -> bool:
    """Return whether the result of a future has a type, which its worker reports as the class or its name."""
    return future.type is kind or future.type == f"{kind.__module__}.{kind.__name__}"
