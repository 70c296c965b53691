"""Targets of synthetic rows over three and more attributes, in addition to their pairs.

A *law* is a measured table over k ≥ 3 attributes that departs from what the smaller tables imply by more than rows of
this number depart by sampling. Pairs do not determine it: the parity of k fair bits has uniform tables over all k − 1
attributes. The rows are swept with feedback towards every law. With C the count of a cell without the row itself and
T its target, a value is drawn with the additional logit

    −β Σ_S (C_S + ½ − T_S) / (T_S + 1)

over the sets S with its attribute, so rows leave cells with too many rows for the nearest cells with too few.
*Polished* rows have further targets: triples of the model whose counts have the largest sampling error.

Tables of a triple i < j < k over groups are concatenated in vectors of `cells` entries, row-major. The loops store
every table three times as float32, once for each attribute with its values last and followed by their slopes, so that
the entries for one attribute are adjacent. Tables over more attributes, which are few, are stored once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.numerics import AttributeSet, Floats, Integers, ParallelMap, serial_map
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.pairwise import FLOOR, STEP, PairLayout, PairwiseModel, Sweeper, add_triples
from dpscale.reconstruction.pairwise_loops import BEHIND
from dpscale.storage.files import reading, writing
from dpscale.synthesis import loops
from dpscale.synthesis.quality import expected_distance
from dpscale.synthesis.set_layout import SetLayout

BYTES_A_CELL = 48  # all vectors of a sweep together
# triples if a sweep over all would exceed MOST_STEPS, and sets of a larger degree; first attributes whose triples are
# considered; rows times triples that are counted to choose them
MOST_SETS, MOST_ATTRIBUTES, MOST_COUNTED = 256, 200, 1 << 28
MOST_LAWS, LEAST_DEPARTURE = 1024, 0.5  # departure of a law, as a share of the sampling error of rows
LARGER, MOST_STEPS = (4, 5), 1 << 28  # attributes of further targets of small tables; additions of a sweep over them


@dataclass(frozen=True, eq=False)
class TripleLayout:
    """Layout of triples.

    Attributes
    ----------
    sizes : ndarray of int64, shape (d,)
        Number of groups of every attribute.
    sets : ndarray of int64, shape (t, 3)
        Attributes of each triple, ascending.
    """

    sizes: Integers
    sets: Integers

    @cached_property
    def ends(self) -> Integers:
        """Start of each triple's table, and the end of the last, shape (t + 1,)."""
        return np.concatenate([[0], np.cumsum(self.sizes[self.sets].prod(axis=1))]).astype(np.int64)

    @property
    def cells(self) -> int:
        """Number of entries of a flat vector."""
        return int(self.ends[-1])

    def of(self, vector: Floats, number: int) -> Floats:
        """Return a view of a triple's table."""
        shape = tuple(int(size) for size in self.sizes[self.sets[number]])
        return vector[self.ends[number] : self.ends[number + 1]].reshape(shape)

    @cached_property
    def degrees(self) -> Integers:
        """Number of triples that contain each attribute, shape (d,)."""
        return np.bincount(self.sets.ravel(), minlength=len(self.sizes)).astype(np.int64)

    @cached_property
    def around(self) -> Integers:
        """Triples of every attribute i, as arguments of the loops, shape (d, most, 11).

        The two others j and k, then the position of a cell in the loops' vectors, three times: by i, as its start and
        the factors of the values of j and k (those of i are adjacent); by j, of i and k; by k, of i and j.
        """
        lines = np.zeros((len(self.sizes), max(1, self.degrees.max(initial=0)), 11), np.int64)
        filled = np.zeros(len(self.sizes), np.int64)
        for number, triple in enumerate(self.sets.tolist()):
            for i in triple:
                j, k = (other for other in triple if other != i)
                # start ([-1]) and factors by attribute, for the orientations of i, j and k
                by_i, by_j, by_k = (self._by(number, last) for last in (i, j, k))
                lines[i, filled[i]] = [j, k, by_i[-1], by_i[j], by_i[k], by_j[-1], by_j[i], by_j[k],
                                       by_k[-1], by_k[i], by_k[j]]  # fmt: skip
                filled[i] += 1

        return lines

    def _by(self, number: int, last: int) -> dict[int, int]:
        """Return the factors of the others' values if those of `last` are adjacent; −1: start of the table."""
        triple = self.sets[number].tolist()
        second, third = (i for i in triple if i != last)
        cells = int(self.ends[number + 1] - self.ends[number])
        start = 6 * int(self.ends[number]) + 2 * triple.index(last) * cells
        size = 2 * int(self.sizes[last])
        return {-1: start, second: int(self.sizes[third]) * size, third: size}


