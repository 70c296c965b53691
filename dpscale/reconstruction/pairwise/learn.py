"""Learning of a pairwise model of the measured pairs, the other pairs that it implies, and prototype rows.

Rows start independent and are swept with increasing feedback. The remaining error is integrated into the pairs' own
logits, θ += κ β (T − C)/S (a proportional–integral controller), so that finally the model itself reproduces the
measured counts and the feedback only removes the noise of sampling. Feedback alone would bias C, and rows would not
change if one value nearly determines another.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, Integers32, NDArray
from dpscale.domain.structural_zeros import restored
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.entropy import LowOrder, Margin, proportional_fit
from dpscale.reconstruction.fitting_loops import fit_pair
from dpscale.reconstruction.pairwise import loops
from dpscale.reconstruction.pairwise.loops import count_triple
from dpscale.reconstruction.pairwise.pairs import STEP, CellDistribution, PairLayout, PairTargets
from dpscale.storage.files import reading, writing
from dpscale.workload.residual.in_axis import Groups

FLOOR = 1.0  # rows added to a cell's target when its error is scaled
LEAST_WEIGHT = 1e-9
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
        Groups.
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
        layout, attributes = self.layout, len(self.layout.sizes)
        self.scale = self.target_counts + FLOOR
        self.counts = np.zeros(layout.cells)
        self._alone = (np.rint(np.log(np.maximum(self.ones, LEAST_WEIGHT)) * LOG_UNIT) / LOG_UNIT).astype(np.float32)
        self._degrees = self.active.sum(axis=1).astype(np.uint64)
        self._neighbours = neighbours(layout, self.active)
        self._weights, self._slopes = (np.zeros(2 * layout.cells + loops.BEHIND, np.float32) for _ in range(2))
        self._around, self._sets_of = np.zeros((attributes, 1, 11), np.uint64), np.zeros(attributes, np.uint64)
        self._threes = np.zeros(loops.BEHIND, np.float32)
        self._state = self.stream.state()
        self._count()

    def sweep(self, beta: float) -> None:
        """Redraw every value, with feedback of strength β."""
        layout = self.layout
        loops.weigh(layout.starts, self.active, layout.sizes, self.target_counts, self.scale, self.theta, self.counts,
                    float(beta), self._weights, self._slopes)  # fmt: skip
        order, turn = self.stream.permutation(len(self.rows)), self.stream.permutation(len(layout.sizes))
        loops.sweep(self.rows, order, self._neighbours, self._degrees, self._around, self._sets_of,
                    layout.sizes.view(np.uint64), self._alone, layout.ones_at.view(np.uint64), self._weights,
                    self._slopes, self._threes, self._state, turn)  # fmt: skip
        self._count()

    def _count(self) -> None:
        loops.count_pairs(self.rows, self.layout.starts, self.layout.used, self.layout.sizes, self.counts)


def neighbours(layout: PairLayout, active: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return the neighbours of every attribute, shape (d, d, 4).

    For each neighbour: its number, the start of the pair in both orientations, and its size.
    """
    found = np.zeros((len(active), len(active), 4), np.uint64)
    for i in range(len(active)):
        others = np.flatnonzero(active[i])
        begun = layout.starts[i, others, 1], layout.starts[others, i, 1]
        found[i, : len(others)] = np.stack([others, *begun, layout.sizes[others]], axis=1)
    return found


def independent_rows(layout: PairLayout, ones: Floats, count: int, stream: PublicStream) -> NDArray[np.int32]:
    """Return rows of independent attributes that match the 1-way marginals, shape (count, d)."""
    columns = [stream.systematic(layout.one(ones, i), count) for i in range(len(layout.sizes))]
    return np.ascontiguousarray(np.stack(columns, axis=1))


Start = Callable[[PairTargets, int, PublicStream], tuple[NDArray[np.int32], Floats]]
PROTOTYPES = 20_000
BETAS = (0.5,) * 2 + (1.0,) * 6 + (2.0,) * 6
KAPPA, LAST_SWEEPS, CHAIN_SHARE = 0.3, 6, 0.3
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


