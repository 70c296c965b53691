"""What tasks cost that do nothing, next to a job of 10,700 sets; and a model of that job on many workers."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from clocks import Stream, computing, generated, job_of, kind, measure_on, streamed, tell, timed
from simulation import FAN_IN, Batch, Costs, simulated

from dpscale.engine.graphs import add_lists

OVERHEAD = 0.05
EMPTY = 3000


def overhead(client: Any) -> float:
    """Seconds a task that does nothing takes, on one worker, in graphs of thousands."""
    from dpscale.engine import ClusterEngine

    engine = ClusterEngine(client)
    engine.persist(abs, [(i,) for i in range(100)], "warm")
    return timed(lambda: engine.persist(abs, [(i,) for i in range(EMPTY)], "empty")) / EMPTY


def large(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> dict[str, float]:
    """Overhead at 10,700 sets, and the simulation, whose costs come from the same runs."""
    pace = Pace.of(clients[1], clients[2])
    asked = "".join(f'[[workload]]\nfamily = "{family}"\ndegree = {degree}\n'
                    for family, degree in (("range", 1), ("affine", 2), ("prefix", 3)))  # fmt: skip
    made = generated(place, "large", given.rows // 4, 40, str(given.size), 32)
    for client in clients.values():  # imports and compiled code
        measure_on(job_of(made, "small", '[[workload]]\nfamily = "range"\ndegree = 1\n', "query-smasher"), client)
    job = job_of(made, "large", asked, "query-smasher")
    stages: dict[int, list[tuple[float, Stream]]] = {workers: [] for workers in clients}
    for _ in range(given.long):
        for workers, client in clients.items():
            stages[workers].append(streamed_stage(job, client))
    took = {workers: min(found)[0] for workers, found in stages.items()}
    stream = min(stages[1], key=lambda found: found[0])[1]
    share = pace.task * len(stream) / took[1]
    print(f"{'overhead of a task':32} {pace.task * 1e3:.2f} ms; at 10,700 sets of [{given.size}]^40 {len(stream)} "
          f"tasks: {share:.2%} of the stage on one worker ({share / OVERHEAD:.2f} of the aim)")  # fmt: skip
    efficiency = tell("measuring 10,700 sets", took)
    costs = costs_of(stream, took[1], pace)
    told = {workers: simulated(costs, workers) for workers in (1, 2)}
    errors = ", ".join(f"{told[workers] / took[workers] - 1:+.1%} at {workers}" for workers in told)
    print(f"{'model':32} its error: {errors} (1 is fitted, 2 is told); the driver's share of one worker's run: "
          f"{costs.driver / took[1]:.0%}")  # fmt: skip
    faster = extrapolate(costs, shards_of(job))
    return {"measuring": efficiency, "measuring, driver": costs.driver / took[1], "overhead, seconds a task": pace.task,
            "overhead, share": share, "model's error": told[2] / took[2] - 1,
            **{f"simulated, {workers}": times for workers, times in faster.items()}}  # fmt: skip


def shards_of(job: Path) -> Callable[[int], int]:
    """How many tasks measure, by workers."""
    from dpscale.engine.counting import plan_passes
    from dpscale.job import Job

    read = Job.read(job)
    domain = read.read_domain()
    sets = [names for k in (1, 2, 3) for names in combinations(domain.names, k)]
    return lambda workers: sum(len(one.shards) for one in plan_passes(domain, sets, read.engine.bytes, workers))


def streamed_stage(job: Path, client: Any) -> tuple[float, Stream]:
    found: list[float] = []
    _, stream = streamed(client, lambda: found.append(measure_on(job, client)))
    return found[0], [task for task in stream if kind(task) != "solve"]


@dataclass(frozen=True)
class Pace:
    """Seconds a task that does nothing takes on one worker; of them, at the most, those of the scheduler and client,
    CPU seconds of this process; seconds to add a cell; bytes a second from worker to worker."""

    task: float
    scheduler: float
    adding: float
    speed: float

    @classmethod
    def of(cls, one: Any, two: Any) -> Pace:
        """On clusters of one worker and of two."""
        found = []
        for _ in range(3):
            busy = time.process_time()
            found.append((overhead(one), (time.process_time() - busy) / EMPTY))
        task, scheduler = min(found)
        return cls(task, min(task, scheduler), adding(), bandwidth(two))


def adding() -> float:
    """Seconds to add a cell of a partial count to a sum."""
    lists = [[np.ones(1 << 20, np.int32)] for _ in range(FAN_IN)]
    return min(timed(lambda: add_lists(*lists)) for _ in range(5)) / (FAN_IN << 20)


def costs_of(stream: Stream, wall: float, pace: Pace) -> Costs:
    """What the model takes from a run on one worker; what is left of it is the driver's, one after the other.

    There all rows are counted by one task, and what takes shards out of its counts is no batch of its own.
    """
    calls: dict[str, tuple[str, list[float]]] = {}
    for task in sorted(stream, key=lambda task: task["startstops"][0]["start"]):
        if kind(task) not in ("count-part", "count-sum", "count-take", "other"):
            calls.setdefault(str(task["key"]).split("'")[1], (kind(task), []))[1].append(computing(task))
    size = max((task["nbytes"] for task in stream if kind(task) == "count"), default=0)
    rest = wall - sum(map(computing, stream)) - pace.task * len(stream)
    return Costs([Batch(*call) for call in calls.values()], size, pace.speed, pace.adding, pace.scheduler,
                 pace.task - pace.scheduler, max(rest, 0.0))  # fmt: skip


def bandwidth(client: Any) -> float:
    """Bytes a second from one worker to another."""
    source, target = list(client.nthreads())
    made = client.submit(bytes, 1 << 26, workers=[source], pure=False)
    made.result()
    return (1 << 26) / timed(lambda: client.submit(len, made, workers=[target], pure=False).result())


def extrapolate(costs: Costs, shards: Callable[[int], int]) -> dict[int, float]:
    """The same sets on this table and on one a thousand times as long; the speed-up of the latter by workers."""
    for length in (1, 1000):
        longer = costs.longer(length)
        one = simulated(longer, 1)
        found = {n: one / simulated(longer.cut(shards(n)), n) for n in (2, 10, 100, 1000)}
        told = ", ".join(f"{n:,}: {times:,.1f}" for n, times in found.items())
        print(f"{'simulated speed-up':32} table × {length:,}, workers {told}")
    return found
