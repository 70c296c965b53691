"""Task graphs of function calls and of tree sums. Keys contain a name and numbers, never an argument.

The tree has the same shape on every engine, so sums of floating-point numbers are the same bytes too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpscale.engine.watch import RedactedCall

Value = TypeVar("Value")
Graph = dict[Any, Any]
KeyName = Callable[[str], str]
FAN_IN = 8  # lists of arrays that one task sums


def call_graph(function: Callable[..., Any], items: Sequence[tuple[Any, ...]], name: str) -> Graph:
    """Return a graph with one call for each item."""
    call = RedactedCall(function)
    return {(name, i): (call, *map(literal, item)) for i, item in enumerate(items)}


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

    The same tasks sum the parts of one piece; more pieces mean more tasks, each of which fetches less. With `disjoint`,
    each call has one piece, in the order of the calls, and nothing is summed.

    A piece is a range of parts. `total` is the key of a list of arrays that begins with part `before`; the node of a
    part takes its array out of this list.
    """
    graph = call_graph(function, items, key_name(""))
    call_keys, roots = list(graph), []
    for number, piece in enumerate(pieces):
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
    slices = [(key_name("take"), i, number) for i in range(len(call_keys))]
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
        groups = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
        level = []
        for i, group in enumerate(groups):
            graph[(*name, depth, i)] = (TOTALS, *group)
            level.append((*name, depth, i))
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
