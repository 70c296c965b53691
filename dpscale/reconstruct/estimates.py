"""Least-squares estimates of residuals, marginals and queries, with their exact variances."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.errors import PlanError
from dpscale.plans import coupled
from dpscale.plans.block import Block
from dpscale.plans.factor import Factor
from dpscale.plans.plan import Plan, ResidualEstimator
from dpscale.residual import piece, residual_of, smear, subsets
from dpscale.workload import ExplicitPart, Family, JointPart, Part, ProductPart, Workload
from dpscale.workload.parts import Attributes

Array = NDArray[np.float64]
CACHE_BYTES = 1 << 28


class Estimates:
    """What the measurements say. `read(i)` gives the values of block i, `variances[i]` their noise variance."""

    def __init__(self, plan: Plan, variances: Sequence[float], read: Callable[[int], Array]) -> None:
        self.plan, self._variances, self._read = plan, variances, read
        self._residuals: OrderedDict[Attributes, Array] = OrderedDict()
        self._held = 0
        self._marginal: tuple[int, Array] | None = None
        self._quadratics: dict[tuple[tuple[str, ...], int], Array] = {}

    @property
    def workload(self) -> Workload:
        return self.plan.workload

    @property
    def noise(self) -> str:
        return self.plan.noise

    def marginal(self, attributes: Sequence[str]) -> Array:
        """Estimated counts over the attributes, an axis each in the order asked. Unbiased; may be negative."""
        ordered = self.plan.domain.ordered(attributes)
        shape = self.plan.domain.shape(ordered)
        total = np.zeros(shape)
        for kept in subsets(ordered):
            if kept not in self.plan.residuals or not self.plan.residuals[kept].spans_all:
                raise PlanError(
                    "attributes",
                    f"{', '.join(ordered)} was not measured",
                    "a set inside a measured one",
                    "add a family over these attributes to the workload",
                )
            total += self._smeared(kept, ordered)
        return total.transpose([ordered.index(name) for name in attributes])

    def answer(self, attributes: Sequence[str], query: Any) -> tuple[float, float]:
        """Estimate and standard error of one linear query, an array over the attributes' cells."""
        pieces = self.plan.pieces(attributes, query)
        estimate = math.fsum(float((part * self.residual(kept)).sum()) for kept, part in pieces)
        if self.plan.coupled:
            variance = float(coupled.variances(self.plan, self._variances, *self.plan.aligned(attributes, query))[0])
        else:
            variance = math.fsum(self.estimator(kept).variance(part) for kept, part in pieces)
        return estimate, math.sqrt(variance)

    def part_answers(self, part: Part, attributes: Attributes) -> tuple[Array, Array]:
        """Estimates and standard errors of all queries of a part over one set, an axis per attribute (or one axis)."""
        answers, errors = self._span_answers(part, attributes), np.sqrt(self.part_variances(part, attributes))
        if isinstance(part, ExplicitPart):  # a query of weight 0 is not planned for, and may not lie in the span
            answers, errors = (np.where(part.each > 0, values, np.nan) for values in (answers, errors))
        return answers, errors

    def part_variances(self, part: Part, attributes: Attributes) -> Array:
        """Variances of all queries of a part over one set, in closed form by family."""
        if self.plan.coupled:
            return coupled.part_variances(self.plan, self._variances, part, attributes)
        if not isinstance(part, ProductPart):
            return self._array_variances(part, attributes)
        families = part.families(attributes)
        sizes = self.plan.domain.shape(attributes)
        total = np.zeros(tuple(family.count(n) for family, n in zip(families, sizes, strict=True)))
        for kept in subsets(attributes):
            if kept in self.plan.residuals:
                total += self._product_variance(dict(zip(attributes, families, strict=True)), kept)
        return total

    def residual(self, kept: Attributes) -> Array:
        """The estimated residual on exactly these attributes: centred along every axis."""
        if kept in self._residuals:
            self._residuals.move_to_end(kept)
            return self._residuals[kept]
        sources = self.plan.residuals[kept].sources
        value = sum((source.weight * self._told(source.block, kept) for source in sources), np.zeros(()))
        self._hold(kept, np.asarray(value))
        return np.asarray(value)

    def _smeared(self, kept: Attributes, attributes: Attributes) -> Array:
        """A residual spread over the cells of a set that holds its attributes."""
        axes, shape = [attributes.index(name) for name in kept], self.plan.domain.shape(attributes)
        return smear(self.residual(kept), axes, shape, self.plan.axis_profiles(attributes))

    def estimator(self, kept: Attributes) -> ResidualEstimator:
        """The residual's estimator with the covariance of the noise that was really drawn."""
        planned = self.plan.residuals[kept]
        scale = 0.0
        for source in planned.sources:
            block = self.plan.blocks[source.block]
            summed = math.prod(self.plan.domain[name].size for name in block.attributes if name not in kept)
            scale += source.weight**2 * self._variances[source.block] * summed
        return replace(planned, scale=scale)

    def _told(self, index: int, kept: Attributes) -> Array:
        """What one block says of a residual."""
        block = self.plan.blocks[index]
        if block.whole:
            axes = [block.attributes.index(name) for name in kept]
            return residual_of(self._whole(index, block), axes, self.plan.axis_profiles(block.attributes))
        values = self._read(index)
        if block.joint:
            return (block.factors[0].inverse @ values.reshape(-1)).reshape(self.plan.domain.shape(kept))
        for factor in block.factors:  # each axis goes to the end, so after all of them they stand as they did
            if factor.kind == "center":
                values = np.moveaxis((values - values.mean(axis=0)) / factor.cells, 0, -1)
            else:
                values = np.tensordot(values, factor.inverse, axes=(0, 1))
        return values

    def _whole(self, index: int, block: Block) -> Array:
        """The marginal as a whole block tells it, kept while its residuals are taken one after the other."""
        held = self._marginal
        if held is None or held[0] != index:
            held = self._marginal = (index, self._whole_of(block, self._read(index)))
        return held[1]

    def _whole_of(self, block: Block, values: Array) -> Array:
        if block.joint:
            return np.asarray((block.factors[0].inverse @ values.reshape(-1)).reshape(block.factors[0].shape))
        for axis, factor in enumerate(block.factors):
            if factor.kind == "full":
                values = np.moveaxis(np.tensordot(factor.inverse, values, axes=(1, axis)), 0, axis)
        return values

    def _span_answers(self, part: Part, attributes: Attributes) -> Array:
        """Answers from the residuals that were measured; a residual that no query needs counts as zero."""
        shape = self.plan.domain.shape(attributes)
        total = np.zeros(shape)
        for kept in subsets(attributes):
            if kept in self.plan.residuals:
                total += self._smeared(kept, attributes)
        return part.answers(attributes, total)

    def _array_variances(self, part: JointPart | ExplicitPart, attributes: Attributes) -> Array:
        queries = part.queries(attributes)
        total = np.zeros(len(queries))
        for kept in subsets(attributes):
            if kept in self.plan.residuals:
                pieces = piece(queries, [attributes.index(name) for name in kept], lead=1)
                total += self.estimator(kept).variances(pieces)
        return total

    def _product_variance(self, families: dict[str, Family], kept: Attributes) -> Array:
        """What one residual adds for every product query: an outer product unless the strategy is joint."""
        estimator = self.estimator(kept)
        sizes = {name: self.plan.domain[name].size for name in families}
        means = {name: family.means(sizes[name]) ** 2 for name, family in families.items()}
        if not estimator.joint:
            own = zip(kept, estimator.factors, strict=True)
            vectors = means | {name: families[name].quadratic(factor.covariance) for name, factor in own}
            return estimator.scale * reduce(np.multiply.outer, vectors.values(), np.ones(()))
        total = estimator.scale * self._joint_quadratic(tuple(families[name] for name in kept), estimator.factors[0])
        for axis, name in enumerate(families):
            if name not in kept:
                total = np.expand_dims(total, axis) * means[name].reshape([-1, *[1] * (total.ndim - axis)])
        return total

    def _joint_quadratic(self, families: tuple[Family, ...], factor: Factor) -> Array:
        """qᵀ (KᵀK)⁺ q of every product query q, kept for the next set with the same strategy."""
        key = (tuple(family.name for family in families), id(factor))
        if key not in self._quadratics:
            self._quadratics[key] = coupled.joint_quadratic(families, factor.covariance, factor.shape)
        return self._quadratics[key]

    def _hold(self, kept: Attributes, value: Array) -> None:
        self._residuals[kept] = value
        self._held += value.nbytes
        while self._held > CACHE_BYTES and len(self._residuals) > 1:
            _, old = self._residuals.popitem(last=False)
            self._held -= old.nbytes
