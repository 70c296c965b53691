"""The share of the driver: whole jobs on one worker process, stage by stage, and the prediction for many workers.

A job runs on a `distributed` cluster of one worker with one thread. The scheduler's record gives the seconds of the
tasks of every stage; the rest of the stage belongs to the driver, runs in sequence, and does not depend on the workers.
The model then answers Gustafson's question: the speed-up on 10, 100 and 1,000 workers for tables of 10^8, 10^9 and
10^10 rows. Assumptions: only tasks that read the table grow with it; tasks of equal work last as long as the quantiles
of equal tasks on this machine; a task costs the CPU time that a scheduler in its own process spends on it, one after
the other, and its worker the rest of an empty task; sums travel at the measured speed between workers. One point is
checked: the seconds of the same job on two worker processes, which share two cores with driver and scheduler here.
The adaptive job also runs with the package of an earlier commit, in a process of its own.

    python benchmarks/shares.py [--only wide|triples|adaptive|adaptive66] [--baseline 2741c547] [--save]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import base
from base import Stream, compute_seconds, generate_table, record_tasks, task_kind
from commands import BASELINE, unpack
from overhead import Costs, Pace, estimate_costs, simulate

from tests.running import begin_table

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
    job = write_job(made, name, one)
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
        subprocess.run([sys.executable, __file__, "--only", BEFORE, "--output", str(output)], check=True,
                       env=os.environ | {"PYTHONPATH": str(package)})  # fmt: skip
        found = json.loads(output.read_text())
    return {f"before, {name}": value for name, value in found.items() if name.startswith(BEFORE + ",")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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


if __name__ == "__main__":
    main()
