"""Clusters and the driver: speed-up on two workers, overhead of tasks, and a model of many workers.

python benchmarks/scaling.py workers    speed-up from one worker process to two, overhead of tasks, a dead worker
python benchmarks/scaling.py shares     the share of the driver in whole jobs, and the prediction for many workers
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import base
import numpy as np
from base import (
    BASELINE,
    Stream,
    best_times,
    compute_seconds,
    count_on,
    generate_table,
    prepare_counting,
    print_efficiency,
    record_tasks,
    task_kind,
    time_call,
    time_measure_stage,
    unpack,
    write_job,
)

from dpscale.engine.graphs import add_lists, batch_size, useful_tasks
from tests.running import begin_table

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


class PlainPool:
    """Processes that receive only their shares of the work, instead of a cluster."""

    def __init__(self, workers: int) -> None:
        self.workers, self.pool = workers, ProcessPoolExecutor(workers, mp_context=get_context("spawn"))

    def run(self, function: Callable[..., Any], shares: list[Any]) -> None:
        for task in [self.pool.submit(function, *share) for share in shares]:
            task.result()

    def count(self, table: Any, one: Any) -> None:
        """Count the same as `count_on`."""
        from dpscale.counting.count import count_by
        from dpscale.counting.cover import Program
        from dpscale.engine.counting import partition_groups

        cover = one.cover(1 << 21)
        program = Program.of(cover)
        groups = partition_groups(table.partitions, self.workers)
        self.run(count_by, [(program, cover.domain, group) for group in groups])


def spin(steps: int) -> int:
    """Compute without memory access."""
    return sum(step * step for step in range(steps))


Figures = dict[str, float]


def measure_machine(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> Figures:
    """Return the efficiency of two cores of this machine for work in registers."""
    bare = {workers: PlainPool(workers) for workers in (1, 2)}
    took = best_times(bare, given.turns, lambda pool: pool.run(spin, [(5_000_000,)] * 2))
    return {"registers": print_efficiency("two cores", took, "; bare processes")}


def measure_counting(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> Figures:
    table, one = prepare_counting(generate_table(place, "mixed", given.rows, 20, "2,4,10,50", 32))
    sides = {**clients, -1: PlainPool(1), -2: PlainPool(2)}
    every = best_times(sides, given.turns, lambda side: side.count(table, one) if isinstance(side, PlainPool)
                 else count_on(table, one, side))  # fmt: skip
    took, limit = ({workers: every[sign * workers] for workers in (1, 2)} for sign in (1, -1))
    of_limit = limit[1] / (2 * limit[2])
    ours = print_efficiency("counting", took, f"; bare processes: {of_limit:.3f}")
    print(f"{'':32} of what bare processes reach: {ours / of_limit:.3f}; one worker to one bare process: "
          f"{took[1] / limit[1]:.3f}")  # fmt: skip
    return {"counting": ours, "counting, bare": of_limit}


# Planning and rounds


def measure_planning(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> Figures:
    """1-way ranges and 2-way prefixes of attributes of different sizes: many problems without stored solutions."""
    import dpscale as dp
    from dpscale.engine.schedulers import ClusterEngine

    os.environ["DPSCALE_STORE"] = "off"  # nothing is known before
    workload = dp.Workload(dp.Domain({f"x{i:02d}": 150 + 7 * i for i in range(24)}))
    workload = workload.add("range", degree=1).add("prefix", degree=2)

    def plan(client: Any) -> None:
        dp.plan(workload, each=ClusterEngine(client).each("solve-attribute"), most_cells=1 << 40)

    def solve_all(function: Callable[..., Any], items: Any) -> list[Any]:
        begin = time.perf_counter()
        found = [function(item) for item in items]
        spent.append(time.perf_counter() - begin)
        return found

    spent: list[float] = []  # by each call
    whole = time_call(lambda: dp.plan(workload, each=solve_all, most_cells=1 << 40))
    note = f"; of it tasks in one process: {sum(spent) / whole:.0%}"
    return {"planning": print_efficiency("planning", best_times(clients, given.turns, plan), note)}


def measure_rounds(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> Figures:
    """A whole adaptive measure stage: tasks count, pack, score and measure; the driver only updates estimates."""
    made = generate_table(place, "rounds", given.rows // 4, 16, "2,4,10,20", 16)
    job = write_job(made, "rounds", '[[workload]]\nfamily = "marginal"\ndegree = 3\n', "aim-grem")
    took: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(given.turns):
        for workers, client in clients.items():
            took[workers].append(time_measure_stage(job, client))
    _, stream = record_tasks(clients[1], lambda: time_measure_stage(job, clients[1]))
    least = {workers: min(seconds) for workers, seconds in took.items()}
    share = sum(map(compute_seconds, stream)) / least[1]
    efficiency = print_efficiency("adaptive rounds", least, f"; tasks are {share:.0%} of the run on one")
    print(f"{'':32} limit by the share of tasks: {1 / (2 * (1 - share / 2)):.3f}")
    return {"rounds": efficiency, "rounds, seconds": least[1], "rounds, driver": 1 - share}


PARTS = {
    "machine": measure_machine,
    "counting": measure_counting,
    "planning": measure_planning,
    "rounds": measure_rounds,
    "large": run_large,
    "death": run_death,
}


def print_workers() -> None:
    """Gain and cost of a cluster: speed-up from one worker process to two, overhead of tasks, dead worker, simulation.

    Two `distributed` clusters of one thread per worker run in turns, one with one worker and one with two; each figure
    is the best of several turns. The speed-up of counting is compared with that of plain processes without Dask, the
    limit of the machine. A model of a list scheduler takes its times from the run on one worker, is checked against the
    run on two, and then predicts 10, 100 and 1,000 workers.

        python benchmarks/scaling.py workers [--rows 4000000] [--turns 3] [--size 8] [--save]
            --only PART            machine, counting, planning, rounds, large or death
    """
    parser = base.command_parser(print_workers.__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--long", type=int, default=1, help="turns of the long job")
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--only", choices=list(PARTS))
    parser.add_argument("--save", action="store_true", help="keep the figures of all parts in results/")
    given = parser.parse_args()
    os.environ["DPSCALE_STORE"] = "off"
    import dask
    from distributed import Client, LocalCluster

    dask.config.set({"logging.distributed": "critical"})

    with tempfile.TemporaryDirectory(dir=".") as folder:
        made = {
            n: LocalCluster(n_workers=n, threads_per_worker=1, dashboard_address=None, silence_logs=50) for n in (1, 2)
        }
        clients = {n: Client(cluster, set_as_default=False) for n, cluster in made.items()}
        figures: Figures = {}
        print(f"load at the start: {os.getloadavg()[0]:.2f}, cores: {os.cpu_count()}")
        for name, part in PARTS.items():
            if given.only in (None, name):
                (Path(folder) / name).mkdir()
                figures |= part(clients, Path(folder).resolve() / name, given)
        for n, client in clients.items():
            client.close()
            made[n].close()
    if given.save:
        base.save("scaling", figures)


BEFORE = "adaptive"  # the job that runs with the earlier package too
WORKERS = (10, 100, 1000)
LENGTHS = (10**8, 10**9, 10**10)
SHARDS = 16


@dataclass(frozen=True)
class NamedJob:
    """A job: rows, attributes, their sizes, degree and mechanism."""

    rows: int
    attributes: int
    sizes: str
    degree: int
    mechanism: str


JOBS = {
    "wide": NamedJob(1_000_000, 300, "4", 2, "query-smasher"),
    "triples": NamedJob(2_000_000, 20, "2,4,10,50", 3, "query-smasher"),
    "adaptive": NamedJob(1_000_000, 20, "2,4,10", 3, "aim-grem"),
    "adaptive66": NamedJob(200_000, 66, "2,3,4", 2, "aim-grem"),
}


def write_named_job(place: Path, name: str, one: NamedJob) -> Path:
    path = place / "job.toml"
    path.write_text(
        f'[data]\npath = "{place / "table"}"\ndomain = "{place / "domain.toml"}"\n[privacy]\nrho = 1.0\n'
        f'dataset = "{name}"\n[[workload]]\nfamily = "marginal"\ndegree = {one.degree}\n'
        f'[mechanism]\nname = "{one.mechanism}"\n[engine]\nmemory = "4GiB"\nseed = 1\n[output]\nmax_rows = 0\n'
    )
    return path


@dataclass(frozen=True)
class TaskCounts:
    """Numbers of tasks for some workers: most counting tasks, pieces of their sums, measuring tasks, shards of a
    round.
    """

    most: int
    pieces: int
    measuring: int
    shards: int


def record_stages(job: Path, client: Any) -> tuple[dict[str, tuple[float, float, Stream]], dict[int, TaskCounts]]:
    """Return, by stage, its seconds, the CPU seconds of this process, and its tasks; and the task counts by workers.

    The ledger of an earlier run is removed.
    """
    from dpscale.job import Job
    from dpscale.runs.stage import STAGES
    from tests.running import run_stages

    found = {}
    for ledger in job.parent.glob("ledger.sqlite*"):
        ledger.unlink()
    with tempfile.TemporaryDirectory(dir=job.parent) as folder:
        run = begin_table(Job.read(job), Path(folder) / "run")
        for stage in STAGES.values():
            if stage.is_enabled(run):
                busy = time.process_time()
                wall, stream = record_tasks(client, lambda name=stage.name: run_stages(run, client=client, only=name))
                found[stage.name] = wall, time.process_time() - busy, stream
        return found, {workers: task_counts(run, workers) for workers in WORKERS}


def task_counts(run: Any, workers: int) -> TaskCounts:
    """Return the task counts of the engine."""
    from dpscale.engine.counting import plan_passes
    from dpscale.engine.shards import shards_of

    passes = plan_passes(run.domain, run.measurement_plan.counted_sets, run.job.engine.bytes, workers)
    shards = sum(shards_of(len(one.sets), one.cells, workers) for one in passes)
    return TaskCounts(
        min(one.most for one in passes), max(len(one.pieces) for one in passes), max(workers, SHARDS), shards
    )


def measure_job(name: str, one: NamedJob, place: Path, client: Any, pace: Pace) -> Figures:
    """Return the shares of one job, and its simulated speed-up."""
    made = generate_table(place, name, one.rows, one.attributes, one.sizes, 32)
    job = write_named_job(made, name, one)
    record_stages(job, client)  # compiles loops
    stages, cuts = record_stages(job, client)
    costs = {stage: replace(estimate_costs(stream, wall, pace), spread=pace.spread)
             for stage, (wall, _, stream) in stages.items()}  # fmt: skip
    whole = sum(wall for wall, _, _ in stages.values())
    for stage, (wall, busy, stream) in stages.items():
        kinds: dict[str, float] = {}
        for task in stream:
            kinds[task_kind(task)] = kinds.get(task_kind(task), 0.0) + compute_seconds(task)
        text = ", ".join(
            f"{what} {seconds:.2f}" for what, seconds in sorted(kinds.items(), key=lambda item: -item[1])[:5]
        )
        print(
            f"{name:12} {stage:12} {wall:7.2f} s, driver {costs[stage].driver:6.2f} s ({busy:.2f} busy); tasks {text}"
        )
    driver = sum(cost.driver for cost in costs.values())
    found = {f"{name}, seconds": whole, f"{name}, driver": driver}
    print(f"{name:12} driver {driver:.2f} of {whole:.2f} s")
    for rows in LENGTHS:
        longer = {stage: cost.lengthen(rows // one.rows) for stage, cost in costs.items()}
        took = {n: sum(simulate(split_costs(cost, n, cuts.get(n)), n) for cost in longer.values())
                for n in (1, *WORKERS)}  # fmt: skip
        faster = ", ".join(f"{n:,}: {took[n]:.2f} s, {took[1] / took[n]:.1f} times" for n in WORKERS)
        print(f"{name:12} {rows:,} rows: {took[1]:.1f} s on one; {faster}", flush=True)
        found |= {f"{name}, {rows:.0e}, {n}, {what}": value for n in WORKERS[1:]
                  for what, value in (("seconds", took[n]), ("times", took[1] / took[n]))}  # fmt: skip
    two = sum(simulate(cost, 2) for cost in costs.values())
    return found | {f"{name}, predicted on 2": two}


def check_on_two(name: str, predicted: float, job: Path, pair: Any) -> Figures:
    """Return the seconds of a job on two workers, and print them beside the prediction."""
    record_stages(job, pair)  # compiles loops
    stages, _ = record_stages(job, pair)
    took = sum(wall for wall, _, _ in stages.values())
    print(f"{name:12} on two workers: {took:.2f} s, {predicted:.2f} predicted: {predicted / took - 1:+.0%}", flush=True)
    return {f"{name}, on 2": took}


def split_costs(costs: Costs, workers: int, cut: TaskCounts | None) -> Costs:
    """Return the same work with the task counts for some workers."""
    if cut is None:
        return costs
    return costs.split_reading(workers, cut.most, cut.pieces).split_measuring(cut.measuring).split_rounds(cut.shards)


def earlier_figures(commit: str) -> Figures:
    """Return the figures of one job with the package of an earlier commit."""
    with tempfile.TemporaryDirectory() as folder:
        package, output = unpack(commit, Path(folder) / "before"), Path(folder) / "figures.json"
        print(f"with the package of {commit}:", flush=True)
        subprocess.run([sys.executable, __file__, "shares", "--only", BEFORE, "--output", str(output)], check=True,
                       env=os.environ | {"PYTHONPATH": str(package)})  # fmt: skip
        found = json.loads(output.read_text())
    return {f"before, {name}": value for name, value in found.items() if name.startswith(BEFORE + ",")}


def print_shares() -> None:
    """The share of the driver: whole jobs on one worker process, stage by stage, and the prediction for many workers.

    A job runs on a `distributed` cluster of one worker with one thread. The scheduler's record gives the seconds of the
    tasks of every stage; the rest of the stage belongs to the driver, runs in sequence, and does not depend on the
    workers. The model then answers Gustafson's question: the speed-up on 10, 100 and 1,000 workers for tables of 10^8,
    10^9 and 10^10 rows. Assumptions: only tasks that read the table grow with it; tasks of equal work last as long as
    the quantiles of equal tasks on this machine; a task costs the CPU time that a scheduler in its own process spends
    on it, one after the other, and its worker the rest of an empty task; sums travel at the measured speed between
    workers. One point is checked: the seconds of the same job on two worker processes, which share two cores with
    driver and scheduler here. The adaptive job also runs with the package of an earlier commit, in a process of its
    own.

        python benchmarks/scaling.py shares [--only wide|triples|adaptive|adaptive66] [--baseline 2741c547] [--save]
    """
    parser = base.command_parser(print_shares.__doc__)
    parser.add_argument("--only", choices=list(JOBS))
    parser.add_argument("--baseline", default=BASELINE)
    parser.add_argument("--output", type=Path, help="write the figures of the installed package here, and no others")
    parser.add_argument("--save", action="store_true", help="keep the figures in results/")
    given = parser.parse_args()
    earlier = earlier_figures(given.baseline) if given.only in (None, BEFORE) and not given.output else {}
    figures = measured_figures(given.only)
    for name in ("driver", "1e+08, 100, seconds", "1e+09, 100, seconds") if earlier else ():
        before, now = earlier[f"before, {BEFORE}, {name}"], figures[f"{BEFORE}, {name}"]
        print(f"{BEFORE}, {name}: {before:.2f} before, {now:.2f} now")
    if given.output:
        given.output.write_text(json.dumps(figures))
    if given.save:
        base.save("shares", earlier | figures)


def measured_figures(only: str | None) -> Figures:
    """Return the figures of one job, or of all."""
    os.environ["DPSCALE_STORE"] = "off"
    import dask
    from distributed import Client, LocalCluster

    dask.config.set({"logging.distributed": "critical"})
    with (
        tempfile.TemporaryDirectory(dir=".") as folder,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as two,
        Client(two, set_as_default=False) as pair,
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        pace = Pace.of(client, pair)
        print(f"a task takes {pace.task * 1e3:.2f} ms, {pace.scheduler * 1e3:.2f} of them the scheduler's; the slowest "
              f"of {len(pace.spread)} equal tasks {max(pace.spread):.2f} of their mean")  # fmt: skip
        figures = {"task, ms": pace.task * 1e3, "scheduler, ms": pace.scheduler * 1e3, "slowest": max(pace.spread)}
        small = NamedJob(20_000, 4, "2", 2, "query-smasher")
        measure_job("warm", small, Path(folder).resolve(), client, pace)
        for name, one in JOBS.items():
            if only in (None, name):
                place = Path(folder).resolve()
                figures |= measure_job(name, one, place, client, pace)
                figures |= check_on_two(name, figures[f"{name}, predicted on 2"], place / name / "job.toml", pair)
    return figures


COMMANDS = {
    "workers": print_workers,
    "shares": print_shares,
}

if __name__ == "__main__":
    base.run_command(COMMANDS, __doc__)
