"""Exact marginal counts of many attribute sets in one pass over partitions.

*Numbers.*
A record adds its parts to the cells of a number (`dpscale.domain.number`), and with several numbers their products. One
number without squares needs only the records with a value, the sum of their steps and the number of nulls. A joint
holds these three in the bits of one 64-bit word, so that a row costs one addition; words are emptied before a field can
overflow:

    c = ⌊(64 − bits of R)/fields⌋ bits for each number of records, the other bits for the sum of at most 2^c − 1 rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import numpy as np

from dpscale.base.display import type_of_value
from dpscale.base.error_redaction import discreetly
from dpscale.base.errors import DataError, DomainError, RefusedValue
from dpscale.base.numerics import AttributeSet, Flags, Integers, LazyModule, NDArray, Words
from dpscale.counting.cover import NumberSteps, Program, Steps, guess_rows, plan_cover
from dpscale.domain import MOST_PARTS, Domain, Number
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

BLOCK = 1 << 14  # rows whose parts and counters stay in the cache
WORD = 64  # bits of the word that holds the sums of a cell
FEWEST = 1 << 15  # rows between two times at which words are emptied; below it parts are added one by one


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


class SumCounter:
    """Counter of the sets with the same numbers; private, so its repr shows no counts.

    Parameters
    ----------
    sums : NumberSteps
    flat : ndarray of int64
        Counters of all sets of the program.
    """

    def __init__(self, sums: NumberSteps, flat: Integers) -> None:
        """Allocate joint counters beside those in `flat`; words are used if `Packing.of` returns a packing."""
        self._sums, self._flat, self._rows = sums, flat, 0
        self._joint = np.zeros(sums.joint_cells, dtype=np.int64)
        self._packing = Packing.of(sums)
        self._words = np.zeros(sums.joint_cells // sums.cells if self._packing else 0, dtype=np.uint64)

    def __repr__(self) -> str:
        return f"SumCounter of {self._sums.joint_cells} cells"

    def add(self, codes: NDArray[Any], total: int) -> None:
        """Count rows; `codes` has shape (attributes, rows), and `total` rows have been added with them.

        `_packing`, if not None, adds sum and number of records of joints in one word. Otherwise parts are added in
        blocks of BLOCK rows.
        """
        sums = self._sums
        if self._packing and sums.joints:
            self._add_words(codes, self._packing)
        one_by_one = (sums.direct, self._flat), *([] if self._packing else [(sums.joints, self._joint)])
        if sums.direct or len(sums.alone) or not self._packing:
            for first in range(0, codes.shape[1], BLOCK):
                self._add_parts(codes[:, first : first + BLOCK], one_by_one, total)

    def finish(self) -> None:
        """Add the joints to the counters of the sets."""
        self._empty_words()
        if self._sums.folds:
            self._sums.folds.apply(self._joint, self._flat)

    def _add_words(self, codes: NDArray[Any], packing: Packing) -> None:
        """Add the numbers of rows to sums, several of which are packed in a word.

        Words are emptied into the counters before a sum can overflow.

        `packing.most` is the number of rows after which a field of a word could overflow.
        """
        for first in range(0, codes.shape[1], packing.most):
            block = codes[:, first : first + packing.most]
            if self._rows + block.shape[1] > packing.most:
                self._empty_words()
            self._rows += block.shape[1]
            words = packing.words(block[self._sums.columns[0]])

            for steps in self._sums.joints:
                length = min(block.shape[1], steps.block)
                for start in range(0, block.shape[1], length):
                    part = slice(start, start + length)
                    kernels.add_words(
                        block[:, part], words[part], steps.columns, steps.sizes, steps.starts, steps.shared,
                        steps.offsets // self._sums.cells, self._words, steps.levels(length),
                    )  # fmt: skip

    def _empty_words(self) -> None:
        """Add the words to the joint counters and set them to 0, before a field of a word can overflow."""
        if self._packing and self._rows:
            self._packing.unpack(self._words, self._joint.reshape(-1, self._sums.cells))
            self._words[:] = 0
        self._rows = 0

    def _add_parts(
        self, codes: NDArray[Any], groups: tuple[tuple[tuple[Steps, ...], Integers], ...], total: int
    ) -> None:
        """Add the parts of records on the cells of the numbers to the counters of each set.

        The parts of several numbers multiply. `groups` has pairs of steps and counters; `total` is the number of rows
        so far.

        `parts` has shape (rows, cells of the numbers).
        """
        numbers = zip(self._sums.columns, self._sums.numbers, strict=True)
        parts = reduce(_multiply, [number.parts(codes[column]) for column, number in numbers])
        for steps, counters in groups:
            for step in steps:
                if step.is_small(total):
                    for places in step.places(codes, parts.shape[1]):
                        np.add.at(counters, places[:, None] + np.arange(parts.shape[1]), parts)
                    continue
                kernels.add_parts(codes, parts, step.columns, step.sizes, step.starts, step.shared, step.offsets,
                                  counters, step.levels(BLOCK))  # fmt: skip

        sums = parts.sum(axis=0)
        for place in self._sums.alone.tolist():
            self._flat[place : place + len(sums)] += sums


class Packing:
    """Fields of a word: records with a value, nulls if they are skipped, and the sum of steps in the lowest bits.

    Attributes
    ----------
    most : int
        Largest number of rows between two times at which words are emptied.
    """

    def __init__(self, number: Number) -> None:
        """Divide a word into fields: the counts of records and of nulls have `_width` bits, the sum has the rest.

        A record adds at most `number.steps` to the sum. So the sum of 2^`_width` − 1 records needs `_width` bits more
        than `number.steps` has. This field and the counts, `number.size` fields in all, fit into WORD bits.
        """
        fields = number.size
        self.number, self._width = number, (WORD - number.steps.bit_length()) // fields
        self.most = (1 << self._width) - 1
        self._record, self._null = 1 << (WORD - self._width), 1 << (WORD - 2 * self._width)
        self._sum = (1 << (WORD - self._width * (fields - 1))) - 1

    @classmethod
    def of(cls, sums: NumberSteps) -> Packing | None:
        """Return the packing of the only number; None for several numbers, squares or too many steps.

        `most` is the number of rows that a word can count before it overflows; below FEWEST the packing does not pay.
        """
        if len(sums.numbers) > 1 or sums.numbers[0].squares:
            return None
        packing = cls(sums.numbers[0])
        return packing if packing.most >= FEWEST else None

    def words(self, codes: NDArray[Any]) -> Words:
        """Return the addend of each row to the word of its cell.

        An addend is the step of the value plus `_record`, the unit of the count of records; a missing value, whose code
        is above the steps, adds `_null` only.
        """
        steps = codes.astype(np.uint64)
        if self.number.null_cell < 0:
            return steps + np.uint64(self._record)
        return np.where(steps > self.number.steps, np.uint64(self._null), steps + np.uint64(self._record))

    def unpack(self, words: Words, counts: Integers) -> None:
        """Add words to counts, shape (cells, cells of the number).

        The highest bits of a word are the number of records, the next ones that of nulls, and the lowest the sum of
        steps. A record adds its steps to the cell of the high end and the rest of `number.steps` to that of the low
        end.
        """
        records, sums = (words >> np.uint64(WORD - self._width)).astype(np.int64), words & np.uint64(self._sum)
        high = self.number.high_part(sums.astype(np.int64), records)
        counts[:, 1] += high
        counts[:, 0] += self.number.steps * records - high
        if self.number.null_cell >= 0:
            nulls = (words >> np.uint64(WORD - 2 * self._width)) & np.uint64(self.most)
            counts[:, 2] += self.number.steps * nulls.astype(np.int64)


def _multiply(left: Integers, right: Integers) -> Integers:
    """Return the parts of each row on the cells of two sets of numbers."""
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)
