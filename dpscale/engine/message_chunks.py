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

WITH_OTHERS = MOST_SENT // 2  # bytes that a task is told which is in a message with others
ALONE = 1 << 16  # bytes of a result that has a message of its own
TOGETHER = MOST_SENT // ALONE  # results in one message
Send = Callable[[Sequence[Any]], list[Any]]


def dumped(value: Any) -> bytes:
    """Return a value pickled as a cluster does it, including functions that no module defines."""
    from distributed.protocol.pickle import dumps

    return bytes(dumps(value))


def loaded(data: bytes) -> Any:
    """Return the value of `dumped` bytes."""
    from distributed.protocol.pickle import loads

    return loads(data)


def cut(data: bytes) -> list[bytes]:
    """Split bytes into chunks of one message each."""
    return [data[start : start + MOST_SENT] for start in range(0, len(data), MOST_SENT)]


def joined(*pieces: bytes) -> Any:
    """Return the pickled value of some chunks."""
    return loaded(b"".join(pieces))


class Call(Batch):
    """One call whose task returns its result alone."""

    def __call__(self, *handles: Any) -> Any:
        return super().__call__(*handles)[1][0]


class Sealed:
    """Pickled task, or a task whose first arguments are the chunks of its pickle. Its repr shows no argument."""

    def __init__(self, call: Batch, data: bytes, pieces: int = 0) -> None:
        self.__name__, self.data, self.pieces = call.__name__, data, pieces
        self.alone = isinstance(call, Call)

    def __call__(self, *given: Any) -> Any:
        data = b"".join(given[: self.pieces]) if self.pieces else self.data
        result = loaded(data)(*given[self.pieces :])
        return result if self.alone else large(result)

    def __dask_tokenize__(self) -> str:
        return fresh_token()

    def __repr__(self) -> str:
        return self.__name__


def sealed(call: Batch, send: Send) -> tuple[tuple[Any, ...], int]:
    """Return the task of a call and the bytes that it adds to a message."""
    data = dumped(call)
    if len(data) <= WITH_OTHERS:
        return (Sealed(call, data), *call.handles), len(data)
    pieces = send(cut(data))
    return (Sealed(call, b"", len(pieces)), *pieces, *call.handles), 0


def batch_graph(function: Callable[..., Any], batches: Batches, most: int, name: str, send: Send) -> tuple[Graph, bool]:
    """Return a graph of the next batches and whether they consume handles.

    The graph has at most `most` batches and fits one message. Its keys contain the start of each batch.
    """
    graph: Graph = {}
    held, handles = 0, False
    while batches.left and len(graph) < most and held < MOST_SENT:
        start, items = batches.take()
        batch = Batch(function, items)
        graph[name, start], size = sealed(batch, send)
        held, handles = held + size, handles or bool(batch.handles)
    return graph, handles


def call_graphs(function: Callable[..., Any], items: Sequence[tuple[Any, ...]], name: str, send: Send) -> list[Graph]:
    """Return graphs of one message each that contain one call for each item."""
    graphs, held = list[Graph]([{}]), 0
    for number, item in enumerate(items):
        task, size = sealed(Call(function, [item]), send)
        if held + size > MOST_SENT:
            graphs.append({})
            held = 0
        graphs[-1][name, number] = task
        held += size
    return graphs


class Alone:
    """Result that is fetched in its own message."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def __repr__(self) -> str:
        return "result"


class Pieces(Alone):
    """Result that is fetched chunk by chunk."""


def large(result: Any) -> Any:
    """Return a small result as it is, and a large one as its chunks."""
    data = dumped(result)
    if len(data) <= ALONE:
        return result
    return Alone([data]) if len(data) <= MOST_SENT else Pieces(cut(data))


def deliveries(futures: Sequence[Any]) -> list[list[Any]]:
    """Group finished futures into the requests that fetch their results; small results share a request."""
    alone = [_is(future, Alone) or _is(future, Pieces) for future in futures]
    small = [future for future, own in zip(futures, alone, strict=True) if not own]
    together = [small[start : start + TOGETHER] for start in range(0, len(small), TOGETHER)]
    return together + [[future] for future, own in zip(futures, alone, strict=True) if own]


def fetched(futures: Sequence[Any], gather: Callable[[Sequence[Any]], list[Any]], ask: Callable[..., Any]) -> list[Any]:
    """Return the results of one group; `ask` runs a small task on a future."""
    if _is(futures[0], Pieces):
        return [joined(*(ask(_piece, futures[0], number) for number in range(ask(_count, futures[0]))))]
    return [joined(*result.pieces) if isinstance(result, Alone) else result for result in gather(futures)]


def _count(result: Alone) -> int:
    return len(result.pieces)


def _piece(result: Alone, number: int) -> bytes:
    return result.pieces[number]


def _is(future: Any, kind: type) -> bool:
    """Return whether the result of a future has a type, which its worker reports as the class or its name."""
    return future.type is kind or future.type == f"{kind.__module__}.{kind.__name__}"
