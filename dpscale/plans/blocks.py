"""Measurement blocks, stored in columns: attribute sets, strategies and shares.

A `Block` object is created on access. There are few strategies and many blocks, so each strategy is stored once, and
its sensitivity, number of rows and weights are computed once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dpscale.base.display import AttributeSet
from dpscale.plans.attribute_sets import AttributeSets
from dpscale.plans.factor import Factor
from dpscale.privacy.draws import GAUSSIAN, LAPLACE
from dpscale.workload.residual import Weights, subsets


@dataclass(frozen=True, eq=False)
class Block:
    """One measurement: an integer strategy on the marginal of `attributes`.

    Attributes
    ----------
    attributes : AttributeSet
    factors : tuple of Factor
        One per attribute, applied as a Kronecker product; or one joint factor over all cells.
    share : float
        Share of the privacy cost that the block uses.
    whole : bool
        A whole block measures the marginal and estimates every residual inside it. Other blocks measure only the
        residual of exactly `attributes`, or those of a joint factor's `spaces`.
    noise : str
        "gaussian", or "laplace" for pure ε.
    """

    attributes: AttributeSet
    factors: tuple[Factor, ...]
    share: float
    whole: bool = False
    noise: str = GAUSSIAN

    @property
    def joint(self) -> bool:
        return len(self.factors) == 1 and len(self.attributes) > 1

    @property
    def squared_l2_sensitivity(self) -> int:
        """Largest squared L2 norm of a column of the strategy, exact."""
        return math.prod(factor.squared_l2_sensitivity for factor in self.factors)

    @property
    def l1_sensitivity(self) -> int:
        """Largest L1 norm of a column of the strategy, exact."""
        return math.prod(factor.l1_sensitivity for factor in self.factors)

    @property
    def commutes(self) -> bool:
        """Whether the estimates of different residuals are independent."""
        return all(factor.commutes for factor in self.factors)

    @property
    def residual_sets(self) -> list[AttributeSet]:
        """Residuals that the block measures."""
        if self.whole:
            return subsets(self.attributes)
        if self.joint and self.factors[0].spaces is not None:
            return [tuple(self.attributes[axis] for axis in axes) for axes in self.factors[0].spaces]
        return [self.attributes]

    @property
    def weights(self) -> Iterator[tuple[str, Weights]]:
        """Attributes whose totals are spread by weights, with the weights."""
        for axes, factor in zip([self.attributes] if self.joint else zip(self.attributes), self.factors, strict=True):
            for name, own in zip(axes, factor.weights or (), strict=False):
                if own is not None:
                    yield name, own

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the integer strategy."""
        return hashlib.sha256("".join(factor.digest for factor in self.factors).encode()).hexdigest()

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(factor.rows for factor in self.factors)

    @property
    def unit_variance(self) -> float:
        """Noise variance of one measured number at privacy cost 1, in lattice units."""
        if self.noise == LAPLACE:
            return 2 * (self.l1_sensitivity / self.share) ** 2
        return self.squared_l2_sensitivity / self.share


Strategy = tuple[Factor, ...]
NOISES = (GAUSSIAN, LAPLACE)


