"""The measure stage, the only stage that reads records and spends budget (see `budget` for the order of its steps).

Only the driver decides and computes the next state, from released values. Exact counts of the remaining candidates stay
in shards on the workers. Only distances are returned from them, and only for the exponential mechanism. Each decision
that does not follow from the plan is on disk and on the ledger before it is measured. A killed run therefore resumes
with the same noise streams, decides nothing twice and spends nothing twice, and a copy that decides differently is
refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpscale.base.display import AttributeSet
from dpscale.base.errors import DataError, RefusedValue
from dpscale.base.parallel import one_thread
from dpscale.domain import Domain
from dpscale.engine import Engine
from dpscale.engine.contribution_bounds import handed, read_through, rows_beyond, survey_units
from dpscale.engine.counting import Pass, partition_groups, plan_passes, run_pass
from dpscale.engine.faults import refused_everywhere
from dpscale.engine.frames import frame_table
from dpscale.engine.shards import Shards
from dpscale.measurement import Measurements, MeasurementStore, measure_layouts
from dpscale.measurement.adaptive import Scores, select_candidates
from dpscale.measurement.measurement import check_affordable, check_selection_cost
from dpscale.plans.measurement_plan import Decision
from dpscale.privacy.secret import read_secret, snapshot_tag
from dpscale.privacy.streams import open_stream
from dpscale.records import Table
from dpscale.records.frames import FRAME
from dpscale.records.snapshot import Stamps, layout, snapshot, stamps
from dpscale.records.table import Partition
from dpscale.runs.error_summary import write_trace
from dpscale.runs.fingerprints import frame_tag
from dpscale.runs.run import Run, origin_of
from dpscale.runs.stages.budget import charge, check_secret, hold_secret, keep_decision, keep_unmeasured, publish
from dpscale.runs.stages.preflight import check_room, counting_memory


def open_table(run: Run, names: Sequence[str], engine: Engine) -> Table:
    """Return the table of the run's files or of its data frame."""
    data = run.job.data
    wanted = [*run.domain.columns(names), *([data.privacy_unit] if data.privacy_unit else [])]
    if run.frame is not None:
        return frame_table(run.frame, run.domain, wanted, engine, data.matching)
    if data.path == FRAME:
        raise DataError("data", "none: this run is of a frame", "the frame that it began with",
                        "give it again by dp.run(job, data=frame)")  # fmt: skip
    table = origin_of(run).table(data.path, run.domain)
    table.require(wanted)
    return table


def columns_of(domain: Domain, counted: Sequence[AttributeSet]) -> list[str]:
    """Return the attributes that are measured; only their columns are read."""
    used = {name for attributes in counted for name in attributes} or {domain.names[0]}
    return [name for name in domain.names if name in used]


def snapshot_of(run: Run, table: Table, engine: Engine) -> str:
    """Return the tag of the data under the noise key; raise DataError if the data changed since the release began.

    If the noise key is destroyed, nothing can be drawn and the data are not read again.
    """
    begun = run.manifest["snapshot"]
    if begun is not None and run.read_matching_key() is None:
        return str(begun)
    data, lake = run.job.data, table.lake
    known = {"version": lake.version} if lake else layout(data.path, data.matching, data.dialect.format)
    content = content_hash(run, table, engine)
    tag = snapshot_tag(read_secret(run.secret_path), content)
    if begun not in (None, tag):
        raise _changed("the files changed since this release was begun")
    if begun is None or run.manifest.get("data") != known:
        run.update(snapshot=tag, data=known, **({"table": table.lake.told} if table.lake else {}))
    if run.frame is not None and "frame" not in run.manifest:
        run.update(frame=frame_tag(run.manifest["release"], content, create=True))
    return tag


