"""Whether columns that were read are blocks that can be measured over a domain; all of them at once."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpscale.domain import Domain
from dpscale.plans.blocks import NOISES, Blocks, Strategy
from dpscale.plans.counted import Counted
from dpscale.plans.sets import Sets


def in_place(sets: Sets, attributes: int) -> bool:
    """Whether sets are of so many attributes, each in ascending order, and end where the next begins."""
    if sets.ends.dtype != np.int32 or sets.members.dtype != np.int32 or sets.ends.ndim != 1 or sets.members.ndim != 1:
        return False
    if (sets.degrees < 0).any() or int(sets.ends[-1:].sum()) != len(sets.members):
        return False
    if not ((sets.members >= 0) & (sets.members < attributes)).all():
        return False
    rises = np.diff(sets.members) > 0
    first = sets.starts[(sets.starts > 0) & (sets.starts < len(sets.members))]
    rises[first - 1] = True  # from one set to the next
    return bool(rises.all())


def held(sources: Counted, blocks: int, attributes: int) -> bool:
    """Whether every block has a set that is counted for it."""
    source = sources.source
    there = len(source) == blocks and bool(((source >= 0) & (source < len(sources.sets))).all())
    return there and in_place(sources.sets, attributes)


def fit(blocks: Blocks, domain: Domain) -> bool:
    """Whether all factors are those of their blocks' attributes, and the noise one that there is."""
    columns = (blocks.which, blocks.share, blocks.whole, blocks.noise)
    if any(len(column) != len(blocks.sets) for column in columns) or not _known(blocks):
        return False
    wanted = np.array([math.prod(one.squared_l2_sensitivity for one in strategy) > 0 for strategy in blocks.strategies])
    return bool(wanted[blocks.which].all()) and _shapes(blocks, domain)


def _known(blocks: Blocks) -> bool:
    """Whether every strategy and every noise that a block names is there."""
    which, noise = blocks.which, blocks.noise
    return bool(
        ((which >= 0) & (which < len(blocks.strategies))).all() and ((noise >= 0) & (noise < len(NOISES))).all()
    )


def _shapes(blocks: Blocks, domain: Domain) -> bool:
    """Whether the axes of every block's strategy have the sizes of its attributes."""
    sizes = np.array(domain.shape(domain.names), np.int64)
    axes = [_axes(strategy) for strategy in blocks.strategies]
    degrees = np.array([len(one) for one in axes], np.int64)[blocks.which]
    if not (degrees == blocks.sets.degrees).all():
        return False
    starts = np.cumsum([0, *map(len, axes)])[:-1][blocks.which]
    within = np.arange(int(degrees.sum())) - np.repeat(np.cumsum(degrees) - degrees, degrees)
    flat: NDArray[np.int64] = np.array([size for one in axes for size in one], np.int64)
    return bool((flat[np.repeat(starts, degrees) + within] == sizes[blocks.sets.members]).all())


def _axes(strategy: Strategy) -> tuple[int, ...]:
    """The sizes of a strategy's axes: of one joint factor, or one a factor; none that fits for a mixture of both."""
    if len(strategy) > 1 and any(len(factor.shape) != 1 for factor in strategy):
        return (-1,) * sum(len(factor.shape) for factor in strategy)
    return tuple(size for factor in strategy for size in factor.shape)
