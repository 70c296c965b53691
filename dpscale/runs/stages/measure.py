"""The measure stage, the only stage that reads records and spends budget (see `budget` for the order of its steps).

Only the driver decides and computes the next state, from released values. Exact counts of the remaining candidates stay
in shards on the workers. Only distances are returned from them, and only for the exponential mechanism. Each decision
that does not follow from the plan is on disk and on the ledger before it is measured. A killed run therefore resumes
with the same noise streams, decides nothing twice and spends nothing twice, and a copy that decides differently is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.errors import RefusedValue
from dpscale.base.numerics import AttributeSet, one_thread
from dpscale.engine.contribution_bounds import (
    collect_refusals,
)
from dpscale.engine.counting import FACTOR, Pass, plan_passes
from dpscale.engine.shards import Shards
from dpscale.measurement import Measurements, MeasurementStore, measure_layouts
from dpscale.measurement.adaptive import Scores, select_candidates
from dpscale.measurement.journal import Journal
from dpscale.measurement.measurement import check_selection_cost
from dpscale.plans.measurement_plan import Decision, State, candidates_of
from dpscale.privacy.streams import open_stream
from dpscale.runs.answers import write_trace
from dpscale.runs.charge import charge, journal_of
from dpscale.runs.earlier import check_fresh_noise
from dpscale.runs.preflight import check_memory, counting_memory
from dpscale.runs.run import UNREADABLE
from dpscale.runs.source import Source, columns_of, decision, is_open_to_no_rows, no_rows, states_no_rows
from dpscale.runs.table import TablePart
from dpscale.storage.files import remove_partial

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine


def has_counts(counts: Any) -> bool:
    """Return whether some exact counts of a pass, an array or several, are not zero."""
    arrays = counts if isinstance(counts, list | tuple) else [counts]
    return any(bool(np.any(array)) for array in arrays)


def has_selection(state: State | None) -> bool:
    """Return whether a round follows a state; there is no state without rounds."""
    return state is not None and state.selection is not None


CountedPasses = list[tuple[Pass, list[Any]]]


def perform(run: TablePart, engine: Engine) -> None:
    """Count, charge, draw noise and store the values.

    Whatever can refuse the job without its data (plan, memory) comes first. Values on disk of an earlier process are
    used again, and only what is missing is drawn.
    """
    run.check_plan()
    check_memory(run.measurement_plan, run.job, engine)
    source = Source.of(run, columns_of(run.domain, run.measurement_plan.counted_sets), engine)
    check_fresh_noise(run)
    if run.manifest.get("columns") is None:
        run.update(columns=_row_types(run, source.table.types()))
    measurements = run.open_measurements(run.release, source.snapshot)
    with one_thread():
        measure(source, measurements)
    remove_partial(run.measurements_path)


def _row_types(run: TablePart, types: Mapping[str, str]) -> dict[str, str]:
    """Return the types of the columns of rows: texts for dates with a format in files without types.

    `types` has the type of each column in the data, or "" if the file has none. All results are "" without synthetic
    rows, or if `synthesize.types` is not "input", because such rows do not have the types of the data.
    """
    if run.synthesis is None or run.synthesis.types != "input":
        return dict.fromkeys(types, "")
    dates = {attribute.name for attribute in run.domain.attributes if attribute.kind == "date" and attribute.format}
    return {name: kind or ("string" if name in dates else "") for name, kind in types.items()}


def measure(source: Source, measurements: MeasurementStore) -> None:
    """Make all remaining decisions, and write the trace of the rounds.

    A decision is a list of measurements, of the plan (round 0) or of a later round. `replay` returns the state after
    the stored decisions, and `pending`, the decision whose values are not all stored; None if there is none. If nothing
    is pending and no round follows, nothing is counted. The ledger is queried before rows are counted, so that no
    counts are computed for a refused job, and it is charged before a draw.
    """
    run, engine = source.part, source.engine
    state, pending = measurements.replay()
    if pending is not None or has_selection(state):
        run.secret.read()
        charge(run.run, reserve=False)
        try:
            state = MeasurementLoop(
                run=run, engine=engine, measurements=measurements, source=source, journal=journal_of(run)
            ).finish(state, pending)
        except RefusedValue as error:
            raise collect_refusals(engine, source.table, source.names, error) from None
    write_trace(run.path / "trace.parquet", None if state is None else state.trace())


@dataclass(eq=False)
class MeasurementLoop:
    """The remaining decisions of a release: select, record on disk and ledger, measure, update.

    Attributes
    ----------
    run : TablePart
    engine : Engine
    measurements : MeasurementStore
        Decisions and values on disk.
    source : Source
    journal : Journal
    scores : Scores
        Known distances of candidates from the estimates.
    decisions : list of Decision
        All decisions that are recorded so far.
    """

    run: TablePart
    engine: Engine
    measurements: MeasurementStore
    source: Source
    journal: Journal
    scores: Scores = field(default_factory=Scores)
    decisions: list[Decision] = field(default_factory=list)

    def finish(self, state: State | None, pending: Decision | None) -> State | None:
        """Measure what is decided and not stored, and run all further rounds; return the last state.

        A pending first decision is measured pass by pass over the rows: each pass counts some sets, which become
        values on disk before the next pass. Later decisions are measured from the counts of candidates, which stay on
        the workers. The charge comes after the first pass, which checks all values: refused data cost nothing.
        """
        measurement_plan, counted = self.measurements.measurement_plan, CountedPasses()
        first = pending if pending is not None and pending.round == 0 else None
        self.decisions += [decision for decision in self.measurements.decisions()
                           if pending is None or decision.round < pending.round]  # fmt: skip
        missing = self.measurements.missing(first) if first else []  # files of the decision that have no values yet
        passes = self._passes([names for measurements in missing for names in measurements.sources])
        for number, counted_sets in enumerate(passes[: self._first_passes(passes, missing)]):
            checked = () if number else self.source.names  # the first pass checks all values
            handles = self.source.count(counted_sets, checked)
            if number == 0:
                self._check_counts(handles)
                self.journal.charge()
                self._record_empty()
                if first is not None:
                    self._record_decision(first)
            self._measure_pass(counted_sets, missing, handles)
            if candidates_of(measurement_plan):
                counted.append((counted_sets, handles))

        if first is not None:
            state, pending = self.measurements.start(), None
        return self._run_rounds(state, pending, counted)

    def _check_counts(self, handles: Sequence[Any]) -> None:
        """Raise DataError before the charge if no row is counted; files that state no rows are released.

        `handles` are the exact counts of the first pass. They stay on the workers, which return only whether a count is
        not 0. A job that is refused here costs nothing.
        """
        run, table = self.run, self.source.table
        # rows of linked tables and joins are checked elsewhere; a charged run, or one with --empty, may have none
        if not run.checks_rows or is_open_to_no_rows(run.run) or states_no_rows(table):
            return
        if not any(self.engine.map(has_counts, [(handle,) for handle in handles], "presence")):
            raise no_rows("data.path")

    def _passes(self, sources: Sequence[AttributeSet]) -> list[Pass]:
        """Return the passes over the rows that count some sets and all candidates of later rounds."""
        sets = list(dict.fromkeys([*sources, *candidates_of(self.measurements.measurement_plan)]))
        memory, workers = counting_memory(self.measurements.measurement_plan, self.run.job), self.engine.workers
        if self.run.record_weights is not None:  # a task has the weighted sum beside the counts of one period
            # each worker has two arrays of counters instead of one
            memory = memory * (workers + FACTOR) // (2 * workers + FACTOR)
        return plan_passes(self.run.domain, sets, memory, workers)

    @staticmethod
    def _first_passes(passes: Sequence[Pass], missing: Sequence[Measurements]) -> int:
        """Return how many passes contain the sets of the first decision; at least one, which checks all values.

        Later passes count only candidates; they are read when the shards are filled.
        """
        sources = {names for measurements in missing for names in measurements.sources}
        needed = (number for number, counted in enumerate(passes) if not sources.isdisjoint(counted.sets))
        return 1 + max(needed, default=0)

    def _measure_pass(self, counted: Pass, missing: Sequence[Measurements], handles: Sequence[Any]) -> None:
        """Convert the exact counts of a pass to values on disk, one task for each file or piece of a file.

        The counts of a pass are in shards, each with its handle. A piece has the measurements of a file whose sets this
        pass counts.
        """
        shard_of = {names: number for number, layout in enumerate(counted.shards) for names in layout.sets}
        items = []
        for measurements in missing:
            for piece in measurements.within(frozenset(shard_of)):
                numbers = sorted({shard_of[names] for names in piece.sources})
                layouts = [counted.shards[number] for number in numbers]
                items.append((layouts, piece, self.run.secret, *(handles[number] for number in numbers)))
        self.engine.map(measure_layouts, items, "measure-marginals")

    def _run_rounds(self, state: State | None, pending: Decision | None, counted: CountedPasses) -> State | None:
        """Run rounds of selection, decision, measurement and update until nothing is selected; return the last state.

        `counted` are the counts of candidates from the passes so far, which move into the shards. A pending decision
        was recorded by an earlier process; its values are not stored yet.
        """
        measurement_plan = self.measurements.measurement_plan
        if state is None or (pending is None and state.selection is None):
            return state
        memory = self.run.job.engine.bytes
        # counted sets that no round selects
        whole = frozenset(measurement_plan.counted_sets) - frozenset(candidates_of(measurement_plan))
        shards = Shards(
            engine=self.engine,
            domain=self.run.domain,
            memory=memory,
            count=self.source.count,
            groups=state.groups,
            rows=state.rows,
            whole=whole,
        )
        shards.store(measurement_plan.counted_sets, counted)
        counted.clear()
        while pending is not None or state.selection is not None:
            state, pending = self._run_round(state, pending, shards), None
        return state

    def _run_round(self, state: State, pending: Decision | None, shards: Shards) -> State:
        """Measure the pending decision, or select one first; return the state after it."""
        decision = self._record_decision(pending or self._select_decision(state, shards))
        shards.measure(self.measurements.missing(decision), self.run.secret)
        # the counts may have been read again from files that changed meanwhile
        self.source.check_unchanged()
        after = state.after(decision, self.measurements.values(decision))
        self.scores.forget(state.changed_sets(after))
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

    def _decide(self, recorded: Decision) -> None:
        """Record a decision on the ledger.

        The first one is recorded with everything that determines the draws. Later ones follow from its values.
        """
        digest = self.measurements.digest(recorded)
        if recorded.round:
            self.journal.charge()
            self.journal.record(recorded.round, digest)
        else:
            content = {"decision": digest, "plan": self.run.measurement_plan.digest}
            self.journal.decide(0, decision(self.run, self.source, [content], self.run.domain))

    def _record_empty(self) -> None:
        """Record on the ledger again the stored decisions that measure nothing; recording one twice is free.

        A decision is written to disk, then to the ledger, and then measured. So a stored value shows that the ledger
        has its decision. A decision without requests has no value: if a process ended between the two writes, the
        ledger lacks it.
        """
        for stored in self.measurements.decisions():
            if stored.round and not stored.requests:  # `_record_decision` records round 0, that of the plan
                self._decide(stored)

    def _check_budget(self, decision: Decision) -> None:
        self.measurements.check_affordable([*self.decisions, decision])

    def _select_decision(self, state: State, shards: Shards) -> Decision:
        """Return the decision with the candidates that the exponential mechanism selects by their scores.

        The score of a candidate is the distance of its exact counts from the estimates; unchanged ones are known.
        """
        selection = state.selection
        assert selection is not None
        missing = self.scores.missing(selection.candidates)
        for distances in shards.distances(state.estimates, missing, selection.classes):
            self.scores.learn(distances)
        self.source.check_unchanged()
        secret, head = self.run.secret.read(), self.measurements.head
        chosen = select_candidates(selection, self.scores.of(selection), self.measurements.rows_per_unit,
                             lambda label: open_stream(secret, "selection", {**head, **label}))  # fmt: skip
        decision = state.decide(selection, chosen)
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
    if pending is not None or has_selection(state):
        return False
    with run.record_stage(run.stages["measure"]) if run.folder else nullcontext():
        write_trace(run.path / "trace.parquet", None if state is None else state.trace())
        remove_partial(run.measurements_path)
    return True
