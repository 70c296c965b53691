"""Hierarchies of attributes, and their trees: each cell of a level is in one cell of the level above.

The levels of a public tree (`dpscale.domain.tree`) are a hierarchy. So are an attribute and its parents if their groups
are nested, as towns, regions and countries. If they are not, the longest nested chain is the hierarchy.

Level 0 of a tree is the root, which is all cells, and level L the leaves. The matrix A_l has a row for each node of
level l, with ones at its leaves. It is never built: `sums` computes A_l x for all levels from the leaves upwards, and
`lift` computes A_lᵀ y.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from dpscale.base.display import nearest
from dpscale.base.errors import DomainError
from dpscale.base.numerics import AttributeSet, Floats, Integers, NDArray
from dpscale.domain.attribute import Attribute
from dpscale.domain.rules import follows


@dataclass(frozen=True, eq=False)
class Tree:
    """Tree with all leaves at the same depth.

    Attributes
    ----------
    parents : tuple of ndarray of int64
        For each level below the root, the parent of every node; every node above the leaves has a child.
    """

    parents: tuple[Integers, ...]

    def __post_init__(self) -> None:
        """Raise ValueError unless the levels fit together."""
        size = 1
        for parent in self.parents:
            if (
                parent.dtype != np.int64
                or parent.ndim != 1
                or not len(parent)
                or int(parent.min()) < 0
                or int(parent.max()) >= size
            ):
                raise ValueError("the parents of a tree are not nodes of the level above")
            if np.bincount(parent, minlength=size).min() == 0:
                raise ValueError("a node above the leaves of a tree has no child")
            size = len(parent)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields alone; everything else follows from them."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    @property
    def depth(self) -> int:
        """Number of levels below the root."""
        return len(self.parents)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of nodes of each level, from the root."""
        return (1, *map(len, self.parents))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the parents, in hexadecimal."""
        content = b"".join(np.ascontiguousarray(parent, "<i8").tobytes() for parent in self.parents)
        return hashlib.sha256(str(self.sizes).encode() + content).hexdigest()

    @cached_property
    def _segments(self) -> tuple[tuple[Integers | None, Integers], ...]:
        """For each level below the root: the order of its nodes by parent, if not sorted, and the start of each run.

        `sizes` are the numbers of nodes by level and `parents` the parent of each node of the next level. A pair is
        (order or None, starts), where the children of node i begin at starts[i] in this order.
        """
        segments = []
        for size, parent in zip(self.sizes, self.parents, strict=False):
            order = None if bool((np.diff(parent) >= 0).all()) else np.argsort(parent, kind="stable")
            counts = np.bincount(parent, minlength=size)
            segments.append((order, np.cumsum(counts) - counts))
        return tuple(segments)

    def sum_children(self, values: NDArray[Any], level: int) -> NDArray[Any]:
        """Return the sums of the values of level + 1, shape (nodes, …), over the children of each node of a level."""
        order, starts = self._segments[level]
        return np.asarray(np.add.reduceat(values if order is None else values[order], starts, axis=0))

    def sums(self, leaves: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the values of the nodes of every level, root first, from those of the leaves, shape (leaves, …)."""
        values = [leaves]
        for level in range(self.depth - 1, -1, -1):
            values.append(self.sum_children(values[-1], level))
        return values[::-1]

    @cached_property
    def child_counts(self) -> tuple[Integers, ...]:
        """Number of children of the nodes of every level above the leaves."""
        return tuple(
            np.bincount(parent, minlength=size) for size, parent in zip(self.sizes, self.parents, strict=False)
        )

    def children_of(self, nodes: Integers, level: int) -> Integers:
        """Return the children, in level + 1, of some nodes of a level, those of one node after those of another.

        `_segments` has the order of the children by parent, or None if they are sorted, and the start of each parent's
        run. `places` are positions in this order.
        """
        order, starts = self._segments[level]
        counts = self.child_counts[level][nodes]
        ends = np.cumsum(counts)
        places = np.repeat(starts[nodes] - (ends - counts), counts) + np.arange(int(counts.sum()))
        return places if order is None else order[places]

    def ancestors(self, upper: int, lower: int | None = None) -> Integers:
        """Return the node of a level that contains each node of a lower one, by default each leaf.

        `parents[l]` has the node of level l that contains each node of level l + 1. Without `lower`, levels down to the
        leaves are passed.
        """
        nodes: Integers = np.arange(self.sizes[upper])
        for parent in self.parents[upper:lower]:
            nodes = nodes[parent]
        return nodes

    def sum_to(self, values: NDArray[Any], upper: int, lower: int | None = None) -> NDArray[Any]:
        """Return the sums of the values of a level, by default the leaves, over the nodes of a level above it."""
        for level in range((self.depth if lower is None else lower) - 1, upper - 1, -1):
            values = self.sum_children(values, level)
        return values

    def lift(self, values: Sequence[Floats]) -> Floats:
        """Return Σ A_lᵀ y_l: for each leaf the sum of the values of the nodes that contain it.

        `values` has an array y_l for each level, root first; A_l is the matrix of sums of leaves into nodes of level l.
        """
        total = np.asarray(values[0])
        for parent, level in zip(self.parents, values[1:], strict=True):
            total = total[parent] + level
        return total

    @cached_property
    def leaf_counts(self) -> list[Integers]:
        """Number of leaves below the nodes of every level."""
        return self.sums(np.ones(self.sizes[-1], np.int64))

    def above(self, depth: int) -> Tree:
        """Return the tree whose leaves are the nodes of a level."""
        return Tree(self.parents[:depth])


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Attributes whose cells are nested.

    Cells include those for outside values and nulls, which are in the corresponding cells of the levels above. Every
    cell of every level contains at least one leaf.

    Parameters
    ----------
    names : tuple of str
        Names of the attributes, the top first and the leaf last; two or more.
    tree : Tree
        Tree of the cells; its level i + 1 has the cells of `names[i]`.
    """

    names: tuple[str, ...]
    tree: Tree

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
        return self.tree.sizes[1:]

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

    def ancestors(self, upper: str, lower: str = "") -> Integers:
        """Return the cell of a level for every cell of a lower one, by default the leaves, shape (cells,)."""
        return self.tree.ancestors(self.position(upper) + 1, self.position(lower or self.leaf) + 1)


class LeveledDomain(Protocol):
    """Attributes, of which some are levels of hierarchies."""

    def shape(self, names: Sequence[str], /) -> tuple[int, ...]: ...
    def hierarchy_of(self, name: str, /) -> Hierarchy | None: ...


def level_axes(
    domain: LeveledDomain, names: AttributeSet, wanted: Sequence[str]
) -> tuple[list[int], list[Integers]] | None:
    """Return the axis of a table for each attribute of a margin, and the attribute's cell for each cell of the axis.

    Parameters
    ----------
    domain : Domain
    names : AttributeSet
        Attributes of the table.
    wanted : sequence of str
        Attributes of the margin: each is one of `names`, or a level above one.

    Returns
    -------
    (list of int, list of ndarray of int64) or None
        None if the margin is not one of the table.
    """
    shape, axes, levels = domain.shape(names), list[int](), list[Integers]()
    for name in wanted:
        hierarchy = domain.hierarchy_of(name)
        below = (name,) if hierarchy is None else hierarchy.names[hierarchy.position(name) :]
        lower = name if name in names else next((level for level in reversed(below) if level in names), None)
        if lower is None:
            return None
        axes.append(names.index(lower))
        levels.append(np.arange(shape[axes[-1]]) if hierarchy is None else hierarchy.ancestors(name, lower))
    return (axes, levels) if len(set(axes)) == len(axes) else None


def margin_cells(shape: Sequence[int], axes: Sequence[int], levels: Sequence[Integers] = ()) -> Integers:
    """Return for each cell of a table its cell of a margin, both row-major.

    Parameters
    ----------
    shape : sequence of int
        Cells of each axis of the table.
    axes : sequence of int
        Axes of the margin.
    levels : sequence of ndarray of int64, optional
        If the margin is over levels above its axes, the cell of the level for each cell of an axis; every cell of a
        level has one below.
    """
    total = np.zeros([1] * len(shape), np.int64)
    for axis, cells in zip(axes, levels or [np.arange(shape[axis]) for axis in axes], strict=True):
        total = total * (int(cells.max()) + 1) + cells.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.ascontiguousarray(np.broadcast_to(total, shape)).reshape(-1)


def hierarchies_of(attributes: Sequence[Attribute]) -> tuple[Hierarchy, ...]:
    """Return the hierarchies of some attributes, in the order of their leaves.

    `above[name]` has the attributes that an attribute determines, each with the cell of the parent for every cell;
    `inner` are levels that are no leaves.

    Parameters
    ----------
    attributes : sequence of Attribute

    Returns
    -------
    tuple of Hierarchy
    """
    sizes = {attribute.name: attribute.size for attribute in attributes}
    levels = {attribute.name: attribute.level.level for attribute in attributes if attribute.level is not None}
    inner = {attribute.name for attribute in attributes if attribute.level is not None and not attribute.level.is_leaf}
    above: dict[str, dict[str, Integers]] = {name: {} for name in sizes}

    for rule in follows(attributes):
        if rule.determinant not in inner and rule.whole and _fills(rule.of, sizes[rule.dependent]):
            above[rule.determinant][rule.dependent] = rule.of
    return tuple(_nested(leaf, parents, sizes, levels) for leaf, parents in above.items() if parents)


def _fills(cells: Integers, size: int) -> bool:
    return bool((np.bincount(cells, minlength=size) > 0).all())


def _nested(leaf: str, above: Mapping[str, Integers], sizes: Mapping[str, int], levels: Mapping[str, int]) -> Hierarchy:
    """Return the longest chain of nested partitions of the cells of a leaf attribute.

    `above` has the cell of each leaf cell in attributes that depend on it. Levels of a tree stay in their order, also
    if they have the same number of cells.

    A chain starts at the finest partition and continues with coarser ones, each a union of cells of the one before;
    `chains` has the longest that ends at each attribute. `sizes` are numbers of cells, `levels` those in a public tree.
    """
    finest = sorted(above, key=lambda name: (-levels.get(name, 0), -sizes[name]))
    chains: dict[str, tuple[str, ...]] = {}
    for name in finest:
        below = [chains[chain] for chain in chains if _is_within(above[chain], above[name])]
        chains[name] = (*max(below, key=len, default=()), name)

    names = max(chains.values(), key=len)[::-1]
    root = np.zeros(sizes[leaf], np.int64)
    cells = [root, *(np.asarray(above[name], np.int64) for name in names), np.arange(sizes[leaf])]
    return Hierarchy((*names, leaf), Tree(tuple(_parents(upper, lower) for upper, lower in pairwise(cells))))


def _is_within(lower: Integers, upper: Integers) -> bool:
    """Return whether every cell of one partition is in one cell of the other."""
    return bool((_parents(upper, lower)[lower] == upper).all())


def _parents(upper: Integers, lower: Integers) -> Integers:
    """Return the cell of the upper level for every cell of the lower one, from both cells of every leaf."""
    parents = np.empty(int(lower.max()) + 1, np.int64)
    parents[lower] = upper
    return parents
