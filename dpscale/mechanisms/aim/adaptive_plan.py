"""An AIM run before any record is read: all but what it will choose; and the chain of its states and decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from dpscale.base.arrays import Floats
from dpscale.base.display import AttributeSet, figure
from dpscale.base.errors import JobError
from dpscale.base.parallel import Each, plainly
from dpscale.base.settings import Settings, setting
from dpscale.domain import Domain
from dpscale.mechanisms.aim import state as states
from dpscale.mechanisms.aim.beliefs import Beliefs, EntropyBelief, Grem, MaximumEntropy
from dpscale.mechanisms.aim.decision import BY_STRATEGY, VERSION, Decision, Selection, strategies
from dpscale.mechanisms.aim.graphical import observed
from dpscale.mechanisms.aim.schedule import RoundSchedule
from dpscale.mechanisms.aim.setting import Setting
from dpscale.mechanisms.aim.state import State, absorbed, begun
from dpscale.mechanisms.contract import Question
from dpscale.plans.plan_file import check_content, digest_of, write_content
from dpscale.privacy.accounting import GAUSSIAN, LAPLACE, Budget, Cost
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.junction_tree.fit import Observed
from dpscale.reconstruction.simulated import Simulated, simulated
from dpscale.workload import Workload
from dpscale.workload.residual import subsets
from dpscale.workload.residual.grem import Residuals
from dpscale.workload.workload import targets_of, whole_weights

Taken = Sequence[tuple[Decision, Sequence[Floats]]]


@dataclass(frozen=True, eq=False)
class Adaptive:
    """All decisions with their values. `estimating`: the setting with what low-order tables are made by."""

    workload: Workload
    setting: Setting
    estimating: Setting
    taken: Taken
    noise: str = GAUSSIAN

    def least_squares(self) -> LeastSquaresEstimates:
        raise NotImplementedError("least squares of adaptive measurements is not in `reconstructions`")

    def residuals(self) -> Residuals:
        """As GReM has them, 1-ways among them (those of a run over groups of cells are over groups)."""
        return self._state(replace(self.setting, beliefs=Grem())).residuals

    def spans(self, names: AttributeSet) -> bool:
        """A residual that was measured over groups of several cells is not known cell by cell."""
        return all(kept in self._by_cell for kept in subsets(names) if kept)

    @cached_property
    def _by_cell(self) -> frozenset[AttributeSet]:
        """The residuals that some round measured over all cells."""
        return frozenset(order.names for decision, _ in self.taken for order in decision.orders
                         if all(grouping.count == grouping.size for grouping in order.groups))  # fmt: skip

    def measurements(self) -> list[Observed]:
        """1-ways over cells, and residuals over groups, each averaged over the rounds."""
        state = self._state(self.estimating)
        return observed(state.counts, state.groups, state.residuals)

    def low_order(self) -> LowOrder:
        return self._belief.model

    def simulated(self, model: LowOrder, seed: int, each: Each = plainly) -> Simulated:
        belief = self._belief
        return simulated(model, belief.counts, belief.residuals, belief.candidates, belief.chains, seed=seed, each=each)

    @cached_property
    def _belief(self) -> EntropyBelief:
        state, beliefs = self._state(self.estimating), self.estimating.beliefs
        assert isinstance(beliefs, MaximumEntropy)
        return beliefs.belief(state.counts, state.groups, state.residuals, self.estimating.candidates)

    def _state(self, setting: Setting) -> State:
        """After all rounds, for its estimates only."""
        (first, values), *later = self.taken
        state = begun(setting, first, list(values), later[0][0].groups if later else None)
        for decision, values_of in later:
            state = absorbed(state, decision, list(values_of))
        return state


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

    def decision(self, record: Mapping[str, Any]) -> Decision:
        return Decision.from_dict(record, self.setting)

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


FINEST = 1 << 20
AnyChosen = TypeVar("AnyChosen", bound=Chosen)


class Shares(Settings):
    """How the budget is shared, and over which cells sets are measured."""

    ones: float = setting(0.3, "a share from 0.01 to 0.99", "the 1-ways' share of β", ge=0.01, le=0.99)
    selecting: float = setting(
        0.1, "a share from 0.01 to 0.99", "the share of a round that pays its choices", ge=0.01, le=0.99
    )
    grain: float = setting(0.3, "a number from 0 to 100", "how coarse groups of cells are", ge=0, le=100)

    @property
    def share_of_ones(self) -> Fraction:
        return _share(self.ones)

    @property
    def share_of_choices(self) -> Fraction:
        return _share(self.selecting)

    def exact(self) -> dict[str, str]:
        """As plan.json has them."""
        shares = {"ones": self.share_of_ones, "selecting": self.share_of_choices}
        return {name: str(value) for name, value in (self.model_dump() | shares).items()}


def _share(value: float) -> Fraction:
    return Fraction(str(value)).limit_denominator(FINEST)


def requested_measurements(
    question: Question, schedule: RoundSchedule, beliefs: Beliefs, weighted: bool = True, cumulated: bool = False
) -> Setting:
    """The question as a setting; `weighted`: by the workload's weights; `cumulated`: 1-ways of which cumulative
    queries are asked are measured for these. JobError for pure privacy."""
    if question.noise == LAPLACE:
        raise JobError("privacy", "epsilon alone (pure) for an adaptive mechanism",
                       "epsilon with delta, rho or privacy_cost", "add delta")  # fmt: skip
    targets = targets_of(question.workload)
    sizes = {attribute.name: attribute.size for attribute in question.workload.domain.attributes}
    weights: Iterable[int] = whole_weights(targets) if weighted else ()
    named: tuple[AttributeSet, ...] = tuple(targets)
    return Setting(sizes, named, Fraction(question.budget.amount), question.rows_per_unit, schedule, beliefs,
                   tuple(weights), strategies(question.workload) if cumulated else {})  # fmt: skip


def matches_stored(planned: AnyChosen, folder: Path) -> AnyChosen:
    """The plan that follows from a job; JobError unless it is the one in the folder."""
    check_content(folder, planned.to_dict())
    return planned
