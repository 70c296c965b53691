"""Stages of a run of several tables: each runs the stage of every table, and its own part for the links.

The measure stage also estimates and samples each table, because links are measured between synthetic rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpscale.base.errors import ReportError
from dpscale.engine import Engine
from dpscale.runs.directory import UNREADABLE
from dpscale.runs.links import budget
from dpscale.runs.links.link_data import ExactLinks
from dpscale.runs.links.link_sampling import LinkSides
from dpscale.runs.links.measuring import check_unchanged, current_stamps, measure_link, read_all, snapshot_of
from dpscale.runs.links.report import write_report
from dpscale.runs.links.run import MultiTableRun
from dpscale.runs.links.writer import check_public, write_tables
from dpscale.runs.stages.budget import ensure_noise_key
from dpscale.runs.stages.runner import run_requested
from dpscale.storage.files import flush_names, present, remove_partial


def plan(run: MultiTableRun, engine: Engine) -> None:
    """Plan every table, which determines the total cost."""
    run.pin_versions()
    _run_tables(run, engine, "plan")
    budget.assign_charges(run)


def measure(run: MultiTableRun, engine: Engine) -> None:
    """Read the links, so that refused keys cost nothing; then release the tables, and measure the links."""
    budget.assign_charges(run)  # from the plans as they are read now, which are those that are drawn
    ensure_noise_key(run)
    budget.charge_run(run, reserve=False)
    exact = _read_links(run, engine)
    for stage in ("measure", "reconstruct", "synthesize"):
        _run_tables(run, engine, stage)
    _measure_links(run, exact)
    remove_partial(run.path / "links")
    budget.publish_run(run)


def _measure_links(run: MultiTableRun, exact: Mapping[str, ExactLinks]) -> None:
    sides = LinkSides(run)
    for number, link in enumerate(run.job.link):
        sides.known(link, measure_link(run, link, number, sides.of(link), exact.get(link.called)))


def finish(run: MultiTableRun) -> bool:
    """Complete the measure stage if all noise is drawn, for example after a kill at the very end.

    Returns
    -------
    bool
        Whether all tables and links are measured. Nothing is drawn.
    """
    needed = ("measure", "reconstruct", "synthesize")
    try:
        if not all(table.done(stage) for table in run.tables.values() for stage in needed):
            return False
        _measure_links(run, {})  # reads stored values only
    except UNREADABLE:
        return False
    with run.record_stage(run.stages["measure"]):
        remove_partial(run.path / "links")
        for folder in budget.drawn_folders(run):
            flush_names(folder)
        run.destroy_key()
    return True


def publish_finished(run: MultiTableRun) -> None:
    """Publish a release whose noise is drawn."""
    budget.publish_run(run)


def _read_links(run: MultiTableRun, engine: Engine) -> dict[str, ExactLinks]:
    if not run.job.link or not present(run.secret_path):
        return {}  # all noise was drawn before the secret was destroyed
    stamps_before = current_stamps(run)
    snapshot_of(run, engine)
    check_public(run.job)
    found = read_all(run, engine)
    check_unchanged(run, stamps_before)
    return found


def reconstruct(run: MultiTableRun, engine: Engine) -> None:
    """Write the answers of every table."""
    _run_tables(run, engine, "reconstruct")


def synthesize(run: MultiTableRun, engine: Engine) -> None:
    """Sample the links between rows, then write every table with its keys."""
    _run_tables(run, engine, "synthesize")
    sides, pairs = LinkSides(run), {}
    for number, link in enumerate(run.job.link):
        found = measure_link(run, link, number, sides.of(link), None)
        pairs[link.called] = sides.known(link, found, True)
    write_tables(run, {name: one for name, (_, one) in sides.public.items()}, pairs)


def report(run: MultiTableRun, engine: Engine) -> None:
    """Write the reports of the tables and of the job; if sections fail, the others are written first."""
    failures = list[ReportError]()
    for table in run.tables.values():
        try:
            run_requested(table, engine, "report")
        except ReportError as error:
            failures.append(error)
    write_report(run)
    if failures:
        raise failures[0]


def _run_tables(run: MultiTableRun, engine: Engine, stage: str) -> None:
    for table in run.tables.values():
        run_requested(table, engine, stage)
