"""The overhead of empty tasks, relative to a job of 10,700 sets, and a model of that job on many workers."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from base import (
    Stream,
    compute_seconds,
    count_on,
    generate_table,
    prepare_counting,
    print_efficiency,
    record_tasks,
    task_kind,
    time_call,
    time_measure_stage,
    write_job,
)

from dpscale.engine.graphs import add_lists, batch_size, useful_tasks

OVERHEAD = 0.05
EMPTY = 3000


def measure_overhead(client: Any) -> float:
    """Return the seconds of an empty task on one worker, in graphs of thousands of tasks."""
    from dpscale.engine.schedulers import ClusterEngine

    engine = ClusterEngine(client)
    engine.persist(abs, [(i,) for i in range(100)], "warm")
    return time_call(lambda: engine.persist(abs, [(i,) for i in range(EMPTY)], "empty")) / EMPTY


def run_large(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> dict[str, float]:
    """Measure the overhead at 10,700 sets, and simulate many workers with costs of the same runs."""
    pace = Pace.of(clients[1], clients[2])
    workload = "".join(f'[[workload]]\nfamily = "{family}"\ndegree = {degree}\n'
                    for family, degree in (("range", 1), ("affine", 2), ("prefix", 3)))  # fmt: skip
    made = generate_table(place, "large", given.rows // 4, 40, str(given.size), 32)
    for client in clients.values():  # imports and compiled code
        time_measure_stage(
            write_job(made, "small", '[[workload]]\nfamily = "range"\ndegree = 1\n', "query-smasher"), client
        )
    job = write_job(made, "large", workload, "query-smasher")
    stages: dict[int, list[tuple[float, Stream]]] = {workers: [] for workers in clients}
    for _ in range(given.long):
        for workers, client in clients.items():
            stages[workers].append(record_stage(job, client))
    took = {workers: min(found)[0] for workers, found in stages.items()}
    stream = min(stages[1], key=lambda found: found[0])[1]
    share = pace.task * len(stream) / took[1]
    print(f"{'overhead of a task':32} {pace.task * 1e3:.2f} ms; at 10,700 sets of [{given.size}]^40 {len(stream)} "
          f"tasks: {share:.2%} of the stage on one worker ({share / OVERHEAD:.2f} of the aim)")  # fmt: skip
    efficiency = print_efficiency("measuring 10,700 sets", took)
    costs = estimate_costs(stream, took[1], pace)
    predicted = {workers: simulate(costs, workers) for workers in (1, 2)}
    errors = ", ".join(f"{predicted[workers] / took[workers] - 1:+.1%} at {workers}" for workers in predicted)
    print(f"{'model':32} its error: {errors} (1 is fitted, 2 is predicted); the driver's share of one worker's run: "
          f"{costs.driver / took[1]:.0%}")  # fmt: skip
    faster = extrapolate(costs, measuring_tasks(job))
    return {"measuring": efficiency, "measuring, driver": costs.driver / took[1], "overhead, seconds a task": pace.task,
            "overhead, share": share, "model's error": predicted[2] / took[2] - 1,
            **{f"simulated, {workers}": times for workers, times in faster.items()}}  # fmt: skip


def measuring_tasks(job: Path) -> Callable[[int], int]:
    """Return the number of measuring tasks, as a function of the workers."""
    from dpscale.engine.counting import plan_passes
    from dpscale.job import Job

    read = Job.read(job)
    domain = read.table.read_domain()
    sets = [names for k in (1, 2, 3) for names in combinations(domain.names, k)]
    return lambda workers: sum(len(one.shards) for one in plan_passes(domain, sets, read.engine.bytes, workers))


def record_stage(job: Path, client: Any) -> tuple[float, Stream]:
    found: list[float] = []
    _, stream = record_tasks(client, lambda: found.append(time_measure_stage(job, client)))
    return found[0], [task for task in stream if not task_kind(task).startswith("solve")]


@dataclass(frozen=True)
class Pace:
    """Costs of tasks.

    `task`: seconds of an empty task on one worker; `scheduler`: CPU seconds of a task in a scheduler process; `adding`:
    seconds to add a cell; `speed`: bytes per second between workers; `spread`: relative seconds of equal tasks.
    """

    task: float
    scheduler: float
    adding: float
    speed: float
    spread: tuple[float, ...]

    @classmethod
    def of(cls, one: Any, two: Any) -> Pace:
        """Measure the costs on clusters of one worker and of two."""
        task = min(measure_overhead(one) for _ in range(3))
        scheduler = min(task, scheduler_seconds())
        return cls(task, scheduler, adding_seconds(), measure_bandwidth(two), measure_spread(one))


def scheduler_seconds() -> float:
    """Return the CPU seconds that a scheduler in its own process spends on an empty task of a large graph."""
    import psutil
    from distributed import Client
    from distributed.utils import open_port

    address = f"tcp://127.0.0.1:{open_port()}"
    scheduler = ["dask_scheduler", "--host", address, "--no-dashboard", "--no-show"]
    worker = ["dask_worker", "--nthreads", "1", "--no-dashboard", address]
    started = [start_process(*scheduler)]
    try:
        with Client(address, timeout="30s", set_as_default=False) as client:
            started.append(start_process(*worker))
            client.wait_for_workers(1)
            times = psutil.Process(started[0].pid).cpu_times
            found = []
            for _ in range(3):
                before = times()
                measure_overhead(client)
                after = times()
                found.append((after.user + after.system - before.user - before.system) / EMPTY)
            return min(found)
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def start_process(program: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"distributed.cli.{program}", *options]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def measure_spread(client: Any) -> tuple[float, ...]:
    """Return the seconds of 64 equal tasks of 20 ms over their mean."""
    from dpscale.engine.schedulers import ClusterEngine

    seconds = ClusterEngine(client).map(spin_seconds, [(300_000,)] * 64, "spin")
    return tuple(one * len(seconds) / sum(seconds) for one in seconds)


def spin_seconds(steps: int) -> float:
    """Compute without memory access and return the seconds."""
    return time_call(lambda: sum(step * step for step in range(steps)))


def adding_seconds() -> float:
    """Return the seconds to add a cell of a partial count to a sum."""
    lists = [[np.ones(1 << 20, np.int32)] for _ in range(FAN_IN)]
    return min(time_call(lambda: add_lists(*lists)) for _ in range(5)) / (FAN_IN << 20)


def estimate_costs(stream: Stream, wall: float, pace: Pace) -> Costs:
    """Return the costs of the model from a run on one worker; the remaining time belongs to the driver, in sequence.

    One task counts all rows there, and the extraction of shards from its counts is not a separate batch.
    """
    calls: dict[str, tuple[str, list[float]]] = {}
    for task in sorted(stream, key=lambda task: task["startstops"][0]["start"]):
        if task_kind(task) not in ("count-part", "count-sum", "count-take", "other"):
            calls.setdefault(str(task["key"]).split("'")[1], (task_kind(task), []))[1].append(compute_seconds(task))
    size = max((task["nbytes"] for task in stream if task_kind(task) == "count"), default=0)
    rest = wall - sum(map(compute_seconds, stream)) - pace.task * len(stream)
    return Costs([Batch(*call) for call in calls.values()], size, pace.speed, pace.adding, pace.scheduler,
                 pace.task - pace.scheduler, max(rest, 0.0))  # fmt: skip


def measure_bandwidth(client: Any) -> float:
    """Return the bytes per second from one worker to another."""
    source, target = list(client.nthreads())
    made = client.submit(bytes, 1 << 26, workers=[source], pure=False)
    made.result()
    return (1 << 26) / time_call(lambda: client.submit(len, made, workers=[target], pure=False).result())


def extrapolate(costs: Costs, shards: Callable[[int], int]) -> dict[int, float]:
    """Simulate the same sets on this table and on one a thousand times as long; return the latter's speed-up by
    workers.
    """
    for length in (1, 1000):
        longer = costs.lengthen(length)
        one = simulate(longer, 1)
        found = {n: one / simulate(longer.split_measuring(shards(n)), n) for n in (2, 10, 100, 1000)}
        text = ", ".join(f"{n:,}: {times:,.1f}" for n, times in found.items())
        print(f"{'simulated speed-up':32} table × {length:,}, workers {text}")
    return found


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


# A death


def burn(folder: str, number: int) -> int:
    """Compute for a fifth of a second, and write a marker file at the start."""
    Path(folder, f"{number}-{os.getpid()}-{time.time_ns()}").touch()
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        pass
    return number


def run_death(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> dict[str, float]:
    """Kill one of two workers at a third of a map and during a counting pass."""
    from dpscale.engine.schedulers import ClusterEngine

    client, calls = clients[2], 150
    marks = place / "marks"
    marks.mkdir()
    engine = ClusterEngine(client)
    whole = time_call(lambda: engine.map(burn, [(str(marks), i) for i in range(calls)], "burn"))
    begun = len(list(marks.iterdir()))
    engine.progress = WorkerKiller(client, calls // 3)
    lost = time_call(lambda: engine.map(burn, [(str(marks), i) for i in range(calls)], "burn")) - whole
    called = again = (len(list(marks.iterdir())) - begun - calls) * 0.2
    running = engine.progress.running
    print(f"{'death of 1 of 2 in a map':32} {again:.1f} s of calls were made again, of a task of about a second "
          f"({again / 1.2:.2f} of the aim); {lost:.1f} s later, {running} tasks were its own")  # fmt: skip
    client.wait_for_workers(2)
    table, one = prepare_counting(generate_table(place, "death", given.rows, 20, "2,4,10,50", 32))
    count_on(table, one, client)
    engine = ClusterEngine(client)
    plain = min(time_call(lambda: count_on(table, one, client)) for _ in range(given.turns))
    hit, stream = record_tasks(client, lambda: count_with_kill(table, one, client, plain / 2))
    last = {task["key"]: compute_seconds(task) for task in stream}
    again, own = sum(map(compute_seconds, stream)) - sum(last.values()), max(last.values())
    print(f"{'death of 1 of 2 in counting':32} {again:.1f} s of ended tasks done again of {sum(last.values()):.1f}; "
          f"the longest {own:.1f} s; {hit - plain:.1f} s later, {hit / plain:.2f} of an undisturbed pass")  # fmt: skip
    return {"death, map seconds again": called, "death, counting seconds again": again}


class WorkerKiller:
    """A progress function that kills a worker when a number of tasks are done."""

    def __init__(self, client: Any, at: int) -> None:
        self.client, self.at, self.running = client, at, 0

    def __call__(self, label: str, done: int, total: int) -> None:
        if done >= self.at and self.at >= 0:
            self.at = -1
            workers = self.client.cluster.scheduler.workers
            victim = max(workers.values(), key=lambda worker: len(worker.processing))
            self.running = len(victim.processing)
            os.kill(self.client.cluster.workers[victim.name].pid, signal.SIGKILL)


def count_with_kill(table: Any, one: Any, client: Any, after: float) -> None:
    """Count while a worker is killed after some seconds."""
    killer = WorkerKiller(client, 0)
    timer = threading.Timer(after, killer, ("count", 1, 1))
    timer.start()
    count_on(table, one, client)
    timer.join()
