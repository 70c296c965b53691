"""Stages of a run over its parts, each after those that it depends on.

    discover -> plan -> units -> measure -> reconstruct -> synthesize -> report

A stage calls the same function of every part, and never asks what kind a part is. A part that is the only table has its
files and states in the run directory itself; the others have a folder each.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from dpscale.base.errors import ReportError
from dpscale.runs.charge import SEARCHES, UNITS, charge, check_unchanged, flush_drawn, publish, publish_entry
from dpscale.runs.preflight import check_unit_memory
from dpscale.runs.run import UNREADABLE, Run
from dpscale.runs.stages.units import counters
from dpscale.runs.table import TablePart

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

ENTRY_OF = {"discover": SEARCHES, "units": UNITS}  # stages of tables with an entry of their own on the ledger


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

    ENTRY_OF maps a stage to its charge on the ledger. `prepared` has what a table's stage read before the charge; files
    that changed since are refused.
    """
    run.content.begin()
    entry, tables = ENTRY_OF[stage], _tables_with(run, stage)
    charge(run, entry, reserve=False)
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
