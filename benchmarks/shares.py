"""The share of the driver: whole jobs on one worker process, stage by stage, and the prediction for many workers.

A job runs on a `distributed` cluster of one worker with one thread. The scheduler's record gives the seconds of the
tasks of every stage; the rest of the stage belongs to the driver, runs in sequence, and does not depend on the workers.
`times` is the factor by which the table is longer in the model: only tasks that read it grow.

    python benchmarks/shares.py [--only wide|triples|adaptive|adaptive66] [--save]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import results
from clocks import Stream, compute_seconds, generate_table, record_tasks, task_kind
from overhead import Pace, estimate_costs
from simulation import Costs, simulate

WORKERS = (10, 100, 1000)
SHARDS = 16


@dataclass(frozen=True)
class NamedJob:
    """A job: rows, attributes, their sizes, degree, mechanism; factor of its table in the model; target at 100
    workers.
    """

    rows: int
    attributes: int
    sizes: str
    degree: int
    mechanism: str
    times: int
    aim: float


JOBS = {
    "wide": NamedJob(1_000_000, 300, "4", 2, "query-smasher", 100, 60),
    "triples": NamedJob(2_000_000, 20, "2,4,10,50", 3, "query-smasher", 50, 60),
    "adaptive": NamedJob(1_000_000, 20, "2,4,10", 3, "aim-grem", 100, 40),
    "adaptive66": NamedJob(200_000, 66, "2,3,4", 2, "aim-grem", 5, 20),
}
Figures = dict[str, float]


def write_job(place: Path, name: str, one: NamedJob) -> Path:
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
    """Return, by stage, its seconds, the CPU seconds of this process, and its tasks; and the task counts by workers."""
    from dpscale.job import TableJob
    from dpscale.runs.stages import STAGES
    from dpscale.runs.stages.runner import run_stages
    from dpscale.runs.table import TableRun

    found = {}
    with tempfile.TemporaryDirectory(dir=job.parent) as folder:
        run = TableRun.create(TableJob.read(job), Path(folder) / "run")
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
    stages, cuts = record_stages(write_job(made, name, one), client)
    costs = {stage: estimate_costs(stream, wall, pace) for stage, (wall, _, stream) in stages.items()}
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
    longer = {stage: cost.lengthen(one.times) for stage, cost in costs.items()}
    took = {n: sum(simulate(split_costs(cost, n, cuts.get(n)), n) for cost in longer.values()) for n in (1, *WORKERS)}
    faster = {n: took[1] / took[n] for n in WORKERS}
    driver = sum(cost.driver for cost in costs.values())
    print(f"{name:12} driver {driver:.2f} of {whole:.2f} s, {driver / took[1]:.2%} of a table × {one.times}; simulated "
          + ", ".join(f"{n:,}: {times:.1f}" for n, times in faster.items())
          + f"; {faster[100] / one.aim:.2f} of the aim", flush=True)  # fmt: skip
    return {f"{name}, seconds": whole, f"{name}, driver": driver, f"{name}, told at 100": took[100],
            **{f"{name}, {n}": times for n, times in faster.items()}}  # fmt: skip


def split_costs(costs: Costs, workers: int, cut: TaskCounts | None) -> Costs:
    """Return the same work with the task counts for some workers."""
    if cut is None:
        return costs
    return costs.split_reading(workers, cut.most, cut.pieces).split_measuring(cut.measuring).split_rounds(cut.shards)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(JOBS))
    parser.add_argument("--save", action="store_true", help="keep the figures in results/")
    given = parser.parse_args()
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
        print(f"a task takes {pace.task * 1e3:.2f} ms, {pace.scheduler * 1e3:.2f} of them the scheduler's")
        figures = {"task, ms": pace.task * 1e3, "scheduler, ms": pace.scheduler * 1e3}
        small = NamedJob(20_000, 4, "2", 2, "query-smasher", 1, 1)
        measure_job("warm", small, Path(folder).resolve(), client, pace)
        for name, one in JOBS.items():
            if given.only in (None, name):
                figures |= measure_job(name, one, Path(folder).resolve(), client, pace)
    if given.save:
        results.save("shares", figures)


if __name__ == "__main__":
    main()
