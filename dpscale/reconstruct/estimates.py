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
from dpscale.residual import piece, residual_of, smear, subsets
from dpscale.select.plan import Plan, ResidualEstimator
from dpscale.workload import FAMILIES, ExplicitPart, Part
from dpscale.workload.parts import Attributes

Array = NDArray[np.float64]
CACHE_BYTES = 1 << 28


class Estimates:
    """What the measurements say. `read(i)` gives the values of block i, `variances[i]` their noise variance."""

    def __init__(self, plan: Plan, variances: Sequence[float], read: Callable[[int], Array]) -> None:
        self.plan, self._variances, self._read = plan, variances, read
        self._residuals: OrderedDict[Attributes, Array] = OrderedDict()
        self._held = 0

    def marginal(self, attributes: Sequence[str]) -> Array:
        """Estimated counts over the attributes, an axis each in the order asked. Unbiased; may be negative."""
        ordered = self.plan.domain.ordered(attributes)
        shape = self.plan.domain.shape(ordered)
        total = np.zeros(shape)
        for kept in subsets(ordered):
            if kept not in self.plan.residuals:
                raise PlanError(
                    "attributes",
                    f"{', '.join(ordered)} was not measured",
                    "a set inside a measured one",
                    "add a family over these attributes to the workload",
                )
            total += smear(self.residual(kept), [ordered.index(name) for name in kept], shape)
        return total.transpose([ordered.index(name) for name in attributes])

    def answer(self, attributes: Sequence[str], query: Any) -> tuple[float, float]:
        """Estimate and standard error of one linear query, an array over the attributes' cells."""
        pieces = self.plan.pieces(attributes, query)
        estimate = math.fsum(float((part * self.residual(kept)).sum()) for kept, part in pieces)
        variance = math.fsum(self.estimator(kept).variance(part) for kept, part in pieces)
        return estimate, math.sqrt(variance)

    def part_answers(self, part: Part, attributes: Attributes) -> tuple[Array, Array]:
        """Estimates and standard errors of all queries of a part over one set, an axis per attribute (or one axis)."""
        return self._span_answers(part, attributes), np.sqrt(self.part_variances(part, attributes))

    def part_variances(self, part: Part, attributes: Attributes) -> Array:
        """Variances of all queries of a part over one set, in closed form by family."""
        if isinstance(part, ExplicitPart):
            return self._explicit_variances(part)
        family = FAMILIES[part.family]
        sizes = self.plan.domain.shape(attributes)
        total = np.zeros(tuple(family.count(n) for n in sizes))
        for kept in subsets(attributes):
            if kept in self.plan.residuals:
                total += self._product_variance(part.family, attributes, kept)
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
        block, values = self.plan.blocks[index], self._read(index)
        if block.whole:
            return residual_of(values, [block.attributes.index(name) for name in kept])
        if block.joint:
            return (block.factors[0].inverse @ values.reshape(-1)).reshape(self.plan.domain.shape(kept))
        for axis, factor in enumerate(block.factors):
            if factor.kind == "center":
                values = (values - values.mean(axis=axis, keepdims=True)) / factor.cells
            else:
                values = np.moveaxis(np.tensordot(factor.inverse, values, axes=(1, axis)), 0, axis)
        return values

    def _span_answers(self, part: Part, attributes: Attributes) -> Array:
        """Answers from the residuals that were measured; a residual that no query needs counts as zero."""
        shape = self.plan.domain.shape(attributes)
        total = np.zeros(shape)
        for kept in subsets(attributes):
            if kept in self.plan.residuals:
                total += smear(self.residual(kept), [attributes.index(name) for name in kept], shape)
        return part.answers(total)

    def _explicit_variances(self, part: ExplicitPart) -> Array:
        total = np.zeros(len(part.queries))
        for kept in subsets(part.attributes):
            if kept in self.plan.residuals:
                pieces = piece(part.queries, [part.attributes.index(name) for name in kept], lead=1)
                total += self.estimator(kept).variances(pieces)
        return total

    def _product_variance(self, name: str, attributes: Attributes, kept: Attributes) -> Array:
        """Σ-term of one residual for every product query: an outer product unless the strategy is joint."""
        estimator, family = self.estimator(kept), FAMILIES[name]
        sizes = dict(zip(attributes, self.plan.domain.shape(attributes), strict=True))
        if len(estimator.forms) == len(kept):
            own = {key: family.quadratic(form) for key, form in zip(kept, estimator.forms, strict=True)}
            vectors = [own[key] if key in own else family.means(sizes[key]) ** 2 for key in attributes]
            return estimator.scale * reduce(np.multiply.outer, vectors, np.ones(()))
        joint = _joint_quadratic(name, estimator, tuple(sizes[key] for key in kept))
        shape = tuple(family.count(sizes[key]) if key in kept else 1 for key in attributes)
        total = estimator.scale * joint.reshape(shape)
        for axis, key in enumerate(attributes):
            if key not in kept:
                means = family.means(sizes[key]) ** 2
                total = total * means.reshape([-1 if i == axis else 1 for i in range(len(attributes))])
        return total

    def _hold(self, kept: Attributes, value: Array) -> None:
        self._residuals[kept] = value
        self._held += value.nbytes
        while self._held > CACHE_BYTES and len(self._residuals) > 1:
            _, old = self._residuals.popitem(last=False)
            self._held -= old.nbytes


def _joint_quadratic(name: str, estimator: ResidualEstimator, sizes: tuple[int, ...]) -> Array:
    """qᵀSq of every product query q, for a covariance S on all cells: W S Wᵀ's diagonal, axis pair by axis pair."""
    family = FAMILIES[name]
    form = estimator.forms[0].reshape(*sizes, *sizes)
    for axis in range(len(sizes)):
        # axes are now: queries so far, rows of S left, columns of S left; the first pair left becomes queries
        form = np.moveaxis(form, (axis, len(sizes)), (-2, -1))
        flat = form.reshape(-1, sizes[axis], sizes[axis])
        reduced = np.stack([family.quadratic(matrix) for matrix in flat])
        form = np.moveaxis(reduced.reshape(*form.shape[:-2], -1), -1, axis)
    return form
