"""Accuracy of plans over hierarchies, whose blocks measure a residual of the other attributes at all levels of a tree.

A block on the attributes (level, τ…) has a tree strategy on the level and centred strategies on τ. It determines the
residual τ at this level and at every level above it. The first hierarchy is not centred: a table without a level of it
is read at the root of the tree. The levels of any other hierarchy are centred like an attribute, by the weights of its
strategies, which are the same for all residuals with the same other attributes. Estimates of different residuals are
independent, so the variance of a product query is

    Σ_τ scale_τ · P_level · Π over τ of q_iᵀ (K_iᵀK_i)⁺ q_i · Π outside τ of (mean of q_i)².
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import product
from typing import Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Hierarchy
from dpscale.plans.accuracy_base import NOTHING, Accuracy, ResidualEstimator, SpannedQuery, out_of_span
from dpscale.plans.blocks import Block
from dpscale.plans.factor import Factor
from dpscale.plans.tree_factor import TreeFactor
from dpscale.plans.tree_queries import (
    TreeQuerySet,
    implied_levels,
    known_level,
    levels_only,
    split_levels,
    two_levels,
    with_implied,
    without_implied,
)
from dpscale.workload import MARGINAL, Family, WorkloadPart
from dpscale.workload.residual import subsets


@dataclass(frozen=True)
class TreeResidualBlock:
    """Block that measures a residual.

    Attributes
    ----------
    index : int
        Position among the blocks.
    scale : float
        Noise variance.
    factors : mapping of str to Factor
        By attribute; trees by the name of their leaf attribute.
    levels : mapping of str to int
        Deepest level of each tree, by the name of its leaf attribute; the root is 0.
    """

    index: int
    scale: float
    factors: Mapping[str, Factor]
    levels: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class TreeAccuracy(Accuracy):
    """Variances that add over residuals, each measured by one block at all levels of its trees."""

    @cached_property
    def hierarchies(self) -> tuple[Hierarchy, ...]:
        """Hierarchies of the domain with a measured level, the one that is not centred first."""
        named = {name for names in self.blocks.sets for name in names}
        used = [one for one in self.domain.hierarchies if named.intersection(one.names)]
        return tuple(sorted(used, key=lambda one: one.names[-1] != self.main))

    @cached_property
    def main(self) -> str:
        """Leaf attribute of the hierarchy that is not centred."""
        for block in self.blocks:
            for name, factor in zip(block.attributes, block.factors, strict=True):
                if isinstance(factor, TreeFactor) and not factor.centred:
                    own = self.domain.hierarchy_of(name)
                    assert own is not None
                    return own.leaf
        return ""

    @cached_property
    def by_residual(self) -> Mapping[AttributeSet, TreeResidualBlock]:
        """Block of each residual; a residual names other attributes, and leaf attributes of centred hierarchies."""
        return {key: block for key, block in map(self._block, range(len(self.blocks)))}

    def _block(self, index: int) -> tuple[AttributeSet, TreeResidualBlock]:
        block, names, levels = self.blocks[index], list[str](), dict[str, int]()
        for name, factor in zip(block.attributes, block.factors, strict=True):
            own = self.domain.hierarchy_of(name) if isinstance(factor, TreeFactor) else None
            names.append(name if own is None else own.leaf)
            if own is not None:
                levels[names[-1]] = own.position(name) + 1
        factors = dict(zip(names, block.factors, strict=True))
        residual = tuple(name for name in names if name != self.main)
        return residual, TreeResidualBlock(index, self.variances[index], factors, levels)

    @property
    def residuals(self) -> Mapping[AttributeSet, ResidualEstimator]:  # type: ignore[override]
        """Return nothing: residuals of trees are read from `by_residual`."""
        return {}

    def complete_sets(self) -> Iterator[AttributeSet]:
        """Yield the residuals of which every cell can be estimated, with each level of their trees."""
        for residual, block in self.by_residual.items():
            if not all(factor.spans_all for factor in block.factors.values()):
                continue
            levels = [self._level_names(name, block, top=name == self.main) for name in block.levels]
            others = [name for name in residual if not self._is_leaf(name)]
            for chosen in product(*levels):
                yield self.domain.ordered([*others, *(name for name in chosen if name)])
        known = (subset for one in self.domain.public_totals for subset in subsets(one.names))
        yield from dict.fromkeys(subset for subset in known if self.key_of(subset) not in self.by_residual)

    def _level_names(self, leaf: str, block: TreeResidualBlock, top: bool) -> list[str]:
        """Return the measured levels of a hierarchy, with "" for its root if `top`."""
        own = next(one for one in self.hierarchies if one.leaf == leaf)
        return [""] * top + list(own.names[: block.levels[leaf]])

    @cached_property
    def _known_levels(self) -> dict[AttributeSet, int]:
        return {}

    def is_known(self, query: TreeQuerySet, residual: Sequence[str]) -> bool:
        """Return whether a residual follows from public totals at the levels of a set."""
        if not self.domain.public_totals or len(self.hierarchies) != 1:
            return False
        others = self.key(residual)
        if others not in self._known_levels:
            self._known_levels[others] = known_level(self.domain, self.hierarchies[0], others)
        return self._known_levels[others] >= query.levels.get(self.main, 0)

    def inside(self, query: TreeQuerySet) -> Iterator[tuple[AttributeSet, TreeResidualBlock]]:
        """Yield the residuals of an attribute set that are measured at its levels."""
        for residual in subsets(tuple(name for name in query.axes if name != self.main)):
            key = self.key(residual)
            block = self.by_residual.get(key)
            if block is not None and not self.is_known(query, key) and not self.missing(query, key):
                yield key, block

    def known_inside(self, query: TreeQuerySet) -> list[AttributeSet]:
        """Return the residuals of an attribute set that follow from public totals at its levels."""
        every = subsets(tuple(name for name in query.axes if name != self.main))
        return [self.key(residual) for residual in every if self.is_known(query, residual)]

    def key(self, names: Sequence[str]) -> AttributeSet:
        """Return a residual in the order of the domain's attributes, with levels in the place of their hierarchy."""
        return tuple(sorted(names, key=self._order.__getitem__))

    @cached_property
    def _order(self) -> Mapping[str, int]:
        place = {name: number for number, name in enumerate(self.domain.axis_names)}
        return place | {one.leaf: min(place[name] for name in one.names) for one in self.hierarchies}

    def key_of(self, names: Sequence[str]) -> AttributeSet:
        """Return the residual of a set: its attributes without the level of the hierarchy that is not centred."""
        return self.key([name for name in split_levels(self.hierarchies, names).axes if name != self.main])

    def missing(self, query: TreeQuerySet, residual: AttributeSet) -> bool:
        """Return whether a residual is neither measured nor known at the levels of an attribute set."""
        if self.is_known(query, residual):
            return False
        block = self.by_residual.get(residual)
        wanted = {name: level for name, level in query.levels.items() if name in residual or name == self.main}
        return block is None or any(block.levels.get(name, 0) < level for name, level in wanted.items())

    def check_spanned(self, attributes: Sequence[str]) -> TreeQuerySet:
        """Return the split attribute set. Raises PlanError if a residual of it was not measured at its levels."""
        query = split_levels(self.hierarchies, attributes)
        for residual in subsets(tuple(name for name in query.axes if name != self.main)):
            if self.missing(query, self.key(residual)):
                raise out_of_span((*query.levels, *(name for name in residual if name not in query.levels)))
        return query

    def spanned(self, attributes: Sequence[str], query: Any) -> SpannedQuery:
        ordered, values = self._aligned(attributes, query)
        if implied := implied_levels(self.hierarchies, ordered):
            raise two_levels(implied)
        split, least = split_levels(self.hierarchies, ordered), NOTHING * np.abs(values).max()
        found = list[tuple[AttributeSet, Floats]]()
        for residual in subsets(tuple(name for name in split.axes if name != self.main)):
            part = self.piece(split, residual, values[0])
            if np.abs(part).max() > least:
                if self.missing(split, self.key(residual)):
                    raise out_of_span((*split.levels, *(name for name in residual if name not in split.levels)))
                found.append((residual, part))
        return SpannedQuery(ordered, values, tuple(found))

    def piece(self, query: TreeQuerySet, residual: Sequence[str], values: Floats) -> Floats:
        """Return the part of a query on a residual: axes outside it are averaged and keep the length 1."""
        for name, axis in query.axes.items():
            if name == self.main:
                continue
            shape = [-1 if i == axis else 1 for i in range(values.ndim)]
            profile = self.profile(name, query.levels.get(name, 0), values.shape[axis], residual)
            mean = (values * profile.reshape(shape)).sum(axis=axis, keepdims=True)
            values = values - mean if name in residual else mean
        return values

    def profile(self, name: str, level: int, size: int, residual: Sequence[str]) -> Floats:
        """Return the distribution of the total of an axis over its cells, for the residual that the query has.

        It is uniform for an attribute. For a hierarchy it is that of the centred strategy with the same attributes.
        """
        if not level:
            return np.full(size, 1 / size)
        others = tuple(one for one in self.key(residual) if not self._is_leaf(one))
        return self._spreads[others, name].profile(level)

    @cached_property
    def _spreads(self) -> Mapping[tuple[AttributeSet, str], TreeFactor]:
        """Deepest centred strategy on a hierarchy, by the other attributes of the residual and the hierarchy."""
        found: dict[tuple[AttributeSet, str], TreeFactor] = {}
        for residual, block in self.by_residual.items():
            others = tuple(one for one in residual if not self._is_leaf(one))
            for name in block.levels:
                own, key = block.factors[name], (others, name)
                if isinstance(own, TreeFactor) and (key not in found or own.cells > found[key].cells):
                    found[key] = own
        return found

    def _is_leaf(self, name: str) -> bool:
        return any(name == one.leaf for one in self.hierarchies)

    def variance_of(self, query: SpannedQuery) -> float:
        split = split_levels(self.hierarchies, query.attributes)
        total = math.fsum(self._piece_variance(split, residual, part) for residual, part in query.pieces)
        return max(total, 0.0)  # what is known has a variance of 0 up to rounding

    def _piece_variance(self, query: TreeQuerySet, residual: AttributeSet, part: Floats) -> float:
        if self.is_known(query, residual):
            return 0.0
        block, turned = self.by_residual[self.key(residual)], part
        for name, axis in query.axes.items():
            if name in residual or name == self.main:
                turned = _apply_covariance(block.factors[name], turned, axis, query.levels.get(name, 0))
        return block.scale * self._root(query, block) * float((part * turned).sum())

    def others_variance(
        self, query: TreeQuerySet, residual: AttributeSet, block: TreeResidualBlock, others: TreeQuerySet, part: Floats
    ) -> float:
        """Return the variance of a residual's query on the attributes that are no levels, for unit variance of a node.

        Parameters
        ----------
        query : TreeQuerySet
            Whole set.
        residual : AttributeSet
        block : TreeResidualBlock
        others : TreeQuerySet
            Set of the attributes that are no levels.
        part : ndarray
            Query on them, averaged along attributes outside the residual.
        """
        turned = part
        for name, axis in others.axes.items():
            if name in residual:
                turned = _apply_covariance(block.factors[name], turned, axis, 0)
        return block.scale * self._root(query, block) * float((part * turned).sum())

    def _root(self, query: TreeQuerySet, block: TreeResidualBlock) -> float:
        """Return the variance of the root, for a set without a level of the hierarchy that is not centred."""
        factor = block.factors.get(self.main)
        if self.main in query.levels or not isinstance(factor, TreeFactor):
            return 1.0
        return float(factor.passes.variances[0][0])

    def variances_below(self, attributes: AttributeSet) -> Floats:
        """Return the variances of the cells of a set from the measurements at and below their nodes alone.

        This is what remains of their variances once the levels above are known. The set has at most one level of each
        hierarchy.
        """
        query = self.check_spanned(attributes)
        families, total = dict.fromkeys(attributes, MARGINAL), np.zeros(self.domain.shape(attributes))
        for residual, block in self.inside(query):
            vectors = self._vectors(query, families, residual, block, below=True)
            total += block.scale * self._root(query, block) * reduce(np.multiply.outer, vectors, np.ones(()))
        return total

    def _product_variances(self, families: Mapping[str, Family]) -> Floats:
        reduced = without_implied(self.hierarchies, tuple(families))
        if len(reduced) < len(families):
            own = self._product_variances({name: families[name] for name in reduced})
            return with_implied(self.domain, own, tuple(families))
        query = self.check_spanned(tuple(families))
        total = np.zeros(tuple(family.count(self.domain[name].size) for name, family in families.items()))
        for residual, block in self.inside(query):
            vectors = self._vectors(query, families, residual, block)
            total += block.scale * self._root(query, block) * reduce(np.multiply.outer, vectors, np.ones(()))
        return total

    def _product_error(self, families: Mapping[str, Family]) -> float:
        reduced = without_implied(self.hierarchies, tuple(families))
        families = {name: families[name] for name in reduced}
        query = self.check_spanned(reduced)
        return math.fsum(
            block.scale * self._root(query, block)
            * math.prod(float(own.sum()) for own in self._vectors(query, families, residual, block))
            for residual, block in self.inside(query)
        )  # fmt: skip

    def _vectors(
        self,
        query: TreeQuerySet,
        families: Mapping[str, Family],
        residual: AttributeSet,
        block: TreeResidualBlock,
        below: bool = False,
    ) -> list[Floats]:
        """Return the variances of the queries of every axis at scale 1; `below`: see `variances_below`."""
        found = []
        for (name, family), own in zip(families.items(), query.axes, strict=True):
            level = query.levels.get(own, 0)
            if level and not family.is_identity:
                raise levels_only(name)
            factor = block.factors.get(own) if own in residual or own == self.main else None
            if isinstance(factor, TreeFactor):
                found.append((factor.passes.below if below else factor.passes.variances)[level])
            elif factor is not None:
                found.append(factor.quadratics(family))
            else:
                size = self.domain[name].size
                found.append(family.answers(self.profile(own, level, size, residual), 0) ** 2)
        return found

    def _array_variances(self, part: WorkloadPart, attributes: AttributeSet) -> Floats:
        return np.array([self.variance(attributes, query) for query in part.queries(attributes)])

    def _spread_ratio(self, block: Block, residual_set: AttributeSet) -> float:
        return 1.0

    def _factors(self, block: Block, residual_set: AttributeSet) -> tuple[Factor, ...]:
        return block.factors


def _apply_covariance(factor: Factor, values: Floats, axis: int, level: int) -> Floats:
    """Return (KᵀK)⁺ applied along an axis, for a tree on the nodes of a level."""
    first = np.moveaxis(values, axis, 0)
    if isinstance(factor, TreeFactor):
        return np.moveaxis(factor.node_covariance(first, level), 0, axis)
    return np.moveaxis(factor.apply_covariance(first[None].astype(np.float64)), -1, axis + 1)[0]
