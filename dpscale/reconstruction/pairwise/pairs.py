"""Flat layout of all pairs of attributes over groups, for the loops that draw rows.

Tables of a pair i < j are concatenated in vectors of `cells` entries, row-major in (value of i, value of j). The loops
store every pair twice more as float32, in both orientations, so that the entries for one attribute are adjacent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from dpscale.base.numerics import Floats, NDArray
from dpscale.domain.structural_zeros import DomainConstraint
from dpscale.reconstruction.entropy import LowOrder
from dpscale.workload.residual.in_axis import Groups

STEP = 2.0**-30
BYTES_A_CELL = 64  # all vectors of a sweep together


@dataclass(frozen=True, eq=False)
class PairLayout:
    """Layout of pairs.

    Attributes
    ----------
    names : tuple of str
        Attributes.
    sizes : ndarray of int64, shape (d,)
        Number of groups of each attribute.
    used : ndarray of bool, shape (d, d)
        Pairs that have tables.
    """

    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    used: NDArray[np.bool_]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Start of each pair's table, shape (d, d, 2): in the flat vectors and in the loops' vectors; −1: none."""
        starts = np.full((len(self.sizes), len(self.sizes), 2), -1, np.int64)
        at = 0
        for i, j in self.pairs:
            size = int(self.sizes[i] * self.sizes[j])
            starts[i, j, 0] = starts[j, i, 0] = at
            starts[i, j, 1], starts[j, i, 1] = 2 * at, 2 * at + size
            at += size
        return starts

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs i < j in use."""
        return [(int(i), int(j)) for i, j in zip(*np.nonzero(np.triu(self.used, 1)), strict=True)]

    @cached_property
    def cells(self) -> int:
        """Number of entries of a flat vector."""
        return sum(int(self.sizes[i] * self.sizes[j]) for i, j in self.pairs)

    @cached_property
    def ones_at(self) -> NDArray[np.int64]:
        """Start of each attribute's groups in a vector of all 1-way marginals."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    @property
    def steps(self) -> int:
        """Approximate number of additions of a sweep over one row, if all pairs are active."""
        return int(sum(self.used[i].sum() * self.sizes[i] for i in range(len(self.sizes))))

    def of(self, vector: Floats, i: int, j: int) -> Floats:
        """Return a view of the table of a pair i < j."""
        start, rows, columns = self.starts[i, j, 0], self.sizes[i], self.sizes[j]
        return vector[start : start + rows * columns].reshape(rows, columns)

    def one(self, vector: Floats, i: int) -> Floats:
        """Return a view of an attribute's entries in a vector of all 1-way marginals."""
        return vector[self.ones_at[i] : self.ones_at[i] + self.sizes[i]]

    def within(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which entries of a flat vector belong to the chosen pairs."""
        inside = np.zeros(self.cells, np.bool_)
        for i, j in self.pairs:
            start = self.starts[i, j, 0]
            inside[start : start + self.sizes[i] * self.sizes[j]] = chosen[i, j]
        return inside


@dataclass(frozen=True, eq=False)
class PairTargets:
    """Targets of rows, as shares of all rows.

    Attributes
    ----------
    layout : PairLayout
    ones : ndarray
        1-way marginals, concatenated.
    shares : ndarray
        Pairs, flat.
    known : ndarray of bool, shape (d, d)
        Pairs that were measured; the others are implied by a model.
    """

    layout: PairLayout
    ones: Floats
    shares: Floats
    known: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class CellDistribution:
    """Distribution of each attribute's groups over cells.

    Attributes
    ----------
    groups : mapping of str to Groups
    ones : mapping of str to ndarray
        1-way marginals over cells.
    rules : tuple of DomainConstraint
        Structural zeros and functional dependencies of the domain.
    """

    groups: Mapping[str, Groups]
    ones: Mapping[str, Floats]
    rules: tuple[DomainConstraint, ...] = ()


def pair_targets(model: LowOrder, memory: int) -> PairTargets:
    """Return the pairs of a model as targets; a pair without a table is independent.

    If not all pairs fit the memory, measured and small ones are preferred.
    """
    layout = _layout(model, memory)
    ones = _rounded(np.concatenate([model.coarse[name] / model.total for name in layout.names]))
    shares, known = np.empty(layout.cells), np.zeros_like(layout.used)
    for i, j in layout.pairs:
        key = layout.names[i], layout.names[j]
        table = model.tables.get(key)
        independent = np.multiply.outer(layout.one(ones, i), layout.one(ones, j))
        layout.of(shares, i, j)[:] = _rounded(independent if table is None else np.asarray(table) / model.total)
        known[i, j] = known[j, i] = key in model.measured

    return PairTargets(layout, ones, shares, known)


def _rounded(shares: Floats) -> Floats:
    """Round to a multiple of STEP, which is coarser than the last bits of floats."""
    return np.asarray(np.rint(shares / STEP) * STEP)


def _layout(model: LowOrder, memory: int) -> PairLayout:
    names = tuple(model.ones)
    sizes = np.array([model.groups[name].count for name in names], np.int64)
    used, left = np.zeros((len(names), len(names)), np.bool_), memory // BYTES_A_CELL
    for i, j in sorted(combinations(range(len(names)), 2), key=lambda pair: _order(model, names, sizes, pair)):
        left -= int(sizes[i] * sizes[j])
        used[i, j] = used[j, i] = left >= 0
    return PairLayout(names, sizes, used)


def _order(model: LowOrder, names: tuple[str, ...], sizes: NDArray[np.int64], pair: tuple[int, int]) -> tuple[int, int]:
    """Return a sort key: measured pairs, then pairs implied by chains, then the rest; small before large."""
    key = names[pair[0]], names[pair[1]]
    return (0 if key in model.measured else 1 if key in model.tables else 2), int(sizes[pair[0]] * sizes[pair[1]])
