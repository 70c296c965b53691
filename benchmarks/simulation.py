"""A model of a stage on many workers: a list scheduler over tasks of known times and sizes.

A stage is calls of the engine one after the other, each a batch of tasks that are ready when the call before has
ended. The scheduler hands tasks out one by one, each taking it `each` seconds; a task starts on the worker that is free
first, takes it `own` seconds beside its work, and fetches what it needs from others at `speed`. Partial counts are in
32 bits and their sums in 64; shards are summed in `pieces`, each by a tree of FAN_IN, as the engine does. The driver's
own seconds come on top, whatever the workers. Nothing else is modelled: neither shared disks nor networks that many
workers fill, so at many workers it is a bound from above.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

from dpscale.engine.task_sizing import batch_size, useful_tasks

FAN_IN = 8
BY_ROWS, IN_ROUNDS = ("count", "snapshot"), ("pack", "score", "measure")


@dataclass(frozen=True)
class Batch:
    """The tasks of one call: of what kind, and the seconds of each."""

    kind: str
    seconds: list[float]

    def cut(self, tasks: int) -> Batch:
        """The same work in so many tasks."""
        return replace(self, seconds=[sum(self.seconds) / tasks] * tasks)


@dataclass(frozen=True)
class Costs:
    """Batches; bytes of all counts in 64 bits, bytes a second from worker to worker, seconds to add a cell to a sum,
    seconds of a task that are the scheduler's and the worker's, seconds of the driver."""

    batches: list[Batch]
    size: float
    speed: float
    adding: float
    each: float
    own: float
    driver: float
    pieces: int = 1

    def longer(self, times: int) -> Costs:
        """The same sets on a table so many times as long: as many more tasks that read it, and no others."""
        return self._each(lambda one, _: replace(one, seconds=one.seconds * times) if one.kind in BY_ROWS else one)

    def dealt(self, workers: int, most: int, pieces: int) -> Costs:
        """The same reading with a task for every worker that it is worth, as partitions are dealt; `most` at most."""

        def tasks(batch: Batch) -> int:
            calls = len(batch.seconds)
            if batch.kind == "count":
                return max(min(workers, useful_tasks(sum(batch.seconds))), min(calls, most // workers * workers))
            return -(-calls // batch_size(calls, workers, sum(batch.seconds) / calls))

        dealt = self._each(lambda one, _: one.cut(tasks(one)) if one.kind in BY_ROWS else one)
        return replace(dealt, pieces=pieces)

    def cut(self, tasks: int) -> Costs:
        """The same measuring of the plan's own sets, in so many tasks."""
        return self._each(lambda one, number: one.cut(tasks) if number == self.first else one)

    def shared(self, tasks: int) -> Costs:
        """The same rounds with so many shards."""
        chosen = [one.kind in IN_ROUNDS and number != self.first for number, one in enumerate(self.batches)]
        return self._each(lambda one, number: one.cut(tasks) if chosen[number] else one)

    @property
    def first(self) -> int:
        """Which batch measures what the plan asks for."""
        return next((number for number, one in enumerate(self.batches) if one.kind == "measure"), -1)

    def _each(self, function: object) -> Costs:
        assert callable(function)
        return replace(self, batches=[function(one, number) for number, one in enumerate(self.batches)])


class Workers:
    """Workers, and the scheduler that hands tasks out to them."""

    def __init__(self, count: int, each: float, own: float) -> None:
        self.free, self.each, self.own, self.clock = [0.0] * count, each, own, 0.0
        heapify(self.free)

    def run(self, ready: float, seconds: float) -> float:
        """When a task ends that is ready at a time."""
        self.clock = max(self.clock, ready) + self.each
        end = max(self.free[0], self.clock) + seconds + self.own
        heapreplace(self.free, end)
        return end


def simulated(costs: Costs, count: int) -> float:
    """Seconds of the stage on so many workers."""
    workers, ready, away = Workers(count, costs.each, costs.own), 0.0, 1 - 1 / count
    for number, batch in enumerate(costs.batches):
        share = costs.size / costs.speed * away / len(batch.seconds) if number == costs.first else 0.0
        ends = [workers.run(ready, seconds + share) for seconds in sorted(batch.seconds, reverse=True)]
        if batch.kind == "count":
            ends = [_summed(costs, workers, sorted(ends), away) for _ in range(costs.pieces)]
        ready = max(ends)
    return ready + costs.driver


def _summed(costs: Costs, workers: Workers, level: list[float], away: float) -> float:
    """When one piece of all partial counts is summed."""
    if costs.pieces > 1 and len(level) > 1:
        level = [workers.run(end, 0.0) for end in level]
    cells, width = costs.size / 8 / costs.pieces, 4
    while len(level) > 1:
        groups = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
        one = cells * (width / costs.speed * away + costs.adding)
        level, width = [workers.run(max(group), one * len(group)) for group in groups], 8
    return level[0]
