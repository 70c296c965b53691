"""Stages of a multi-table run: plan; reading of links, release of tables, measurement of links; synthesis; report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dpscale.base.error_redaction import discreetly
from dpscale.base.errors import BudgetError, JobError, ReportError
from dpscale.engine import Engine, resolve
from dpscale.engine.schedulers import Progress, silent
from dpscale.ledger.location import check_ledger_place, standing
from dpscale.multitable import budget
from dpscale.multitable.link_data import ExactLinks
from dpscale.multitable.link_sampling import LinkSides
from dpscale.multitable.measuring import (
    check_repeat,
    check_unchanged,
    current_stamps,
    measure_link,
    read_all,
    snapshot_of,
)
from dpscale.multitable.report import write_report
from dpscale.multitable.run import DatabaseRun
from dpscale.multitable.writer import check_public, write_tables
from dpscale.privacy.secret import destroy_secret
from dpscale.runs.manifest import disk_errors
from dpscale.runs.run import ABANDONED, FINISHED, Run, now
from dpscale.runs.stages import runner
from dpscale.runs.stages.budget import open_ledger
from dpscale.runs.stages.runner import run_stages
from dpscale.storage.files import present, remove_partial

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")


def end(run: DatabaseRun) -> dict[str, Any]:
    """End the run and return its state and the cost; repeating it changes nothing.

    The manifest is updated first: after a crash the next `end` destroys remaining secrets, and the run cannot be
    resumed.

    Raises
    ------
    TransientError
        If a process is working in the directory.
    """
    with disk_errors(run.path), run.locked():
        if run.manifest.get("ended") is None:
            how = FINISHED if run.done("measure") else ABANDONED
            run.update(ended={"how": how, "at": now()})
        for path in run.table_paths().values():
            runner.end(Run(path))
        remove_partial(run.path)
        for secret in (run.secret_path, run.secret_path.with_suffix(".partial")):
            destroy_secret(secret)
        if run.manifest["secret"] is not None:
            run.update(secret="destroyed")
        return {"run_dir": str(run.path), **run.manifest["ended"], **_spent(run)}


def check_open(run: DatabaseRun) -> None:
    """Raise JobError if the run was abandoned."""
    ended = run.manifest.get("ended")
    if ended and ended["how"] == ABANDONED:
        got = f"{run.path} was ended on {ended['at'][:10]}, before the measurement was complete"
        raise JobError("run directory", got, "a run that was not ended",
                       "start a new run, which is a new release, in another directory")  # fmt: skip


def charged(run: DatabaseRun) -> dict[str, Any] | None:
    """Return the release's entry on the ledger, or None; raise BudgetError if the ledger cannot be read."""
    if run.manifest.get("ledger") is None:
        return None
    with open_ledger(run) as ledger:
        datasets = ledger.summary()["datasets"].values()
    release = run.manifest["release"]
    return next((one for dataset in datasets for one in dataset["releases"] if one["release"] == release), None)


def _spent(run: DatabaseRun) -> dict[str, Any]:
    """Return the release's entry on the ledger; the manifest's copy if the ledger is not available."""
    try:
        return {"charged": charged(run)}
    except BudgetError as error:
        return {"charged": run.manifest["privacy"], "ledger": str(error)}


def run_database(
    run: DatabaseRun,
    client: Client | None = None,
    scheduler: str | None = None,
    progress: Progress = silent,
    last: str = "report",
) -> None:
    """Run the remaining stages up to `last`."""
    check_ledger_place(standing(run.job.privacy.ledger))
    with disk_errors(run.path), run.locked():
        check_open(run)
        run.pin_versions()
        check_repeat(run)
        stages = _Stages(run, client, scheduler or run.job.engine.scheduler, progress)
        names = ("plan", "measure", "synthesize", "report")
        for name in names[: names.index(last) + 1]:
            if not run.done(name):
                with run.record_stage(name):
                    getattr(stages, name)()


@dataclass(frozen=True, eq=False)
class _Stages:
    run: DatabaseRun
    client: Client | None
    scheduler: str | None
    progress: Progress

    def _tables(self, only: str) -> None:
        for table in self.run.tables.values():
            run_stages(table, self.client, self.scheduler, self.progress, only)

    def _with_engine(self, function: Callable[[Engine], T]) -> T:
        engine = resolve(self.client, self.scheduler, self.progress)
        try:
            return discreetly("stage measure", function, engine)
        finally:
            engine.close()

    def plan(self) -> None:
        """Plan every table, which determines the total cost."""
        self._tables("plan")
        budget.assign_charges(self.run)

    def measure(self) -> None:
        """Read the links, so that refused keys cost nothing; then release the tables, and measure the links."""
        budget.ensure_noise_key(self.run)
        budget.charge(self.run, reserve=False)
        exact = self._with_engine(self._read)
        for stage in ("measure", "reconstruct", "synthesize"):
            self._tables(stage)
        self._with_engine(lambda engine: self._draw(exact))
        remove_partial(self.run.path / "links")
        budget.publish(self.run, budget.charge(self.run))

    def _read(self, engine: Engine) -> dict[str, ExactLinks]:
        if not self.run.job.link or not present(self.run.secret_path):
            return {}  # all noise was drawn before the secret was destroyed
        stamps_before = current_stamps(self.run)
        snapshot_of(self.run, engine)
        check_public(self.run.job)
        found = read_all(self.run, engine)
        check_unchanged(self.run, stamps_before)
        return found

    def _draw(self, exact: dict[str, ExactLinks]) -> None:
        sides = LinkSides(self.run)
        for number, link in enumerate(self.run.job.link):
            sides.known(link, measure_link(self.run, link, number, sides.of(link), exact.get(link.called)))

    def synthesize(self) -> None:
        """Sample the links between rows, then write every table with its keys."""
        sides, pairs = LinkSides(self.run), {}
        for number, link in enumerate(self.run.job.link):
            found = measure_link(self.run, link, number, sides.of(link), None)
            pairs[link.called] = sides.known(link, found, True)
        write_tables(self.run, {name: one for name, (_, one) in sides.public.items()}, pairs)

    def report(self) -> None:
        """Write the reports of the tables and of the job; if sections fail, the others are written first."""
        failures = list[ReportError]()
        for table in self.run.tables.values():
            try:
                run_stages(table, self.client, self.scheduler, self.progress, "report")
            except ReportError as error:
                failures.append(error)
        write_report(self.run)
        if failures:
            raise failures[0]
