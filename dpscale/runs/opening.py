"""Jobs and runs by their form: one table, or several tables with links. Nothing else asks which form a job has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpscale.base.display import safe_repr
from dpscale.base.errors import DpscaleError, JobError
from dpscale.job import Job, job_content
from dpscale.runs.create import resolve_path
from dpscale.runs.directory import RunDirectory
from dpscale.runs.manifest import MANIFEST, disk_errors, read_manifest
from dpscale.runs.run import Run
from dpscale.runs.stages.preflight import check_cap, check_preflight
from dpscale.storage.files import present, store_errors


@dataclass(frozen=True)
class Form:
    """Form of a job.

    Attributes
    ----------
    job : type
        Class of the job file.
    run : type of RunDirectory
    preflight : callable
        Maps a job and its inputs to None; raises an error for a job that would be refused later for known reasons.
    table_jobs : callable
        Maps a job to the jobs of its private tables by name.
    overview : callable
        Maps a job to its neighbouring relation and the division of its budget, before data are read; {} for one table.
    """

    job: Any
    run: type[RunDirectory]
    preflight: Callable[..., object]
    table_jobs: Callable[[Any], Mapping[str, Job]]
    overview: Callable[[Any], dict[str, Any]]


def _one_table() -> Form:
    return Form(Job, Run, check_preflight, lambda job: {"data": job}, lambda job: {})


def _several_tables() -> Form:
    from dpscale.job import neighbours
    from dpscale.runs.links import planning  # loads the compiled loops of links
    from dpscale.runs.links.run import MultiTableJob, MultiTableRun

    def preflight(job: MultiTableJob) -> None:
        check_cap(job, neighbours.neighbour_relation(job).protects)

    return Form(MultiTableJob, MultiTableRun, preflight, neighbours.table_jobs, planning.summary)


FORMS: Mapping[str, Callable[[], Form]] = {"": _one_table, "database": _several_tables}


def form_of(job: Any) -> Form:
    """Return the form of a job."""
    return FORMS[job.kind]()


def read_job(job: str | Path | Mapping[str, Any]) -> Any:
    """Return the job of a file or of its content, in either form."""
    content, folder = job_content(job)
    return FORMS["database" if "tables" in content else ""]().job.parse(content, folder)


def open_run(path: str | Path) -> RunDirectory:
    """Open a run directory of either form. Raises JobError if it is none."""
    where = resolve_path(path)
    with disk_errors(where), store_errors(where):
        kind = read_manifest(where).get("kind", "") if present(where / MANIFEST) else ""
    if kind not in FORMS:
        raise JobError("run directory", f"manifest.json in {where} has the kind {safe_repr(kind)}", "a known kind",
                       "restore the file, or open the run with the version of dpscale that it names")  # fmt: skip
    return FORMS[kind]().run(where)


def begin_run(
    job: Any, run_dir: str | Path | None = None, fresh: bool = False, files_accessible: bool = True
) -> RunDirectory:
    """Create or reopen the run of a job.

    Parameters
    ----------
    job : Job
    run_dir : path, optional
    fresh : bool
        Whether to create a new run; JobError if the latest one is not finished.
    files_accessible : bool
        Whether data and ledger can be read here; for a submitted job the driver checks them.
    """
    form = form_of(job)
    return form.run.create(job, run_dir, fresh, unfinished_stage, form.preflight if files_accessible else None)


def unfinished_stage(path: Path) -> str:
    """Return the first requested stage that is not finished; for a run that cannot be opened only measuring counts."""
    stages = read_manifest(path)["stages"]
    try:
        run = open_run(path)
        wanted = [stage.name for stage in run.stages.values() if stage.is_enabled(run)]
    except DpscaleError:
        wanted = ["measure"]
    return next((name for name in wanted if stages.get(name, {}).get("state") != "done"), "")
