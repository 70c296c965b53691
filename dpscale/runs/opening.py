"""Reading of jobs and opening of runs. Nothing asks which form a job has: its run answers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from dpscale.base.display import safe_repr
from dpscale.base.errors import DpscaleError, JobError
from dpscale.job import job_content
from dpscale.runs.create import resolve_path
from dpscale.runs.directory import Run
from dpscale.runs.manifest import MANIFEST, disk_errors, read_manifest
from dpscale.runs.stored_job import JOB_FILE, read_stored
from dpscale.storage.files import is_path, place, present, store_errors

# run classes by the kind in the manifest; imported when they are needed, because links load compiled loops
RUNS: Mapping[str, str] = {
    "": "dpscale.runs.table:TableRun",
    "database": "dpscale.runs.composite:CompositeRun",
    "periods": "dpscale.runs.periods.stream:StreamRun",
    "period": "dpscale.runs.periods.period:PeriodRun",
    "period answers": "dpscale.runs.periods.answers:AnswersRun",
    "period rows": "dpscale.runs.periods.rows:RowsRun",
    "join": "dpscale.runs.joins.run:JoinRun",
}


def _run_class(kind: str) -> type[Run]:
    module, _, name = RUNS[kind].partition(":")
    found: type[Run] = getattr(import_module(module), name)
    return found


def run_class(job: Any) -> type[Run]:
    """Return the class of a job's runs."""
    return _run_class(job.kind)


def read_job(job: str | Path | Mapping[str, Any]) -> Any:
    """Return the job of a file or of its content: of several tables, or in the short form of one table.

    The file of a run directory is read with the places of its files.
    """
    content, folder = job_content(job)
    kind = _run_class("database" if "tables" in content else "").job_class
    if is_path(job) and present(folder / MANIFEST) and place(job).name == JOB_FILE:  # type: ignore[arg-type]
        return read_stored(kind, folder, read_manifest(folder))
    return kind.parse(content, folder)


def open_run(path: str | Path) -> Run:
    """Open a run directory. Raises JobError if it is none."""
    where = resolve_path(path)
    with disk_errors(where), store_errors(where):
        kind = read_manifest(where).get("kind", "") if present(where / MANIFEST) else ""
    if kind not in RUNS:
        raise JobError("run directory", f"manifest.json in {where} has the kind {safe_repr(kind)}", "a known kind",
                       "restore the file, or open the run with the version of dpscale that it names")  # fmt: skip
    return _run_class(kind)(where)


def begin_run(
    job: Any,
    run_dir: str | Path | None = None,
    fresh: bool = False,
    files_accessible: bool = True,
    empty: bool = False,
) -> Run:
    """Create or reopen the run of a job.

    Parameters
    ----------
    job : Job
    run_dir : path, optional
    fresh : bool
        Whether to create a new run; JobError if the latest one is not finished.
    files_accessible : bool
        Whether data and ledger can be read here; for a submitted job the driver checks them.
    empty : bool
        Whether data without a counted row are released.
    """
    run = run_class(job).create(job, run_dir, fresh, unfinished_stage, files_accessible)
    if empty and not run.manifest.get("empty"):
        run.update(empty=True)
    return run


def unfinished_stage(path: Path) -> str:
    """Return the first requested stage that is not finished; for a run that cannot be opened only measuring counts."""
    stages = read_manifest(path)["stages"]
    try:
        run = open_run(path)
        wanted = [stage.name for stage in run.stages.values() if stage.is_enabled(run)]
    except DpscaleError:
        wanted = ["measure"]
    return next((name for name in wanted if stages.get(name, {}).get("state") != "done"), "")
