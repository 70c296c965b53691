"""What a reconstruction is: a name in the job file, its options, and how it comes from evidence to estimates.

Post-processing: free, repeatable, and it never sees a record or an exact count. A reconstruction is one module that
ends in `RECONSTRUCTION = Reconstruction(…)` and one line in the table of `reconstruct`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.display import AttributeSet
from dpscale.base.parallel import Each, plainly
from dpscale.base.settings import Settings, setting
from dpscale.plans.blocks import Block
from dpscale.plans.measurement_plan import Planned
from dpscale.plans.plan import Plan
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.junction_tree.fit import Observed
from dpscale.reconstruction.junction_tree.model import Model
from dpscale.reconstruction.low_order_sources import from_estimates
from dpscale.reconstruction.simulated import Simulated
from dpscale.workload import Part, Workload
from dpscale.workload.residual import subsets
from dpscale.workload.residual.grem import Residuals
from dpscale.workload.residual.in_axis import every_cell


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


class Estimates(Protocol):
    """What a release answers from."""

    @property
    def workload(self) -> Workload: ...
    @property
    def noise(self) -> str: ...
    def extrapolates(self, attributes: Sequence[str], /) -> bool | None:
        """Whether some cell of the marginal lies outside the row space of the measurements; None: such are refused."""

    def marginal(self, attributes: Sequence[str], /) -> Floats:
        """Estimated counts over the attributes, an axis each in the order asked."""

    def answer(self, attributes: Sequence[str], query: Any, /) -> tuple[float, float]:
        """Estimate and standard error (nan: none is told) of one linear query, an array over the attributes' cells."""

    def part_answers(self, part: Part, attributes: AttributeSet, /) -> tuple[Floats, Floats]:
        """The same of all queries of a part over one set, an axis per attribute or one axis."""

    def several(self, part: Part, sets: Sequence[AttributeSet], /) -> Iterator[tuple[Floats, Floats]]:
        """The same of several sets, one after the other."""


class Plain(Settings):
    """Of a reconstruction that has no settings of its own: what others take is refused but for what says nothing."""

    errors: Literal["auto"] = setting("auto", "auto (simulated with method maxent of an adaptive mechanism)",
                                      "exact where they follow from the noise alone, else none")  # fmt: skip
    agree: Literal[False] = setting(False, "false (true with method maxent)", "estimates agree as they are")


def nothing(*_: Any) -> None:
    """Of a reconstruction that refuses no plan, or keeps no model."""


@dataclass(frozen=True)
class Reconstruction:
    """How estimates come of evidence.

    form: of evidence that it takes, a method of `Evidence`: least_squares, residuals, low_order or measurements.
    explains: what a reader should know of estimates made with these options, as HTML-free text; "" where the report's
    own words on standard errors hold.
    check: PlanError or JobError where a plan cannot be reconstructed so, before anything is spent.
    joint: the distribution that `keep` left in the folder, where it is one from which rows can be drawn.
    keep: makes what is dear into a folder, once, for the tasks that answer from it; `release` names the release.
    estimates: from the evidence, and from what `keep` left in the folder, where there is any.
    """

    name: str
    Options: type[Settings]
    form: str
    explains: Callable[[Any], str]
    estimates: Callable[[Evidence, Any, Path], Estimates]
    check: Callable[[Planned, Any, int], None] = nothing
    keep: Callable[[Evidence, Any, Path, str, Each], None] = nothing
    disagreement: Callable[[Planned, Any, Path], Any] = nothing
    joint: Callable[[Path], Model] | None = None
