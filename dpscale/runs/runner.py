"""Execution of stages in order, each once and on the output of earlier ones; repetition and end of a run.

    discover -> plan -> units -> measure -> reconstruct -> synthesize -> report

A stage visits the parts of the run, each after those that it depends on. It calls the same function of every part, and
never asks what kind a part is. A part that is the only table has its files and states in the run directory itself; the
others have a folder each. If a job is repeated, a measured run reads and spends nothing, and answers from other data
are refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from dpscale.base.arrow import text_kind
from dpscale.base.error_redaction import discreetly
from dpscale.base.errors import BudgetError, DataError, DpscaleError, JobError, ReportError, TransientError
from dpscale.contributions.unit_ids import BEFORE_BYTES, RULE
from dpscale.domain import Domain
from dpscale.engine.schedulers import Engine, Progress, resolve, silent
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.ledger.location import check_ledger_place, standing
from dpscale.privacy.secret import destroy_secret
from dpscale.records.frames import FRAME
from dpscale.records.table import Table
from dpscale.runs.charge import (
    ALLOCATION,
    SEARCHES,
    UNITS,
    charge,
    check_ledger_exists,
    check_ledger_link,
    check_unchanged,
    flush_drawn,
    publish,
    publish_entry,
    release_of_entry,
)
from dpscale.runs.manifest import check_output, disk_errors, frame_tag
from dpscale.runs.preflight import check_unit_memory
from dpscale.runs.run import (
    ABANDONED,
    DRIVER_STATUS,
    ENTRIES,
    FINISHED,
    STOP_REQUEST,
    UNREADABLE,
    Run,
    now,
)
from dpscale.runs.source import Comparison, compare_files, frame_content
from dpscale.runs.stage import Stage
from dpscale.runs.stages.units import counters
from dpscale.runs.table import TablePart
from dpscale.storage.files import is_local, remove, remove_partial, store_errors

if TYPE_CHECKING:
    from distributed import Client

Finished = Mapping[str, Mapping[str, Any]]

ENTRY_OF = {"discover": SEARCHES, "units": UNITS}  # stages of tables with an entry of their own on the ledger


def run_stages(
    run: Run,
    client: Client | None = None,
    scheduler: str | Client | None = None,
    progress: Progress = silent,
    only: str | None = None,
) -> None:
    """Run all requested stages in order, or only one."""
    if any(stage.spends and not run.done(stage.name) for stage in _requested(run, only)):
        check_ledger_place(standing(run.job.privacy.ledger))
    engine = resolve(client, scheduler or run.job.engine.scheduler, progress)
    try:
        engine.report_performance()
        run_requested(run, engine, only)
    finally:
        engine.close()


def run_requested(run: Run, engine: Engine, only: str | None = None) -> None:
    """Run all requested stages in order, or only one, on an engine; the directory is locked meanwhile."""
    with disk_errors(run.path), store_errors(run.path), run.locked():
        remove_partial(run.path, spared=(DRIVER_STATUS, STOP_REQUEST))
        finished = {name: entry for name, entry in run.manifest["stages"].items() if run.done(name)}
        for stage in _requested(run, only):
            run_stage(stage, run, engine, finished)


def _requested(run: Run, only: str | None) -> list[Stage]:
    return [stage for stage in run.stages.values() if (stage.is_enabled(run) if only is None else only == stage.name)]


def run_stage(stage: Stage, run: Run, engine: Engine, finished: Finished | None = None) -> None:
    """Run one stage unless it is finished.

    `finished` contains the manifest entries of the stages that were finished before this process began.
    """
    if not run.done(stage.name):
        run.check_open(stage.name)
    for name in stage.needed(run):
        run.require(name)
    if run.done(stage.name):
        return
    for name in stage.needed(run):
        check_output(run.path, name, (finished or {}).get(name, {}), engine.each("check"))
    with run.record_stage(stage, engine.each("hash")):
        if stage.spends:  # stages that spend read records: report only the type of an error, never its text
            _check_id_rule(run)
            discreetly(f"stage {stage.name}", _perform, stage, run, engine)
        else:
            stage.perform(run, engine)


def _check_id_rule(run: Run) -> None:
    """Raise JobError if the run began under another rule for the ids of units or keys, which bounds other rows.

    The rule BEFORE_BYTES differs from the current one, RULE, only for ids that are bytes.
    """
    uses_ids = bool(run.job.link) or any(table.key or table.privacy_unit for table in run.job.tables.values())
    rule = run.manifest.get("ids")
    if uses_ids and rule != RULE and not (rule == BEFORE_BYTES and not _has_ids_of_bytes(run.job)):
        raise JobError("run directory", f"{run.path} began under an earlier rule for ids of units and keys",
                       "a run of this version", "resume it with the version of dpscale that its manifest.json names, or"
                       " end it")  # fmt: skip


def _has_ids_of_bytes(job: Job) -> bool:
    """Return whether ids or keys of a job are bytes, by the headers of the files, or may be bytes in a data frame."""
    domain = Domain({"ids": 2})  # no attribute is read
    for files, columns in job.id_columns:
        if columns and not isinstance(files, str) and files.path == FRAME:
            return True
        if not columns:
            continue
        table = Table.open(files, domain) if isinstance(files, str) else files.origin.table(files.path, domain)
        first_of_file = {partition.path: partition for partition in table.partitions}
        kinds = [kind for partition in first_of_file.values() for kind in partition.kinds(columns).values()]
        if any(text_kind(kind) != kind for kind in kinds):  # only a kind of bytes has another kind as text
            return True
    return False


def _perform(stage: Stage, run: Run, engine: Engine) -> None:
    """Run the stage; errors of a disk or a store may be reported in full."""
    with disk_errors(run.path), store_errors(run.path):
        stage.perform(run, engine)


def end(run: Run) -> dict[str, Any]:
    """End a run and return how it ended and what it spent; a repeated call changes nothing.

    The manifest is updated first: if the process is killed afterwards, the next `end` destroys the noise key, and no
    stage continues. Raises TransientError while another process works in the directory.
    """
    with disk_errors(run.path), store_errors(run.path), run.locked():
        if run.ended is None:
            whole = run.done("measure") or finish(run)
            run.update(ended={"how": FINISHED if whole else ABANDONED, "at": now()})
        remove_partial(run.path)
        for part in run.parts.values():
            part.destroy_keys()
        run.destroy_key()
        return {"run_dir": str(run.path), **(run.ended or {}), **_spent(run)}


def _spent(run: Run) -> dict[str, Any]:
    """Return the charge of the run from the ledger, or from the manifest if the ledger is not readable here.

    A finished run is published first if it is not yet.
    """
    try:
        entry = ledger_entry(run)
        if run.ended and run.ended["how"] == FINISHED and (entry is None or entry["state"] != "released"):
            publish(run)
            entry = ledger_entry(run)
        others = {"searches": release_of_entry(run, SEARCHES), "units": release_of_entry(run, UNITS),
                  "allocation": release_of_entry(run, ALLOCATION)}  # fmt: skip
        found = {name: one for name, release in others.items() if (one := ledger_entry(run, release))}
        return {"charged": entry, **found}
    except (BudgetError, *UNREADABLE) as error:
        return {"charged": run.manifest["privacy"], "ledger": str(error)}


def ledger_entry(run: Run, release: str | None = None) -> dict[str, Any] | None:
    """Return the state and cost of a release on the ledger, by default the run's; None if it was never charged."""
    dataset, release = ledger_dataset(run), release or run.manifest["release"]
    return next((row for row in dataset.get("releases", ()) if row["release"] == release), None)


