"""Measurement plan of the AIM mechanisms: candidates, cost and counted sets, and the chain of states and decisions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import model_validator

from dpscale.base.display import figure
from dpscale.base.errors import JobError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.base.settings import Settings
from dpscale.domain import Domain
from dpscale.mechanisms.aim import state as states
from dpscale.mechanisms.aim.decision import (
    BY_QUERIES,
    BY_STRATEGY,
    VERSION,
    AimDecision,
    AimSelection,
    ResidualRequest,
    deviation,
    strategies,
)
from dpscale.mechanisms.aim.estimators import EntropyEstimator, Estimator
from dpscale.mechanisms.aim.setting import RoundSchedule, Setting
from dpscale.mechanisms.aim.state import AdaptiveEvidence, AimState
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.plans.plan import digest_of, read_content, write_content
from dpscale.plans.time_plan import PeriodContext
from dpscale.privacy.accounting import GAUSSIAN, LAPLACE, Budget, Cost
from dpscale.privacy.draws import scaled_gaussian
from dpscale.reconstruction.consistency import NoisyCounts
from dpscale.workload import Workload
from dpscale.workload.query_classes import QueryCandidates
from dpscale.workload.residual.axes import Groups
from dpscale.workload.workload import targets_of, whole_weights


@dataclass(frozen=True, eq=False)
class AdaptivePlan:
    """Measurement plan of an adaptive mechanism. Errors are not known in advance.

    Attributes
    ----------
    workload : Workload
    mechanism : str
    setting : Setting
    estimating : Setting
        Setting with the estimator of low-order tables.
    kind : str
        Kind of estimates, for the report.
    options : mapping of str to str
        Options as written to plan.json.
    can_simulate : bool
        Whether errors can be simulated by drawing new noise.
    noise : str
    stored : mapping or None
        Content of plan.json if the plan was read from it.
    """

    workload: Workload
    mechanism: str
    setting: Setting
    estimating: Setting
    kind: str
    options: Mapping[str, str]
    can_simulate: bool = True
    noise: str = GAUSSIAN
    stored: Mapping[str, Any] | None = None

    @property
    def domain(self) -> Domain:
        return self.workload.domain

    @property
    def candidates(self) -> tuple[AttributeSet, ...]:
        return self.setting.candidates

    @property
    def counted_sets(self) -> tuple[AttributeSet, ...]:
        """Sets whose exact counts are needed: 1-ways first."""
        ones = [(name,) for name in self.setting.names]
        return tuple(dict.fromkeys([*ones, *self.setting.candidates]))

    @property
    def largest(self) -> AttributeSet:
        """Counted set with the most cells."""
        return max(self.counted_sets, key=self.domain.cells)

    @property
    def cost(self) -> Cost:
        """Privacy cost of the whole run, charged before its first draw."""
        return Cost(gaussian=self.setting.beta)

    @property
    def notes(self) -> tuple[str, ...]:
        sets = f"{len(self.candidates)} candidates for {len(self.setting.targets)} marginals"
        return (f"{self.kind}; {sets}; measurements are selected during the run",)

    @property
    def query_count(self) -> int:
        return self.workload.query_count

    @property
    def public_plan(self) -> AdaptivePlan:
        return self

    @property
    def profiles(self) -> dict[str, Floats]:
        return {}

    @property
    def shares(self) -> dict[AttributeSet, float]:
        return {}

    @property
    def memory_needs(self) -> Iterable[tuple[int, str]]:
        """Empty: measuring needs less memory than counting, which may use half of it."""
        return ()

    def summary(self, budget: Budget) -> dict[str, Any]:
        return {"privacy_cost": float(self.setting.beta), "candidates": len(self.candidates)}

    def expected_errors(self, budget: Budget, most: int) -> Sequence[Mapping[str, Any]]:
        """Return an empty tuple: the measurements depend on the data."""
        return ()

    def cards(self, budget: Budget) -> list[tuple[str, str]]:
        return [(figure(float(self.setting.beta)), "privacy cost: squared μ of Gaussian differential privacy"),
                (figure(len(self.candidates)), "candidate sets; each round selected its measurements from the "
                 "estimates of the previous rounds")]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the content of plan.json; `version` changes if the interpretation of measurements changes."""
        if self.stored is not None:
            return dict(self.stored)

        version = BY_STRATEGY if self.setting.strategies else VERSION
        version = version if self.setting.queries is None else BY_QUERIES
        first = {key: value for key, value in self.first_decision().to_dict().items() if key in FIRST}
        return {"mechanism": self.mechanism, "version": version, "workload": self.workload.digest,
                "beta": str(self.setting.beta), "rows_per_unit": self.setting.rows_per_unit,
                "options": dict(self.options), "first": first,
                **({COARSER: True} if self.setting.above else {})}  # fmt: skip

    def write(self, folder: Path) -> None:
        write_content(folder, self.to_dict())

    @property
    def digest(self) -> str:
        return digest_of(self.to_dict())

    @property
    def noise_spec(self) -> list[Any]:
        """Parameters that determine the noise of all rounds."""
        return [self.mechanism, str(self.setting.beta), self.setting.rows_per_unit]

    def check_low_order(self) -> None:
        """Do nothing: every 1-way is measured."""

    def for_period(self, context: PeriodContext) -> AdaptivePlan:
        """Return the plan of one period of a growing table. Raises JobError if the mechanism has none."""
        return PeriodicPlan.of(self, context)

    def combined(self, factor: float) -> AimDecision | None:
        """Return None: values of several periods are combined for plans of periods only."""
        return None

    @cached_property
    def _first(self) -> AimDecision:
        first = (self.stored or {}).get("first")
        return states.first_decision(self.setting) if first is None else states.stored_first(self.setting, first)

    def first_decision(self) -> AimDecision:
        """Return the decision to measure the 1-ways, each over its cells."""
        return self._first

    def read_decision(self, record: Mapping[str, Any]) -> AimDecision:
        return AimDecision.from_dict(record, self.setting)

    def initial_state(
        self, first: AimDecision, values: Sequence[Floats], second: AimDecision | None = None
    ) -> AimState:
        """Return the state after the first decision, with the groups of the second decision if it is stored.

        Groups depend on floating point numbers, which another machine may round differently.
        """
        return states.initial_state(self.setting, first, list(values), second.groups if second else None)

    def next_selection(self, state: AimState) -> AimSelection | None:
        return states.next_selection(state)

    def make_decision(self, state: AimState, selection: AimSelection, chosen: Sequence[AttributeSet]) -> AimDecision:
        return states.make_decision(state, selection, chosen)

    def next_state(self, state: AimState, decision: AimDecision, values: Sequence[Floats]) -> AimState:
        return states.next_state(state, decision, list(values))

    def changed_sets(self, before: AimState, after: AimState) -> list[AttributeSet]:
        return states.changed_sets(before, after)

    def trace(self, state: AimState) -> list[dict[str, Any]]:
        """Return one row for every measurement after the 1-ways.

        A row has its β including the selection, the L1 change of the estimate in records, and the expected change from
        noise alone.
        """
        return [
            {"round": number, "rank": rank, "attributes": list(names),
             "privacy_cost": float(note.step if names else note.selection_cost),
             "moved": note.moved[rank], "expected_noise": note.expected_noise[rank]}
            for number, note in enumerate(state.rounds, start=1)
            for rank, names in enumerate(note.chosen)
        ]  # fmt: skip

    def evidence(self, taken: Sequence[tuple[AimDecision, Sequence[Floats]]]) -> AdaptiveEvidence:
        return AdaptiveEvidence(self.workload, self.setting, self.estimating, taken)


