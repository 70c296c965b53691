"""What was released, as the reconstructions take it. Released values only: no count, no record, no secret."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.each import Each, plainly
from dpscale.base.names import AttributeSet
from dpscale.plans.block import Block
from dpscale.plans.plan import Plan
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.from_estimates import from_estimates
from dpscale.reconstruction.junction_tree.observed import Observed
from dpscale.reconstruction.simulated import Simulated
from dpscale.workload import Workload
from dpscale.workload.residual import subsets
from dpscale.workload.residual.grem import Residuals
from dpscale.workload.residual.groups import every_cell


class Evidence(Protocol):
    """All that reconstructions ask of a release; what a mechanism does not list as its own is never asked of it."""

    @property
    def workload(self) -> Workload: ...
    @property
    def noise(self) -> str: ...
    def least_squares(self) -> LeastSquaresEstimates:
        """Unbiased estimates with exact errors."""

    def residuals(self) -> Residuals:
        """Every residual that was measured, over cells, with its precision; what was not counts as uniform."""

    def low_order(self) -> LowOrder:
        """Consistent non-negative low-order tables."""

    def spans(self, names: AttributeSet) -> bool:
        """Whether every cell of a marginal lies in the row space of the measurements."""

    def measurements(self) -> Sequence[Observed]:
        """Every measurement as it was made: a linear operator inside an attribute set, values and variance."""

    def simulated(self, model: LowOrder, seed: int, each: Each = plainly) -> Simulated:
        """Errors of these tables, by drawing all noise anew."""


@dataclass(frozen=True, eq=False)
class Linear:
    """Blocks of a plan: `read(i)` gives the values of block i, `variances[i]` their noise variance."""

    plan: Plan
    variances: Sequence[float]
    read: Callable[[int], Floats]

    @property
    def workload(self) -> Workload:
        return self.plan.workload

    @property
    def noise(self) -> str:
        return self.plan.noise

    @cached_property
    def _estimates(self) -> LeastSquaresEstimates:
        return LeastSquaresEstimates(self.plan, self.variances, self.read)

    def least_squares(self) -> LeastSquaresEstimates:
        return self._estimates

    def low_order(self) -> LowOrder:
        return from_estimates(self._estimates)

    def spans(self, names: AttributeSet) -> bool:
        residuals = self.plan.accuracy.residuals
        return all(kept in residuals and residuals[kept].spans_all for kept in subsets(names))

    def measurements(self) -> list[Observed]:
        """The integer strategies themselves. A block of the total alone is one too."""
        pairs = zip(self.plan.blocks, self.variances, strict=True)
        return [_observed(block, variance, self.read(i)) for i, (block, variance) in enumerate(pairs)]

    def residuals(self) -> Residuals:
        raise NotImplementedError("GReM of a plan is its least squares")

    def simulated(self, model: LowOrder, seed: int, each: Each = plainly) -> Simulated:
        raise NotImplementedError("a plan's noise is not redrawn")


def _observed(block: Block, variance: float, values: Floats) -> Observed:
    """Every operator is divided by its largest entry, and the values with it: strategies have up to 2^60."""
    shape = block.factors[0].shape if block.joint else tuple(factor.cells for factor in block.factors)
    scale = math.prod(factor.largest for factor in block.factors)
    operators = tuple(None if factor.kind == "identity" else factor.explicit() / factor.largest
                      for factor in block.factors)  # fmt: skip
    groups = tuple(every_cell(size) for size in shape)
    return Observed(block.attributes, groups, operators, np.asarray(values) / scale, variance / scale**2)
