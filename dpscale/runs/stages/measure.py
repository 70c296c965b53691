"""The measure stage, the only stage that reads records and spends budget (see `budget` for the order of its steps).

Only the driver decides and computes the next state, from released values. Exact counts of the remaining candidates stay
in shards on the workers. Only distances are returned from them, and only for the exponential mechanism. Each decision
that does not follow from the plan is on disk and on the ledger before it is measured. A killed run therefore resumes
with the same noise streams, decides nothing twice and spends nothing twice, and a copy that decides differently is
refused.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpscale.base.errors import DataError, RefusedValue
from dpscale.base.numerics import AttributeSet, one_thread
from dpscale.contributions.links import with_key_ids
from dpscale.contributions.units import has_counted_row
from dpscale.domain import Domain
from dpscale.engine import Engine
from dpscale.engine.contribution_bounds import (
    collect_refusals,
)
from dpscale.engine.counting import FACTOR, Pass, partition_groups, plan_passes, run_pass
from dpscale.engine.frames import frame_table
from dpscale.engine.shards import Shards
from dpscale.measurement import Measurements, MeasurementStore, measure_layouts
from dpscale.measurement.adaptive import Scores, select_candidates
from dpscale.measurement.journal import Journal
from dpscale.measurement.measurement import check_selection_cost
from dpscale.plans.measurement_plan import Decision
from dpscale.privacy.secret import read_secret, snapshot_tag
from dpscale.privacy.streams import open_stream
from dpscale.records import Table
from dpscale.records.frames import FRAME, FramePartition
from dpscale.records.origin import Stamps, fingerprints, joint_digest, layout, snapshot, stamps
from dpscale.records.table import Partition
from dpscale.runs.answers import write_trace
from dpscale.runs.charge import charge, ensure_noise_key, is_charged, journal_of
from dpscale.runs.earlier import check_fresh_noise, check_same_data
from dpscale.runs.file_tags import Prints, check_same_files, record_tags
from dpscale.runs.manifest import frame_tag
from dpscale.runs.preflight import check_memory, counting_memory
from dpscale.runs.run import UNREADABLE, Run
from dpscale.runs.stages.unit_bounds import check_frame_unit, rows_beyond_bound, unit_tables
from dpscale.runs.table import TablePart, origin_of
from dpscale.storage.files import remove_partial


def open_table(run: TablePart, names: Sequence[str], engine: Engine) -> Table:
    """Return the table of the run's files or of its data frame."""
    data = run.job.data
    wanted = [*run.domain.columns(names), *([data.unit_column] if data.unit_column else [])]
    wanted += run.record_weights.columns if run.record_weights else []
    if run.frame is not None:
        check_frame_unit(data)
        return frame_table(run.frame, run.domain, wanted, engine, data.matching)
    if data.path == FRAME:
        raise DataError("data", "none, but this run reads a data frame", "the frame with which it started",
                        "pass it again: dp.run(job, data=frame)")  # fmt: skip
    files = origin_of(run).table(data.path, run.domain)
    table = run.restrict(with_key_ids(files, data.unit_columns, rule=data.unit_type or ""), engine)
    table.require(wanted)
    return table


def columns_of(domain: Domain, counted: Sequence[AttributeSet]) -> list[str]:
    """Return the attributes that are measured; only their columns are read."""
    used = {name for attributes in counted for name in attributes} or {domain.names[0]}
    return [name for name in domain.axis_names if name in used]


def snapshot_of(run: TablePart, table: Table, engine: Engine) -> str:
    """Return the tag of the data under the noise key; raise DataError if the data changed since the release began.

    If the noise key is destroyed, nothing can be drawn and the data are not read again.
    """
    first_snapshot = run.manifest["snapshot"]
    if first_snapshot is not None and run.read_matching_key() is None:
        return str(first_snapshot)
    data, lake = run.job.data, table.lake
    known = {"version": lake.version} if lake else layout(data.path, data.matching, data.dialect.format)
    prints = file_prints(run, table, engine)
    content = content_hash(run, table, engine, prints)
    check_same_data(run, content)
    tag = snapshot_tag(read_secret(run.secret_path), content)
    if first_snapshot not in (None, tag):
        if not prints:
            raise changed_files("the records changed since this release started")
        check_same_files(run, prints, is_charged(run.run))
        tag = str(first_snapshot)
    if prints and not run.folder:
        record_tags(run, prints)
    if first_snapshot is None or run.manifest.get("data") != known:
        run.update(snapshot=tag, data=known, **({"table": table.lake.summary} if table.lake else {}))
    entry = "content" if run.frame is None else "frame"
    if entry not in run.manifest and not run.folder:
        run.update(**{entry: frame_tag(run.manifest["release"], content, create=True)})
    return tag


