"""Stages of a run of a growing table. Measuring releases every period that is complete and not released yet.

A period is complete if it has ended by the calendar and its records have arrived: there is a folder for it or for a
later period, or, if records state the period in a column, a record of it or of a later period. That records of a period
have arrived is treated as public, like the list of released periods that follows from it. `release_next` releases a
named period, with `empty` also if there are no records.

*Values of a period.*
They are the measurements of a part of its own, drawn under the charge of the whole horizon.

*Earlier periods.*
Hashes of the records of each period show whether earlier periods changed. If all files are in folders named by the
period, the hash of a period is that of the names, sizes and bytes of its files. Otherwise it is a sum over its records:
each record has two 64-bit mixes of its cells and of its privacy unit, so the sum modulo 2^64 does not depend on the
order of the records or on their files. Only attributes that are counted are compared. Tags of these hashes under the
key of the run are stored, never the hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.display import safe_repr
from dpscale.base.error_redaction import discreetly
from dpscale.base.errors import DataError, JobError
from dpscale.base.numerics import Words
from dpscale.contributions.unit_ids import identities
from dpscale.contributions.unit_shards import value_words
from dpscale.contributions.units import Bound, PeriodBound
from dpscale.counting.weighted import PeriodWeights, encoded_with_periods
from dpscale.domain import Domain
from dpscale.domain.attribute import read_period
from dpscale.engine.counting import partition_groups
from dpscale.engine.schedulers import Engine, Progress, resolve, silent
from dpscale.job.periods import as_read, folder_names
from dpscale.ledger.location import check_ledger_place, standing
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.optimize.time_strategy import plan_time
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.privacy.secret import make_secret, read_secret, snapshot_tag
from dpscale.records import Table
from dpscale.records.origin import snapshot
from dpscale.records.table import Partition
from dpscale.runs.charge import charge, journal_of, publish
from dpscale.runs.manifest import disk_errors
from dpscale.runs.periods.growing import FOLDER, ROWS, GrowingPart, read_earlier
from dpscale.runs.periods.report import write_report
from dpscale.runs.run import Run
from dpscale.runs.runner import run_stage
from dpscale.runs.source import columns_of
from dpscale.runs.stage import STAGES, Stage
from dpscale.runs.stages.plan import make_plan
from dpscale.runs.table import TablePart
from dpscale.storage.files import flush_names, store_errors

if TYPE_CHECKING:
    from distributed import Client

MOST_SUM = 1 << 62  # bound of weighted sums, within signed 64 bits
PERIOD_STAGES: dict[str, Stage] = {"measure": replace(STAGES["measure"], needs=())}

MIXES = (np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA0761D6478BD642F))  # odd factors of the two mixes of a record
SHIFT = np.uint64(32)  # brings the upper bits of a product to the lower ones


class ReleasedTable(GrowingPart):
    """Growing table with the stages that release its periods."""

    def plan(self, engine: Engine) -> None:
        """Plan the weights of the periods, and the measurements of one period at its part of the budget."""
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
    label, last = run.labels[0], run.end_of(0) - timedelta(days=1)
    why, remedy = f"has not ended (last day {last})", f"run again after {last}"
    if last < date.today():
        why = "has ended, but no records of it or later have arrived"
        remedy = f"run again when they have, or name it: dpscale run DIR --period {label}"
    return JobError("data.period", f"no complete period, because {label} {why}",
                    "a period that has ended and whose records have arrived", remedy)  # fmt: skip


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
    if (last := run.end_of(number) - timedelta(days=1)) >= date.today():
        raise JobError("period", f"{label}, which ends on {last}", "a period that has ended",
                       "release it after its end: records that arrive later could not be counted")  # fmt: skip


def _complete(run: GrowingPart, engine: Engine) -> list[int]:
    """Return the numbers of the complete periods that are not released, in order; none after the end of the run.

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
    # otherwise the column of the records is read; the weights name it, and are equal for all periods
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
    """Return the number of the latest period with a record; −1 if there is none.

    A record after the horizon counts as one of the last period.
    """
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

    # the values are on disk and charged before their noise key is destroyed
    flush_names(drawn.measurements_path)
    charge(run)
    drawn.destroy_key()
    run.update(released={**run.manifest.get("released", {}), label: drawn.release})
    for kind in table.kinds:
        table.answers_at(label, kind).perform("measure", engine)


def _is_decided(drawn: PeriodPart) -> bool:
    """Return whether the ledger has the first decision of a period; without it no noise was drawn."""
    return drawn.run.manifest["privacy"] is not None and journal_of(drawn).is_decided(0)


