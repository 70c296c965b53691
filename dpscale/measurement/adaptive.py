"""Adaptive loop in one thread, without tasks, files or a ledger; `runs` and `engine` do the same with them.

Noise and selections come from keyed streams, so the same secret and counts give the same bytes as on a cluster.

A candidate is an attribute set that a round may select. The score of a candidate grows with the L1 distance of its
exact counts from its current estimate, an integer in units of 1/SCALE. A group is a class of cells of an attribute that
the rounds do not distinguish; counts over groups are sums over the cells of the groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.counting import ExactMarginal
from dpscale.measurement.measurement import measure_block
from dpscale.plans.measurement_plan import SCALE, CurrentEstimates, Decision, MeasurementPlan, Selection
from dpscale.privacy.noise import Words
from dpscale.privacy.selection import Urn, scale_for
from dpscale.privacy.streams import open_stream
from dpscale.workload.query_classes import CellClasses
from dpscale.workload.residual import Groups, coarsened


class Scores:
    """Cache of the private distances of candidates, valid until their estimates change; never printed."""

    def __init__(self) -> None:
        self._known: dict[AttributeSet, int] = {}

    def missing(self, candidates: Iterable[AttributeSet]) -> list[AttributeSet]:
        """Return the candidates whose distance is not cached."""
        return [names for names in candidates if names and names not in self._known]

    def learn(self, distances: Distances) -> None:
        """Add distances to the cache."""
        self._known.update(distances.found)

    def forget(self, sets: Iterable[AttributeSet]) -> None:
        """Remove the distances of some sets from the cache."""
        for names in sets:
            self._known.pop(names, None)

    def of(self, selection: Selection) -> list[int]:
        """Return weight · (distance − offset) for every candidate in order; the empty set has score 0."""
        known, weights = self._known, selection.weights
        return [weights[names] * (known[names] - selection.offset(names)) if names else 0
                for names in selection.candidates]  # fmt: skip

    def __repr__(self) -> str:
        return "Scores(hidden)"


def sensitivity(selection: Selection, rows_per_unit: int) -> int:
    """Return the largest effect of one unit on any score; one record changes a distance by at most SCALE."""
    return SCALE * rows_per_unit * max(selection.weights[names] for names in selection.candidates if names)


def select_candidates(
    selection: Selection,
    scores: Sequence[int],
    rows_per_unit: int,
    stream_of: Callable[[Mapping[str, Any]], Words],
) -> tuple[AttributeSet, ...]:
    """Select `count` candidates with one exponential mechanism after the other, each among those that remain eligible.

    The empty set ("select nothing") remains eligible throughout.

    Parameters
    ----------
    selection : Selection
    scores : sequence of int, shape (candidates,)
        Exact scores of the candidates; large ones are likely to be selected.
    rows_per_unit : int
        Largest number of records of one protected unit.
    stream_of : callable
        Keyed stream of a label.
    """
    if not selection.count:
        return ()
    urn = Urn(scores, scale_for(selection.beta, sensitivity(selection, rows_per_unit)))
    chosen: list[AttributeSet] = []
    for rank in range(selection.count):
        if chosen:
            urn.take(selection.excluded(chosen))
        place = urn.draw(stream_of(selection.label(rank)))
        chosen.append(selection.candidates[place])
        if chosen[-1]:  # not the empty set
            urn.take([place])
    return tuple(chosen)


CELL_BYTES, SPARSE_BYTES = 8, 16  # of a count in a dense table, and of a count with the number of its cell


def distance(counts: Integers, estimate: Floats, classes: CellClasses | None = None) -> int:
    """Return ‖μ − μ̂‖₁, or that of the sums over classes of cells, in units of 1/SCALE; exact and therefore private."""
    differences = counts * SCALE - to_lattice(estimate)
    return total(np.abs(differences)) if classes is None else classes.distance(differences)


SMALL, TOGETHER = 1 << 10, 1 << 10  # cells of a small table, and how many of them are compared at once


def all_distances(counts: Sequence[Integers], estimates: Iterable[Floats]) -> list[int]:
    """Return the `distance` of each of several small nonempty tables, computed together, exact as well."""
    flat = np.concatenate([table.reshape(-1) for table in counts])
    differences = np.abs(flat * SCALE - to_lattice(np.concatenate([table.reshape(-1) for table in estimates])))
    starts = np.cumsum([0, *(table.size for table in counts[:-1])])  # first cell of each table

    # sums may exceed 64 bits: both halves are summed alone, and combined as Python integers
    high, low = (np.add.reduceat(half, starts).tolist() for half in (differences >> 32, differences & 0xFFFFFFFF))
    return [(above << 32) + below for above, below in zip(high, low, strict=True)]


def total(values: Integers) -> int:
    """Return the exact sum of numbers ≥ 0.

    A 64-bit sum could wrap, and one record would then change it by 2^64.
    """
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def to_lattice(estimate: Floats) -> Integers:
    """Return an estimate in integer units of 1/SCALE.

    Raises
    ------
    PlanError
        If the estimate is not finite, since a cast would give arbitrary values.
    """
    if not np.isfinite(estimate).all():
        raise PlanError("privacy", "estimates that are not finite", "a budget large enough for finite estimates",
                        "increase the budget, or reduce the workload")  # fmt: skip
    return np.rint(np.clip(estimate, -(2.0**52), 2.0**52) * SCALE).astype(np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class SparseMarginal:
    """Nonempty cells of an exact marginal over groups.

    Attributes
    ----------
    shape : tuple of int
    places : ndarray of int64
        Flat positions of the nonempty cells, ascending.
    counts : ndarray of int64
    """

    shape: tuple[int, ...]
    places: Integers
    counts: Integers

    def dense(self) -> Integers:
        """Return the marginal as an array of shape `shape`."""
        out = np.zeros(math.prod(self.shape), dtype=np.int64)
        out[self.places] = self.counts
        return out.reshape(self.shape)

    def distance(self, estimate: Floats) -> int:
        """Return the L1 distance from an estimate in units of 1/SCALE.

        Where the counts are zero it is |estimate|, so the sum over all cells is corrected at the nonzero ones.
        """
        estimated = to_lattice(estimate).reshape(-1)
        at_nonzero = estimated[self.places]
        correction = total(np.abs(self.counts * SCALE - at_nonzero)) - total(np.abs(at_nonzero))
        return total(np.abs(estimated)) + correction


@dataclass(frozen=True)
class Distances:
    """Distances of some candidates from their estimates; private."""

    found: Mapping[AttributeSet, int] = field(repr=False)


@dataclass(frozen=True, eq=False)
class MarginalShard:
    """Exact counts of some candidates over groups, and of 1-way marginals over cells if they may be measured again."""

    tables: Mapping[AttributeSet, Integers | SparseMarginal] = field(repr=False)

    def distances(
        self, estimates: CurrentEstimates, sets: Iterable[AttributeSet], classes: Mapping[AttributeSet, CellClasses]
    ) -> Distances:
        """Return the L1 distances of the counts of some sets from their estimates.

        Those of sets in `classes` are between sums over classes of cells that no query distinguishes. Small dense
        tables are compared in batches of TOGETHER.
        """
        distances, small = dict[AttributeSet, int](), list[AttributeSet]()
        for names in sets:
            counts = self.tables[names]
            if names not in classes and not isinstance(counts, SparseMarginal) and counts.size <= SMALL:
                small.append(names)
            else:
                distances[names] = _distance_of(counts, estimates.marginal(names), classes.get(names))

        for start in range(0, len(small), TOGETHER):
            batch = small[start : start + TOGETHER]
            tables = [np.asarray(self.tables[names]) for names in batch]
            distances |= zip(batch, all_distances(tables, map(estimates.marginal, batch)), strict=True)
        return Distances(distances)

    def marginal(self, names: AttributeSet) -> ExactMarginal:
        """Return the exact counts of one set, over groups."""
        counts = self.tables[names]
        return ExactMarginal(names, counts.dense() if isinstance(counts, SparseMarginal) else counts)


def _distance_of(counts: Integers | SparseMarginal, estimate: Floats, classes: CellClasses | None) -> int:
    if not isinstance(counts, SparseMarginal):
        return distance(counts, estimate, classes)
    return counts.distance(estimate) if classes is None else distance(counts.dense(), estimate, classes)


def build_shard(
    marginals: Iterable[ExactMarginal],
    sets: Sequence[AttributeSet],
    groups: Mapping[str, Groups],
    rows: int,
    whole: Collection[AttributeSet] = (),
) -> MarginalShard:
    """Return the shard of the marginals among `sets`, over groups except for those in `whole`.

    Parameters
    ----------
    marginals : iterable of ExactMarginal
        Over cells.
    sets : sequence of AttributeSet
    groups : mapping of str to Groups
    rows : int
        Approximate number of records, a released value.
    whole : collection of AttributeSet
        Sets that stay over cells.
    """
    included, tables = set(sets), dict[AttributeSet, Integers | SparseMarginal]()
    for marginal in marginals:
        names = marginal.attributes
        if names in included:
            counts = coarsened(marginal.counts, [] if names in whole else [groups[name] for name in names])
            is_sparse = sparse(counts.size, rows)
            tables[names] = _sparse_marginal(counts) if is_sparse else np.array(counts, dtype=np.int64)
    return MarginalShard(tables)


def _sparse_marginal(counts: Integers) -> SparseMarginal:
    places = np.flatnonzero(counts)
    return SparseMarginal(counts.shape, places, counts.reshape(-1)[places])


def sparse(cells: int, rows: int) -> bool:
    """Return whether only nonempty cells are stored; depends on public sizes and the released number of rows."""
    return SPARSE_BYTES * rows < CELL_BYTES * cells


def shard_bytes(cells: int, rows: int) -> int:
    """Return the approximate size of one set in a shard."""
    return min(CELL_BYTES * cells, SPARSE_BYTES * rows)


MarginalOf = Callable[[AttributeSet], ExactMarginal]


def run(
    measurement_plan: MeasurementPlan,
    counts_of: Callable[[AttributeSet], Integers],
    secret: bytes,
    release: Mapping[str, Any] | None = None,
    rows_per_unit: int = 1,
) -> Any:
    """Run all decisions of a plan in this process and return the last state.

    Parameters
    ----------
    measurement_plan : MeasurementPlan
    counts_of : callable
        Exact counts over the cells of a set.
    secret : bytes
        Noise key of the release.
    release : mapping, optional
        Fields that all noise records begin with.
    rows_per_unit : int
        Largest number of records of one protected unit.
    """
    head = dict(release or {})

    def exact(names: AttributeSet) -> ExactMarginal:
        return ExactMarginal(names, counts_of(names))

    rounds, scores = measurement_plan.rounds, Scores()
    values = measure_decision(measurement_plan.first_decision(), exact, secret, head)
    state = None if rounds is None else rounds.start(values)
    if rounds is None or state is None or not rounds.candidates:
        return state

    counted = measurement_plan.counted_sets
    # candidates are compared over groups of cells; sets that are only measured keep their cells
    over_cells = set(counted) - set(rounds.candidates)
    shard = build_shard(map(exact, counted), counted, state.groups, state.rows, over_cells)
    while state.selection is not None:
        # select: the distances that changed, then the exponential mechanism
        selection = state.selection
        missing = scores.missing(selection.candidates)
        added = [names for names in missing if names not in shard.tables]  # sets that grow from confirmed ones
        if added:
            tables = build_shard(map(exact, added), added, state.groups, state.rows).tables
            shard = MarginalShard({**shard.tables, **tables})
        scores.learn(shard.distances(state.estimates(missing), missing, selection.classes))
        chosen = select_candidates(selection, scores.of(selection), rows_per_unit,
                             lambda label: open_stream(secret, "selection", {**head, **label}))  # fmt: skip
        # measure, and update the estimates
        decision = state.decide(selection, chosen)
        values = measure_decision(decision, shard.marginal, secret, head)
        before, state = state, state.after(decision, values)
        scores.forget(before.changed_sets(state))
    return state


def measure_decision(
    decision: Decision, marginal_of: MarginalOf, secret: bytes, head: Mapping[str, Any]
) -> list[Floats]:
    """Return the released values of a decision, scaled to the units that states use.

    The noise of a request is keyed by `head`, the fields of all requests, and the label of the request.
    """
    return [
        request.estimate(
            measure_block(request.block, request.draw, marginal_of(request.source), secret, {**head, **request.label})
        )
        for request in decision.requests
    ]