def _releases(run: Run) -> list[str]:
    """Return the release ids on the ledger that a run may have."""
    return [release_of_entry(run, entry) for entry in ENTRIES]


def ledger_dataset(run: Run, chained: bool = False) -> dict[str, Any]:
    """Return the ledger's summary of the run's dataset, with the links of its hash chain if `chained`.

    With `chained`, a ledger of a version without chains is upgraded. The summary is empty if the run never opened a
    ledger, or if no dataset of the ledger has its releases.
    """
    manifest = run.manifest
    recorded = manifest.get("ledger")  # name of the ledger that the run opened first
    if recorded is None and manifest["privacy"] is None:
        return {}
    check_ledger_exists(run)
    with Ledger.open(standing(run.job.privacy.ledger), create=False) as ledger:
        if recorded not in (None, ledger.name):  # older runs did not record its name
            raise BudgetError("privacy.ledger", f"{ledger.path} is not the ledger with which this run started",
                              "the ledger of the run, on its machine", "run the command there")  # fmt: skip
        check_ledger_link(run, ledger)
        if chained:
            ledger.link_entries()
        datasets: dict[str, dict[str, Any]] = ledger.summary()["datasets"]
        releases = _releases(run)
        containing = ((name, summary) for name, summary in datasets.items()
                      if any(row["release"] in releases for row in summary["releases"]))  # fmt: skip
        name, summary_of_run = next(containing, ("", {}))
        return summary_of_run | {"chain": ledger.chain(name)} if chained and summary_of_run else summary_of_run


