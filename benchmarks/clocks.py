"""Common functions of the cluster benchmarks: generated tables, clocks, task streams of the scheduler, jobs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
EFFICIENCY = 0.85
Stream = list[dict[str, Any]]


def generate_table(place: Path, name: str, rows: int, attributes: int, sizes: str, files: int) -> Path:
    """Generate a table and return its folder."""
    options = ["--rows", rows, "--attributes", attributes, "--sizes", sizes, "--files", files]
    command = [sys.executable, HERE.parent.parent / "data" / "generate.py", place / name, *options]
    subprocess.run([str(part) for part in command], check=True)
    return place / name


def time_call(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def record_tasks(client: Any, function: Callable[[], object]) -> tuple[float, Stream]:
    """Return the seconds of a call and the scheduler's record of every task that ended during it."""
    from distributed import get_task_stream

    with get_task_stream(client) as stream:
        seconds = time_call(function)
        time.sleep(0.5)
    return seconds, list(stream.data)


def best_times(clients: dict[int, Any], turns: int, work: Callable[[Any], object]) -> dict[int, float]:
    """Return, for each cluster, the best seconds of several turns after a warm-up."""
    for client in clients.values():
        work(client)
    took: dict[int, list[float]] = {workers: [] for workers in clients}
    for _ in range(turns):
        for workers, client in clients.items():
            took[workers].append(time_call(partial(work, client)))
    return {workers: min(seconds) for workers, seconds in took.items()}


def print_efficiency(what: str, took: dict[int, float], note: str = "") -> float:
    """Print and return the efficiency at two workers, relative to the target."""
    efficiency = took[1] / (2 * took[2])
    print(f"{what:32} efficiency at 2: {efficiency:.3f} ({efficiency / EFFICIENCY:.2f} of the aim) "
          f"[{took[1]:.2f} s, {took[2]:.2f} s]{note}", flush=True)  # fmt: skip
    return efficiency


def compute_seconds(task: dict[str, Any]) -> float:
    return sum(part["stop"] - part["start"] for part in task["startstops"] if part["action"] == "compute")


def task_kind(task: dict[str, Any]) -> str:
    """Return the kind of a task from its key: count, count-sum, measure, …."""
    return "-".join(str(task["key"]).split("'")[1].split("-")[1:-1]) if "'" in str(task["key"]) else "other"


def prepare_counting(place: Path, degree: int = 3) -> tuple[Any, Any]:
    """Return a table and the pass that counts all its marginals of a degree."""
    import dpscale as dp
    from dpscale.engine.counting import plan_passes

    domain = dp.Domain.read(place / "domain.toml")
    [one] = plan_passes(domain, list(combinations(domain.names, degree)), 4 << 30, 2)
    return dp.Table.open(place / "table", domain).split(), one


def count_on(table: Any, one: Any, client: Any) -> list[Any]:
    """Count on a cluster and return handles."""
    from dpscale.engine import ClusterEngine
    from dpscale.engine.counting import partition_groups, run_pass

    engine = ClusterEngine(client)
    return run_pass(engine, one, partition_groups(table.partitions, engine.workers))


def write_job(place: Path, name: str, workload: str, mechanism: str) -> Path:
    """Write a job on a generated table, with a separate ledger for every run."""
    path = place / "job.toml"
    path.write_text(
        f'[data]\npath = "{place / "table"}"\ndomain = "{place / "domain.toml"}"\n[privacy]\nrho = 1.0\n'
        f'dataset = "{name}"\n{workload}[mechanism]\nname = "{mechanism}"\n[engine]\nmemory = "4GiB"\nseed = 1\n'
        "[output]\nmax_rows = 0\n"
    )
    return path


def time_measure_stage(job: Path, client: Any) -> float:
    """Return the seconds of the measure stage on a cluster or in this process, in a temporary run directory."""
    from dpscale.job import TableJob
    from dpscale.runs.stages.runner import run_stages
    from dpscale.runs.table import TableRun

    for ledger in job.parent.glob("ledger.sqlite*"):
        ledger.unlink()
    with tempfile.TemporaryDirectory(dir=job.parent) as folder:
        run = TableRun.create(TableJob.read(job), Path(folder) / "run")
        where = {"client": client} if client is not None else {"scheduler": "synchronous"}
        run_stages(run, **where, only="plan")
        return time_call(lambda: run_stages(run, **where, only="measure"))
