"""How a residual is estimated: the average of what the blocks tell of it, and the variance that this leaves.

Block b tells of residual τ with variance σ_b² s_bτ, where the spread s_bτ comes from the axes that are summed away. The
weights are those of the plan, w_bτ ∝ 1 / (σ_b² s_bτ) at the *planned* noise, inverse variances that sum to 1; noise of
variances v_b then leaves Σ_b w_bτ² v_b s_bτ, whether it is the planned noise or what was really drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.names import AttributeSet
from dpscale.plans.block import Block
from dpscale.plans.blocks import Blocks
from dpscale.plans.factor import Factor

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

    def of(kept: AttributeSet, spreads: Spreads) -> ResidualEstimator:
        first, shares = blocks[next(iter(spreads))], _shares(blocks, spreads)
        scale = sum(source.weight**2 * variances[source.block] * spread for source, spread in shares)
        sources = tuple(source for source, _ in shares)
        whole = all(whole_in(blocks[index], kept) for index in spreads)
        return ResidualEstimator(kept, sources, scale, factors_of(first, kept), whole)

    if blocks.separate:
        return Estimators(blocks, spread, of)
    return {kept: of(kept, spreads) for kept, spreads in _told(blocks, spread).items()}


class Estimators(Mapping[AttributeSet, ResidualEstimator]):
    """Of blocks that tell of one residual each, made as they are asked for: there may be a million."""

    def __init__(
        self, blocks: Blocks, spread: Spread, of: Callable[[AttributeSet, Spreads], ResidualEstimator]
    ) -> None:
        self._blocks, self._spread, self._of = blocks, spread, of
        self._kept: dict[AttributeSet, ResidualEstimator | None] = {}

    def __getitem__(self, kept: AttributeSet) -> ResidualEstimator:
        found = self._found(kept)
        if found is None:
            raise KeyError(kept)
        return found

    def __contains__(self, kept: object) -> bool:
        return self._found(kept) is not None  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[AttributeSet]:
        return iter(dict.fromkeys(self._blocks.sets))

    def __len__(self) -> int:
        return len(dict.fromkeys(self._blocks.sets))

    def _found(self, kept: AttributeSet) -> ResidualEstimator | None:
        if kept not in self._kept:
            if len(self._kept) >= MOST_KEPT:
                self._kept = {}
            places = self._blocks.sets.find(kept)
            self._kept[kept] = (
                self._of(kept, {i: self._spread(self._blocks[i], kept) for i in places}) if places else None
            )
        return self._kept[kept]


Spreads = dict[int, float]  # by block: how much larger a residual's variance is than the noise


def _told(blocks: Sequence[Block], spread: Spread) -> dict[AttributeSet, Spreads]:
    """The residuals that are told of, and by which blocks."""
    by_residual: dict[AttributeSet, Spreads] = {}
    for index, block in enumerate(blocks):
        for kept in block.tells:
            by_residual.setdefault(kept, {})[index] = spread(block, kept)
    return by_residual


def _shares(blocks: Sequence[Block], spreads: Spreads) -> list[tuple[BlockShare, float]]:
    """The sources of a residual, weighted by the planned inverse variances, each with its spread."""
    inverse = {index: 1 / (blocks[index].unit_variance * spread) for index, spread in spreads.items()}
    precision = sum(inverse.values())
    return [(BlockShare(index, inverse[index] / precision), spread) for index, spread in spreads.items()]
