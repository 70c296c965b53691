"""A job that is asked for again: nothing is read and nothing spent, and answers from other data are told as such."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dpscale.data import Data
from dpscale.errors import DataError, DpscaleError
from dpscale.job import Job
from dpscale.runs.manifest import read_manifest
from dpscale.runs.run import Run
from dpscale.stages import STAGES
from dpscale.stages.beforehand import check_beforehand
from dpscale.tables.layout import Layout, differing, layout


def begin(job: Job, run_dir: str | Path | None = None, fresh: bool = False, in_sight: bool = True) -> Run:
    """The run of a job, made or reopened; with `fresh` a new one, JobError while the latest has a stage to do.

    `in_sight`: whether data and ledger are there where this is called; of a submitted job the driver looks at them.
    """
    return Run.create(job, run_dir, fresh, left_of, check_beforehand if in_sight else None)


def left_of(path: Path) -> str:
    """The first stage that a run is to have and that is not done; of one that cannot be opened, measuring alone."""
    stages = read_manifest(path)["stages"]
    try:
        run = Run(path)
        wanted = [stage.name for stage in STAGES.values() if stage.wanted(run)]
    except DpscaleError:
        wanted = ["measure"]
    return next((name for name in wanted if stages.get(name, {}).get("state") != "done"), "")


def check_repeat(run: Run) -> str | None:
    """What to say of a run that is measured; None of one that is not, DataError where its data are others by now."""
    if not run.done("measure"):
        return None
    when, done = _date(run), all(run.done(stage.name) for stage in STAGES.values() if stage.wanted(run))
    said = f"{'done' if done else 'measured'} on {when}"
    if others := other_data(run):
        got = f"{said} from other data ({', '.join(others)} differ{'s' * (len(others) == 1)}); nothing read or spent"
        goes_on = "" if done else f", `dpscale reconstruct {run.path}` goes on with that one"
        raise DataError("data.path", got, "the files as they were", f"--fresh makes a new release{goes_on}")
    return f"{said}, nothing read, nothing spent"


def other_data(run: Run) -> list[str]:
    """Which of size, time and number of the data's files, or the version of a table, are not what was measured.

    Of data that are gone nothing can be said, nor of a run that did not write it down.
    """
    known, found = run.manifest.get("data"), _layout(run.job.data)
    return differing(known, found) if known and found else []


def _layout(data: Data) -> Layout | None:
    """As it is now; None where that cannot be told."""
    if not data.format:
        return layout(data.path, data.matching)
    with suppress(DataError):
        return {"version": data.origin.lake(data.path).version}
    return None


def _date(run: Run) -> str:
    return str(run.manifest["stages"]["measure"]["end"])[:10]
