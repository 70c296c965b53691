"""Linear queries as candidates of an adaptive mechanism: the classes of cells that they do not distinguish.

A candidate is the set of all queries that the workload lists over its attributes, products or arrays. Cells with equal
columns in every query are one class, and the answers are functions of the sums over classes. The candidate is therefore
scored on the classes as a marginal is on its cells: the distance of counts x from estimates x̂ is

    Σ_k |Σ_{c in k} (x_c − x̂_c)|  over the classes k.

One record changes one of these sums by 1, so the sensitivity is that of a marginal, even if many queries count the
record. The L1 distance of the answers over its own sensitivity, the largest column norm of the queries, is never
larger; it selects worse (benchmarks/planning.py query_candidates). A marginal is the case of one cell per class.

Differences are clipped so that no sum exceeds 64 bits. Clipping never increases the change of a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import Domain
from dpscale.workload.family import Family
from dpscale.workload.parts import WorkloadPart
from dpscale.workload.residual import Groups, coarsened, every_cell

LARGEST_SUM = 1 << 62  # bound of a sum of clipped differences, within signed 64 bits
MOST_ENTRIES = 1 << 24  # of one matrix over cells; beyond, its queries are assumed to distinguish all cells


@dataclass(frozen=True, eq=False)
class CellClasses:
    """Classes of the cells of one candidate over groups.

    Attributes
    ----------
    labels : tuple of ndarray of int64
        Class of every group of each attribute, from 0; or one array with the class of every cell in C order.
    """

    labels: tuple[Integers, ...]

    def distance(self, differences: Integers) -> int:
        """Return the distance for differences of counts and estimates in integer units; exact.

        Differences are clipped to `limit`, so that a sum over all cells fits 64 bits.
        """
        limit = LARGEST_SUM // differences.size
        sums = np.clip(differences, -limit, limit)
        for axis, labels in enumerate(self.labels):
            sums = _summed(sums.reshape(-1) if len(self.labels) < sums.ndim else sums, labels, axis)
        return int(np.abs(sums).sum())

    @cached_property
    def noise_factor(self) -> float:
        """Return the sum over classes of the root of their number of cells.

        It is the L1 error of the sums per unit of independent noise on every cell, up to √(2/π).
        """
        return float(np.prod([np.sqrt(np.bincount(labels)).sum() for labels in self.labels]))


def _summed(values: Integers, labels: Integers, axis: int) -> Integers:
    """Return the sums over the classes along an axis."""
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    return np.asarray(np.add.reduceat(values.take(order, axis=axis), starts, axis=axis))


@dataclass(frozen=True, eq=False)
class QueryCandidates:
    """Queries that a workload lists over the attributes of each candidate.

    Attributes
    ----------
    domain : Domain
    listed : tuple of (WorkloadPart, AttributeSet)
        Attribute sets with positive weight of the parts that list their queries.
    by_cells : frozenset of AttributeSet
        Attribute sets of the other parts. Their subsets are scored on cells.
    """

    domain: Domain
    listed: tuple[tuple[WorkloadPart, AttributeSet], ...]
    by_cells: frozenset[AttributeSet]
    _known: dict[object, CellClasses | None] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, domain: Domain, parts: Iterable[WorkloadPart]) -> QueryCandidates | None:
        """Return the listed queries of a workload, or None if no part lists its queries."""
        listed, others = [], set()
        for part in parts:
            for names, weight in zip(part.sets, part.set_weights, strict=True):
                if weight > 0 and names and part.lists_queries:
                    listed.append((part, names))
                elif weight > 0 and names:
                    others.add(names)
        return cls(domain, tuple(listed), frozenset(others)) if listed else None

    def runs(self, name: str) -> Groups:
        """Return the runs of neighbouring cells of an attribute that no query distinguishes.

        They are single cells if a part asks for the cells of the attribute, or if no query distinguishes any two.
        """
        size = self.domain[name].size
        changes: set[int] = set()
        for columns in self._columns(name):
            changes.update(range(1, size) if columns is None else _changes(columns))
        is_asked = any(name in names for names in self.by_cells)
        return every_cell(size) if is_asked or not changes else Groups(size, (0, *sorted(changes)))

    def _columns(self, name: str) -> Iterator[Floats | None]:
        """Yield the queries of each listed set as a matrix with one column per cell of an attribute."""
        for part, queried in self.listed:
            families = dict(zip(queried, part.families(queried), strict=False))
            if name in families:
                yield _matrix(families[name], self.domain[name].size)
            elif name in queried:
                queries = np.moveaxis(_positive(part, queried), queried.index(name) + 1, -1)
                yield queries.reshape(-1, queries.shape[-1])

    def over(self, candidates: Iterable[AttributeSet], groups: Mapping[str, Groups]) -> dict[AttributeSet, CellClasses]:
        """Return the classes over groups of the candidates that are not scored on single groups."""
        classes = {}
        for names in candidates:
            of_candidate = self._over(names, tuple(groups[name] for name in names)) if names else None
            if of_candidate is not None:
                classes[names] = of_candidate
        return classes

    def _over(self, names: AttributeSet, groups: tuple[Groups, ...]) -> CellClasses | None:
        """Return the classes of the cells of a set under groups, cached by the starts of the groups."""
        key = names, tuple(group.starts for group in groups)
        if key not in self._known:
            self._known[key] = self._classes(names, groups)
        return self._known[key]

    def _classes(self, names: AttributeSet, groups: tuple[Groups, ...]) -> CellClasses | None:
        """Return classes of cells that no query over a superset of `names` tells apart; None without any to merge.

        Product families give labels on each axis, arrays of queries joint labels of all axes. `groups` are the cells
        of each attribute that are together already.

        `listed` are the parts whose sets contain `names`. There are no classes if a part that does not list its queries
        has a set that contains `names`, or if every cell is a class of its own.
        """
        inside = set(names)
        listed = [(part, queried) for part, queried in self.listed if inside <= set(queried)]
        if not listed or any(inside <= set(other) for other in self.by_cells):
            return None

        products = [(part, queried) for part, queried in listed if part.families(queried)]
        axes = [
            _labels(group.count, [self._over_groups(part, queried, name, group) for part, queried in products])
            for name, group in zip(names, groups, strict=True)
        ]
        arrays = [
            _array_over_groups(part, queried, names, groups) for part, queried in listed if not part.families(queried)
        ]
        labels_of = (_joint_labels(axes, arrays),) if arrays else tuple(axes)

        # None: every cell is a class of its own
        return None if all(len(labels) == labels.max() + 1 for labels in labels_of) else CellClasses(labels_of)

    def _over_groups(self, part: WorkloadPart, queried: AttributeSet, name: str, groups: Groups) -> Floats | None:
        """Return the queries of a product on one attribute as sums over groups, shape (m, groups)."""
        matrix = _matrix(part.families(queried)[queried.index(name)], self.domain[name].size)
        return None if matrix is None else _mean_columns(matrix, [groups])


def _changes(columns: Floats) -> list[int]:
    """Return the positions at which a column differs from the one before."""
    return (np.flatnonzero((np.diff(columns, axis=1) != 0).any(axis=0)) + 1).tolist()


def _matrix(family: Family, size: int) -> Floats | None:
    """Return the queries of one attribute; None if they distinguish all cells, or are assumed to."""
    return None if family.is_identity or family.count(size) * size > MOST_ENTRIES else family.matrix(size)


def _positive(part: WorkloadPart, attributes: AttributeSet) -> Floats:
    """Return the queries of a set with positive weight, shape (m, sizes…)."""
    return part.queries(attributes)[part.query_weights(attributes) > 0]


def _mean_columns(queries: Floats, groups: Iterable[Groups]) -> Floats:
    """Return the mean columns of the groups of each axis after the first."""
    for axis, grouping in enumerate(groups, start=1):
        widths = [-1 if axis == other else 1 for other in range(queries.ndim)]
        queries = np.moveaxis(coarsened(np.moveaxis(queries, axis, 0), [grouping]), 0, axis)
        queries = queries / grouping.widths.reshape(widths)
    return queries


def _labels(count: int, matrices: Iterable[Floats | None]) -> Integers:
    """Return a label for every column, equal for columns that are equal in all matrices; None distinguishes all."""
    columns = list(matrices)
    if any(column is None for column in columns):
        return np.arange(count)
    rows = np.concatenate([np.zeros((1, count)), *(column for column in columns if column is not None)])
    return np.asarray(np.unique(rows, axis=1, return_inverse=True)[1].reshape(-1), dtype=np.int64)


def _array_over_groups(
    part: WorkloadPart, queried: AttributeSet, names: AttributeSet, groups: tuple[Groups, ...]
) -> Floats:
    """Return the queries of an array over groups of `names`, shape (m, groups…).

    Cells of the other attributes are separate queries: a cell of `names` is distinguished if it is for any of them.
    """
    queries = _positive(part, queried)
    order = [queried.index(name) + 1 for name in names]
    others = [axis for axis in range(queries.ndim) if axis not in order]
    moved = queries.transpose(*others, *order)
    return _mean_columns(moved.reshape(-1, *moved.shape[len(others) :]), groups)


def _joint_labels(axes: Iterable[Integers], arrays: Iterable[Floats]) -> Integers:
    """Return a label for every cell in C order, equal for cells that neither products nor arrays distinguish."""
    places = np.stack(np.meshgrid(*axes, indexing="ij"))
    rows = [places.reshape(len(places), -1).astype(float), *(array.reshape(len(array), -1) for array in arrays)]
    labels = np.unique(np.concatenate(rows), axis=1, return_inverse=True)[1]
    return np.asarray(labels.reshape(-1), dtype=np.int64)
