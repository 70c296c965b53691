"""The driver's share: whole jobs on one worker process, stage by stage, and what the model tells of many workers.

A job runs on a `distributed` cluster of one worker of one thread. Of every stage the scheduler's record tells the
seconds of its tasks; the rest of the stage is the driver's, one after the other, and stays whatever the workers.
`times` is by how much a job's table is made longer in the model: tasks that read it grow by it, and nothing else.

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
from clocks import Stream, computing, generated, kind, streamed
from overhead import Pace, costs_of
from simulation import Costs, simulated

WORKERS = (10, 100, 1000)
SHARDS = 16


@dataclass(frozen=True)
class Named:
    """A job: rows, attributes, their sizes, degree, mechanism; how much longer its table is told to be, and the aim at
    100 workers."""

    rows: int
    attributes: int
    sizes: str
    degree: int
    mechanism: str
    times: int
    aim: float


JOBS = {
    "wide": Named(1_000_000, 300, "4", 2, "query-smasher", 100, 60),
    "triples": Named(2_000_000, 20, "2,4,10,50", 3, "query-smasher", 50, 60),
    "adaptive": Named(1_000_000, 20, "2,4,10", 3, "aim-grem", 100, 40),
    "adaptive66": Named(200_000, 66, "2,3,4", 2, "aim-grem", 5, 20),
}
Figures = dict[str, float]


def job_file(place: Path, name: str, one: Named) -> Path:
    path = place / "job.toml"
    path.write_text(
        f'[data]\npath = "{place / "table"}"\ndomain = "{place / "domain.toml"}"\n[privacy]\nrho = 1.0\n'
        f'dataset = "{name}"\n[[workload]]\nfamily = "marginal"\ndegree = {one.degree}\n'
        f'[mechanism]\nname = "{one.mechanism}"\n[engine]\nmemory = "4GiB"\nseed = 1\n[output]\nmax_rows = 0\n'
    )
    return path


@dataclass(frozen=True)
class Cut:
    """How a job's tasks are cut for some workers: those that count at the most, pieces of their sums, those that
    measure what the plan asks for, shards of a round."""

    most: int
    pieces: int
    measuring: int
    shards: int


def stages_on(job: Path, client: Any) -> tuple[dict[str, tuple[float, float, Stream]], dict[int, Cut]]:
    """Of every stage its seconds, those of this process's cores, and its tasks; by workers how it is cut."""
    from dpscale.job import Job
    from dpscale.runs.run import Run
    from dpscale.runs.stages import STAGES
    from dpscale.runs.stages.runner import run_stages

    found = {}
    with tempfile.TemporaryDirectory(dir=job.parent) as folder:
        run = Run.create(Job.read(job), Path(folder) / "run")
        for stage in STAGES.values():
            if stage.wanted(run):
                busy = time.process_time()
                wall, stream = streamed(client, lambda name=stage.name: run_stages(run, client=client, only=name))
                found[stage.name] = wall, time.process_time() - busy, stream
        return found, {workers: cut_for(run, workers) for workers in WORKERS}


def cut_for(run: Any, workers: int) -> Cut:
    """As the engine does it."""
    from dpscale.engine.counting import plan_passes
    from dpscale.engine.shards import shards_of

    passes = plan_passes(run.domain, run.measurement_plan.counted_sets, run.job.engine.bytes, workers)
    shards = sum(shards_of(len(one.sets), one.cells, workers) for one in passes)
    return Cut(min(one.most for one in passes), max(len(one.pieces) for one in passes), max(workers, SHARDS), shards)


def measured(name: str, one: Named, place: Path, client: Any, pace: Pace) -> Figures:
    """Shares of one job, and its speed-up as the model tells it."""
    made = generated(place, name, one.rows, one.attributes, one.sizes, 32)
    stages, cuts = stages_on(job_file(made, name, one), client)
    costs = {stage: costs_of(stream, wall, pace) for stage, (wall, _, stream) in stages.items()}
    whole = sum(wall for wall, _, _ in stages.values())
    for stage, (wall, busy, stream) in stages.items():
        kinds: dict[str, float] = {}
        for task in stream:
            kinds[kind(task)] = kinds.get(kind(task), 0.0) + computing(task)
        told = ", ".join(
            f"{what} {seconds:.2f}" for what, seconds in sorted(kinds.items(), key=lambda item: -item[1])[:5]
        )
        print(
            f"{name:12} {stage:12} {wall:7.2f} s, driver {costs[stage].driver:6.2f} s ({busy:.2f} busy); tasks {told}"
        )
    longer = {stage: cost.longer(one.times) for stage, cost in costs.items()}
    took = {n: sum(simulated(finer(cost, n, cuts.get(n)), n) for cost in longer.values()) for n in (1, *WORKERS)}
    faster = {n: took[1] / took[n] for n in WORKERS}
    driver = sum(cost.driver for cost in costs.values())
    print(f"{name:12} driver {driver:.2f} of {whole:.2f} s, {driver / took[1]:.2%} of a table × {one.times}; simulated "
          + ", ".join(f"{n:,}: {times:.1f}" for n, times in faster.items())
          + f"; {faster[100] / one.aim:.2f} of the aim", flush=True)  # fmt: skip
    return {f"{name}, seconds": whole, f"{name}, driver": driver, f"{name}, told at 100": took[100],
            **{f"{name}, {n}": times for n, times in faster.items()}}  # fmt: skip


def finer(costs: Costs, workers: int, cut: Cut | None) -> Costs:
    """The same work as it is cut for so many workers."""
    if cut is None:
        return costs
    return costs.dealt(workers, cut.most, cut.pieces).cut(cut.measuring).shared(cut.shards)


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
        kept = {"task, ms": pace.task * 1e3, "scheduler, ms": pace.scheduler * 1e3}
        small = Named(20_000, 4, "2", 2, "query-smasher", 1, 1)
        measured("warm", small, Path(folder).resolve(), client, pace)
        for name, one in JOBS.items():
            if given.only in (None, name):
                kept |= measured(name, one, Path(folder).resolve(), client, pace)
    if given.save:
        results.save("shares", kept)


if __name__ == "__main__":
    main()
