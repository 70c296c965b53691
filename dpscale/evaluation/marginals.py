"""Distances between rows and data by attribute set: of the shares of cells, and of sums and means of numbers by group.

*Shares of cells.*
They have two reference distances. The distance is Σ |p − q| over a set's cells, which is L1/N if both tables have N
rows. The references are the distance of independent attributes (the product of the data's own 1-way shares) and the
distance between two halves of the data.

*Numbers.*
The sets are those that the workload combines with them. Sums of rows are scaled to the number of records in the data.
The distance of sums is Σ |rows − data| over the groups, relative to Σ |data|; that of means is the mean of |rows −
data| over the records of the data, in units of the column. The reference is one random half of the data against the
other. Values are clipped as in the release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import comb, isfinite, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.answers.report.figures import COLOURS, drawing, new_figure, svg
from dpscale.answers.statistics import cramers_v
from dpscale.answers.tables import texts
from dpscale.base.numerics import AttributeSet, Floats, Integers, NDArray
from dpscale.counting.count import Counter, Layout, encoded
from dpscale.counting.cover import Program, guess_rows, plan_cover
from dpscale.domain import Domain
from dpscale.domain.number import Number
from dpscale.engine.counting import Pass, partition_groups, plan_passes
from dpscale.evaluation.inputs import ComparedTable, Numbered, fold_counts, number_partitions, size_of
from dpscale.privacy.streams import PublicStream
from dpscale.workload import Workload

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

# numbers of attributes of compared sets; sets of each number; cells of a set
DEGREES, MOST, MOST_CELLS = (1, 2, 3), 500, 1 << 22

BITS = 20  # of a half of a step number, so that sums of a batch are exact as floats
MOST_PANELS, MOST_POINTS = 3, 1000  # numbers with a panel in the figure; groups in a panel
GROUP_BYTES = 16  # a number of records and a sum


@dataclass(frozen=True)
class ComparedSets:
    """Compared sets of one degree, the number of all such sets, and the number of sampled sets with too many cells."""

    sets: tuple[AttributeSet, ...]
    of: int
    too_large: int


def choose_sets(domain: Domain, names: Sequence[str], release: str) -> dict[int, ComparedSets]:
    """Return the compared sets by degree; the sample follows from the release's public name, never from the data."""
    return {degree: _of_degree(domain, domain.ordered(names), degree, release) for degree in DEGREES}


def _of_degree(domain: Domain, names: AttributeSet, degree: int, release: str) -> ComparedSets:
    """Return the sets of `degree` attributes that are compared.

    These are all, or MOST at random, without those of more than MOST_CELLS cells. The other fields
    are the number of all sets, and of chosen ones that are left out for their cells.
    """
    every = comb(len(names), degree)
    numbers = range(every) if every <= MOST else _draw_numbers(every, PublicStream(release, "compared sets", degree))
    sets = [tuple(names[i] for i in combination_at(number, len(names), degree)) for number in numbers]
    small = tuple(one for one in sets if domain.cells(one) <= MOST_CELLS)
    return ComparedSets(small, every, len(sets) - len(small))


def combination_at(number: int, count: int, degree: int) -> tuple[int, ...]:
    """Return the number-th combination of `degree` of `count` columns, in the order of `itertools.combinations`.

    Combinations that contain a column come before those that do not; `count_with` is the number of the former.
    """
    subset: list[int] = []
    for column in range(count):
        if len(subset) == degree:
            break
        count_with = comb(count - column - 1, degree - len(subset) - 1)  # sets that contain this column
        if number < count_with:
            subset.append(column)
        else:
            number -= count_with

    return tuple(subset)


def _draw_numbers(every: int, stream: PublicStream) -> list[int]:
    """Return MOST different numbers below `every`, which is larger than MOST.

    Draws are repeated until there are MOST different ones, and then sorted.
    """
    found: list[int] = []
    while len(found) < MOST:
        more = (stream.uniforms(MOST) * every).astype(np.int64).tolist()
        found = list(dict.fromkeys([*found, *more]))[:MOST]
    return sorted(found)


Pair = tuple[AttributeSet, float, float, float]  # V in the data, in the rows, and the difference of the data's halves
WORST_PAIRS = 10  # pairs with the largest differences that the summary lists


def summarise_dependence(found: Sequence[Pair]) -> dict[str, Any]:
    """Summarise Cramér's V of data and of synthetic rows over all pairs, and list the largest differences.

    A pair has the names of its attributes and V in the data, in the rows, and the difference between halves of the
    data.
    """
    pairs = sorted((pair for pair in found if all(map(isfinite, pair[1:]))), key=lambda pair: -abs(pair[1] - pair[2]))
    both = np.array([pair[1:] for pair in pairs]).reshape(-1, 3)
    gaps = np.abs(both[:, 0] - both[:, 1])
    return {
        "measure": "Cramér's V, bias corrected",
        "pairs": len(pairs),
        "mean_difference": float(gaps.mean()) if pairs else nan,
        "max_difference": float(gaps.max()) if pairs else nan,
        "halves": float(both[:, 2].mean()) if pairs else nan,
        "worst": [{"attributes": list(one[0]), "data": one[1], "rows": one[2]} for one in pairs[:WORST_PAIRS]],
        "data": both[:, 0].tolist(),
        "rows": both[:, 1].tolist(),
    }


WORST = 5  # sets of a degree, or groups of a sum, with the largest distances that the summary lists


@dataclass(frozen=True)
class SetDistances:
    """Distances of a set, nan if a table has no row.

    `dependence` is that of a pair in the data and in the rows, and the difference of the data's halves.
    """

    attributes: AttributeSet
    rows: float
    independent: float
    halves: float
    dependence: tuple[float, float, float] = (nan, nan, nan)


