"""Base class of variance formulas: which queries the measured blocks span, and with what variance.

A query is the sum of its pieces on residual spaces (see `dpscale.workload.residual`). It is in the span if every
nonzero piece is. The subclasses in `accuracy` and `coupled` compute its variance from the noise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from dpscale.base.deadline import check_planning_time
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.plans.blocks import Block, Blocks
from dpscale.plans.factor import Factor
from dpscale.plans.residual_estimators import KnownResiduals, ResidualEstimator, residual_estimators
from dpscale.workload import Family, Workload, WorkloadPart
from dpscale.workload.residual import Weights, piece, profile_of, subsets

NOTHING = 1e-12  # relative to the query's largest entry; smaller pieces count as zero


@dataclass(frozen=True)
class SpannedQuery:
    """Query in the span of the measured blocks.

    Attributes
    ----------
    attributes : AttributeSet
        In domain order.
    values : ndarray, shape (1, sizes…)
    pieces : tuple of (AttributeSet, ndarray)
        Nonzero pieces by residual.
    """

    attributes: AttributeSet
    values: Floats
    pieces: tuple[tuple[AttributeSet, Floats], ...]


@dataclass(frozen=True, eq=False)
class Accuracy(ABC):
    """Accuracy of the answers that blocks give to queries.

    The weights of the averages are those of the plan; they do not depend on the noise that was actually drawn.

    Attributes
    ----------
    domain : Domain
    blocks : Blocks
    variances : sequence of float, shape (blocks,)
        Noise variance of each block in lattice units, planned or drawn.
    """

    domain: Domain
    blocks: Blocks
    variances: Sequence[float]

    @cached_property
    def residuals(self) -> Mapping[AttributeSet, ResidualEstimator]:
        """Estimator of every residual that is measured or follows from a public total."""
        found = residual_estimators(self.blocks, self.variances, self._spread_ratio, self._factors, self._whole_in)
        return KnownResiduals(self.domain, found) if self.domain.public_totals else found

    def complete_sets(self) -> Iterator[AttributeSet]:
        """Yield the residuals of which every cell can be estimated."""
        return (subset for subset, residual in self.residuals.items() if residual.spans_all)

    @cached_property
    def weights(self) -> dict[str, Weights]:
        """Weights of the attributes whose residuals are not centred by the plain mean."""
        return dict(self.blocks.weights())

    @cached_property
    def profiles(self) -> Mapping[str, Floats]:
        """Distribution of an attribute's total over its cells, for attributes where it is not uniform."""
        return {name: profile_of(weight, len(weight)) for name, weight in self.weights.items()}

    def axis_profiles(self, attributes: Sequence[str]) -> dict[int, Floats]:
        """Return the profiles by axis of an array over `attributes`."""
        return {axis: self.profiles[name] for axis, name in enumerate(attributes) if name in self.profiles}

    def spanned(self, attributes: Sequence[str], query: ArrayLike) -> SpannedQuery:
        """Return the query with its pieces.

        Raises
        ------
        PlanError
            If the shape of the query does not match the attributes, or a piece was not measured.
        """
        ordered, values = self._aligned(attributes, query)
        profiles, least = self.axis_profiles(ordered), NOTHING * np.abs(values).max()
        pieces = [
            (residual_set, piece(values[0], [ordered.index(name) for name in residual_set], profiles=profiles))
            for residual_set in subsets(ordered)
        ]
        nonzero = tuple((residual_set, part) for residual_set, part in pieces if not np.abs(part).max() <= least)
        self._check_span(nonzero)

        return SpannedQuery(ordered, values, nonzero)

    def variance(self, attributes: Sequence[str], query: ArrayLike) -> float:
        """Return the variance of one linear query, given as an array over the attributes' cells."""
        return self.variance_of(self.spanned(attributes, query))

    def total_error(self, workload: Workload) -> float:
        """Return the sum of weight · variance over all queries."""
        return math.fsum(
            weight * self.part_error(part, attributes)
            for part in workload.parts
            for attributes, weight in zip(part.sets, part.weights, strict=True)
            if weight > 0
        )

    @abstractmethod
    def variance_of(self, query: SpannedQuery) -> float:
        """Return the variance of a query whose pieces are known."""

    def part_variances(self, part: WorkloadPart, attributes: AttributeSet) -> Floats:
        """Return the variances of all queries of a part on one set.

        The array has one axis per attribute for products, else one axis.
        """
        if part.factorizes:
            return self._product_variances(dict(zip(attributes, part.families(attributes), strict=True)))
        return self._array_variances(part, attributes)

    def part_error(self, part: WorkloadPart, attributes: AttributeSet) -> float:
        """Return the sum of weight · variance over a part's queries on one set, without the weight of the set."""
        check_planning_time()
        if part.factorizes:
            return self._product_error(dict(zip(attributes, part.families(attributes), strict=True)))
        return float((part.query_weights(attributes) * self._array_variances(part, attributes)).sum())

    def summed_variance(self, part: WorkloadPart, attributes: AttributeSet) -> float:
        """Return the sum of the variances of a part's queries on one set, without weights."""
        if part.factorizes:  # the sum does not need every variance
            return self.part_error(part, attributes)
        return float(self._array_variances(part, attributes).sum())

    @abstractmethod
    def _product_variances(self, families: Mapping[str, Family]) -> Floats:
        """Return the variances of all products of one-way queries, one axis per attribute."""

    @abstractmethod
    def _product_error(self, families: Mapping[str, Family]) -> float:
        """Return the sum of the variances of all products of one-way queries."""

    @abstractmethod
    def _array_variances(self, part: WorkloadPart, attributes: AttributeSet) -> Floats:
        """Return the variances of queries that are not products, one axis."""

    @abstractmethod
    def _spread_ratio(self, block: Block, residual_set: AttributeSet) -> float:
        """Return the ratio of a residual's variance to the noise variance of a block."""

    @abstractmethod
    def _factors(self, block: Block, residual_set: AttributeSet) -> tuple[Factor, ...]:
        """Return the factors whose (KᵀK)⁺ determine the form of a residual's covariance."""

    def _whole_in(self, block: Block, residual_set: AttributeSet) -> bool:
        """Return whether a block estimates every cell of a residual."""
        return all(factor.spans_all for factor in self._factors(block, residual_set))

    def _aligned(self, attributes: Sequence[str], query: ArrayLike) -> tuple[AttributeSet, Floats]:
        """Return the attributes in domain order and the query as a batch of one with its axes in that order."""
        values = as_query(query)
        if values.shape != self.domain.shape(attributes):
            takes = f"an array of shape {self.domain.shape(attributes)}"
            raise PlanError("query", f"shape {values.shape}", takes, "use one axis per attribute")
        ordered = self.domain.ordered(attributes)
        return ordered, values.transpose([list(attributes).index(name) for name in ordered])[None]

    def _check_span(self, pieces: Sequence[tuple[AttributeSet, Floats]]) -> None:
        for residual_set, part in pieces:
            if residual_set not in self.residuals or not self.residuals[residual_set].spans(part):
                raise out_of_span(residual_set)


def as_query(query: ArrayLike) -> Floats:
    """Return the query as an array of floats.

    Raises
    ------
    PlanError
        If the query is not an array of finite numbers.
    """
    try:
        values = np.asarray(query, dtype=np.float64)
    except (TypeError, ValueError):
        raise PlanError("query", f"a {type(query).__name__} that is not an array of numbers",
                        "an array of finite numbers", "give a number for every cell") from None  # fmt: skip

    if not np.isfinite(values).all() and values.ndim:
        raise PlanError("query", "a number that is not finite", "finite numbers", "fix it")
    return values


def out_of_span(residual_set: AttributeSet) -> PlanError:
    names = ", ".join(residual_set) or "the total"
    return PlanError(
        "query",
        f"it needs {names}, which was not measured",
        "a query in the workload's span",
        "add a family over these attributes to the workload",
    )
