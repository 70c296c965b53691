"""Exact counts of an adaptive run's candidates, on the workers that counted them.

Counts that fit half of the memory setting stay in shards, as marginals over groups of cells. The other candidates are
counted again, pass by pass, each time they are needed. Dask recounts a shard lost with its worker from its own tasks. A
worker has no other state, because current estimates are sent with each request.

A pass (`counting.Pass`) has layouts: attribute sets whose counts are in one flat array. Its handles are those of these
arrays, one for each layout. A shard has the counts of the requested sets of several layouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from dpscale.base.numerics import AttributeSet, Integers
from dpscale.counting.count import Layout
from dpscale.domain import Domain
from dpscale.engine.base import Engine
from dpscale.engine.counting import Pass, plan_passes
from dpscale.measurement import Measurements, measure_all
from dpscale.measurement.adaptive import Distances, MarginalShard, build_shard, shard_bytes
from dpscale.plans.measurement_plan import CurrentEstimates
from dpscale.privacy.secret import SecretFile
from dpscale.workload.query_classes import CellClasses
from dpscale.workload.residual import Groups

Handle = Any
Count = Callable[[Pass], list[Handle]]
ShardRequest = tuple[Handle, list[AttributeSet]]
SHARDS_PER_THREAD = 2  # enough for threads to finish together, and few, because each round has two tasks per shard
SETS_PER_SHARD, CELLS_PER_SHARD = 256, 1 << 20  # sets and cells that justify a task of some milliseconds per round


@dataclass(eq=False)
class Shards:
    """Shards of the candidates over groups of cells; the sets in `whole` are over all cells.

    Attributes
    ----------
    count : callable
        Returns the handles of a pass.
    groups : mapping of str to Groups
        Groups of cells of each attribute.
    rows : int
        Approximate number of rows, a released value.
    whole : frozenset of AttributeSet
        Sets whose cells are not grouped.
    """

    engine: Engine
    domain: Domain
    memory: int
    count: Count
    groups: Mapping[str, Groups]
    rows: int
    whole: frozenset[AttributeSet] = frozenset()
    _stored: list[tuple[Handle, frozenset[AttributeSet]]] = field(default_factory=list, repr=False)
    _names: set[AttributeSet] = field(default_factory=set, repr=False)
    _bytes: int = 0

    def store(self, sets: Sequence[AttributeSet], counted: Sequence[tuple[Pass, list[Handle]]] = ()) -> None:
        """Store counted passes, then count and store more of the sets while they fit the memory.

        Counts may occupy half of the memory setting; the other sets are counted again when they are needed.
        """
        for counted_sets, handles in counted:
            self._store_pass(counted_sets, handles, sets)
        remaining = [names for names in sets if not self._contains(names)]
        passes = plan_passes(self.domain, remaining, self.memory // 2, self.engine.workers) if remaining else ()
        for counted_sets in passes:
            if self._bytes + self._size(counted_sets.sets) > self.memory // 2:
                return
            self._store_pass(counted_sets, self.count(counted_sets), sets)

    def distances(
        self,
        estimates_of: Callable[[list[AttributeSet]], CurrentEstimates],
        sets: Sequence[AttributeSet],
        classes: Mapping[AttributeSet, CellClasses],
    ) -> Iterator[Distances]:
        """Yield the distances of the counts of sets from their current estimates.

        estimates_of(sets) returns the current estimates that a shard needs. `classes` maps some sets to classes of
        their cells, over which counts and estimates are summed before.
        """
        for shards in self._shards_with(sets):
            items = []
            for handle, in_shard in shards:
                of_shard = {names: classes[names] for names in in_shard if names in classes}
                items.append((handle, estimates_of(in_shard), in_shard, of_shard))
            yield from self.engine.map(score_shard, items, "score-candidates")

    def measure(self, wanted: Sequence[Measurements], place: SecretFile) -> None:
        """Make measurements, each written to its durable file; shards that share a file write a piece of it each.

        `sources` of measurements are the sets from whose counts they are made, and `within` yields the pieces that the
        sets of a shard suffice for. `place` is the file of the noise key.
        """
        sources = list(dict.fromkeys(names for measurements in wanted for names in measurements.sources))
        for shards in self._shards_with(sources):
            items = []
            for handle, in_shard in shards:
                pieces = [piece for measurements in wanted for piece in measurements.within(frozenset(in_shard))]
                items.append((handle, pieces, place))
            self.engine.map(measure_shard, items, "measure-marginals")

    def _shards_with(self, sets: Sequence[AttributeSet]) -> Iterator[list[ShardRequest]]:
        """Yield shards with the requested sets of each: the stored shards first, then one pass after another.

        A request is (handle of a shard, requested sets in it). Sets that no stored shard has are counted in passes over
        the data, with half of the memory, and stored if they fit.
        """
        requested = set(sets)
        stored = [(handle, [names for names in sets if names in in_shard])
                  for handle, in_shard in self._stored if in_shard & requested]  # fmt: skip
        if stored:
            yield stored
        remaining = [names for names in sets if not self._contains(names)]
        passes = plan_passes(self.domain, remaining, self.memory // 2, self.engine.workers) if remaining else ()
        for counted_sets in passes:
            packed = self._pack_pass(counted_sets, self.count(counted_sets), remaining)
            self._keep(counted_sets, packed, remaining)
            yield packed

    def _store_pass(self, counting_pass: Pass, handles: list[Handle], sets: Sequence[AttributeSet]) -> None:
        """Keep the counts of a pass over the data on the workers, unless they fill more than half of the memory."""
        if self._bytes + self._size(frozenset(sets).intersection(counting_pass.sets)) <= self.memory // 2:
            self._keep(counting_pass, self._pack_pass(counting_pass, handles, sets), sets)

    def _keep(self, counting_pass: Pass, packed: Sequence[ShardRequest], sets: Sequence[AttributeSet]) -> None:
        """Keep the shards of a pass, unless they fill more than half of the memory.

        `_stored` has pairs (handle, sets), `_names` all stored sets, and `_bytes` their estimated size.
        """
        wanted = frozenset(sets).intersection(counting_pass.sets)
        if self._bytes + self._size(wanted) > self.memory // 2:
            return
        self._stored += [(handle, frozenset(in_shard)) for handle, in_shard in packed]
        self._names |= wanted
        self._bytes += self._size(wanted)

    def _pack_pass(
        self, counting_pass: Pass, handles: list[Handle], sets: Sequence[AttributeSet]
    ) -> list[ShardRequest]:
        """Return the shards of a pass: counted layouts combined into a few per thread, fewer if they are small.

        A shard has those of `sets` that its layouts count.
        """
        wanted, items = set(sets), []
        shards = shards_of(len(wanted.intersection(counting_pass.sets)), counting_pass.cells, self.engine.workers)
        together = -(-len(handles) // shards)  # layouts that are combined into one shard

        for start in range(0, len(handles), together):
            layouts, flats = counting_pass.shards[start : start + together], handles[start : start + together]
            in_shard = [names for layout in layouts for names in layout.sets if names in wanted]
            whole = self.whole.intersection(in_shard)
            items.append((layouts, in_shard, self.groups, self.rows, whole, *flats))

        packed = self.engine.persist(pack, items, "pack")
        return [(handle, in_shard) for handle, (_, in_shard, *_) in zip(packed, items, strict=True)]

    def _contains(self, names: AttributeSet) -> bool:
        return names in self._names

    def _size(self, sets: Iterable[AttributeSet]) -> int:
        """Return the bytes of stored sets, from public and released numbers.

        Sets are stored over groups of cells, those in `whole` over all cells.
        """
        total = 0
        for names in sets:
            grouped = (self.groups[name].count for name in names)
            cells = self.domain.cells(names) if names in self.whole else math.prod(grouped)
            total += shard_bytes(cells, self.rows)
        return total


def shards_of(sets: int, cells: int, workers: int) -> int:
    """Return the number of shards for a pass of `sets` candidates with `cells` counters."""
    return max(min(SHARDS_PER_THREAD * workers, math.ceil(sets / SETS_PER_SHARD + cells / CELLS_PER_SHARD)), 1)


def pack(
    layouts: Sequence[Layout],
    sets: list[AttributeSet],
    groups: Mapping[str, Groups],
    rows: int,
    whole: frozenset[AttributeSet],
    *flats: Integers,
) -> MarginalShard:
    """Return the shard of some counted layouts."""
    counted = zip(layouts, flats, strict=True)
    return build_shard(
        chain.from_iterable(layout.marginals(flat) for layout, flat in counted), sets, groups, rows, whole
    )


def score_shard(
    shard: MarginalShard,
    estimates: CurrentEstimates,
    sets: list[AttributeSet],
    classes: Mapping[AttributeSet, CellClasses],
) -> Distances:
    """Return the distances of estimates from the exact marginals of a shard, for a task on a worker."""
    return shard.distances(estimates, sets, classes)


def measure_shard(shard: MarginalShard, wanted: list[Measurements], place: SecretFile) -> int:
    return measure_all(shard.marginal, wanted, place)