class PeriodPart(TablePart):
    """Part of a period, with a noise key of its own.

    Attributes
    ----------
    stream : GrowingPart
    number : int
        Number of the period.
    """

    stages = PERIOD_STAGES

    def __init__(self, stream: GrowingPart, number: int) -> None:
        label = stream.labels[number]
        self.stream, self.number = stream, number
        super().__init__(stream.run, label, stream.job, stream.declared, f"{FOLDER}/{label}")

    @property
    def key_owner(self) -> PeriodPart:
        return self

    @property
    def secret_path(self) -> Path:
        return self.path / "secret.key"

    def charges(self, entry: str) -> None:
        """Return None: the growing table is charged for all periods."""

    def check_plan(self) -> None:
        """Do nothing: the ledger compares the plan with that of other periods."""

    def restart(self) -> None:
        """Forget an interrupted start of the period, so that it begins again with a fresh noise key.

        It is called only if the ledger has no decision of the period (`_is_decided`), so no noise was drawn. Records
        may have been corrected since the start. The facts of the part have the snapshot of the earlier records, by
        which corrected ones would be refused.
        """
        # a part without a key and a snapshot has not begun: there is nothing to forget
        if self.manifest["secret"] is not None or self.manifest["snapshot"] is not None:
            self.destroy_key()
            self.forget()

    @cached_property
    def record_weights(self) -> PeriodWeights | None:
        """Weights of the records of each period up to this one."""
        return PeriodWeights(as_read(self.stream.period), self.stream.time_plan.rows[self.number])

    @property
    def contribution_bound(self) -> Bound:
        """Largest number of counted rows of a unit in a period, and of periods with its rows.

        If a unit in a period is protected by itself, all periods may have its rows.
        """
        periods = self.job.periods.max_periods_per_unit or len(self.stream.labels)
        assert self.record_weights is not None
        return PeriodBound(self.job.data.max_rows_per_unit or 1, periods, self.record_weights)

    @cached_property
    def planning_problem(self) -> PlanningProblem:
        """The planning problem of one measurement at weight 1."""
        return self.stream.period_problem

    @cached_property
    def measurement_plan(self) -> MeasurementPlan:
        return self.stream.later_plan if self.number else self.stream.period_plan

    def restrict(self, table: Table, engine: Engine) -> Table:
        """Return the table without files whose folders name later periods."""
        weights = self.record_weights
        assert weights is not None
        parts = tuple(part for part in table.partitions if weights.has_records(part))
        self._check_rows(parts, max(map(abs, weights.weights)))
        # a table has at least one partition; if none has records of these periods, the rows of the first have no weight
        return replace(table, partitions=parts or table.partitions[:1])

    def _check_rows(self, parts: Sequence[Partition], weight: int) -> None:
        """Raise DataError if weighted sums over all records could exceed 64 bits; it shows no number of records."""
        rows = sum({part.path: part.row_bound() for part in parts}.values())
        if weight * self.stream.largest_part * rows >= MOST_SUM:
            raise DataError("data.path", "more records than weighted sums of the job's numbers can hold in 64 bits",
                            "fewer records, or numbers with fewer steps", "use larger steps")  # fmt: skip

    def content_hash(self, table: Table, engine: Engine) -> str:
        """Return the hash of the records of all periods up to this one.

        Raises DataError if those of an earlier period changed since it was released.
        """
        weights = self.record_weights
        assert weights is not None
        names = columns_of(self.domain, self.measurement_plan.counted_sets)
        # one hash for each period, so that an earlier period is compared with the records that it was released from
        found = hashes_by_period(table, names, weights, self.job.data.unit_column, engine)
        compare_contents(self.stream, found)
        return combined(found)


def hashes_by_period(
    table: Table, names: Sequence[str], weights: PeriodWeights, unit: str | None, engine: Engine
) -> list[str]:
    """Return the hash of the records of each period with a weight.

    If all files are in folders named by the period, it is a hash of the files, otherwise a sum over the records.

    Parameters
    ----------
    table : Table
        Table whose files have records of these periods.
    names : sequence of str
        Attributes that are counted.
    weights : PeriodWeights
    unit : str or None
        Column of the privacy unit.
    engine : Engine
    """
    if table.lake is None and all(weights.attribute.column in dict(part.fixed) for part in table.partitions):
        return [_hash_of_files(table, number, weights, engine) for number in range(weights.count)]
    groups = partition_groups(table.partitions, engine.workers)
    found = engine.map(sum_records, [(group, table.domain, names, weights, unit) for group in groups], "snapshot")
    sums: Words = np.sum(np.stack(found), axis=0, dtype=np.uint64)
    return [hashlib.sha256(row.astype("<u8").tobytes()).hexdigest() for row in sums]


