"""Sums and means of numbers by group in rows and in data, for the attribute sets that the workload combines with them.

Sums of rows are scaled to the number of records in the data. The distance of sums is Σ |rows − data| over the groups,
relative to Σ |data|; that of means is the mean of |rows − data| over the records of the data, in units of the column.
The reference is one random half of the data against the other. Values are clipped as in the release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.answers.report.figures import COLOURS, drawing, new_figure, svg
from dpscale.answers.tables import texts
from dpscale.base.numerics import AttributeSet, Floats, Integers, NDArray
from dpscale.counting.count import encoded
from dpscale.domain import Domain
from dpscale.domain.number import Number
from dpscale.engine.counting import partition_groups
from dpscale.evaluation.inputs import ComparedTable, Numbered, number_partitions, size_of
from dpscale.evaluation.marginals import MOST, TABLES, WORST
from dpscale.privacy.streams import PublicStream
from dpscale.workload import Workload

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

BITS = 20  # of a half of a step number, so that sums of a batch are exact as floats
MOST_PANELS, MOST_POINTS = 3, 1000  # numbers with a panel in the figure; groups in a panel
GROUP_BYTES = 16  # a number of records and a sum


@dataclass(frozen=True)
class NumberSets:
    """Sets of attributes over which a number is compared, and how many sets were omitted."""

    number: Number
    sets: tuple[AttributeSet, ...]
    omitted: int

    def groups(self, domain: Domain) -> list[int]:
        """Return the number of groups of each set."""
        return [int(np.prod(shape_of(domain, names), dtype=np.int64)) for names in self.sets]


def shape_of(domain: Domain, names: AttributeSet) -> tuple[int, ...]:
    """Return the numbers of compared cells of attributes."""
    return tuple(size_of(domain[name]) for name in names)


def choose_number_sets(workload: Workload, rows: ComparedTable, names: Sequence[str], memory: int) -> list[NumberSets]:
    """Return the compared sets of each number that rows have: those of the workload, smallest first, and all records.

    At most MOST sets of a number are compared, and as many as fit a share of the memory.

    A group of a set is a cell of its attributes. The empty set stands for all records.
    """
    chosen = []
    # an eighth of the memory for all tables
    most = memory // (8 * TABLES * GROUP_BYTES)
    for number in rows.domain.numbers:
        requested = {()} | {
            tuple(one for one in own if one not in workload.domain.number_names)
            for own in workload.sets
            if number.name in own
        }
        ordered = sorted((own for own in requested if set(own) <= set(names)), key=lambda own: (len(own), own))
        sizes = np.cumsum([np.prod(shape_of(rows.domain, own), dtype=np.float64) for own in ordered])
        fit = tuple(own for own, size in zip(ordered[:MOST], sizes, strict=False) if size <= most)
        chosen.append(NumberSets(number, fit, len(ordered) - len(fit)))

    return chosen


def count_numbers(
    domain: Domain, sets: NumberSets, parts: Numbered, ways: int, names: Sequence[str], release: str
) -> list[Integers]:
    """Return the records, the records with a value by group, and the steps of values by group of some partitions.

    Parameters
    ----------
    domain : Domain
        Domain of the compared table.
    sets : NumberSets
    parts : partitions with their numbers
    ways : int
        Each row is in one of this number of random parts.
    names : sequence of str
        Attributes of the rows; further attributes that drop rows are read too.
    release : str

    Returns
    -------
    list of ndarray
        One flat array for each way: records, then for each set its records and its sums.
    """
    number, groups = domain[sets.number.name], sets.groups(domain)
    assert isinstance(number, Number)
    used = {one for own in sets.sets for one in own}
    read = [one for one in names if one in used] + [number.name]
    read += [axis.name for axis in domain.axes if axis.drops and axis.name not in read]
    found = [np.zeros(1 + 2 * sum(groups), np.int64) for _ in range(ways)]

    for place, partition in parts:
        stream = PublicStream(release, "compared halves", place)
        for codes, dropped, *_ in encoded(domain, [partition], read):
            way = np.floor(stream.uniforms(codes.shape[1]) * ways)
            steps = codes[read.index(number.name)].astype(np.int64)
            for index, flat in enumerate(found):
                mine = (way == index) if dropped is None else (way == index) & ~dropped
                flat[0] += mine.sum()
                # a larger code is a skipped null, which has no value
                mine &= steps <= number.steps
                _add(domain, sets.sets, flat[1:], {one: codes[at, mine] for at, one in enumerate(read)}, steps[mine])

    return found


def _add(
    domain: Domain, sets: Sequence[AttributeSet], flat: Integers, codes: Mapping[str, NDArray[Any]], steps: Integers
) -> None:
    """Add rows to the numbers of records and to the sums of every set.

    `flat` has, for each set, the number of records of each group and then the sum of their steps; `codes` has the cells
    of each attribute.
    """
    start = 0
    for names in sets:
        at, size = np.zeros(len(steps), np.int64), 1
        for name in names:
            cells = size_of(domain[name])
            at = at * cells + np.minimum(codes[name].astype(np.int64), cells - 1)
            size *= cells
        # bincount sums floats: each half of the bits is summed apart, so that the sums are exact
        low, high = (np.bincount(at, own, size).astype(np.int64) for own in (steps & ((1 << BITS) - 1), steps >> BITS))
        flat[start : start + size] += np.bincount(at, minlength=size)
        flat[start + size : start + 2 * size] += low + (high << BITS)
        start += 2 * size


def compare_numbers(
    engine: Engine, chosen: Sequence[NumberSets], data: ComparedTable, rows: ComparedTable, names: Sequence[str],
    release: str,
) -> dict[str, Any]:  # fmt: skip
    """Return the comparison of every number by its name.

    Data are counted in two random halves, rows in one part.
    """
    found = {}
    for sets in chosen:
        counts = [*_count(engine, data, sets, 2, names, release), *_count(engine, rows, sets, 1, names, release)]
        found[sets.number.name] = engine.map(summarise_number, [(data.domain, sets, *counts)], "compare")[0]
    return found


def _count(
    engine: Engine, side: ComparedTable, sets: NumberSets, ways: int, names: Sequence[str], release: str
) -> list[Integers]:
    """Return handles of the counts of a table.

    `ways` is the number of random parts of the table. The memory is that of GROUP_BYTES for each group and part.
    """
    groups = partition_groups(side.table.partitions, engine.workers)
    items = [(side.domain, sets, number_partitions(side, group), ways, names, release) for group in groups]
    memory = ways * GROUP_BYTES * sum(sets.groups(side.domain))
    return engine.reduce(count_numbers, items, ways, "count", memory)


@dataclass(frozen=True, eq=False)
class GroupSums:
    """Numbers of records and sums of a set's groups in one table, in units of the column."""

    total: int
    records: Floats
    sums: Floats

    @property
    def means(self) -> Floats:
        return np.divide(self.sums, self.records, out=np.full(len(self.sums), nan), where=self.records > 0)

    @property
    def shares(self) -> Floats:
        """Sums for each record of the table."""
        return self.sums / max(self.total, 1)


