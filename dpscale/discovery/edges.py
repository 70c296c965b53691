"""Search for the edges of bins (kind "edges"): a dyadic tree is measured from the root down.

Every node is measured with exact discrete Gaussian noise of its own precision. With k rows for each unit, a round costs
Σ_v r_v² w_v <= k Σ_v r_v w_v for r_v rows in node v, so all rounds cost at most k² times the dearest path, which is
compared with the charge in exact integers before each round is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpscale.base.errors import BudgetError
from dpscale.base.numerics import Floats, Integers, Words
from dpscale.discovery.dyadic_tree import Leaves, TreeCounts, TreePolicy, estimate_leaves
from dpscale.discovery.value_counts import search_draw
from dpscale.domain.attribute import Attribute
from dpscale.domain.search import EdgeSearch
from dpscale.privacy.accounting import Cost
from dpscale.privacy.draws import GaussianDraw, cost_of_units, cost_units
from dpscale.privacy.streams import open_stream

EMPTY_ERRORS = 0.3  # leaves below this many standard errors count as empty
Count = Callable[[int, Words], Integers]


@dataclass(frozen=True)
class EdgePlan:
    """Measurement of a dyadic tree.

    Attributes
    ----------
    attribute : Attribute
    share : Fraction
        Squared mu that a unit pays at most.
    rows_per_unit : int
    """

    attribute: Attribute
    share: Fraction
    rows_per_unit: int

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=self.share)

    @property
    def search(self) -> EdgeSearch:
        assert isinstance(self.attribute.search, EdgeSearch)
        return self.attribute.search

    @property
    def record(self) -> dict[str, Any]:
        """Everything that determines the draws, in text and integers."""
        low, bits = self.search.axis
        return {"search": "edges", "version": 1, "attribute": self.attribute.name, "column": self.attribute.column,
                "low": str(low), "bits": bits, "step": str(self.search.unit), "share": str(self.share),
                "rows_per_unit": self.rows_per_unit}  # fmt: skip


Nodes = tuple[int, Words, Floats]  # level, indices in the level, and precisions


@dataclass
class TreeMeasurement:
    """Measurement of nodes with keyed noise, and the exact cost of every path.

    Attributes
    ----------
    plan : EdgePlan
    secret : bytes
    head : mapping
        Beginning of every noise record.
    count : callable
        Returns the exact counts of nodes of a level.
    nodes : list
        Level, index, multiplier, variance and value of every measured node.
    """

    plan: EdgePlan
    secret: bytes = field(repr=False)
    head: Mapping[str, Any]
    count: Count = field(repr=False)
    rounds: int = 0
    spent: dict[tuple[int, int], int] = field(default_factory=dict, repr=False)
    parts: list[TreeCounts] = field(default_factory=list, repr=False)
    nodes: list[list[Any]] = field(default_factory=list, repr=False)

    def measure(self, nodes: Sequence[Nodes]) -> list[Floats]:
        """Return the measured counts of nodes of one round, after its cost is added to the paths and checked."""
        self.rounds += 1
        # one kind of noise for each precision, which many nodes share
        draws = [{one: self._draw(one) for one in np.unique(precision).tolist()} for _, _, precision in nodes]
        for (level, index, precision), own in zip(nodes, draws, strict=True):
            for place, one in zip(index.tolist(), precision.tolist(), strict=True):
                # a path pays for the nodes on it
                self._spend(level, place, own[one])

        # compared before any noise is drawn
        if self.dearest > self.plan.share:
            raise BudgetError("privacy", "a path of a tree beyond its share of the budget", "at most the charge",
                              "report this as a fault of dpscale")  # fmt: skip
        return [self._measure_level(*one, own) for one, own in zip(nodes, draws, strict=True)]

    def _measure_level(
        self, level: int, index: Words, precision: Floats, draws: Mapping[float, GaussianDraw]
    ) -> Floats:
        """Measure nodes of a level with the noise of their precision, record the draws, and return the noisy counts.

        `draws` has the draw of each precision. A node's record is level, index, multiplier, variance and noisy count.
        """
        value, exact_precision = np.empty(len(index)), np.empty(len(index))
        counts = self.count(level, index) if len(index) else np.zeros(0, np.int64)
        for wanted, draw in draws.items():
            same_precision = precision == wanted
            value[same_precision] = self._noisy(level, index[same_precision], counts[same_precision], draw)
            noise = [str(draw.multiplier), str(draw.variance)]
            self.nodes += [
                [level, str(place), *noise, float(noisy)]
                for place, noisy in zip(index[same_precision].tolist(), value[same_precision], strict=True)
            ]
            exact_precision[same_precision] = 1 / draw.lattice_variance

        self.parts.append(
            TreeCounts(level=np.full(len(index), level), index=index, value=value, precision=exact_precision)
        )
        return value

    def _draw(self, precision: float) -> GaussianDraw:
        rows = self.plan.rows_per_unit
        return search_draw(Fraction(precision) * rows**2, rows, f"the bins of {self.plan.attribute.name}")

    def _noisy(self, level: int, index: Words, counts: Integers, draw: GaussianDraw) -> Floats:
        """Return noisy counts of nodes.

        Counts are multiplied by `draw.multiplier` before whole noise is added. The label of the noise names the round
        and all nodes, so no two measurements share a stream.
        """
        label = {**self.head, **self.plan.record, **draw.noise_spec, "multiplier": str(draw.multiplier),
                 "round": self.rounds, "level": level, "nodes": [str(one) for one in index.tolist()]}  # fmt: skip
        noise = draw.words(open_stream(self.secret, "noise", label), len(counts))
        return np.asarray((draw.multiplier * counts + noise) / draw.multiplier)

    def _spend(self, level: int, index: int, draw: GaussianDraw) -> None:
        self.spent[level, index] = self.spent.get((level, index), 0) + cost_units(draw.cost)

    @property
    def dearest(self) -> Fraction:
        """Squared mu of the dearest path, for a record that may lie in any node that was measured.

        `spent` maps (level, index) of a node to its cost in units. The parent of node i is i >> 1, so a total is that
        of the path from the root.
        """
        totals: dict[tuple[int, int], int] = {}
        for level, index in sorted(self.spent):
            totals[level, index] = totals.get((level - 1, index >> 1), 0) + self.spent[level, index]
        return cost_of_units(max(totals.values(), default=0))


def measure_tree(measurement: TreeMeasurement) -> Leaves:
    """Measure the tree and return the estimate of its leaves.

    `policy` chooses nodes and precisions from earlier noisy values only. In each level nodes are measured twice: `look`
    chooses which of them are measured again, and `look_again` the nodes of the next level.
    """
    plan = measurement.plan
    bits = plan.search.axis[1]
    policy, level = TreePolicy(bits, float(plan.share) / plan.rows_per_unit**2), 0
    index, precision = policy.first()

    while len(index):
        [value] = measurement.measure([(level, index, precision)])
        again, more = policy.look(index, precision, value)
        [value] = measurement.measure([(level, again, more)])
        index, precision = policy.look_again(more, value)
        level += 1

    measurement.measure(policy.last_round())
    parts = measurement.parts
    return estimate_leaves(
        bits,
        TreeCounts(
            level=np.concatenate([one.level for one in parts]),
            index=np.concatenate([one.index for one in parts]),
            value=np.concatenate([one.value for one in parts]),
            precision=np.concatenate([one.precision for one in parts]),
        ),
    )


def found_edges(plan: EdgePlan, leaves: Leaves) -> tuple[Attribute, dict[str, Any]]:
    """Return the attribute with bins of the leaves, and the released record.

    Leaves are joined into search.bins bins or fewer, in units of search.unit from the axis's low end. A single bin is
    divided in the middle, because an attribute has two cells or more.
    """
    starts, counts, errors = join_leaves(_within(plan, leaves), plan.search.bins)
    low, _ = plan.search.axis
    end = _end(plan)
    edges = [float(one * plan.search.unit) for one in (*(low + int(place) for place in starts), end)]
    if len(edges) < 3:  # an attribute has two cells or more
        edges.insert(1, (edges[0] + edges[1]) / 2)
        counts, errors = np.repeat(counts / 2, 2), np.repeat(errors, 2)

    closed = replace(plan.attribute, edges=tuple(edges), search=None)
    return closed, {"edges": edges, "counts": counts.tolist(), "errors": errors.tolist()}


def _end(plan: EdgePlan) -> int:
    """Return the end of the axis in steps: after the public one, which is the last value, or that of the tree."""
    low, bits = plan.search.axis
    return low + (1 << bits) if plan.search.high is None else plan.search.high + 1


def _within(plan: EdgePlan, leaves: Leaves) -> Leaves:
    """Return the leaves that begin within the public ends, and whose first values differ as floats.

    Leaves that are not kept add their counts to the last kept one before them.
    """
    low, _ = plan.search.axis
    starts = [low + int(one) for one in leaves.first]
    shown = [float(one * plan.search.unit) for one in starts]
    end = float(_end(plan) * plan.search.unit)
    kept = [at == 0 or shown[at - 1] < shown[at] < end for at in range(len(starts))]
    if plan.search.high is not None:
        kept = [own and start <= plan.search.high for own, start in zip(kept, starts, strict=True)]
    chosen = np.flatnonzero(kept)
    # number of the last leaf that stays, for every leaf
    groups = np.searchsorted(chosen, np.arange(len(starts)), side="right") - 1
    counts, variances = (np.bincount(groups, own) for own in (leaves.counts, leaves.errors**2))

    return Leaves(
        first=leaves.first[chosen],
        last=leaves.last[chosen],
        counts=np.asarray(counts, np.float64),
        errors=np.sqrt(variances),
    )


def join_leaves(leaves: Leaves, most: int | None) -> tuple[Words, Floats, Floats]:
    """Return first places, counts and errors of bins: leaves without records join a neighbour, and at most `most` stay.

    Of more bins, the two neighbours with the smallest sum are joined.

    A bin is [first place, count, variance]. A count below EMPTY_ERRORS standard deviations may be that of no records.
    """
    bins = [
        [int(first), float(count), float(error) ** 2]
        for first, count, error in zip(leaves.first, leaves.counts, leaves.errors, strict=True)
    ]
    joined = bins[:1]
    for one in bins[1:]:
        empty = all(own[1] <= EMPTY_ERRORS * own[2] ** 0.5 for own in (joined[-1], one))
        # both sides of the edge are empty: the edge separates nothing
        if empty:
            joined[-1] = [joined[-1][0], joined[-1][1] + one[1], joined[-1][2] + one[2]]
        else:
            joined.append(one)

    while most is not None and len(joined) > most:
        at = min(range(len(joined) - 1), key=lambda place: joined[place][1] + joined[place + 1][1])
        one, other = joined[at : at + 2]
        joined[at : at + 2] = [[one[0], one[1] + other[1], one[2] + other[2]]]

    firsts = np.array([one[0] for one in joined], np.uint64)
    return firsts, np.array([one[1] for one in joined]), np.sqrt([one[2] for one in joined])