def _hash_of_files(table: Table, number: int, weights: PeriodWeights, engine: Engine) -> str:
    """Return the hash of the contents of the files whose folder names a period, given its number."""
    of_period = tuple(part for part in table.partitions if _number_of(part, weights) == number)
    if not of_period:
        return hashlib.sha256(b"").hexdigest()
    return snapshot(replace(table, partitions=of_period), each=engine.each("snapshot"))


def _number_of(partition: Partition, weights: PeriodWeights) -> int:
    """Return the number of the period that a partition's folder names; −1 for the folder of nulls."""
    label = dict(partition.fixed)[weights.attribute.column]
    try:
        return read_period(weights.attribute.by, label) - weights.attribute.low if label is not None else -1
    except ValueError as error:
        raise DataError("data.path", f"a folder {weights.attribute.column}={safe_repr(label)}", str(error),
                        "rename the folder, or move it elsewhere") from None  # fmt: skip


def sum_records(
    partitions: Sequence[Partition], domain: Domain, names: Sequence[str], weights: PeriodWeights, unit: str | None
) -> Words:
    """Return the sums of the records of each period, shape (periods, 3): two mixes and the number of records.

    A mix is a 64-bit hash of a record; its sum, modulo 2^64, does not depend on the order of records, and equal sums
    mean equal records but for a negligible probability. With the odd constant m of a mix (MIXES) and the word w of a
    record, a = (w ⊕ m) m and the mix is (a ⊕ (a >> 32)) m.
    """
    sums = np.zeros((weights.count, 3), np.uint64)
    for partition in partitions:
        units = _units(partition, unit)
        for codes, gone, periods, first in encoded_with_periods(domain, partition, names, weights):
            words = value_words(codes)
            if units is not None:
                words = words + units[first : first + len(words)] * MIXES[0]
            counted = ~gone
            for column, mix in enumerate(MIXES):
                mixed = (words ^ mix) * mix
                mixed ^= mixed >> SHIFT
                np.add.at(sums[:, column], periods[counted], (mixed * mix)[counted])
            sums[:, 2] += np.bincount(periods[counted], minlength=weights.count).astype(np.uint64)
    return sums


def _units(partition: Partition, unit: str | None) -> Words | None:
    """Return a 64-bit hash of the unit of each row of a partition; None without a unit."""
    if unit is None:
        return None
    parts = [identities(batch[unit], unit).words for batch in partition.batches([unit], unit)]
    words = np.concatenate(parts) if parts else np.empty((0, 2), np.uint64)
    return np.asarray(words[:, 0] ^ (words[:, 1] * MIXES[1]))


def combined(hashes: Sequence[str]) -> str:
    """Return one hash of the hashes of several periods."""
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def compare_contents(run: GrowingPart, hashes: Sequence[str]) -> None:
    """Compare the records of earlier periods with those that were released; record those of the period released now.

    `hashes` are those of the records of each period up to the one that is released now; they are compared by tags under
    the key of the run. Raises DataError if the records of an earlier period changed, unless the job accepts that.
    """
    key = read_secret(run.hash_key)
    tags = {label: snapshot_tag(key, f"{label}:{content}") for label, content in zip(run.labels, hashes, strict=False)}
    known = run.manifest.get("contents", {})
    changed = [label for label in run.labels[: len(hashes) - 1] if known.get(label) != tags[label]]
    if changed and run.changes == "accept":
        accepted = run.manifest.get("accepted", {})
        run.update(accepted={**accepted, run.labels[len(hashes) - 1]: changed})
    elif changed:
        erasure = '; for a legal erasure set time.changed = "accept"' if run.job.data.privacy_unit is None else ""
        raise DataError("data.path", f"the records of {changed[0]}, which was released, changed",
                        "the records of earlier periods as they were: a late record belongs to the period in which"
                        " it arrives", f"restore them{erasure}")  # fmt: skip
    label = run.labels[len(hashes) - 1]
    if label not in known:
        run.update(contents={**known, label: tags[label]})


def forget_contents(run: GrowingPart, number: int) -> None:
    """Forget the hash of the records of a period of which nothing was drawn."""
    known = run.manifest.get("contents", {})
    if run.labels[number] in known:
        run.update(contents={label: tag for label, tag in known.items() if label != run.labels[number]})
