"""Exact counts of candidates over groups, kept where they were counted: private, and never shown.

What leaves a shard is the distance of a candidate from what is believed of it, a whole number, which only the
exponential mechanism meets; and, through `measure`, counts with noise. Where a table has far fewer records than a
candidate has cells, only the cells that hold any are kept; distances are the same numbers either way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.base.errors import PlanError
from dpscale.base.names import AttributeSet
from dpscale.counting import ExactMarginal
from dpscale.plans.believed import SCALE
from dpscale.plans.planned import Believed
from dpscale.workload.residual.groups import Groups, coarsened

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
class Held:
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

    tables: Mapping[AttributeSet, Integers | Held] = field(repr=False)

    def distances(self, believed: Believed, sets: Iterable[AttributeSet]) -> Distances:
        """How far some sets are from what is believed of them."""
        distances = {}
        for names in sets:
            counts, estimate = self.tables[names], believed.marginal(names)
            distances[names] = counts.distance(estimate) if isinstance(counts, Held) else distance(counts, estimate)
        return Distances(distances)

    def marginal(self, names: AttributeSet) -> ExactMarginal:
        """The exact counts of one set, over groups."""
        counts = self.tables[names]
        return ExactMarginal(names, counts.dense() if isinstance(counts, Held) else counts)


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
    wanted, tables = set(sets), dict[AttributeSet, Integers | Held]()
    for one in marginals:
        if one.attributes in wanted:
            grouped = [] if one.attributes in whole else [groups[name] for name in one.attributes]
            counts = coarsened(one.counts, grouped)
            tables[one.attributes] = _held(counts) if sparse(counts.size, rows) else np.array(counts, dtype=np.int64)
    return Shard(tables)


def _held(counts: Integers) -> Held:
    places = np.flatnonzero(counts)
    return Held(counts.shape, places, counts.reshape(-1)[places])


def sparse(cells: int, rows: int) -> bool:
    """Whether only cells with records are kept: a function of public cells and the released number of rows."""
    return HELD_BYTES * rows < CELL_BYTES * cells


def packed_bytes(cells: int, rows: int) -> int:
    """About what one set takes in a shard."""
    return min(CELL_BYTES * cells, HELD_BYTES * rows)