class Blocks(Sequence[Block]):
    """Sequence of blocks over `sets`.

    Block i has the strategy `strategies[which[i]]`, the share `share[i]`, the flag `whole[i]` and the noise
    `NOISES[noise[i]]`.
    """

    def __init__(
        self,
        sets: AttributeSets,
        strategies: tuple[Strategy, ...],
        which: NDArray[np.int32],
        share: NDArray[np.float64],
        whole: NDArray[np.bool_],
        noise: NDArray[np.int8],
    ) -> None:
        self.sets, self.strategies, self.which = sets, strategies, which
        self.share, self.whole, self.noise = share, whole, noise

    @classmethod
    def of(cls, names: tuple[str, ...], blocks: Iterable[Block]) -> Blocks:
        """Return the columns of some blocks; `names` are the attributes of the domain."""
        if isinstance(blocks, cls):
            return blocks
        strategies: dict[tuple[int, ...], Strategy] = {}
        place: dict[tuple[int, ...], int] = {}
        sets, rows = list[AttributeSet](), list[tuple[int, float, bool, int]]()
        for block in blocks:
            key = tuple(map(id, block.factors))
            strategies.setdefault(key, block.factors)
            sets.append(block.attributes)
            rows.append((place.setdefault(key, len(place)), block.share, block.whole, NOISES.index(block.noise)))
        which, share, whole, noise = zip(*rows, strict=True) if rows else ((), (), (), ())
        return cls(AttributeSets.of(names, sets), tuple(strategies.values()), np.array(which, np.int32),
                   np.array(share, np.float64), np.array(whole, np.bool_), np.array(noise, np.int8))  # fmt: skip

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, index: int) -> Block: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Block, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        return self._block(self.sets[index], index)

    def __iter__(self) -> Iterator[Block]:
        return map(self._block, self.sets, range(len(self)))

    def _block(self, attributes: AttributeSet, index: int) -> Block:
        share, whole, noise = float(self.share[index]), bool(self.whole[index]), NOISES[self.noise[index]]
        return Block(attributes, self.strategies[self.which[index]], share, whole, noise)

    def take(self, wanted: NDArray[np.int64]) -> Blocks:
        """Return the blocks at the positions `wanted`, with only the strategies that they use."""
        used, which = np.unique(self.which[wanted], return_inverse=True)
        strategies = tuple(self.strategies[i] for i in used.tolist())
        share, whole, noise = self.share[wanted], self.whole[wanted], self.noise[wanted]
        return Blocks(self.sets.take(wanted), strategies, which.astype(np.int32), share, whole, noise)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """Number of measured numbers of each block."""
        own = [math.prod(factor.rows for factor in strategy) for strategy in self.strategies]
        return np.array(own, np.int64)[self.which]

    @cached_property
    def unit_variances(self) -> NDArray[np.float64]:
        """Noise variance of one measured number of each block at privacy cost 1, in lattice units."""
        squared = np.array([float(math.prod(one.squared_l2_sensitivity for one in own)) for own in self.strategies])
        largest = np.array([float(math.prod(one.l1_sensitivity for one in own)) for own in self.strategies])
        laplace = 2 * (largest[self.which] / self.share) ** 2
        return np.where(self.noise == NOISES.index(LAPLACE), laplace, squared[self.which] / self.share)

    @cached_property
    def commutes(self) -> bool:
        """Whether the estimates of different residuals are independent for every block."""
        return all(factor.commutes for strategy in self.strategies for factor in strategy)

    @property
    def measures_one_residual(self) -> bool:
        """Whether each block measures only the residual of its own set."""
        spaces = (factor.spaces for strategy in self.strategies for factor in strategy)
        return not self.whole.any() and all(one is None for one in spaces)

    @property
    def kinds(self) -> Iterator[tuple[int, int]]:
        """Distinct pairs of strategy and noise: the position of the first block of each, and the number of blocks."""
        keys = self.which.astype(np.int64) * len(NOISES) + self.noise
        _, first, counts = np.unique(keys, return_index=True, return_counts=True)
        return zip(first.tolist(), counts.tolist(), strict=True)

    def weights(self) -> Iterator[tuple[str, Weights]]:
        """Return the attributes whose totals are spread by weights, with the weights, in order of first use."""
        found: dict[int, tuple[int, int, Weights]] = {}
        for number, strategy in enumerate(self.strategies):
            spread = [(axis, own) for axis, own in enumerate(_axis_weights(strategy)) if own is not None]
            blocks = np.flatnonzero(self.which == number) if spread else np.zeros(0, np.int64)
            for axis, own in spread:
                places, first = np.unique(self.sets.members[self.sets.starts[blocks] + axis], return_index=True)
                for place, block in zip(places.tolist(), blocks[first].tolist(), strict=True):
                    found[place] = min(found.get(place, (block, axis, own)), (block, axis, own))
        for place in sorted(found, key=lambda place: found[place][:2]):
            yield self.sets.names[place], found[place][2]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the columns. Strategies enter by number only; the factors have their own digests."""
        sets, digest = self.sets, hashlib.sha256()
        for column in (sets.members, sets.ends, self.which, self.share, self.whole, self.noise):
            digest.update(f"{column.dtype.str}{column.shape}".encode() + np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()


def _axis_weights(strategy: Strategy) -> Iterator[Weights | None]:
    """Return the weights of every axis of a strategy; a joint factor has several axes."""
    for factor in strategy:
        yield from factor.weights or (None,) * len(factor.shape)
