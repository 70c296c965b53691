"""Plan: what will be measured with which noise, what it costs and how good it is, before anything runs.

A plan is scale-free: it says which *share* of the privacy cost β each block takes. Block b measures K_b·marginal with
noise of variance Δ_b² / (share_b · β), where Δ_b² is the largest squared column norm of K_b, so that the block costs
share_b · β (notes on β: QuerySmasher, section 3). Under Laplace noise of scale Δ_b / (share_b · ε), Δ_b the largest L1
norm, it costs share_b · ε, and a "privacy cost" is ε². What errors the noise leaves is told by `accuracy`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from operator import itemgetter
from typing import Any

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.display import AttributeSet, glance, shown
from dpscale.base.errors import PlanError
from dpscale.domain import Domain
from dpscale.plans.accuracy import Accuracy, accuracy_of
from dpscale.plans.attribute_sets import Counted, counted_for
from dpscale.plans.blocks import Blocks
from dpscale.workload import Workload
from dpscale.workload.residual import kron

SHOWN_CELLS = 4096


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """What is going to be measured. Immutable; made by `dpscale.plan`.

    `error`: weighted sum of the queries' variances at privacy cost 1; `bound`: what no plan of the family that the
    method optimises over can go below (0 where none is known); `notes`: remarks for the reader; `stationary`: where the
    plan chose weights of the axes, how far the error is from flat in them (relative, to first order, a thousandth of
    an axis' weight moved); `floor`: what no matrix mechanism at all can go below, 0 where it is not known.
    """

    workload: Workload
    mechanism: str
    blocks: Blocks
    error: float
    bound: float
    notes: tuple[str, ...] = ()
    stationary: float | None = None
    floor: float = 0.0

    def __post_init__(self) -> None:
        """Blocks are kept in columns, however they are given."""
        object.__setattr__(self, "blocks", Blocks.of(self.workload.domain.names, self.blocks))

    def __repr__(self) -> str:
        return f"Plan({self.mechanism}, {self.query_count} queries, {len(self.blocks)} measurements)"

    def _repr_html_(self) -> str:
        gap = f"{100 * self.optimality_gap:.2g} %" if math.isfinite(self.optimality_gap) else "not known"
        return glance(f"Plan by {self.mechanism}", {
            "queries": f"{self.query_count:,}", "measurements": f"{len(self.blocks):,}", "noise": self.noise,
            "root mean square error at privacy cost 1": f"{self.rmse():.4g}", "above the certified optimum by": gap,
        })  # fmt: skip

    @property
    def domain(self) -> Domain:
        return self.workload.domain

    @property
    def query_count(self) -> int:
        return self.workload.query_count

    @property
    def optimality_gap(self) -> float:
        """Certified: error / bound − 1; inf where no bound is known."""
        return max(self.error / self.bound - 1, 0.0) if self.bound > 0 else math.inf

    @property
    def noise(self) -> str:
        """The kind of noise of all blocks."""
        return self.blocks[0].noise

    def rmse(self, privacy_cost: float = 1.0) -> float:
        """Root of the sum of weight · variance over the number of queries; under Laplace noise the cost is ε²."""
        if not isinstance(privacy_cost, Real) or not 0 < privacy_cost < math.inf:
            raise PlanError(
                "privacy_cost", shown(privacy_cost), "a number above 0", "give squared μ, or ε² of Laplace noise"
            )
        return math.sqrt(self.error / privacy_cost / self.query_count)

    @property
    def bound_all(self) -> float | None:
        """What the root mean square error at privacy cost 1 of no matrix mechanism can go below; None if not known."""
        return math.sqrt(self.floor / self.query_count) if self.floor > 0 else None

    @cached_property
    def accuracy(self) -> Accuracy:
        """The errors that the planned noise leaves at privacy cost 1."""
        return accuracy_of(self.domain, self.blocks)

    def variance(self, attributes: Sequence[str], query: Any) -> float:
        """Variance at privacy cost 1 of one linear query, given as an array over the attributes' cells."""
        return self.accuracy.variance(attributes, query)

    def strategy(self, attributes: Sequence[str]) -> Floats:
        """The strategy on an attribute set as a matrix whose largest column norm is 1."""
        ordered = self.domain.ordered(attributes)
        matching = [self.blocks[index] for index in self.blocks.sets.find(ordered)]
        if not matching or self.domain.cells(ordered) > SHOWN_CELLS:
            why = "not measured" if not matching else f"{self.domain.cells(ordered)} cells"
            raise PlanError("strategy", f"{', '.join(ordered)}: {why}", f"up to {SHOWN_CELLS} cells", "ask another set")
        stacked = [factor.explicit().astype(np.float64) for factor in matching[0].factors]
        return kron(stacked) / math.sqrt(matching[0].squared_l2_sensitivity)

    @cached_property
    def sources(self) -> Counted:
        """The attribute sets to count, those of the blocks that lie in no larger one, and which block is from which."""
        return counted_for(self.domain, self.blocks.sets)

    @cached_property
    def counted(self) -> tuple[AttributeSet, ...]:
        """The attribute sets to count, in the domain's order."""
        return tuple(self.sources.sets)

    @cached_property
    def largest(self) -> AttributeSet:
        """The largest attribute set that will be counted."""
        return max(zip(self.domain.cells_each(self.counted), self.counted, strict=True), key=itemgetter(0))[1]
