"""Stages of a run of a growing table. Measuring releases every period that is complete and not released yet.

A period is complete if it has ended by the calendar and its records have arrived: there is a folder for it or for a
later period, or, if records state the period in a column, a record of it or of a later period. That records of a period
have arrived is treated as public, like the list of released periods that follows from it. `release_period` releases
the next period whether or not there are records.
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
from dpscale.engine import Engine, resolve
from dpscale.engine.counting import partition_groups
from dpscale.engine.schedulers import Progress, silent
from dpscale.job.periods import as_read, folder_names
from dpscale.ledger.location import check_ledger_place, standing
from dpscale.optimize.time_strategy import plan_time
from dpscale.privacy.secret import make_secret
from dpscale.records import Table
from dpscale.records.table import Partition
from dpscale.runs.directory import UNREADABLE
from dpscale.runs.manifest import disk_errors
from dpscale.runs.periods.answers import ROWS, AnswersRun
from dpscale.runs.periods.contents import forget_contents
from dpscale.runs.periods.continuation import read_earlier
from dpscale.runs.periods.period import PeriodRun
from dpscale.runs.periods.report import write_report
from dpscale.runs.periods.rows import RowsRun
from dpscale.runs.periods.stream import StreamRun
from dpscale.runs.stages.budget import publish_release
from dpscale.runs.stages.plan import make_plan
from dpscale.runs.stages.runner import run_requested
from dpscale.storage.files import present, store_errors

if TYPE_CHECKING:
    from distributed import Client


def plan(run: StreamRun, engine: Engine) -> None:
    """Plan the measurements of one table and the weights of the periods."""
    job, settings = run.job, run.job.periods
    time_plan = plan_time(len(run.labels), settings.answers, settings.window or 0, run.periods_per_unit,
                          job.privacy.noise, run.largest_part)  # fmt: skip
    amount = time_plan.amount(run.planning_problem.budget.amount)
    problem = run.planning_problem
    found = make_plan(job, replace(problem, budget=replace(problem.budget, amount=amount)), engine)
    found.for_period(time_plan.context())  # refuses mechanisms without a plan of periods
    found.write(run.path / "plan")
    time_plan.write(run.path / "plan")
    read_earlier(run)  # refuses an earlier run with another plan


def measure(run: StreamRun, engine: Engine) -> None:
    """Release every complete period that is not released yet."""
    for number in _complete(run, engine):
        _release(run, engine, number)
    _publish_if_complete(run)
    if not run.released:
        raise _incomplete(run)


def _incomplete(run: StreamRun) -> JobError:
    """Return the error for a job whose first period is not complete."""
    label, end = run.labels[0], run.end_of(0)
    why = f"ends before {end}" if end > date.today() else "has ended, but no records of it or later have arrived"
    return JobError("data.period", f"no complete period: {label} {why}",
                    "a period that has ended and whose records have arrived",
                    f"run again when they have, or name it: dpscale run DIR --period {label}")  # fmt: skip


def release_period(run: StreamRun, engine: Engine, label: str, empty: bool = False) -> None:
    """Release one period, with its answers and rows; a released one is not released again.

    Parameters
    ----------
    run : StreamRun
    engine : Engine
    label : str
        Name of the period, which must be the next one.
    empty : bool
        Whether to release it even if no records of it or of a later period have arrived.

    Raises
    ------
    JobError
        If it is not the next period, has not ended, lies outside the horizon, or the run was ended.
    """
    number = run.number_of(label)
    if run.labels[number] not in run.released:
        _check_next(run, number)
        if not empty and number > _last_arrival(run, engine):
            raise JobError("period", f"{label}, of which no records have arrived", "a period with records, or with"
                           " records of a later period", "release it when they have arrived: late records cannot be"
                           " counted in it. A period that has none is released with --empty")  # fmt: skip
        if empty and not run.manifest.get("empty"):
            run.update(empty=True)
        with run.record_stage(run.stages["measure"]):
            _release(run, engine, number)
    _publish_if_complete(run)
    reconstruct(run, engine)
    if run.synthesis is not None:
        synthesize(run, engine)


def release_next(
    run: StreamRun,
    label: str,
    client: Client | None = None,
    scheduler: str | None = None,
    progress: Progress = silent,
    empty: bool = False,
) -> None:
    """Release a period with its answers, rows and report; see `release_period`."""
    check_ledger_place(standing(run.job.privacy.ledger))
    engine = resolve(client, scheduler or run.job.engine.scheduler, progress)
    try:
        with disk_errors(run.path), store_errors(run.path), run.locked():
            if not run.done("plan"):
                with run.record_stage(run.stages["plan"]):
                    plan(run, engine)
            discreetly("run --period", release_period, run, engine, label, empty)
            for name in ("reconstruct", *(["synthesize"] if run.synthesis is not None else []), "report"):
                if not run.done(name):
                    with run.record_stage(run.stages[name], engine.each("hash")):
                        run.stages[name].perform(run, engine)
    finally:
        engine.close()


def _check_next(run: StreamRun, number: int) -> None:
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


def _complete(run: StreamRun, engine: Engine) -> list[int]:
    """Return the numbers of the complete periods that are not released, in order."""
    if run.ended or not run.may_release:
        return []
    last = _last_arrival(run, engine)
    numbers = range(len(run.released), len(run.labels))
    return [number for number in numbers if number <= last and run.end_of(number) <= date.today()]


def _last_arrival(run: StreamRun, engine: Engine) -> int:
    """Return the number of the latest period of the horizon with records or a folder; −1 if there is none."""
    folders = {one for one in folder_names(run.job.data, run.period.column) if one is not None}
    if folders:
        return max(_number_or_end(run, one) for one in folders)
    weights = PeriodWeights(as_read(run.period), (1,) * len(run.labels))
    table = run.job.data.origin.table(run.job.data.path, run.domain)
    table.require(weights.columns)
    return max(engine.map(latest_period, _groups(table, weights, engine), "arrivals"), default=-1)


def _number_or_end(run: StreamRun, label: str) -> int:
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


def _release(run: StreamRun, engine: Engine, number: int) -> None:
    """Draw the values of a period and combine them with those of earlier periods."""
    if number == 0:
        make_secret(run.hash_key, run.job.engine.seed)
    drawn = PeriodRun.start(run, number)
    if run.manifest["privacy"] is None:
        run.check_plan()
    run.charge(reserve=False)
    if not (drawn.done("measure") or drawn.is_decided()):
        drawn.restart()
        forget_contents(run, number)
    run_requested(drawn, engine)
    run.charge()
    run.update(released={**run.manifest.get("released", {}), run.labels[number]: drawn.manifest["release"]})
    for kind in run.kinds:
        run_requested(AnswersRun.start(run, number, kind), engine, "measure")


def _publish_if_complete(run: StreamRun) -> None:
    """Publish the release after the last period; also after a kill in between."""
    if len(run.released) == len(run.labels) and present(run.hash_key):
        publish(run)


def publish(run: StreamRun) -> None:
    """Commit and publish the release of all periods, and destroy the key of the hashes of records."""
    publish_release(run, run.manifest["release"], run.charge(), (run.path,))
    run.destroy_key()


def finish(run: StreamRun) -> bool:
    """Return whether every period that has started is released; a period that has not started is never drawn then."""
    try:
        return bool(run.released) and set(run.parts) <= set(run.released)
    except UNREADABLE:
        return False


def publish_finished(run: StreamRun) -> None:
    """Publish a release whose noise is drawn."""
    publish(run)


def reconstruct(run: StreamRun, engine: Engine) -> None:
    """Write the answers of every released period."""
    for number in range(len(run.released)):
        for kind in run.kinds:
            answers = AnswersRun.start(run, number, kind)
            run_requested(answers, engine, "measure")
            run_requested(answers, engine, "reconstruct")


def synthesize(run: StreamRun, engine: Engine) -> None:
    """Sample the new rows of every released period, in order."""
    for number in range(len(run.released)):
        rows = RowsRun.start(run, number, ROWS)
        run_requested(rows, engine, "measure")
        run_requested(rows, engine, "synthesize")


def report(run: StreamRun, engine: Engine) -> None:
    """Write the report of all released periods."""
    write_report(run)
    run.update(reported=run.released)
