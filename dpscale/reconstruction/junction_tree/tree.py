"""Triangulation and junction tree of measured sets: the cliques of a maximum-entropy model, and their number of cells.

Attributes that are measured together are neighbours. Eliminating an attribute joins its neighbours. The maximal cliques
of the resulting graph form a tree in which the attributes shared by two cliques are in every clique on the path between
them (Koller and Friedman, 2009, chapters 9 and 10). The order of elimination is greedy, by the better of two rules,
with ties by the domain's order: the same sets give the same tree in every process. Triangulations that iterate over
Python sets (pgmpy, networkx) differ between processes, and the next choice of an adaptive run depends on the
triangulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats

Neighbours = dict[str, set[str]]
Price = Callable[[Neighbours, str], tuple[float, float]]


@dataclass(frozen=True, eq=False)
class JunctionTree:
    """Cliques in an order in which each follows its parent.

    Components without common attributes are joined by empty separators.

    Attributes
    ----------
    sizes : mapping of str to int
        Number of cells of every attribute; defines the order of attributes in cliques.
    cliques : tuple of AttributeSet
    parents : tuple of int
        Index of the parent of each clique, smaller than its own; −1 for the root.
    """

    sizes: Mapping[str, int]
    cliques: tuple[AttributeSet, ...]
    parents: tuple[int, ...]

    @cached_property
    def separators(self) -> tuple[AttributeSet, ...]:
        """Attributes that each clique shares with its parent."""
        pairs = zip(self.cliques, self.parents, strict=True)
        return tuple(tuple(name for name in own if p >= 0 and name in self.cliques[p]) for own, p in pairs)

    @cached_property
    def cells(self) -> int:
        """Number of cells of all cliques together, the size of the model."""
        return sum(cells_of(self.sizes, clique) for clique in self.cliques)

    def shape(self, names: Sequence[str]) -> tuple[int, ...]:
        return tuple(self.sizes[name] for name in names)

    def smallest_clique(self, names: Iterable[str]) -> int:
        """Return the index of the smallest clique that contains these attributes; −1 if none does."""
        wanted = set(names)
        holding = [i for i, clique in enumerate(self.cliques) if wanted <= set(clique)]
        return min(holding, key=lambda i: cells_of(self.sizes, self.cliques[i]), default=-1)


def cells_of(sizes: Mapping[str, int], names: Iterable[str]) -> int:
    return math.prod(sizes[name] for name in names)


def junction_tree(sizes: Mapping[str, int], sets: Iterable[AttributeSet]) -> JunctionTree:
    """Return the junction tree of some sets; an attribute in no set is a clique by itself.

    Parameters
    ----------
    sizes : mapping of str to int
        Number of cells of each attribute.
    sets : iterable of AttributeSet
    """
    graph: Neighbours = {name: set() for name in sizes}
    for names in sets:
        for name in names:
            graph[name].update(other for other in names if other != name)

    # the smaller result of two orders of elimination
    eliminations = [_cliques(sizes, graph, price) for price in (_fill(sizes), _weight(sizes))]
    cliques = min(eliminations, key=lambda cliques: sum(cells_of(sizes, clique) for clique in cliques))
    return _spanning(sizes, cliques)


def model_cells(sizes: Mapping[str, int], sets: Iterable[AttributeSet]) -> int:
    """Return the number of cells of the cliques of some sets together."""
    return junction_tree(sizes, sets).cells


def _fill(sizes: Mapping[str, int]) -> Price:
    """Return a price: the cells of new neighbours' tables, then those of the clique."""

    def price(graph: Neighbours, name: str) -> tuple[float, float]:
        """Return the cells of the pairs that eliminating an attribute joins, and then those of its clique."""
        neighbours = sorted(graph[name])
        new = sum(
            sizes[a] * sizes[b] for i, a in enumerate(neighbours) for b in neighbours[i + 1 :] if b not in graph[a]
        )
        return new, cells_of(sizes, [name, *neighbours])

    return price


def _weight(sizes: Mapping[str, int]) -> Price:
    """Return a price: the cells of the clique."""
    return lambda graph, name: (cells_of(sizes, [name, *graph[name]]), 0)


