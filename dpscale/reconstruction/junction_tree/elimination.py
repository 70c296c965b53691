"""Marginals of sets that no clique holds: along the part of the tree that joins their attributes, what is not asked
summed away as soon as nothing else needs it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.names import AttributeSet
from dpscale.reconstruction.junction_tree.messages import others
from dpscale.reconstruction.junction_tree.tree import JunctionTree

Labelled = tuple[AttributeSet, Floats]


def over_tree(tree: JunctionTree, cliques: Sequence[Floats], wanted: AttributeSet) -> Floats:
    """The probabilities of `wanted`, an axis each in that order. `cliques`: those of the cliques."""
    where = {name: _highest(tree, name) for name in wanted}
    needed = _joining(tree, set(where.values()))
    messages: dict[int, list[Labelled]] = {index: [] for index in needed}
    for index in sorted(needed, reverse=True):
        above = tree.parents[index] in needed
        shared = tree.separators[index] if above else ()
        arrived = messages[index]
        table = _own(tree, cliques, index, shared, arrived, wanted)
        kept = {*wanted, *shared} & {name for names, _ in [*arrived, table] for name in names}
        told = _product([table, *arrived], tuple(name for name in tree.sizes if name in kept))
        if not above:
            return told[1]
        messages[tree.parents[index]].append(told)
    raise AssertionError("a tree without a root")


def _highest(tree: JunctionTree, name: str) -> int:
    """The clique with an attribute that is nearest to the root."""
    return next(index for index, clique in enumerate(tree.cliques) if name in clique)


def _joining(tree: JunctionTree, some: set[int]) -> set[int]:
    """The cliques on the ways between some."""
    ways = [_upwards(tree, index) for index in some]
    common = set.intersection(*map(set, ways))
    top = max(common)
    return {index for way in ways for index in way if index not in common} | {top}


def _upwards(tree: JunctionTree, index: int) -> list[int]:
    way = [index]
    while tree.parents[way[-1]] >= 0:
        way.append(tree.parents[way[-1]])
    return way


def _own(tree: JunctionTree, cliques: Sequence[Floats], index: int, shared: AttributeSet,
         arrived: Sequence[Labelled], wanted: AttributeSet) -> Labelled:  # fmt: skip
    """A clique's probabilities, given what it shares with the one above, of the attributes that matter."""
    clique = tree.cliques[index]
    matter = {*wanted, *shared, *(name for names, _ in arrived for name in names)}
    kept = tuple(name for name in clique if name in matter)
    table = cliques[index].sum(axis=others(clique, kept))
    below = table.sum(axis=others(kept, shared), keepdims=True)
    return kept, np.divide(table, below, out=np.zeros_like(table), where=below > 0) if shared else table


def _product(tables: Sequence[Labelled], kept: AttributeSet) -> Labelled:
    """The product of some tables, summed over all attributes but those kept."""
    letters = {name: number for number, name in enumerate({name: None for names, _ in tables for name in names})}
    asked: list[object] = []
    for names, table in tables:
        asked += [table, [letters[name] for name in names]]
    return kept, np.einsum(*asked, [letters[name] for name in kept], optimize=len(tables) > 2)  # type: ignore[call-overload, no-any-return]
