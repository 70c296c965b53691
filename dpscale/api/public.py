"""Run of a job of one or several tables, as `import dpscale` exports it."""

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
    """Run all stages of a job and open its release.

    A finished job is opened without running it again.

    Parameters
    ----------
    job : str, Path or mapping
        Path of a job file, or its content.
    run_dir : str or Path, optional
        Run directory; default: runs/ and the digest of the job.
    client : distributed.Client, optional
        Cluster to use.
    scheduler : str, optional
        threads, processes, synchronous, tcp://HOST:PORT or tls://HOST:PORT.
    progress : callable, optional
        Called with a label, the number of finished tasks and their total.
    fresh : bool
        Make a new release, with a new charge, for a job of one table.
    data : DataFrame or pyarrow Table, optional
        pandas, Polars, Dask or pyarrow data for a job of one table without a path.

    Returns
    -------
    Release or DatabaseRelease
        A DatabaseRelease for a job of several tables.

    Raises
    ------
    JobError, DomainError, DataError, PlanError, BudgetError
        If the job is refused. DataError also if the data of a finished job have changed.
    ReportError
        If a section of the report failed; the answers are complete.
    TransientError
        If a retry may succeed.
    """
    read = read_job(job) if data is None else framed_job(job)
    if isinstance(read, Job):
        from dpscale.api.release import run as run_one

        return run_one(read, run_dir, client, scheduler, progress, fresh, data)
    from dpscale.api.database import run as run_several

    check_not_fresh(fresh)
    return run_several(read, run_dir, client, scheduler, progress)


def read_job(job: str | Path | Mapping[str, Any]) -> Job | DatabaseJob:
    """Return the job of one or of several tables from a file or its content."""
    content, folder = job_content(job)
    if "tables" not in content:
        return Job.parse(content, folder)
    from dpscale.multitable.job import DatabaseJob  # loads the compiled loops of links

    return DatabaseJob.parse(content, folder)


def framed_job(job: str | Path | Mapping[str, Any]) -> Job:
    """Return a job whose data are a frame: its [data] has neither a path nor keys of file formats."""
    content, folder = job_content(job)
    given = content.get("data", {})
    if "tables" in content or not isinstance(given, Mapping):
        raise JobError("data", "a frame for a job of several tables", "a job of one table", "write it to files")
    for name in ("path", *FILES_ONLY):
        if name in given and (name, given[name]) != ("path", FRAME):
            raise JobError(f"data.{name}", "given together with a frame", "a frame or files", "leave one out")
    read = Job.parse({**content, "data": {**given, "path": FRAME}}, folder)
    if read.privacy.dataset is None:
        raise JobError("privacy.dataset", "missing", "the name of the frame's data in the ledger", "add it")
    return read


def check_not_fresh(fresh: bool) -> None:
    """Raise JobError if a new release of several tables is requested in the same directory."""
    if fresh:
        raise JobError("fresh", "given for a job of several tables", "a new run directory for a new release",
                       "set another --run-dir")  # fmt: skip