def group_sums(number: Number, groups: Sequence[int], flat: Integers) -> Iterator[GroupSums]:
    """Yield the sums of every set from a flat array of counts.

    `groups` has the number of groups of each set. `flat[0]` is the number of all records, and the sum of a group is its
    records times the low end plus the steps above it, in units of the column.
    """
    start = 1
    for size in groups:
        records, steps = flat[start : start + size], flat[start + size : start + 2 * size]
        sums = np.asarray((number.low * records + steps) * float(number.unit), np.float64)
        yield GroupSums(int(flat[0]), records.astype(np.float64), sums)
        start += 2 * size


def summarise_number(
    domain: Domain, sets: NumberSets, first: Integers, second: Integers, drawn: Integers
) -> dict[str, Any]:
    """Return the distances of every set, and the means of groups in data and rows.

    `first` and `second` are the sums of the halves of the data, `drawn` those of the rows, in the form of `group_sums`.
    A point is (records, mean in the data, mean in the rows) of a group.
    """
    groups, low, high = sets.groups(domain), *sets.number.ends
    sides = zip(
        *(group_sums(sets.number, groups, flat) for flat in (first, second, first + second, drawn)), strict=True
    )
    results, points = [], list[tuple[float, float, float]]()
    for names, (one, other, data, rows) in zip(sets.sets, sides, strict=True):
        results.append({
            "attributes": list(names), "groups": int((data.records > 0).sum()),
            "sums": sum_distance(rows, data, data), "sums_halves": sum_distance(one, other, data),
            "means": mean_distance(rows, data), "means_halves": mean_distance(one, other),
            "worst": _worst_groups(domain, names, data, rows),
        })  # fmt: skip
        # groups with records in both, of which the largest are drawn as points
        both = np.flatnonzero((data.records > 0) & (rows.records > 0))
        points += zip(data.records[both], data.means[both], rows.means[both], strict=True)

    points = sorted(points, reverse=True)[:MOST_POINTS]
    return {
        "low": low, "high": high, "omitted": sets.omitted, "sets": results,
        "values": {"data": _share(first[0] + second[0], first[1] + second[1]), "rows": _share(drawn[0], drawn[1])},
        "data": [float(point[1]) for point in points], "rows": [float(point[2]) for point in points],
    }  # fmt: skip


