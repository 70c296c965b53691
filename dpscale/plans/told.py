"""What blocks tell of a domain, and how well: what both kinds of `Accuracy` have in common.

A query is the sum of its pieces on residuals (see `residual`); it lies in the span where every piece that is not zero
can be told. How its variance follows from the noise is left to the two: `independent` and `coupled`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.errors import PlanError
from dpscale.base.names import AttributeSet
from dpscale.domain import Domain
from dpscale.plans.block import Block
from dpscale.plans.blocks import Blocks
from dpscale.plans.factor import Factor
from dpscale.plans.residual_estimator import ResidualEstimator, estimators
from dpscale.workload import Part, Workload
from dpscale.workload.residual import Weights, piece, profile_of, subsets

NOTHING = 1e-12  # of a query's largest entry: a piece that is not there


@dataclass(frozen=True)
class SpannedQuery:
    """A query in the span: `values` a batch of one, an axis for every attribute in domain order; no piece is zero."""

    attributes: AttributeSet
    values: Floats
    pieces: tuple[tuple[AttributeSet, Floats], ...]


@dataclass(frozen=True, eq=False)
class Accuracy(ABC):
    """How well blocks answer queries. `variances`: of each block's noise in lattice units, planned or really drawn.

    The weights of the averages stay those of the plan, so that estimates do not depend on which noise was drawn.
    """

    domain: Domain
    blocks: Blocks
    variances: Sequence[float]

    @cached_property
    def residuals(self) -> Mapping[AttributeSet, ResidualEstimator]:
        """The estimator of every residual that the blocks tell of."""
        return estimators(self.blocks, self.variances, self._spread, self._factors, self._whole_in)

    @cached_property
    def weights(self) -> dict[str, Weights]:
        """The weights of the attributes whose residuals are not centred by the plain mean."""
        return dict(self.blocks.weights())

    @cached_property
    def profiles(self) -> Mapping[str, Floats]:
        """How the total of an attribute is spread over its cells, where it is not evenly."""
        return {name: profile_of(own, len(own)) for name, own in self.weights.items()}

    def axis_profiles(self, attributes: Sequence[str]) -> dict[int, Floats]:
        """The profiles of the axes of an array over some attributes."""
        return {axis: self.profiles[name] for axis, name in enumerate(attributes) if name in self.profiles}

    def spanned(self, attributes: Sequence[str], query: Any) -> SpannedQuery:
        """The query with its pieces; PlanError where its shape is not the attributes', or a piece was not measured."""
        ordered, values = self._aligned(attributes, query)
        profiles, least = self.axis_profiles(ordered), NOTHING * np.abs(values).max()
        pieces = [
            (kept, piece(values[0], [ordered.index(name) for name in kept], profiles=profiles))
            for kept in subsets(ordered)
        ]
        nonzero = tuple((kept, part) for kept, part in pieces if not np.abs(part).max() <= least)
        self._check_span(nonzero)
        return SpannedQuery(ordered, values, nonzero)

    def variance(self, attributes: Sequence[str], query: Any) -> float:
        """Variance of one linear query, given as an array over the attributes' cells."""
        return self.variance_of(self.spanned(attributes, query))

    def total_error(self, workload: Workload) -> float:
        """Sum of weight · variance over all queries."""
        return math.fsum(
            weight * self.part_error(part, attributes)
            for part in workload.parts
            for attributes, weight in zip(part.sets, part.weights, strict=True)
            if weight > 0
        )

    @abstractmethod
    def variance_of(self, query: SpannedQuery) -> float:
        """Variance of a query whose pieces are known."""

    @abstractmethod
    def part_variances(self, part: Part, attributes: AttributeSet) -> Floats:
        """Variances of all queries of a part over one set: an axis per attribute for products, else one axis."""

    @abstractmethod
    def part_error(self, part: Part, attributes: AttributeSet) -> float:
        """Sum over a part's queries on one set of weight · variance, without the set's own weight."""

    @abstractmethod
    def _spread(self, block: Block, kept: AttributeSet) -> float:
        """How much larger a residual's variance is than the noise of a block, for lack of the axes summed away."""

    @abstractmethod
    def _factors(self, block: Block, kept: AttributeSet) -> tuple[Factor, ...]:
        """The factors whose (KᵀK)⁺ give a residual's covariance its form."""

    def _whole_in(self, block: Block, kept: AttributeSet) -> bool:
        """Whether a block tells of all of a residual."""
        return all(factor.spans_all for factor in self._factors(block, kept))

    def _aligned(self, attributes: Sequence[str], query: Any) -> tuple[AttributeSet, Floats]:
        """The attributes in domain order and the query with its axes in that order, as a batch of one."""
        values = as_query(query)
        if values.shape != self.domain.shape(attributes):
            takes = f"an array of shape {self.domain.shape(attributes)}"
            raise PlanError("query", f"shape {values.shape}", takes, "give an axis for every attribute")
        ordered = self.domain.ordered(attributes)
        return ordered, values.transpose([list(attributes).index(name) for name in ordered])[None]

    def _check_span(self, pieces: Sequence[tuple[AttributeSet, Floats]]) -> None:
        for kept, part in pieces:
            if kept not in self.residuals or not self.residuals[kept].spans(part):
                raise out_of_span(kept)


def as_query(query: Any) -> Floats:
    """A query's numbers; PlanError for what has none, or none that are finite."""
    try:
        values = np.asarray(query, dtype=np.float64)
    except (TypeError, ValueError):
        raise PlanError("query", f"a {type(query).__name__} that is no array of numbers", "an array of finite numbers",
                        "give a number for every cell") from None  # fmt: skip
    if not np.isfinite(values).all() and values.ndim:
        raise PlanError("query", "a number that is not finite", "finite numbers", "mend it")
    return values


def out_of_span(kept: AttributeSet) -> PlanError:
    names = ", ".join(kept) or "the total"
    return PlanError(
        "query",
        f"it needs {names}, which was not measured",
        "a query in the workload's span",
        "add a family over these attributes to the workload",
    )
