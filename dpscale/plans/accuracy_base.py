"""Base class of variance formulas: which queries the measured blocks span, and with what variance.

A query is the sum of its pieces on residual spaces (see `dpscale.workload.residual`). It is in the span if every
nonzero piece is. The subclasses in `accuracy` and `coupled` compute its variance from the noise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.plans.blocks import Block, Blocks
from dpscale.plans.factor import Factor, center_factor
from dpscale.workload import Family, Workload, WorkloadPart
from dpscale.workload.residual import Weights, center, piece, profile_of, subsets

Spread = Callable[[Block, AttributeSet], float]
FactorsOf = Callable[[Block, AttributeSet], tuple[Factor, ...]]
WholeIn = Callable[[Block, AttributeSet], bool]
MOST_CACHED = 1 << 14


@dataclass(frozen=True)
class BlockWeight:
    """Contribution of a block to the estimate of a residual: its weight in the average over blocks."""

    block: int
    weight: float


@dataclass(frozen=True)
class ResidualEstimator:
    """Estimator of one residual: the average of its sources, with covariance scale · ⊗ (KᵀK)⁺.

    Attributes
    ----------
    attributes : AttributeSet
    sources : tuple of BlockWeight
    scale : float
    factors : tuple of Factor
    spans_all : bool
        Whether every piece, and therefore every cell of the residual, can be estimated.
    """

    attributes: AttributeSet
    sources: tuple[BlockWeight, ...]
    scale: float
    factors: tuple[Factor, ...]
    spans_all: bool

    @property
    def joint(self) -> bool:
        return len(self.factors) < len(self.attributes)

    def variance(self, query_piece: Floats) -> float:
        """Return the variance of a query's piece on this residual."""
        return float(self.variances(query_piece[None])[0])

    def variances(self, pieces: Floats) -> Floats:
        """Return the variances of a batch of pieces, shape (m, sizes…)."""
        if self.joint:
            turned = pieces.reshape(len(pieces), -1) @ self.factors[0].inverse
            return np.asarray(self.scale * (turned**2).sum(axis=1))
        turned = pieces
        for factor in self.factors:  # each axis moves to the end; after all of them the order is restored
            turned = factor.apply_covariance(turned)
        flat = pieces.reshape(len(pieces), -1)
        return np.asarray(self.scale * np.einsum("ij,ij->i", flat, turned.reshape(flat.shape)))

    @property
    def mean_variance(self) -> float:
        """Mean variance of the coordinates of the centred residual; 0 if an axis has a single cell."""
        if self.joint:
            rows = self.factors[0].inverse.reshape(*self.factors[0].shape, -1)
            dimensions = math.prod(size - 1 for size in self.factors[0].shape)
            spread = float((center(rows, range(rows.ndim - 1)) ** 2).sum())
            return self.scale * spread / dimensions if dimensions else 0.0
        value = self.scale
        for factor in self.factors:
            covariance = factor.apply_covariance(np.eye(factor.cells))
            centred = float(np.trace(covariance)) - float(covariance.sum()) / factor.cells
            value *= centred / (factor.cells - 1) if factor.cells > 1 else 0.0
        return value

    def spans(self, query_piece: Floats) -> bool:
        """Return whether a query's piece lies in the row space of the sources."""
        return spans(self.factors, query_piece)


def spans(factors: Sequence[Factor], query_piece: Floats) -> bool:
    """Return whether a query's piece lies in the row space of a strategy: a Kronecker product or one joint factor.

    Parameters
    ----------
    factors : sequence of Factor
        One for each axis of the piece, or one for all of its cells.
    query_piece : ndarray
        One axis for each attribute of its residual.

    Notes
    -----
    The row space of ⊗K_i is the tensor product of the row spaces of the K_i. A piece lies in it if and only if its
    fibres along every axis i lie in the row space of K_i.
    """
    if len(factors) != query_piece.ndim:
        return factors[0].spans(query_piece.reshape(1, -1))
    fibres = (np.moveaxis(query_piece, axis, -1).reshape(-1, size) for axis, size in enumerate(query_piece.shape))
    return all(factor.spans(own) for factor, own in zip(factors, fibres, strict=True))


