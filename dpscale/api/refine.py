"""More budget for a release that exists, as `import dpscale` exports it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpscale.api.release import Release
from dpscale.engine.schedulers import Progress, silent
from dpscale.runs.refine import plan_refinement, start_refinement
from dpscale.runs.runner import check_frame, check_repeat, remove_on_error, run_stages


def refine(
    release: Release | str | Path,
    epsilon: float,
    delta: float | None = None,
    job: str | Path | Mapping[str, Any] | None = None,
    run_dir: str | Path | None = None,
    client: Any = None,
    scheduler: str | None = None,
    progress: Progress = silent,
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
    scheduler : str, optional
        threads, processes, synchronous, tcp://HOST:PORT or tls://HOST:PORT.
    progress : callable, optional
        Called with a label, the number of finished tasks and their total.
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
        run_stages(opened, client, scheduler, progress)
    return Release(opened)
