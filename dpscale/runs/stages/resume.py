"""Repetition of a job: a measured run reads and spends nothing, and answers from other data are refused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from dpscale.base.errors import DataError, DpscaleError
from dpscale.engine import resolve
from dpscale.job import Job
from dpscale.job.data import Data
from dpscale.records.frames import FRAME
from dpscale.records.origin import Layout, differing, layout
from dpscale.runs.fingerprints import frame_tag
from dpscale.runs.manifest import read_manifest
from dpscale.runs.run import Run
from dpscale.runs.stages import STAGES
from dpscale.runs.stages.measure import columns_of, content_hash, open_table
from dpscale.runs.stages.preflight import check_preflight


def begin_run(job: Job, run_dir: str | Path | None = None, fresh: bool = False, files_accessible: bool = True) -> Run:
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
    return Run.create(job, run_dir, fresh, unfinished_stage, check_preflight if files_accessible else None)


def unfinished_stage(path: Path) -> str:
    """Return the first requested stage that is not finished; for a run that cannot be opened only measuring counts."""
    stages = read_manifest(path)["stages"]
    try:
        run = Run(path)
        wanted = [stage.name for stage in STAGES.values() if stage.is_enabled(run)]
    except DpscaleError:
        wanted = ["measure"]
    return next((name for name in wanted if stages.get(name, {}).get("state") != "done"), "")


def check_repeat(run: Run) -> str | None:
    """Return the status of a measured run; None if it is not measured. Raises DataError if its data changed."""
    if not run.done("measure"):
        return None
    when, done = _date(run), all(run.done(stage.name) for stage in STAGES.values() if stage.is_enabled(run))
    status = f"{'done' if done else 'measured'} on {when}"
    if changed := changed_data(run):
        differ = f"{', '.join(changed)} differ{'s' * (len(changed) == 1)}"
        resume = "" if done else f", `dpscale reconstruct {run.path}` resumes the old one"
        raise DataError("data.path", f"{status} from other data ({differ}); nothing read or spent",
                        "the files as they were", f"--fresh starts a new release{resume}")  # fmt: skip
    return f"{status}, nothing read, nothing spent"


def check_frame(run: Run, client: Any = None, scheduler: str | None = None) -> None:
    """Raise DataError unless the data frame of a call is the one that a measured run read.

    The frame is read once for its hash (`runs.fingerprints.frame_tag`).
    """
    if run.frame is None or not run.done("measure"):
        return
    known = run.manifest.get("frame")
    found = _tag_of(run, client, scheduler) if known and run.job.data.path == FRAME else None
    if found is not None and found == known:
        return
    other = bool(found and known and found["key"] == known["key"])
    got = f"a frame whose records differ from those measured on {_date(run)}"
    if not other:
        problem = _comparison_problem(run, found)
        got = f"a frame that cannot be compared with the one measured on {_date(run)}: {problem}"
    raise DataError("data", got, "the frame that the run measured",
                    f"open the existing release with Release.open({str(run.path)!r}), or start a new one, which is "
                    "charged, with fresh=True")  # fmt: skip


def _tag_of(run: Run, client: Any, scheduler: str | None) -> dict[str, str] | None:
    engine = resolve(client, scheduler or run.job.engine.scheduler)
    try:
        table = open_table(run, columns_of(run.domain, run.planned.counted), engine)
        return frame_tag(run.manifest["release"], content_hash(run, table, engine))
    finally:
        engine.close()


def _comparison_problem(run: Run, found: dict[str, str] | None) -> str:
    """Return why two frames cannot be compared."""
    if run.job.data.path != FRAME:
        return "the run read files"
    if not run.manifest.get("frame"):
        return "the run has no fingerprint of it"
    return "the key of its fingerprint is not in the state folder of this user" if found is None else (
        "its fingerprint was computed with another key")  # fmt: skip


def changed_data(run: Run) -> list[str]:
    """Return which of size, time and number of the data's files, or the version of a table, changed since measuring.

    The result is empty if the data no longer exist or the run did not record them.
    """
    known, found = run.manifest.get("data"), _layout(run.job.data)
    return differing(known, found) if known and found else []


def _layout(data: Data) -> Layout | None:
    """Return the current layout of the data; None if it is not known."""
    if not data.lake:
        return layout(data.path, data.matching, data.dialect.format)
    with suppress(DataError):
        return {"version": data.origin.lake(data.path).version}
    return None


def _date(run: Run) -> str:
    return str(run.manifest["stages"]["measure"]["end"])[:10]
