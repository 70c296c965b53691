"""Reading of jobs, and opening of runs and parts. Nothing else asks which form a job has: its run's content answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpscale.base.errors import JobError
from dpscale.job import Job, job_content
from dpscale.runs.kinds import CONTENTS, load_kind
from dpscale.runs.manifest import MANIFEST, check_version, disk_errors, read_manifest, resolve_path
from dpscale.runs.run import Content, Part, Run
from dpscale.runs.stored_job import JOB_FILE, read_stored
from dpscale.storage.files import is_path, place, present, store_errors
from dpscale.storage.objects import slashed


def content_of(kind: str) -> type[Content]:
    """Return the class of the content of a run, by the kind of its job."""
    found: type[Content] = load_kind(CONTENTS[kind])
    return found


def read_job(job: str | Path | Mapping[str, Any]) -> Job:
    """Return the job of a file or of its content; the file of a run directory is read with the places of its files."""
    content, folder = job_content(job)
    if is_path(job) and present(folder / MANIFEST) and place(job).name == JOB_FILE:  # type: ignore[arg-type]
        return read_stored(folder, read_manifest(folder))
    return Job.parse(content, folder)


def open_run(path: str | Path) -> Run:
    """Open a run directory. Raises JobError if it is none."""
    where = resolve_path(path)
    with disk_errors(where), store_errors(where):
        if not present(where / MANIFEST):
            raise _no_run(where)
        manifest = read_manifest(where)
        check_version(where, manifest)
        kind = read_stored(where, manifest).kind
    return Run(where, content_of(kind))


def _no_run(where: Path) -> JobError:
    """Return the error for a path that is no run directory: another one if it is part of a run.

    The part of a run has a manifest in a folder above it.
    """
    whole = next((folder for folder in where.parents if present(folder / MANIFEST)), None)
    if whole is not None:
        return JobError("run directory", f"{where} is part of the run in {whole}, whose parts are charged together",
                        "the directory of the whole run", "run the command there")  # fmt: skip
    return JobError("run directory", f"{where} is not one",
                    "a directory that `dpscale run` or `dpscale plan --run-dir` created", "check the path")  # fmt: skip


def open_readable(path: str | Path) -> Any:
    """Open a run directory, or a part of it that has answers of its own; see `open_part`."""
    found = open_part(path)
    return found.run if isinstance(found, Part) and not found.folder else found


def open_part(path: str | Path) -> Any:
    """Open a part of a run by the path of its files: the only table of a run directory, or a folder in it.

    Raises JobError if the path is none.
    """
    where = resolve_path(path)
    for folder in (where, *where.parents):
        if present(folder / MANIFEST):
            run = open_run(folder)
            inside = "" if folder == where else slashed(where.relative_to(folder))
            part = run.content.part_at(inside)
            return run if part is None else part
    return open_run(where)
