"""Cells that no query of a workload distinguishes, merged attribute by attribute before planning.

If every query is constant on the classes of an attribute's cells, answers are functions of the sums over classes. One
record changes one of these sums by 1, as it changes one cell, so a strategy on the classes has the same sensitivity and
the same errors as on the cells: nothing is lost. A plan is made on a domain whose cells are the classes. Counts are
summed over classes before a strategy is applied. Questions are still asked, answered and labelled on the cells.

Attributes are merged only if queries list their values (predicates, matrices, arrays), and only where a plan on the
cells would be large.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import Domain
from dpscale.workload.families import ProductQueries
from dpscale.workload.family import Family
from dpscale.workload.listed import ExplicitPart, ListedQueries
from dpscale.workload.parts import ProductPart, WorkloadPart
from dpscale.workload.wide import LONG
from dpscale.workload.workload import Workload

MOST_PLANNED = 2048  # cells of an array of queries above which its attributes are merged


@dataclass(frozen=True, eq=False)
class MergedCells:
    """Classes of the cells of some attributes.

    Attributes
    ----------
    whole : Domain
        Domain of the cells.
    classes : mapping of str to ndarray of int64, shape (cells,)
        Class of each cell, from 0, of the attributes whose cells are merged.
    """

    whole: Domain
    classes: Mapping[str, Integers]

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of classes of each attribute whose cells are merged."""
        return {name: int(labels.max()) + 1 for name, labels in self.classes.items()}

    @cached_property
    def domain(self) -> Domain:
        """Domain whose cells are the classes."""
        sizes = self.sizes
        return Domain([Domain({axis.name: sizes[axis.name]})[axis.name] if axis.name in sizes else axis
                       for axis in self.whole.axes])  # fmt: skip

    @property
    def note(self) -> str:
        """Sentence on what is merged."""
        merged = (f"{name} {self.whole[name].size:,} to {number:,}" for name, number in self.sizes.items())
        return f"cells that no query distinguishes are planned as one: {', '.join(merged)}"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the classes."""
        digest = hashlib.sha256()
        for name, labels in self.classes.items():
            digest.update(name.encode() + np.ascontiguousarray(labels, "<i8").tobytes())
        return digest.hexdigest()

    @cached_property
    def _first(self) -> Mapping[str, Integers]:
        """First cell of each class."""
        return {name: np.unique(labels, return_index=True)[1] for name, labels in self.classes.items()}

    def counts(self, attributes: AttributeSet, counts: Integers) -> Integers:
        """Return counts over the cells of some attributes as sums over classes.

        Along each merged axis, cells are sorted by class and added from the first cell of each class to that of the
        next.
        """
        for axis, name in enumerate(attributes):
            if name in self.classes:
                order = np.argsort(self.classes[name], kind="stable")
                starts = np.flatnonzero(np.diff(self.classes[name][order], prepend=-1))
                counts = np.add.reduceat(counts.take(order, axis=axis), starts, axis=axis)
        return counts

    def query(self, attributes: AttributeSet, query: Floats) -> Floats | None:
        """Return a query over the cells of some attributes as one over classes; None if it distinguishes cells.

        `_first` has one cell of each class: the query is read there, and must equal itself when its classes are
        expanded.
        """
        for axis, name in enumerate(attributes):
            if name in self.classes:
                merged = query.take(self._first[name], axis=axis)
                if (query != merged.take(self.classes[name], axis=axis)).any():
                    return None
                query = merged
        return query

    def spread(self, attributes: AttributeSet, rows: Floats) -> Floats:
        """Return rows over classes, shape (r, classes…), as rows over cells."""
        for axis, name in enumerate(attributes, start=1):
            rows = rows.take(self.classes[name], axis=axis) if name in self.classes else rows
        return rows

    def part(self, part: WorkloadPart) -> WorkloadPart:
        """Return a part of the workload on the classes."""
        known, merged = self._parts.get(id(part), (None, None))
        if known is not part or merged is None:
            merged = self._merged(part)
            self._parts[id(part)] = part, merged  # the part is kept, so that no other one has its identity
        return merged

    @cached_property
    def _parts(self) -> dict[int, tuple[WorkloadPart, WorkloadPart]]:
        return {}

    def _merged(self, part: WorkloadPart) -> WorkloadPart:
        """Return a part of the workload over the merged cells, whose queries do not tell the cells of a group apart."""
        if isinstance(part, ExplicitPart):
            array = self.query(("", *part.attributes), part.array)
            assert array is not None
            return replace(part, domain=self.domain, array=array)
        if isinstance(part, ProductPart) and isinstance(part.family, ProductQueries):
            return replace(part, domain=self.domain, family=part.family.mapped(self._family))
        return replace(part, domain=self.domain)  # type: ignore[type-var]

    def _family(self, name: str, family: Family) -> Family:
        if name in self.classes and isinstance(family, ListedQueries):
            return ListedQueries.of(family.matrix(self.whole[name].size)[:, self._first[name]])
        return family

    def workload(self, workload: Workload) -> Workload:
        """Return a workload on the classes."""
        merged = Workload(self.domain, workload.max_sets)
        merged.parts = [self.part(part) for part in workload.parts]
        return merged


def merge_cells(workload: Workload) -> MergedCells | None:
    """Return the classes of cells that no query distinguishes; None if planning on the cells is as good.

    Parameters
    ----------
    workload : Workload
    """
    domain = workload.domain
    if domain.public_totals or domain.rules or domain.hierarchies or not _is_large(workload):
        return None

    used = {name for names in workload.sets for name in names}
    plain = {name for name in used if name in domain.names and _is_plain(domain, name)}
    classes = {}
    for name in domain.ordered(plain):
        class_of = _labels(workload, name)
        if class_of is not None and class_of.max() + 1 < len(class_of):  # fewer classes than cells
            classes[name] = class_of
    return MergedCells(domain, classes) if classes else None


def _is_plain(domain: Domain, name: str) -> bool:
    return name not in domain.number_names and domain[name].search is None


def _is_large(workload: Workload) -> bool:
    """Return whether queries are listed on a long attribute, or an array of them has many cells."""
    listing = [part for part in workload.parts if part.lists_queries]
    sizes = [workload.domain[name].size for part in listing for names in part.sets for name in names]
    arrays = [part.attributes for part in listing if isinstance(part, ExplicitPart)]
    return max(sizes, default=0) > LONG or any(workload.domain.cells(names) > MOST_PLANNED for names in arrays)


def _labels(workload: Workload, name: str) -> Integers | None:
    """Return the class of each cell of an attribute; None if a part distinguishes all of them.

    Cells are of one class if their columns are equal in the queries of every part. Columns are compared as bytes; the
    classes of successive parts are intersected.
    """
    size = workload.domain[name].size
    classes = np.zeros(size, np.int64)
    for columns in _columns(workload, name, size):
        if columns is None:
            return None
        rows = np.ascontiguousarray(columns.T + 0.0)  # no negative zeros
        texts = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).reshape(-1)
        of_part = np.unique(texts, return_inverse=True)[1]
        classes = np.unique(np.stack([classes, of_part]), axis=1, return_inverse=True)[1].reshape(-1)
    return np.asarray(classes, np.int64)


def _columns(workload: Workload, name: str, size: int) -> Iterator[Floats | None]:
    """Yield the queries of each part that names an attribute, with one column for each of its cells."""
    for part in workload.parts:
        for names in part.sets:
            if name not in names:
                continue
            if isinstance(part, ExplicitPart) and part.origin is None:
                yield np.moveaxis(part.array, names.index(name) + 1, -1).reshape(-1, size)
            else:
                family = dict(zip(names, part.families(names), strict=False)).get(name)
                yield family.matrix(size) if isinstance(family, ListedQueries) else None
