"""The measure stage of an adaptive mechanism: rounds of select, decide, measure, update.

The driver alone decides and advances, from released values; exact counts stay in shards, of which only distances come
back, for the exponential mechanism and for nothing else. Each round's decision is on disk and on the ledger before it
is measured, so a run that is killed goes on with the same streams, decides nothing twice and spends nothing twice, and
a copy of its directory that comes to other decisions is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dpscale.adaptive import (
    Decision,
    Scores,
    State,
    advanced,
    begun,
    decided,
    draw_chosen,
    first_decision,
    next_selection,
    touched,
)
from dpscale.adaptive.setting import Names
from dpscale.blas import one_thread
from dpscale.engine import Engine
from dpscale.engine.counting import plan_passes
from dpscale.engine.shards import Shards
from dpscale.measure import carry_out
from dpscale.measure.rounds import Rounds
from dpscale.privacy.secret import read_secret
from dpscale.privacy.streams import open_stream
from dpscale.runs.run import RunDirectory
from dpscale.runs.trace import write_trace
from dpscale.stages.reading import Reader, columns_of
from dpscale.stages.spending import charge, check_secret, keep_decision
from dpscale.tables import Table
from dpscale.tables.snapshot import Stamps


def measure_adaptively(run: RunDirectory, engine: Engine, table: Table, rounds: Rounds, seen: Stamps) -> None:
    """All rounds that are left."""
    with one_thread():
        state, waiting = rounds.replayed()
        if state is None or waiting is not None or not state.done:
            check_secret(run)
            charge(run, rounds, reserve=False)
            reader = Reader.of(run, engine, table, seen, columns_of(run.domain, rounds.plan.counted))
            state = _Adapting(run, engine, rounds, reader).to_the_end(state, waiting)
        write_trace(run.path / "trace.parquet", state)


@dataclass(eq=False)
class _Adapting:
    run: RunDirectory
    engine: Engine
    rounds: Rounds
    reader: Reader
    scores: Scores = field(default_factory=Scores)

    def to_the_end(self, state: State | None, waiting: Decision | None) -> State:
        setting, memory = self.rounds.plan.setting, self.run.job.engine.bytes
        ones = [(name,) for name in setting.names] if state is None else []
        sets: list[Names] = list(dict.fromkeys([*ones, *setting.candidates]))
        passes = plan_passes(self.run.domain, sets, memory // 2, self.engine.workers)
        needed = 1 + max((i for i, one in enumerate(passes) if set(ones) & set(one.sets)), default=0)
        counted = [
            (one, self.reader.count(one) if i else self.reader.first(one)) for i, one in enumerate(passes[:needed])
        ]
        charge(self.run, self.rounds)
        if state is None:
            decision = self._standing(waiting or first_decision(setting))
            for one, handles in counted:
                self._measure_ones(decision, one.shards, handles)
            state, waiting = begun(setting, decision, self.rounds.values(decision)), None
        shards = Shards(self.engine, self.run.domain, memory, self.reader.count, state.groups, state.rows)
        if waiting is not None or not state.done:
            shards.hold(setting.candidates, counted)
        del counted
        while waiting is not None or not state.done:
            state, waiting = self._round(state, waiting, shards), None
        return state

    def _measure_ones(self, decision: Decision, layouts: tuple, handles: list) -> None:  # type: ignore[type-arg]
        orders = self.rounds.orders(decision)
        items = []
        for layout, handle in zip(layouts, handles, strict=True):
            mine = [order for order in orders if order.source in layout.sets]
            if mine:
                items.append((layout, mine, self.run.secret_path, handle))
        self.engine.map(carry_out, items, "measure")

    def _round(self, state: State, waiting: Decision | None, shards: Shards) -> State:
        decision = self._standing(waiting or self._decided(state, shards))
        shards.carry_out(self.rounds.orders(decision), self.run.secret_path)
        self.reader.check_unchanged()
        after = advanced(state, decision, self.rounds.values(decision))
        self.scores.forget(touched(state, after))
        return after

    def _standing(self, decision: Decision) -> Decision:
        """What is measured: the decision on disk, this one unless another stands there. The ledger knows it first."""
        standing = self.rounds.decide(decision)
        keep_decision(self.run, self.rounds.release, standing.round, self.rounds.digest(standing))
        return standing

    def _decided(self, state: State, shards: Shards) -> Decision:
        selection = next_selection(state)
        for found in shards.distances(state.believed, self.scores.missing(selection.candidates)):
            self.scores.learn(found)
        self.reader.check_unchanged()
        secret, head = read_secret(self.run.secret_path), self.rounds.head
        chosen = draw_chosen(selection, self.scores.of(selection),
                             lambda record: open_stream(secret, "selection", {**head, **record}))  # fmt: skip
        return decided(state, selection, chosen)
