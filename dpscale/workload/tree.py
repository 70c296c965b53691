"""Tree over the cells of an axis: levels of nested partitions, from the root, which is all cells, to the leaves.

Level 0 is the root and level L the leaves; every cell of level l + 1 lies in one cell of level l. The matrix A_l has a
row for each node of level l, with ones at its leaves. It is never built: `sums` computes A_l x for all levels from the
leaves upwards, and `lift` computes A_lᵀ y.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dpscale.base.numerics import Floats, Integers, NDArray
from dpscale.domain import Hierarchy


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
        for own in self.parents:
            if own.dtype != np.int64 or own.ndim != 1 or not len(own) or int(own.min()) < 0 or int(own.max()) >= size:
                raise ValueError("the parents of a tree are not nodes of the level above")
            if np.bincount(own, minlength=size).min() == 0:
                raise ValueError("a node above the leaves of a tree has no child")
            size = len(own)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parents alone; everything else follows from them."""
        return Tree, (self.parents,)

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
        content = b"".join(np.ascontiguousarray(own, "<i8").tobytes() for own in self.parents)
        return hashlib.sha256(str(self.sizes).encode() + content).hexdigest()

    @cached_property
    def _segments(self) -> tuple[tuple[Integers | None, Integers], ...]:
        """For each level below the root: the order of its nodes by parent, if not sorted, and the start of each run."""
        found = []
        for size, own in zip(self.sizes, self.parents, strict=False):
            order = None if bool((np.diff(own) >= 0).all()) else np.argsort(own, kind="stable")
            counts = np.bincount(own, minlength=size)
            found.append((order, np.cumsum(counts) - counts))
        return tuple(found)

    def sum_children(self, values: NDArray[Any], level: int) -> NDArray[Any]:
        """Return the sums of the values of level + 1, shape (nodes, …), over the children of each node of a level."""
        order, starts = self._segments[level]
        return np.asarray(np.add.reduceat(values if order is None else values[order], starts, axis=0))

    def sums(self, leaves: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the values of the nodes of every level, root first, from those of the leaves, shape (leaves, …)."""
        found = [leaves]
        for level in range(self.depth - 1, -1, -1):
            found.append(self.sum_children(found[-1], level))
        return found[::-1]

    @cached_property
    def child_counts(self) -> tuple[Integers, ...]:
        """Number of children of the nodes of every level above the leaves."""
        return tuple(np.bincount(own, minlength=size) for size, own in zip(self.sizes, self.parents, strict=False))

    def children_of(self, nodes: Integers, level: int) -> Integers:
        """Return the children, in level + 1, of some nodes of a level, those of one node after those of another."""
        order, starts = self._segments[level]
        counts = self.child_counts[level][nodes]
        ends = np.cumsum(counts)
        found = np.repeat(starts[nodes] - (ends - counts), counts) + np.arange(int(counts.sum()))
        return found if order is None else order[found]

    def ancestors(self, level: int) -> Integers:
        """Return the node of a level that contains each leaf."""
        nodes: Integers = np.arange(self.sizes[level])
        for own in self.parents[level:]:
            nodes = nodes[own]
        return nodes

    def lift(self, values: Sequence[Floats]) -> Floats:
        """Return Σ A_lᵀ y_l: for each leaf the sum of the values of the nodes that contain it."""
        total = np.asarray(values[0])
        for own, level in zip(self.parents, values[1:], strict=True):
            total = total[own] + level
        return total

    @cached_property
    def leaf_counts(self) -> list[Integers]:
        """Number of leaves below the nodes of every level."""
        return self.sums(np.ones(self.sizes[-1], np.int64))

    def profile(self, level: int) -> Floats:
        """Return the share of the leaves that lie below each node of a level."""
        return np.asarray(self.leaf_counts[level] / self.sizes[-1])

    def above(self, depth: int) -> Tree:
        """Return the tree whose leaves are the nodes of a level."""
        return Tree(self.parents[:depth])


@lru_cache(maxsize=32)
def tree_of(hierarchy: Hierarchy) -> Tree:
    """Return the tree of a hierarchy; level i + 1 has the cells of the attribute `hierarchy.names[i]`."""
    first = hierarchy.parents[0]
    top = int(first.max()) + 1
    return Tree((np.zeros(top, np.int64), *(np.asarray(own, np.int64) for own in hierarchy.parents)))
