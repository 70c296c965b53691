"""Least-squares estimates of plans over hierarchies: all levels and all tables agree.

Every residual of the other attributes is estimated at the leaves of its tree by two passes (`plans.tree_factor`), and
at a level above by sums. A table at a level is the sum of its residuals, each spread evenly over the other attributes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats
from dpscale.plans.tree_accuracy import TreeAccuracy, TreeQuerySet, split_levels, with_implied, without_implied
from dpscale.plans.tree_factor import TreeFactor
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.workload import WorkloadPart


class TreeEstimates(LeastSquaresEstimates):
    """Unbiased estimates from blocks that measure residuals at all levels of trees."""

    @property
    def trees(self) -> TreeAccuracy:
        """Accuracy of the blocks."""
        assert isinstance(self.accuracy, TreeAccuracy)
        return self.accuracy

    def marginal(self, attributes: Sequence[str]) -> Floats:
        """Return estimated counts, one axis per attribute in the given order; unbiased and possibly negative."""
        ordered = self.plan.domain.ordered(attributes)
        self.trees.check_spanned(without_implied(self.trees.hierarchies, ordered))
        return self._sum(ordered).transpose([ordered.index(name) for name in attributes])

    def answer(self, attributes: Sequence[str], query: Any) -> tuple[float, float]:
        """Return the estimate and standard error of one linear query, an array over the attributes' cells."""
        spanned = self.trees.spanned(attributes, query)
        split = split_levels(self.trees.hierarchies, spanned.attributes)
        estimate = math.fsum(float((part * self._table(split, residual)).sum()) for residual, part in spanned.pieces)
        return estimate, math.sqrt(self.trees.variance_of(spanned))

    def span_answers(self, part: WorkloadPart, attributes: AttributeSet) -> Floats:
        return part.answers(attributes, self._sum(attributes))

    def residual(self, subset: AttributeSet) -> Floats:
        """Return the estimated residual at the leaves of its trees, one axis for each attribute of its block."""
        if subset in self._residuals:
            self._residuals.move_to_end(subset)
            return self._residuals[subset]
        found = self.trees.by_residual[subset]
        values = self._read(found.index)
        for factor in found.factors.values():  # each axis moves to the end, so finally the order is the same
            values = factor.estimate(values)
        self._cache(subset, values)
        return values

    def _sum(self, attributes: AttributeSet) -> Floats:
        """Return the sum of the measured residuals of a set, in domain order."""
        reduced = without_implied(self.trees.hierarchies, attributes)
        if len(reduced) < len(attributes):
            return with_implied(self.plan.domain, self._sum(reduced), attributes)
        query, shape = split_levels(self.trees.hierarchies, attributes), self.plan.domain.shape(attributes)
        total = np.zeros(shape)
        for residual, _ in self.trees.inside(query):
            table = self._table(query, residual)
            for name, axis in query.axes.items():
                if table.shape[axis] < shape[axis]:
                    profile = self.trees.profile(name, query.levels.get(name, 0), shape[axis], residual)
                    table = table * profile.reshape([-1 if i == axis else 1 for i in range(table.ndim)])
            total += table
        return total

    def _table(self, query: TreeQuerySet, residual: Sequence[str]) -> Floats:
        """Return a residual at the levels of a set; the axes of attributes outside it have the length 1."""
        key = self.trees.key(residual)
        block, values = self.trees.by_residual[key], self.residual(key)
        names = list(block.factors)
        for name, factor in block.factors.items():
            if isinstance(factor, TreeFactor):
                values = sum_to_level(values, names.index(name), factor, query.levels.get(name, 0))
        kept = [name for name in names if name in query.axes]
        values = values.reshape([size for name, size in zip(names, values.shape, strict=True) if name in query.axes])
        order = sorted(range(len(kept)), key=lambda axis: query.axes[kept[axis]])
        values = values.transpose(order)
        shape = [1] * len(query.axes)
        for axis, size in zip(sorted(query.axes[name] for name in kept), values.shape, strict=True):
            shape[axis] = size
        return values.reshape(shape)

    @cached_property
    def _batched(self) -> None:
        return None


def sum_to_level(values: Floats, axis: int, factor: TreeFactor, level: int) -> Floats:
    """Return values with an axis over the leaves of a tree summed to the nodes of a level; the root has length 1."""
    first = np.moveaxis(values, axis, 0)
    for depth in range(factor.levels.depth - 1, level - 1, -1):
        first = factor.levels.sum_children(first, depth)
    return np.moveaxis(first, 0, axis)
