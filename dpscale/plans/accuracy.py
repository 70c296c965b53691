"""Accuracy of blocks whose estimates of different residuals are independent.

The variance of a query is then the sum over its pieces. For a product query q = ⊗ q_i it is
    Σ_τ scale_τ · Π over τ of q_iᵀ (K_iᵀK_i)⁺ q_i · Π outside τ of (mean of q_i)²,
which is an outer product over the axes for all queries of a family at once, unless the strategy is joint.

A *piece* of a query on a residual τ is the query averaged over the axes outside τ and centred along those inside. A
*joint* strategy has one factor K on all cells of several attributes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.plans.accuracy_base import Accuracy, CoupledResiduals, ResidualEstimator, SpannedQuery
from dpscale.plans.blocks import Block, Blocks
from dpscale.plans.factor import Factor
from dpscale.plans.tree import TreeAccuracy
from dpscale.workload import Family, WorkloadPart, axis_of
from dpscale.workload.residual import Weights, piece, profile_of, subsets
from dpscale.workload.wide import is_wide

Cache = dict[tuple[Hashable, ...], Any]


@dataclass(frozen=True, eq=False)
class IndependentResiduals(Accuracy):
    """Variances that add over the residuals; terms of joint strategies and families are cached by shape."""

    _cache: Cache = field(default_factory=dict, init=False, repr=False)

    def variance_of(self, query: SpannedQuery) -> float:
        return math.fsum(self.residuals[residual_set].variance(part) for residual_set, part in query.pieces)

    def _product_variances(self, families: Mapping[str, Family]) -> Floats:
        """Return the variances of all products of the families' queries, one axis for the queries of each attribute.

        They are sums over the residuals inside the set, which are estimated independently.
        """
        total = np.zeros(tuple(family.count(self.domain[name].size) for name, family in families.items()))
        for estimator in self._inside(tuple(families)):
            total += self._residual_variances(families, estimator)
        return total

    def _product_error(self, families: Mapping[str, Family]) -> float:
        return math.fsum(self._residual_error(families, estimator) for estimator in self._inside(tuple(families)))

    def _spread_ratio(self, block: Block, residual_set: AttributeSet) -> float:
        return math.prod(self.domain[name].size for name in block.attributes if name not in residual_set)

    def _factors(self, block: Block, residual_set: AttributeSet) -> tuple[Factor, ...]:
        """Return the factors of a block on a residual: those of its attributes, or the only one of a joint block."""
        if block.joint:
            return block.factors
        by_name = dict(zip(block.attributes, block.factors, strict=True))
        return tuple(by_name[name] for name in residual_set)

    def _inside(self, attributes: AttributeSet) -> list[ResidualEstimator]:
        """Return the estimators of the measured residuals inside a set; residuals that no query needs are absent."""
        return [self.residuals[residual_set] for residual_set in subsets(attributes) if residual_set in self.residuals]

    def _array_variances(self, part: WorkloadPart, attributes: AttributeSet) -> Floats:
        """Return the variances of the queries of a set that are given as arrays, shape (queries,).

        Residuals are the spaces of the decomposition of a query; a set needs those inside it. `scale` is the factor of
        a residual's covariance.
        """
        total = np.zeros(part.count(attributes))
        for estimator in self._inside(attributes):
            total += estimator.scale * self._array_quadratics(part, attributes, estimator)
        return total

    def _array_quadratics(self, part: WorkloadPart, attributes: AttributeSet, estimator: ResidualEstimator) -> Floats:
        """Return the contribution of one residual at scale 1, shape (queries,); cached for sets of a joint family.

        The key has all that the result depends on: the queries, the axes, the strategies and the weights of the
        attributes. `axes` are the positions of the residual's attributes in the set; a family by shape has equal
        queries on equal sizes.
        """
        axes = [attributes.index(name) for name in estimator.attributes]
        if not part.by_shape:
            return self._of_pieces(part, attributes, axes, estimator)
        key = ("array", part.key(attributes), *axes, *estimator.factors, *map(self.weights.get, attributes))
        if key not in self._cache:
            self._cache[key] = self._of_pieces(part, attributes, axes, estimator)
        return np.asarray(self._cache[key])

    def _of_pieces(
        self, part: WorkloadPart, attributes: AttributeSet, axes: list[int], estimator: ResidualEstimator
    ) -> Floats:
        """Return the variances of the queries' pieces on a residual, at scale 1; `axes` are those of the residual.

        A piece of a query is the query averaged over the other axes and centred along these.
        """
        unit, profiles = replace(estimator, scale=1.0), self.axis_profiles(attributes)
        chunks = part.chunks(attributes)
        return np.concatenate([unit.variances(piece(queries, axes, lead=1, profiles=profiles)) for queries in chunks])

    def _residual_variances(self, families: Mapping[str, Family], estimator: ResidualEstimator) -> Floats:
        """Return the contribution of one residual to every product query, one axis per attribute.

        It is an outer product unless the strategy is joint.

        Along an axis of the residual a query adds qᵀ (KᵀK)⁺ q, along another its squared mean. K is a strategy matrix
        of the residual (`factors`); `means` are those of q on each axis, and `scale` is the factor of the covariance.
        """
        means = {name: self._means(name, family) ** 2 for name, family in families.items()}
        if estimator.joint:
            return self._joint_variances(families, means, estimator)
        pairs = zip(estimator.attributes, estimator.factors, strict=True)
        vectors = means | {name: factor.quadratics(families[name]) for name, factor in pairs}
        return estimator.scale * reduce(np.multiply.outer, vectors.values(), np.ones(()))

    def _means(self, name: str, family: Family) -> Floats:
        """Return the value of every query of a family after its attribute is averaged out."""
        return _means(family, self.domain[name].size, self.weights.get(name))

    def _joint_variances(
        self, families: Mapping[str, Family], means: dict[str, Floats], estimator: ResidualEstimator
    ) -> Floats:
        """Return the variances of the products' pieces on a joint residual, one axis for each attribute.

        `means` has the squared mean of every query of each attribute outside the residual, shape (queries,).
        """
        residual_set = estimator.attributes
        total = estimator.scale * self._quadratic(tuple(families[name] for name in residual_set), estimator.factors[0])
        for axis, name in enumerate(families):
            if name not in residual_set:
                total = np.expand_dims(total, axis) * means[name].reshape([-1, *[1] * (total.ndim - axis)])
        return total

    def _quadratic(self, families: tuple[Family, ...], factor: Factor) -> Floats:
        """Return qᵀ (KᵀK)⁺ q of every product query q; cached for sets with the same strategy.

        K is the strategy matrix of `factor`, and q a product of one query of each family.
        """
        key = ("quadratic", *families, factor)
        if key not in self._cache:
            self._cache[key] = factor.product_quadratics(families)
        return np.asarray(self._cache[key])

    def _residual_error(self, families: Mapping[str, Family], estimator: ResidualEstimator) -> float:
        """Return the contribution of one residual to the sum over all product queries, by traces.

        The sum over product queries is a product of sums: Σ (mean)² of the axes outside, and the trace on the axes
        inside. `scale` is the factor of the residual's covariance.
        """
        residual_set = estimator.attributes
        pairs = [(family, name) for name, family in families.items() if name not in residual_set]
        outside = [_mean_square(family, self.domain[name].size, self.weights.get(name)) for family, name in pairs]
        return (
            estimator.scale
            * math.prod(outside)
            * self._trace(tuple(families[name] for name in residual_set), estimator)
        )

    def _trace(self, families: tuple[Family, ...], estimator: ResidualEstimator) -> float:
        """Return tr(WᵀW ⊗ (KᵀK)⁺) on the axes of a residual; cached for joint strategies.

        W are the queries of the families and K the strategy; without a joint strategy both are products, and traces
        multiply.
        """
        if not estimator.joint:
            return math.prod(_axis_trace(*pair) for pair in zip(families, estimator.factors, strict=True))

        factor = estimator.factors[0]
        key = ("trace", *families, factor)
        if key not in self._cache:
            self._cache[key] = factor.product_trace(families)
        return float(self._cache[key])


@lru_cache(maxsize=4096)
def _axis_trace(family: Family, factor: Factor) -> float:
    return factor.trace(family)


@lru_cache(maxsize=4096)
def _means(family: Family, size: int, weights: Weights | None) -> Floats:
    """Return W1/n or Wu: the queries of a family after the axis is averaged out."""
    return family.means(size) if weights is None else family.answers(profile_of(weights, size), 0)


@lru_cache(maxsize=4096)
def _mean_square(family: Family, size: int, weights: Weights | None) -> float:
    if is_wide(size) and family.count(size) > size:  # more queries than are listed
        return axis_of(family, size, weights).mean_square
    return float((_means(family, size, weights) ** 2).sum())


__all__ = ["Accuracy", "accuracy_of"]


def accuracy_of(domain: Domain, blocks: Sequence[Block], variances: Sequence[float] | None = None) -> Accuracy:
    """Return the accuracy of blocks: for trees, or residuals that are estimated independently, or any other blocks.

    Parameters
    ----------
    domain : Domain
    blocks : sequence of Block
    variances : sequence of float, optional
        Noise variance of each block in lattice units; by default that of the plan at privacy cost 1.
    """
    columns = Blocks.of(domain.axis_names, blocks)
    drawn = columns.unit_variances.tolist() if variances is None else variances
    kind: type[Accuracy] = IndependentResiduals if columns.commutes else CoupledResiduals
    return (TreeAccuracy if columns.has_trees else kind)(columns.domain_of(domain), columns, drawn)