@dataclass(frozen=True, eq=False)
class PeriodicPlan(AdaptivePlan):
    """Plan of one period of a growing table, or of a combination of the values of several periods.

    The first period measures the 1-ways. Their noisy values determine the groups of cells, for the records and the
    noise that are expected when a given number of periods has passed. Then every pair is measured over these groups,
    with even steps and without a selection, because the same measurements must be made in every period. Later periods
    measure the 1-ways and the pairs over the same groups, so the values of several periods can be combined
    (`plans.time_plan`).

    Attributes
    ----------
    context : PeriodContext
        Its structure is the second decision of the first period; None while that period is measured.
    """

    context: PeriodContext = field(default_factory=PeriodContext)

    @classmethod
    def of(cls, plan: AdaptivePlan, context: PeriodContext) -> PeriodicPlan:
        """Return the plan of a period. Raises JobError for mechanisms whose rounds depend on the data of each period.

        Parameters
        ----------
        plan : AdaptivePlan
        context : PeriodContext
        """
        if not isinstance(plan.setting.estimator, EntropyEstimator):
            raise JobError("mechanism.name", f"{plan.mechanism} as published with data.period",
                           "aim-grem without published, or a matrix mechanism such as weighted-residuals",
                           "choose one of them")  # fmt: skip

        content = {one.name: getattr(plan, one.name) for one in fields(AdaptivePlan)}
        if context.amount is not None and Fraction(context.amount) != plan.setting.beta:
            beta = Fraction(context.amount)  # values of several periods are combined
            content |= {"setting": replace(plan.setting, beta=beta), "stored": None,
                        "estimating": replace(plan.estimating, beta=beta)}  # fmt: skip

        return cls(**content, context=context)

    def initial_state(
        self, first: AimDecision, values: Sequence[Floats], second: AimDecision | None = None
    ) -> AimState:
        known = second if second is not None else self._structure
        groups = known.groups if known is not None else self._choose_groups(first, values)
        return states.initial_state(self.setting, first, list(values), groups)

    @property
    def _structure(self) -> AimDecision | None:
        return self.context.structure

    def _choose_groups(self, first: AimDecision, values: Sequence[Floats]) -> Mapping[str, Groups]:
        """Return groups for the counts and the noise of cumulative answers after `context.periods` periods."""
        setting, scale = self.setting, self.context.periods / self.context.weight
        measured = {
            request.names[0]: request.counts(value) for request, value in zip(first.requests, values, strict=True)
        }
        counts = {name: NoisyCounts(one.values * scale, one.variance * scale**2) for name, one in measured.items()}
        pairs = [names for names in setting.candidates if len(names) == 2]
        if not pairs:
            return first.groups

        noise = deviation((setting.beta - first.spent) / len(pairs), setting.rows_per_unit) * self.context.noise
        runs = {name: one for name in counts if (one := setting.runs(name)) is not None}
        return setting.estimator.groups(counts, noise, runs)

    def next_selection(self, state: AimState) -> AimSelection | None:
        """Return an empty selection before the pairs are measured, then None."""
        pairs = _pairs(state)
        if state.done or state.measured or not pairs:
            return None
        return AimSelection(
            1, (), {}, state.groups, 0, Fraction(0), state.left / len(pairs), 0.0, self.setting.rows_per_unit
        )

    def make_decision(self, state: AimState, selection: AimSelection, chosen: Sequence[AttributeSet]) -> AimDecision:
        """Return the measurements of all pairs: those of the structure, or new ones in the first period."""
        if self._structure is not None:
            return self._structure
        pairs = _pairs(state)
        return states.make_decision(state, replace(selection, candidates=pairs), pairs)

    def next_state(self, state: AimState, decision: AimDecision, values: Sequence[Floats]) -> AimState:
        return states.updated_state(state, decision, list(values))

    def combined(self, factor: float) -> AimDecision | None:
        """Return the second decision with `factor` times the noise variance; None if there is none.

        Parameters
        ----------
        factor : float
            Variance of a combination of values, in units of the variance of one period.
        """
        if self._structure is None:
            return None
        requests = tuple(_scaled(request, factor, self.setting.rows_per_unit) for request in self._structure.requests)
        cost = sum((one.draw.cost for one in requests), Fraction(0))
        step = max(cost / len(self._structure.measured), self._structure.step / Fraction(factor))
        return replace(self._structure, requests=requests, step=step)


