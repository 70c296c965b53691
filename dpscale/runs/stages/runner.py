"""Execution of stages in order, each once and on the output of earlier ones; repetition and end of a run.

If a job is repeated, a measured run reads and spends nothing, and answers from other data are refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dpscale.base.error_redaction import discreetly
from dpscale.base.errors import BudgetError, DataError, DpscaleError, JobError, PlanError, TransientError
from dpscale.engine import Engine, resolve
from dpscale.engine.schedulers import Progress, silent
from dpscale.job import Job
from dpscale.job.data import Data
from dpscale.ledger import Ledger
from dpscale.ledger.location import check_ledger_place, standing
from dpscale.privacy.secret import destroy_secret
from dpscale.records.frames import FRAME
from dpscale.records.origin import Layout, differing, layout
from dpscale.runs.answers import write_trace
from dpscale.runs.manifest import check_output, disk_errors, frame_tag, read_manifest
from dpscale.runs.run import ABANDONED, FINISHED, Run, now
from dpscale.runs.stages import STAGES, Stage
from dpscale.runs.stages.budget import check_ledger_exists, check_ledger_link, publish
from dpscale.runs.stages.measure import columns_of, content_hash, open_table
from dpscale.runs.stages.preflight import check_preflight
from dpscale.storage.files import flush_names, is_local, remove_partial, store_errors

if TYPE_CHECKING:
    from distributed import Client

Finished = Mapping[str, Mapping[str, Any]]


def run_stages(
    run: Run,
    client: Client | None = None,
    scheduler: str | None = None,
    progress: Progress = silent,
    only: str | None = None,
) -> None:
    """Run all requested stages in order, or only one."""
    requested = [stage for stage in STAGES.values() if (stage.is_enabled(run) if only is None else only == stage.name)]
    if any(stage.spends and not run.done(stage.name) for stage in requested):
        check_ledger_place(standing(run.job.privacy.ledger))
    engine = resolve(client, scheduler or run.job.engine.scheduler, progress)
    try:
        with disk_errors(run.path), store_errors(run.path), run.locked():
            finished = {name: entry for name, entry in run.manifest["stages"].items() if run.done(name)}
            for stage in requested:
                run_stage(stage, run, engine, finished)
    finally:
        engine.close()


def run_stage(stage: Stage, run: Run, engine: Engine, finished: Finished | None = None) -> None:
    """Run one stage unless it is finished.

    `finished` contains the manifest entries of the stages that were finished before this process began.
    """
    if not run.done(stage.name):
        run.check_open(stage.name)
    for name in stage.needs:
        run.require(name)
    if run.done(stage.name):
        return
    for name in stage.needs:
        check_output(run.path, name, (finished or {}).get(name, {}), engine.each("check"))
    with run.record_stage(stage, engine.each("hash")):
        if stage.spends:  # stages that spend read records: report only the type of an error, never its text
            discreetly(f"stage {stage.name}", _perform, stage, run, engine)
        else:
            stage.perform(run, engine)


def _perform(stage: Stage, run: Run, engine: Engine) -> None:
    """Run the stage; errors of a disk or a store may be reported in full."""
    with disk_errors(run.path), store_errors(run.path):
        stage.perform(run, engine)


UNREADABLE = (DataError, JobError, PlanError)


def end(run: Run) -> dict[str, Any]:
    """End a run and return how it ended and what it spent; a repeated call changes nothing.

    The manifest is updated first: if the process is killed afterwards, the next `end` destroys the noise key, and no
    stage continues. Raises TransientError while another process works in the directory.
    """
    with disk_errors(run.path), store_errors(run.path), run.locked():
        if run.ended is None:
            whole = run.done("measure") or _finished(run)
            run.update(ended={"how": FINISHED if whole else ABANDONED, "at": now()})
        remove_partial(run.path)
        _destroy_key(run)
        return {"run_dir": str(run.path), **(run.ended or {}), **_spent(run)}


def _destroy_key(run: Run) -> None:
    """Destroy the noise key, including one that was only partly written."""
    for secret in (run.secret_path, run.secret_path.with_suffix(".partial")):  # the latter if creation was interrupted
        destroy_secret(secret)
    if run.manifest["secret"] not in (None, "destroyed"):
        run.update(secret="destroyed")


def _spent(run: Run) -> dict[str, Any]:
    """Return the charge of the run from the ledger, or from the manifest if the ledger is not readable here.

    A finished run is published first if it is not yet.
    """
    try:
        entry = ledger_entry(run)
        if run.ended and run.ended["how"] == FINISHED and (entry is None or entry["state"] != "released"):
            publish(run, run.measurements)
            entry = ledger_entry(run)
        return {"charged": entry}
    except (BudgetError, *UNREADABLE) as error:
        return {"charged": run.manifest["privacy"], "ledger": str(error)}


def ledger_entry(run: Run) -> dict[str, Any] | None:
    """Return the state and cost of the run's release on its ledger; None if it was never charged."""
    dataset, release = ledger_dataset(run), ledger_release(run)
    return next((one for one in dataset.get("releases", ()) if one["release"] == release), None)


