"""Functions that `import dpscale` exports: run a job, answer SELECT statements, and spend more budget on a release.

A job has one or several tables. Statements are planned together and released under one charge.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpscale.api.planning import ReleasePlan, plan_sql
from dpscale.api.release import Release
from dpscale.base.display import safe_repr
from dpscale.base.errors import JobError
from dpscale.base.progress import Progress, lines, shown
from dpscale.domain import Domain
from dpscale.job import Job, job_content
from dpscale.job.forms import SEVERAL
from dpscale.mechanisms import DEFAULT
from dpscale.plans.plan import Plan
from dpscale.records.frames import FRAME, read_stream
from dpscale.runs.charge import account_of
from dpscale.runs.opening import begin_run, read_job
from dpscale.runs.refine import plan_refinement, start_refinement
from dpscale.runs.runner import check_frame, check_repeat, remove_on_error, run_stages
from dpscale.storage.files import is_path
from dpscale.workload.sql.selection import requested_tables
from dpscale.workload.sql.statements import DIALECT, read_statements, table_statement

if TYPE_CHECKING:
    from dpscale.api.answers import AnyFrame

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
    if (stated := account_of(job)) is None:
        said = (f"the answers are those of an earlier run, and the ledger {job.privacy.ledger} has no entry of dataset"
                f" {job.dataset!r}: they were charged on another one")  # fmt: skip
        warnings.warn(said, SpentWarning, stacklevel=3)
        return

    spent = stated["spent"]
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


def sql(  # noqa: PLR0913
    text: str,
    tables: Mapping[str, Any],
    domain: Domain | str | Path,
    *,
    epsilon: float,
    delta: float | None = None,
    unit: str | Sequence[str] | None = None,
    rows_per_unit: int | None = None,
    dataset: str | None = None,
    ledger: str | Path | None = None,
    mechanism: str = DEFAULT,
    dialect: str = DIALECT,
    analyst: str | None = None,
    client: Any = None,
    scheduler: Any = None,
    progress: Progress | None = lines,
) -> Release:
    """Answer SELECT statements on a table: one workload, planned together, with consistent answers and intervals.

    Parameters
    ----------
    text : str
        Statements separated by semicolons; a comment `-- name: cases` names the statement after it.
    tables : mapping of str to DataFrame, Arrow data, str or Path
        The table by the name that FROM uses: a frame, or the path of files.
    domain : Domain, str or Path
        Public values of the attributes, or the path of a domain file.
    epsilon : float
        Privacy budget of all statements together.
    delta : float, optional
        Without it the release satisfies pure ε-DP.
    unit : str or sequence of str, optional
        Column that identifies the protected unit. Default: one row is protected.
    rows_per_unit : int, optional
        Largest number of rows of a unit that are counted; required with `unit`.
    dataset : str, optional
        Name of the data in the ledger. Default: "default".
    ledger : str or Path, optional
        Path or address of the ledger. Default: ledger.sqlite in the user's data folder.
    mechanism : str
    dialect : str
        SQL dialect of sqlglot.
    analyst : str, optional
        Name that is charged, for a dataset with caps of analysts.
    client, scheduler, progress : optional
        As of `dpscale.run`.

    Returns
    -------
    Release
        `Release.query(name)` has the rows of a statement.

    Raises
    ------
    JobError
        For a statement that cannot be answered, with its place.

    Examples
    --------
    >>> found = dp.sql("SELECT day, COUNT(*) AS trips FROM t GROUP BY day", {"t": trips}, domain, epsilon=1)
    >>> found.query("query-1").columns.tolist()
    ['day', 'trips', 'trips_low', 'trips_high', 'trips_std_error']
    """
    if not isinstance(tables, Mapping) or len(tables) != 1:
        raise JobError("sql.tables", safe_repr(list(tables) if isinstance(tables, Mapping) else type(tables).__name__),
                       "one table by its name, such as {'visits': frame}", "write a job with [tables.NAME] and [[link]]"
                       " for several tables")  # fmt: skip
    ((name, data),) = tables.items()
    for statement in read_statements(text, dialect=dialect):
        for table in requested_tables(statement):
            if table.lower() != str(name).lower():
                raise JobError("sql.tables", f"no table {table!r}, which {statement.name} reads", str(name),
                               "name the table as FROM does")  # fmt: skip
    planned = plan_sql(text, domain, epsilon=epsilon, delta=delta, unit=unit, rows_per_unit=rows_per_unit,
                       dataset=dataset, ledger=ledger, mechanism=mechanism, dialect=dialect,
                       analyst=analyst)  # fmt: skip
    return run(planned, data=data, client=client, scheduler=scheduler, progress=progress)


def table(
    data: Any,
    by: str | Sequence[str] = (),
    *,
    domain: Domain | str | Path,
    epsilon: float,
    delta: float | None = None,
    mean: str | Sequence[str] = (),
    level: float = 0.95,
    frame: str = "pandas",
    **given: Any,
) -> AnyFrame:
    """Publish one table: the number of records of each group, with intervals, and means if asked for.

    Parameters
    ----------
    data : DataFrame, Arrow data, str or Path
        A frame, or the path of files.
    by : str or sequence of str
        Attributes of the groups. Default: the whole data.
    domain : Domain, str or Path
        Public values of the attributes, or the path of a domain file.
    epsilon, delta : float
        Privacy budget; without `delta` the release satisfies pure ε-DP.
    mean : str or sequence of str
        Numbers of the domain whose means are answered too.
    level : float
        Probability that an interval covers its value.
    frame : {"pandas", "arrow", "polars"}
    **given
        Other arguments of `dpscale.sql`, such as `unit`, `dataset` and `ledger`.

    Returns
    -------
    DataFrame or pyarrow Table
        The attributes; `records` and the means, each with NAME_low, NAME_high and NAME_std_error.

    Raises
    ------
    JobError
        For an attribute or number that the domain does not have.

    Examples
    --------
    >>> dp.table(trips, by=["day"], domain=domain, epsilon=1).columns.tolist()
    ['day', 'records', 'records_low', 'records_high', 'records_std_error']
    """
    names, numbers = ([one] if isinstance(one, str) else list(one) for one in (by, mean))
    text = table_statement(names, numbers)
    return sql(text, {"data": data}, domain, epsilon=epsilon, delta=delta, **given).query(
        "table", level=level, frame=frame
    )
