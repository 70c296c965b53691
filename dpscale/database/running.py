"""All stages of a run of several tables: plan, links read, tables, links measured, rows and links drawn, report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpscale.database import charging
from dpscale.database.drawing import drawn_links, synthetic_codes
from dpscale.database.job import LinkSection
from dpscale.database.linking import ExactLinks
from dpscale.database.measuring import MeasuredLinks, measure_link
from dpscale.database.reading import check_unchanged, read_all, snapshot_of, stamped
from dpscale.database.report import write_report
from dpscale.database.run import DatabaseRun
from dpscale.database.writing import check_public, public_table, write_tables
from dpscale.discreet import discreetly
from dpscale.engine import Engine, resolve
from dpscale.engine.schedulers import Progress, silent
from dpscale.ledger.place import check_ledger_place
from dpscale.relational.sides import Side
from dpscale.runs.hashes import disk_errors
from dpscale.stages.running import run_stages
from dpscale.storage.files import present, remove_partial


def run_database(
    run: DatabaseRun, client: Any = None, scheduler: str | None = None, progress: Progress = silent
) -> None:
    """All stages that are left."""
    check_ledger_place(run.job.privacy.ledger)
    with disk_errors(run.path), run.locked():
        stages = _Stages(run, client, scheduler or run.job.engine.scheduler, progress)
        for name in ("plan", "measure", "synthesize", "report"):
            if not run.done(name):
                with run.during(name):
                    getattr(stages, name)()


@dataclass(frozen=True, eq=False)
class _Stages:
    run: DatabaseRun
    client: Any
    scheduler: str | None
    progress: Progress

    def _tables(self, only: str) -> None:
        for table in self.run.tables.values():
            run_stages(table, self.client, self.scheduler, self.progress, only)

    def _with_engine(self, function: Any) -> Any:
        engine = resolve(self.client, self.scheduler, self.progress)
        try:
            return discreetly("stage measure", function, engine)
        finally:
            engine.close()

    def plan(self) -> None:
        """Every table's plan; what all of it costs is known then."""
        self._tables("plan")
        charging.hand_over(self.run)

    def measure(self) -> None:
        """Links are read first, so that nothing is spent on keys that are refused; tables before links are drawn."""
        charging.hold_secret(self.run)
        charging.charge(self.run, reserve=False)
        exact = self._with_engine(self._read)
        for stage in ("measure", "reconstruct", "synthesize", "report"):
            self._tables(stage)
        self._with_engine(lambda engine: self._draw(exact))
        remove_partial(self.run.path / "links")
        charging.publish(self.run, charging.charge(self.run))

    def _read(self, engine: Engine) -> dict[str, ExactLinks]:
        if not self.run.job.link or not present(self.run.secret_path):  # all was drawn before the secret was destroyed
            return {}
        seen = stamped(self.run)
        snapshot_of(self.run, engine)
        check_public(self.run.job)
        found = read_all(self.run, engine)
        check_unchanged(self.run, seen)
        return found

    def _draw(self, exact: dict[str, ExactLinks]) -> None:
        sides = _Sides(self.run)
        for number, link in enumerate(self.run.job.link):
            measured(self.run, link, number, sides, exact.get(link.called))

    def synthesize(self) -> None:
        """Links between rows, then every table with its keys."""
        sides, pairs = _Sides(self.run), {}
        for number, link in enumerate(self.run.job.link):
            found = measured(self.run, link, number, sides, None)
            pairs[link.called] = drawn_links(self.run, link, sides.of(link), found)
        write_tables(self.run, {name: one for name, (_, one) in sides.public.items()}, pairs)

    def report(self) -> None:
        write_report(self.run)


def measured(
    run: DatabaseRun, link: LinkSection, number: int, sides: _Sides, exact: ExactLinks | None
) -> MeasuredLinks:
    return measure_link(run, link, number, sides.of(link), exact)


@dataclass(eq=False)
class _Sides:
    """The tables as links see them: public ones as they are, the others as they were synthesised."""

    run: DatabaseRun

    def __post_init__(self) -> None:
        tables, job = self.run.tables, self.run.job
        self.public = {
            name: public_table(job.tables[name].path, one) for name, one in job.domains.items() if name not in tables
        }
        self.codes = {name: codes for name, (codes, _) in self.public.items()}
        self.codes |= {name: synthetic_codes(table) for name, table in tables.items()}

    def side(self, name: str) -> Side:
        domain = self.run.job.domains[name]
        return Side.made(self.codes[name], [domain[one].size for one in domain.names])

    def of(self, link: LinkSection) -> tuple[Side, Side]:
        return self.side(link.parent), self.side(link.child)