SECRET = "secret.key"


@contextmanager
def remove_on_error(run: Run) -> Iterator[None]:
    """Remove a newly created run directory if the block raises a DpscaleError.

    Nothing is removed after a TransientError, because the same command resumes the run, or if the release was charged.
    """
    try:
        yield
    except TransientError:  # the same command resumes the run
        raise
    except DpscaleError:
        if run.created and is_local(run.path):
            with suppress(DpscaleError, OSError):
                remove_run(run)
        raise


def remove_run(run: Run) -> None:
    """Remove the content of a run directory unless the ledger contains the run or another process works in it."""
    with run.locked():
        if run.manifest["privacy"] is not None or any(ledger_entry(run, name) for name in _releases(run)):
            return
        for secret in run.path.rglob(SECRET):
            destroy_secret(secret)
        for path in run.path.iterdir():
            shutil.rmtree(path) if path.is_dir() else remove(path)
    if run.created == "folder":
        run.path.rmdir()
        if run.path.parent.name == "runs":
            run.path.parent.rmdir()  # fails if there are other runs


def check_repeat(run: Run) -> str | None:
    """Return the status of a measured run; None if it is not measured. Raises DataError if its data changed."""
    if not run.done("measure"):
        return None
    when, done = _date(run), all(run.done(stage.name) for stage in run.stages.values() if stage.is_enabled(run))
    status = f"{'done' if done else 'measured'} on {when}"
    changes = run.content.changed_data()
    if not changes:
        return f"{status}, nothing read, nothing spent"

    # all files of the run are compared together; a refusal names the first setting whose files changed
    field, changed = next(iter(changes)), list(dict.fromkeys(chain.from_iterable(changes.values())))
    comparison = _comparison(run, changed)
    if comparison.same:
        return f"{status}, the files have the same content, nothing spent"

    if comparison.known:
        resume = "" if done else f", `dpscale run {run.path} --only reconstruct` resumes the old one"
        raise DataError(field, f"{status} from other data ({comparison.text}); nothing spent",
                        "the files as they were", f"--fresh starts a new release{resume}")  # fmt: skip
    raise DataError(field, f"{status} from files that cannot be compared with these, whose {', '.join(changed)}"
                    f" differ{'s' * (len(changed) == 1)}: {comparison.text}; nothing spent",
                    "the files as they were",
                    f"open the existing release, {run.path}, or compare as the user who measured it")  # fmt: skip


def _comparison(run: Run, changed: Sequence[str]) -> Comparison:
    """Return how the files differ from those that the run has read.

    `changed` are the properties that differ: size, time, number or version. Another version of a table is other data.
    Files are compared by their contents; if these cannot be compared, another size or number shows other data too.
    """
    differ = f"{', '.join(changed)} differ{'s' * (len(changed) == 1)}"
    if "version" in changed:
        return Comparison(differ)
    by_content = compare_files(run)
    certain = not by_content.known and {"size", "number"} & set(changed)
    return Comparison(differ) if certain else by_content


def check_frame(run: TablePart, client: Client | None = None, scheduler: str | None = None) -> None:
    """Raise DataError unless the data frame of a call is the one that a measured run read.

    The frame is read once for its hash (`runs.manifest.frame_tag`).
    """
    if run.frame is None or not run.done("measure"):
        return
    recorded = run.manifest.get("frame")
    tag = _tag_of(run, client, scheduler) if recorded and run.job.data.path == FRAME else None
    if tag is not None and tag == recorded:
        return

    # tags under different keys say nothing about the records
    comparable = bool(tag and recorded and tag["key"] == recorded["key"])
    got = f"a frame whose records, or their order, differ from those measured on {_date(run)}"
    if not comparable:
        problem = _comparison_problem(run, tag)
        got = f"a frame that cannot be compared with the one measured on {_date(run)}: {problem}"
    raise DataError("data", got, "the frame that the run measured",
                    f"open the existing release with Release.open({str(run.path)!r}), or start a new one, which is "
                    "charged, with fresh=True")  # fmt: skip


