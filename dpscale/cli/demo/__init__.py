"""Demo: the RAND health insurance experiment (20,190 person-years), as partitioned Parquet.

`rand-hie.csv.gz` is the table of Cameron and Trivedi (2005), as statsmodels distributes it in the public domain.

It runs the main job and prints its findings and the next commands.
"""

from __future__ import annotations

import gzip
import io
from importlib.resources import files
from pathlib import Path

from dpscale.base.arrow import arrow_csv, pq
from dpscale.cli.outcome import command, near, outcome
from dpscale.engine.schedulers import Progress, silent

PARTITIONS = 8  # files of the table of the demo


def run_demo(folder: Path, scheduler: str | None = None, progress: Progress = silent) -> str:
    """Write data, domain and job into the folder, run the job there, and return the text of the result."""
    from dpscale.api.public import run

    job = write_demo(folder)
    release = run(job, folder / "run", scheduler=scheduler, progress=progress)
    plan = f"plan of a job, without data or budget: {command()} plan {near(str(job))}"
    return "\n".join([*outcome(release.answered, release.path), plan])


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