def residual_estimators(
    blocks: Blocks, variances: Sequence[float], spread: Spread, factors_of: FactorsOf, whole_in: WholeIn
) -> Mapping[AttributeSet, ResidualEstimator]:
    """Return the estimator of every residual that the blocks measure, for the given noise variances.

    Parameters
    ----------
    blocks : Blocks
    variances : sequence of float, shape (blocks,)
        Noise variance of each block.
    spread : callable
        Ratio of the variance of a residual to the noise variance of a block.
    factors_of : callable
        Factors of a block on a residual.
    whole_in : callable
        Whether a block estimates every cell of a residual.
    """

    def of(residual_set: AttributeSet, spreads: Spreads) -> ResidualEstimator:
        first, shares = blocks[next(iter(spreads))], _shares(blocks, spreads)
        scale = sum(source.weight**2 * variances[source.block] * spread for source, spread in shares)
        sources = tuple(source for source, _ in shares)
        whole = all(whole_in(blocks[index], residual_set) for index in spreads)
        return ResidualEstimator(residual_set, sources, scale, factors_of(first, residual_set), whole)

    if blocks.measures_one_residual:
        return ResidualEstimators(blocks, spread, of)
    return {
        residual_set: of(residual_set, spreads)
        for residual_set, spreads in _spreads_by_residual(blocks, spread).items()
    }


class ResidualEstimators(Mapping[AttributeSet, ResidualEstimator]):
    """Lazy mapping from residual sets to estimators, for plans whose blocks measure one residual each."""

    def __init__(
        self, blocks: Blocks, spread: Spread, of: Callable[[AttributeSet, Spreads], ResidualEstimator]
    ) -> None:
        self._blocks, self._spread_ratio, self._of = blocks, spread, of
        self._cache: dict[AttributeSet, ResidualEstimator | None] = {}

    def __getitem__(self, residual_set: AttributeSet) -> ResidualEstimator:
        found = self._found(residual_set)
        if found is None:
            raise KeyError(residual_set)
        return found

    def __contains__(self, residual_set: object) -> bool:
        return self._found(residual_set) is not None  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[AttributeSet]:
        return iter(dict.fromkeys(self._blocks.sets))

    def __len__(self) -> int:
        return len(dict.fromkeys(self._blocks.sets))

    def _found(self, residual_set: AttributeSet) -> ResidualEstimator | None:
        if residual_set not in self._cache:
            if len(self._cache) >= MOST_CACHED:
                self._cache = {}
            places = self._blocks.sets.find(residual_set)
            self._cache[residual_set] = (
                self._of(residual_set, {i: self._spread_ratio(self._blocks[i], residual_set) for i in places})
                if places
                else None
            )
        return self._cache[residual_set]


class KnownResiduals(Mapping[AttributeSet, ResidualEstimator]):
    """Estimators with those of residuals that follow from public totals, which have no variance."""

    def __init__(self, domain: Domain, measured: Mapping[AttributeSet, ResidualEstimator]) -> None:
        self._domain, self._measured = domain, measured

    def __getitem__(self, residual_set: AttributeSet) -> ResidualEstimator:
        if self._domain.known_table(residual_set) is None:
            return self._measured[residual_set]
        factors = tuple(map(center_factor, self._domain.shape(residual_set)))
        return ResidualEstimator(residual_set, (), 0.0, factors, True)

    def __contains__(self, residual_set: object) -> bool:
        known = self._domain.known_table(residual_set)  # type: ignore[arg-type]
        return known is not None or residual_set in self._measured

    def __iter__(self) -> Iterator[AttributeSet]:
        totals = (subset for one in self._domain.public_totals for subset in subsets(one.names))
        return iter(dict.fromkeys([*totals, *self._measured]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


Spreads = dict[int, float]  # ratio of a residual's variance to the noise, by block


def _spreads_by_residual(blocks: Sequence[Block], spread: Spread) -> dict[AttributeSet, Spreads]:
    """Return the measured residuals with the spread of every block that measures them."""
    by_residual: dict[AttributeSet, Spreads] = {}
    for index, block in enumerate(blocks):
        for residual_set in block.residual_sets:
            by_residual.setdefault(residual_set, {})[index] = spread(block, residual_set)
    return by_residual


def _shares(blocks: Sequence[Block], spreads: Spreads) -> list[tuple[BlockWeight, float]]:
    """Return the sources of a residual, weighted by their planned inverse variances, each with its spread."""
    inverse = {index: 1 / (blocks[index].unit_variance * spread) for index, spread in spreads.items()}
    precision = sum(inverse.values())
    return [(BlockWeight(index, inverse[index] / precision), spread) for index, spread in spreads.items()]


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
        return (subset for subset, one in self.residuals.items() if one.spans_all)

    @cached_property
    def weights(self) -> dict[str, Weights]:
        """Weights of the attributes whose residuals are not centred by the plain mean."""
        return dict(self.blocks.weights())

    @cached_property
    def profiles(self) -> Mapping[str, Floats]:
        """Distribution of an attribute's total over its cells, for attributes where it is not uniform."""
        return {name: profile_of(own, len(own)) for name, own in self.weights.items()}

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
