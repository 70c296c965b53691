"""Stages of a run of a growing table. Measuring releases every period that is complete and not released yet.

A period is complete if it has ended by the calendar and its records have arrived: there is a folder for it or for a
later period, or, if records state the period in a column, a record of it or of a later period. That records of a period
have arrived is treated as public, like the list of released periods that follows from it. `release_next` releases a
named period, with `empty` also if there are no records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

from dpscale.base.error_redaction import discreetly
from dpscale.base.errors import JobError
from dpscale.counting.weighted import PeriodWeights
from dpscale.domain.attribute import read_period
from dpscale.engine.counting import partition_groups
from dpscale.engine.schedulers import Engine, Progress, resolve, silent
from dpscale.job.periods import as_read, folder_names
from dpscale.ledger.location import check_ledger_place, standing
from dpscale.optimize.time_strategy import plan_time
from dpscale.privacy.secret import make_secret
from dpscale.records import Table
from dpscale.records.table import Partition
from dpscale.runs.charge import charge, journal_of, publish
from dpscale.runs.manifest import disk_errors
from dpscale.runs.periods.contents import forget_contents
from dpscale.runs.periods.continuation import read_earlier
from dpscale.runs.periods.growing import FOLDER, ROWS, GrowingPart
from dpscale.runs.periods.period import PeriodPart
from dpscale.runs.periods.report import write_report
from dpscale.runs.run import Run
from dpscale.runs.runner import run_stage
from dpscale.runs.stages.plan import make_plan
from dpscale.storage.files import flush_names, store_errors

if TYPE_CHECKING:
    from distributed import Client


class ReleasedTable(GrowingPart):
    """Growing table with the stages that release its periods."""

    def plan(self, engine: Engine) -> None:
        """Plan the measurements of one table and the weights of the periods."""
        job, settings = self.job, self.job.periods
        time_plan = plan_time(len(self.labels), settings.answers, settings.window or 0, self.periods_per_unit,
                              job.privacy.noise, self.largest_part)  # fmt: skip
        problem = self.planning_problem
        amount = time_plan.amount(problem.budget.amount)
        planned = make_plan(job, replace(problem, budget=replace(problem.budget, amount=amount)), engine)
        job.method.for_period(planned, time_plan.context())  # refuses mechanisms without a plan of periods
        planned.write(self.path / "plan")
        time_plan.write(self.path / "plan")
        read_earlier(self)  # refuses an earlier run with another plan

    def measure(self, engine: Engine) -> None:
        """Release every complete period that is not released yet."""
        for number in _complete(self, engine):
            _release(self, engine, number)
        if not self.released:
            raise _incomplete(self)

    def is_measured(self) -> bool:
        """Return whether every period that has started is released; one that has not is never drawn then."""
        started = [label for label in self.labels if label in self.manifest.get("parts", {})]
        return bool(self.released) and set(started) <= set(self.released)

    def reconstruct(self, engine: Engine) -> None:
        """Write the answers of every released period."""
        for label in self.released:
            for kind in self.kinds:
                answers = self.answers_at(label, kind)
                answers.perform("measure", engine)
                answers.perform("reconstruct", engine)

    def synthesize(self, engine: Engine) -> None:
        """Sample the new rows of every released period, in order."""
        for label in self.released:
            rows = self.part_at(f"{FOLDER}/{label}/{ROWS}")
            rows.perform("measure", engine)
            rows.perform("synthesize", engine)

    def report(self, engine: Engine) -> None:
        """Write the report of all released periods."""
        write_report(self)
        self.update(reported=self.released)


def _incomplete(run: GrowingPart) -> JobError:
    """Return the error for a job whose first period is not complete."""
    label, end = run.labels[0], run.end_of(0)
    why = f"ends before {end}" if end > date.today() else "has ended, but no records of it or later have arrived"
    return JobError("data.period", f"no complete period: {label} {why}",
                    "a period that has ended and whose records have arrived",
                    f"run again when they have, or name it: dpscale run DIR --period {label}")  # fmt: skip


def release_next(
    run: Run,
    label: str,
    client: Client | None = None,
    scheduler: str | None = None,
    progress: Progress = silent,
    empty: bool = False,
) -> None:
    """Release one period with its answers, rows and report; a released one is not released again.

    Parameters
    ----------
    run : Run
        Run of a growing table.
    label : str
        Name of the period, which must be the next one.
    client, scheduler, progress
        As of `dpscale.run`.
    empty : bool
        Whether to release it even if no records of it or of a later period have arrived.

    Raises
    ------
    JobError
        If it is not the next period, has not ended, lies outside the horizon, or the run was ended.
    """
    check_ledger_place(standing(run.job.privacy.ledger))
    engine = resolve(client, scheduler or run.job.engine.scheduler, progress)
    try:
        with disk_errors(run.path), store_errors(run.path), run.locked():
            if not run.done("plan"):
                run_stage(run.stages["plan"], run, engine)
            discreetly("run --period", _release_named, run, engine, label, empty)
            for name in ("reconstruct", *(["synthesize"] if run.table.synthesis is not None else []), "report"):
                if not run.done(name):
                    with run.record_stage(run.stages[name], engine.each("hash")):
                        run.stages[name].perform(run, engine)
    finally:
        engine.close()


def _release_named(run: Run, engine: Engine, label: str, empty: bool) -> None:
    """Release the period of a label unless it is released, and publish the run if it was the last one."""
    table = run.table
    number = table.number_of(label)
    if table.labels[number] not in table.released:
        _check_next(table, number)
        if not empty and number > _last_arrival(table, engine):
            raise JobError("period", f"{label}, of which no records have arrived", "a period with records, or with"
                           " records of a later period", "release it when they have arrived: late records cannot be"
                           " counted in it. A period that has none is released with --empty")  # fmt: skip
        if empty and not run.manifest.get("empty"):
            run.update(empty=True)
        with run.record_stage(run.stages["measure"]):
            _release(table, engine, number)
    if run.content.is_complete:
        publish(run)


def _check_next(run: GrowingPart, number: int) -> None:
    """Raise JobError unless a period is the next one of a run that was not ended, and has ended itself."""
    label, following = run.labels[number], run.labels[len(run.released)]
    if run.ended:
        raise JobError("period", f"{label} of a run that was ended on {run.ended['at'][:10]}", "a run that was not"
                       " ended", "start a new run, which is a new release and a new charge")  # fmt: skip
    if label != following:
        raise JobError("period", f"{label}, which is not the next period", following,
                       f"release {following} first: periods are released in order")  # fmt: skip
    if run.end_of(number) > date.today():
        raise JobError("period", f"{label}, which ends on {run.end_of(number)}", "a period that has ended",
                       "release it after its end: records that arrive later could not be counted")  # fmt: skip


def _complete(run: GrowingPart, engine: Engine) -> list[int]:
    """Return the numbers of the complete periods that are not released, in order.

    A period is complete if its last day is over, and records of it or of a later period have arrived.
    """
    if run.ended or not run.may_release:
        return []
    latest = _last_arrival(run, engine)
    ended = [number for number in range(len(run.released), len(run.labels)) if run.end_of(number) <= date.today()]
    return [number for number in ended if number <= latest]


def _last_arrival(run: GrowingPart, engine: Engine) -> int:
    """Return the number of the latest period of the horizon with records or a folder; −1 if there is none."""
    folders = {name for name in folder_names(run.job.data, run.period.column) if name is not None}
    if folders:
        return max(_number_or_end(run, name) for name in folders)
    weights = PeriodWeights(as_read(run.period), (1,) * len(run.labels))
    table = run.job.data.origin.table(run.job.data.path, run.domain)
    table.require(weights.columns)
    return max(engine.map(latest_period, _groups(table, weights, engine), "arrivals"), default=-1)


def _number_or_end(run: GrowingPart, label: str) -> int:
    """Return the number of the period that a folder names, or the last one if it is after the horizon; −1 before.

    A folder that names no period is refused when it is read.
    """
    try:
        number = read_period(run.period.by, label) - run.period.low
    except ValueError:
        return -1
    return max(min(number, len(run.labels) - 1), -1)


def _groups(table: Table, weights: PeriodWeights, engine: Engine) -> list[tuple[Any, ...]]:
    return [(group, weights) for group in partition_groups(table.partitions, engine.workers)]


def latest_period(partitions: Sequence[Partition], weights: PeriodWeights) -> int:
    """Return the number of the latest period with a record; −1 if there is none."""
    latest = -1
    for partition in partitions:
        for batch in partition.batches(weights.columns):
            periods, _ = weights.read(batch)
            latest = max(latest, int(periods.max(initial=0)) if periods.size else -1)
    return min(latest, weights.count - 1)


def _release(table: GrowingPart, engine: Engine, number: int) -> None:
    """Draw the values of a period and combine them with those of earlier periods.

    The budget is reserved before the first draw and charged after the last one. A draw that was interrupted before it
    was decided starts again. Then the noise key is destroyed, so that no value can be drawn twice.
    """
    run, label = table.run, table.labels[number]
    if number == 0:
        make_secret(table.hash_key, run.job.engine.seed)
    drawn = table.part_at(f"{FOLDER}/{label}")
    assert isinstance(drawn, PeriodPart)
    if run.manifest["privacy"] is None:
        table.check_plan()
    charge(run, reserve=False)
    if not (drawn.done("measure") or _is_decided(drawn)):
        drawn.restart()
        forget_contents(table, number)
    drawn.perform("measure", engine)
    flush_names(drawn.measurements_path)
    charge(run)
    drawn.destroy_key()
    run.update(released={**run.manifest.get("released", {}), label: drawn.release})
    for kind in table.kinds:
        table.answers_at(label, kind).perform("measure", engine)


def _is_decided(drawn: PeriodPart) -> bool:
    """Return whether the ledger has the first decision of a period; without it no noise was drawn."""
    return drawn.run.manifest["privacy"] is not None and journal_of(drawn).is_decided(0)
