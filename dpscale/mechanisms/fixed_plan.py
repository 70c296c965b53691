"""Measurement plans of matrix mechanisms: a `Plan` fixes all measurements in one decision without selection."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.display import figure, percent
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.plans.measurement_plan import BlockRequests, Schedule, make_schedule
from dpscale.plans.plan import Plan, content_of, digest_of, write_plan
from dpscale.plans.time_plan import PeriodContext
from dpscale.privacy.accounting import LAPLACE, Budget, Cost
from dpscale.reconstruction.base import PlanEvidence
from dpscale.reconstruction.low_order import fully_measured
from dpscale.workload import Workload, WorkloadPart

MEASURED = 64  # bytes per cell or strategy row: counts, their product, noise in words, floats
GROUP = 1000  # records of a group whose mean's error is stated


def _sample_evenly(part: WorkloadPart, most: int) -> Sequence[AttributeSet]:
    """Return at most `most` evenly spaced sets of a part among those with positive weight."""
    sets = [names for names, weight in zip(part.sets, part.weights, strict=True) if np.any(weight)]
    return sets[:: -(-len(sets) // most)] if sets else sets


@dataclass(frozen=True, eq=False)
class AllBlocks:
    """The single decision of a fixed plan: all blocks."""

    requests: BlockRequests
    round: int = 0
    selection_cost: Fraction = Fraction(0)

    def to_dict(self) -> dict[str, Any]:
        return {"round": self.round, "measurements": len(self.requests)}

    def fits(self, other: object) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class FixedPlan:
    """Measurement plan of a matrix mechanism: a `Plan` at the budget of a problem, with exact noise and cost."""

    plan: Plan
    problem: PlanningProblem
    candidates: tuple[AttributeSet, ...] = ()
    can_simulate: bool = False

    @property
    def workload(self) -> Workload:
        return self.plan.workload

    @property
    def domain(self) -> Domain:
        return self.plan.domain

    @property
    def mechanism(self) -> str:
        return self.plan.mechanism

    @property
    def noise(self) -> str:
        return self.plan.noise

    @property
    def notes(self) -> tuple[str, ...]:
        return self.plan.notes

    @property
    def counted_sets(self) -> tuple[AttributeSet, ...]:
        return self.plan.counted_sets

    @property
    def largest(self) -> AttributeSet:
        return self.plan.largest

    @property
    def public_plan(self) -> Plan:
        return self.plan

    @property
    def profiles(self) -> Mapping[str, Floats]:
        return self.plan.accuracy.profiles

    @property
    def shares(self) -> dict[AttributeSet, float]:
        shares: dict[AttributeSet, float] = {}
        for attributes, share in zip(self.plan.blocks.sets, self.plan.blocks.share.tolist(), strict=True):
            shares[attributes] = shares.get(attributes, 0.0) + share
        return shares

    @cached_property
    def schedule(self) -> Schedule:
        """Noise of every block and its cost."""
        return make_schedule(self.plan, self.problem.budget.amount, self.problem.rows_per_unit)

    @property
    def cost(self) -> Cost:
        """Privacy cost of the whole release, exact and rounded up."""
        return self.schedule.spent

    @property
    def memory_needs(self) -> Iterator[tuple[int, str]]:
        """Bytes of the task that measures a block, for one block of each kind."""
        for index, _ in self.plan.blocks.kinds:
            block = self.plan.blocks[index]
            cells = max(math.prod(block.rows), self.domain.cells(block.attributes))
            yield MEASURED * cells, f"{', '.join(block.attributes) or 'the total'} (measuring)"

    def summary(self, budget: Budget) -> dict[str, Any]:
        """Return errors and optimality gap, known before any data are read."""
        gap = self.plan.optimality_gap
        return {"measurements": len(self.plan.blocks), "privacy_cost": budget.amount, "rmse": self._rmse(budget),
                "optimality_gap": gap if math.isfinite(gap) else None,
                **self._certified(budget)}  # fmt: skip

    def _certified(self, budget: Budget) -> dict[str, float]:
        """Return the fields that only some plans have: the bound over all mechanisms and the stationarity."""
        floor = {"rmse_bound_all": self._rmse(budget) * (self.plan.floor / self.plan.error) ** 0.5}
        flat = {} if self.plan.stationary is None else {"stationary": self.plan.stationary}
        return (floor if self.plan.floor > 0 else {}) | flat

    def expected_errors(self, budget: Budget, most: int) -> list[Mapping[str, Any]]:
        """Return the root mean square error in records of at most `most` sets of each part."""
        scale = self.problem.rows_per_unit / math.sqrt(budget.privacy_cost)
        return [
            self._expected(part, names, scale) for part in self.workload.parts for names in _sample_evenly(part, most)
        ]

    def _expected(self, part: WorkloadPart, attributes: AttributeSet, scale: float) -> Mapping[str, Any]:
        accuracy, queries, shown = self.plan.accuracy, part.count(attributes), part.shown(attributes)
        error, unit = scale * math.sqrt(accuracy.summed_variance(part, attributes) / queries), part.unit(attributes)
        if part.statistic is not None:
            error = part.statistic.half_range**part.statistic.power * error / GROUP
            unit = f"{unit}, of {GROUP:,} records"
        return {"name": f"{part.name}-{len(shown)}", "attributes": shown, "queries": queries, "error": error,
                "unit": unit}  # fmt: skip

    def cards(self, budget: Budget) -> list[tuple[str, str]]:
        cost = (("Laplace", "noise: discrete, exact; pure differential privacy, δ = 0") if self.noise == LAPLACE
                else (figure(float(self.cost.gaussian)), "privacy cost (squared Gaussian-DP μ)"))  # fmt: skip
        weighted = any(weight != 1.0 for part in self.workload.parts for weight in part.weights)
        error = "expected root mean square error of a query (records)" + (", weighted as the job says" * weighted)
        error += ", of sums relative to half their range" * bool(self.workload.numbers)
        return [cost, (figure(self._rmse(budget)), error), self._certificate(), *self._floor()]

    def _floor(self) -> list[tuple[str, str]]:
        """Return the ratio of the error to the bound over all matrix mechanisms, if known."""
        if self.plan.floor <= 0:
            return []
        ratio = (self.plan.error / self.plan.floor) ** 0.5
        return [
            (f"{ratio:.3g} ×", "the root mean square error over a lower bound for all matrix mechanisms (may be loose)")
        ]

    def _certificate(self) -> tuple[str, str]:
        gap = self.plan.optimality_gap
        if gap > 1e6:
            return "—", "no bound known for this mechanism"
        if self.plan.blocks[0].whole:
            bound = "the SVD bound, loose for Laplace noise" if self.noise == LAPLACE else "the SVD bound"
            return (
                f"{(1 + gap) ** 0.5:.3g} ×",
                f"the lower bound on the root mean square error of any strategy ({bound})",
            )

        least = "the minimum over all plans of this kind"
        return percent(gap), f"certified: the squared error is at most this far above {least}"

    def _rmse(self, budget: Budget) -> float:
        return self.problem.rows_per_unit * self.plan.rmse(budget.privacy_cost)

    def write(self, folder: Path) -> None:
        write_plan(folder, self.plan)

    @cached_property
    def digest(self) -> str:
        return digest_of(content_of(self.plan))

    @cached_property
    def noise_spec(self) -> list[Any]:
        """Noise of every block; together with plan, domain and secret it determines all draws."""
        return self.schedule.draws.noise_spec

    def check_low_order(self) -> None:
        fully_measured(self.plan)

    def for_period(self, context: PeriodContext) -> FixedPlan:
        """Return the plan itself: all periods have the same blocks."""
        return self

    def combined(self, factor: float) -> None:
        """Return None: there is one decision, whose noise follows from the budget."""

    @cached_property
    def _first(self) -> AllBlocks:
        return AllBlocks(BlockRequests(self.plan.blocks, self.schedule.draws, self.plan.sources))

    def first_decision(self) -> AllBlocks:
        """Return the decision: all blocks, each from the smallest counted set that contains its attributes."""
        return self._first

    def read_decision(self, record: Mapping[str, Any]) -> AllBlocks:
        raise ValueError("a plan has no later decision")

    def initial_state(self, first: AllBlocks, values: Sequence[Floats], second: object = None) -> None:
        """Return None: a fixed plan selects nothing and has no state."""

    def next_selection(self, state: None) -> None:
        """Return None: nothing is left to select."""

    def make_decision(self, state: None, selection: Any, chosen: Sequence[AttributeSet]) -> AllBlocks:
        raise ValueError("a plan has no later decision")

    def next_state(self, state: None, decision: Any, values: Sequence[Floats]) -> None:
        raise ValueError("a plan has no later decision")

    def changed_sets(self, before: None, after: None) -> Iterable[AttributeSet]:
        return ()

    def trace(self, state: None) -> None:
        """Return None: nothing is selected."""

    def evidence(self, taken: Sequence[tuple[AllBlocks, Sequence[Floats]]]) -> PlanEvidence:
        """Return the plan, the variances of the drawn noise, and the values, which are read on access."""
        (_, values), *_ = taken
        return PlanEvidence(self.plan, self.schedule.draws.variances.tolist(), values.__getitem__)
