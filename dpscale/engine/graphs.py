"""Task graphs: calls of one function, and their sums over a tree. Keys hold a name and numbers, never an argument.

The tree has the same shape on every engine, so that sums of floats too are the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from dpscale.engine.discretion import Discreet

Graph = dict[Any, Any]
Named = Callable[[str], str]
FAN_IN = 8


def calls(function: Callable[..., Any], items: Sequence[tuple[Any, ...]], name: str) -> Graph:
    """A task for each item."""
    discreet = Discreet(function)
    return {(name, i): (discreet, *map(literal, item)) for i, item in enumerate(items)}


def exchanges(
    take: Callable[..., Any], kept: Sequence[Any], join: Callable[..., Any], numbers: Sequence[int], named: Named
) -> tuple[Graph, list[Any]]:
    """The graph of join([take(one, number) for one in kept]), a task for each part; the keys of the joins."""
    graph, taking, joining = Graph(), Discreet(take), Discreet(_Joining(join))
    for number in numbers:
        parts = [(named("take"), number, i) for i in range(len(kept))]
        graph |= {part: (taking, one, number) for part, one in zip(parts, kept, strict=True)}
        graph[named("join"), number] = (joining, *parts)
    return graph, [(named("join"), number) for number in numbers]


class _Joining:
    """A function of a list as one of its items."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *parts: Any) -> Any:
        return self.function(parts)


def sums(
    function: Callable[..., Any], items: Sequence[tuple[Any, ...]], parts: int, named: Named, whole: bool = False
) -> tuple[Graph, list[Any], list[Any]]:
    """The graph that sums lists of `parts` arrays; the keys of the calls, and of the sums.

    Each part is summed by tasks of its own, or, with `whole`, all parts by the same: about `parts` times fewer tasks.
    """
    graph = calls(function, items, named(""))
    called, roots = list(graph), []
    if whole:
        total = _tree(graph, called, (named("sum"),), TOTALS)
        graph |= {(named("part"), part): (TAKE, total, part) for part in range(parts)}
        return graph, called, [(named("part"), part) for part in range(parts)]
    for part in range(parts):
        level: list[Any] = []
        for i, key in enumerate(called):
            graph[named("part"), i, part] = (TAKE, key, part)
            level.append((named("part"), i, part))
        roots.append(_tree(graph, level, (named("sum"), part), TOTAL))
    return graph, called, roots


def _tree(graph: Graph, level: list[Any], name: tuple[Any, ...], total: Discreet) -> Any:
    """Add a tree of sums over the keys to the graph; its root."""
    depth = 0
    while len(level) > 1:
        groups = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
        level = []
        for i, group in enumerate(groups):
            graph[(*name, depth, i)] = (total, *group)
            level.append((*name, depth, i))
        depth += 1
    return level[0]


def is_handle(value: Any) -> bool:
    """Whether a value stands for a result that a cluster holds."""
    return type(value).__module__.startswith("distributed")


def literal(value: Any) -> Any:
    """An argument that Dask must not read as a key or a task; handles pass as they are."""
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
    """What Dask takes for the hash of an argument. It would read all of it, for nothing: keys are ours and new."""
    return f"dpscale-{os.getpid()}-{next(_numbers)}"


_numbers = count()


def _part(results: Sequence[Any], part: int) -> Any:
    return results[part]


def _sum(*arrays: Any) -> Any:
    """None stands for what a call has nothing of: where one call alone has it, the sum is its array and no copy."""
    total, *others = [array for array in arrays if array is not None] or [None]
    for array in others:
        total = total + array
    return total


def _sums(*lists: Sequence[Any]) -> list[Any]:
    return [_sum(*arrays) for arrays in zip(*lists, strict=True)]


TAKE, TOTAL, TOTALS = Discreet(_part), Discreet(_sum), Discreet(_sums)
