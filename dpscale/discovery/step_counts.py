"""Exact counts of the integers of a column: in bins with given first values, and in nodes of a dyadic tree.

Both are sums of int64 arrays over partitions, so they do not depend on the partitions. They are private.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpscale.base.numerics import Integers, Words
from dpscale.discovery.reading import SearchRows
from dpscale.domain.attribute import Attribute
from dpscale.records.searched import VALUE, step_values
from dpscale.records.table import Partition
from dpscale.records.where import RowMask


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
        """Return the counts of all descendants, node by node."""
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
    """Return the counts of a request in some partitions, as a list of one array."""
    total: Integers | int = 0
    for steps in _steps(request.rows, request.attribute, partitions, dict(zip(bounded, dropped, strict=True))):
        total = total + request.count(steps)
    return [request.count(np.zeros(0, np.int64)) + total]


def _steps(
    rows: SearchRows, attribute: Attribute, partitions: Sequence[Partition], dropped: Mapping[Partition, RowMask]
) -> Iterator[Integers]:
    """Yield the steps of the rows that count and have a value."""
    for column, _, kept in rows.columns(attribute, partitions, dropped):
        steps, states = step_values(attribute, column)
        yield np.ascontiguousarray(steps[kept & (states == VALUE)])
