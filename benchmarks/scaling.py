"""What a cluster adds and takes: speed-up from one worker process to two, overhead of tasks, a death, and a simulation.

Two `distributed` clusters of one thread a worker stand side by side, one of one worker and one of two, and take turns;
each figure is the best of some turns. Beside the speed-up of counting stands that of bare processes without Dask, which
is what the machine has to give. A model of a list scheduler gets its times from the run on one worker, is held against
the run on two, and then says what 10, 100 and 1,000 workers would come to.

    python benchmarks/scaling.py [--rows 4000000] [--turns 3] [--size 8] [--only counting|planning|rounds|large|death]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from simulation import Costs, simulated

HERE = Path(__file__).resolve()
EFFICIENCY, OVERHEAD = 0.85, 0.05
EMPTY = 3000
Stream = list[dict[str, Any]]


def generated(place: Path, name: str, rows: int, attributes: int, sizes: str, files: int) -> Path:
    """A table of the generator."""
    options = ["--rows", rows, "--attributes", attributes, "--sizes", sizes, "--files", files]
    command = [sys.executable, HERE.parent.parent / "data" / "generate.py", place / name, *options]
    subprocess.run([str(part) for part in command], check=True)
    return place / name


def timed(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def streamed(client: Any, function: Callable[[], object]) -> tuple[float, Stream]:
    """Seconds, and what the scheduler knows of every task that ended meanwhile."""
    from distributed import get_task_stream

    with get_task_stream(client) as stream:
        seconds = timed(function)
        time.sleep(0.5)
    return seconds, list(stream.data)


def best(clients: dict[int, Any], turns: int, work: Callable[[Any], object]) -> dict[int, float]:
    """The least seconds of some turns for each cluster, after one that warms up."""
    for client in clients.values():
        work(client)
    took: dict[int, list[float]] = {workers: [] for workers in clients}
    for _ in range(turns):
        for workers, client in clients.items():
            took[workers].append(timed(partial(work, client)))
    return {workers: min(seconds) for workers, seconds in took.items()}


def tell(what: str, took: dict[int, float], note: str = "") -> float:
    """Efficiency at two workers, against the aim."""
    efficiency = took[1] / (2 * took[2])
    print(f"{what:32} efficiency at 2: {efficiency:.3f} ({efficiency / EFFICIENCY:.2f} of the aim) "
          f"[{took[1]:.2f} s, {took[2]:.2f} s]{note}", flush=True)  # fmt: skip
    return efficiency


# Counting


def counting_work(place: Path, degree: int = 3) -> tuple[Any, Any]:
    """A table and the pass that counts all its marginals of a degree."""
    import dpscale as dp
    from dpscale.engine.counting import plan_passes

    domain = dp.Domain.read(place / "domain.toml")
    [one] = plan_passes(domain, list(combinations(domain.names, degree)), 4 << 30, 2)
    return dp.Table.open(place / "table", domain).split(), one


def count_on(table: Any, one: Any, client: Any) -> list[Any]:
    """Count on a cluster; handles."""
    from dpscale.engine import ClusterEngine
    from dpscale.engine.counting import partition_groups, run_pass

    engine = ClusterEngine(client)
    return run_pass(engine, one, partition_groups(table.partitions, engine.workers))


def bare(table: Any, one: Any, workers: int, turns: int) -> float:
    """The same counting by processes that get nothing but their share of the partitions."""
    from dpscale.engine.counting import partition_groups
    from dpscale.tables.count import Layout, count

    cover = one.cover(1 << 21)
    layout = Layout(cover.domain, cover.sets)
    shares = [(layout, group, (), None, cover) for group in partition_groups(table.partitions, workers)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return min(timed(lambda: [task.result() for task in [pool.submit(count, *share) for share in shares]])
                   for _ in range(turns + 1))  # fmt: skip


def counting(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> None:
    table, one = counting_work(generated(place, "mixed", given.rows, 20, "2,4,10,50", 32))
    took = best(clients, given.turns, partial(count_on, table, one))
    limit = {workers: bare(table, one, workers, given.turns) for workers in (1, 2)}
    of_limit = limit[1] / (2 * limit[2])
    ours = tell("counting", took, f"; bare processes: {of_limit:.3f}")
    print(f"{'':32} of what bare processes reach: {ours / of_limit:.3f}; one worker to one bare process: "
          f"{took[1] / limit[1]:.3f}")  # fmt: skip


# Planning and rounds


def planning(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> None:
    """1-way ranges and 2-way prefixes of attributes that all differ in size: many problems, none known before."""
    import dpscale as dp
    from dpscale.engine import ClusterEngine
    from dpscale.select import Setting, choose

    workload = dp.Workload(dp.Domain({f"x{i:02d}": 150 + 7 * i for i in range(24)}))
    workload = workload.add("range", degree=1).add("prefix", degree=2)

    def plan(client: Any) -> None:
        choose(workload, "query-smasher", Setting(ClusterEngine(client).each("solve"), {}, None, "gaussian", 1 << 40))

    def solves(function: Callable[..., Any], items: Any) -> list[Any]:
        begin = time.perf_counter()
        found = [function(item) for item in items]
        spent.append(time.perf_counter() - begin)
        return found

    spent: list[float] = []
    whole = timed(lambda: choose(workload, "query-smasher", Setting(solves, {}, None, "gaussian", 1 << 40)))
    tell("planning", best(clients, given.turns, plan), f"; of it tasks in one process: {spent[-1] / whole:.0%}")


def job_of(place: Path, name: str, asked: str, mechanism: str) -> Path:
    """A job on a generated table, with a ledger of its own in every run."""
    path = place / "job.toml"
    path.write_text(
        f'[data]\npath = "{place / "table"}"\ndomain = "{place / "domain.toml"}"\n[privacy]\nrho = 1.0\n'
        f'dataset = "{name}"\n{asked}[mechanism]\nname = "{mechanism}"\n[engine]\nmemory = "4GiB"\nseed = 1\n'
        "[output]\nmax_rows = 0\n"
    )
    return path


def measure_on(job: Path, client: Any) -> float:
    """Seconds of a job's measure stage, on a cluster or in this process, in a run directory that is then removed."""
    from dpscale.jobs.release import run_stages
    from dpscale.jobs.rundir import RunDirectory
    from dpscale.jobs.spec import Job

    for ledger in job.parent.glob("ledger.sqlite*"):
        ledger.unlink()
    with tempfile.TemporaryDirectory(dir=job.parent) as folder:
        run = RunDirectory.create(Job.read(job), Path(folder) / "run")
        where = {"client": client} if client is not None else {"scheduler": "synchronous"}
        run_stages(run, **where, only="plan")
        return timed(lambda: run_stages(run, **where, only="measure"))


