"""Triangulation and junction tree of measured sets: which cliques a model of largest entropy needs, and how many cells.

Attributes that are measured together are neighbours. Eliminating one after the other joins the neighbours of each; the
cliques that so arise, the largest alone, form a tree in which what two of them share lies on the whole way between them
(Koller and Friedman, 2009, chapters 9 and 10). The order of elimination is greedy, by two rules of which the better
stays, and ties go by the domain's order: the same sets give the same tree in every process. Triangulations that walk
Python's sets (pgmpy's, networkx's) give another in each, and what an adaptive run may choose next depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dpscale.base.names import AttributeSet

Neighbours = dict[str, set[str]]
Price = Callable[[Neighbours, str], tuple[float, float]]


@dataclass(frozen=True, eq=False)
class JunctionTree:
    """Cliques, each after its parent: `parents[i]` < i is the index of clique i's (−1: the root's).

    `sizes`: cells of every attribute, in the order that cliques have theirs in. Parts that share no attribute hang
    together by empty separators.
    """

    sizes: Mapping[str, int]
    cliques: tuple[AttributeSet, ...]
    parents: tuple[int, ...]

    @cached_property
    def separators(self) -> tuple[AttributeSet, ...]:
        """What every clique shares with its parent."""
        pairs = zip(self.cliques, self.parents, strict=True)
        return tuple(tuple(name for name in own if p >= 0 and name in self.cliques[p]) for own, p in pairs)

    @cached_property
    def cells(self) -> int:
        """Of all cliques together: the size of the model."""
        return sum(cells_of(self.sizes, clique) for clique in self.cliques)

    def shape(self, names: Sequence[str]) -> tuple[int, ...]:
        return tuple(self.sizes[name] for name in names)

    def home(self, names: Iterable[str]) -> int:
        """The index of the smallest clique that holds some attributes; −1 where none does."""
        wanted = set(names)
        holding = [i for i, clique in enumerate(self.cliques) if wanted <= set(clique)]
        return min(holding, key=lambda i: cells_of(self.sizes, self.cliques[i]), default=-1)


def cells_of(sizes: Mapping[str, int], names: Iterable[str]) -> int:
    return math.prod(sizes[name] for name in names)


def junction_tree(sizes: Mapping[str, int], sets: Iterable[AttributeSet]) -> JunctionTree:
    """The tree of some sets over attributes of so many cells each. An attribute in no set is a clique of its own."""
    graph: Neighbours = {name: set() for name in sizes}
    for names in sets:
        for name in names:
            graph[name].update(other for other in names if other != name)
    found = min((_cliques(sizes, graph, price) for price in (_fill(sizes), _weight(sizes))),
                key=lambda cliques: sum(cells_of(sizes, one) for one in cliques))  # fmt: skip
    return _spanning(sizes, found)


def model_cells(sizes: Mapping[str, int], sets: Iterable[AttributeSet]) -> int:
    """How many cells the cliques of some sets have together."""
    return junction_tree(sizes, sets).cells


def _fill(sizes: Mapping[str, int]) -> Price:
    """By the cells that new neighbours would have in common, then by those of the clique."""

    def price(graph: Neighbours, name: str) -> tuple[float, float]:
        around = sorted(graph[name])
        new = sum(sizes[a] * sizes[b] for i, a in enumerate(around) for b in around[i + 1 :] if b not in graph[a])
        return new, cells_of(sizes, [name, *around])

    return price


def _weight(sizes: Mapping[str, int]) -> Price:
    """By the cells of the clique."""
    return lambda graph, name: (cells_of(sizes, [name, *graph[name]]), 0)


def _cliques(sizes: Mapping[str, int], given: Neighbours, price: Price) -> list[AttributeSet]:
    """The largest cliques that an elimination makes."""
    graph = {name: set(around) for name, around in given.items()}
    made: list[frozenset[str]] = []
    prices = {name: price(graph, name) for name in graph}
    while graph:
        name = min(graph, key=prices.__getitem__)  # the first of equals, in the domain's order
        around = graph.pop(name)
        if not any({name, *around} <= clique for clique in made):
            made.append(frozenset({name, *around}))
        near = set(around)
        for one in around:
            graph[one] |= around - {one}
            graph[one].discard(name)
            near |= graph[one]
        prices.update({one: price(graph, one) for one in near})
    return [tuple(name for name in sizes if name in clique) for clique in made]


def _spanning(sizes: Mapping[str, int], cliques: Sequence[AttributeSet]) -> JunctionTree:
    """A tree of largest separators (Prim's), from the largest clique on."""
    left = sorted(cliques, key=lambda clique: -cells_of(sizes, clique))
    taken, parents = left[:1], [-1] if left else []
    nearest = [(len(set(one) & set(taken[0])), 0) for one in left[1:]]
    left = left[1:]
    while left:
        best = max(range(len(left)), key=lambda i: (nearest[i][0], -i))
        one = left.pop(best)
        parents.append(nearest.pop(best)[1])
        taken.append(one)
        for i, other in enumerate(left):
            if (shared := len(set(one) & set(other))) > nearest[i][0]:
                nearest[i] = (shared, len(taken) - 1)
    return JunctionTree(dict(sizes), tuple(taken), tuple(parents))
