"""What the benchmarks of clusters share: tables of the generator, clocks, what the scheduler knows of tasks, jobs."""

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


def computing(task: dict[str, Any]) -> float:
    return sum(part["stop"] - part["start"] for part in task["startstops"] if part["action"] == "compute")


def kind(task: dict[str, Any]) -> str:
    """count, count-sum, measure, … of a key."""
    return "-".join(str(task["key"]).split("'")[1].split("-")[1:-1]) if "'" in str(task["key"]) else "other"


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
    from dpscale.job import Job
    from dpscale.runs.run import Run
    from dpscale.runs.stages.runner import run_stages

    for ledger in job.parent.glob("ledger.sqlite*"):
        ledger.unlink()
    with tempfile.TemporaryDirectory(dir=job.parent) as folder:
        run = Run.create(Job.read(job), Path(folder) / "run")
        where = {"client": client} if client is not None else {"scheduler": "synchronous"}
        run_stages(run, **where, only="plan")
        return timed(lambda: run_stages(run, **where, only="measure"))
