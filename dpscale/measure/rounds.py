"""An adaptive run on disk: a file for each round's decision, written before anything of it is drawn, and its values.

    measurements/round-000.json, round-001.json, …   measurements/<hash of the record>.parquet
A decision that is there is never taken again, and a value that is there is never drawn again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.adaptive import Decision, State, absorbed, advanced, begun
from dpscale.adaptive import Order as Asked
from dpscale.adaptive.plan import AdaptivePlan
from dpscale.errors import JobError, TransientError
from dpscale.measure import Order
from dpscale.measure.store import read_values, record_digest
from dpscale.measure.tags import round_tag
from dpscale.privacy.accounting import Cost
from dpscale.privacy.streams import canonical
from dpscale.storage.files import create, present, read_bytes

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Rounds:
    """The rounds of an adaptive plan, in a folder. `secret`: of the release, while it lives; it seals decisions."""

    folder: Path
    release: str
    snapshot: str
    plan: AdaptivePlan
    secret: bytes | None = field(default=None, repr=False)

    @property
    def spent(self) -> Cost:
        """What the whole run costs, charged before its first draw."""
        return Cost(zcdp=self.plan.setting.rho)

    @property
    def law(self) -> list[Any]:
        return [self.plan.mechanism, str(self.plan.setting.rho), self.plan.setting.rows_per_unit]

    @property
    def head(self) -> dict[str, Any]:
        """What the records of all draws begin with."""
        return {"release": self.release, "snapshot": self.snapshot, "domain": self.plan.domain.digest}

    def decide(self, decision: Decision) -> Decision:
        """Keep a decision: from now on it is what the round measures. Where one stands already, that is it."""
        told, path = decision.to_dict(), self._path(decision.round)
        sealed = json.dumps(told | {"seal": self._seal(told)}).encode()
        if create(path, sealed):
            return decision
        found = self._read(decision.round)
        if found.groups != decision.groups:  # this run's shards are of other groups
            raise TransientError("measurements", f"another process wrote {path.name} meanwhile", "one at a time",
                                 "run again: it goes on behind that")  # fmt: skip
        return found

    def digest(self, decision: Decision) -> str:
        """SHA-256 of what a round decided, by which the ledger knows it again: a function of what is released."""
        return hashlib.sha256(canonical(decision.to_dict())).hexdigest()

    def decisions(self) -> Iterator[Decision]:
        """The decisions taken, in order."""
        number, spent, groups = 0, Fraction(0), None
        while present(self._path(number)):
            decision = self._read(number)
            spent, groups = spent + decision.spent, decision.groups if number < 2 else groups
            if spent > self.plan.setting.rho or decision.round != number or decision.groups != groups:
                raise self._foreign(number)
            yield decision
            number += 1

    def orders(self, decision: Decision) -> list[Order]:
        """A round's measurements that have no file yet: each from the counts of the set that it was chosen for."""
        made = []
        for asked in decision.orders:
            record = self._record(asked)
            path = self.folder / f"{record_digest(record)}.parquet"
            if not present(path):
                made.append(Order(decision.chosen[asked.rank], asked.block, asked.draw, record, path))
        return made

    def values(self, decision: Decision) -> list[Array]:
        """What a round measured, as the state takes it."""
        found = []
        for asked in decision.orders:
            record = self._record(asked)
            values = read_values(self.folder / f"{record_digest(record)}.parquet", record)
            found.append(asked.estimate(values.reshape(asked.block.rows)))
        return found

    def replayed(self) -> tuple[State | None, Decision | None]:
        """The state after the rounds that are measured, and the decision that waits for its measurements."""
        state, taken = None, list(self.decisions())
        for decision in taken:
            if self.orders(decision):
                return state, decision
            values = self.values(decision)
            state = self._begun(taken, values) if state is None else advanced(state, decision, values)
        return state, None

    def final(self, published: bool) -> State:
        """The state after all rounds, for its estimates only: by GReM as published, or by local maximum entropy."""
        taken = list(self.decisions())
        state = self._begun(taken, self.values(taken[0]), published)
        for decision in taken[1:]:
            state = absorbed(state, decision, self.values(decision))
        return state

    def _begun(self, taken: Sequence[Decision], values: Sequence[Array], published: bool | None = None) -> State:
        """The state after the 1-ways. Groups are those that the next decision wrote down, where there is one: they
        follow from floats, which another machine may round otherwise."""
        setting, groups = self.plan.setting, taken[1].groups if len(taken) > 1 else None
        if published is not None:
            setting = replace(setting, options=replace(setting.options, published=published))
        return begun(setting, taken[0], values, groups)

    def _record(self, asked: Asked) -> dict[str, Any]:
        return {**self.head, **asked.record()}

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:03d}.json"

    def _read(self, number: int) -> Decision:
        try:
            told = dict(json.loads(read_bytes(self._path(number))))
            seal = told.pop("seal")
            if self.secret is not None and seal != self._seal(told):
                raise ValueError("edited")
            return Decision.from_dict(told, self.plan.setting)
        except (FileNotFoundError, ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError):
            raise self._foreign(number) from None

    def _seal(self, told: dict[str, Any]) -> str | None:
        """The tag of a decision; None where the secret is gone, and nothing can be drawn any more."""
        return None if self.secret is None else round_tag(self.secret, canonical(told).decode())

    def _foreign(self, number: int) -> JobError:
        got = f"{self._path(number).name} is no round of this run"
        return JobError("measurements", got, "the file as it was written", "restore it, or start a new run")