def ledger_release(run: Run) -> str:
    """Return the release id on the ledger: that of the run, or of the multi-table run that it belongs to."""
    return str((run.manifest.get("within") or run.manifest)["release"])


def ledger_dataset(run: Run, chained: bool = False) -> dict[str, Any]:
    """Return the ledger's summary of the run's dataset, with the links of its hash chain if `chained`.

    It is empty if the run never opened a ledger.
    """
    manifest = run.manifest
    recorded = manifest.get("ledger")
    if recorded is None and manifest["privacy"] is None:
        return {}
    check_ledger_exists(run)
    with Ledger.open(standing(run.job.privacy.ledger), create=False) as ledger:
        if recorded not in (None, ledger.name):  # older runs did not record its name
            raise BudgetError("privacy.ledger", f"{ledger.path} is not the ledger with which this run started",
                              "the ledger of the run, on its machine", "run the command there")  # fmt: skip
        check_ledger_link(run, ledger)
        datasets: dict[str, dict[str, Any]] = ledger.summary()["datasets"]
        release = ledger_release(run)
        containing = ((name, one) for name, one in datasets.items()
                   if any(row["release"] == release for row in one["releases"]))  # fmt: skip
        name, found = next(containing, ("", {}))
        return found | {"chain": ledger.chain(name)} if chained and found else found


def _finished(run: Run) -> bool:
    """Return whether everything is measured but not published, for example after a kill at the very end.

    The noise key is no longer needed then. The files are flushed to disk first, because lost values cannot be drawn
    again.
    """
    try:
        state, remaining = _state_of(run)
    except UNREADABLE:  # an unreadable run can still be abandoned
        return False
    if remaining:
        return False
    with run.record_stage(STAGES["measure"]):
        write_trace(run.path / "trace.parquet", run.measurements.measurement_plan.trace(state))
        remove_partial(run.measurements_path)
        for folder in (run.measurements_path, run.path):
            flush_names(folder)
        _destroy_key(run)
    return True


def _state_of(run: Run) -> tuple[Any, bool]:
    """Return the last state of the measurements, and whether any measurement remains."""
    measurements = run.measurements
    state, pending = measurements.replay()
    return state, pending is not None or measurements.measurement_plan.next_selection(state) is not None


SECRET = "secret.key"


class Directory(Protocol):
    """Run directory of one table or of several."""

    path: Path
    created: str

    @property
    def manifest(self) -> dict[str, Any]: ...
    def locked(self) -> AbstractContextManager[None]: ...


LedgerEntry = Callable[[Any], Any]


@contextmanager
def remove_on_error(run: Directory, charged: LedgerEntry = ledger_entry) -> Iterator[None]:
    """Remove a newly created run directory if the block raises a DpscaleError.

    Nothing is removed after a TransientError, because the same command resumes the run, or if the release was charged;
    `charged` returns the ledger entry of a run.
    """
    try:
        yield
    except TransientError:  # the same command resumes the run
        raise
    except DpscaleError:
        if run.created and is_local(run.path):
            with suppress(DpscaleError, OSError):
                _remove_directory(run, charged)
        raise


def _remove_directory(run: Directory, charged: LedgerEntry) -> None:
    """Remove the content of a run directory unless the ledger contains the run or another process works in it."""
    with run.locked():
        if run.manifest["privacy"] is not None or charged(run) is not None:
            return
        for secret in run.path.rglob(SECRET):
            destroy_secret(secret)
        for path in run.path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if run.created == "folder":
        run.path.rmdir()
        if run.path.parent.name == "runs":
            run.path.parent.rmdir()  # fails if there are other runs


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


def check_frame(run: Run, client: Client | None = None, scheduler: str | None = None) -> None:
    """Raise DataError unless the data frame of a call is the one that a measured run read.

    The frame is read once for its hash (`runs.manifest.frame_tag`).
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


def _tag_of(run: Run, client: Client | None, scheduler: str | None) -> dict[str, str] | None:
    engine = resolve(client, scheduler or run.job.engine.scheduler)
    try:
        table = open_table(run, columns_of(run.domain, run.measurement_plan.counted_sets), engine)
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
