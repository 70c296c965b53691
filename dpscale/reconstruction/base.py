"""Interface of reconstructions: a name in the job file, options, and functions from evidence to estimates.

A reconstruction is post-processing: it is free and repeatable, and reads neither records nor exact counts. It is one
module that ends in `RECONSTRUCTION = Reconstruction(…)`, and one line in `RECONSTRUCTIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, ParallelMap, serial_map
from dpscale.base.settings import Settings, setting
from dpscale.plans.blocks import Block
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.plans.plan import Plan
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.graphical_fit import Observed
from dpscale.reconstruction.junction_tree import GraphicalModel
from dpscale.reconstruction.low_order import from_estimates, fully_measured
from dpscale.reconstruction.simulated_errors import SimulatedErrors
from dpscale.reconstruction.tree_estimates import TreeEstimates
from dpscale.workload import Workload, WorkloadPart
from dpscale.workload.residual import Residuals, every_cell, subsets


class Evidence(Protocol):
    """Interface of the released measurements; a reconstruction calls only the methods that the mechanism lists."""

    @property
    def workload(self) -> Workload: ...
    @property
    def noise(self) -> str: ...
    def least_squares(self) -> LeastSquaresEstimates:
        """Return unbiased estimates with exact standard errors."""

    def residuals(self) -> Residuals:
        """Return the measured residuals over cells, with precisions; other residuals are uniform."""

    def low_order(self) -> LowOrder:
        """Return consistent non-negative low-order tables."""

    def spans(self, names: AttributeSet) -> bool:
        """Return whether every cell of a marginal lies in the row space of the measurements."""

    def measurements(self) -> Sequence[Observed]:
        """Return every measurement as a linear operator inside an attribute set, with values and variance."""

    def simulate_errors(self, model: LowOrder, seed: int, each: ParallelMap = serial_map) -> SimulatedErrors:
        """Return errors of a model that completes these tables, by redrawing all noise."""


@dataclass(frozen=True, eq=False)
class PlanEvidence:
    """Measured blocks of a plan.

    Attributes
    ----------
    plan : Plan
    variances : sequence of float
        Noise variance of each block.
    read : callable
        Returns the values of block i.
    """

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
        kind = TreeEstimates if self.plan.blocks.has_trees else LeastSquaresEstimates
        return kind(self.plan, self.variances, self.read)

    def least_squares(self) -> LeastSquaresEstimates:
        return self._estimates

    def low_order(self) -> LowOrder:
        return from_estimates(self._estimates)

    def spans(self, names: AttributeSet) -> bool:
        return self._estimates.complete.issuperset(subsets(names))

    def measurements(self) -> list[Observed]:
        """Return the integer strategies themselves; a block of the total alone is one as well."""
        pairs = zip(self.plan.blocks, self.variances, strict=True)
        return [_observed(block, variance, self.read(i)) for i, (block, variance) in enumerate(pairs)]

    def residuals(self) -> Residuals:
        """Return the least squares estimate of every measured residual, with the inverse of its mean variance.

        The noise of a residual from a strategy of marginals is the same in all directions, so this precision is exact;
        of other strategies it is an average.
        """
        estimates, domain = self._estimates, self.plan.domain
        residuals = estimates.accuracy.residuals
        variances = {names: residuals[names].mean_variance for names in estimates.accuracy.complete_sets()}
        known = {names: variance for names, variance in variances.items() if variance > 0}
        return Residuals(
            {name: domain[name].size for name in domain.names},
            {names: estimates.residual(names) for names in known},
            {names: 1 / variance for names, variance in known.items()},
        )

    def simulate_errors(self, model: LowOrder, seed: int, each: ParallelMap = serial_map) -> SimulatedErrors:
        raise NotImplementedError("a plan's noise is not redrawn")


def _observed(block: Block, variance: float, values: Floats) -> Observed:
    """Return a block as a measurement.

    Every operator and the values are divided by the operator's largest entry: strategies have entries up to 2^60.
    """
    scale = math.prod(factor.largest for factor in block.factors)
    operators = tuple(_operator(block, axis) for axis in range(len(block.factors)))
    shape = block.factors[0].shape if block.joint else tuple(factor.cells for factor in block.factors)
    groups = tuple(every_cell(size) for size in block.whole_shape(shape))
    return Observed(
        attributes=block.attributes,
        groups=groups,
        operators=operators,
        values=np.asarray(values) / scale,
        variance=variance / scale**2,
    )


def _operator(block: Block, axis: int) -> Floats | None:
    """Return a factor of a block as an operator on cells, over its largest entry; None for the identity."""
    factor = block.factors[axis]
    if block.merged is None:
        return None if factor.kind == "identity" else factor.explicit() / factor.largest

    rows = factor.explicit().reshape(-1, *factor.shape) / factor.largest
    names = block.attributes if block.joint else block.attributes[axis : axis + 1]
    return block.merged.spread(names, rows).reshape(len(rows), -1)


class Estimates(Protocol):
    """Interface of everything that answers queries of a release."""

    @property
    def workload(self) -> Workload: ...
    @property
    def noise(self) -> str: ...
    def extrapolates(self, attributes: Sequence[str], /) -> bool | None:
        """Return whether part of the marginal is outside the row space of the measurements; None if refused."""

    def marginal(self, attributes: Sequence[str], /) -> Floats:
        """Return estimated counts over the attributes, one axis each in the given order."""

    def answer(self, attributes: Sequence[str], query: Any, /) -> tuple[float, float]:
        """Return the estimate and standard error of a linear query, an array over the attributes' cells.

        The standard error is nan where none is available.
        """

    def error_parts(self, attributes: AttributeSet, /) -> dict[str, Floats]:
        """Return the parts of the standard errors of a marginal's cells by name, or none if they are of noise alone.

        The arrays have one axis per attribute.
        """

    def part_answers(self, part: WorkloadPart, attributes: AttributeSet, /) -> tuple[Floats, Floats]:
        """Return estimates and standard errors of all queries of a part over one set.

        The arrays have one axis per attribute or a single axis.
        """

    def iter_part_answers(self, part: WorkloadPart, sets: Sequence[AttributeSet], /) -> Iterator[tuple[Floats, Floats]]:
        """Yield `part_answers` for each of several sets."""


class BasicOptions(Settings):
    """Options of a reconstruction without simulated errors and consistent targets: only defaults are valid."""

    errors: Literal["auto"] = setting("auto", "auto (or simulated, with method maxent of an adaptive mechanism)",
                                      "exact if they follow from the noise alone, else none")  # fmt: skip
    agree: Literal[False] = setting(False, "false (or true, with method maxent)", "estimates agree without it")


def check_no_trees(measurement_plan: MeasurementPlan, field: str, value: str) -> None:
    """Raise PlanError if a plan measures the levels of a hierarchy together."""
    plan = measurement_plan.evidence_plan
    if plan is not None and plan.blocks.has_trees:
        raise PlanError(field, f"{value} for a plan over the levels of a hierarchy", "least-squares or maxent",
                        "use one of them; tables of least squares add up, and publish has none below 0")  # fmt: skip


def check_low_order(measurement_plan: MeasurementPlan) -> None:
    """Raise PlanError if low-order tables cannot be estimated: a plan with rounds measures every 1-way."""
    if measurement_plan.evidence_plan is not None:
        fully_measured(measurement_plan.evidence_plan)


def do_nothing(*_: Any) -> None:
    """Do nothing: the default of optional steps of a `Reconstruction`."""


def unchanged(options: Any) -> Any:
    """Return the options: the default of `Reconstruction.adaptive`."""
    return options


@dataclass(frozen=True)
class Reconstruction:
    """A reconstruction: how evidence becomes estimates.

    Attributes
    ----------
    name : str
        Name in the job file.
    Options : type of Settings
    form : str
        Form of evidence that it takes, a method of `Evidence`: least_squares, residuals, low_order or measurements.
    explain : callable
        Explanation of estimates with these options for readers, as text without HTML; "" if the report's general text
        on standard errors applies.
    estimates : callable
        Returns estimates from the evidence and from the files that `prepare` wrote, if any.
    check : callable
        Raises PlanError or JobError for a plan that cannot be reconstructed, before any budget is spent.
    prepare : callable
        Writes the results of expensive computations into a folder, once, for the tasks that answer queries. `release`
        names the release.
    disagreement : callable
        Returns how far estimates of targets differ on their common attributes, or None.
    joint : callable, optional
        Returns the distribution in the folder, if rows can be drawn from it.
    adaptive : callable
        Returns the options with the defaults of an adaptive mechanism, whose noise can be redrawn.
    """

    name: str
    Options: type[Settings]
    form: str
    explain: Callable[[Any], str]
    estimates: Callable[[Evidence, Any, Path], Estimates]
    check: Callable[[MeasurementPlan, Any, int], None] = do_nothing
    prepare: Callable[[Evidence, Any, Path, str, ParallelMap], None] = do_nothing
    disagreement: Callable[[MeasurementPlan, Any, Path], Any] = do_nothing
    joint: Callable[[Path], GraphicalModel] | None = None
    adaptive: Callable[[Any], Any] = unchanged
