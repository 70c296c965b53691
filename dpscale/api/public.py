"""What `import dpscale` gives: a job is run, and a release opened, whether it is of one table or of several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpscale.base.errors import JobError
from dpscale.engine.schedulers import Progress, silent
from dpscale.job import Job, job_content
from dpscale.records.frames import FRAME

if TYPE_CHECKING:
    from dpscale.multitable.job import DatabaseJob

FILES_ONLY = ("links", "snapshot", "delimiter", "encoding", "null_values", "header", "names")


def run(
    job: str | Path | Mapping[str, Any],
    run_dir: str | Path | None = None,
    client: Any = None,
    scheduler: str | None = None,
    progress: Progress = silent,
    fresh: bool = False,
    data: Any = None,
) -> Any:
    """Run all stages of a job (a path, or the job's content as a dict) and open its release.

    A Release of one table, or a DatabaseRelease of several. A job that is done is opened as it is; DataError where its
    files have changed since. `fresh` makes a new release, of one table.
    `data`: a pandas, Polars or Dask DataFrame or a pyarrow Table, for a job of one table without a path.
    """
    read = read_job(job) if data is None else framed_job(job)
    if isinstance(read, Job):
        from dpscale.api.release import run as run_one

        return run_one(read, run_dir, client, scheduler, progress, fresh, data)
    from dpscale.api.database import run as run_several

    check_not_fresh(fresh)
    return run_several(read, run_dir, client, scheduler, progress)


def read_job(job: str | Path | Mapping[str, Any]) -> Job | DatabaseJob:
    """A job file, or its content as a dict, read once: of one table or of several."""
    content, folder = job_content(job)
    if "tables" not in content:
        return Job.parse(content, folder)
    from dpscale.multitable.job import DatabaseJob  # and the loops of links, which one table has no use for

    return DatabaseJob.parse(content, folder)


def framed_job(job: str | Path | Mapping[str, Any]) -> Job:
    """A job whose data a call gives: its [data] has no path, nor what says how files are read."""
    content, folder = job_content(job)
    told = content.get("data", {})
    if "tables" in content or not isinstance(told, Mapping):
        raise JobError("data", "a frame for a job of several tables", "a job of one table", "write it to files")
    for name in ("path", *FILES_ONLY):
        if name in told and (name, told[name]) != ("path", FRAME):
            raise JobError(f"data.{name}", "given beside a frame", "a frame, or files", "leave one out")
    read = Job.parse({**content, "data": {**told, "path": FRAME}}, folder)
    if read.privacy.dataset is None:
        raise JobError("privacy.dataset", "missing", "the name that the ledger keeps a frame under", "give one")
    return read


def check_not_fresh(fresh: bool) -> None:
    """JobError where a new release of several tables is asked for beside the old one."""
    if fresh:
        raise JobError("fresh", "given for a job of several tables", "a run directory of its own for a new release",
                       "name a new one by --run-dir")  # fmt: skip
