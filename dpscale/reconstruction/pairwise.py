"""Pairwise maximum-entropy model of all measured pairs: it completes unmeasured pairs and generates rows.

Low-order tables estimate an unmeasured pair from its strongest chain alone. A model of all measured pairs uses all
chains together. It is learnt by sampling, so its size is not limited by a junction tree: `learn` sweeps over prototype
rows (`pairwise_loops`) until the model reproduces the measured counts, and reads off the other pairs. The initial
values are rounded, so that machines whose floats differ in the last bits learn the same model.

Rows start independent and are swept with increasing feedback. The remaining error is integrated into the pairs' own
logits, θ += κ β (T − C)/S (a proportional–integral controller), so that finally the model itself reproduces the
measured counts and the feedback only removes the noise of sampling. Feedback alone would bias C, and rows would not
change if one value nearly determines another.

Tables of a pair i < j are concatenated in vectors of `cells` entries, row-major in (value of i, value of j). The loops
store every pair twice more as float32, in both orientations, so that the entries for one attribute are adjacent.

*Measured pairs that contradict each other.*
They are moved towards the pairs that rows can have together. The released estimates of different pairs may not be the
pairs of any table: each has noise of its own, and only 1-ways agree. Rows that are swept with strong feedback towards
all of them have the nearest pairs that one table has, up to sampling. A projection onto a convex set that contains the
true pairs does not increase the error. With e the shares of a pair, and s and t its shares in two halves of the rows,
which are swept independently, the pair becomes

    e + α ((s + t)/2 − e),    α = Σ (s − e)(t − e)/p over Σ ((s + t)/2 − e)²/p

with p the product of its 1-ways. α is the share of the departure that both halves have: 0 if they depart from e by
sampling alone, as they do from pairs that agree.

*Sets of three that were not measured.*
Their pairs imply a table, from which the pairwise model departs. The prototype rows are swept further, and counted in
the cells of every set in two halves s and t. With p the table that the pairs alone imply, the departure is α ((s + t)/2
− p), where α = Σ (s − p)(t − p)/p over Σ ((s + t)/2 − p)²/p is the share of it that both halves have. Measured sets of
three tell how much of the model's departures is real.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.numerics import (
    AttributeSet,
    Floats,
    Integers,
    Integers32,
    NDArray,
    ParallelMap,
    named_task,
    serial_map,
)
from dpscale.domain.rules import DomainConstraint, restored
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction import pairwise_loops as loops
from dpscale.reconstruction.entropy import LowOrder, Margin, proportional_fit
from dpscale.reconstruction.fitting_loops import fit_pair
from dpscale.reconstruction.pairwise_loops import count_triple
from dpscale.storage.files import reading, writing
from dpscale.workload.residual import Groups

STEP = 2.0**-30  # shares are multiples of it, so that they do not depend on the last bits of floats
BYTES_A_CELL = 64  # all vectors of a sweep together

# further sweeps; sets of three counted at most, and their cells together
SWEEPS, MOST_SETS, MOST_CELLS = 12, 1 << 14, 1 << 23
# of a fit to pairs: rounds; L1 distance in shares of the total; least share of a cell's expectation, and least divisor;
# fewest measured sets that tell how much of the departures is real
ROUNDS, TOLERANCE, LEAST_TRIPLE, FEW = 12, 1e-5, 1e-3, 3

AGREED_BETAS = (16.0, 256.0)  # strength of the feedback in each sweep


@dataclass(frozen=True, eq=False)
class PairLayout:
    """Layout of pairs.

    Attributes
    ----------
    names : tuple of str
        Attributes.
    sizes : ndarray of int64, shape (d,)
        Number of groups of each attribute.
    used : ndarray of bool, shape (d, d)
        Pairs that have tables.
    """

    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    used: NDArray[np.bool_]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Start of each pair's table, shape (d, d, 2): in the flat vectors and in the loops' vectors; −1: none.

        In the loops' vectors a pair i < j is stored twice: at 2 · start with the entries over i adjacent, and behind it
        with those over j.
        """
        starts = np.full((len(self.sizes), len(self.sizes), 2), -1, np.int64)
        at = 0
        for i, j in self.pairs:
            size = int(self.sizes[i] * self.sizes[j])
            starts[i, j, 0] = starts[j, i, 0] = at
            starts[i, j, 1], starts[j, i, 1] = 2 * at, 2 * at + size
            at += size
        return starts

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs i < j in use."""
        return [(int(i), int(j)) for i, j in zip(*np.nonzero(np.triu(self.used, 1)), strict=True)]

    @cached_property
    def cells(self) -> int:
        """Number of entries of a flat vector."""
        return sum(int(self.sizes[i] * self.sizes[j]) for i, j in self.pairs)

    @cached_property
    def ones_at(self) -> NDArray[np.int64]:
        """Start of each attribute's groups in a vector of all 1-way marginals."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    @property
    def steps(self) -> int:
        """Approximate number of additions of a sweep over one row, if all pairs are active."""
        return int(sum(self.used[i].sum() * self.sizes[i] for i in range(len(self.sizes))))

    def of(self, vector: Floats, i: int, j: int) -> Floats:
        """Return a view of the table of a pair i < j."""
        start, rows, columns = self.starts[i, j, 0], self.sizes[i], self.sizes[j]
        return vector[start : start + rows * columns].reshape(rows, columns)

    def one(self, vector: Floats, i: int) -> Floats:
        """Return a view of an attribute's entries in a vector of all 1-way marginals."""
        return vector[self.ones_at[i] : self.ones_at[i] + self.sizes[i]]

    def within(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which entries of a flat vector belong to the chosen pairs."""
        inside = np.zeros(self.cells, np.bool_)
        for i, j in self.pairs:
            start = self.starts[i, j, 0]
            inside[start : start + self.sizes[i] * self.sizes[j]] = chosen[i, j]
        return inside


@dataclass(frozen=True, eq=False)
class PairTargets:
    """Targets of rows, as shares of all rows.

    Attributes
    ----------
    layout : PairLayout
    ones : ndarray
        1-way marginals, concatenated.
    shares : ndarray
        Pairs, flat.
    known : ndarray of bool, shape (d, d)
        Pairs that were measured; the others are implied by a model.
    """

    layout: PairLayout
    ones: Floats
    shares: Floats
    known: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class CellDistribution:
    """Distribution of each attribute's groups over cells.

    Attributes
    ----------
    groups : mapping of str to Groups
    ones : mapping of str to ndarray
        1-way marginals over cells.
    rules : tuple of DomainConstraint
        Structural zeros and functional dependencies of the domain.
    """

    groups: Mapping[str, Groups]
    ones: Mapping[str, Floats]
    rules: tuple[DomainConstraint, ...] = ()


def pair_targets(model: LowOrder, memory: int) -> PairTargets:
    """Return the pairs of a model as targets; a pair without a table is independent.

    If not all pairs fit the memory, measured and small ones are preferred.

    A share is a count over the number of records. `known` are the pairs that were measured.
    """
    layout = _layout(model, memory)
    ones = _rounded(np.concatenate([model.coarse[name] / model.total for name in layout.names]))
    shares, known = np.empty(layout.cells), np.zeros_like(layout.used)
    for i, j in layout.pairs:
        key = layout.names[i], layout.names[j]
        table = model.tables.get(key)
        independent = np.multiply.outer(layout.one(ones, i), layout.one(ones, j))
        layout.of(shares, i, j)[:] = _rounded(independent if table is None else np.asarray(table) / model.total)
        known[i, j] = known[j, i] = key in model.measured

    return PairTargets(layout=layout, ones=ones, shares=shares, known=known)


def _rounded(shares: Floats) -> Floats:
    """Round to a multiple of STEP, which is coarser than the last bits of floats."""
    return np.asarray(np.rint(shares / STEP) * STEP)


def _layout(model: LowOrder, memory: int) -> PairLayout:
    """Return the layout of the pairs that fit into a memory, in bytes: measured and small ones come first."""
    names = tuple(model.ones)
    sizes = np.array([model.groups[name].count for name in names], np.int64)
    used, cells_left = np.zeros((len(names), len(names)), np.bool_), memory // BYTES_A_CELL
    for i, j in sorted(combinations(range(len(names)), 2), key=lambda pair: _order(model, names, sizes, pair)):
        cells_left -= int(sizes[i] * sizes[j])
        used[i, j] = used[j, i] = cells_left >= 0
    return PairLayout(names, sizes, used)


def _order(model: LowOrder, names: tuple[str, ...], sizes: NDArray[np.int64], pair: tuple[int, int]) -> tuple[int, int]:
    """Return a sort key: measured pairs, then pairs implied by chains, then the rest; small before large."""
    key = names[pair[0]], names[pair[1]]
    return (0 if key in model.measured else 1 if key in model.tables else 2), int(sizes[pair[0]] * sizes[pair[1]])


FLOOR = 1.0  # rows added to a cell's target when its error is scaled
LEAST_WEIGHT = 1e-9  # least share before its logarithm
LOG_UNIT = 2.0**20  # libraries differ in the last bits of a logarithm


@dataclass(eq=False)
class Sweeper:
    """Gibbs sampler over rows with feedback towards target counts of pairs.

    The energy of the table is −Σ_rows [Σ_i u_i + Σ_{i<j} θ_ij] + β/2 Σ_cells (C − T)² / (T + 1). The conditional of a
    value follows from it, with C excluding the row itself.

    Attributes
    ----------
    layout : PairLayout
    ones : ndarray
        1-way marginals, concatenated.
    rows : ndarray of int32, shape (n, d)
        Groups, in random order: they are redrawn one after the other.
    target_counts : ndarray
        Target counts of every pair's cells.
    theta : ndarray
        Logits of the pairs.
    active : ndarray of bool, shape (d, d)
        Pairs in the energy.
    stream : PublicStream
    counts : ndarray
        Current counts of every pair's cells.
    """

    layout: PairLayout
    ones: Floats
    rows: NDArray[np.int32]
    target_counts: Floats
    theta: Floats
    active: NDArray[np.bool_]
    stream: PublicStream
    counts: Floats = field(init=False)

    def __post_init__(self) -> None:
        """Allocate the arrays of the compiled sweeps, and count the rows.

        A plain sweeper has no sets of three or more attributes, so `_around`, `_threes` and `_wide_around` are empty or
        0; `Polisher` replaces them. `_alone` has logarithms of 1-way shares, rounded to multiples of 1/LOG_UNIT, so
        that platforms agree.
        """
        layout, attributes = self.layout, len(self.layout.sizes)
        self.scale = self.target_counts + FLOOR
        self.counts = np.zeros(layout.cells)
        self._alone = (np.rint(np.log(np.maximum(self.ones, LEAST_WEIGHT)) * LOG_UNIT) / LOG_UNIT).astype(np.float32)
        self._degrees = self.active.sum(axis=1).astype(np.uint64)
        self._neighbours = neighbours(layout, self.active)
        self._weights, self._slopes = (np.zeros(2 * layout.cells + loops.BEHIND, np.float32) for _ in range(2))
        self._around, self._sets_of = np.zeros((attributes, 1, 11), np.uint64), np.zeros(attributes, np.uint64)
        self._wide_around, self._wide_of = np.zeros((attributes, 1, 2), np.uint64), np.zeros(attributes, np.uint64)
        self._threes = np.zeros(loops.BEHIND, np.float32)
        self._wide_weights, self._wide_slopes = np.zeros(0, np.float32), np.zeros(0, np.float32)
        self._state = self.stream.state()
        self._count()

    def sweep(self, beta: float) -> None:
        """Redraw every value, with feedback of strength β.

        θ (`theta`) are the logits of the pairs, and a weight is θ − β (C + ½ − T)/S with the counts C, the targets T
        and `scale` S; attributes are redrawn in random order (`turn`).
        """
        layout = self.layout
        loops.weigh(layout.starts, self.active, layout.sizes, self.target_counts, self.scale, self.theta, self.counts,
                    float(beta), self._weights, self._slopes)  # fmt: skip
        turn = self.stream.permutation(len(layout.sizes))
        loops.sweep(self.rows, self._neighbours, self._degrees, self._around, self._sets_of, self._wide_around,
                    self._wide_of, layout.sizes.view(np.uint64), self._alone, layout.ones_at.view(np.uint64),
                    self._weights, self._slopes, self._threes, self._wide_weights, self._wide_slopes, self._state,
                    turn)  # fmt: skip
        self._count()

    def _count(self) -> None:
        loops.count_pairs(self.rows, self.layout.starts, self.layout.used, self.layout.sizes, self.counts)


def neighbours(layout: PairLayout, active: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return the neighbours of every attribute, shape (d, d, 4).

    For each neighbour: its number, the start of the pair in both orientations, and its size.
    """
    table = np.zeros((len(active), len(active), 4), np.uint64)
    for i in range(len(active)):
        others = np.flatnonzero(active[i])
        begun = layout.starts[i, others, 1], layout.starts[others, i, 1]
        table[i, : len(others)] = np.stack([others, *begun, layout.sizes[others]], axis=1)
    return table


def independent_rows(layout: PairLayout, ones: Floats, count: int, stream: PublicStream) -> NDArray[np.int32]:
    """Return rows of independent attributes that match the 1-way marginals, shape (count, d)."""
    columns = [stream.systematic(layout.one(ones, i), count) for i in range(len(layout.sizes))]
    return np.ascontiguousarray(np.stack(columns, axis=1))


Start = Callable[[PairTargets, int, PublicStream], tuple[NDArray[np.int32], Floats]]
PROTOTYPES = 20_000  # default number of rows that are swept
BETAS = (0.5,) * 2 + (1.0,) * 6 + (2.0,) * 6  # strength β of the feedback in each sweep
# κ; sweeps whose counts are averaged; share of chains in an unmeasured pair
KAPPA, LAST_SWEEPS, CHAIN_SHARE = 0.3, 6, 0.3
POPULATIONS, LEAST_POPULATION = 4, 4000  # rows of a population
# of the fit of unmeasured pairs: rounds; L1 distance of shares; least share
FIT_ROUNDS, FIT_TOLERANCE, LEAST = 20, 1e-9, 1e-12


@dataclass(frozen=True, eq=False)
class PairwiseModel:
    """Pairwise model.

    Attributes
    ----------
    targets : PairTargets
        Target shares of all pairs.
    theta : ndarray
        Logits of the measured pairs.
    rows : ndarray of int32, shape (n, d)
        Prototype rows over groups.
    """

    targets: PairTargets
    theta: Floats
    rows: NDArray[np.int32]


def independent_start(targets: PairTargets, count: int, stream: PublicStream) -> tuple[NDArray[np.int32], Floats]:
    """Return independent rows and θ = 0 as the start."""
    return independent_rows(targets.layout, targets.ones, count, stream), np.zeros(targets.layout.cells)


@dataclass(frozen=True, eq=False)
class Population:
    """Result of learning from some of the prototype rows.

    Attributes
    ----------
    theta : ndarray
        Logits of the measured pairs.
    rows : ndarray of int32, shape (n, d)
        Groups.
    sampled : ndarray, shape (2, cells)
        Sums of the counts of pairs over the sweeps of two halves.
    """

    theta: Floats
    rows: Integers32
    sampled: Floats


def learn(
    targets: PairTargets,
    release: str,
    count: int = PROTOTYPES,
    start: Start = independent_start,
    each: ParallelMap = serial_map,
) -> PairwiseModel:
    """Return a pairwise model learnt by sweeps over rows; unmeasured pairs combine the model's counts and chains.

    Rows are swept in independent populations, whose logits are averaged. Each may be a task of the parallel map. A
    population returns the sums of counts over two halves of its last sweeps, LAST_SWEEPS // 2 sweeps each, so `sampled`
    has the shares of both halves. Unmeasured pairs mix these shares with those of chains (`targets.shares`) by
    CHAIN_SHARE, and `_fitted` gives all pairs the 1-way marginals.

    Parameters
    ----------
    targets : PairTargets
    release : str
        Public name of the release, which defines the random streams.
    count : int
        Number of prototype rows.
    start : callable
        Returns the first rows and their θ.
    each : callable
        Parallel map.
    """
    parts = np.diff(population_ends(count)).tolist()
    populations = list(each(partial(_learn_population, targets, release, start), list(enumerate(parts))))
    sampled = np.sum([population.sampled for population in populations], axis=0) / (LAST_SWEEPS // 2 * count)
    theta = np.mean([population.theta for population in populations], axis=0)
    shares = np.where(
        targets.layout.within(targets.known),
        targets.shares,
        (1 - CHAIN_SHARE) * _shrunk_target(targets, *sampled) + CHAIN_SHARE * targets.shares,
    )
    rows = np.concatenate([population.rows for population in populations])

    return PairwiseModel(_fitted(replace(targets, shares=shares)), theta, rows)


def population_ends(count: int) -> Integers:
    """Return the ends of the populations of `count` rows, from 0; a population has at least LEAST_POPULATION rows."""
    populations = min(max(count // LEAST_POPULATION, 1), POPULATIONS)
    return np.arange(populations + 1) * count // populations


@named_task("learn-pairs")
def _learn_population(targets: PairTargets, release: str, start: Start, part: tuple[int, int]) -> Population:
    """Learn from some rows; `part` is the number of the population and that of its rows.

    After each sweep, θ changes by κ β (T − C)/S on measured cells, with the targets T, the counts C and the scale S = T
    + FLOOR. The last sweeps are summed in two halves, `sampled`.

    `start` returns the first rows and θ. A population is learnt without any other, from its own random stream.
    """
    number, count = part
    layout, stream = targets.layout, PublicStream(release, f"learn {number}" if number else "learn")
    rows, theta = start(targets, count, stream)
    target_counts = targets.shares * count
    sweeper = Sweeper(
        layout=layout,
        ones=targets.ones,
        rows=rows,
        target_counts=target_counts,
        theta=theta,
        active=targets.known,
        stream=stream,
    )
    measured, sampled = layout.within(targets.known), np.zeros((2, layout.cells))

    for sweep, beta in enumerate(BETAS):
        sweeper.sweep(beta)
        sweeper.theta += np.where(measured, KAPPA * beta * (target_counts - sweeper.counts) / sweeper.scale, 0)
        sweeps_left = len(BETAS) - sweep
        if sweeps_left <= LAST_SWEEPS:
            # 0 for the first half of the last sweeps, 1 for the second
            half = int(2 * sweeps_left <= LAST_SWEEPS)
            sampled[half] += sweeper.counts

    return Population(sweeper.theta, rows, sampled)


def _shrunk_target(targets: PairTargets, first_half: Floats, second_half: Floats) -> Floats:
    """Return the mean of two halves of the sweeps, with its departure from independence shrunk by their agreement.

    Σ (s − p)(t − p)/p contains no sampling noise; Σ (m − p)²/p of the mean m does.

    With s and t the shares of both halves, m their mean and p independence, the pair becomes p + α (m − p), where α is
    the ratio of these two sums, between 0 and 1 and rounded to steps. `layout.of` is the table of a pair as a view,
    which the loop overwrites in `mean`.
    """
    layout, mean = targets.layout, (first_half + second_half) / 2
    for i, j in layout.pairs:
        alone = np.multiply.outer(layout.one(targets.ones, i), layout.one(targets.ones, j))
        first, second = layout.of(first_half, i, j) - alone, layout.of(second_half, i, j) - alone
        table, weight = layout.of(mean, i, j), 1 / np.maximum(alone, LEAST)
        of_mean = float((weight * (table - alone) ** 2).sum())
        agreement = float((weight * first * second).sum()) / max(of_mean, LEAST)
        table[:] = alone + round(min(max(agreement, 0.0), 1.0) / STEP) * STEP * (table - alone)

    return mean


def learning_steps(targets: PairTargets, count: int = PROTOTYPES) -> int:
    """Return the approximate number of additions of `learn`; 10^9 take about a second."""
    active = targets.known.sum(axis=1) * targets.layout.sizes
    return int(active.sum()) * count * len(BETAS)


def complete_pairs(model: LowOrder, pairwise: PairwiseModel) -> LowOrder:
    """Return the low-order tables with every unmeasured pair taken from the pairwise model."""
    layout, tables = pairwise.targets.layout, dict(model.tables)
    for i, j in layout.pairs:
        pair = {layout.names[i], layout.names[j]}
        if not pairwise.targets.known[i, j] and not any(pair < set(names) for names in model.measured):
            table = np.ascontiguousarray(layout.of(pairwise.targets.shares, i, j) * model.total)
            names = layout.names[i], layout.names[j]
            tables[names] = model.impose_rules(names, table)
    return replace(model, tables=tables)


def _fitted(targets: PairTargets) -> PairTargets:
    """Fit the unmeasured pairs to the 1-way marginals, so that drawn rows can match both."""
    layout = targets.layout
    for i, j in layout.pairs:
        if not targets.known[i, j]:
            table = np.maximum(layout.of(targets.shares, i, j), LEAST)
            rows, columns = (np.ascontiguousarray(layout.one(targets.ones, k)) for k in (i, j))
            fit_pair(table, rows, columns, FIT_ROUNDS, FIT_TOLERANCE)
            layout.of(targets.shares, i, j)[:] = table
    return targets


PAIRWISE = "pairwise.npz"


def write_pairwise(path: Path, pairwise: PairwiseModel, cells: CellDistribution, total: float) -> None:
    """Write a model exactly into one file; it is not flushed to disk, because it can be recomputed for free.

    `cells` has the groups of cells, the 1-way marginals and the rules; the index has what is no array.
    """
    targets, names = pairwise.targets, pairwise.targets.layout.names
    index: dict[str, Any] = {
        "total": total,
        "names": names,
        "groups": {name: [cells.groups[name].size, *cells.groups[name].starts] for name in names},
    }
    if cells.rules:
        index["rules"] = [rule.to_dict() for rule in cells.rules]
    arrays = {"sizes": targets.layout.sizes, "used": targets.layout.used, "ones": targets.ones,
              "shares": targets.shares, "known": targets.known, "theta": pairwise.theta,
              "rows": pairwise.rows}  # fmt: skip
    arrays |= {f"one{i}": cells.ones[name] for i, name in enumerate(names)}
    with writing(path, durable=False) as file:
        np.savez(file, allow_pickle=False, index=np.array(json.dumps(index)), **arrays)


def read_pairwise(path: Path) -> tuple[PairwiseModel, CellDistribution, float]:
    """Return the model in a file, equal to the last byte."""
    with reading(path) as file, np.load(file, allow_pickle=False) as arrays:
        index: dict[str, Any] = json.loads(str(arrays["index"]))
        names = tuple(index["names"])
        layout = PairLayout(names, arrays["sizes"], arrays["used"])
        targets = PairTargets(layout=layout, ones=arrays["ones"], shares=arrays["shares"], known=arrays["known"])
        pairwise = PairwiseModel(targets, arrays["theta"], arrays["rows"])
        groups = {name: Groups(starts[0], tuple(starts[1:])) for name, starts in index["groups"].items()}
        ones = {name: arrays[f"one{i}"] for i, name in enumerate(names)}
        rules = tuple(restored(rule) for rule in index.get("rules", ()))
        return pairwise, CellDistribution(groups, ones, rules), float(index["total"])


def missing_triples(model: LowOrder, sets: Iterable[AttributeSet]) -> list[AttributeSet]:
    """Return the triples inside wanted sets that have no table, in the model's order; none if they are too many."""
    place, triples = {name: number for number, name in enumerate(model.ones)}, set[AttributeSet]()
    for wanted_set in sets:
        triples.update(combinations(sorted(wanted_set, key=place.__getitem__), 3))
        if len(triples) > MOST_SETS + len(model.tables):
            return []

    missing = triples - model.tables.keys()
    is_affordable = len(missing) <= MOST_SETS and sum(model.cells(names) for names in missing) <= MOST_CELLS
    return sorted(missing, key=lambda names: [place[name] for name in names]) if is_affordable else []


def add_triples(
    model: LowOrder, pairwise: PairwiseModel, sets: Sequence[AttributeSet], release: str, each: ParallelMap = serial_map
) -> LowOrder:
    """Return the model with a table for each of `sets`; the rows follow from `release`, its public name.

    `by` is the departure of the pairwise model from the table of the pairs alone (`expected`); the share of it that is
    taken follows from measured triples.
    """
    if not sets:
        return model

    by_pairs = replace(model, tables={names: table for names, table in model.tables.items() if len(names) == 2})
    measured = [names for names in model.tables if len(names) == 3][:MOST_SETS]
    sampled = sample_triples(pairwise, [*measured, *sets], release, each)
    measured_departures = [(_departure(by_pairs, sampled, names), model.tables[names]) for names in measured]
    share = _departure_share(measured_departures)
    implied = {names: _departure(by_pairs, sampled, names) for names in sets} if share else {}
    tables = {names: departure.expected + share * departure.by for names, departure in implied.items()}

    return replace(model, tables={**model.tables, **tables})


@dataclass(frozen=True, eq=False)
class Departure:
    """Table implied by its pairs alone, and the departure of the pairwise model from it, without sampling noise."""

    expected: Floats
    by: Floats


HalfShares = Mapping[AttributeSet, tuple[Floats, Floats]]


def sample_triples(
    pairwise: PairwiseModel, sets: Sequence[AttributeSet], release: str, each: ParallelMap = serial_map
) -> HalfShares:
    """Return the shares of the rows of the model in the cells of sets of three, for two halves of the rows.

    The rows of the model are redrawn SWEEPS times with the weights of the model, each population of rows in a task of
    its own, and counted in the cells of the sets. The two halves estimate the sampling error.
    """
    ends = population_ends(len(pairwise.rows))
    chunks = [(number, rows) for number, rows in enumerate(np.split(pairwise.rows, ends[1:-1]))]
    alone = replace(pairwise, rows=pairwise.rows[:0])
    counts = np.sum(list(each(partial(_sample_population, alone, list(sets), release), chunks)), axis=0)
    sizes = dict(zip(pairwise.targets.layout.names, pairwise.targets.layout.sizes.tolist(), strict=True))
    shapes = [tuple(sizes[name] for name in names) for names in sets]
    ends = np.cumsum([0, *(math.prod(shape) for shape in shapes)])
    halves = counts / np.array([[SWEEPS * number] for number in _halves(len(pairwise.rows))])

    return {
        names: (halves[0, first:end].reshape(shape), halves[1, first:end].reshape(shape))
        for names, shape, first, end in zip(sets, shapes, ends, ends[1:], strict=False)
    }


@named_task("sample-triples")
def _sample_population(
    pairwise: PairwiseModel, sets: Sequence[AttributeSet], release: str, part: tuple[int, Integers32]
) -> Floats:
    """Return the counts of the first and of the second half of swept rows in the cells of the sets, shape (2, cells).

    `part` is the number of the population and its first rows.

    The rows are swept SWEEPS times and counted after each sweep, so a count is a sum over SWEEPS states. The halves are
    fixed halves of the rows, whose counts are nearly independent: what both have in common is no noise of sampling.
    """
    (number, rows), targets, layout = part, pairwise.targets, pairwise.targets.layout
    # the stream of the first population has no number
    stream = PublicStream(release, f"triples {number}" if number else "triples")
    sweeper = Sweeper(
        layout=layout,
        ones=targets.ones,
        rows=rows.copy(),
        target_counts=targets.shares * len(rows),
        theta=pairwise.theta,
        active=targets.known,
        stream=stream,
    )
    places = {name: place for place, name in enumerate(layout.names)}
    indices = [tuple(places[name] for name in names) for names in sets]
    starts = np.cumsum([0, *(math.prod(layout.sizes[list(index)].tolist()) for index in indices)])

    counts = np.zeros((2, starts[-1]))
    for _ in range(SWEEPS):
        sweeper.sweep(BETAS[-1])
        # a column at a time, because each set reads three of them
        columns = np.ascontiguousarray(sweeper.rows.T)
        for half, place in enumerate((slice(len(rows) // 2), slice(len(rows) // 2, None))):
            for index, first, end in zip(indices, starts, starts[1:], strict=False):
                first_column, second_column, third_column = (columns[i, place] for i in index)
                count_triple(
                    first_column,
                    second_column,
                    third_column,
                    layout.sizes[index[1]],
                    layout.sizes[index[2]],
                    counts[half, first:end],
                )

    return counts


def _halves(count: int) -> tuple[int, int]:
    """Return the numbers of rows in the first halves of all populations, and in the second ones."""
    first = sum(int(rows) // 2 for rows in np.diff(population_ends(count)))
    return first, count - first


def _departure(by_pairs: LowOrder, sampled: HalfShares, names: AttributeSet) -> Departure:
    """Return α ((s + t)/2 − p) of a set.

    Both halves are fitted to the pairs of `expected` first, so that they differ from it in the triple's own part alone.
    """
    expected = by_pairs.coarse_marginal(names)
    margins = [((i, j), expected.sum(axis=3 - i - j)) for i, j in ((0, 1), (0, 2), (1, 2))]
    first, second = (_fit_triples(half, expected, margins) - expected for half in sampled[names])
    mean, weight = (first + second) / 2, 1 / np.maximum(expected, 1)
    agreement = float((weight * first * second).sum()) / max(float((weight * mean**2).sum()), LEAST_TRIPLE)
    return Departure(expected, min(max(agreement, 0.0), 1.0) * mean)


def _fit_triples(shares: Floats, expected: Floats, margins: Sequence[Margin]) -> Floats:
    """Fit shares to the pairs; a cell without rows has a small part of its expectation."""
    total = float(expected.sum())
    return proportional_fit(np.maximum(shares * total, LEAST_TRIPLE * expected), margins, ROUNDS, TOLERANCE * total)


def _departure_share(measured_departures: Sequence[tuple[Departure, Floats]]) -> float:
    """Return which share of the model's departures from the pairs to take, between 0 and 1.

    It is 2(w − s) − 1, with w the slope of measured departures on those of the model, and s its standard error.

    w = Σ measured · model / Σ model² is the slope of a regression through 0, and s the root of its summed squared
    residuals (per set) over Σ model².
    """
    if len(measured_departures) < FEW:
        return 1.0

    along = np.array([((table - departure.expected) * departure.by).sum() for departure, table in measured_departures])
    squares = np.array([(departure.by**2).sum() for departure, _ in measured_departures])
    total_square = max(float(squares.sum()), LEAST_TRIPLE)
    slope = float(along.sum()) / total_square
    error = math.sqrt(((along - slope * squares) ** 2).sum()) / total_square

    return min(max(2 * (slope - error) - 1, 0.0), 1.0)


def consistent_pairs(
    model: LowOrder, pairwise: PairwiseModel, release: str, each: ParallelMap = serial_map
) -> LowOrder:
    """Return the model with its measured pairs moved towards those of one table; larger tables are fitted to them.

    Parameters
    ----------
    model : LowOrder
    pairwise : PairwiseModel
        Model of all pairs, learnt from the measured ones, with its prototype rows.
    release : str
        Public name of the release, from which the random streams follow.
    each : callable
        Parallel map.
    """
    layout, targets = pairwise.targets.layout, pairwise.targets
    ends = population_ends(len(pairwise.rows))
    if len(ends) < 3:
        return model

    parts = [(number, rows) for number, rows in enumerate(np.split(pairwise.rows, ends[1:-1]))]
    alone = replace(pairwise, rows=pairwise.rows[:0])
    populations = list(each(partial(_sweep_population, alone, release), parts))
    halves = [np.mean(populations[start::2], axis=0) for start in (0, 1)]

    tables = dict(model.tables)
    for i, j in layout.pairs:
        if not targets.known[i, j]:
            continue
        shares, ones = layout.of(targets.shares, i, j), [layout.one(targets.ones, k) for k in (i, j)]
        # the departure that two halves of the populations agree on, which sampling noise alone would not show
        first, second = (layout.of(half, i, j) - shares for half in halves)
        agreed = _agreement(first, second, np.multiply.outer(*ones)) * (first + second) / 2
        moved = np.maximum(shares + agreed, LEAST)
        fit_pair(moved, *map(np.ascontiguousarray, ones), FIT_ROUNDS, FIT_TOLERANCE)
        names = layout.names[i], layout.names[j]
        tables[names] = model.impose_rules(names, moved * model.total)

    return _with_larger(replace(model, tables=tables))


def _agreement(first: Floats, second: Floats, alone: Floats) -> float:
    """Return the share of the mean of two departures that both have, between 0 and 1, in whole steps.

    α of the module for departures `first` and `second`, with 1/p of the independent table `alone` as weights.
    """
    weight = 1 / np.maximum(alone, LEAST)
    of_mean = float((weight * ((first + second) / 2) ** 2).sum())
    share = float((weight * first * second).sum()) / max(of_mean, LEAST)
    return round(min(max(share, 0.0), 1.0) / STEP) * STEP


def _with_larger(model: LowOrder) -> LowOrder:
    """Return the model with its tables of three and more attributes fitted to those inside them."""
    smaller = replace(model, tables={names: table for names, table in model.tables.items() if len(names) == 2})
    for degree in sorted({len(names) for names in model.tables if len(names) > 2}):
        larger = {names: table for names, table in model.tables.items() if len(names) == degree}
        fitted = smaller.fit_tables(larger, FIT_ROUNDS, FIT_TOLERANCE * model.total)
        smaller = replace(smaller, tables={**smaller.tables, **fitted})
    return smaller


@named_task("sweep-pairs")
def _sweep_population(pairwise: PairwiseModel, release: str, part: tuple[int, Integers32]) -> Floats:
    """Return the shares of swept rows in the cells of all pairs; `part` is the number of a population and its rows.

    Feedback acts on all pairs in use, with targets of the rows' number times the shares, and its strength β increases.
    """
    (number, rows), targets = part, pairwise.targets
    stream = PublicStream(release, f"consistent {number}" if number else "consistent")
    counts = targets.shares * len(rows)
    sweeper = Sweeper(
        layout=targets.layout,
        ones=targets.ones,
        rows=rows.copy(),
        target_counts=counts,
        theta=pairwise.theta.copy(),
        active=targets.layout.used,
        stream=stream,
    )
    for beta in AGREED_BETAS:
        sweeper.sweep(beta)
    return np.asarray(sweeper.counts / len(rows))
