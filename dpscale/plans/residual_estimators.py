"""Estimators of residuals: which blocks measure each one, with what weights, and the form of its covariance.

A residual is named by its set of attributes, and a query's *piece* on it is an array with an axis for each of them. A
*joint* strategy has one factor K on all cells of several attributes; other strategies have one for each attribute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.plans.blocks import Block, Blocks
from dpscale.plans.factor import Factor, center_factor
from dpscale.workload.residual import center, subsets

Spread = Callable[[Block, AttributeSet], float]
FactorsOf = Callable[[Block, AttributeSet], tuple[Factor, ...]]
WholeIn = Callable[[Block, AttributeSet], bool]
MOST_CACHED = 1 << 14  # estimators in the cache, which is emptied when it is full


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
        """Return the variances of a batch of pieces, shape (m, sizes…).

        With covariance C = ⊗ (KᵀK)⁺, the variance of a piece p is scale · pᵀCp; C is applied one axis after the other.
        """
        if self.joint:
            return self.scale * self.factors[0].array_quadratics(pieces)

        multiplied = pieces  # C p
        for factor in self.factors:  # each axis moves to the end; after all of them the order is restored
            multiplied = factor.apply_covariance(multiplied)
        flat = pieces.reshape(len(pieces), -1)
        return np.asarray(self.scale * np.einsum("ij,ij->i", flat, multiplied.reshape(flat.shape)))

    def covariance(self, pieces: Floats) -> Floats:
        """Return the covariance matrix of a batch of pieces, shape (m, sizes…).

        A product covariance is scale · ⊗ C over the axes, with C that of a factor; a joint one is known only by its
        variances, from which `polarized` takes the covariances.
        """
        if self.joint:
            return polarized(self.variances, pieces)

        multiplied = pieces
        for factor in self.factors:
            multiplied = factor.apply_covariance(multiplied)
        return np.asarray(self.scale * pieces.reshape(len(pieces), -1) @ multiplied.reshape(len(pieces), -1).T)

    @property
    def mean_variance(self) -> float:
        """Mean variance of the coordinates of the centred residual; 0 if an axis has a single cell.

        With the covariance S of a factor on n cells it is (tr S − 1ᵀS1/n) / (n − 1) along each axis.
        """
        if self.joint:
            dimensions = math.prod(size - 1 for size in self.factors[0].shape)
            spread = _centred_spread(self.factors[0])
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


def polarized(variances: Callable[[Floats], Floats], queries: Floats) -> Floats:
    """Return the covariance matrix of a batch of queries from the variances of their sums and differences.

    Cov(a, b) = (Var(a + b) − Var(a − b))/4, for queries of unit length, which are scaled back at the end.
    """
    count = len(queries)
    sizes = np.sqrt(np.square(queries).reshape(count, -1).sum(axis=1))
    scale = np.where(sizes > 0, sizes, 1.0)
    unit = queries / scale.reshape(-1, *[1] * (queries.ndim - 1))
    upper = np.zeros((count, count))
    for row in range(count):
        upper[row, row:] = (variances(unit[row] + unit[row:]) - variances(unit[row] - unit[row:])) / 4
    return np.asarray((upper + np.triu(upper, 1).T) * np.outer(scale, scale))


def _centred_spread(factor: Factor) -> float:
    """Return the trace of the covariance of a joint factor's estimates, centred along all axes."""
    if factor.is_long:  # rows without weights, so that estimates are centred
        return factor.cells * factor.mean_variance
    rows = factor.inverse.reshape(*factor.shape, -1)
    return float((center(rows, range(rows.ndim - 1)) ** 2).sum())


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
    return all(factor.spans(fibre) for factor, fibre in zip(factors, fibres, strict=True))


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

    def estimator_of(residual_set: AttributeSet, spreads: Spreads) -> ResidualEstimator:
        """Return the weighted mean of a residual over the blocks that estimate it; `spreads` are theirs by number."""
        first, shares = blocks[next(iter(spreads))], _shares(blocks, spreads)
        scale = sum(source.weight**2 * variances[source.block] * spread for source, spread in shares)
        sources = tuple(source for source, _ in shares)
        whole = all(whole_in(blocks[index], residual_set) for index in spreads)
        return ResidualEstimator(
            attributes=residual_set,
            sources=sources,
            scale=scale,
            factors=factors_of(first, residual_set),
            spans_all=whole,
        )

    if blocks.measures_one_residual:
        return ResidualEstimators(blocks, spread, estimator_of)

    return {
        residual_set: estimator_of(residual_set, spreads)
        for residual_set, spreads in _spreads_by_residual(blocks, spread).items()
    }


class ResidualEstimators(Mapping[AttributeSet, ResidualEstimator]):
    """Lazy mapping from residual sets to estimators, for plans whose blocks measure one residual each."""

    def __init__(
        self, blocks: Blocks, spread: Spread, estimator_of: Callable[[AttributeSet, Spreads], ResidualEstimator]
    ) -> None:
        """Take `spread`, the ratio of a residual's variance to a block's noise, and the estimator from such ratios."""
        self._blocks, self._spread_ratio, self._estimator_of = blocks, spread, estimator_of
        self._cache: dict[AttributeSet, ResidualEstimator | None] = {}

    def __getitem__(self, residual_set: AttributeSet) -> ResidualEstimator:
        """Return the estimator of a residual. Raises KeyError if no block measures it."""
        estimator = self._get(residual_set)
        if estimator is None:
            raise KeyError(residual_set)
        return estimator

    def __contains__(self, residual_set: object) -> bool:
        return self._get(residual_set) is not None  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[AttributeSet]:
        return iter(dict.fromkeys(self._blocks.sets))

    def __len__(self) -> int:
        return len(dict.fromkeys(self._blocks.sets))

    def _get(self, residual_set: AttributeSet) -> ResidualEstimator | None:
        """Return the estimator of a residual; None if no block measures it. The last ones are cached.

        A block contributes if its set is the residual's; `_spread_ratio` gives the ratio of the variance to the noise.
        """
        if residual_set not in self._cache:
            if len(self._cache) >= MOST_CACHED:
                self._cache = {}
            numbers = self._blocks.sets.find(residual_set)
            spreads = {i: self._spread_ratio(self._blocks[i], residual_set) for i in numbers}
            self._cache[residual_set] = self._estimator_of(residual_set, spreads) if numbers else None
        return self._cache[residual_set]


class KnownResiduals(Mapping[AttributeSet, ResidualEstimator]):
    """Estimators with those of residuals that follow from public totals, which have no variance."""

    def __init__(self, domain: Domain, measured: Mapping[AttributeSet, ResidualEstimator]) -> None:
        self._domain, self._measured = domain, measured

    def __getitem__(self, residual_set: AttributeSet) -> ResidualEstimator:
        """Return the estimator of a residual; one of public totals is known, with variance 0.

        A known residual has no sources, the scale 0, and factors that span all.
        """
        if self._domain.known_table(residual_set) is None:
            return self._measured[residual_set]
        factors = tuple(map(center_factor, self._domain.shape(residual_set)))
        return ResidualEstimator(attributes=residual_set, sources=(), scale=0.0, factors=factors, spans_all=True)

    def __contains__(self, residual_set: object) -> bool:
        known = self._domain.known_table(residual_set)  # type: ignore[arg-type]
        return known is not None or residual_set in self._measured

    def __iter__(self) -> Iterator[AttributeSet]:
        totals = (subset for total in self._domain.public_totals for subset in subsets(total.names))
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