def file_prints(run: TablePart, table: Table, engine: Engine) -> Prints:
    """Return the fingerprints of the files of the table and of the privacy units; empty for other data than files."""
    if not table.root or run.record_weights is not None or run.lookup_tables:
        return {}
    names = [f"data.unit_through {number}" for number, _ in enumerate(run.job.data.unit_through or [], 1)]
    tables = dict(zip(["data.path", *names], (table, *unit_tables(run)), strict=True))
    each = engine.each("snapshot")
    return {name: (one, fingerprints(one, run.uses_footers, each)) for name, one in tables.items()}


def content_hash(run: TablePart, table: Table, engine: Engine, prints: Prints | None = None) -> str:
    """Return the hash of the data that counts depend on: the table's files, those of the privacy units, and filters."""
    if (found := run.content_hash(table, engine)) is not None:
        return found
    hops, each = run.job.data.unit_through or [], engine.each("snapshot")
    contents = [joint_digest(one, own) for one, own in (prints or {}).values()]
    if not contents:
        contents = [snapshot(one, run.uses_footers, each) for one in (table, *unit_tables(run), *run.lookup_tables)]
    contents += [str(run.job.data.matching)] if run.job.data.matching else []
    contents += [f"{number}: {hop.matching}" for number, hop in enumerate(hops) if hop.matching]
    return contents[0] if len(contents) == 1 else hashlib.sha256("".join(contents).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class OpenData:
    """Data of a run that are about to be counted.

    Attributes
    ----------
    tables : list of Table
        The table, and those that define the privacy unit.
    file_stamps : list of Stamps
        State of their files before they were read.
    snapshot : str
        Tag of the data.
    """

    run: TablePart
    tables: list[Table]
    file_stamps: list[Stamps]
    snapshot: str

    @classmethod
    def of(cls, run: TablePart, names: Sequence[str], engine: Engine) -> OpenData:
        """Open the columns of some attributes; the run has a noise key afterwards, if its noise is not drawn."""
        tables = [open_table(run, names, engine), *unit_tables(run), *run.lookup_tables]
        engine.check_file_access(run.path, tables[0].files)
        ensure_noise_key(run.key_owner)
        file_stamps = [stamps(one) for one in tables]
        if run.checks_rows and not is_open_to_no_rows(run.run):
            unit = run.job.data.unit_column if run.job.data.unit_nulls == "drop" else None
            check_rows_exist(tables[0], names, engine, unit=unit)
        return cls(run, tables, file_stamps, snapshot_of(run, tables[0], engine))

    @property
    def table(self) -> Table:
        return self.tables[0]

    @property
    def head(self) -> dict[str, str]:
        """Fields that the labels of searches and of numbers of units begin with."""
        return {"release": self.run.release, "snapshot": self.snapshot}

    def check_unchanged(self) -> None:
        """Raise DataError if a file changed; counts lost with a worker may be read from it again."""
        if [stamps(one) for one in self.tables] != self.file_stamps:
            raise changed_files("the files changed while they were read")


def is_open_to_no_rows(run: Run) -> bool:
    """Return whether a run may release data without rows: it is allowed to, or its charge is behind it."""
    return bool(run.manifest.get("empty")) or is_charged(run)


def check_rows_exist(
    table: Table, names: Sequence[str], engine: Engine, field: str = "data.path", unit: str | None = None
) -> None:
    """Raise DataError if no row of a table is counted.

    Files whose footers state no rows were written as an empty table, which is released, with a warning.

    Parameters
    ----------
    table : Table
    names : sequence of str
        Attributes whose values may drop a row.
    engine : Engine
    field : str
        Name of the setting with the table's path.
    unit : str, optional
        Column whose rows without an id are dropped.
    """
    dropping = any(table.domain[name].drops for name in names) or any(part.where for part in table.partitions)
    seen = [one.seen for one in table.partitions if isinstance(one, FramePartition)]
    if unit is None and not dropping and any(one and one.rows for one in seen):
        return  # a frame was read for its hash
    first, *rest = table.partitions
    domain = engine.broadcast(table.domain, "presence")
    for parts in ([first], rest):
        if any(engine.map(has_counted_row, [((one,), domain, list(names), unit) for one in parts], "presence")):
            return
    if states_no_rows(table):
        warnings.warn(f"{field}: the files of {table.root} state that they have no rows", UserWarning, stacklevel=2)
        return
    raise no_rows(field)


def states_no_rows(table: Table) -> bool:
    """Return whether the footers of all files state that they have no rows."""
    return bool(table.root) and all(part.format.typed and part.row_bound() == 0 for part in table.partitions)


def no_rows(field: str) -> DataError:
    """Return the error for data without a row that is counted."""
    return DataError(field, "no row that is counted; nothing is charged", "data with rows",
                     'check the files, where, and rules with "drop", or release the empty table with --empty'
                     " (Python: empty=True)")  # fmt: skip


def has_counts(counts: Any) -> bool:
    """Return whether some exact counts of a pass are not zero."""
    arrays = counts if isinstance(counts, list | tuple) else [counts]
    return any(bool(np.any(one)) for one in arrays)


@dataclass(frozen=True, eq=False)
class Reader:
    """Counter of passes over the table.

    Attributes
    ----------
    columns : list of str
        All columns that are read.
    dropped : mapping of Partition, optional
        Rows that exceed the contribution bound.
    """

    data: OpenData
    engine: Engine
    columns: list[str]
    groups: list[Any]
    dropped: Mapping[Partition, Any] | None

    @classmethod
    def of(cls, data: OpenData, engine: Engine, columns: list[str]) -> Reader:
        groups = partition_groups(data.table.partitions, engine.workers)
        return cls(data, engine, columns, groups, rows_beyond_bound(data.run, engine, data.table, groups, columns))

    def first(self, one: Pass) -> list[Any]:
        """Return the handles of a pass that also checks every column against the domain."""
        return self.count(one, self.columns)

    def count(self, one: Pass, checked: Sequence[str] = ()) -> list[Any]:
        """Return handles of the exact counts of a pass.

        Every pass reads the columns whose values can drop a row, so that all passes omit the same rows.
        """
        dropping = [name for name in self.columns if self.data.run.domain[name].drops]
        weights = self.data.run.record_weights
        handles = run_pass(self.engine, one, self.groups, [*checked, *dropping], self.dropped, weights)
        self.data.check_unchanged()
        return handles


def changed_files(got: str) -> DataError:
    """Return the error for data that changed since the release began."""
    return DataError(
        "data.path", got, "the same files", "restore them, or end this run and start a new one with --fresh"
    )


def decision(run: TablePart, data: OpenData, records: list[dict[str, Any]], domain: Domain) -> dict[str, Any]:
    """Return everything that determines the draws with some records, as the journal records it.

    Records, domain, data, noise key and release id determine the noise. The job also determines the counts that it is
    added to, for example by a filter or the privacy unit: the same noise on other counts would reveal their difference.
    """
    manifest, weights = run.manifest, run.record_weights
    return {
        "records": records,
        "domain": domain.digest,
        "snapshot": data.snapshot,
        "key": manifest["secret_tag"],
        "release": run.release,
        "job": manifest["job_sha256"],
        "weights": None if weights is None else list(weights.weights),
    }


CountedPasses = list[tuple[Pass, list[Any]]]


def perform(run: TablePart, engine: Engine) -> None:
    """Count, charge, draw noise and store the values."""
    run.check_plan()
    check_memory(run.measurement_plan, run.job, engine)
    data = OpenData.of(run, columns_of(run.domain, run.measurement_plan.counted_sets), engine)
    check_fresh_noise(run)
    if run.manifest.get("columns") is None:
        public = run.synthesis is not None and run.synthesis.types == "input"
        run.update(columns={name: kind if public else "" for name, kind in data.table.types().items()})
    measurements = run.open_measurements(run.release, data.snapshot)
    with one_thread():
        measure(run, engine, data, measurements)
    remove_partial(run.measurements_path)


def measure(run: TablePart, engine: Engine, data: OpenData, measurements: MeasurementStore) -> None:
    """Make all remaining decisions."""
    state, pending = measurements.replay()
    if pending is not None or measurements.measurement_plan.next_selection(state) is not None:
        run.secret.read()
        charge(run.run, reserve=False)
        columns = columns_of(run.domain, measurements.measurement_plan.counted_sets)
        try:
            reader = Reader.of(data, engine, columns)
            state = MeasurementLoop(run, engine, measurements, reader, journal_of(run)).finish(state, pending)
        except RefusedValue as error:
            raise collect_refusals(engine, data.table, columns, error) from None
    write_trace(run.path / "trace.parquet", measurements.measurement_plan.trace(state))


@dataclass(eq=False)
class MeasurementLoop:
    """The remaining decisions of a release: select, record on disk and ledger, measure, update."""

    run: TablePart
    engine: Engine
    measurements: MeasurementStore
    reader: Reader
    journal: Journal
    scores: Scores = field(default_factory=Scores)
    decisions: list[Decision] = field(default_factory=list)

    def finish(self, state: Any, pending: Decision | None) -> Any:
        """Return the last state.

        A pending first decision is measured pass by pass, later ones from the shards.
        """
        measurement_plan, counted = self.measurements.measurement_plan, CountedPasses()
        first = pending if pending is not None and pending.round == 0 else None
        self.decisions += [one for one in self.measurements.decisions() if pending is None or one.round < pending.round]
        wanted = self.measurements.missing(first) if first else []
        passes = self._passes([names for one in wanted for names in one.sources])
        for number, one in enumerate(passes[: self._first_passes(passes, wanted)]):
            handles = self.reader.count(one) if number else self.reader.first(one)
            if number == 0:
                self._check_counts(handles)
                self.journal.charge()
                self._record_empty()
                if first is not None:
                    self._record_decision(first)
            self._measure_pass(one, wanted, handles)
            if measurement_plan.candidates:
                counted.append((one, handles))
        if first is not None:
            state, pending = measurement_plan.initial_state(first, self.measurements.values(first)), None
        return self._run_rounds(state, pending, counted)

    def _check_counts(self, handles: Sequence[Any]) -> None:
        """Raise DataError before the charge if all rows are dropped, by whatever rule; empty files are released."""
        run, table = self.run, self.reader.data.table
        if not run.checks_rows or is_open_to_no_rows(run.run) or states_no_rows(table):
            return
        if not any(self.engine.map(has_counts, [(one,) for one in handles], "presence")):
            raise no_rows("data.path")

    def _passes(self, sources: Sequence[AttributeSet]) -> list[Pass]:
        sets = list(dict.fromkeys([*sources, *self.measurements.measurement_plan.candidates]))
        memory, workers = counting_memory(self.measurements.measurement_plan, self.run.job), self.engine.workers
        if self.run.record_weights is not None:  # a task has the weighted sum beside the counts of one period
            memory = memory * (workers + FACTOR) // (2 * workers + FACTOR)
        return plan_passes(self.run.domain, sets, memory, workers)

    @staticmethod
    def _first_passes(passes: Sequence[Pass], wanted: Sequence[Measurements]) -> int:
        """Return how many passes contain the sets of the first decision; at least one, which checks all values."""
        sources = {names for one in wanted for names in one.sources}
        return 1 + max((number for number, one in enumerate(passes) if not sources.isdisjoint(one.sets)), default=0)

    def _measure_pass(self, one: Pass, wanted: Sequence[Measurements], handles: Sequence[Any]) -> None:
        """Convert the exact counts of a pass to values on disk, one task for each file or piece of a file."""
        shard_of = {names: number for number, layout in enumerate(one.shards) for names in layout.sets}
        sets, items, secret = frozenset(shard_of), [], self.run.secret
        for piece in (piece for whole in wanted for piece in whole.within(sets)):
            numbers = sorted({shard_of[names] for names in piece.sources})
            layouts = [one.shards[number] for number in numbers]
            items.append((layouts, piece, secret, *(handles[number] for number in numbers)))
        self.engine.map(measure_layouts, items, "measure-marginals")

    def _run_rounds(self, state: Any, pending: Decision | None, counted: CountedPasses) -> Any:
        """Run rounds of selection, decision, measurement and update."""
        measurement_plan = self.measurements.measurement_plan
        if pending is None and measurement_plan.next_selection(state) is None:
            return state
        memory = self.run.job.engine.bytes
        whole = frozenset(measurement_plan.counted_sets) - frozenset(measurement_plan.candidates)
        shards = Shards(self.engine, self.run.domain, memory, self.reader.count, state.groups, state.rows, whole)
        shards.store(measurement_plan.counted_sets, counted)
        counted.clear()
        while pending is not None or measurement_plan.next_selection(state) is not None:
            state, pending = self._run_round(state, pending, shards), None
        return state

    def _run_round(self, state: Any, pending: Decision | None, shards: Shards) -> Any:
        measurement_plan = self.measurements.measurement_plan
        decision = self._record_decision(pending or self._select_decision(state, shards))
        shards.measure(self.measurements.missing(decision), self.run.secret)
        self.reader.data.check_unchanged()
        after = measurement_plan.next_state(state, decision, self.measurements.values(decision))
        self.scores.forget(measurement_plan.changed_sets(state, after))
        return after

    def _record_decision(self, decision: Decision) -> Decision:
        """Return the decision that is measured: the one on disk, or `decision` if there is none.

        The first decision is that of the plan. The decision is checked against the charged budget and recorded on the
        ledger first.
        """
        self._check_budget(decision)  # before the decision is written anywhere
        recorded = decision if decision.round == 0 else self.measurements.record_decision(decision)
        if recorded is not decision:
            self._check_budget(recorded)
        self.decisions.append(recorded)
        self._decide(recorded)
        return recorded

    def _decide(self, made: Decision) -> None:
        """Record the first decision with everything that determines it, and later ones, which follow from values."""
        digest = self.measurements.digest(made)
        if made.round:
            self.journal.charge()
            self.journal.record(made.round, digest)
        else:
            content = {"decision": digest, "plan": self.run.measurement_plan.digest}
            self.journal.decide(0, decision(self.run, self.reader.data, [content], self.run.domain))

    def _record_empty(self) -> None:
        """Record again the decisions that measure nothing, because no released value shows that the ledger has them."""
        for decision in self.measurements.decisions():
            if decision.round and not decision.requests:
                self._decide(decision)

    def _check_budget(self, decision: Decision) -> None:
        self.measurements.check_affordable([*self.decisions, decision])

    def _select_decision(self, state: Any, shards: Shards) -> Decision:
        measurement_plan = self.measurements.measurement_plan
        selection = measurement_plan.next_selection(state)
        assert selection is not None
        missing = self.scores.missing(selection.candidates)
        for distances in shards.distances(state.estimates, missing, selection.classes):
            self.scores.learn(distances)
        self.reader.data.check_unchanged()
        secret, head = self.run.secret.read(), self.measurements.head
        chosen = select_candidates(selection, self.scores.of(selection), self.measurements.rows_per_unit,
                             lambda label: open_stream(secret, "selection", {**head, **label}))  # fmt: skip
        decision = measurement_plan.make_decision(state, selection, chosen)
        check_selection_cost(decision, selection)
        return decision


def is_drawn(run: TablePart) -> bool:
    """Return whether all noise of a table is drawn, for example after a kill at the very end; complete its stage then.

    Nothing is drawn.
    """
    if run.done("measure"):
        return True
    try:
        measurements = run.measurements
        state, pending = measurements.replay()
    except UNREADABLE:  # an unreadable run can still be abandoned
        return False
    if pending is not None or measurements.measurement_plan.next_selection(state) is not None:
        return False
    with run.record_stage(run.stages["measure"]) if run.folder else nullcontext():
        write_trace(run.path / "trace.parquet", measurements.measurement_plan.trace(state))
        remove_partial(run.measurements_path)
    return True