def _share(records: int, known: int) -> float:
    """Return the share of records with a value; the first set is that of all records."""
    return float(known / records) if records else nan


def sum_distance(one: GroupSums, other: GroupSums, data: GroupSums) -> float:
    """Return Σ |difference of sums for each record| relative to Σ |sums of the data for each record|."""
    whole = float(np.abs(data.shares).sum())
    return float(np.abs(one.shares - other.shares).sum()) / whole if whole and one.total and other.total else nan


def mean_distance(one: GroupSums, other: GroupSums) -> float:
    """Return the mean of |difference of means| over the records of the second table, in groups with values in both."""
    both = (one.records > 0) & (other.records > 0)
    weights = other.records[both]
    return float((weights * np.abs(one.means - other.means)[both]).sum() / weights.sum()) if both.any() else nan


def _worst_groups(domain: Domain, names: AttributeSet, data: GroupSums, rows: GroupSums) -> list[dict[str, Any]]:
    """Return the groups whose sums differ most, with sums of rows scaled to the data; none for all records.

    `shares` are the sums relative to the number of all records.
    """
    if not names:
        return []

    gaps, scale = np.abs(rows.shares - data.shares), data.total / max(rows.total, 1)
    labels = [texts(domain[name]) for name in names]
    cells = np.unravel_index(np.argsort(-gaps, kind="stable")[:WORST], shape_of(domain, names))
    return [
        {"group": [label[at] for label, at in zip(labels, cell, strict=True)], "data": float(data.sums[place]),
         "rows": float(rows.sums[place] * scale), "data_mean": float(data.means[place]),
         "rows_mean": float(rows.means[place])}
        for *cell, place in zip(*cells, np.argsort(-gaps, kind="stable")[:WORST], strict=True)
    ]  # fmt: skip


@drawing
def number_plot(numbers: Mapping[str, Any]) -> str:
    """Plot the mean of every group in the rows against that in the data, one panel for each number; "" without any."""
    panels = {name: number for name, number in numbers.items() if number["data"]}
    if not panels:
        return ""

    figure, _ = new_figure(3.2, min(len(panels), MOST_PANELS))
    for axes, (name, panel) in zip(figure.axes, panels.items(), strict=False):
        ends = min(*panel["data"], *panel["rows"]), max(*panel["data"], *panel["rows"])
        axes.plot(ends, ends, color="#bbbbbb", linewidth=1, zorder=0)
        axes.scatter(panel["data"], panel["rows"], s=14, alpha=0.6, color=COLOURS[0], linewidths=0)
        axes.set_title(f"mean {name}", fontsize=9, parse_math=False)
        axes.set(xlabel="in the data", ylabel="in the rows")

    return svg(figure)
