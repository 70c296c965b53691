"""Exact marginal counts of many attribute sets in one pass over partitions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dpscale.base.display import type_of_value
from dpscale.base.error_redaction import discreetly
from dpscale.base.errors import DataError, DomainError, RefusedValue
from dpscale.base.numerics import AttributeSet, Flags, Integers, LazyModule, NDArray
from dpscale.counting.cover import guess_rows, plan_cover
from dpscale.counting.program import Program, Steps
from dpscale.counting.sums import SumCounter
from dpscale.domain import MOST_PARTS, Domain
from dpscale.records.column_values import column_of
from dpscale.records.encode import Codes, code_type, encode
from dpscale.records.judging import refused_of, worst_of
from dpscale.records.table import Partition, Table
from dpscale.records.where import RowMask

kernels = LazyModule("dpscale.counting.kernels")  # numba

FLUSH_ROWS = 1 << 31  # rows after which joints are summed, because their counters have 32 bits
GATHER_ROWS = 1 << 18  # rows that are gathered for a pass over the sets
# codes that are gathered at most: rows with more than 128 attributes are gathered in smaller numbers
GATHER_CODES = 1 << 25
ROWS = 64  # per word of a bit plane


class Counter:
    """Exact counts of a program's attribute sets; private, so its repr shows no counts."""

    def __init__(self, program: Program) -> None:
        """Allocate the counters of a program, all 0.

        `_flat` has the counts of all sets, `_joint` those of joints in 32 bits, and `_planes` sums of bit planes. Codes
        of small batches are gathered in `_waiting` before a pass over the sets.
        """
        self._program = program
        self._flat = np.zeros(program.cells, dtype=np.int64)
        self._joint = np.zeros(program.joint_cells, dtype=np.uint32)
        self._sums = [SumCounter(own, self._flat) for own in program.sums]
        planes = program.planes
        self._planes = np.zeros(planes.offsets[-1] if planes else 0, dtype=np.int64)
        self._waiting: list[Codes] = []
        self._rows = self._narrow_rows = self._waiting_rows = 0

    def __repr__(self) -> str:
        return f"Counter of {self._program.cells} cells"

    def add(self, codes: Codes) -> None:
        """Count rows.

        Parameters
        ----------
        codes : ndarray of unsigned integers, shape (attributes, rows)
            The first attributes are those of the program, in its order; further ones are ignored.
        """
        self._waiting.append(codes)
        self._waiting_rows += codes.shape[1]
        if self._waiting_rows >= min(GATHER_ROWS, max(GATHER_CODES // len(codes), 1)):
            self._count_waiting()

    def finish(self) -> NDArray[np.int64]:
        """Return the requested marginals one after the other; the counter cannot be used afterwards.

        `_flat` has the requested marginals in order. The empty set is the number of rows. `assemble` computes the sets
        that were counted by bit planes from the counts of subsets of their axes.
        """
        self._count_waiting()
        self._sum_joints()

        self._flat[self._program.empty] += self._rows
        if planes := self._program.planes:
            kernels.assemble(self._rows, self._planes, planes.offsets, planes.sizes, planes.set_starts, planes.set_axes,
                             planes.set_nodes, planes.node_starts, planes.places, self._flat)  # fmt: skip

        for sums in self._sums:
            sums.finish()

        del self._joint, self._planes, self._sums
        return self._flat

    def _count_waiting(self) -> None:
        """Count the waiting rows into all sets: directly, in joints of several sets, as sums and by bit planes.

        Rows wait until there are enough for a pass over the sets. Before a joint counter can overflow, after FLUSH_ROWS
        rows, joints are summed into the sets. `_rows` is the number of all rows, `_narrow_rows` that since the last
        such sum.
        """
        if not self._waiting_rows:
            return

        codes = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting, axis=1)
        self._waiting, self._waiting_rows = [], 0

        if self._narrow_rows + codes.shape[1] > FLUSH_ROWS:
            self._sum_joints()
        self._rows += codes.shape[1]
        self._narrow_rows += codes.shape[1]

        for steps in self._program.joints:
            _increment(steps, codes, self._joint, self._rows)
        for steps in self._program.direct:
            _increment(steps, codes, self._flat, self._rows)
        for sums in self._sums:
            sums.add(codes, self._rows)
        self._count_planes(codes)

    def _count_planes(self, codes: Codes) -> None:
        """Count the planned sets by planes: columns of codes of 8 bits, padded to whole groups of ROWS rows.

        A word of 64 bits has eight codes. Columns of `codes` are attributes of the plan `planes`; rows of padding have
        the code 0.
        """
        planes, rows = self._program.planes, codes.shape[1]
        if planes:
            narrow = np.zeros((len(planes.columns), -(-rows // ROWS) * ROWS), dtype=np.uint8)
            narrow[:, :rows] = codes[planes.columns]
            kernels.count_planes(narrow.view(np.uint64), planes.sizes, planes.starts, planes.axis, planes.depth,
                                 planes.inner, planes.offsets, planes.most_inner, self._planes)  # fmt: skip

    def _sum_joints(self) -> None:
        """Sum the joint marginals into the requested marginals and reset them.

        The counters of joints have 32 bits, so they are emptied before FLUSH_ROWS rows: `_narrow_rows` is the number of
        rows since the last time, and `folds` the sums over axes that give the requested sets.
        """
        if self._program.folds and self._narrow_rows:
            self._program.folds.apply(self._joint, self._flat)
            self._joint[:] = 0
        self._narrow_rows = 0


def _increment(steps: Steps, codes: Codes, counters: NDArray[Any], total: int) -> None:
    """Add rows to the counters of some sets: cell by cell for few, else by compiled loops over blocks of rows.

    `codes` has shape (columns, rows); `total` is the number of rows so far.

    `levels` is work space for the codes of prefixes, of a block of rows.
    """
    if steps.is_small(total):
        for places in steps.places(codes):
            np.add.at(counters, places, 1)
        return

    levels, rows = steps.levels(codes.shape[1]), codes.shape[1]
    length = -(-rows // -(-rows // steps.block))  # equal blocks, because a short one is inefficient for large sets
    for first in range(0, rows, length):
        kernels.count_codes(codes[:, first : first + length], steps.columns, steps.sizes, steps.starts, steps.shared,
                    steps.offsets, steps.cells, counters, levels)  # fmt: skip


Dropped = Mapping[Partition, RowMask]


@dataclass(frozen=True)
class ExactMarginal:
    """Exact counts over an attribute set; private, so its repr hides them.

    Attributes
    ----------
    attributes : AttributeSet
    counts : ndarray of int64
        Counts in units of 1/`denominator` records.
    denominators : tuple of int
        Denominator of each attribute; empty if all are 1.
    """

    attributes: AttributeSet
    counts: Integers = field(repr=False)
    denominators: tuple[int, ...] = ()

    @property
    def denominator(self) -> int:
        return math.prod(self.denominators)


@dataclass(frozen=True)
class Layout:
    """Layout of several marginals in a flat array of counters."""

    domain: Domain
    sets: tuple[AttributeSet, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Attributes used by any set, in domain order; the first attribute if none is used (to count rows)."""
        used = {name for attributes in self.sets for name in attributes} or {self.domain.names[0]}
        return tuple(name for name in self.domain.axis_names if name in used)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Start of each marginal, and the end of the last one."""
        return np.cumsum([0, *self.domain.cells_each(self.sets)], dtype=np.int64)

    def marginal(self, flat: Integers, attributes: AttributeSet) -> ExactMarginal:
        """Return the marginal of one set as a view of a flat array."""
        start, end = self.offsets[(place := self._places[attributes])], self.offsets[place + 1]
        counts = flat[start:end].reshape(self.domain.shape(attributes))
        return ExactMarginal(attributes, counts, self._denominators(attributes))

    def _denominators(self, attributes: AttributeSet) -> tuple[int, ...]:
        return tuple(self.domain[name].denominator for name in attributes) if self.domain.numbers else ()

    @cached_property
    def _places(self) -> dict[AttributeSet, int]:
        return {attributes: place for place, attributes in enumerate(self.sets)}

    def marginals(self, flat: Integers) -> Iterator[ExactMarginal]:
        """Yield the marginals in a flat array as views."""
        for attributes, start, end in zip(self.sets, self.offsets, self.offsets[1:], strict=False):
            counts = flat[start:end].reshape(self.domain.shape(attributes))
            yield ExactMarginal(attributes, counts, self._denominators(attributes))


def count(
    layout: Layout, partitions: Sequence[Partition], checked: Sequence[str] = (), dropped: Dropped | None = None
) -> Integers:
    """Count every set of the layout over the partitions with a cover chosen by their size.

    Returns a flat int64 array.
    """
    rows = guess_rows(layout.domain, sum(part.size() for part in partitions))
    program = Program.of(plan_cover(layout.domain, layout.sets, rows))
    return count_by(program, layout.domain, partitions, checked, dropped)


def count_by(
    program: Program,
    domain: Domain,
    partitions: Sequence[Partition],
    checked: Sequence[str] = (),
    dropped: Dropped | None = None,
) -> Integers:
    """Count the sets of a program over the partitions and return a flat int64 array.

    Parameters
    ----------
    program : Program
    domain : Domain
    partitions : sequence of Partition
    checked : sequence of str
        Further attributes whose values are checked against the domain.
    dropped : mapping of Partition to row mask, optional
        Rows to exclude, in addition to those that the domain file drops, and values to change.
    """
    check_cells_known(domain, program.names)
    counter = Counter(program)
    names = list(dict.fromkeys([*program.names, *checked]))

    for codes, gone, partition, first in encoded(domain, partitions, names):
        rows = None if dropped is None else dropped.get(partition)
        if rows is not None:
            rows.clip(codes, names, first)
        counter.add(_without(codes, gone, rows, first))
    return counter.finish()


def check_cells_known(domain: Domain, names: Iterable[str]) -> None:
    """Raise DataError for an attribute whose cells have not been found yet."""
    if unknown := [name for name in names if domain[name].search is not None]:
        raise DataError("domain", f"the attribute {unknown[0]!r}, whose cells are not known", "cells that are known",
                        "use the domain in the directory of a run, domain/domain.toml")  # fmt: skip


def _without(codes: Codes, removed: Flags | None, rows: RowMask | None, first: int) -> Codes:
    """Return the batch that begins at row `first` without the dropped rows.

    `removed` marks the rows that the domain drops, and `rows` those beyond a contribution bound, numbered by partition.
    """
    if removed is None and rows is None:
        return codes
    out = np.zeros(codes.shape[1], dtype=bool) if removed is None else removed
    if rows is not None:
        out |= rows.within(first, codes.shape[1])
    return codes.take(np.flatnonzero(~out), axis=1) if out.any() else codes


def encoded(
    domain: Domain, partitions: Iterable[Partition], names: Sequence[str]
) -> Iterator[tuple[Codes, Flags | None, Partition, int]]:
    """Yield for each batch the codes (attributes × rows), the dropped rows, the partition and the batch's first row."""
    for partition in partitions:
        first = 0
        for batch in partition.batches(domain.columns(names), domain=domain):
            codes, gone = encode_batch(domain, batch, names)
            yield codes, gone, partition, first
            first += codes.shape[1]


def encode_batch(domain: Domain, batch: Mapping[str, Any], names: Sequence[str]) -> tuple[Codes, Flags | None]:
    """Return the codes of the named attributes of a batch, and the rows dropped for a value in any of them.

    The codes have shape (attributes, rows) and the width required by the largest attribute. The second result is None
    if the domain file drops nothing.
    """
    attributes = [domain[name] for name in names]
    width, rows = code_type(max(attribute.code_count for attribute in attributes)), len(batch[attributes[0].column])
    codes = np.empty((len(names), rows), dtype=width)
    gone = np.zeros(rows, dtype=bool) if any(attribute.drops for attribute in attributes) else None
    for index, attribute in enumerate(attributes):
        codes[index] = encode(attribute, column_of(attribute, batch), gone)
    return codes, gone


def count_marginals(table: Table, sets: Sequence[Sequence[str]]) -> dict[AttributeSet, Integers]:
    """Return exact counts of attribute sets. They are private.

    Parameters
    ----------
    table : Table
    sets : sequence of sequence of str
        Attribute sets.

    Returns
    -------
    dict of tuple of str to ndarray of int64
        One array per set, with one axis per attribute in the given order.

    Raises
    ------
    DataError
        If `table` is not a Table, or its data do not fit the domain.

    Examples
    --------
    >>> trips.to_parquet("trips.parquet")
    >>> counts = count_marginals(dp.Table.open("trips.parquet", domain), [("borough", "day")])
    >>> counts["borough", "day"].shape
    (2, 3)
    """
    if not isinstance(table, Table):
        raise DataError("table", type_of_value(table), "a Table", "open one: Table.open(path, domain)")

    for names in sets:
        table.domain.ordered(names)
    asked = [tuple(names) for names in sets]
    for names in asked:
        _check_parts(table.domain, names)
    layout = Layout(table.domain, tuple(dict.fromkeys(table.domain.ordered(names) for names in asked)))
    by_set = discreetly("counting", _by_set, layout, table)

    return {names: _in_order(by_set[table.domain.ordered(names)], table.domain, names) for names in asked}


def _check_parts(domain: Domain, names: Sequence[str]) -> None:
    """Raise DomainError for a set of several numbers with too fine parts, or of several bounded totals.

    A record has as many parts in a table as the product of those of its numbers; `Number.largest_part` is the most of
    one.
    """
    if (parts := math.prod(domain[name].largest_part for name in names)) > MOST_PARTS:
        numbers = ", ".join(name for name in names if name in domain.number_names)
        raise DomainError("numbers", f"{numbers} in one table, with {parts:,} parts of a record",
                          f"at most {MOST_PARTS:,}", "use larger steps, or separate tables")  # fmt: skip
    if len(totals := [total.name for total in domain.totals if total.name in names]) > 1:
        raise DomainError("numbers", f"{' and '.join(totals)} in one table, both with per_unit = 'total'",
                          "one of them", "use separate tables")  # fmt: skip


def _by_set(layout: Layout, table: Table) -> dict[AttributeSet, Integers]:
    """Return the exact counts of each set of the layout; a refused value is reported with the worst of all faults.

    `worst_of` searches all partitions for refused values, so that the error does not depend on the order in which they
    are read.
    """
    table.require(table.domain.columns(layout.names))
    try:
        flat = count(layout, table.partitions)
    except RefusedValue as met:
        worst = worst_of(table.partitions, layout.domain, layout.names)
        raise refused_of(layout.domain, layout.names, [worst]) or met from None
    return {marginal.attributes: marginal.counts for marginal in layout.marginals(flat)}


def _in_order(counts: Integers, domain: Domain, names: AttributeSet) -> Integers:
    ordered = domain.ordered(names)
    return counts.transpose([ordered.index(name) for name in names])