def compare_set(attributes: AttributeSet, first: Integers, second: Integers, drawn: Integers) -> SetDistances:
    """Return the distances of a set from counts of the data's halves and of the rows, over the same cells.

    `first` and `second` are the counts of the halves, and `drawn` those of the rows, with one axis for each attribute.
    """
    data = first + second
    dependence = nan, nan, nan
    if data.ndim == 2:
        kept = np.ix_(data.sum(1) > 0, data.sum(0) > 0)  # a value that few rows add would change the scale of V
        one, other = first[kept], second[kept]
        dependence = cramers_v(data), cramers_v(drawn[kept]), abs(cramers_v(one) - cramers_v(other))
    return SetDistances(
        attributes=attributes,
        rows=total_variation(drawn, data),
        independent=float(np.abs(independent(data) - shares(data)).sum()),
        halves=total_variation(first, second),
        dependence=dependence,
    )


def total_variation(one: Integers, other: Integers) -> float:
    """Return Σ |p − q| of the shares of cells: 0 for equal shares, 2 for tables without a cell in common."""
    return float(np.abs(shares(one) - shares(other)).sum())


def shares(counts: Integers) -> Floats:
    """Return counts as shares of their sum; nan if the sum is 0."""
    total = counts.sum()
    return counts / total if total else np.full(counts.shape, nan)


def independent(counts: Integers) -> Floats:
    """Return the shares of cells of independent attributes with the same 1-way shares."""
    axes = range(counts.ndim)
    ones = [shares(counts.sum(tuple(other for other in axes if other != axis))) for axis in axes]
    return np.asarray(reduce(np.multiply.outer, ones))


def summarise_by_degree(found: Sequence[SetDistances], sets: dict[int, ComparedSets]) -> dict[str, dict[str, Any]]:
    """Return means and maxima over the sets of each degree, and the sets with the largest distances.

    `of` is the number of sets of a degree, of which `too_large` have too many cells to be compared.
    """
    summary = {}
    for degree, compared in sets.items():
        mine = [one for one in found if len(one.attributes) == degree]
        worst = sorted(mine, key=lambda one: -one.rows)[:WORST]
        summary[str(degree)] = {
            "sets": len(mine), "of": compared.of, "too_large": compared.too_large,
            "mean": _mean([one.rows for one in mine]), "max": worst[0].rows if worst else nan,
            "independent": _mean([one.independent for one in mine]), "halves": _mean([one.halves for one in mine]),
            "worst": [{"attributes": list(one.attributes), "apart": one.rows, "halves": one.halves} for one in worst],
        }  # fmt: skip

    return summary


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else nan


TABLES = 4  # counters of two halves and of the rows, and temporary arrays


def score_all(
    engine: Engine, data: ComparedTable, rows: ComparedTable, sets: Sequence[AttributeSet], memory: int, release: str
) -> list[SetDistances]:
    """Return the distances of every set, in the order of the sets.

    The data are counted in two random halves, whose distance shows the sampling error, and the rows in one part. The
    memory is divided by TABLES, the number of tables in it at once.
    """
    found = []
    for one in plan_passes(rows.domain, sets, memory // TABLES, engine.workers):
        counts = [*_count_table(engine, data, one, 2, release), *_count_table(engine, rows, one, 1, release)]
        found += engine.map(score, [(data.domain, rows.domain, one.sets, *counts)], "compare")[0]
    return found


def _count_table(engine: Engine, side: ComparedTable, one: Pass, ways: int, release: str) -> list[Integers]:
    """Return handles of a pass's counts of a table that is split at random into `ways` parts.

    `one` is the pass: the sets that are counted together. Partitions are divided into groups for the workers, and the
    cover is planned for the largest group.
    """
    groups = partition_groups(side.table.partitions, engine.workers)
    rows = guess_rows(side.domain, max(sum(part.size() for part in group) for group in groups))
    program = Program.of(plan_cover(side.domain, one.sets, rows, one.spare))
    items = [(side.domain, program, number_partitions(side, group), ways, release) for group in groups]
    return engine.reduce(count_ways, items, ways, "count", ways * one.bytes)


def count_ways(domain: Domain, program: Program, parts: Numbered, ways: int, release: str) -> list[Integers]:
    """Count some partitions over a program's sets, each row in one of `ways` random parts; return flat arrays.

    `parts` has the number of each partition, from which the stream of the random parts follows.
    """
    counters = [Counter(program) for _ in range(ways)]
    names = list(dict.fromkeys([*program.names, *(axis.name for axis in domain.axes if axis.drops)]))
    for number, partition in parts:
        stream = PublicStream(release, "compared halves", number)
        for codes, dropped, *_ in encoded(domain, [partition], names):
            way = np.floor(stream.uniforms(codes.shape[1]) * ways)
            for index, counter in enumerate(counters):
                counter.add(codes[:, (way == index) if dropped is None else (way == index) & ~dropped])
    return [counter.finish() for counter in counters]


def score(
    data: Domain, rows: Domain, sets: Sequence[AttributeSet], first: Integers, second: Integers, drawn: Integers
) -> list[SetDistances]:
    """Return the distances of the sets of a pass, whose counts are concatenated.

    `first` and `second` are the counts of two random halves of the data, and `drawn` those of the rows. `fold_counts`
    merges the cells of each table into those that are compared.
    """
    every = [(data, first), (data, second), (rows, drawn)]
    aligned = zip(*(Layout(domain, tuple(sets)).marginals(flat) for domain, flat in every), strict=True)
    return [compare_set(same[0].attributes, *(fold_counts(one.counts, [domain[name] for name in one.attributes])
                                         for one, (domain, _) in zip(same, every, strict=True)))
            for same in aligned]  # fmt: skip


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
