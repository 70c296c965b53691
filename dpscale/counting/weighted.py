"""Counts of records that are weighted by their period: Σ_s w_s x_s in one reading (`plans.time_plan`).

Records are grouped by period within each partition. The records of one period are counted without weights, and their
counts are multiplied by the integer weight once. A counter continues over partitions as long as the period is the same,
so data in one folder for each period need one multiplication for each period of a task. Records of periods without a
weight, which arrive later, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpscale.base.arrow import is_text, pa
from dpscale.base.numerics import Flags, Integers
from dpscale.counting.count import Counter, Dropped, check_cells_known, encode_batch
from dpscale.counting.cover import Program
from dpscale.domain import Attribute, Domain
from dpscale.domain.attribute import read_period
from dpscale.records.column_values import column_of
from dpscale.records.encode import Codes, code_type, encode
from dpscale.records.table import Partition


@dataclass(frozen=True)
class PeriodWeights:
    """Integer weight of each period.

    Attributes
    ----------
    attribute : Attribute
        Date attribute whose cells are the periods; it may have more cells than there are weights.
    weights : tuple of int
        Weight of each of the first periods; later periods have none.
    """

    attribute: Attribute
    weights: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of periods with a weight."""
        return len(self.weights)

    @cached_property
    def domain(self) -> Domain:
        """Domain of the period alone."""
        return Domain([self.attribute])

    @property
    def columns(self) -> list[str]:
        """Columns from which the period is read."""
        return list(self.attribute.columns)

    def has_records(self, partition: Partition) -> bool:
        """Return False if a folder name shows that all records of a partition belong to periods without a weight.

        `partition.fixed` are pairs (column, text) from names of folders. Periods are numbered from `attribute.low`; the
        first `count` have a weight. Without such a name the partition may have records.
        """
        label = dict(partition.fixed).get(self.attribute.column)
        try:
            number = 0 if label is None else read_period(self.attribute.by, label) - self.attribute.low
            return 0 <= number < self.count
        except ValueError:  # refused when the partition is read
            return True

    def read(self, batch: dict[str, Any]) -> tuple[Codes, Flags]:
        """Return the period of each row of a batch, and the rows without a weight: of no period, or of a later one."""
        column = column_of(self.attribute, batch)
        outside = np.zeros(len(column), dtype=bool)
        codes = self._named(column)
        if codes is None:
            codes = encode(self.attribute, column, outside)  # marks the rows outside the horizon
        return codes, outside | (codes >= self.count)

    def _named(self, column: Any) -> Codes | None:
        """Return the periods of texts that all name a period, such as folder names; None for other columns.

        Names of folders are dictionary columns of texts. A name before the first period, or that is no period, makes
        the result None, for a complete check by `encode`.
        """
        if not pa.types.is_dictionary(column.type) or not is_text(column.type.value_type) or column.null_count:
            return None

        try:
            names = [read_period(self.attribute.by, one) for one in column.dictionary.to_pylist()]
        except ValueError:
            return None

        cells = np.array(names, np.int64) - self.attribute.low
        if cells.min(initial=0) < 0:
            return None
        return cells.astype(code_type(self.attribute.code_count))[column.indices.to_numpy(zero_copy_only=False)]


PeriodRows = tuple[int, Codes]


def count_weighted(
    program: Program,
    domain: Domain,
    partitions: Sequence[Partition],
    weights: PeriodWeights,
    checked: Sequence[str] = (),
    dropped: Dropped | None = None,
) -> Integers:
    """Return Σ_s w_s x_s for the sets of a program, as a flat int64 array.

    A counter is finished and weighted when the period changes, so the order of the periods saves multiplications.

    Parameters
    ----------
    program : Program
    domain : Domain
    partitions : sequence of Partition
    weights : PeriodWeights
    checked : sequence of str
        Further attributes whose values are checked against the domain.
    dropped : mapping of Partition to row mask, optional
        Rows to exclude, in addition to those that the domain file drops, and values to change.
    """
    check_cells_known(domain, program.names)
    names = list(dict.fromkeys([*program.names, *checked]))
    total = np.zeros(program.cells, dtype=np.int64)
    counter, current = Counter(program), -1

    for period, codes in _by_period(domain, partitions, names, weights, dropped):
        if period != current and current >= 0:
            total += weights.weights[current] * counter.finish()
            counter = Counter(program)
        current = period
        counter.add(codes)

    if current >= 0:
        total += weights.weights[current] * counter.finish()
    return total


def _by_period(
    domain: Domain,
    partitions: Sequence[Partition],
    names: Sequence[str],
    weights: PeriodWeights,
    dropped: Dropped | None,
) -> Iterator[PeriodRows]:
    """Yield the codes of the rows of each partition by period, periods in order.

    `first` is the number of the batch's first row in the partition, by which `rows` numbers its rows.

    `dropped` are the rows beyond the contribution bound, by partition. A row without a weight for its period is `gone`.
    """
    for partition in partitions:
        found: dict[int, list[Codes]] = {}
        rows = None if dropped is None else dropped.get(partition)
        for codes, gone, periods, first in encoded_with_periods(domain, partition, names, weights):
            if rows is not None:
                rows.clip(codes, names, first)
                gone = gone | rows.within(first, len(periods))
            present = periods[~gone]
            for period in np.unique(present).tolist():
                at = np.flatnonzero((periods == period) & ~gone)
                # a batch of a single period needs no copy
                part = codes if len(at) == len(periods) else codes.take(at, axis=1)
                found.setdefault(period, []).append(part)

        for period in sorted(found):
            yield from ((period, codes) for codes in found[period])


def encoded_with_periods(
    domain: Domain, partition: Partition, names: Sequence[str], weights: PeriodWeights
) -> Iterator[tuple[Codes, Flags, Codes, int]]:
    """Yield for each batch its codes, the rows left out, the period of each row, and its first row.

    A batch yields (codes, rows left out, periods, number of its first row in the partition). Rows are left out if the
    domain drops them or their period has no weight.
    """
    columns = domain.columns(names)
    read, first = list(dict.fromkeys([*columns, *weights.columns])), 0
    cells = domain if set(columns).isdisjoint(weights.columns) else None  # a shared column is read as values

    for batch in partition.batches(read, domain=cells):
        periods, gone = weights.read(batch)
        codes, removed = encode_present(domain, batch, names, gone)
        yield codes, gone | removed, periods, first
        first += codes.shape[1]


def encode_present(domain: Domain, batch: Mapping[str, Any], names: Sequence[str], gone: Flags) -> tuple[Codes, Flags]:
    """Return the codes of a batch, and the rows that the domain drops; values of rows that are gone are not checked.

    Rows of periods without a weight are not refused for their values: they are read when their period is released.
    """
    if not gone.any():
        codes, removed = encode_batch(domain, batch, names)
        return codes, np.zeros_like(gone) if removed is None else removed

    # only these rows are encoded; the others have the code 0
    present = np.flatnonzero(~gone)
    chosen = {
        name: column[present] if isinstance(column, np.ndarray) else column.take(pa.array(present))
        for name, column in batch.items()
    }
    codes, removed = encode_batch(domain, chosen, names)
    whole = np.zeros((len(codes), len(gone)), dtype=codes.dtype)
    whole[:, present] = codes
    dropped = np.zeros_like(gone)
    if removed is not None:
        dropped[present] = removed

    return whole, dropped
