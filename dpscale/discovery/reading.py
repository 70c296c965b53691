"""Columns of a table for a search: the rows that count, their values, and exact counts of these.

The rows are those that a public attribute or a contribution bound does not drop, as in every other counting pass.

Integers are counted in bins with given first values and in nodes of a dyadic tree. Both are sums of int64 arrays over
partitions, so they do not depend on the partitions. They are private.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpscale.base.errors import DataError
from dpscale.base.numerics import Flags, Integers, Words
from dpscale.counting.count import encode_batch
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from dpscale.domain.search import NodeSearch, ValueSearch
from dpscale.records.column_values import column_of
from dpscale.records.judging import Worst, worst_of
from dpscale.records.searched import VALUE, step_values, text_type
from dpscale.records.table import Partition
from dpscale.records.where import RowMask


@dataclass(frozen=True)
class SearchRows:
    """Rows of a table that a search reads.

    Attributes
    ----------
    domain : Domain
    dropping : tuple of str
        Attributes whose values can drop a row.
    """

    domain: Domain
    dropping: tuple[str, ...]

    @classmethod
    def of(cls, domain: Domain, names: Sequence[str]) -> SearchRows:
        """Return the rows of which the named attributes are read."""
        return cls(domain, tuple(name for name in names if domain[name].drops))

    def columns(
        self,
        attribute: Attribute,
        partitions: Sequence[Partition],
        dropped: Mapping[Partition, RowMask],
        unit: str | None = None,
    ) -> Iterator[tuple[Any, Any, Flags]]:
        """Yield the column of an attribute in batches, that of the unit if it is named, and the rows that count.

        `dropping` are the attributes whose policy drops rows, and `dropped` has further rows of some partitions that do
        not count, by the bound of a unit.

        `first` is the number of the first row of a batch in its partition, by which a mask numbers the rows.
        """
        names = [name for name in self.dropping if name != attribute.name]
        columns = list(dict.fromkeys([attribute.column, *self.domain.columns(names), *([unit] if unit else [])]))
        for partition in partitions:
            first = 0
            for batch in partition.batches(columns, unit or ""):
                column = column_of(attribute, batch)
                kept = np.ones(len(column), dtype=bool)
                if names and (gone := encode_batch(self.domain, batch, names)[1]) is not None:
                    kept &= ~gone
                if (mask := dropped.get(partition)) is not None:
                    kept &= ~mask.within(first, len(column))
                yield column, batch[unit] if unit else None, kept
                first += len(column)


@dataclass(frozen=True)
class Checked:
    """Result of the check of some partitions: refused values, and the types of columns of texts or integers."""

    worst: Worst
    types: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return "result"


def check_columns(partitions: Sequence[Partition], domain: Domain, names: Sequence[str]) -> Checked:
    """Return the refused values of the partitions, and the types of the columns whose values are searched."""
    searched = [domain[name] for name in names if isinstance(domain[name].search, ValueSearch | NodeSearch)]
    columns = [attribute.column for attribute in searched]
    kinds = [partition.kinds(columns) for partition in partitions] if searched else []
    types = {(attribute.name, text_type(attribute, kind[attribute.column])) for kind in kinds for attribute in searched}
    return Checked(worst_of(partitions, domain, names), tuple(sorted(types)))


def types_of(checked: Sequence[Checked]) -> dict[str, str]:
    """Return "text" or "integer" for each attribute; raise DataError if its files differ."""
    found: dict[str, str] = {}
    # a column of nulls has no type
    for name, kind in sorted({(name, kind) for part in checked for name, kind in part.types if kind}):
        if found.setdefault(name, kind) != kind:
            raise DataError(f"data column {name!r}", "texts in some files and integers in others",
                            "one type, because the values are searched", "convert the files")  # fmt: skip
    return found


@dataclass(frozen=True, eq=False)
class BinRequest:
    """Bins in which the steps of a column are counted.

    Attributes
    ----------
    rows : SearchRows
    attribute : Attribute
    first : ndarray of int64, shape (bins,)
        First integer of each bin, ascending; the first one is the lowest integer.
    """

    rows: SearchRows
    attribute: Attribute
    first: Integers

    def count(self, steps: Integers) -> Integers:
        """Return the number of steps in each bin."""
        return np.bincount(np.searchsorted(self.first, steps, side="right") - 1, minlength=len(self.first))


@dataclass(frozen=True, eq=False)
class NodeRequest:
    """Nodes of a dyadic tree whose descendants are counted.

    Attributes
    ----------
    rows : SearchRows
    attribute : Attribute
    low : int
        First integer of the axis.
    bits : int
        Number of binary digits of the axis.
    level : int
        Level of the nodes; that of the root is 0.
    nodes : ndarray of uint64, shape (nodes,)
        Indices of the nodes within their level, ascending.
    depth : int
        Levels below the nodes at which descendants are counted.
    """

    rows: SearchRows
    attribute: Attribute
    low: int
    bits: int
    level: int
    nodes: Words
    depth: int

    def count(self, steps: Integers) -> Integers:
        """Return the counts of all descendants of the nodes at their depth, node by node.

        A place is the distance of a step from `low`. Its highest bits are the index of a node, and the next `depth`
        bits the descendant. Steps in other nodes do not count.
        """
        places = steps.view(np.uint64) - np.uint64(self.low % (1 << 64))  # modulo 2^64
        above = shifted(places, self.bits - self.level)
        at = np.minimum(np.searchsorted(self.nodes, above), len(self.nodes) - 1)
        inside = self.nodes[at] == above
        below = shifted(places[inside], self.bits - self.level - self.depth) & np.uint64((1 << self.depth) - 1)
        cells = (at[inside].astype(np.uint64) << np.uint64(self.depth)) + below
        return np.bincount(cells.astype(np.int64), minlength=len(self.nodes) << self.depth)


def shifted(values: Words, bits: int) -> Words:
    """Return the values without their lowest `bits` binary digits, at most 64."""
    return np.zeros_like(values) if bits >= 64 else values >> np.uint64(bits)


def count_steps(
    request: BinRequest | NodeRequest,
    partitions: Sequence[Partition],
    bounded: Sequence[Partition] = (),
    *dropped: RowMask,
) -> list[Integers]:
    """Return the counts of a request in some partitions, as a list of one array.

    `request.count` maps steps of values to counts. `bounded` are the partitions with rows beyond a unit's bound, and
    `dropped` the masks of these rows, in the same order. Counts of no steps fix the shape without partitions.
    """
    total: Integers | int = 0
    for steps in _steps(request.rows, request.attribute, partitions, dict(zip(bounded, dropped, strict=True))):
        total = total + request.count(steps)
    return [request.count(np.zeros(0, np.int64)) + total]


def _steps(
    rows: SearchRows, attribute: Attribute, partitions: Sequence[Partition], dropped: Mapping[Partition, RowMask]
) -> Iterator[Integers]:
    """Yield the steps of the rows that count and have a value.

    A step is a value in multiples of the search's unit; `states` separates values from nulls and unreadable ones.
    """
    for column, _, kept in rows.columns(attribute, partitions, dropped):
        steps, states = step_values(attribute, column)
        yield np.ascontiguousarray(steps[kept & (states == VALUE)])
