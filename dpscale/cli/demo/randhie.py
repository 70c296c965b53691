"""Writing the demo's data, running its job, and telling the outcome."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from dpscale.engine.schedulers import Progress, silent
from dpscale.errors import JobError

PARTITIONS = 8
SHOWN = 5


def run_demo(folder: Path, scheduler: str | None = None, progress: Progress = silent) -> str:
    """Write data, domain and job into the folder, run the job there, and tell the outcome."""
    from dpscale.release import run

    job = write_demo(folder)
    release = run(job, folder / "run", scheduler=scheduler, progress=progress)
    return outcome(release.path)


def write_demo(folder: Path) -> Path:
    """The demo's files in a folder; the path of its job file."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "rand-hie").exists():
        write_rand_hie(folder / "rand-hie")
    for source, target in (("domain.toml", "rand-hie.domain.toml"), ("job.toml", "job.toml")):
        (folder / target).write_text(files("dpscale.cli.demo").joinpath(source).read_text())
    return folder / "job.toml"


def write_rand_hie(folder: Path, partitions: int = PARTITIONS) -> None:
    """The experiment's table as so many Parquet files."""
    try:
        from statsmodels.datasets import randhie
    except ImportError:
        raise JobError(
            "demo", "statsmodels is not installed", "the extra dpscale[demo]", "pip install 'dpscale[demo]'"
        ) from None
    table = randhie.load_pandas().data
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    size = -(-len(table) // partitions)
    for number in range(partitions):
        table.iloc[number * size : (number + 1) * size].to_parquet(partial / f"part-{number:02d}.parquet", index=False)
    partial.rename(folder)


def outcome(run: Path) -> str:
    """The worst and best answered attribute sets, and where the report is."""
    from dpscale.report import figure
    from dpscale.runs.run import Run
    from dpscale.stages.report import answered

    rows = [row for row in answered(Run(run)) if row["rms_error"] is not None]
    lines = []
    for title, shown in (("worst", rows[:SHOWN]), ("best", rows[-SHOWN:][::-1])):
        lines.append(f"{title} answered sets (standard error in records, root mean square over a set's queries)")
        lines += [f"  {figure(r['rms_error']):>7}  {r['family']:<9} {', '.join(r['attributes'])}" for r in shown]
    return "\n".join([*lines, f"report: {run / 'report.html'}"])
