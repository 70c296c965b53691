"""All stages of a run of several tables: plan, links read, tables, links measured, rows and links drawn, report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpscale.base.discreet import discreetly
from dpscale.base.errors import ReportError
from dpscale.engine import Engine, resolve
from dpscale.engine.schedulers import Progress, silent
from dpscale.ledger.place import check_ledger_place, standing
from dpscale.multitable import charging
from dpscale.multitable.ending import check_open
from dpscale.multitable.linking import ExactLinks
from dpscale.multitable.measuring import measure_link
from dpscale.multitable.reading import check_repeat, check_unchanged, read_all, snapshot_of, stamped
from dpscale.multitable.report import write_report
from dpscale.multitable.run import DatabaseRun
from dpscale.multitable.seen import Sides
from dpscale.multitable.writing import check_public, write_tables
from dpscale.runs.hashes import disk_errors
from dpscale.runs.stages.running import run_stages
from dpscale.storage.files import present, remove_partial


def run_database(
    run: DatabaseRun,
    client: Any = None,
    scheduler: str | None = None,
    progress: Progress = silent,
    last: str = "report",
) -> None:
    """Perform the stages that are left, up to `last`."""
    check_ledger_place(standing(run.job.privacy.ledger))
    with disk_errors(run.path), run.locked():
        check_open(run)
        run.hold_versions()
        check_repeat(run)
        stages = _Stages(run, client, scheduler or run.job.engine.scheduler, progress)
        names = ("plan", "measure", "synthesize", "report")
        for name in names[: names.index(last) + 1]:
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
        for stage in ("measure", "reconstruct", "synthesize"):
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
        sides = Sides(self.run)
        for number, link in enumerate(self.run.job.link):
            sides.known(link, measure_link(self.run, link, number, sides.of(link), exact.get(link.called)))

    def synthesize(self) -> None:
        """Links between rows, then every table with its keys."""
        sides, pairs = Sides(self.run), {}
        for number, link in enumerate(self.run.job.link):
            found = measure_link(self.run, link, number, sides.of(link), None)
            pairs[link.called] = sides.known(link, found, True)
        write_tables(self.run, {name: one for name, (_, one) in sides.public.items()}, pairs)

    def report(self) -> None:
        """Every table's report and that of all; where a section of one fails, the others are written first."""
        failures = list[ReportError]()
        for table in self.run.tables.values():
            try:
                run_stages(table, self.client, self.scheduler, self.progress, "report")
            except ReportError as error:
                failures.append(error)
        write_report(self.run)
        if failures:
            raise failures[0]
