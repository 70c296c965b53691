"""Plan of AIM+GReM for the periods of a growing table: structure from the first period, measured in every period.

The first period measures the 1-ways. Their noisy values determine the groups of cells, for the records and the noise
that are expected when a given number of periods has passed. Then every pair is measured over these groups, with even
steps and without a selection, because the same measurements must be made in every period. Later periods measure the
1-ways and the pairs over the same groups, so the values of several periods can be combined (`plans.time_plan`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction

from dpscale.base.errors import JobError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.mechanisms.aim import state as states
from dpscale.mechanisms.aim.adaptive_plan import AdaptivePlan
from dpscale.mechanisms.aim.decision import AimDecision, AimSelection, ResidualRequest, deviation
from dpscale.mechanisms.aim.estimators import EntropyEstimator
from dpscale.mechanisms.aim.state import AimState
from dpscale.plans.time_plan import PeriodContext
from dpscale.privacy.draws import scaled_gaussian
from dpscale.reconstruction.one_way import NoisyCounts
from dpscale.workload.residual.in_axis import Groups


@dataclass(frozen=True, eq=False)
class PeriodicPlan(AdaptivePlan):
    """Plan of one period, or of a combination of the values of several periods.

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
        found: AimDecision | None = self.context.structure
        return found

    def _choose_groups(self, first: AimDecision, values: Sequence[Floats]) -> Mapping[str, Groups]:
        """Return groups for the counts and the noise of cumulative answers after `context.periods` periods."""
        setting, scale = self.setting, self.context.periods / self.context.weight
        measured = {request.names[0]: request.counts(own) for request, own in zip(first.requests, values, strict=True)}
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
        return AimSelection(1, (), {}, state.groups, 0, Fraction(0), state.left / len(pairs), 0.0,
                            self.setting.rows_per_unit)  # fmt: skip

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