def content_hash(run: Run, table: Table, engine: Engine) -> str:
    """Return the hash of the data that counts depend on: the table's files, those of the privacy units, and filters."""
    footers, each = run.job.data.snapshot == "footers", engine.each("snapshot")
    hops = run.job.data.unit_through or []
    contents = [snapshot(one, footers, each) for one in (table, *_hops(run))]
    contents += [str(run.job.data.matching)] if run.job.data.matching else []
    contents += [f"{number}: {hop.matching}" for number, hop in enumerate(hops) if hop.matching]
    return contents[0] if len(contents) == 1 else hashlib.sha256("".join(contents).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Reader:
    """Counter of passes over the table.

    Attributes
    ----------
    seen : Stamps
        State of the files when the stage began.
    columns : list of str
        All columns that are read.
    dropped : mapping of Partition, optional
        Rows that exceed the contribution bound.
    """

    run: Run
    engine: Engine
    table: Table
    seen: Stamps
    columns: list[str]
    groups: list[Any]
    dropped: Mapping[Partition, Any] | None

    @classmethod
    def of(cls, run: Run, engine: Engine, table: Table, seen: Stamps, columns: list[str]) -> Reader:
        groups = partition_groups(table.partitions, engine.workers)
        return cls(run, engine, table, seen, columns, groups, _dropped(run, engine, table, groups, columns))

    def first(self, one: Pass) -> list[Any]:
        """Return the handles of a pass that also checks every column against the domain."""
        return self.count(one, self.columns)

    def count(self, one: Pass, checked: Sequence[str] = ()) -> list[Any]:
        """Return handles of the exact counts of a pass.

        Every pass reads the columns whose values can drop a row, so that all passes omit the same rows.
        """
        dropping = [name for name in self.columns if self.run.domain[name].drops]
        handles = run_pass(self.engine, one, self.groups, [*checked, *dropping], self.dropped)
        self.check_unchanged()
        return handles

    def check_unchanged(self) -> None:
        """Raise DataError if a file changed; counts lost with a worker may be read from it again."""
        if stamps(self.table) != self.seen:
            raise _changed("the files changed while they were read")


def _changed(got: str) -> DataError:
    return DataError(
        "data.path", got, "the same files", "restore them, or end this run and start a new one with --fresh"
    )


def _dropped(
    run: Run, engine: Engine, table: Table, groups: Sequence[Any], names: Sequence[str]
) -> Mapping[Partition, Any] | None:
    data = run.job.data
    if data.privacy_unit is None or data.max_rows_per_unit is None:
        return None
    rows = survey_units(engine, table.partitions, data.privacy_unit)
    hops = [(one, hop.key, hop.unit) for one, hop in zip(_hops(run), data.unit_through or [], strict=True)]
    through = read_through(engine, hops) if hops else None
    found = rows_beyond(engine, run.domain, groups, data.privacy_unit, data.max_rows_per_unit, rows,
                        run.job.engine.bytes, names, data.unit_nulls == "drop", through)  # fmt: skip
    return handed(engine, found)


def _hops(run: Run) -> list[Table]:
    """Return the tables that define the privacy unit."""
    return [one.origin.table(one.path, run.domain) for one in run.job.data.unit_through or []]


Counted = list[tuple[Pass, list[Any]]]


def perform(run: Run, engine: Engine) -> None:
    """Count, charge, draw noise and store the values."""
    check_room(run.planned, run.job, engine)
    table = open_table(run, columns_of(run.domain, run.planned.counted), engine)
    engine.check_sight(run.path, table.files)
    hold_secret(run)
    if run.manifest.get("columns") is None:
        public = run.synthesis is not None and run.synthesis.types == "input"
        run.update(columns={name: kind if public else "" for name, kind in table.types().items()})
    seen = stamps(table)
    released = run.releasing(run.manifest["release"], snapshot_of(run, table, engine))
    with one_thread():
        measure(run, engine, table, released, seen)
    publish(run, released)


def measure(run: Run, engine: Engine, table: Table, released: MeasurementStore, seen: Stamps) -> None:
    """Make all remaining decisions."""
    state, waiting = released.replay()
    if waiting is not None or released.planned.next_selection(state) is not None:
        check_secret(run)
        charge(run, released, reserve=False)
        columns = columns_of(run.domain, released.planned.counted)
        try:
            reader = Reader.of(run, engine, table, seen, columns)
            state = _Measuring(run, engine, released, reader).to_the_end(state, waiting)
        except RefusedValue as met:
            raise refused_everywhere(engine, table, columns, met) from None
    write_trace(run.path / "trace.parquet", released.planned.trace(state))


@dataclass(eq=False)
class _Measuring:
    run: Run
    engine: Engine
    released: MeasurementStore
    reader: Reader
    scores: Scores = field(default_factory=Scores)
    taken: list[Decision] = field(default_factory=list)

    def to_the_end(self, state: Any, waiting: Decision | None) -> Any:
        """Return the last state.

        A pending first decision is measured pass by pass, later ones from the shards.
        """
        planned, counted = self.released.planned, Counted()
        first = waiting if waiting is not None and waiting.round == 0 else None
        self.taken += [one for one in self.released.decisions() if waiting is None or one.round < waiting.round]
        wanted = self.released.missing(first) if first else []
        passes = self._passes([names for one in wanted for names in one.sources])
        for number, one in enumerate(passes[: self._needed(passes, wanted)]):
            handles = self.reader.count(one) if number else self.reader.first(one)
            if number == 0:
                charge(self.run, self.released)
                keep_unmeasured(self.run, self.released)
                self._standing(first) if first is not None else None
            self._measure_pass(one, wanted, handles)
            if planned.candidates:
                counted.append((one, handles))
        if first is not None:
            state, waiting = planned.initial_state(first, self.released.values(first)), None
        return self._chosen(state, waiting, counted)

    def _passes(self, sources: Sequence[AttributeSet]) -> list[Pass]:
        sets = list(dict.fromkeys([*sources, *self.released.planned.candidates]))
        memory = counting_memory(self.released.planned, self.run.job)
        return plan_passes(self.run.domain, sets, memory, self.engine.workers)

    @staticmethod
    def _needed(passes: Sequence[Pass], wanted: Sequence[Measurements]) -> int:
        """Return how many passes contain the sets of the first decision; at least one, which checks all values."""
        sources = {names for one in wanted for names in one.sources}
        return 1 + max((number for number, one in enumerate(passes) if not sources.isdisjoint(one.sets)), default=0)

    def _measure_pass(self, one: Pass, wanted: Sequence[Measurements], handles: Sequence[Any]) -> None:
        """Convert the exact counts of a pass to values on disk, one task for each file or piece of a file."""
        shard_of = {names: number for number, layout in enumerate(one.shards) for names in layout.sets}
        sets, items = frozenset(shard_of), []
        for piece in (piece for whole in wanted for piece in whole.within(sets)):
            numbers = sorted({shard_of[names] for names in piece.sources})
            layouts = [one.shards[number] for number in numbers]
            items.append((layouts, piece, self.run.secret, *(handles[number] for number in numbers)))
        self.engine.map(measure_layouts, items, "measure")

    def _chosen(self, state: Any, waiting: Decision | None, counted: Counted) -> Any:
        """Run rounds of selection, decision, measurement and update."""
        planned = self.released.planned
        if waiting is None and planned.next_selection(state) is None:
            return state
        memory = self.run.job.engine.bytes
        whole = frozenset(planned.counted) - frozenset(planned.candidates)
        shards = Shards(self.engine, self.run.domain, memory, self.reader.count, state.groups, state.rows, whole)
        shards.hold(planned.counted, counted)
        counted.clear()
        while waiting is not None or planned.next_selection(state) is not None:
            state, waiting = self._round(state, waiting, shards), None
        return state

    def _round(self, state: Any, waiting: Decision | None, shards: Shards) -> Any:
        planned = self.released.planned
        decision = self._standing(waiting or self._decided(state, shards))
        shards.carry_out(self.released.missing(decision), self.run.secret)
        self.reader.check_unchanged()
        after = planned.next_state(state, decision, self.released.values(decision))
        self.scores.forget(planned.changed_sets(state, after))
        return after

    def _standing(self, decision: Decision) -> Decision:
        """Return the decision that is measured: the one on disk, or `decision` if there is none.

        The first decision is that of the plan. The decision is checked against the charged budget and recorded on the
        ledger first.
        """
        self._check(decision)  # before what was chosen is written anywhere
        standing = decision if decision.round == 0 else self.released.record_decision(decision)
        if standing is not decision:
            self._check(standing)
        self.taken.append(standing)
        keep_decision(self.run, self.released.release, standing.round, self.released.digest(standing))
        return standing

    def _check(self, decision: Decision) -> None:
        check_affordable([*self.taken, decision], self.released.spent, self.released.rows_per_unit)

    def _decided(self, state: Any, shards: Shards) -> Decision:
        planned = self.released.planned
        selection = planned.next_selection(state)
        assert selection is not None
        for distances in shards.distances(state.estimates, self.scores.missing(selection.candidates)):
            self.scores.learn(distances)
        self.reader.check_unchanged()
        secret, head = self.run.secret.read(), self.released.head
        chosen = select_candidates(selection, self.scores.of(selection), self.released.rows_per_unit,
                             lambda label: open_stream(secret, "selection", {**head, **label}))  # fmt: skip
        decision = planned.make_decision(state, selection, chosen)
        check_selection_cost(decision, selection)
        return decision
