"""What `import dpscale` gives: a job is run, and a release opened, whether it is of one table or of several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpscale.database.job import DatabaseJob
from dpscale.engine.schedulers import Progress, silent
from dpscale.errors import JobError
from dpscale.job import Job, job_content


def run(
    job: str | Path | Mapping[str, Any],
    run_dir: str | Path | None = None,
    client: Any = None,
    scheduler: str | None = None,
    progress: Progress = silent,
    fresh: bool = False,
) -> Any:
    """Run all stages of a job (a path, or the job's content as a dict) and open its release.

    A Release of one table, or a DatabaseRelease of several. A job that is done is opened as it is; DataError where its
    files have changed since. `fresh` makes a new release, of one table.
    """
    read = read_job(job)
    if isinstance(read, Job):
        from dpscale.release import run as run_one

        return run_one(read, run_dir, client, scheduler, progress, fresh)
    from dpscale.database.release import run as run_several

    check_not_fresh(fresh)
    return run_several(read, run_dir, client, scheduler, progress)


def read_job(job: str | Path | Mapping[str, Any]) -> Job | DatabaseJob:
    """A job file, or its content as a dict, read once: of one table or of several."""
    content, folder = job_content(job)
    return DatabaseJob.parse(content, folder) if "tables" in content else Job.parse(content, folder)


def check_not_fresh(fresh: bool) -> None:
    """JobError where a new release of several tables is asked for beside the old one."""
    if fresh:
        raise JobError("fresh", "given for a job of several tables", "a run directory of its own for a new release",
                       "name a new one by --run-dir")  # fmt: skip