def rounds(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> None:
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
    tell("adaptive rounds", least, f"; tasks are {share:.0%} of the run on one")
    print(f"{'':32} limit by the share of tasks: {1 / (2 * (1 - share / 2)):.3f}")


# Overhead


def computing(task: dict[str, Any]) -> float:
    return sum(part["stop"] - part["start"] for part in task["startstops"] if part["action"] == "compute")


def kind(task: dict[str, Any]) -> str:
    """count, count-sum, measure, … of a key."""
    return "-".join(str(task["key"]).split("'")[1].split("-")[1:-1]) if "'" in str(task["key"]) else "other"


def overhead(client: Any) -> float:
    """Seconds a task that does nothing takes, on one worker, in graphs of thousands."""
    from dpscale.engine import ClusterEngine

    engine = ClusterEngine(client)
    engine.keep(abs, [(i,) for i in range(100)], "warm")
    return timed(lambda: engine.keep(abs, [(i,) for i in range(EMPTY)], "empty")) / EMPTY


def large(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> None:
    """Overhead at 10,700 sets, and the simulation, whose costs come from the same runs."""
    each = min(overhead(clients[1]) for _ in range(3))
    asked = "".join(f'[[workload]]\nfamily = "{family}"\ndegree = {degree}\n'
                    for family, degree in (("range", 1), ("affine", 2), ("prefix", 3)))  # fmt: skip
    made = generated(place, "large", given.rows // 4, 40, str(given.size), 32)
    for client in clients.values():  # imports and compiled code
        measure_on(job_of(made, "small", '[[workload]]\nfamily = "range"\ndegree = 1\n', "query-smasher"), client)
    job = job_of(made, "large", asked, "query-smasher")
    stages = {workers: [streamed_stage(job, client) for _ in range(given.long)]
              for workers, client in clients.items()}  # fmt: skip
    took = {workers: min(found)[0] for workers, found in stages.items()}
    stream = min(stages[1], key=lambda found: found[0])[1]
    share = each * len(stream) / took[1]
    print(f"{'overhead of a task':32} {each * 1e3:.2f} ms; at 10,700 sets of [{given.size}]^40 {len(stream)} tasks: "
          f"{share:.2%} of the stage on one worker ({share / OVERHEAD:.2f} of the aim)")  # fmt: skip
    tell("measuring 10,700 sets", took)
    costs = costs_of(stream, took[1], each, bandwidth(clients[2]))
    told = {workers: simulated(costs, workers) for workers in (1, 2)}
    errors = ", ".join(f"{told[workers] / took[workers] - 1:+.1%} at {workers}" for workers in told)
    print(f"{'model':32} its error: {errors} (1 is fitted, 2 is told); the driver's share of one worker's run: "
          f"{costs.driver / took[1]:.0%}")  # fmt: skip
    extrapolate(costs, shards_of(job))


def shards_of(job: Path) -> Callable[[int], int]:
    """How many tasks measure, by workers."""
    from dpscale.engine.counting import plan_passes
    from dpscale.jobs.spec import Job

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


def extrapolate(costs: Costs, shards: Callable[[int], int]) -> None:
    """The same sets on a table a thousand times as long, and on this one."""
    for times in (1, 1000):
        longer = costs.longer(times)
        one = simulated(longer, 1)
        told = ", ".join(f"{n:,}: {one / simulated(longer.cut(shards(n)), n):,.1f}" for n in (2, 10, 100, 1000))
        print(f"{'simulated speed-up':32} table × {times:,}, workers {told}")


# A death


def burn(folder: str, number: int) -> int:
    """A call of a fifth of a second that leaves a mark for every time it begins."""
    Path(folder, f"{number}-{os.getpid()}-{time.time_ns()}").touch()
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        pass
    return number


def death(clients: dict[int, Any], place: Path, given: argparse.Namespace) -> None:
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
    again = (len(list(marks.iterdir())) - begun - calls) * 0.2
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
    import threading

    killer = Killer(client, 0)
    timer = threading.Timer(after, killer, ("count", 1, 1))
    timer.start()
    count_on(table, one, client)
    timer.join()


PARTS = {"counting": counting, "planning": planning, "rounds": rounds, "large": large, "death": death}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--long", type=int, default=1, help="turns of the long job")
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--only", choices=list(PARTS))
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
        print(f"load at the start: {os.getloadavg()[0]:.2f}, cores: {os.cpu_count()}")
        for name, part in PARTS.items():
            if given.only in (None, name):
                (Path(folder) / name).mkdir()
                part(clients, Path(folder).resolve() / name, given)
        for n, client in clients.items():
            client.close()
            made[n].close()


if __name__ == "__main__":
    main()
