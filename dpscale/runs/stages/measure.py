"""The measure stage: the only one that sees records and spends budget (see `spending` for its order).

The driver alone decides and advances, from released values. Exact counts of what may still be selected stay in shards
on the workers, of which only distances come back, for the exponential mechanism and for nothing else. Each decision
that does not follow from the plan is on disk and on the ledger before it is measured, so a run that is killed goes on
with the same streams, decides nothing twice and spends nothing twice, and a copy that decides otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dpscale.base.blas import one_thread
from dpscale.base.errors import RefusedValue
from dpscale.base.names import AttributeSet
from dpscale.engine import Engine
from dpscale.engine.counting import Pass, plan_passes
from dpscale.engine.faults import refused_everywhere
from dpscale.engine.shards import Shards
from dpscale.measurement import Measurements, Released, carry_out
from dpscale.measurement.adaptive import Scores, draw_chosen
from dpscale.measurement.affordable import check_affordable, check_choosing
from dpscale.plans.planned import Decision
from dpscale.privacy.streams import open_stream
from dpscale.records import Table
from dpscale.records.snapshot import Stamps, stamps
from dpscale.runs.run import Run
from dpscale.runs.stages.memory import check_room, counting_memory
from dpscale.runs.stages.reading import Reader, columns_of, open_table, snapshot_of
from dpscale.runs.stages.spending import charge, check_secret, hold_secret, keep_decision, keep_unmeasured, publish
from dpscale.runs.trace import write_trace

Counted = list[tuple[Pass, list[Any]]]


def perform(run: Run, engine: Engine) -> None:
    """Count, charge, draw, store."""
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


def measure(run: Run, engine: Engine, table: Table, released: Released, seen: Stamps) -> None:
    """All decisions that are left."""
    state, waiting = released.replayed()
    if waiting is not None or released.planned.selection(state) is not None:
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
    released: Released
    reader: Reader
    scores: Scores = field(default_factory=Scores)
    taken: list[Decision] = field(default_factory=list)

    def to_the_end(self, state: Any, waiting: Decision | None) -> Any:
        """The last state. A waiting first decision is measured pass by pass; later ones from the shards."""
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
            state, waiting = planned.begun(first, self.released.values(first)), None
        return self._chosen(state, waiting, counted)

    def _passes(self, sources: Sequence[AttributeSet]) -> list[Pass]:
        sets = list(dict.fromkeys([*sources, *self.released.planned.candidates]))
        memory = counting_memory(self.released.planned, self.run.job)
        return plan_passes(self.run.domain, sets, memory, self.engine.workers)

    @staticmethod
    def _needed(passes: Sequence[Pass], wanted: Sequence[Measurements]) -> int:
        """How many passes hold what the first decision measures; one at least, which holds all values to the domain."""
        sources = {names for one in wanted for names in one.sources}
        return 1 + max((number for number, one in enumerate(passes) if not sources.isdisjoint(one.sets)), default=0)

    def _measure_pass(self, one: Pass, wanted: Sequence[Measurements], handles: Sequence[Any]) -> None:
        """Turn the exact counts of a pass into values on disk: a task a file, or a piece of one."""
        shard_of = {names: number for number, layout in enumerate(one.shards) for names in layout.sets}
        sets, items = frozenset(shard_of), []
        for piece in (piece for whole in wanted for piece in whole.within(sets)):
            numbers = sorted({shard_of[names] for names in piece.sources})
            layouts = [one.shards[number] for number in numbers]
            items.append((layouts, piece, self.run.secret, *(handles[number] for number in numbers)))
        self.engine.map(carry_out, items, "measure")

    def _chosen(self, state: Any, waiting: Decision | None, counted: Counted) -> Any:
        """Rounds of select, decide, measure, update."""
        planned = self.released.planned
        if waiting is None and planned.selection(state) is None:
            return state
        memory = self.run.job.engine.bytes
        whole = frozenset(planned.counted) - frozenset(planned.candidates)
        shards = Shards(self.engine, self.run.domain, memory, self.reader.count, state.groups, state.rows, whole)
        shards.hold(planned.counted, counted)
        counted.clear()
        while waiting is not None or planned.selection(state) is not None:
            state, waiting = self._round(state, waiting, shards), None
        return state

    def _round(self, state: Any, waiting: Decision | None, shards: Shards) -> Any:
        planned = self.released.planned
        decision = self._standing(waiting or self._decided(state, shards))
        shards.carry_out(self.released.missing(decision), self.run.secret)
        self.reader.check_unchanged()
        after = planned.advanced(state, decision, self.released.values(decision))
        self.scores.forget(planned.touched(state, after))
        return after

    def _standing(self, decision: Decision) -> Decision:
        """What is measured: the decision on disk, this one unless another stands there; the first is the plan's.

        It is held against what was charged, and the ledger knows it first.
        """
        self._check(decision)  # before what was chosen is written anywhere
        standing = decision if decision.round == 0 else self.released.decide(decision)
        if standing is not decision:
            self._check(standing)
        self.taken.append(standing)
        keep_decision(self.run, self.released.release, standing.round, self.released.digest(standing))
        return standing

    def _check(self, decision: Decision) -> None:
        check_affordable([*self.taken, decision], self.released.spent, self.released.rows_per_unit)

    def _decided(self, state: Any, shards: Shards) -> Decision:
        planned = self.released.planned
        selection = planned.selection(state)
        assert selection is not None
        for distances in shards.distances(state.believed, self.scores.missing(selection.candidates)):
            self.scores.learn(distances)
        self.reader.check_unchanged()
        secret, head = self.run.secret.read(), self.released.head
        chosen = draw_chosen(selection, self.scores.of(selection), self.released.rows_per_unit,
                             lambda label: open_stream(secret, "selection", {**head, **label}))  # fmt: skip
        decision = planned.decided(state, selection, chosen)
        check_choosing(decision, selection)
        return decision
