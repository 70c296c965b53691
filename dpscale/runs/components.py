"""Stages of a run of several components, and the component of a private table.

Every stage visits each component after those it depends on. The measure stage also estimates and samples each table,
because links are measured between synthetic rows.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from dpscale.base.errors import ReportError
from dpscale.engine import Engine
from dpscale.job.key_columns import pair_links
from dpscale.job.table_sizes import required_links
from dpscale.privacy.accounting import Cost
from dpscale.runs.composite import INDEX, CompositeRun
from dpscale.runs.directory import UNREADABLE
from dpscale.runs.joint_parts import JointPart
from dpscale.runs.links.measuring import check_tables_have_rows, check_unchanged, close_all, current_stamps, read_all
from dpscale.runs.links.public_tables import check_public
from dpscale.runs.links.report import write_report
from dpscale.runs.links.table_profiles import remove_profiles
from dpscale.runs.links.table_writer import write_tables
from dpscale.runs.row_limits import record_limits
from dpscale.runs.stages.budget import SEARCHES, UNITS, ensure_noise_key
from dpscale.runs.stages.plan import check_numbers
from dpscale.runs.stages.preflight import check_unit_memory
from dpscale.runs.stages.runner import run_requested
from dpscale.runs.stages.units import counters
from dpscale.runs.table import TableRun
from dpscale.storage.files import flush_names, remove_partial, write_whole

RELEASED = ("measure", "reconstruct", "synthesize")  # stages of a table whose output other components read


class RunComponent:
    """Base of the components of tables and of joins: each has a run, which draws under the common charge."""

    @property
    def run(self) -> TableRun:
        """Run of the table or of the join."""
        raise NotImplementedError

    @property
    def plan_digest(self) -> str:
        return self.run.measurement_plan.digest

    def plan(self, engine: Engine) -> None:
        run_requested(self.run, engine, "plan")

    def check(self, engine: Engine) -> None:
        """Do nothing: the run counts and checks its records before the charge."""

    def close(self) -> None:
        """Do nothing: the run reads its records in its own stages."""

    def reconstruct(self, engine: Engine) -> None:
        run_requested(self.run, engine, "reconstruct")

    def report(self, engine: Engine) -> None:
        run_requested(self.run, engine, "report")


@dataclass(frozen=True, eq=False)
class TableComponent(RunComponent):
    """Component of a private table.

    Attributes
    ----------
    name : str
    whole : CompositeRun
    table : str
    depends_on : tuple of str
        The private parents of the rows, whose sampled rows limit their number.
    """

    name: str
    whole: CompositeRun
    table: str
    depends_on: tuple[str, ...] = ()

    @property
    def run(self) -> TableRun:
        """Run of the table."""
        return self.whole.tables[self.table]

    @property
    def cost(self) -> Cost:
        """Cost to a unit of the job, whose neighbours are some steps of the table's run apart."""
        return self.run.measurement_plan.cost.for_group(self.whole.neighbours.steps[self.table])

    def measure(self, engine: Engine) -> None:
        for table in self.whole.tables.values():  # the sizes of all tables are decided together
            for stage in RELEASED[:-1]:
                run_requested(table, engine, stage)
        record_limits(self.whole, self.table)
        run_requested(self.run, engine, RELEASED[-1])

    def is_measured(self) -> bool:
        return all(self.run.done(stage) for stage in RELEASED)

    def synthesize(self, engine: Engine) -> dict[str, Any]:
        run_requested(self.run, engine, "synthesize")
        return {}


def table_components(run: CompositeRun) -> list[TableComponent]:
    """Return the components of the private tables, each after the parents of its rows."""
    found = []
    for name in run.tables:
        limiting = [*required_links(run.job, name), *pair_links(run.job, name)]
        links = [link for link in limiting if link.parent in run.tables and link.parent != name]
        parents = dict.fromkeys(f"tables.{link.parent}" for link in links)
        found.append(TableComponent(f"tables.{name}", run, name, tuple(parents)))
    return found


def discover(run: CompositeRun, engine: Engine) -> None:
    """Find the cells of all tables that are not public."""
    run.divide_without_data()
    run.pin_versions()
    _draw_part(JointPart(run, SEARCHES), engine)


def units(run: CompositeRun, engine: Engine) -> None:
    """Count distinct units by cell, in all tables; their exact numbers wait for the charge together."""
    part = JointPart(run, UNITS)
    check_unit_memory(sum(map(counters, part.tables.values())), run.job.engine.bytes, engine.workers)
    _draw_part(part, engine)


def _draw_part(part: JointPart, engine: Engine) -> None:
    """Draw a part of every table under the common charge; all tables, keys and links are checked before it."""
    run = part.run
    assert isinstance(run, CompositeRun)
    part.assign()
    part.charge(reserve=False)
    stamps_before = current_stamps(run)
    if run.manifest.get(part.name) is None:
        for table in run.tables.values():
            check_numbers(table, engine)
        check_public(run.job)
        check_tables_have_rows(run, engine)
        # refuses keys and links; attributes whose cells are not known are left out
        close_all(read_all(run.closed_job, run.neighbours, engine))
    for table in part.tables.values():
        if not table.done(part.stage):
            table.prepared = part.prepare(table, engine)
    check_unchanged(run, stamps_before)
    for table in part.tables.values():
        run_requested(table, engine, part.stage)
    part.publish()


def plan(run: CompositeRun, engine: Engine) -> None:
    """Plan every component, which determines the total cost."""
    run.divide_without_data()
    run.pin_versions()
    for one in run.components().values():
        one.plan(engine)
    if not run.tables:  # links between public tables: the folder is the output of the stages
        write_whole(run.path / "tables" / INDEX, b"{}")
    run.assign_charges()


def measure(run: CompositeRun, engine: Engine) -> None:
    """Read the data, so that refused data cost nothing; then measure every component after those it depends on."""
    run.assign_charges()  # from the plans as they are read now, which are those that are drawn
    ensure_noise_key(run)
    run.charge(reserve=False)
    check_tables_have_rows(run, engine)
    components = run.components().values()
    with ExitStack() as ending:
        for one in components:
            ending.callback(one.close)
            one.check(engine)
        for one in components:
            one.measure(engine)
    remove_partial(run.path / "links")
    run.publish()


def finish(run: CompositeRun) -> bool:
    """Complete the measure stage if all noise is drawn, for example after a kill at the very end.

    Returns
    -------
    bool
        Whether all components are measured. Nothing is drawn.
    """
    try:
        if not all(one.is_measured() for one in run.components().values()):
            return False
    except UNREADABLE:
        return False
    with run.record_stage(run.stages["measure"]):
        remove_partial(run.path / "links")
        for folder in run.drawn_folders:
            flush_names(folder)
        run.destroy_key()
    return True


def publish_finished(run: CompositeRun) -> None:
    """Publish a release whose noise is drawn."""
    run.publish()


def reconstruct(run: CompositeRun, engine: Engine) -> None:
    """Write the answers of every component."""
    for one in run.components().values():
        one.reconstruct(engine)


def synthesize(run: CompositeRun, engine: Engine) -> None:
    """Sample the rows of every component, then write every table with its keys."""
    links: dict[str, Any] = {}
    for one in run.components().values():
        links |= one.synthesize(engine)
    write_tables(run, links, engine)
    remove_profiles(run)


def report(run: CompositeRun, engine: Engine) -> None:
    """Write the reports of the components and of the job; if sections fail, the others are written first."""
    failures = list[ReportError]()
    for one in run.components().values():
        try:
            one.report(engine)
        except ReportError as error:
            failures.append(error)
    write_report(run)
    if failures:
        raise failures[0]
