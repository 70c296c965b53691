"""Gain and cost of a cluster: speed-up from one worker process to two, overhead of tasks, dead worker, simulation.

Two `distributed` clusters of one thread per worker run in turns, one with one worker and one with two; each figure is
the best of several turns. The speed-up of counting is compared with that of plain processes without Dask, the limit of
the machine. A model of a list scheduler takes its times from the run on one worker, is checked against the run on two,
and then predicts 10, 100 and 1,000 workers.

    python benchmarks/scaling.py [--rows 4000000] [--turns 3] [--size 8] [--save]
        --only PART            machine, counting, planning, rounds, large or death
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import base
from base import (
    best_times,
    compute_seconds,
    count_on,
    generate_table,
    prepare_counting,
    print_efficiency,
    record_tasks,
    time_call,
    time_measure_stage,
    write_job,
)
from overhead import run_death, run_large


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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


if __name__ == "__main__":
    main()