def _tag_of(run: TablePart, client: Client | None, scheduler: str | None) -> dict[str, str] | None:
    """Return the keyed tag of the content of the run's data frame, which is read; None if this user has no key."""
    engine = resolve(client, scheduler or run.job.engine.scheduler)
    try:
        return frame_tag(run.manifest["release"], frame_content(run, engine))
    finally:
        engine.close()


def _comparison_problem(run: TablePart, found: dict[str, str] | None) -> str:
    """Return why the frame of a call, with the tag `found`, cannot be compared with the one that the run read."""
    if run.job.data.path != FRAME:
        return "the run read files"
    if not run.manifest.get("frame"):
        return "the run has no fingerprint of it"
    if found is None:
        return "the key of its fingerprint is not in the state folder of this user"
    return "its fingerprint was computed with another key"


def _date(run: Run | TablePart) -> str:
    return str(run.manifest["stages"]["measure"]["end"])[:10]


def discover(run: Run, engine: Engine) -> None:
    """Find the cells of all tables that are not public."""
    _draw_entry(run, "discover", engine)


def units(run: Run, engine: Engine) -> None:
    """Count distinct units by cell, in all tables; their exact numbers wait for the charge together."""
    tables = _tables_with(run, "units")
    check_unit_memory(sum(map(counters, tables)), run.job.engine.bytes, engine.workers)
    _draw_entry(run, "units", engine)


def _tables_with(run: Run, stage: str) -> list[TablePart]:
    return [table for table in run.tables.values() if table.stages[stage].is_enabled(table)]


def _draw_entry(run: Run, stage: str, engine: Engine) -> None:
    """Draw a stage of every table under its entry of the ledger; all data are checked before the charge.

    `prepared` has what a table's stage read before the charge; files that changed since are refused.
    """
    run.content.begin()
    entry, tables = ENTRY_OF[stage], _tables_with(run, stage)
    charge(run, entry, reserve=False)  # a job that the ledger refuses reads no data
    before = run.content.file_stamps()
    if run.manifest.get(entry) is None:
        for part in run.parts.values():
            part.check_data(engine)
    for table in tables:
        if not table.folder or not table.done(stage):
            table.prepared = table.stages[stage].function("prepare")(table, engine)
    check_unchanged(run, before)

    charge(run, entry)
    for table in tables:
        table.perform(stage, engine)
    publish_entry(run, entry)


def plan(run: Run, engine: Engine) -> None:
    """Plan every part, which determines the total cost."""
    run.content.begin()
    for part in run.parts.values():
        part.plan(engine)


def measure(run: Run, engine: Engine) -> None:
    """Read the data, so that refused data cost nothing; then measure every part after those it depends on."""
    parts = list(run.parts.values())
    with ExitStack() as ending:
        for part in parts:
            part.begin(engine)
        for part in parts:
            ending.callback(part.close)
            part.check(engine)
        for part in parts:
            part.measure(engine)
    if run.content.is_complete:
        publish(run)


def finish(run: Run) -> bool:
    """Complete the measure stage if all noise is drawn, for example after a kill at the very end.

    The noise key is no longer needed then. Folders are flushed first, because lost values cannot be drawn again.

    Returns
    -------
    bool
        Whether all parts are measured. Nothing is drawn.
    """
    try:
        if not all(part.is_measured() for part in run.parts.values()):
            return False
    except UNREADABLE:  # an unreadable run can still be abandoned
        return False
    with run.record_stage(run.stages["measure"]):
        flush_drawn(run)
        run.destroy_key()
    return True


def reconstruct(run: Run, engine: Engine) -> None:
    """Write the answers of every part."""
    for part in run.parts.values():
        part.reconstruct(engine)


def synthesize(run: Run, engine: Engine) -> None:
    """Sample the rows of every part."""
    for part in run.parts.values():
        part.synthesize(engine)


def report(run: Run, engine: Engine) -> None:
    """Write the report of every part; if sections fail, the others are written first.

    The first ReportError is raised at the end.
    """
    failures = list[ReportError]()
    for part in run.parts.values():
        try:
            part.report(engine)
        except ReportError as error:
            failures.append(error)
    if failures:
        raise failures[0]
