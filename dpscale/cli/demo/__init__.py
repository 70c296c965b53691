"""Demo: the RAND health insurance experiment (20,190 person-years), as partitioned Parquet.

`rand-hie.csv.gz` is the table of Cameron and Trivedi (2005), as statsmodels distributes it in the public domain.

It runs the main job and prints its three most informative answers and the next command.
"""

from __future__ import annotations

import gzip
import io
import os
import shlex
import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from dpscale.answers import tables
from dpscale.base.arrow import arrow_csv, pq
from dpscale.base.display import whole
from dpscale.engine.schedulers import Progress, silent
from dpscale.storage.objects import relative_path

if TYPE_CHECKING:
    from dpscale.api.release import Release

PARTITIONS = 8
SHOWN = 3


def run_demo(folder: Path, scheduler: str | None = None, progress: Progress = silent) -> str:
    """Write data, domain and job into the folder, run the job there, and return the text of the result."""
    from dpscale.api.public import run

    job = write_demo(folder)
    release = run(job, folder / "run", scheduler=scheduler, progress=progress)
    return outcome(release, _command())


def _command() -> str:
    """Return the command with which dpscale was called."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(_near(sys.executable))} -m dpscale"
    return shlex.quote(_near(str(called))) if os.sep in sys.argv[0] else "dpscale"


def write_demo(folder: Path) -> Path:
    """Write the files of the demo into a folder and return the path of its job file."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "rand-hie").exists():
        write_rand_hie(folder / "rand-hie")
    for source, target in (("domain.toml", "rand-hie.domain.toml"), ("job.toml", "job.toml")):
        (folder / target).write_bytes(files("dpscale.cli.demo").joinpath(source).read_bytes())
    return folder / "job.toml"


def write_rand_hie(folder: Path, partitions: int = PARTITIONS) -> None:
    """Write the table of the experiment as `partitions` Parquet files."""
    packed = files("dpscale.cli.demo").joinpath("rand-hie.csv.gz").read_bytes()
    table = arrow_csv.read_csv(io.BytesIO(gzip.decompress(packed)))
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    size = -(-len(table) // partitions)
    for number in range(partitions):
        pq.write_table(table.slice(number * size, size), partial / f"part-{number:02d}.parquet")
    partial.rename(folder)


def outcome(release: Release, command: str) -> str:
    """Return the three most informative answers, the path of the report, and the next commands.

    `command` is the command with which dpscale was called.
    """
    total, run = release.total(), Path(_near(str(release.path)))
    shown = [*tables.singles(release.answered, SHOWN - 1), *tables.pairs(release.answered, 1)]
    return "\n".join([
        f"{whole(total.estimate)} ± {whole(total.high - total.estimate)} records (estimate); most informative answers:",
        *(f"  {tables.sentence(one)}" for one in shown), f"report: {run / 'report.html'}",
        f"tables for publication: {command} publish {run}",
        f"plan of a job, without data or budget: {command} plan {run.parent / 'job.toml'}",
    ])  # fmt: skip


def _near(path: str) -> str:
    """Return a path relative to the current folder if it is below it."""
    near = relative_path(path, os.curdir)
    return path if near.startswith("..") else near