def _pairs(state: AimState) -> tuple[AttributeSet, ...]:
    return tuple(names for names in state.offered if len(names) == 2)


def _scaled(request: ResidualRequest, factor: float, rows_per_unit: int) -> ResidualRequest:
    """Return a request with `factor` times its noise variance."""
    sensitivity = request.block.squared_l2_sensitivity
    return replace(request, draw=scaled_gaussian(request.draw, factor, sensitivity, rows_per_unit))


ONES, SELECTING = Fraction(3, 10), Fraction(1, 10)  # share of β for the 1-ways, and of a round for its selections
GRAIN = 0.3  # coarseness of the groups of cells
FIRST = ("step", "orders")  # fields of the first decision in plan.json; the others follow from the domain
COARSER = "coarser"  # field of plan.json: tables at levels above those of the workload are candidates
VERSIONS = (VERSION, BY_STRATEGY, BY_QUERIES)
AnyAdaptivePlan = TypeVar("AnyAdaptivePlan", bound=AdaptivePlan)
AnyOptions = TypeVar("AnyOptions", bound="AdaptiveOptions")


class AdaptiveOptions(Settings):
    """Options of an adaptive mechanism.

    Attributes
    ----------
    with_published : tuple of str
        Options that may be given together with `published = true`, including `published`.
    omitted : tuple of str
        Options that plan.json contains only if they differ from their defaults, since older plans lack them.
    fixed : mapping of str to str
        Constants that older plans contain as options.
    """

    with_published: ClassVar[tuple[str, ...]] = ("published",)
    omitted: ClassVar[tuple[str, ...]] = ()
    fixed: ClassVar[Mapping[str, str]] = {"ones": str(ONES), "selecting": str(SELECTING), "grain": str(GRAIN)}

    def exact(self) -> dict[str, str]:
        """Return the options as written to plan.json."""
        return {name: str(value) for name, value in self.model_dump().items()
                if name not in self.omitted or value != type(self).model_fields[name].default}  # fmt: skip

    @classmethod
    def from_exact(cls, options: Mapping[str, str]) -> Self:
        """Return the options that were written to plan.json; options that did not exist then have their defaults."""
        published = options.get("published") == str(True)
        given = {name: text for name, text in options.items() if cls.fixed.get(name) != text}
        return cls.model_validate(
            {name: _parse_exact(text) for name, text in given.items() if name in cls.with_published or not published}
        )

    @model_validator(mode="after")
    def _alone(self) -> Self:
        others = sorted(self.model_fields_set - set(self.with_published))
        if getattr(self, "published", False) and others:
            raise ValueError(JobError(f"mechanism.{others[0]}", "given together with published = true",
                                      "the paper's own settings", "leave it out"))  # fmt: skip
        return self


