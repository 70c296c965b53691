"""Results of a release in the report: hierarchies, sums and statistics of numbers, and public totals.

All figures are released ones: standard errors follow from the plan, and nodes are ordered and chosen by their
estimates. A tree may have a million leaves, so its table starts with the nodes of the top level and opens the largest
nodes first, until it has `MOST_NODES` rows.

The measurements below known nodes of a hierarchy estimate these nodes as well. The squared differences from the public
totals, each divided by its variance, add up to a chi-square variable if the totals are right.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpscale.answers.report.charts import statistic
from dpscale.answers.report.figures import place_map
from dpscale.answers.tables import LEVEL, MISSING, Answered, is_planned, title_of, words_of
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers, stats
from dpscale.domain import Domain, Hierarchy
from dpscale.domain.public_totals import SAME, PublicTotal
from dpscale.reconstruction.base import Estimates
from dpscale.reconstruction.joint_intervals import half_width
from dpscale.reconstruction.tree_estimates import TreeEstimates
from dpscale.workload import WorkloadPart

MOST_NODES, MOST_TOP, MOST_CHILDREN = 2000, 400, 50  # rows of a table of nodes; of its top level; below an opened node
MOST_CIRCLES, MOST_NAMES = 400, 8  # nodes of the last level on a map; names of nodes of the first level on it


@dataclass
class ReportNode:
    """Row of the table of nodes.

    Attributes
    ----------
    label : str
    estimate : float
    half : float or None
        Half width of the interval; None without a standard error.
    below : list of ReportNode
        Largest nodes below, the largest first.
    hidden : int
        Number of other nodes below, if it was opened.
    rest : float
        Their estimated number of records.
    """

    label: str
    estimate: float
    half: float | None
    below: list[ReportNode] = field(default_factory=list)
    hidden: int = 0
    rest: float = 0.0


@dataclass(frozen=True, eq=False)
class AnsweredLevel:
    """Level of a hierarchy with estimates of its nodes.

    Attributes
    ----------
    name : str
    labels : sequence
        Labels of the nodes.
    values, errors : ndarray, shape (nodes,)
        Estimates and standard errors, nan if they are not known.
    width : float
        Half width of an interval in standard errors.
    children : sequence of ndarray
        For each node, its children in the next answered level, the largest estimate first; empty at the last level.
    """

    name: str
    labels: Sequence[Any]
    values: Floats
    errors: Floats
    width: float
    children: Sequence[Integers] = ()

    def row(self, cell: int) -> ReportNode:
        """Return the row of a node, without nodes below it."""
        label, half = self.labels[cell], self.width * float(self.errors[cell])
        return ReportNode(
            MISSING if label is None else str(label), float(self.values[cell]), half if math.isfinite(half) else None
        )

    def is_distinguishable(self, cells: Integers) -> Any:
        """Return whether estimates are larger than their half widths, or than 0 without a standard error."""
        return self.values[cells] > self.width * np.nan_to_num(self.errors[cells])


def hierarchy_results(answered: Answered, index: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the figures of every hierarchy with a level in the workload.

    Parameters
    ----------
    answered : Answered
    index : sequence of mapping
        Attributes, number of queries and root mean square standard error of every set of counts.

    Returns
    -------
    list of dict
        `leaf`; `levels`: rows of errors by level; `nodes`: rows of the top level; `shown`, `total`: numbers of nodes in
        the table and at all answered levels; `most`: rows below a node; `has_errors`; `names`: answered levels; `map`:
        SVG, or "".
    """
    domain, results = answered.estimates.workload.domain, list[dict[str, Any]]()
    for hierarchy in domain.hierarchies:
        if not any(set(hierarchy.names).intersection(row["attributes"]) for row in index):
            continue

        levels = answered_levels(answered, hierarchy)
        nodes, shown = _open_nodes(levels) if levels else ([], 0)
        results.append(
            {
                "leaf": hierarchy.leaf,
                "levels": _level_rows(hierarchy, levels, index),
                "nodes": nodes,
                "shown": shown,
                "total": sum(len(level.values) for level in levels),
                "most": MOST_CHILDREN,
                "has_errors": any(node.half is not None for node in nodes),
                "names": [level.name for level in levels],
                "map": _map(domain, hierarchy, levels) if levels else "",
            }
        )

    return results


def answered_levels(answered: Answered, hierarchy: Hierarchy) -> list[AnsweredLevel]:
    """Return the levels of a hierarchy whose numbers of records are estimated, the top first."""
    domain, width = answered.estimates.workload.domain, half_width(LEVEL, answered.estimates.noise)
    levels = list[AnsweredLevel]()
    for name in reversed(hierarchy.names):
        try:
            values, errors = answered.cells((name,))
        except PlanError:  # the workload does not determine the level
            continue
        parents = hierarchy.ancestors(name, levels[0].name) if levels else np.zeros(0, np.int64)
        children = _children(parents, levels[0].values, len(values)) if levels else ()
        levels.insert(
            0,
            AnsweredLevel(
                name=name, labels=domain[name].labels, values=values, errors=errors, width=width, children=children
            ),
        )

    return levels


