"""A model of a stage on many workers: a list scheduler over tasks of known times and sizes.

A stage is a sequence of calls of the engine, each a batch of tasks that are ready when the previous call has ended. The
scheduler assigns tasks one by one, each in `each` seconds; a task starts on the first idle worker, takes `own` seconds
in addition to its work, and fetches its input from other workers at `speed`. Partial counts have 32 bits and their sums
64; shards are summed in `pieces`, each by a tree of FAN_IN, as in the engine. The seconds of the driver are added for
any number of workers. Tasks of one batch with equal work last as long as the quantiles of `spread`, the measured
relative seconds of equal tasks, so that some are late. Shared disks and saturated networks are not modelled: the
speed-up is an upper bound for many workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

from dpscale.engine.task_sizing import batch_size, useful_tasks

FAN_IN = 8
BY_ROWS, IN_ROUNDS = ("count", "snapshot"), ("pack", "score-candidates", "measure-marginals")


@dataclass(frozen=True)
class Batch:
    """The tasks of one call: their kind, and the seconds of each."""

    kind: str
    seconds: list[float]

    def split(self, tasks: int, spread: Sequence[float] = (1.0,)) -> Batch:
        """Return the same work in `tasks` tasks, whose relative seconds are the quantiles of `spread`."""
        ordered = sorted(spread)
        relative = [ordered[place * len(ordered) // tasks] for place in range(tasks)]
        return replace(self, seconds=[sum(self.seconds) * one / sum(relative) for one in relative])


@dataclass(frozen=True)
class Costs:
    """Costs of a stage.

    `batches`; `size`: bytes of all counts in 64 bits; `speed`: bytes per second between workers; `adding`: seconds to
    add a cell to a sum; `each`, `own`: seconds of a task that belong to the scheduler and to the worker; `driver`:
    seconds of the driver; `spread`: relative seconds of equal tasks.
    """

    batches: list[Batch]
    size: float
    speed: float
    adding: float
    each: float
    own: float
    driver: float
    pieces: int = 1
    spread: Sequence[float] = (1.0,)

    def lengthen(self, times: int) -> Costs:
        """Return the costs of the same sets on a table `times` as long: tasks that read it grow, and no others."""
        return self._map_batches(
            lambda one, _: replace(one, seconds=one.seconds * times) if one.kind in BY_ROWS else one
        )

    def split_reading(self, workers: int, most: int, pieces: int) -> Costs:
        """Return the same reading with a task for every useful worker, as partitions are assigned; at most `most`
        tasks.
        """

        def task_number(batch: Batch) -> int:
            calls = len(batch.seconds)
            if batch.kind == "count":
                return max(min(workers, useful_tasks(sum(batch.seconds))), min(calls, most // workers * workers))
            return -(-calls // batch_size(calls, workers, sum(batch.seconds) / calls))

        costs = self._map_batches(
            lambda one, _: one.split(task_number(one), self.spread) if one.kind in BY_ROWS else one
        )
        return replace(costs, pieces=pieces)

    def split_measuring(self, tasks: int) -> Costs:
        """Return the same measuring of the plan's own sets, in `tasks` tasks."""
        return self._map_batches(lambda one, number: one.split(tasks, self.spread) if number == self.first else one)

    def split_rounds(self, tasks: int) -> Costs:
        """Return the same rounds with `tasks` shards."""
        chosen = [one.kind in IN_ROUNDS and number != self.first for number, one in enumerate(self.batches)]
        return self._map_batches(lambda one, number: one.split(tasks, self.spread) if chosen[number] else one)

    @property
    def first(self) -> int:
        """The index of the batch that measures the sets of the plan."""
        return next((number for number, one in enumerate(self.batches) if one.kind == "measure-marginals"), -1)

    def _map_batches(self, function: object) -> Costs:
        assert callable(function)
        return replace(self, batches=[function(one, number) for number, one in enumerate(self.batches)])


class Workers:
    """Workers, and the scheduler that assigns tasks to them."""

    def __init__(self, count: int, each: float, own: float) -> None:
        self.free, self.each, self.own, self.clock = [0.0] * count, each, own, 0.0
        heapify(self.free)

    def run(self, ready: float, seconds: float) -> float:
        """Return the end of a task that is ready at a time."""
        self.clock = max(self.clock, ready) + self.each
        end = max(self.free[0], self.clock) + seconds + self.own
        heapreplace(self.free, end)
        return end


def simulate(costs: Costs, count: int) -> float:
    """Return the seconds of the stage on `count` workers."""
    workers, ready, away = Workers(count, costs.each, costs.own), 0.0, 1 - 1 / count
    for number, batch in enumerate(costs.batches):
        share = costs.size / costs.speed * away / len(batch.seconds) if number == costs.first else 0.0
        ends = [workers.run(ready, seconds + share) for seconds in sorted(batch.seconds, reverse=True)]
        if batch.kind == "count":
            ends = [_sum_piece(costs, workers, sorted(ends), away) for _ in range(costs.pieces)]
        ready = max(ends)
    return ready + costs.driver


def _sum_piece(costs: Costs, workers: Workers, level: list[float], away: float) -> float:
    """Return the time at which one piece of all partial counts is summed."""
    if costs.pieces > 1 and len(level) > 1:
        level = [workers.run(end, 0.0) for end in level]
    cells, width = costs.size / 8 / costs.pieces, 4
    while len(level) > 1:
        groups = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
        one = cells * (width / costs.speed * away + costs.adding)
        level, width = [workers.run(max(group), one * len(group)) for group in groups], 8
    return level[0]
