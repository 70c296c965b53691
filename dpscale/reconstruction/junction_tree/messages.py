"""Sums over all cells of a junction tree, by messages between its cliques: in logarithms, a table at a time.

Collect from the leaves to the root, then distribute (Lauritzen and Spiegelhalter, 1988). With sums replaced by maxima
the same collecting finds the best cell there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.names import AttributeSet
from dpscale.reconstruction.junction_tree.tree import JunctionTree


def log_sum(table: Floats, axes: tuple[int, ...]) -> Floats:
    """log Σ exp over some axes."""
    if not axes:
        return table
    most = table.max(axis=axes, keepdims=True)
    return np.asarray(np.log(np.exp(table - most).sum(axis=axes)) + most.squeeze(axes))


def largest(table: Floats, axes: tuple[int, ...]) -> Floats:
    return np.asarray(table.max(axis=axes)) if axes else table


def others(names: AttributeSet, kept: Sequence[str]) -> tuple[int, ...]:
    """The axes of a table over `names` that are not among `kept`."""
    return tuple(axis for axis, name in enumerate(names) if name not in kept)


def aligned(table: Floats, names: AttributeSet, holder: AttributeSet) -> Floats:
    """A table over `names`, an axis of one cell for every other attribute of `holder`; both in the same order."""
    sizes = dict(zip(names, table.shape, strict=True))
    return table.reshape([sizes.get(name, 1) for name in holder])


def placed(
    tree: JunctionTree, factors: Mapping[AttributeSet, Floats], homes: Mapping[AttributeSet, int]
) -> list[Floats]:
    """The log-potential of every clique: the sum of the factors that live there."""
    tables = [np.zeros(tree.shape(clique)) for clique in tree.cliques]
    for names, table in factors.items():
        tables[homes[names]] += aligned(table, names, tree.cliques[homes[names]])
    return tables


def collected(tree: JunctionTree, potentials: list[Floats], reduced: object = log_sum) -> tuple[list[Floats], Floats]:
    """Every clique's message to its parent, and what all cells come to: log Z, or the largest log-potential.

    `potentials` are added to in place: after it each has all messages from below.
    """
    reduce = largest if reduced is largest else log_sum
    messages: list[Floats] = [np.zeros(())] * len(potentials)
    for index in range(len(potentials) - 1, -1, -1):
        clique, parent, shared = tree.cliques[index], tree.parents[index], tree.separators[index]
        messages[index] = reduce(potentials[index], others(clique, shared))
        if parent >= 0:
            potentials[parent] += aligned(messages[index], shared, tree.cliques[parent])
    return messages, messages[0]


def calibrated(tree: JunctionTree, potentials: list[Floats]) -> tuple[list[Floats], float]:
    """The probabilities of every clique's cells, and log Z. `potentials` are used up.

    A clique is asked for its probabilities after its parent; the separator's, over the message sent, come down.
    """
    messages, total = collected(tree, potentials)
    for index, clique in enumerate(tree.cliques):
        parent, shared = tree.parents[index], tree.separators[index]
        table = potentials[index]
        if parent < 0:
            table -= total
        else:  # the parent's table holds probabilities by now
            above = potentials[parent].sum(axis=others(tree.cliques[parent], shared))
            with np.errstate(divide="ignore"):
                table += aligned(np.log(above) - messages[index], shared, clique)
        np.exp(table, out=table)
    return potentials, float(total)
