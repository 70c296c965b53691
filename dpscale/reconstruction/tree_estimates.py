"""Least-squares estimates of plans over hierarchies: all levels and all tables agree.

Every residual of the other attributes is estimated at the leaves of its tree by two passes (`plans.tree`), and
at a level above by sums. A table at a level is the sum of its residuals, each spread evenly over the other attributes.

*Terms.* `trees` is the accuracy of the plan. A hierarchy is named by its leaf attribute, and level 0 is its root.
`split` has the level of each hierarchy in a set of attributes, and the axis of each attribute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import Hierarchy
from dpscale.plans.tree import TreeAccuracy, TreeFactor, TreeQuerySet, split_levels, with_implied, without_implied
from dpscale.reconstruction.estimates import LeastSquaresEstimates, grouped_variance
from dpscale.workload import WorkloadPart
from dpscale.workload.residual import Groups, center

MOST_GROUPS = 4096  # groups of nodes up to which variances are exact; above, their upper bound


class TreeEstimates(LeastSquaresEstimates):
    """Unbiased estimates from blocks that measure residuals at all levels of trees."""

    _node_tables: Mapping[object, Floats] = MappingProxyType({})

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
        """Return the estimate and standard error of one linear query, an array over the attributes' cells.

        The query is a sum of pieces, one for each residual (a subset of the attributes, whose measured table sums to
        zero along its axes). Its estimate is the sum of the products of the pieces with the tables of their residuals,
        at the levels of the hierarchies that the attributes name.
        """
        spanned = self.trees.spanned(attributes, query)
        levels = split_levels(self.trees.hierarchies, spanned.attributes)
        products = [(piece * self._table(levels, residual)).sum() for residual, piece in spanned.pieces]
        return math.fsum(map(float, products)), math.sqrt(self.trees.variance_of(spanned))

    def combination(
        self, level: str, nodes: Integers, weights: Floats, attributes: AttributeSet, query: Floats
    ) -> tuple[float, float]:
        """Return estimate and standard error of the weighted sum of a query over some nodes of a level.

        Parameters
        ----------
        level : str
        nodes : ndarray of int64
            Distinct nodes of the level.
        weights : ndarray, shape (nodes,)
        attributes : AttributeSet
            Other attributes of the query, which are no levels, in domain order.
        query : ndarray
            Over the cells of these attributes.
        """
        split = self.trees.check_spanned(self.plan.domain.ordered((level, *attributes)))
        leaf = next(hierarchy.leaf for hierarchy in self.trees.hierarchies if level in hierarchy.names)
        other_attributes, estimate, variance = split_levels((), attributes), 0.0, 0.0

        for residual in self.trees.known_inside(split):
            part = self.trees.piece(other_attributes, residual, query)
            by_node = weights @ self._node_table(split, residual, leaf)[nodes]
            estimate += float(by_node.reshape(part.shape).ravel() @ part.ravel())

        for residual, block in self.trees.inside(split):
            part = self.trees.piece(other_attributes, [name for name in residual if name != leaf], query)
            table = self._node_table(split, residual, leaf)
            if leaf in residual or leaf == self.trees.main:
                tree = block.factors[leaf]
                assert isinstance(tree, TreeFactor)
                spread = tree.sparse_variance(nodes, weights, split.levels[leaf])
                by_node = weights @ table[nodes]
            else:
                total = float(weights @ self.trees.profile(leaf, split.levels[leaf], 0, residual)[nodes])
                spread, by_node = total**2, total * table[0]

            estimate += float(by_node.reshape(part.shape).ravel() @ part.ravel())
            variance += spread * self.trees.partial_variance(split, residual, block, other_attributes, part)

        return estimate, math.sqrt(max(variance, 0.0))

    def misfit(self, names: AttributeSet) -> tuple[float, int] | None:
        """Return the χ² statistic of a public total of one level, and its degrees of freedom; None if not measured.

        Measurements of the nodes below the known ones say by how much their sums differ from the total.

        Only a set with one level, the known one of the main hierarchy, has a statistic.
        """
        split = split_levels(self.trees.hierarchies, names)
        block = self.trees.by_residual.get(())
        factor = None if block is None else block.factors.get(self.trees.main)
        if list(split.axes) != [self.trees.main] or block is None or not isinstance(factor, TreeFactor):
            return None
        if factor.known != split.levels[self.trees.main]:
            return None

        known = self._known(self.plan.domain.hierarchies, (), factor.known)
        deviation = math.sqrt(self.variances[block.index])
        return factor.misfit(self._read(block.index) / deviation, known / deviation)

    def group_variance(self, subset: AttributeSet, groups: Mapping[str, Groups]) -> float:
        """Return the mean variance of the sums over groups of a residual's cells; 0 if it is public."""
        split = split_levels(self.trees.hierarchies, subset)
        if self.trees.is_known(split, self.trees.key_of(subset)):
            return 0.0

        block = self.trees.by_residual[self.trees.key([name for name in split.axes if name != self.trees.main])]
        names, total = dict(zip(split.axes, subset, strict=True)), block.scale
        for leaf, factor in block.factors.items():
            grouping = groups.get(names.get(leaf, ""))
            if isinstance(factor, TreeFactor):
                total *= _mean_variance(factor, split.levels.get(leaf, 0), grouping)
            else:
                total *= grouped_variance(factor, grouping)

        return total

    def _node_table(self, query: TreeQuerySet, residual: AttributeSet, leaf: str) -> Floats:
        """Return a residual at the levels of a set, shape (nodes, cells of the others); cached."""
        key = (leaf, residual, tuple(query.levels.items()))
        if key not in self._node_tables:
            moved = np.moveaxis(self._table(query, residual), query.axes[leaf], 0)
            self._node_tables = {**self._node_tables, key: np.ascontiguousarray(moved.reshape(len(moved), -1))}
        return self._node_tables[key]

    def span_answers(self, part: WorkloadPart, attributes: AttributeSet) -> Floats:
        return part.answers(attributes, self._sum(attributes))

    def residual(self, subset: AttributeSet) -> Floats:
        """Return the estimated residual at the leaves of its trees, one axis for each attribute of its block."""
        if subset in self._residuals:
            self._residuals.move_to_end(subset)
            return self._residuals[subset]

        block = self.trees.by_residual[subset]
        values = self._read(block.index)
        order = sorted(range(len(block.factors)), key=lambda axis: list(block.factors)[axis] == self.trees.main)

        for axis in order:  # the hierarchy with known nodes is last: their values are those of cells
            name = list(block.factors)[axis]
            factor = block.factors[name]
            if isinstance(factor, TreeFactor) and factor.known >= 0:
                known = self._known(self.plan.domain.hierarchies, subset, factor.known)
                values = np.moveaxis(factor.node_estimates(np.moveaxis(values, axis, 0), known)[-1], 0, axis)
            else:
                values = np.moveaxis(factor.estimate(values, axis), -1, axis)

        self._cache(subset, values)
        return values

    def _known(self, hierarchies: Sequence[Hierarchy], residual: AttributeSet, level: int) -> Floats:
        """Return a known residual by node of a level, shape (nodes, …), with the other attributes in their order."""
        main = next(hierarchy for hierarchy in hierarchies if hierarchy.leaf == self.trees.main)
        names = self.plan.domain.ordered((main.names[level - 1], *residual)) if level else residual
        table = self.plan.domain.known_table(names)
        assert table is not None
        axis = names.index(main.names[level - 1]) if level else 0
        values = np.moveaxis(table, axis, 0) if level else table[None]
        return center(values.astype(np.float64), range(1, values.ndim))

    def _known_piece(self, query: TreeQuerySet, residual: AttributeSet) -> Floats:
        """Return a known residual at the level of a set; the axes of attributes outside it have the length 1."""
        level = query.levels.get(self.trees.main, 0)
        values = self._known(self.plan.domain.hierarchies, residual, level)
        names = [self.trees.main, *residual] if level else list(residual)
        values = values if level else values[0]
        order = sorted(range(len(names)), key=lambda axis: query.axes[names[axis]])
        shape = [1] * len(query.axes)
        for axis in order:
            shape[query.axes[names[axis]]] = values.shape[axis]

        return values.transpose(order).reshape(shape)

    def _sum(self, attributes: AttributeSet) -> Floats:
        """Return the sum of the measured residuals of a set, in domain order.

        A level that a deeper one implies is left out and added later as cells that are 0 elsewhere (`with_implied`).
        """
        reduced = without_implied(self.trees.hierarchies, attributes)
        if len(reduced) < len(attributes):
            return with_implied(self.plan.domain, self._sum(reduced), attributes)

        query, shape = split_levels(self.trees.hierarchies, attributes), self.plan.domain.shape(attributes)
        total = np.zeros(shape)
        # residuals that public totals state, and those that were measured
        determined = [*self.trees.known_inside(query), *(residual for residual, _ in self.trees.inside(query))]

        for residual in determined:
            table = self._table(query, residual)
            for name, axis in query.axes.items():
                # an axis without the attribute is spread by its profile
                if table.shape[axis] < shape[axis]:
                    profile = self.trees.profile(name, query.levels.get(name, 0), shape[axis], residual)
                    table = table * profile.reshape([-1 if i == axis else 1 for i in range(table.ndim)])
            total += table

        return total

    def _table(self, query: TreeQuerySet, residual: Sequence[str]) -> Floats:
        """Return a residual at the levels of a set; the axes of attributes outside it have the length 1.

        Leaves are summed to the level of the set, and axes are put in the set's order.
        """
        if self.trees.is_known(query, residual):
            return self._known_piece(query, self.trees.key(residual))

        key = self.trees.key(residual)
        block, values = self.trees.by_residual[key], self.residual(key)
        names = list(block.factors)

        for name, factor in block.factors.items():
            if isinstance(factor, TreeFactor):
                values = sum_to_level(values, names.index(name), factor, query.levels.get(name, 0))

        shared = [name for name in names if name in query.axes]
        values = values.reshape([size for name, size in zip(names, values.shape, strict=True) if name in query.axes])
        order = sorted(range(len(shared)), key=lambda axis: query.axes[shared[axis]])
        values = values.transpose(order)
        shape = [1] * len(query.axes)
        for axis, size in zip(sorted(query.axes[name] for name in shared), values.shape, strict=True):
            shape[axis] = size

        return values.reshape(shape)

    @cached_property
    def _batched(self) -> None:
        return None


def sum_to_level(values: Floats, axis: int, factor: TreeFactor, level: int) -> Floats:
    """Return values with an axis over the leaves of a tree summed to the nodes of a level; the root has length 1."""
    return np.moveaxis(factor.levels.sum_to(np.moveaxis(values, axis, 0), level), 0, axis)


def _mean_variance(factor: TreeFactor, level: int, groups: Groups | None) -> float:
    """Return the mean variance of the nodes of a level, or of sums over groups of neighbouring nodes."""
    variances = factor.passes.variances[level]
    if groups is None or groups.count == groups.size:
        return float(variances.mean())
    if groups.count > MOST_GROUPS:  # siblings are negatively correlated, so this is an upper bound
        return float(variances.sum() / groups.count)

    ends = [*groups.starts, groups.size]
    spans = (np.arange(start, end) for start, end in pairwise(ends))
    return math.fsum(factor.sparse_variance(nodes, np.ones(len(nodes)), level) for nodes in spans) / groups.count
