"""What is too large for one message of the scheduler goes in pieces.

What a task is told is pickled here, so its size is known, and the scheduler, which would read it to pass it on, need
not. Of many tasks as many go in a message as make MOST_SENT; one that is larger is cut, and its pieces, a message each,
are put together where it runs. A large result is cut by the task that made it, and fetched piece by piece. So no
message holds much more than half as much again, whatever is asked.
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
    """A value as a cluster passes it on: also functions that no module has."""
    from distributed.protocol.pickle import dumps

    return bytes(dumps(value))


def loaded(data: bytes) -> Any:
    """The value of `dumped`."""
    from distributed.protocol.pickle import loads

    return loads(data)


def cut(data: bytes) -> list[bytes]:
    """Pieces that fit a message each."""
    return [data[start : start + MOST_SENT] for start in range(0, len(data), MOST_SENT)]


def joined(*pieces: bytes) -> Any:
    """The value whose pieces these are."""
    return loaded(b"".join(pieces))


class Call(Batch):
    """One call, whose task gives its result alone."""

    def __call__(self, *handles: Any) -> Any:
        return super().__call__(*handles)[1][0]


class Sealed:
    """A task that was pickled, or of which so many pieces come as its first arguments. Shows no argument."""

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
    """The task of a call, and the bytes that it adds to a message."""
    data = dumped(call)
    if len(data) <= WITH_OTHERS:
        return (Sealed(call, data), *call.handles), len(data)
    pieces = send(cut(data))
    return (Sealed(call, b"", len(pieces)), *pieces, *call.handles), 0


def batch_graph(function: Callable[..., Any], batches: Batches, most: int, name: str, send: Send) -> tuple[Graph, bool]:
    """Up to so many batches, or a message of them, keyed by where each starts; whether they use handles up."""
    graph: Graph = {}
    held, handles = 0, False
    while batches.left and len(graph) < most and held < MOST_SENT:
        start, items = batches.take()
        batch = Batch(function, items)
        graph[name, start], size = sealed(batch, send)
        held, handles = held + size, handles or bool(batch.handles)
    return graph, handles


def call_graphs(function: Callable[..., Any], items: Sequence[tuple[Any, ...]], name: str, send: Send) -> list[Graph]:
    """A task for each item, in graphs of a message each."""
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
    """A result that has a message of its own."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def __repr__(self) -> str:
        return "result"


class Pieces(Alone):
    """A result that is fetched piece by piece."""


def large(result: Any) -> Any:
    """A result, or where it is large its pieces."""
    data = dumped(result)
    if len(data) <= ALONE:
        return result
    return Alone([data]) if len(data) <= MOST_SENT else Pieces(cut(data))


def deliveries(futures: Sequence[Any]) -> list[list[Any]]:
    """Futures that have ended, as their results are fetched: small ones together."""
    alone = [_is(future, Alone) or _is(future, Pieces) for future in futures]
    small = [future for future, own in zip(futures, alone, strict=True) if not own]
    together = [small[start : start + TOGETHER] for start in range(0, len(small), TOGETHER)]
    return together + [[future] for future, own in zip(futures, alone, strict=True) if own]


def fetched(futures: Sequence[Any], gather: Callable[[Sequence[Any]], list[Any]], ask: Callable[..., Any]) -> list[Any]:
    """The results of one delivery; `ask` has a task tell something of one of them."""
    if _is(futures[0], Pieces):
        return [joined(*(ask(_piece, futures[0], number) for number in range(ask(_count, futures[0]))))]
    return [joined(*result.pieces) if isinstance(result, Alone) else result for result in gather(futures)]


def _count(result: Alone) -> int:
    return len(result.pieces)


def _piece(result: Alone, number: int) -> bytes:
    return result.pieces[number]


def _is(future: Any, kind: type) -> bool:
    """By what its worker told of its type: the class, or its name."""
    return future.type is kind or future.type == f"{kind.__module__}.{kind.__name__}"
