"""What tasks cost that do nothing, next to a job of 10,700 sets; and a model of that job on many workers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

from clocks import Stream, computing, generated, job_of, kind, measure_on, streamed, tell, timed
from simulation import Costs, simulated

OVERHEAD = 0.05
EMPTY = 3000


def overhead(client: Any) -> float:
    """Seconds a task that does nothing takes, on one worker, in graphs of thousands."""
    from dpscale.engine import ClusterEngine

    engine = ClusterEngine(client)
    engine.keep(abs, [(i,) for i in range(100)], "warm")
    return timed(lambda: engine.keep(abs, [(i,) for i in range(EMPTY)], "empty")) / EMPTY


def large(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> dict[str, float]:
    """Overhead at 10,700 sets, and the simulation, whose costs come from the same runs."""
    each = min(overhead(clients[1]) for _ in range(3))
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
    share = each * len(stream) / took[1]
    print(f"{'overhead of a task':32} {each * 1e3:.2f} ms; at 10,700 sets of [{given.size}]^40 {len(stream)} tasks: "
          f"{share:.2%} of the stage on one worker ({share / OVERHEAD:.2f} of the aim)")  # fmt: skip
    efficiency = tell("measuring 10,700 sets", took)
    costs = costs_of(stream, took[1], each, bandwidth(clients[2]))
    told = {workers: simulated(costs, workers) for workers in (1, 2)}
    errors = ", ".join(f"{told[workers] / took[workers] - 1:+.1%} at {workers}" for workers in told)
    print(f"{'model':32} its error: {errors} (1 is fitted, 2 is told); the driver's share of one worker's run: "
          f"{costs.driver / took[1]:.0%}")  # fmt: skip
    faster = extrapolate(costs, shards_of(job))
    return {"measuring": efficiency, "measuring, driver": costs.driver / took[1], "overhead, seconds a task": each,
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


def costs_of(stream: Stream, wall: float, each: float, speed: float) -> Costs:
    """What the model takes from a run on one worker; what is left of it is the driver's, one after the other."""
    seconds: dict[str, list[float]] = {}
    for task in stream:
        seconds.setdefault(kind(task), []).append(computing(task))
    count = seconds.get("count", [0.0])
    size = max((task["nbytes"] for task in stream if kind(task) == "count"), default=0)
    summing = [one for name in ("count-sum", "count-part") for one in seconds.get(name, [])]
    rest = wall - sum(map(sum, seconds.values())) - each * len(stream)
    return Costs(count, sum(summing) / max(len(summing), 1), seconds.get("measure", [0.0]), size, speed, each,
                 max(rest, 0.0))  # fmt: skip


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