def _children(parents: Integers, values: Floats, size: int) -> list[Integers]:
    order = np.lexsort((-values, parents))
    return np.split(order, np.cumsum(np.bincount(parents, minlength=size))[:-1])


def _level_rows(
    hierarchy: Hierarchy, levels: Sequence[AnsweredLevel], index: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return a row for every level with tables or estimates; None for what is not known.

    A set belongs to a level if it names the level and no deeper one. The error is the root mean square over queries.
    """
    rows, answered = [], {level.name: level for level in levels}
    for place, (name, nodes) in enumerate(zip(hierarchy.names, hierarchy.sizes, strict=True)):
        deeper = set(hierarchy.names[place + 1 :])
        sets = [row for row in index if name in row["attributes"] and not deeper.intersection(row["attributes"])]
        if not sets and name not in answered:
            continue

        queries = sum(row["queries"] for row in sets)
        # Σ over queries of error², from the root mean square of each set
        squares = math.fsum(row["queries"] * (row["rms_error"] or 0.0) ** 2 for row in sets)
        known = queries > 0 and all(row["rms_error"] is not None for row in sets)
        level, mean, relative = answered.get(name), None, math.nan
        if level is not None:
            mean = float(level.values.sum()) / nodes
        # RMS error of a node, relative to the mean of a node
        if level is not None and mean is not None and mean > 0:
            relative = float(np.sqrt((level.errors**2).mean())) / mean
        rows.append({"name": name, "nodes": nodes, "tables": len(sets), "per_node": mean,
                     "relative": relative if math.isfinite(relative) else None,
                     "error": math.sqrt(squares / queries) if known else None})  # fmt: skip

    return rows


def _open_nodes(levels: Sequence[AnsweredLevel]) -> tuple[list[ReportNode], int]:
    """Return the rows of the top level with the rows below them, and the number of all rows.

    The node with the largest estimate among those that are not open is opened next. A node whose estimate is not
    distinguishable from 0 stays closed, since what is below it is noise.

    `waiting` is a heap of (negative estimate, depth, cell, node), and `remaining` the number of rows that may still be
    shown.
    """
    top = ReportNode("", 0.0, None)
    order = np.argsort(-levels[0].values, kind="stable")
    remaining = MOST_NODES - _open(top, levels[0], order, MOST_TOP)
    waiting = [(-node.estimate, 0, int(cell), node) for cell, node in zip(order, top.below, strict=False)]
    heapq.heapify(waiting)

    while waiting and remaining > 0:
        _, depth, cell, node = heapq.heappop(waiting)
        # a leaf, or an estimate that is not distinguished from 0
        if depth + 1 == len(levels) or not levels[depth].is_distinguishable(np.array([cell]))[0]:
            continue
        below = levels[depth].children[cell]
        remaining -= _open(node, levels[depth + 1], below, min(remaining, MOST_CHILDREN))
        for child, below_child in zip(below.tolist(), node.below, strict=False):
            heapq.heappush(waiting, (-below_child.estimate, depth + 1, child, below_child))

    # one more row for all nodes of the top level that are not shown
    rows = top.below + ([ReportNode("", top.rest, None, hidden=top.hidden)] if top.hidden else [])
    return rows, MOST_NODES - remaining


def _open(node: ReportNode, level: AnsweredLevel, cells: Integers, most: int) -> int:
    """Add the rows of the first nodes below a node, and return their number."""
    node.below = [level.row(cell) for cell in cells[:most].tolist()]
    node.hidden, node.rest = max(len(cells) - most, 0), float(level.values[cells[most:]].sum())
    return len(node.below)


def _map(domain: Domain, hierarchy: Hierarchy, levels: Sequence[AnsweredLevel]) -> str:
    """Return a map of the largest nodes of the last level, with the names of the largest ones of the first level.

    Only nodes with coordinates whose estimate can be distinguished from 0 are circles.
    """
    leaf = domain[hierarchy.leaf]
    if leaf.level is None or (coordinates := leaf.level.tree.coordinates) is None:
        return ""

    last, first = levels[-1], levels[0]
    points = _mean_coordinates(coordinates, hierarchy, last.name)
    cells = np.flatnonzero(np.isfinite(points).all(axis=0) & last.is_distinguishable(np.arange(len(last.values))))
    cells = cells[np.argsort(-last.values[cells], kind="stable")][:MOST_CIRCLES]
    if not len(cells):
        return ""

    above = _mean_coordinates(coordinates, hierarchy, first.name)
    named = [cell for cell in np.argsort(-first.values, kind="stable").tolist() if np.isfinite(above[:, cell]).all()]
    named = named[:MOST_NAMES]
    return place_map(points[:, cells], last.values[cells], [first.row(cell).label for cell in named], above[:, named])


def _mean_coordinates(coordinates: Floats, hierarchy: Hierarchy, name: str) -> Floats:
    """Return the mean latitude and longitude of the leaves of each node that have both; nan without any."""
    nodes = hierarchy.ancestors(name)[: coordinates.shape[1]]  # the cells of outside values and nulls follow
    known, size = np.isfinite(coordinates).all(axis=0), hierarchy.sizes[hierarchy.position(name)]
    counts = np.bincount(nodes[known], minlength=size)
    sums = np.stack([np.bincount(nodes[known], coordinate[known], size) for coordinate in coordinates])
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


MOST_GROUPS = 60  # bars of a figure


def has_numbers(part: WorkloadPart) -> bool:
    """Return whether the answers of a part are sums or statistics of numbers."""
    return any(not part.domain.number_names.isdisjoint(names) for names in part.sets)


def number_results(answered: Answered, most: int) -> dict[str, Any]:
    """Return totals, the first `most` sets of one attribute, and the number of all sets.

    A set without further attributes (`shown`) is a total; one attribute gives a chart, and larger sets are only
    counted.

    Parameters
    ----------
    answered : Answered
    most : int

    Returns
    -------
    dict
        `totals`: statistics of all records, as rows; `groups`: those of `statistic`, with the number of groups without
        an estimate; `sets`: the number of sets.
    """
    totals, groups, number = list[tuple[str, dict[str, Any]]](), list[dict[str, Any]](), 0
    for part in filter(has_numbers, answered.estimates.workload.parts):
        for names in (names for names in part.sets if is_planned(part, names)):
            shown, number = part.shown(names), number + 1
            labelled = bool(part.query_texts) or any(end.is_text for end in part.ends)
            if not shown:
                statistic = _statistic(answered, part, names, [statistic_title(part, names)], "")["rows"][0]
                totals.append((unit_of(part, names), statistic))
            elif len(shown) == 1 and not labelled and part.count(names) <= MOST_GROUPS and len(groups) < most:
                attribute = part.domain[shown[0]]
                title = f"{statistic_title(part, names)} by {title_of(part.domain, shown[0])}"
                groups.append(_statistic(answered, part, names, words_of(attribute), title))

    return {"totals": totals, "groups": groups, "sets": number}


def statistic_title(part: WorkloadPart, names: AttributeSet) -> str:
    """Return the name of a statistic, as "mean of Fee"."""
    numbers = [name for name in names if part.name.endswith(f"-{name}") and name in part.domain.number_names]
    return part.name if not numbers else f"{part.name[: -len(numbers[0]) - 1]} of {title_of(part.domain, numbers[0])}"


def unit_of(part: WorkloadPart, names: AttributeSet) -> str:
    """Return the unit of the answers of a part, in the words of the domain file for its numbers."""
    unit = part.unit(names)
    for name in sorted(part.domain.number_names.intersection(names)):
        unit = unit.replace(name, part.domain[name].words.unit or title_of(part.domain, name))
    return unit


def _statistic(
    answered: Answered, part: WorkloadPart, names: AttributeSet, labels: Sequence[str], title: str
) -> dict[str, Any]:
    """Return a statistic of a part as the report shows it: labels, estimates with intervals and errors, and unit."""
    table = answered.table(part.shown(names), part.name, LEVEL, False)
    estimate, low, high, error = (table[column].to_numpy() for column in ("estimate", "low", "high", "std_error"))
    shown = labels if len(labels) == len(table) else [str(label) for label in table.column(0).to_pylist()]
    shown_statistic = statistic(title, shown, estimate, low, high, error, unit_of(part, names))
    return shown_statistic | {"unknown": int(np.isnan(estimate).sum())}


SURPRISING = 1e-3  # probability below which a misfit is reported


def total_results(estimates: Estimates) -> list[dict[str, Any]]:
    """Return the public totals of a release.

    A total changes if filters, contribution bounds or clipping change the records that are counted, or if it is from
    another time or source.

    Parameters
    ----------
    estimates : Estimates

    Returns
    -------
    list of dict
        names: attributes as text; origin; same: whether the total is from the same records; misfit: statistic, degrees
        and p of a chi-square test of measurements below known nodes of a hierarchy, or None if they fit or have no
        information on the total.
    """
    return [
        {"names": " x ".join(total.names) or "all records", "origin": total.origin, "same": total.origin == SAME,
         "misfit": misfit_of(estimates, total)}
        for total in estimates.workload.domain.public_totals
    ]  # fmt: skip


def misfit_of(estimates: Estimates, total: PublicTotal) -> dict[str, float] | None:
    """Return the chi-square test of a total if the measurements contradict it, else None.

    Parameters
    ----------
    estimates : Estimates
    total : PublicTotal

    Returns
    -------
    dict or None
        statistic, degrees of freedom, and p: the probability of a larger statistic for a total that is right. None also
        if the measurements have no information on the total.
    """
    tested = estimates.misfit(total.names) if isinstance(estimates, TreeEstimates) else None
    if tested is None:
        return None
    statistic, degrees = tested
    p = float(stats.chi2.sf(statistic, degrees))
    return {"statistic": statistic, "degrees": degrees, "p": p} if p < SURPRISING else None
