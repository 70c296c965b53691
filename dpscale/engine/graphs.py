"""Task graphs of function calls and of tree sums. Keys contain a name and numbers, never an argument.

The tree has the same shape on every engine, so sums of floating-point numbers are the same bytes too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.engine.waiting import Discreet

Graph = dict[Any, Any]
Named = Callable[[str], str]
FAN_IN = 8


def calls(function: Callable[..., Any], items: Sequence[tuple[Any, ...]], name: str) -> Graph:
    """Return a graph with one call for each item."""
    discreet = Discreet(function)
    return {(name, i): (discreet, *map(literal, item)) for i, item in enumerate(items)}


def exchanges(
    take: Callable[..., Any], kept: Sequence[Any], join: Callable[..., Any], numbers: Sequence[int], named: Named
) -> tuple[Graph, list[Any]]:
    """Return the graph of join([take(handle, number) for all handles]) for all numbers, and the keys of the joins."""
    graph, taking, joining = Graph(), Discreet(take), Discreet(_Joining(join))
    for number in numbers:
        parts = [(named("take"), number, i) for i in range(len(kept))]
        graph |= {part: (taking, one, number) for part, one in zip(parts, kept, strict=True)}
        graph[named("join"), number] = (joining, *parts)
    return graph, [(named("join"), number) for number in numbers]


class _Joining:
    """Function of a list as a function of its items."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *parts: Any) -> Any:
        return self.function(parts)


def sums(
    function: Callable[..., Any], items: Sequence[tuple[Any, ...]], pieces: Sequence[range], named: Named,
    apart: bool = False,
) -> tuple[Graph, list[Any], list[Any]]:  # fmt: skip
    """Return the graph that sums lists of arrays, the keys of the calls, and the key of the sum of each part.

    The same tasks sum the parts of one piece; more pieces mean more tasks, each of which fetches less. With `apart`,
    each call has one piece, in the order of the calls, and nothing is summed.
    """
    graph = calls(function, items, named(""))
    called, roots = list(graph), []
    for number, piece in enumerate(pieces):
        if apart:
            total, before = called[number], piece.start
        elif len(called) == 1:
            total, before = called[0], 0
        else:
            total, before = _summed(graph, called, piece, number, named, len(pieces) > 1)
        graph |= {(named("part"), part): (TAKE, total, part - before) for part in piece}
        roots += [(named("part"), part) for part in piece]
    return graph, called, roots


def _summed(graph: Graph, called: list[Any], piece: range, number: int, named: Named, cut: bool) -> tuple[Any, int]:
    """Add the sum of a piece to the graph; return its key and the number of its first part."""
    if not cut:
        return _tree(graph, called, (named("sum"), number)), 0
    taken = [(named("take"), i, number) for i in range(len(called))]
    graph |= {key: (SLICE, whole, piece.start, piece.stop) for key, whole in zip(taken, called, strict=True)}
    return _tree(graph, taken, (named("sum"), number)), piece.start


def pieces_of(parts: int, pieces: int) -> list[range]:
    """Divide `parts` parts into at most `pieces` non-empty ranges of similar length."""
    cuts = [parts * number // pieces for number in range(pieces + 1)]
    return [range(first, end) for first, end in pairwise(cuts) if end > first]


def _tree(graph: Graph, level: list[Any], name: tuple[Any, ...]) -> Any:
    """Add a tree of sums over the keys to the graph; return the key of its root."""
    depth = 0
    while len(level) > 1:
        groups = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
        level = []
        for i, group in enumerate(groups):
            graph[(*name, depth, i)] = (TOTALS, *group)
            level.append((*name, depth, i))
        depth += 1
    return level[0]


def is_handle(value: Any) -> bool:
    """Return whether a value represents a result on a cluster."""
    return type(value).__module__.startswith("distributed")


def literal(value: Any) -> Any:
    """Return an argument that Dask does not interpret as a key or a task; handles are returned as they are."""
    return value if is_handle(value) else (_Literal(value),)


class _Literal:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
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


def _part(results: Sequence[Any], part: int) -> Any:
    return results[part]


def _slice(results: Sequence[Any], first: int, end: int) -> Sequence[Any]:
    return results[first:end]


def summed(*lists: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the element-wise sums of lists of arrays; sums of 32-bit partial counts have 64 bits."""
    return [_sum(arrays) for arrays in zip(*lists, strict=True)]


def _sum(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    first, *others = arrays
    if not others:
        return first
    total = np.add(first, others[0], dtype=np.int64 if first.dtype.kind == "i" else None)
    for array in others[1:]:
        total += array
    return np.asarray(total)


TAKE, SLICE, TOTALS = Discreet(_part), Discreet(_slice), Discreet(summed)
