"""What a worker's death costs: calls and counts that are made again."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from clocks import computing, count_on, counting_work, generated, streamed, timed

# A death


def burn(folder: str, number: int) -> int:
    """A call of a fifth of a second that leaves a mark for every time it begins."""
    Path(folder, f"{number}-{os.getpid()}-{time.time_ns()}").touch()
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        pass
    return number


def death(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> dict[str, float]:
    """A map and a counting pass of which one of two workers dies at a third."""
    from dpscale.engine import ClusterEngine

    client, calls = clients[2], 150
    marks = place / "marks"
    marks.mkdir()
    engine = ClusterEngine(client)
    whole = timed(lambda: engine.map(burn, [(str(marks), i) for i in range(calls)], "burn"))
    begun = len(list(marks.iterdir()))
    engine.progress = Killer(client, calls // 3)
    lost = timed(lambda: engine.map(burn, [(str(marks), i) for i in range(calls)], "burn")) - whole
    called = again = (len(list(marks.iterdir())) - begun - calls) * 0.2
    running = engine.progress.running
    print(f"{'death of 1 of 2 in a map':32} {again:.1f} s of calls were made again, of a task of about a second "
          f"({again / 1.2:.2f} of the aim); {lost:.1f} s later, {running} tasks were its own")  # fmt: skip
    client.wait_for_workers(2)
    table, one = counting_work(generated(place, "death", given.rows, 20, "2,4,10,50", 32))
    count_on(table, one, client)
    engine = ClusterEngine(client)
    plain = min(timed(lambda: count_on(table, one, client)) for _ in range(given.turns))
    hit, stream = streamed(client, lambda: killed_counting(table, one, client, plain / 2))
    last = {task["key"]: computing(task) for task in stream}
    again, own = sum(map(computing, stream)) - sum(last.values()), max(last.values())
    print(f"{'death of 1 of 2 in counting':32} {again:.1f} s of ended tasks done again of {sum(last.values()):.1f}; "
          f"the longest {own:.1f} s; {hit - plain:.1f} s later, {hit / plain:.2f} of an undisturbed pass")  # fmt: skip
    return {"death, map seconds again": called, "death, counting seconds again": again}


class Killer:
    """A progress function that kills a worker once so much is done."""

    def __init__(self, client: Any, at: int) -> None:
        self.client, self.at, self.running = client, at, 0

    def __call__(self, label: str, done: int, total: int) -> None:
        if done >= self.at and self.at >= 0:
            self.at = -1
            workers = self.client.cluster.scheduler.workers
            victim = max(workers.values(), key=lambda worker: len(worker.processing))
            self.running = len(victim.processing)
            os.kill(self.client.cluster.workers[victim.name].pid, signal.SIGKILL)


def killed_counting(table: Any, one: Any, client: Any, after: float) -> None:
    """Count while a worker dies after so many seconds."""
    killer = Killer(client, 0)
    timer = threading.Timer(after, killer, ("count", 1, 1))
    timer.start()
    count_on(table, one, client)
    timer.join()
