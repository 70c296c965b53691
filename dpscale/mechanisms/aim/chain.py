"""An AIM run before any record is read: all but what it will choose; and the chain of its states and decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dpscale.base.arrays import Floats
from dpscale.base.names import AttributeSet
from dpscale.domain import Domain
from dpscale.mechanisms.aim import state as states
from dpscale.mechanisms.aim.decision import Decision
from dpscale.mechanisms.aim.evidence import Adaptive
from dpscale.mechanisms.aim.orders import BY_STRATEGY, VERSION
from dpscale.mechanisms.aim.selection import Selection
from dpscale.mechanisms.aim.setting import Setting
from dpscale.mechanisms.aim.state import State
from dpscale.plans.figures import figure
from dpscale.plans.planfile import digest_of, write_content
from dpscale.privacy.accounting import Cost
from dpscale.privacy.budget import GAUSSIAN, Budget
from dpscale.workload import Workload


@dataclass(frozen=True, eq=False)
class Chosen:
    """What will be chosen among, at what cost, and what has to be counted for it. Errors are not known beforehand.

    `estimating`: the setting with what low-order tables are made by; `kind`: of estimates, for readers; `options`: as
    plan.json has them.
    """

    workload: Workload
    mechanism: str
    setting: Setting
    estimating: Setting
    kind: str
    options: Mapping[str, str]
    redraws: bool = True
    noise: str = GAUSSIAN

    @property
    def domain(self) -> Domain:
        return self.workload.domain

    @property
    def candidates(self) -> tuple[AttributeSet, ...]:
        return self.setting.candidates

    @property
    def counted(self) -> tuple[AttributeSet, ...]:
        """The sets whose exact counts are needed: 1-ways first."""
        ones = [(name,) for name in self.setting.names]
        return tuple(dict.fromkeys([*ones, *self.setting.candidates]))

    @property
    def largest(self) -> AttributeSet:
        """The counted set with the most cells."""
        return max(self.counted, key=self.domain.cells)

    @property
    def cost(self) -> Cost:
        """What the whole run costs, charged before its first draw."""
        return Cost(gaussian=self.setting.beta)

    @property
    def notes(self) -> tuple[str, ...]:
        sets = f"{len(self.candidates)} candidates for {len(self.setting.targets)} marginals"
        return (f"{self.kind}; {sets}; what is measured is chosen as it goes",)

    @property
    def query_count(self) -> int:
        return self.workload.query_count

    @property
    def shown(self) -> Chosen:
        return self

    @property
    def profiles(self) -> dict[str, Floats]:
        return {}

    @property
    def shares(self) -> dict[AttributeSet, float]:
        return {}

    @property
    def needs(self) -> Iterable[tuple[int, str]]:
        """Measuring takes less than counting, which has half of the memory."""
        return ()

    def summary(self, budget: Budget) -> dict[str, Any]:
        return {"privacy_cost": float(self.setting.beta), "candidates": len(self.candidates)}

    def expected(self, budget: Budget, most: int) -> Sequence[Mapping[str, Any]]:
        """What will be measured follows from the data."""
        return ()

    def cards(self, budget: Budget) -> list[tuple[str, str]]:
        return [(figure(float(self.setting.beta)), "privacy cost: squared μ of Gaussian differential privacy"),
                (figure(len(self.candidates)), "sets to choose among; what each round measured was chosen by what was "
                 "known before it")]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """For plan.json. `version`: other code would read other numbers out of the measurements of an older run."""
        version = BY_STRATEGY if self.setting.strategies else VERSION
        return {"mechanism": self.mechanism, "version": version, "workload": self.workload.digest,
                "beta": str(self.setting.beta), "rows_per_unit": self.setting.rows_per_unit,
                "options": dict(self.options)}  # fmt: skip

    def write(self, folder: Path) -> None:
        write_content(folder, self.to_dict())

    @property
    def digest(self) -> str:
        return digest_of(self.to_dict())

    @property
    def law(self) -> list[Any]:
        """What the noise of all rounds is cut out of."""
        return [self.mechanism, str(self.setting.beta), self.setting.rows_per_unit]

    def check_low_order(self) -> None:
        """Every 1-way is measured."""

    @cached_property
    def _first(self) -> Decision:
        return states.first_decision(self.setting)

    def first(self) -> Decision:
        """The 1-ways, each over its cells."""
        return self._first

    def decision(self, told: Mapping[str, Any]) -> Decision:
        return Decision.from_dict(told, self.setting)

    def begun(self, first: Decision, values: Sequence[Floats], second: Decision | None = None) -> State:
        """Groups are those that the second decision wrote down, where there is one: they follow from floats, which
        another machine may round otherwise."""
        return states.begun(self.setting, first, list(values), second.groups if second else None)

    def selection(self, state: State) -> Selection | None:
        return states.next_selection(state)

    def decided(self, state: State, selection: Selection, chosen: Sequence[AttributeSet]) -> Decision:
        return states.decided(state, selection, chosen)

    def advanced(self, state: State, decision: Decision, values: Sequence[Floats]) -> State:
        return states.advanced(state, decision, list(values))

    def touched(self, before: State, after: State) -> list[AttributeSet]:
        return states.touched(before, after)

    def trace(self, state: State) -> list[dict[str, Any]]:
        """A row for every measurement after the 1-ways: β of it with its selection, how far it moved the estimate (L1,
        records), and how far its noise alone would have."""
        return [
            {"round": number, "rank": rank, "attributes": list(names),
             "privacy_cost": float(note.step if names else note.choosing),
             "moved": note.moved[rank], "expected_noise": note.expected_noise[rank]}
            for number, note in enumerate(state.rounds, start=1)
            for rank, names in enumerate(note.chosen)
        ]  # fmt: skip

    def evidence(self, taken: Sequence[tuple[Decision, Sequence[Floats]]]) -> Adaptive:
        return Adaptive(self.workload, self.setting, self.estimating, taken)
