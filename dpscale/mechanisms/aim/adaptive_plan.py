"""Measurement plan of the AIM mechanisms: candidates, cost and counted sets, and the rounds.

*Terms.* A run measures the 1-ways, the marginals of single attributes (`first`), and then selects *candidates*, sets of
attributes, in rounds. A `Setting` has the fixed parameters of the rounds; the estimator turns measurements into the
estimates by which the next round selects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import model_validator

from dpscale.base.display import figure
from dpscale.base.errors import JobError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.base.settings import Settings
from dpscale.domain import Domain
from dpscale.mechanisms.aim import state as states
from dpscale.mechanisms.aim.continued import EarlierState, begin
from dpscale.mechanisms.aim.decision import (
    BY_QUERIES,
    BY_STRATEGY,
    VERSION,
    AimDecision,
    strategies,
)
from dpscale.mechanisms.aim.estimators import EntropyEstimator, Estimator
from dpscale.mechanisms.aim.evidence import AdaptiveEvidence, DecisionValues
from dpscale.mechanisms.aim.periods import PeriodState, groups_of_period
from dpscale.mechanisms.aim.setting import DEGREE, BatchedSchedule, RoundSchedule, Setting
from dpscale.mechanisms.aim.state import AimState
from dpscale.mechanisms.contract import Mechanism, PlanningProblem, no_periods
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.plans.plan import digest_of, read_content, write_content
from dpscale.plans.time_plan import PeriodContext
from dpscale.privacy.accounting import LAPLACE, Budget, Cost
from dpscale.reconstruction.guessed import NO_SHARES, Shares
from dpscale.workload import Workload
from dpscale.workload.query_classes import QueryCandidates
from dpscale.workload.workload import targets_of, whole_weights


@dataclass(frozen=True, eq=False)
class AimRounds:
    """Rounds after the 1-ways, as `dpscale.plans.measurement_plan.Rounds`.

    Attributes
    ----------
    setting : Setting
    first : AimDecision
    earlier : EarlierState or None
    period : PeriodContext or None
    """

    setting: Setting
    first: AimDecision
    earlier: EarlierState | None = None
    period: PeriodContext | None = None

    @property
    def candidates(self) -> tuple[AttributeSet, ...]:
        return self.setting.candidates

    def start(self, values: Sequence[Floats], second: AimDecision | None = None) -> AimState:
        """Return the state after the first decision, with the groups of the second decision if it is stored.

        Groups depend on floating point numbers, which another machine may round differently.
        """
        groups = None if second is None else second.groups
        if groups is None and self.period is not None:
            groups = groups_of_period(self.setting, self.period, self.first, values)
        return begin(self.setting, self.first, values, groups, self.earlier)

    def read_decision(self, record: Mapping[str, Any]) -> AimDecision:
        return AimDecision.from_dict(record, self.setting)


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
    stored : mapping or None
        Content of plan.json if the plan was read from it.
    earlier : EarlierState or None
        State of earlier releases of the same records, from which the rounds start.
    period : PeriodContext or None
        The period of a growing table that is measured; see `dpscale.mechanisms.aim.periods`.
    """

    workload: Workload
    mechanism: str
    setting: Setting
    estimating: Setting
    kind: str
    options: Mapping[str, str]
    stored: Mapping[str, Any] | None = None
    earlier: EarlierState | None = None
    period: PeriodContext | None = None
    evidence_plan: None = None

    @property
    def candidates(self) -> tuple[AttributeSet, ...]:
        return self.setting.candidates

    @property
    def counted_sets(self) -> tuple[AttributeSet, ...]:
        """Sets whose exact counts are needed: 1-ways first."""
        ones = [(name,) for name in self.setting.names]
        return tuple(dict.fromkeys([*ones, *self.candidates]))

    @property
    def cost(self) -> Cost:
        """Privacy cost of the whole run, charged before its first draw."""
        return Cost(gaussian=self.setting.beta)

    @property
    def query_count(self) -> int:
        return self.workload.query_count

    def forecast(self, budget: Budget) -> AdaptiveForecast:
        return AdaptiveForecast(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of plan.json; `version` changes if the interpretation of measurements changes.

        A plan that was read keeps its stored content, so that rewriting it changes nothing.
        """
        if self.stored is not None:
            return dict(self.stored)

        version = BY_STRATEGY if self.setting.strategies else VERSION
        version = version if self.setting.queries is None else BY_QUERIES
        first = {key: value for key, value in self.first_decision().to_dict().items() if key in FIRST}
        return {"mechanism": self.mechanism, "version": version, "workload": self.workload.digest,
                "beta": str(self.setting.beta), "rows_per_unit": self.setting.rows_per_unit,
                "options": dict(self.options), "first": first,
                **({COARSER: True} if self.setting.above else {}),
                **_revision(self.setting)}  # fmt: skip

    def write(self, folder: Path) -> None:
        write_content(folder, self.to_dict())

    @property
    def digest(self) -> str:
        return digest_of(self.to_dict())

    @cached_property
    def _first(self) -> AimDecision:
        first = (self.stored or {}).get("first")
        return states.first_decision(self.setting) if first is None else states.stored_first(self.setting, first)

    def first_decision(self) -> AimDecision:
        """Return the decision to measure the 1-ways, each over its cells."""
        return self._first

    @property
    def rounds(self) -> AimRounds:
        return AimRounds(setting=self.setting, first=self._first, earlier=self.earlier, period=self.period)

    def evidence(self, taken: DecisionValues) -> AdaptiveEvidence:
        return AdaptiveEvidence(
            workload=self.workload, setting=self.setting, estimating=self.estimating, taken=taken, earlier=self.earlier
        )


@dataclass(frozen=True, eq=False)
class AdaptiveForecast:
    """What is known of an adaptive plan before any data are read: its cost and its candidates, and no errors."""

    plan: AdaptivePlan

    @property
    def notes(self) -> tuple[str, ...]:
        plan = self.plan
        sets = f"{len(plan.candidates)} candidates for {len(plan.setting.targets)} marginals"
        return (f"{plan.kind}; {sets}; measurements are selected during the run",)

    @property
    def summary(self) -> dict[str, Any]:
        """Cost and number of candidates; of a release that continues others also the cost of all together."""
        plan = self.plan
        together = {} if plan.earlier is None else plan.earlier.instalments.to_dict(plan.cost)
        return {"privacy_cost": float(plan.setting.beta), "candidates": len(plan.candidates), **together}

    @property
    def cards(self) -> list[tuple[str, str]]:
        """Figures of the report with their descriptions."""
        plan = self.plan
        together = [] if plan.earlier is None else [plan.earlier.instalments.card(plan.cost)]
        return [(figure(float(plan.setting.beta)), "privacy cost: squared μ of Gaussian differential privacy"),
                *together,
                (figure(len(plan.candidates)), "candidate sets; each round selected its measurements from the "
                 "estimates of the previous rounds")]  # fmt: skip

    def errors(self, most: int) -> tuple[()]:
        """Return an empty tuple: the measurements depend on the data."""
        return ()

    def estimates_of_guess(self, rows: float, shares: Shares = NO_SHARES) -> None:
        """Return None: the measurements depend on the data."""


ONES, SELECTING = Fraction(3, 10), Fraction(1, 10)  # share of β for the 1-ways, and of a round for its selections
GRAIN = 0.3  # coarseness of the groups of cells
FIRST = ("step", "orders")  # fields of the first decision in plan.json; the others follow from the domain
COARSER = "coarser"  # field of plan.json: tables at levels above those of the workload are candidates
REVISION = "schedule"  # field of plan.json: revision of the schedule, if an older one has other rounds
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
        return {name: json.dumps(value) if isinstance(value, list) else str(value)
                for name, value in self.model_dump().items()
                if name not in self.omitted or value != type(self).model_fields[name].default}  # fmt: skip

    @classmethod
    def from_exact(cls, options: Mapping[str, str]) -> Self:
        """Return the options that were written to plan.json; options that did not exist then have their defaults."""
        published = options.get("published") == str(True)
        texts = {name: text for name, text in options.items() if cls.fixed.get(name) != text}
        return cls.model_validate(
            {name: _parse_exact(text) for name, text in texts.items() if name in cls.with_published or not published}
        )

    @model_validator(mode="after")
    def _alone(self) -> Self:
        """Refuse options that change the published settings if `published` is true."""
        others = sorted(self.model_fields_set - set(self.with_published))
        if getattr(self, "published", False) and others:
            raise ValueError(JobError(f"mechanism.{others[0]}", "given together with published = true",
                                      "the paper's own settings", "leave it out"))  # fmt: skip
        return self


def _parse_exact(text: str) -> int | bool | str | list[Any]:
    """Return the value of an option from its text in plan.json: a list, a name, or a number or truth value."""
    if text.startswith("["):
        return list(json.loads(text))
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
                       "epsilon with delta, rho, renyi or privacy_cost", "add delta")  # fmt: skip

    targets = targets_of(problem.workload)
    sizes = {attribute.name: attribute.size for attribute in problem.workload.domain.attributes}
    weights: Iterable[int] = whole_weights(targets) if weighted else ()
    named: tuple[AttributeSet, ...] = tuple(targets)

    return Setting(
        sizes=sizes,
        targets=named,
        beta=Fraction(problem.budget.amount),
        rows_per_unit=problem.rows_per_unit,
        schedule=schedule,
        estimator=estimator,
        target_weights=tuple(weights),
        strategies=strategies(problem.workload) if cumulated else {},
        queries=QueryCandidates.of(problem.workload.domain, problem.workload.parts),
        above=_levels_above(problem.workload.domain) if coarser else {},
        is_known=_known(problem.workload.domain),
    )


def _revision(setting: Setting) -> dict[str, int]:
    """Return the revision of the schedule as a field of plan.json, unless the older one has the same rounds.

    They are the same without laws, if all pairs have about the same weight.
    """
    schedule = setting.schedule
    if not isinstance(schedule, BatchedSchedule) or schedule.revision == 1 or not setting.weights:
        return {}
    revisions = (1, schedule.revision)
    effective = {replace(schedule, revision=number).effective_pairs(setting.weights) for number in revisions}
    differs = bool(setting.law_degrees or schedule.leading(setting.weights)) or len(effective) > 1
    return {REVISION: schedule.revision} if differs else {}


def _before_revision(setting: Setting) -> Setting:
    """Return the setting with the schedule of plans without REVISION."""
    schedule = setting.schedule
    older = replace(schedule, revision=1) if isinstance(schedule, BatchedSchedule) else schedule
    return replace(setting, schedule=older)


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
        read = plan(replace(problem, budget=budget), options.from_exact(content["options"]))
        if read.mechanism != content["mechanism"]:
            raise ValueError("the plan of another mechanism")

        # older versions measure 1-ways by cells, score listed queries on cells, and have no coarser candidates
        by_strategy = {} if content["version"] == VERSION else read.setting.strategies
        by_queries = read.setting.queries if content["version"] == BY_QUERIES else None
        above = read.setting.above if content.get(COARSER) else {}
        setting = replace(read.setting, strategies=by_strategy, queries=by_queries, above=above)
        read = replace(read, stored=content, setting=setting, estimating=replace(read.estimating, above=above))
        if REVISION not in content:
            read = replace(read, setting=_before_revision(setting), estimating=_before_revision(read.estimating))
        read.first_decision()  # raises ValueError if the stored one does not fit

        return read
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError):
        raise JobError("run directory", f"the plan in {folder} is damaged, of another job, or of an unknown version",
                       "the plan as the run wrote it", "restore it, or start a new run") from None  # fmt: skip


def plan_of_period(plan: MeasurementPlan, context: PeriodContext) -> AdaptivePlan:
    """Return the plan of one period of a growing table, or of a combination of the values of several periods.

    Raises
    ------
    JobError
        If the rounds depend on the data of each period.
    """
    assert isinstance(plan, AdaptivePlan)
    if not isinstance(plan.setting.estimator, EntropyEstimator):
        raise no_periods(plan)

    state = partial(PeriodState, structure=context.structure)
    setting = replace(plan.setting, state=state)
    if isinstance(setting.schedule, BatchedSchedule):  # all pairs are measured, and no laws
        setting = replace(
            setting, schedule=replace(setting.schedule, degree=min(setting.schedule.degree, DEGREE), revision=1)
        )
    plan = replace(plan, setting=setting, period=context)
    if context.amount is None or Fraction(context.amount) == plan.setting.beta:
        return plan

    beta = Fraction(context.amount)  # values of several periods are combined
    return replace(plan, setting=replace(plan.setting, beta=beta), stored=None,
                   estimating=replace(plan.estimating, beta=beta))  # fmt: skip


def follows_from(stored: AdaptivePlan, plan: Callable[[], AdaptivePlan]) -> bool:
    """Return whether a plan is the one that `plan` returns; fields that an older plan.json lacks are not compared."""
    if stored.stored is None:
        return True
    expected, recorded = plan().to_dict(), {**stored.stored, "options": dict(stored.options)}
    return all(expected.get(name) == value for name, value in recorded.items())


def adaptive_mechanism(
    name: str,
    options: type[AnyOptions],
    plan: Callable[..., AdaptivePlan],
    forms: Callable[[AnyOptions], Sequence[str]],
    version: str,
    resumes: frozenset[str],
    **others: Any,
) -> Mechanism:
    """Return the mechanism of a function that plans rounds; see `Mechanism` for the other arguments.

    `plan` returns the plan of rounds, `forms` maps options to the forms of evidence, and `resumes` are the earlier
    versions whose plan files are measured as they are.
    """

    def read(folder: Path, problem: PlanningProblem, given: Any) -> AdaptivePlan:
        return read_adaptive_plan(folder, problem, options, plan)

    def follows(stored: AdaptivePlan, problem: PlanningProblem, given: Any) -> bool:
        return follows_from(stored, lambda: plan(problem, given))

    return Mechanism(
        name=name,
        Options=options,
        plan=plan,
        read=read,
        forms=forms,
        follows=follows,
        version=version,
        resumes=resumes,
        data_independent=False,
        **others,
    )