def _parse_exact(text: str) -> int | bool | str:
    return text if text.isalpha() and text not in ("True", "False") else json.loads(text.lower())


def make_setting(
    problem: PlanningProblem,
    schedule: RoundSchedule,
    estimator: Estimator,
    weighted: bool = True,
    cumulated: bool = False,
    coarser: bool = False,
) -> Setting:
    """Return the parameters of an adaptive run for a problem.

    Parameters
    ----------
    problem : PlanningProblem
    schedule : RoundSchedule
    estimator : Estimator
    weighted : bool
        Whether to use the weights of the workload.
    cumulated : bool
        Whether 1-ways with cumulative queries are measured by a strategy for such queries.
    coarser : bool
        Whether tables at levels above those of the workload are candidates.

    Raises
    ------
    JobError
        If the budget is pure ε.
    """
    if problem.noise == LAPLACE:
        raise JobError("privacy", "epsilon alone (pure) for an adaptive mechanism",
                       "epsilon with delta, rho or privacy_cost", "add delta")  # fmt: skip

    targets = targets_of(problem.workload)
    sizes = {attribute.name: attribute.size for attribute in problem.workload.domain.attributes}
    weights: Iterable[int] = whole_weights(targets) if weighted else ()
    named: tuple[AttributeSet, ...] = tuple(targets)

    return Setting(sizes, named, Fraction(problem.budget.amount), problem.rows_per_unit, schedule, estimator,
                   tuple(weights), strategies(problem.workload) if cumulated else {},
                   QueryCandidates.of(problem.workload.domain, problem.workload.parts),
                   _levels_above(problem.workload.domain) if coarser else {},
                   _known(problem.workload.domain))  # fmt: skip


def _known(domain: Domain) -> Callable[[AttributeSet], bool]:
    """Return whether sets follow from public totals."""
    return lambda names: domain.known_table(domain.ordered(names)) is not None


def _levels_above(domain: Domain) -> dict[str, AttributeSet]:
    """Return the levels above each level of a hierarchy but the first."""
    return {
        name: hierarchy.names[:place]
        for hierarchy in domain.hierarchies
        for place, name in enumerate(hierarchy.names)
        if place
    }


def read_adaptive_plan(
    folder: Path,
    problem: PlanningProblem,
    options: type[AnyOptions],
    plan: Callable[[PlanningProblem, AnyOptions], AnyAdaptivePlan],
) -> AnyAdaptivePlan:
    """Return the plan that plan.json describes: its own budget, options and first decision.

    Parameters
    ----------
    folder : Path
    problem : PlanningProblem
        Problem of the job. Workload and contribution bound must be those of the plan.
    options : type of AdaptiveOptions
    plan : callable
        Maps a problem and options to a plan.

    Raises
    ------
    JobError
        If the plan is damaged, belongs to another job, or has an unknown version.
    """
    try:
        content = read_content(folder)
        if (content["workload"], content["rows_per_unit"]) != (problem.workload.digest, problem.rows_per_unit):
            raise ValueError("the plan of another job")
        if content["version"] not in VERSIONS:
            raise ValueError("an unknown version")

        budget = replace(problem.budget, amount=float(Fraction(content["beta"])))
        made = plan(replace(problem, budget=budget), options.from_exact(content["options"]))
        if made.mechanism != content["mechanism"]:
            raise ValueError("the plan of another mechanism")

        by_strategy = {} if content["version"] == VERSION else made.setting.strategies
        by_queries = made.setting.queries if content["version"] == BY_QUERIES else None
        above = made.setting.above if content.get(COARSER) else {}
        setting = replace(made.setting, strategies=by_strategy, queries=by_queries, above=above)
        made = replace(made, stored=content, setting=setting, estimating=replace(made.estimating, above=above))
        made.first_decision()

        return made
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError):
        raise JobError("run directory", f"the plan in {folder} is damaged, of another job, or of an unknown version",
                       "the plan as the run wrote it", "restore it, or start a new run") from None  # fmt: skip


def follows_from(stored: AdaptivePlan, plan: Callable[[], AdaptivePlan]) -> bool:
    """Return whether a plan is the one that `plan` returns; fields that an older plan.json lacks are not compared."""
    if stored.stored is None:
        return True
    expected, recorded = plan().to_dict(), {**stored.stored, "options": dict(stored.options)}
    return all(expected.get(name) == value for name, value in recorded.items())
