"""What blocks tell of a domain, and how well: what both kinds of `Accuracy` have in common.

A query is the sum of its pieces on residuals (see `residual`); it lies in the span where every piece that is not zero
can be told. How its variance follows from the noise is left to the two: `independent` and `coupled`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.display import AttributeSet
from dpscale.base.errors import PlanError
from dpscale.domain import Domain
from dpscale.plans.blocks import Block, Blocks
from dpscale.plans.factor import Factor
from dpscale.workload import Part, Workload
from dpscale.workload.residual import Weights, piece, profile_of, subsets

Spread = Callable[[Block, AttributeSet], float]
FactorsOf = Callable[[Block, AttributeSet], tuple[Factor, ...]]
WholeIn = Callable[[Block, AttributeSet], bool]
MOST_KEPT = 1 << 14


@dataclass(frozen=True)
class BlockShare:
    """That a block tells of a residual: with `weight` in the average, by summing its other axes."""

    block: int
    weight: float


@dataclass(frozen=True)
class ResidualEstimator:
    """How one residual is estimated: the average of its sources; covariance scale · ⊗ (KᵀK)⁺.

    `spans_all`: whether every piece can be told, and so every cell of the residual.
    """

    attributes: AttributeSet
    sources: tuple[BlockShare, ...]
    scale: float
    factors: tuple[Factor, ...]
    spans_all: bool

    @property
    def joint(self) -> bool:
        return len(self.factors) < len(self.attributes)

    def variance(self, query_piece: Floats) -> float:
        """Variance of a query's piece on this residual."""
        return float(self.variances(query_piece[None])[0])

    def variances(self, pieces: Floats) -> Floats:
        """The same for a batch of pieces, shape (m, sizes…)."""
        if self.joint:
            turned = pieces.reshape(len(pieces), -1) @ self.factors[0].inverse
            return np.asarray(self.scale * (turned**2).sum(axis=1))
        turned = pieces
        for factor in self.factors:  # each axis goes to the end, so after all of them they stand as they did
            turned = factor.varied(turned)
        flat = pieces.reshape(len(pieces), -1)
        return np.asarray(self.scale * np.einsum("ij,ij->i", flat, turned.reshape(flat.shape)))

    def spans(self, query_piece: Floats) -> bool:
        """Whether a query's piece lies in the row space of the sources."""
        return spans(self.factors, query_piece)


def spans(factors: Sequence[Factor], query_piece: Floats) -> bool:
    """Whether a query's piece lies in the row space of a strategy: of a Kronecker product, or of one joint factor.

    Parameters
    ----------
    factors: one for every axis of the piece, or one for all of its cells.
    query_piece: an axis for every attribute of its residual.

    Notes
    -----
    The row space of ⊗K_i is the tensor product of those of the K_i. A piece lies in it exactly where its fibres along
    every axis i lie in the row space of K_i.
    """
    if len(factors) != query_piece.ndim:
        return factors[0].spans(query_piece.reshape(1, -1))
    fibres = (np.moveaxis(query_piece, axis, -1).reshape(-1, size) for axis, size in enumerate(query_piece.shape))
    return all(factor.spans(own) for factor, own in zip(factors, fibres, strict=True))


def estimators(
    blocks: Blocks, variances: Sequence[float], spread: Spread, factors_of: FactorsOf, whole_in: WholeIn
) -> Mapping[AttributeSet, ResidualEstimator]:
    """The estimator of every residual that the blocks tell of, under noise of these variances."""

    def of(residual_set: AttributeSet, spreads: Spreads) -> ResidualEstimator:
        first, shares = blocks[next(iter(spreads))], _shares(blocks, spreads)
        scale = sum(source.weight**2 * variances[source.block] * spread for source, spread in shares)
        sources = tuple(source for source, _ in shares)
        whole = all(whole_in(blocks[index], residual_set) for index in spreads)
        return ResidualEstimator(residual_set, sources, scale, factors_of(first, residual_set), whole)

    if blocks.separate:
        return Estimators(blocks, spread, of)
    return {kept: of(kept, spreads) for kept, spreads in _spreads_by_residual(blocks, spread).items()}


class Estimators(Mapping[AttributeSet, ResidualEstimator]):
    """Of blocks that tell of one residual each, made as they are asked for: there may be a million."""

    def __init__(
        self, blocks: Blocks, spread: Spread, of: Callable[[AttributeSet, Spreads], ResidualEstimator]
    ) -> None:
        self._blocks, self._spread, self._of = blocks, spread, of
        self._kept: dict[AttributeSet, ResidualEstimator | None] = {}

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
        if residual_set not in self._kept:
            if len(self._kept) >= MOST_KEPT:
                self._kept = {}
            places = self._blocks.sets.find(residual_set)
            self._kept[residual_set] = (
                self._of(residual_set, {i: self._spread(self._blocks[i], residual_set) for i in places})
                if places
                else None
            )
        return self._kept[residual_set]


Spreads = dict[int, float]  # by block: how much larger a residual's variance is than the noise


def _spreads_by_residual(blocks: Sequence[Block], spread: Spread) -> dict[AttributeSet, Spreads]:
    """The residuals that are told of, and by which blocks."""
    by_residual: dict[AttributeSet, Spreads] = {}
    for index, block in enumerate(blocks):
        for kept in block.residual_sets:
            by_residual.setdefault(kept, {})[index] = spread(block, kept)
    return by_residual


def _shares(blocks: Sequence[Block], spreads: Spreads) -> list[tuple[BlockShare, float]]:
    """The sources of a residual, weighted by the planned inverse variances, each with its spread."""
    inverse = {index: 1 / (blocks[index].unit_variance * spread) for index, spread in spreads.items()}
    precision = sum(inverse.values())
    return [(BlockShare(index, inverse[index] / precision), spread) for index, spread in spreads.items()]


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
    def _spread(self, block: Block, residual_set: AttributeSet) -> float:
        """How much larger a residual's variance is than the noise of a block, for lack of the axes summed away."""

    @abstractmethod
    def _factors(self, block: Block, residual_set: AttributeSet) -> tuple[Factor, ...]:
        """The factors whose (KᵀK)⁺ give a residual's covariance its form."""

    def _whole_in(self, block: Block, residual_set: AttributeSet) -> bool:
        """Whether a block tells of all of a residual."""
        return all(factor.spans_all for factor in self._factors(block, residual_set))

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


def out_of_span(residual_set: AttributeSet) -> PlanError:
    names = ", ".join(residual_set) or "the total"
    return PlanError(
        "query",
        f"it needs {names}, which was not measured",
        "a query in the workload's span",
        "add a family over these attributes to the workload",
    )
