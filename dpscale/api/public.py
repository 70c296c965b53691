"""Run of a job of one or several tables, as `import dpscale` exports it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpscale.api.release import Release
from dpscale.base.errors import JobError
from dpscale.engine.schedulers import Progress, silent
from dpscale.job import TableJob, job_content
from dpscale.records.frames import FRAME
from dpscale.runs.opening import begin_run, read_job
from dpscale.runs.stages.runner import check_frame, check_repeat, remove_on_error, run_stages

FILES_ONLY = ("links", "snapshot", "delimiter", "encoding", "null_values", "header", "names")


def run(
    job: str | Path | Mapping[str, Any],
    run_dir: str | Path | None = None,
    client: Any = None,
    scheduler: str | None = None,
    progress: Progress = silent,
    fresh: bool = False,
    data: Any = None,
) -> Release:
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
        Make a new release, with a new charge.
    data : DataFrame or pyarrow Table, optional
        pandas, Polars, Dask or pyarrow data for a job of one table without a path.

    Returns
    -------
    Release

    Raises
    ------
    JobError, DomainError, DataError, PlanError, BudgetError
        If the job is refused. DataError also if the data of a finished job have changed, or if `data` is not known to
        be the frame that was measured.
    ReportError
        If a section of the report failed; the answers are complete.
    TransientError
        If a retry may succeed.
    """
    opened = begin_run(read_job(job) if data is None else framed_job(job), run_dir, fresh)
    check_repeat(opened)
    if data is not None:
        opened.table.frame = data
        check_frame(opened.table, client, scheduler)
    with remove_on_error(opened):
        run_stages(opened, client, scheduler, progress)
    return Release(opened)


def framed_job(job: str | Path | Mapping[str, Any]) -> TableJob:
    """Return a job whose data are a frame: its [data] has neither a path nor keys of file formats."""
    content, folder = job_content(job)
    given = content.get("data", {})
    if "tables" in content or not isinstance(given, Mapping):
        raise JobError("data", "a frame for a job of several tables", "a job of one table", "write it to files")
    if given.get("period") is not None:
        raise JobError("data.period", "given together with a frame", "files, which are read again for later periods",
                       "write the frame to files")  # fmt: skip
    for name in ("path", *FILES_ONLY):
        if name in given and (name, given[name]) != ("path", FRAME):
            raise JobError(f"data.{name}", "given together with a frame", "a frame or files", "leave one out")
    read = TableJob.parse({**content, "data": {**given, "path": FRAME}}, folder)
    if read.privacy.dataset is None:
        raise JobError("privacy.dataset", "missing", "the name of the frame's data in the ledger", "add it")
    return read
