"""Rounds of one period of a growing table, or of a combination of the values of several periods.

The first period measures the 1-ways. Their noisy values determine the groups of cells, for the records and the noise
that are expected when a given number of periods has passed. Then every pair is measured over these groups, with even
steps and without a selection, because the same measurements must be made in every period. Later periods start from this
decision: they measure the 1-ways and the pairs over the same groups, so the values of several periods can be combined
(`plans.time_plan`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from dpscale.base.numerics import AttributeSet, Floats
from dpscale.mechanisms.aim.decision import AimDecision, AimSelection, deviation
from dpscale.mechanisms.aim.setting import Setting
from dpscale.mechanisms.aim.state import AimState
from dpscale.plans.time_plan import PeriodContext
from dpscale.reconstruction.consistency import NoisyCounts
from dpscale.workload.residual import Groups


@dataclass(frozen=True, eq=False, kw_only=True)
class PeriodState(AimState):
    """State of a period, whose second decision measures all pairs.

    Attributes
    ----------
    structure : AimDecision or None
        The second decision of the first period; None while that period is measured.
    """

    structure: AimDecision | None = None

    @property
    def _pairs(self) -> tuple[AttributeSet, ...]:
        return tuple(names for names in self.offered if len(names) == 2)

    @cached_property
    def selection(self) -> AimSelection | None:
        """An empty selection before the pairs are measured, then None."""
        pairs = self._pairs
        if self.done or self.measured or not pairs:
            return None
        return AimSelection(
            round=1,
            candidates=(),
            weights={},
            groups=self.groups,
            count=0,
            beta=Fraction(0),
            step=self.left / len(pairs),
            penalty=0.0,
            rows_per_unit=self.setting.rows_per_unit,
        )

    def decide(self, selection: AimSelection, chosen: Sequence[AttributeSet]) -> AimDecision:
        """Return the measurements of all pairs: those of the structure, or new ones in the first period."""
        if self.structure is not None:
            return self.structure
        return super().decide(replace(selection, candidates=self._pairs), self._pairs)

    def after(self, decision: AimDecision, values: Sequence[Floats]) -> PeriodState:
        return self.updated(decision, values)


def groups_of_period(
    setting: Setting, context: PeriodContext, first: AimDecision, values: Sequence[Floats]
) -> Mapping[str, Groups]:
    """Return the groups of the structure, or those for cumulative answers after `context.periods` periods.

    Counts and their noise are scaled from the weight of the first period to `context.periods` periods.
    """
    if context.structure is not None:
        groups: Mapping[str, Groups] = context.structure.groups
        return groups

    pairs = [names for names in setting.candidates if len(names) == 2]
    if not pairs:
        return first.groups

    scale = context.periods / context.weight
    counts = dict[str, NoisyCounts]()
    for request, value in zip(first.requests, values, strict=True):
        measured = request.counts(value)
        counts[request.names[0]] = NoisyCounts(measured.values * scale, measured.variance * scale**2)

    noise = deviation((setting.beta - first.spent) / len(pairs), setting.rows_per_unit) * context.noise
    runs = {name: cells for name in counts if (cells := setting.runs(name)) is not None}
    return setting.estimator.groups(counts, noise, runs)