def _cliques(sizes: Mapping[str, int], given: Neighbours, price: Price) -> list[AttributeSet]:
    """Return the maximal cliques of an elimination: attributes are removed, the one of least price first.

    An attribute and its neighbours are a clique; when it is removed, its neighbours are joined with each other.
    """
    graph = {name: set(neighbours) for name, neighbours in given.items()}
    maximal: list[frozenset[str]] = []
    prices = {name: price(graph, name) for name in graph}

    while graph:
        name = min(graph, key=prices.__getitem__)  # ties: the first in the domain's order
        neighbours = graph.pop(name)
        if not any({name, *neighbours} <= clique for clique in maximal):
            maximal.append(frozenset({name, *neighbours}))
        changed = set(neighbours)

        for neighbour in neighbours:
            graph[neighbour] |= neighbours - {neighbour}
            graph[neighbour].discard(name)
            changed |= graph[neighbour]

        prices.update({changed_name: price(graph, changed_name) for changed_name in changed})

    return [tuple(name for name in sizes if name in clique) for clique in maximal]


def _spanning(sizes: Mapping[str, int], cliques: Sequence[AttributeSet]) -> JunctionTree:
    """Return a tree of largest separators (Prim's algorithm), starting from the largest clique.

    A separator is the set of attributes that two cliques share. A tree of largest separators over the cliques of a
    triangulation has the running intersection property.
    """
    remaining = sorted(cliques, key=lambda clique: -cells_of(sizes, clique))
    ordered, parents = remaining[:1], [-1] if remaining else []
    # of each remaining clique, the size of its largest separator and the number of the clique in the tree
    nearest = [(len(set(clique) & set(ordered[0])), 0) for clique in remaining[1:]]
    remaining = remaining[1:]

    while remaining:
        best = max(range(len(remaining)), key=lambda i: (nearest[i][0], -i))
        chosen = remaining.pop(best)
        _, parent = nearest.pop(best)
        parents.append(parent)
        ordered.append(chosen)
        for i, other in enumerate(remaining):
            shared = len(set(chosen) & set(other))
            if shared > nearest[i][0]:
                nearest[i] = (shared, len(ordered) - 1)

    return JunctionTree(dict(sizes), tuple(ordered), tuple(parents))


def log_sum(table: Floats, axes: tuple[int, ...]) -> Floats:
    """Return log Σ exp over some axes.

    The largest entry is subtracted first, so that exponentials do not overflow.
    """
    if not axes:
        return table
    most = table.max(axis=axes, keepdims=True)
    return np.asarray(np.log(np.exp(table - most).sum(axis=axes)) + most.squeeze(axes))


def largest(table: Floats, axes: tuple[int, ...]) -> Floats:
    return np.asarray(table.max(axis=axes)) if axes else table


def others(names: AttributeSet, subset: Sequence[str]) -> tuple[int, ...]:
    """Return the axes of a table over `names` that are not among `subset`."""
    return tuple(axis for axis, name in enumerate(names) if name not in subset)


def aligned(table: Floats, names: AttributeSet, clique_names: AttributeSet) -> Floats:
    """Return a table over `names` with an axis of length one for every other attribute of `clique_names`."""
    sizes = dict(zip(names, table.shape, strict=True))
    return table.reshape([sizes.get(name, 1) for name in clique_names])


def assign_factors(
    tree: JunctionTree, factors: Mapping[AttributeSet, Floats], clique_numbers: Mapping[AttributeSet, int]
) -> list[Floats]:
    """Return the log-potential of every clique: the sum of the factors assigned to it."""
    tables = [np.zeros(tree.shape(clique)) for clique in tree.cliques]
    for names, table in factors.items():
        tables[clique_numbers[names]] += aligned(table, names, tree.cliques[clique_numbers[names]])
    return tables


def collect_messages(
    tree: JunctionTree, potentials: list[Floats], reduced: object = log_sum
) -> tuple[list[Floats], Floats]:
    """Return every clique's message to its parent, and log Z or the largest log-potential.

    `potentials` are updated in place; afterwards each includes all messages from its children.

    Children have larger indices than their parents, so a pass from the last clique to the first collects all messages.
    A message sums (or takes the maximum) over the attributes that the parent does not have; the root's has no axes.
    """
    reduce = largest if reduced is largest else log_sum
    messages: list[Floats] = [np.zeros(())] * len(potentials)
    for index in range(len(potentials) - 1, -1, -1):
        clique, parent, shared = tree.cliques[index], tree.parents[index], tree.separators[index]
        messages[index] = reduce(potentials[index], others(clique, shared))
        if parent >= 0:
            potentials[parent] += aligned(messages[index], shared, tree.cliques[parent])
    return messages, messages[0]


