"""A model of a counting and measuring stage on many workers: a list scheduler over tasks of known times and sizes.

The scheduler hands tasks out one after the other, each taking it `each` seconds; a task starts on the worker that is
free first, when what it needs is there, and fetches what it needs from others at `speed`. Sums are a tree of FAN_IN.
The driver's own seconds come on top, whatever the workers. Nothing else is modelled: neither shared disks nor networks
that many workers fill, so at many workers it is a bound from above.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

FAN_IN = 8


@dataclass(frozen=True)
class Costs:
    """Seconds of each task, bytes of a partial count, bytes a second, seconds of the scheduler, of the driver."""

    counting: list[float]
    summing: float
    measuring: list[float]
    size: float
    speed: float
    each: float
    driver: float

    def longer(self, times: int) -> Costs:
        """The same sets on a table so many times as long: as many more tasks that count, and no more that measure."""
        return self if times == 1 else replace(self, counting=self.counting * times)

    def dealt(self, workers: int, most: int) -> Costs:
        """The same counting with a task for every worker at least, as partitions are dealt, and no more than `most`."""
        tasks = max(workers, min(len(self.counting), most // workers * workers))
        return replace(self, counting=[sum(self.counting) / tasks] * tasks)

    def cut(self, tasks: int) -> Costs:
        """The same measuring in so many tasks."""
        return replace(self, measuring=[sum(self.measuring) / tasks] * tasks)


class Workers:
    """Workers, and the scheduler that hands tasks out to them."""

    def __init__(self, count: int, each: float) -> None:
        self.free, self.each, self.clock, self.busy = [0.0] * count, each, 0.0, 0.0
        heapify(self.free)

    def run(self, ready: float, seconds: float) -> float:
        """When a task ends that is ready at a time."""
        self.clock = max(self.clock, ready) + self.each
        end = max(self.free[0], self.clock) + seconds
        heapreplace(self.free, end)
        return end


def simulated(costs: Costs, count: int) -> float:
    """Seconds of the stage on so many workers."""
    workers = Workers(count, costs.each)
    fetch = costs.size / costs.speed * (1 - 1 / count)
    level = sorted(workers.run(0.0, seconds) for seconds in costs.counting)
    while len(level) > 1:
        groups = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
        level = [workers.run(max(group), costs.summing + fetch * len(group)) for group in groups]
    share = fetch / max(len(costs.measuring), 1)
    ends = [workers.run(level[0], seconds + share) for seconds in sorted(costs.measuring, reverse=True)]
    return max(ends) + costs.driver
