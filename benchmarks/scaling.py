"""What a cluster adds and takes: speed-up from one worker process to two, overhead of tasks, a death, and a simulation.

Two `distributed` clusters of one thread a worker stand side by side, one of one worker and one of two, and take turns;
each figure is the best of some turns. Beside the speed-up of counting stands that of bare processes without Dask, which
is what the machine has to give. A model of a list scheduler gets its times from the run on one worker, is held against
the run on two, and then says what 10, 100 and 1,000 workers would come to.

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

import results
from clocks import best, computing, count_on, counting_work, generated, job_of, measure_on, streamed, tell, timed
from death import death
from overhead import large


class Bare:
    """Processes that get nothing but their shares of some work, in place of a cluster."""

    def __init__(self, workers: int) -> None:
        self.workers, self.pool = workers, ProcessPoolExecutor(workers, mp_context=get_context("spawn"))

    def run(self, function: Callable[..., Any], shares: list[Any]) -> None:
        for task in [self.pool.submit(function, *share) for share in shares]:
            task.result()

    def count(self, table: Any, one: Any) -> None:
        """What `count_on` counts."""
        from dpscale.counting.count import count_by
        from dpscale.counting.program import Program
        from dpscale.engine.counting import partition_groups

        cover = one.cover(1 << 21)
        program = Program.of(cover)
        groups = partition_groups(table.partitions, self.workers)
        self.run(count_by, [(program, cover.domain, group) for group in groups])


def spin(steps: int) -> int:
    """Work that needs nothing but a core."""
    return sum(step * step for step in range(steps))


Figures = dict[str, float]


def machine(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> Figures:
    """What two cores of this machine give to work in registers."""
    bare = {workers: Bare(workers) for workers in (1, 2)}
    took = best(bare, given.turns, lambda pool: pool.run(spin, [(5_000_000,)] * 2))
    return {"registers": tell("two cores", took, "; bare processes")}


def counting(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> Figures:
    table, one = counting_work(generated(place, "mixed", given.rows, 20, "2,4,10,50", 32))
    sides = {**clients, -1: Bare(1), -2: Bare(2)}
    every = best(sides, given.turns, lambda side: side.count(table, one) if isinstance(side, Bare)
                 else count_on(table, one, side))  # fmt: skip
    took, limit = ({workers: every[sign * workers] for workers in (1, 2)} for sign in (1, -1))
    of_limit = limit[1] / (2 * limit[2])
    ours = tell("counting", took, f"; bare processes: {of_limit:.3f}")
    print(f"{'':32} of what bare processes reach: {ours / of_limit:.3f}; one worker to one bare process: "
          f"{took[1] / limit[1]:.3f}")  # fmt: skip
    return {"counting": ours, "counting, bare": of_limit}


# Planning and rounds


def planning(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> Figures:
    """1-way ranges and 2-way prefixes of attributes that all differ in size: many problems, none known before."""
    import dpscale as dp
    from dpscale.engine import ClusterEngine

    os.environ["DPSCALE_STORE"] = "off"  # nothing is known before
    workload = dp.Workload(dp.Domain({f"x{i:02d}": 150 + 7 * i for i in range(24)}))
    workload = workload.add("range", degree=1).add("prefix", degree=2)

    def plan(client: Any) -> None:
        dp.plan(workload, each=ClusterEngine(client).each("solve"), most_cells=1 << 40)

    def solves(function: Callable[..., Any], items: Any) -> list[Any]:
        begin = time.perf_counter()
        found = [function(item) for item in items]
        spent.append(time.perf_counter() - begin)
        return found

    spent: list[float] = []  # by each call
    whole = timed(lambda: dp.plan(workload, each=solves, most_cells=1 << 40))
    note = f"; of it tasks in one process: {sum(spent) / whole:.0%}"
    return {"planning": tell("planning", best(clients, given.turns, plan), note)}


def rounds(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> Figures:
    """A whole adaptive measure stage: its tasks count, pack, score and measure; the driver updates estimates alone."""
    made = generated(place, "rounds", given.rows // 4, 16, "2,4,10,20", 16)
    job = job_of(made, "rounds", '[[workload]]\nfamily = "marginal"\ndegree = 3\n', "aim-grem")
    took: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(given.turns):
        for workers, client in clients.items():
            took[workers].append(measure_on(job, client))
    _, stream = streamed(clients[1], lambda: measure_on(job, clients[1]))
    least = {workers: min(seconds) for workers, seconds in took.items()}
    share = sum(map(computing, stream)) / least[1]
    efficiency = tell("adaptive rounds", least, f"; tasks are {share:.0%} of the run on one")
    print(f"{'':32} limit by the share of tasks: {1 / (2 * (1 - share / 2)):.3f}")
    return {"rounds": efficiency, "rounds, seconds": least[1], "rounds, driver": 1 - share}


PARTS = {
    "machine": machine,
    "counting": counting,
    "planning": planning,
    "rounds": rounds,
    "large": large,
    "death": death,
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
        kept: Figures = {}
        print(f"load at the start: {os.getloadavg()[0]:.2f}, cores: {os.cpu_count()}")
        for name, part in PARTS.items():
            if given.only in (None, name):
                (Path(folder) / name).mkdir()
                kept |= part(clients, Path(folder).resolve() / name, given)
        for n, client in clients.items():
            client.close()
            made[n].close()
    if given.save:
        results.save("scaling", kept)


if __name__ == "__main__":
    main()