def learn(
    targets: PairTargets, release: str, count: int = PROTOTYPES, start: Start = independent_start
) -> PairwiseModel:
    """Return a pairwise model learnt by sweeps over rows; unmeasured pairs combine the model's counts and chains.

    Parameters
    ----------
    targets : PairTargets
    release : str
        Public name of the release, which defines the random stream.
    count : int
        Number of prototype rows.
    start : callable
        Returns the first rows and their θ.
    """
    layout, stream = targets.layout, PublicStream(release, "learn")
    rows, theta = start(targets, count, stream)
    target_counts = targets.shares * count
    sweeper = Sweeper(layout, targets.ones, rows, target_counts, theta, targets.known, stream)
    measured, sampled = layout.within(targets.known), np.zeros((2, layout.cells))
    for number, beta in enumerate(BETAS):
        sweeper.sweep(beta)
        sweeper.theta += np.where(measured, KAPPA * beta * (target_counts - sweeper.counts) / sweeper.scale, 0)
        if (left := len(BETAS) - number) <= LAST_SWEEPS:
            sampled[int(2 * left <= LAST_SWEEPS)] += sweeper.counts / (LAST_SWEEPS // 2 * count)
    shares = np.where(
        measured, targets.shares, (1 - CHAIN_SHARE) * _shrunk_target(targets, *sampled) + CHAIN_SHARE * targets.shares
    )
    return PairwiseModel(_fitted(replace(targets, shares=shares)), sweeper.theta, rows)


def _shrunk_target(targets: PairTargets, one: Floats, other: Floats) -> Floats:
    """Return the mean of two halves of the sweeps, with its departure from independence shrunk by their agreement.

    Σ (s − p)(t − p)/p contains no sampling noise; Σ (m − p)²/p of the mean m does.
    """
    layout, mean = targets.layout, (one + other) / 2
    for i, j in layout.pairs:
        alone = np.multiply.outer(layout.one(targets.ones, i), layout.one(targets.ones, j))
        halves, own = [layout.of(half, i, j) - alone for half in (one, other)], layout.of(mean, i, j)
        weight = 1 / np.maximum(alone, LEAST)
        agreement = float((weight * halves[0] * halves[1]).sum()) / max(
            float((weight * (own - alone) ** 2).sum()), LEAST
        )
        own[:] = alone + round(min(max(agreement, 0.0), 1.0) / STEP) * STEP * (own - alone)
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
    """Write a model exactly into one file; it is not flushed to disk, because it can be recomputed for free."""
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
        targets = PairTargets(layout, arrays["ones"], arrays["shares"], arrays["known"])
        pairwise = PairwiseModel(targets, arrays["theta"], arrays["rows"])
        groups = {name: Groups(starts[0], tuple(starts[1:])) for name, starts in index["groups"].items()}
        ones = {name: arrays[f"one{i}"] for i, name in enumerate(names)}
        rules = tuple(restored(measured_departures) for measured_departures in index.get("rules", ()))
        return pairwise, CellDistribution(groups, ones, rules), float(index["total"])


SWEEPS, MOST_SETS, MOST_CELLS = 12, 1 << 12, 1 << 23
ROUNDS, TOLERANCE, LEAST_TRIPLE, FEW = 12, 1e-5, 1e-3, 3


def missing_triples(model: LowOrder, sets: Iterable[AttributeSet]) -> list[AttributeSet]:
    """Return the triples inside wanted sets that have no table, in the model's order; none if they are too many."""
    place, found = {name: number for number, name in enumerate(model.ones)}, set[AttributeSet]()
    for one in sets:
        found.update(combinations(sorted(one, key=place.__getitem__), 3))
        if len(found) > MOST_SETS + len(model.tables):
            return []
    missing = found - model.tables.keys()
    few = len(missing) <= MOST_SETS and sum(model.cells(names) for names in missing) <= MOST_CELLS
    return sorted(missing, key=lambda names: [place[name] for name in names]) if few else []


def add_triples(model: LowOrder, pairwise: PairwiseModel, sets: Sequence[AttributeSet], release: str) -> LowOrder:
    """Return the model with a table for each of `sets`; the rows follow from `release`, its public name."""
    if not sets:
        return model
    sampled, by_pairs = _sample_rows(pairwise, release), _pairs_only(model)
    measured = [names for names in model.tables if len(names) == 3][:MOST_SETS]
    measured_departures = [(_departure(by_pairs, sampled, names), model.tables[names]) for names in measured]
    share = _departure_share(measured_departures)
    implied = {names: _departure(by_pairs, sampled, names) for names in sets} if share else {}
    tables = {names: one.expected + share * one.by for names, one in implied.items()}
    return replace(model, tables={**model.tables, **tables})


@dataclass(frozen=True, eq=False)
class Departure:
    """Table implied by its pairs alone, and the departure of the pairwise model from it, without sampling noise."""

    expected: Floats
    by: Floats


@dataclass(frozen=True, eq=False)
class SampledRows:
    """Sampled rows over groups in two halves, shape (d, n) each, with a row for every attribute in `names`."""

    names: tuple[str, ...]
    halves: tuple[Integers32, Integers32]

    def shares(self, half: int, names: AttributeSet, shape: tuple[int, ...]) -> Floats:
        """Return the shares of the rows of a half in every cell of a set."""
        first, second, third = (self.halves[half][self.names.index(name)] for name in names)
        counts = np.zeros(shape)
        count_triple(first, second, third, shape[1], shape[2], counts.reshape(-1))
        return counts / len(first)


def _sample_rows(pairwise: PairwiseModel, release: str) -> SampledRows:
    """Sweep the prototypes further with the model's own weights."""
    targets, rows = pairwise.targets, pairwise.rows.copy()
    sweeper = Sweeper(targets.layout, targets.ones, rows, targets.shares * len(rows), pairwise.theta, targets.known,
                      PublicStream(release, "triples"))  # fmt: skip
    sampled = []
    for _ in range(SWEEPS):
        sweeper.sweep(BETAS[-1])
        sampled.append(rows.T.copy())
    half = len(rows) // 2
    first, second = (
        np.concatenate([one[:, part] for one in sampled], axis=1) for part in (slice(half), slice(half, None))
    )
    return SampledRows(targets.layout.names, (first, second))


def _pairs_only(model: LowOrder) -> LowOrder:
    return replace(model, tables={names: table for names, table in model.tables.items() if len(names) == 2})


def _departure(by_pairs: LowOrder, sampled: SampledRows, names: AttributeSet) -> Departure:
    """Return α ((s + t)/2 − p) of a set."""
    expected = by_pairs.coarse_marginal(names)
    margins = [((i, j), expected.sum(axis=3 - i - j)) for i, j in ((0, 1), (0, 2), (1, 2))]
    one, other = (
        _fit_triples(sampled.shares(half, names, expected.shape), expected, margins) - expected for half in (0, 1)
    )
    mean, weight = (one + other) / 2, 1 / np.maximum(expected, 1)
    agreement = float((weight * one * other).sum()) / max(float((weight * mean**2).sum()), LEAST_TRIPLE)
    return Departure(expected, min(max(agreement, 0.0), 1.0) * mean)


def _fit_triples(shares: Floats, expected: Floats, margins: Sequence[Margin]) -> Floats:
    """Fit shares to the pairs; a cell without rows has a small part of its expectation."""
    total = float(expected.sum())
    return proportional_fit(np.maximum(shares * total, LEAST_TRIPLE * expected), margins, ROUNDS, TOLERANCE * total)


def _departure_share(measured_departures: Sequence[tuple[Departure, Floats]]) -> float:
    """Return 2(w − s) − 1, with w the slope of measured departures on those of the model, and s its standard error."""
    if len(measured_departures) < FEW:
        return 1.0
    along = np.array([((table - one.expected) * one.by).sum() for one, table in measured_departures])
    squares = np.array([(one.by**2).sum() for one, _ in measured_departures])
    whole = max(float(squares.sum()), LEAST_TRIPLE)
    slope = float(along.sum()) / whole
    error = math.sqrt(((along - slope * squares) ** 2).sum()) / whole
    return min(max(2 * (slope - error) - 1, 0.0), 1.0)