def sets_of(layout: PairLayout, rows: NDArray[np.int32], memory: int, count: float) -> Integers:
    """Return the triples with the largest sampling noise whose pairs are all used, shape (t, 3).

    All that fit the memory are chosen if a sweep over them has at most MOST_STEPS additions, else MOST_SETS. The
    sampling noise of a count C is about √C, and polishing does not reduce it if C is below 1. `rows` is a table
    similar to the `count` rows to be drawn.
    """
    triples = _every(min(len(layout.sizes), MOST_ATTRIBUTES))
    i, j, k = triples.T
    complete = triples[layout.used[i, j] & layout.used[i, k] & layout.used[j, k]]
    steps = 3 * int(layout.sizes[complete].sum()) * count
    most = len(complete) if steps <= MOST_STEPS else MOST_SETS
    root_sums = loops.count_roots(rows[: max(1, MOST_COUNTED // max(1, len(complete)))], complete, layout.sizes)
    order = np.argsort(-root_sums, kind="stable")[:most]
    selected = order[np.cumsum(layout.sizes[complete[order]].prod(axis=1)) * BYTES_A_CELL <= memory]
    return complete[np.sort(selected)]


def _every(attributes: int) -> Integers:
    """Return all triples of the first `attributes` attributes, shape (t, 3)."""
    return np.array(list(combinations(range(attributes), 3)), np.int64).reshape(-1, 3)


THREES, LAWS = "targets.npz", "laws.npz"  # of polished and of other rows
BETAS = (  # strengths for pairs, triples, larger laws and other larger sets
    (16.0, 16.0, 16.0, 1.0),
    (256.0, 64.0, 64.0, 1.0),
    (1024.0, 256.0, 64.0, 0.25),
    (4096.0, 1024.0, 64.0, 0.0),
)
BETAS_OF_TRIPLES = (*BETAS[1:2], (4096.0, 128.0, 64.0, 0.0))  # without larger sets: pairs imply the other triples


@dataclass(frozen=True, eq=False)
class SetTargets:
    """Targets over sets of three and more attributes.

    Attributes
    ----------
    triples : TripleLayout
    shares : ndarray
        Shares of all rows in every cell of the triples, flat.
    wide : SetLayout
        Sets of four and more attributes.
    wide_shares : ndarray
        Shares of all rows in every cell of the wide sets, flat.
    laws : tuple of tuple of int
        The sets that are laws.
    """

    triples: TripleLayout
    shares: Floats
    wide: SetLayout
    wide_shares: Floats
    laws: tuple[tuple[int, ...], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is no set."""
        return not len(self.triples.sets) and not self.wide.sets

    @property
    def betas(self) -> tuple[tuple[float, float, float, float], ...]:
        """Strengths of the sweeps: pairs and triples are fitted once more after larger sets."""
        return BETAS if self.wide.sets else BETAS_OF_TRIPLES

    @property
    def tables(self) -> Iterator[tuple[tuple[int, ...], Floats]]:
        """Attributes and shares of every set.

        Triples come first, then the larger sets.
        """
        for number, columns in enumerate(self.triples.sets.tolist()):
            yield tuple(columns), self.triples.of(self.shares, number)
        for number, columns in enumerate(self.wide.sets):
            yield columns, self.wide.of(self.wide_shares, number)


def laws_of(model: LowOrder, rows: float) -> list[AttributeSet]:
    """Return the measured sets of three and more attributes that `rows` rows would lose without a target.

    The table of such a set departs from the one that the smaller tables imply by more than LEAST_DEPARTURE times the
    distance of independent rows from it. At most MOST_LAWS sets are returned, in the order of the tables.
    """
    laws: list[AttributeSet] = []
    measured = [names for names in model.tables if len(names) > 2 and names in model.measured]
    for degree in sorted({len(names) for names in measured}):
        smaller = replace(model, tables={names: table for names, table in model.tables.items() if len(names) < degree})
        sets = [names for names in measured if len(names) == degree]
        for names, implied in smaller.coarse_marginals(sets).items():
            table = model.tables[names]
            departure = float(np.abs(table - implied).sum()) / (2 * model.total)
            chance = expected_distance(np.maximum(table, 0) / max(float(table.sum()), 1.0), max(round(rows), 1))
            if departure > LEAST_DEPARTURE * chance:
                laws.append(names)

    return laws[:MOST_LAWS]


def set_targets(
    pairwise: PairwiseModel,
    model: LowOrder,
    release: str,
    memory: int,
    rows: float,
    polish: bool = True,
    each: ParallelMap = serial_map,
) -> SetTargets:
    """Return the targets of the laws and, of polished rows, of the triples with the largest sampling error.

    Parameters
    ----------
    pairwise : PairwiseModel
        Model of all pairs, and prototype rows by which the triples are chosen.
    model : LowOrder
        Tables from which the estimates come, over the same groups.
    release : str
        Public name of the release.
    memory : int
        Bytes; laws come before triples, in the order of the model's tables.
    rows : float
        Number of rows.
    polish : bool
        Whether rows are polished.
    each : callable
        Parallel map.
    """
    layout, remaining_memory = pairwise.targets.layout, memory
    laws: list[AttributeSet] = []
    for names in laws_of(model, rows):
        needed = model.cells(names) * BYTES_A_CELL
        if needed <= remaining_memory:
            laws.append(names)
            remaining_memory -= needed

    # laws first, then triples and larger sets in the memory that is left
    place = {name: number for number, name in enumerate(layout.names)}
    columns = [tuple(place[name] for name in names) for names in laws]
    chosen = sets_of(layout, pairwise.rows, remaining_memory, rows).tolist() if polish else []
    threes = sorted({*(law for law in columns if len(law) == 3), *map(tuple, chosen)})
    triples = TripleLayout(layout.sizes, np.array(threes, np.int64).reshape(-1, 3))
    wide_sets = [law for law in columns if len(law) > 3]
    remaining_memory -= triples.cells * BYTES_A_CELL
    wide_sets += _larger_sets(layout.sizes, rows, remaining_memory) if polish else []
    wide = SetLayout(layout.sizes, tuple(dict.fromkeys(wide_sets)))

    # the model answers all sets: with tables of the triples that it lacks, estimated from the pairs
    named = [tuple(layout.names[i] for i in triple) for triple in triples.sets.tolist()]
    full_model = add_triples(model, pairwise, [names for names in named if names not in model.tables], release, each)
    tables, shares = full_model.coarse_marginals(named), np.zeros(triples.cells)
    for number, names in enumerate(named):
        triples.of(shares, number)[:] = np.maximum(tables[names], 0) / model.total
    wide_names = [tuple(layout.names[i] for i in wide_set) for wide_set in wide.sets]
    wide_tables, wide_shares = full_model.coarse_marginals(wide_names), np.zeros(wide.cells)
    for number, names in enumerate(wide_names):
        wide.of(wide_shares, number)[:] = np.maximum(wide_tables[names], 0) / model.total

    return SetTargets(
        triples=triples, shares=_rounded(shares), wide=wide, wide_shares=_rounded(wide_shares), laws=tuple(columns)
    )


def _larger_sets(sizes: Integers, rows: float, memory: int) -> list[tuple[int, ...]]:
    """Return all sets of four, and then all of five attributes, if they fit the memory and MOST_STEPS.

    Tables of few attributes have small cells over most of them, in which rows depart from the estimates by sampling.
    """
    larger, steps_left, cells_left = list[tuple[int, ...]](), MOST_STEPS / max(rows, 1), memory / BYTES_A_CELL
    for degree in LARGER:
        sets = islice(combinations(range(len(sizes)), degree), MOST_SETS + 1)
        tables = [(columns, sizes[list(columns)]) for columns in sets]
        steps_left -= degree * sum(int(sizes_of_set.sum()) for _, sizes_of_set in tables)
        cells_left -= sum(int(sizes_of_set.prod()) for _, sizes_of_set in tables)
        if len(tables) > MOST_SETS or steps_left < 0 or cells_left < 0:
            break
        larger += [columns for columns, _ in tables]
    return larger


def _rounded(shares: Floats) -> Floats:
    return np.asarray(np.rint(shares / STEP) * STEP)


class Polisher(Sweeper):
    """Sweeper with additional feedback towards target counts of larger sets, `aims` of triples and of wide sets."""

    def __init__(self, targets: SetTargets, aims: Floats, wide_aims: Floats, *arguments: Any) -> None:
        """Take the target counts of triples and of wide sets; `arguments` are those of `Sweeper`.

        `_own` has the current counts of triples. `_of_laws` flags the cells of wide sets that are laws.
        """
        super().__init__(*arguments)
        self._sets, self._aims, self._own = targets.triples, aims, np.zeros(targets.triples.cells)
        self._around, self._sets_of = (array.view(np.uint64) for array in (self._sets.around, self._sets.degrees))
        self._threes = np.zeros(6 * self._sets.cells + BEHIND, np.float32)
        self._wide, self._wide_aims = targets.wide, wide_aims
        self._wide_around, self._wide_of = (array.view(np.uint64) for array in (self._wide.around, self._wide.degrees))
        laws = np.array([columns in targets.laws for columns in self._wide.sets], bool)
        self._of_laws = np.repeat(laws, np.diff(self._wide.ends))

    def polish(self, beta: float, three_beta: float, law_beta: float, wide_beta: float) -> None:
        """Redraw every value, with feedback of these strengths for pairs, triples, larger laws and other sets.

        `slopes` are β/(T + FLOOR) with the strength β of the kind of set, and weights slope · (T − C − ½).
        """
        sets, ends, sizes = self._sets.sets, self._sets.ends, self._sets.sizes
        self._own[:] = 0
        loops.count_triples(self.rows, sets, ends, sizes, self._own)
        loops.weigh_triples(sets, ends, sizes, self._aims, self._own, FLOOR, three_beta, self._threes)

        counts = self._wide.count(self.rows)
        slopes = np.where(self._of_laws, law_beta, wide_beta) / (self._wide_aims + FLOOR)
        self._wide_slopes = slopes.astype(np.float32)
        self._wide_weights = (slopes * (self._wide_aims - counts - 0.5)).astype(np.float32)
        self.sweep(beta)


def write_targets(path: Path, selected: SetTargets) -> None:
    """Write targets exactly into one file; it is not flushed to disk, because it can be recomputed for free."""
    wide, laws = (np.array(json.dumps(sets)) for sets in (selected.wide.sets, selected.laws))
    with writing(path, durable=False) as file:
        np.savez(file, allow_pickle=False, sizes=selected.triples.sizes, sets=selected.triples.sets,
                 shares=selected.shares, wide=wide, wide_shares=selected.wide_shares, laws=laws)  # fmt: skip


def read_targets(path: Path) -> SetTargets:
    """Return the targets in a file."""
    with reading(path) as file, np.load(file, allow_pickle=False) as arrays:
        sizes = arrays["sizes"]
        wide, laws = (tuple(map(tuple, json.loads(str(arrays[name])))) for name in ("wide", "laws"))
        triples = TripleLayout(sizes, arrays["sets"])
        return SetTargets(
            triples=triples,
            shares=arrays["shares"],
            wide=SetLayout(sizes, wide),
            wide_shares=arrays["wide_shares"],
            laws=laws,
        )
