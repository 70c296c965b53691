"""What `import dpscale` gives: a job is run, and a release opened, whether it is of one table or of several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpscale.engine.schedulers import Progress, silent


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
    from dpscale.database.job import is_database

    if is_database(job):
        from dpscale.database.release import run as run_several

        check_not_fresh(fresh)
        return run_several(job, run_dir, client, scheduler, progress)
    from dpscale.release import run as run_one

    return run_one(job, run_dir, client, scheduler, progress, fresh)


def check_not_fresh(fresh: bool) -> None:
    """JobError where a new release of several tables is asked for beside the old one."""
    from dpscale.errors import JobError

    if fresh:
        raise JobError("fresh", "given for a job of several tables", "a run directory of its own for a new release",
                       "name a new one by --run-dir")  # fmt: skip
