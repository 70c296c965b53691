"""Distance between the shares of cells in rows and in the data, by attribute set, with two reference distances.

The distance is Σ |p − q| over a set's cells, which is L1/N if both tables have N rows. The references are the distance
of independent attributes (the product of the data's own 1-way shares) and the distance between two halves of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import comb, isfinite, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.answers.statistics import cramers_v
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.counting.count import Counter, Layout, encoded
from dpscale.counting.cover import Program, guess_rows, plan_cover
from dpscale.domain import Domain
from dpscale.engine.counting import Pass, partition_groups, plan_passes
from dpscale.evaluation.inputs import ComparedTable, Numbered, fold_counts, number_partitions
from dpscale.privacy.streams import PublicStream

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

# numbers of attributes of compared sets; sets of each number; cells of a set
DEGREES, MOST, MOST_CELLS = (1, 2, 3), 500, 1 << 22


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
