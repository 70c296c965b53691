"""The whole chain in one thread: what `stages` and `engine` do with tasks, files and a ledger, done plainly.

Noise and choices come from keyed streams, so the same secret and counts give the same bytes, here as on a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.base.display import AttributeSet
from dpscale.base.errors import PlanError
from dpscale.counting import ExactMarginal
from dpscale.measurement.measurement import measure_block
from dpscale.plans.measurement_plan import SCALE, CurrentEstimates, Decision, Planned, Selection
from dpscale.privacy.selection import Urn, scale_for
from dpscale.privacy.staircase import Words
from dpscale.privacy.streams import open_stream
from dpscale.workload.residual.in_axis import Groups, coarsened


class Scores:
    """Distances of candidates, kept until what is believed of them changes. Private; never shown."""

    def __init__(self) -> None:
        self._known: dict[AttributeSet, int] = {}

    def missing(self, candidates: Iterable[AttributeSet]) -> list[AttributeSet]:
        """The candidates whose distance has to be measured out."""
        return [names for names in candidates if names and names not in self._known]

    def learn(self, distances: Distances) -> None:
        self._known.update(distances.found)

    def forget(self, sets: Iterable[AttributeSet]) -> None:
        for names in sets:
            self._known.pop(names, None)

    def of(self, selection: Selection) -> list[int]:
        """The score of every candidate, in their order: weight · (distance − offset), 0 of nothing."""
        known, weights = self._known, selection.weights
        return [weights[names] * (known[names] - selection.offset(names)) if names else 0
                for names in selection.candidates]  # fmt: skip

    def __repr__(self) -> str:
        return "Scores(hidden)"


def sensitivity(selection: Selection, rows_per_unit: int) -> int:
    """How far one unit moves any score: a record moves a distance by SCALE at most."""
    return SCALE * rows_per_unit * max(selection.weights[names] for names in selection.candidates if names)


def draw_chosen(
    selection: Selection,
    scores: Sequence[int],
    rows_per_unit: int,
    stream_of: Callable[[Mapping[str, Any]], Words],
) -> tuple[AttributeSet, ...]:
    """`count` candidates, one exponential mechanism after the other, each among those that may still be chosen, as
    nothing always may."""
    if not selection.count:
        return ()
    urn = Urn(scores, scale_for(selection.beta, sensitivity(selection, rows_per_unit)))
    chosen: list[AttributeSet] = []
    for rank in range(selection.count):
        if chosen:
            urn.take(selection.lost(chosen))
        place = urn.draw(stream_of(selection.label(rank)))
        chosen.append(selection.candidates[place])
        if chosen[-1]:
            urn.take([place])
    return tuple(chosen)


CELL_BYTES, HELD_BYTES = 8, 16


def distance(counts: Integers, estimate: Floats) -> int:
    """‖μ − μ̂‖₁ in units of 1/SCALE. Exact, hence private."""
    return total(np.abs(counts * SCALE - rounded(estimate)))


def total(values: Integers) -> int:
    """The exact sum of numbers ≥ 0. A sum in 64 bits may wrap, and one record would then move it by 2^64."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def rounded(estimate: Floats) -> Integers:
    """An estimate in whole units of 1/SCALE; PlanError for one that is no number, which a cast would make arbitrary."""
    if not np.isfinite(estimate).all():
        raise PlanError("privacy", "estimates that are no finite numbers", "a budget that they can be made from",
                        "give more, or ask less")  # fmt: skip
    return np.rint(np.clip(estimate, -(2.0**52), 2.0**52) * SCALE).astype(np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class SparseMarginal:
    """The cells of a marginal that hold records: flat places, ascending, and counts."""

    shape: tuple[int, ...]
    places: Integers
    counts: Integers

    def dense(self) -> Integers:
        out = np.zeros(math.prod(self.shape), dtype=np.int64)
        out[self.places] = self.counts
        return out.reshape(self.shape)

    def distance(self, estimate: Floats) -> int:
        believed = rounded(estimate).reshape(-1)
        here = believed[self.places]
        return total(np.abs(believed)) + total(np.abs(self.counts * SCALE - here)) - total(np.abs(here))


@dataclass(frozen=True)
class Distances:
    """Distances of some candidates: private."""

    found: Mapping[AttributeSet, int] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Shard:
    """Exact counts of some candidates over groups, and of 1-ways over cells where they may be measured again."""

    tables: Mapping[AttributeSet, Integers | SparseMarginal] = field(repr=False)

    def distances(self, believed: CurrentEstimates, sets: Iterable[AttributeSet]) -> Distances:
        """How far some sets are from what is believed of them."""
        distances = {}
        for names in sets:
            counts, estimate = self.tables[names], believed.marginal(names)
            distances[names] = (
                counts.distance(estimate) if isinstance(counts, SparseMarginal) else distance(counts, estimate)
            )
        return Distances(distances)

    def marginal(self, names: AttributeSet) -> ExactMarginal:
        """The exact counts of one set, over groups."""
        counts = self.tables[names]
        return ExactMarginal(names, counts.dense() if isinstance(counts, SparseMarginal) else counts)


def packed(
    marginals: Iterable[ExactMarginal],
    sets: Sequence[AttributeSet],
    groups: Mapping[str, Groups],
    rows: int,
    whole: Collection[AttributeSet] = (),
) -> Shard:
    """The shard of those of the marginals (over cells) that are among `sets`, over groups but for those in `whole`.

    `rows`: about how many records.
    """
    wanted, tables = set(sets), dict[AttributeSet, Integers | SparseMarginal]()
    for one in marginals:
        if one.attributes in wanted:
            grouped = [] if one.attributes in whole else [groups[name] for name in one.attributes]
            counts = coarsened(one.counts, grouped)
            tables[one.attributes] = (
                _sparse_marginal(counts) if sparse(counts.size, rows) else np.array(counts, dtype=np.int64)
            )
    return Shard(tables)


def _sparse_marginal(counts: Integers) -> SparseMarginal:
    places = np.flatnonzero(counts)
    return SparseMarginal(counts.shape, places, counts.reshape(-1)[places])


def sparse(cells: int, rows: int) -> bool:
    """Whether only cells with records are kept: a function of public cells and the released number of rows."""
    return HELD_BYTES * rows < CELL_BYTES * cells


def packed_bytes(cells: int, rows: int) -> int:
    """About what one set takes in a shard."""
    return min(CELL_BYTES * cells, HELD_BYTES * rows)


MarginalOf = Callable[[AttributeSet], ExactMarginal]


def run(
    planned: Planned,
    counts_of: Callable[[AttributeSet], Integers],
    secret: bytes,
    release: Mapping[str, Any] | None = None,
    rows_per_unit: int = 1,
) -> Any:
    """The last state. `counts_of`: exact counts over the cells of a set; `release`: what all records begin with."""
    head = dict(release or {})

    def exact(names: AttributeSet) -> ExactMarginal:
        return ExactMarginal(names, counts_of(names))

    first, scores = planned.first(), Scores()
    state = planned.begun(first, measured(first, exact, secret, head))
    if not planned.candidates:
        return state
    ones = set(planned.counted) - set(planned.candidates)
    shard = packed(map(exact, planned.counted), planned.counted, state.groups, state.rows, ones)
    while (selection := planned.selection(state)) is not None:
        missing = scores.missing(selection.candidates)
        scores.learn(shard.distances(state.believed(missing), missing))
        chosen = draw_chosen(selection, scores.of(selection), rows_per_unit,
                             lambda label: open_stream(secret, "selection", {**head, **label}))  # fmt: skip
        decision = planned.decided(state, selection, chosen)
        before, state = state, planned.advanced(state, decision, measured(decision, shard.marginal, secret, head))
        scores.forget(planned.touched(before, state))
    return state


def measured(decision: Decision, marginal_of: MarginalOf, secret: bytes, head: Mapping[str, Any]) -> list[Floats]:
    """The released values of a decision, as states take them."""
    return [
        order.estimate(
            measure_block(order.block, order.draw, marginal_of(order.source), secret, {**head, **order.label})
        )
        for order in decision.orders
    ]
