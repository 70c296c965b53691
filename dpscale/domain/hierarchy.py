"""Hierarchies of attributes: each cell of a level is in one cell of the level above.

The levels of a public tree (`dpscale.domain.tree`) are a hierarchy. So are an attribute and its parents if their groups
are nested, as towns, regions and countries. If they are not, the longest nested chain is the hierarchy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpscale.base.display import nearest
from dpscale.base.errors import DomainError
from dpscale.base.numerics import Integers
from dpscale.domain.attribute import Attribute
from dpscale.domain.structural_zeros import follows


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Attributes whose cells are nested.

    Cells include those for outside values and nulls, which are in the corresponding cells of the levels above. Every
    cell of every level contains at least one leaf.

    Parameters
    ----------
    names : tuple of str
        Names of the attributes, the top first and the leaf last; two or more.
    parents : tuple of ndarray of int64
        `parents[i][c]` is the cell of `names[i]` that contains cell c of `names[i + 1]`.
    """

    names: tuple[str, ...]
    parents: tuple[Integers, ...]

    @property
    def leaf(self) -> str:
        """Name of the attribute of the leaves."""
        return self.names[-1]

    @property
    def depth(self) -> int:
        """Number of levels, with that of the leaves."""
        return len(self.names)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of cells of each level, the top first."""
        return (int(self.parents[0].max()) + 1, *map(len, self.parents))

    def position(self, name: str) -> int:
        """Return the place of a level in `names`.

        Raises
        ------
        DomainError
            If it is not a level.
        """
        if name not in self.names:
            raise DomainError("hierarchy", f"no level {name!r}", ", ".join(self.names), nearest(name, self.names))
        return self.names.index(name)

    def ancestors(self, name: str) -> Integers:
        """Return the cell of a level for every cell of the leaves, shape (leaves,)."""
        found = np.arange(len(self.parents[-1]))
        for parent in reversed(self.parents[self.position(name) :]):
            found = parent[found]
        return found


def hierarchies_of(attributes: Sequence[Attribute]) -> tuple[Hierarchy, ...]:
    """Return the hierarchies of some attributes, in the order of their leaves.

    Parameters
    ----------
    attributes : sequence of Attribute

    Returns
    -------
    tuple of Hierarchy
    """
    sizes = {one.name: one.size for one in attributes}
    levels = {one.name: one.level.level for one in attributes if one.level is not None}
    inner = {one.name for one in attributes if one.level is not None and not one.level.is_leaf}
    above: dict[str, dict[str, Integers]] = {name: {} for name in sizes}
    for rule in follows(attributes):
        if rule.determinant not in inner and rule.whole and _fills(rule.of, sizes[rule.dependent]):
            above[rule.determinant][rule.dependent] = rule.of
    return tuple(_nested(leaf, found, sizes, levels) for leaf, found in above.items() if found)


def _fills(cells: Integers, size: int) -> bool:
    return bool((np.bincount(cells, minlength=size) > 0).all())


def _nested(leaf: str, above: Mapping[str, Integers], sizes: Mapping[str, int], levels: Mapping[str, int]) -> Hierarchy:
    """Return the longest chain of nested partitions of the cells of a leaf attribute.

    `above` has the cell of each leaf cell in attributes that depend on it. Levels of a tree stay in their order, also
    if they have the same number of cells.
    """
    finest = sorted(above, key=lambda name: (-levels.get(name, 0), -sizes[name]))
    chains: dict[str, tuple[str, ...]] = {}
    for name in finest:
        below = [chains[one] for one in chains if _is_within(above[one], above[name])]
        chains[name] = (*max(below, key=len, default=()), name)
    names = max(chains.values(), key=len)[::-1]
    cells = [*(above[name] for name in names), np.arange(sizes[leaf])]
    parents = [_parents(upper, lower) for upper, lower in pairwise(cells)]
    return Hierarchy((*names, leaf), tuple(parents))


def _is_within(lower: Integers, upper: Integers) -> bool:
    """Return whether every cell of one partition is in one cell of the other."""
    return bool((_parents(upper, lower)[lower] == upper).all())


def _parents(upper: Integers, lower: Integers) -> Integers:
    """Return the cell of the upper level for every cell of the lower one, from both cells of every leaf."""
    found = np.empty(int(lower.max()) + 1, np.int64)
    found[lower] = upper
    return found
