"""Run of a job of one or several tables, and more budget for its release, as `import dpscale` exports them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpscale.api.planning import ReleasePlan
from dpscale.api.release import Release
from dpscale.base.errors import JobError
from dpscale.base.progress import Progress, lines, shown
from dpscale.job import Job, job_content
from dpscale.job.forms import SEVERAL
from dpscale.ledger import Ledger
from dpscale.ledger.account import canonical
from dpscale.plans.plan import Plan
from dpscale.records.frames import FRAME, read_stream
from dpscale.runs.opening import begin_run, read_job
from dpscale.runs.refine import plan_refinement, start_refinement
from dpscale.runs.runner import check_frame, check_repeat, remove_on_error, run_stages
from dpscale.storage.files import is_path

FILES_ONLY = ("links", "snapshot", "delimiter", "encoding", "null_values", "header", "names")


def run(
    job: ReleasePlan | str | Path | Mapping[str, Any],
    run_dir: str | Path | None = None,
    client: Any = None,
    scheduler: Any = None,
    progress: Progress | None = lines,
    fresh: bool = False,
    data: Any = None,
    empty: bool = False,
) -> Release:
    """Run all stages of a job and open its release.

    A finished job is opened without running it again.

    Parameters
    ----------
    job : ReleasePlan, str, Path or mapping
        Result of `dpscale.plan`, path of a job file, or its content.
    run_dir : str or Path, optional
        Run directory; default: runs/ and the digest of the job, for a plan from Python in the user's data folder.
    client : distributed.Client, optional
        Cluster to use.
    scheduler : str or distributed.Client, optional
        threads, processes, synchronous, tcp://HOST:PORT, tls://HOST:PORT, or a client.
    progress : callable, optional
        Called with a label, the number of finished tasks and their total. By default at most one line in ten seconds
        is printed on stderr; None prints nothing.
    fresh : bool
        Make a new release, with a new charge.
    data : DataFrame, Arrow data, str or Path, optional
        pandas, Polars, Dask or pyarrow data, or any object with the Arrow PyCapsule interface, for a job of one table
        without a path; or the path of files for a plan.
    empty : bool
        Release data without a counted row, which are refused otherwise.

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

    Examples
    --------
    >>> plan = dp.plan([["day"]], domain, epsilon=1)
    >>> dp.run(plan, data=trips).table("day").shape
    (3, 5)
    """
    planned = _with_path(job, data) if isinstance(job, ReleasePlan) else None
    read, framed = _planned_job(planned, data) if planned is not None else _given_job(job, data)
    opened = begin_run(read, run_dir or (None if planned is None else planned.run_dir), fresh, empty=empty)
    check_repeat(opened)
    if framed:
        opened.table.frame = read_stream(data)
        check_frame(opened.table, client, scheduler)
    with remove_on_error(opened):
        run_stages(opened, client, scheduler, shown(progress))
    if planned is not None and planned.from_python:
        warn_spent(read)
    return Release(opened)


def _given_job(job: Any, data: Any) -> tuple[Any, bool]:
    """Return a job that is given as a whole, and whether its data are a frame."""
    if isinstance(job, Plan):
        raise JobError("run.job", "a plan at unit cost", "a plan with a budget", "add epsilon= to dp.plan")
    return (read_job(job), False) if data is None else (_framed(*job_content(job)), True)


def _with_path(planned: ReleasePlan, data: Any) -> ReleasePlan:
    """Return the plan of the files that are given as data, with runs of its own; the plan itself for other data.

    A job states the path of its files or gets it as `data`, but not both. Other data, such as a frame, are not a part
    of the plan.
    """
    given = planned.content["data"]
    if data is None and "path" not in given:
        raise JobError("run.data", "missing", "a frame, or the path of files", "add data=")
    if data is None or not is_path(data):
        return planned
    if "path" in given:
        raise JobError("run.data", "given for a job that has a path", "one of them", "leave it out")
    local = str(data).removeprefix("file://")  # one spelling of a path is one release
    path = local if "://" in local else os.path.realpath(local)
    return replace(planned, content={**planned.content, "data": {**given, "path": path}})


def _planned_job(planned: ReleasePlan, data: Any) -> tuple[Any, bool]:
    """Return the job of a plan, and whether its data are a frame."""
    if data is None or is_path(data):
        return Job.parse(planned.content, planned.folder), False
    return _framed(planned.content, planned.folder), True


class SpentWarning(UserWarning):
    """Warning of what a dataset has spent, because neither the ledger nor the name was written by hand."""


def warn_spent(job: Job) -> None:
    """Warn with the path of the ledger and the spent budget of a dataset.

    The total is that of all releases of the dataset on the ledger.
    """
    with Ledger.open(job.privacy.ledger, create=False) as ledger:
        spent = ledger.summary()["datasets"][canonical(job.dataset)]["spent"]
    epsilon = "infinite" if spent["epsilon"] is None else f"{spent['epsilon']:.6g}"
    said = (f"dataset {job.dataset!r} has spent epsilon {epsilon} at delta {spent['delta']:.6g} in total, by the "
            f"ledger {job.privacy.ledger}; a changed frame is a new release with a new charge, dataset= names other "
            "data, and docs/frames.md#the-budget says more")  # fmt: skip
    warnings.warn(said, SpentWarning, stacklevel=3)


def _framed(content: Mapping[str, Any], folder: Path) -> Job:
    """Return the job of a table that is given as a frame; refuse settings of files and of several tables.

    FRAME is the text that replaces the path of files, FILES_ONLY are keys of [data] that only files have, and SEVERAL
    are sections of jobs of several tables. The dataset is required because no path can name it on the ledger.
    """
    data = content.get("data", {})
    if SEVERAL & content.keys() or not isinstance(data, Mapping):
        raise JobError("data", "a frame for a job of several tables", "a job of one table", "write it to files")
    if data.get("period") is not None:
        raise JobError("data.period", "given together with a frame", "files, which are read again for later periods",
                       "write the frame to files")  # fmt: skip
    for name in ("path", *FILES_ONLY):
        if name in data and (name, data[name]) != ("path", FRAME):
            raise JobError(f"data.{name}", "given together with a frame", "a frame or files", "leave one out")
    job = Job.parse({**content, "data": {**data, "path": FRAME}}, folder)
    if job.privacy.dataset is None:
        raise JobError("privacy.dataset", "missing", "the name of the frame's data in the ledger", "add it")
    return job


def refine(
    release: Release | str | Path,
    epsilon: float,
    delta: float | None = None,
    job: str | Path | Mapping[str, Any] | None = None,
    run_dir: str | Path | None = None,
    client: Any = None,
    scheduler: Any = None,
    progress: Progress | None = lines,
    data: Any = None,
) -> Release:
    """Spend more budget on the records of a release, and open the release that pools all values.

    The result is a new release with its own id, charge and directory. Its estimates, errors and rows follow from the
    values of all releases. The same call again resumes or opens it.

    Parameters
    ----------
    release : Release, str or Path
        A release of one table, or its run directory; it may refine earlier releases itself.
    epsilon : float
        Budget of the new release alone. Squared mu adds over releases, epsilon does not.
    delta : float, optional
        Default: that of the job.
    job : str, Path or mapping, optional
        A job on the same data with another workload, which is planned given what is known.
    run_dir : str or Path, optional
        Run directory; default: that of the first release with the ending -refined.
    client : distributed.Client, optional
        Cluster to use.
    scheduler : str or distributed.Client, optional
        threads, processes, synchronous, tcp://HOST:PORT, tls://HOST:PORT, or a client.
    progress : callable, optional
        Called with a label, the number of finished tasks and their total. By default at most one line in ten seconds
        is printed on stderr; None prints nothing.
    data : DataFrame or pyarrow Table, optional
        The data of a release that read a data frame.

    Returns
    -------
    Release

    Raises
    ------
    JobError, PlanError, BudgetError
        If the release cannot be refined, or the budget is refused.
    DataError
        If the records differ from those of the release.
    TransientError
        If a retry may succeed.

    Examples
    --------
    >>> first = dp.run(dp.plan([["day"]], domain, epsilon=1), data=trips)
    >>> more = dp.refine(first, epsilon=0.5, data=trips)
    >>> bool(more.table("day")["std_error"].max() < first.table("day")["std_error"].max())
    True
    """
    path = release.path if isinstance(release, Release) else release
    opened = start_refinement(plan_refinement(path, epsilon, delta, job), run_dir, data)
    check_repeat(opened)
    if data is not None:
        check_frame(opened.table, client, scheduler)
    with remove_on_error(opened):
        run_stages(opened, client, scheduler, shown(progress))
    return Release(opened)