def calibrate_cliques(tree: JunctionTree, potentials: list[Floats]) -> tuple[list[Floats], float]:
    """Return the probabilities of every clique's cells, and log Z. `potentials` are overwritten.

    Cliques are processed after their parents, which send the probabilities of the separator divided by the message.

    After the first pass the root's table is its log-probability plus log Z. A child's table already has the factors
    below it, whose sum over its other attributes is its message, so log p(separator) − message completes it.
    """
    messages, total = collect_messages(tree, potentials)
    for index, clique in enumerate(tree.cliques):
        parent, shared = tree.parents[index], tree.separators[index]
        table = potentials[index]
        if parent < 0:
            table -= total
        else:  # the parent's table now contains probabilities
            has_parent = potentials[parent].sum(axis=others(tree.cliques[parent], shared))
            with np.errstate(divide="ignore"):
                table += aligned(np.log(has_parent) - messages[index], shared, clique)
        np.exp(table, out=table)

    return potentials, float(total)


Labelled = tuple[AttributeSet, Floats]


def over_tree(tree: JunctionTree, cliques: Sequence[Floats], wanted: AttributeSet) -> Floats:
    """Return the probabilities of `wanted`, one axis each in that order, from the probabilities of the cliques.

    Each clique contributes the probability of its relevant attributes given those shared with its parent; products are
    summed over attributes that neither `wanted` nor the parent needs.
    """
    where = {name: next(index for index, clique in enumerate(tree.cliques) if name in clique) for name in wanted}
    needed = _joining(tree, set(where.values()))
    messages: dict[int, list[Labelled]] = {index: [] for index in needed}

    for index in sorted(needed, reverse=True):
        has_parent = tree.parents[index] in needed
        shared = tree.separators[index] if has_parent else ()
        received = messages[index]
        table = _own(tree, cliques, index, shared, received, wanted)
        subset = {*wanted, *shared} & {name for names, _ in [*received, table] for name in names}
        message = _product([table, *received], tuple(name for name in tree.sizes if name in subset))
        if not has_parent:
            return message[1]
        messages[tree.parents[index]].append(message)

    raise AssertionError("a tree without a root")


def _joining(tree: JunctionTree, some: set[int]) -> set[int]:
    """Return the cliques on the paths between some cliques.

    Cliques above the lowest common ancestor (`top`, the common one with the largest index) are not needed.
    """
    paths = [_upwards(tree, index) for index in some]
    common = set.intersection(*map(set, paths))
    top = max(common)
    return {index for path in paths for index in path if index not in common} | {top}


def _upwards(tree: JunctionTree, index: int) -> list[int]:
    """Return a clique and all cliques above it, up to the root."""
    path = [index]
    while tree.parents[path[-1]] >= 0:
        path.append(tree.parents[path[-1]])
    return path


def _own(tree: JunctionTree, cliques: Sequence[Floats], index: int, shared: AttributeSet,
         received: Sequence[Labelled], wanted: AttributeSet) -> Labelled:  # fmt: skip
    """Return a clique's probabilities of the relevant attributes, given the attributes shared with the parent.

    `index` is the clique, `shared` the attributes that it has with its parent, `received` the tables of its children,
    and `wanted` the attributes of the result. Without shared attributes, probabilities are not conditional.
    """
    clique = tree.cliques[index]
    relevant = {*wanted, *shared, *(name for names, _ in received for name in names)}
    subset = tuple(name for name in clique if name in relevant)
    table = cliques[index].sum(axis=others(clique, subset))
    of_shared = table.sum(axis=others(subset, shared), keepdims=True)
    return subset, np.divide(table, of_shared, out=np.zeros_like(table), where=of_shared > 0) if shared else table


def _product(tables: Sequence[Labelled], subset: AttributeSet) -> Labelled:
    """Return the product of some tables, summed over all attributes except `subset`."""
    letters = {name: number for number, name in enumerate({name: None for names, _ in tables for name in names})}
    operands: list[object] = []
    for names, table in tables:
        operands += [table, [letters[name] for name in names]]
    table = np.einsum(*operands, [letters[name] for name in subset], optimize=len(tables) > 2)  # type: ignore[call-overload]
    return subset, np.asarray(table)
