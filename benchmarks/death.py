"""The cost of the death of a worker: calls and counts that are repeated."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from clocks import compute_seconds, count_on, generate_table, prepare_counting, record_tasks, time_call

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
    from dpscale.engine import ClusterEngine

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
