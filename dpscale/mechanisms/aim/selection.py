"""A round's selection: score_γ = w_γ (‖μ_γ − μ̂_γ‖₁ − penalty_γ), in whole numbers of 1/SCALE.

A candidate of no attributes is *nothing*, at score 0: that of a set which is no farther off than its noise would be.

The penalty is the noise that a measurement would bring, of public numbers only; the distance is a whole number that one
record moves by at most SCALE (`adaptive.shard`), so the sensitivity of a score is SCALE · w_γ, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from dpscale.base.names import AttributeSet
from dpscale.mechanisms.aim.orders import VERSION
from dpscale.plans.believed import SCALE
from dpscale.workload.residual.groups import Groups

NOISE_L1 = math.sqrt(2 / math.pi)


@dataclass(frozen=True, eq=False)
class Selection:
    """`count` distinct candidates, each draw costing `beta`. `step`: β of one measurement."""

    round: int
    candidates: tuple[AttributeSet, ...]
    weights: Mapping[AttributeSet, int]
    groups: Mapping[str, Groups]
    count: int
    beta: Fraction
    step: Fraction
    penalty: float
    rows_per_unit: int

    @property
    def of_nothing(self) -> bool:
        """Whether the round goes back to the 1-ways: nothing is chosen."""
        return not self.candidates

    @cached_property
    def sensitivity(self) -> int:
        """How far one unit moves any score."""
        return SCALE * self.rows_per_unit * max(self.weights[names] for names in self.candidates if names)

    def lost(self, chosen: Sequence[AttributeSet]) -> Iterable[int]:
        """None but those chosen."""
        return ()

    def offset(self, names: AttributeSet) -> int:
        """The penalty in units of 1/SCALE."""
        return round(self._cell_penalty * math.prod(self.groups[name].count for name in names))

    @cached_property
    def _cell_penalty(self) -> float:
        return SCALE * self.penalty * NOISE_L1 * deviation(self.step, self.rows_per_unit)

    def label(self, rank: int) -> dict[str, Any]:
        """What names the draw, besides release and snapshot."""
        return {"mechanism": VERSION, "round": self.round, "rank": rank, "beta": str(self.beta),
                "candidates": len(self.candidates), "sensitivity": str(self.sensitivity)}  # fmt: skip


def deviation(step: Fraction, rows_per_unit: int) -> float:
    """σ_t: the noise of a measurement that costs `step`, if it were one of a whole marginal."""
    return rows_per_unit / math.sqrt(step)
