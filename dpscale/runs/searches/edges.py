"""Search for the edges of bins on an engine: the levels of the tree are counted several at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpscale.base.numerics import Integers, Words
from dpscale.discovery.edges import EdgePlan, TreeMeasurement, found_edges, measure_tree
from dpscale.discovery.reading import NodeRequest, count_steps
from dpscale.discovery.value_counts import search_draw
from dpscale.domain.attribute import Attribute
from dpscale.runs.searches import Found, SearchReader, SearchSummary, SearchTerms

CELLS_BITS = 18  # counters of a pass, as a power of 2
LEVELS = 16  # levels that a pass counts below many nodes, at most


def plan(attribute: Attribute, terms: SearchTerms) -> EdgePlan:
    """Return the measurement of a dyadic tree."""
    search_draw(terms.share, terms.rows_per_unit, f"the bins of {attribute.name}")  # raises the errors of later rounds
    search_draw(terms.share / 10**6, terms.rows_per_unit, f"the bins of {attribute.name}")
    return EdgePlan(attribute, terms.share, terms.rows_per_unit)


def search(plan: EdgePlan, reader: SearchReader) -> Found:
    """Return the attribute with the bins that were found."""
    counts = NodeCounts(plan, reader)
    measurement = TreeMeasurement(plan=plan, secret=reader.secret.read(), head=reader.head, count=counts.of)
    attribute, released = found_edges(plan, measure_tree(measurement))
    return attribute, released | {"nodes": measurement.nodes}


@dataclass
class NodeCounts:
    """Exact counts of nodes, from passes that each count several levels below some nodes. Private."""

    plan: EdgePlan
    reader: SearchReader
    level: int = 0
    nodes: Words = field(default_factory=lambda: np.zeros(1, np.uint64), repr=False)
    sums: list[Integers] = field(default_factory=list, repr=False)
    known: dict[int, tuple[Words, Integers]] = field(default_factory=dict, repr=False)

    def of(self, level: int, index: Words) -> Integers:
        """Return the counts of nodes of a level; later calls may repeat some of the nodes of the first one."""
        if level not in self.known:
            self.known[level] = index, self._first_counts(level, index)
        nodes, counts = self.known[level]
        return counts[np.searchsorted(nodes, index)]

    def _first_counts(self, level: int, index: Words) -> Integers:
        """Return the exact counts of some nodes of a level, given their numbers in it.

        Several levels below `self.level` are counted in one pass over the rows: `self.sums[depth]` has, for each
        counted node, the counts of its 2^depth descendants `depth` levels below.
        """
        if level >= self.level + len(self.sums):
            self._count(level, index)
        depth = level - self.level
        ancestor = np.searchsorted(self.nodes, index >> np.uint64(depth))
        descendant = (index & np.uint64((1 << depth) - 1)).astype(np.int64)  # number below the ancestor
        return np.asarray(self.sums[depth][ancestor, descendant])

    def _count(self, level: int, index: Words) -> None:
        """Count the nodes of a level and their descendants."""
        self.level, self.nodes = level, index
        depth = self._depth()
        low, bits = self.plan.search.axis
        request = NodeRequest(
            rows=self.reader.rows,
            attribute=self.plan.attribute,
            low=low,
            bits=bits,
            level=level,
            nodes=index,
            depth=depth,
        )
        cells = self.reader.total(count_steps, request, "count-nodes").reshape(len(index), -1)
        self.sums = [cells.reshape(len(index), 1 << below, -1).sum(2) for below in range(depth + 1)]

    def _depth(self) -> int:
        room = CELLS_BITS - (len(self.nodes) - 1).bit_length()
        return min(max(room, 1), LEVELS, self.plan.search.axis[1] - self.level)


def summarize(attribute: Attribute, released: Mapping[str, Any]) -> SearchSummary:
    """Return the bins that were found."""
    cells = tuple(zip(attribute.labels, released["counts"], released["errors"], strict=False))
    facts = ("The bins are leaves of a dyadic tree whose counts were measured from the root down.",)
    return SearchSummary("edges of bins", facts, cells)
