"""One measurement: an integer strategy applied to exact counts, plus keyed discrete Gaussian noise.

Integers until the noise is in. The product may not fit 64 bits (a fine strategy on a large table), so where it might
not, it is carried in two limbs, high · 2^24 + low. Only the noisy sum becomes a float, rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.measure.schedule import Draw
from dpscale.privacy.noise import discrete_gaussian
from dpscale.privacy.streams import open_stream
from dpscale.select.lattice import Factor
from dpscale.select.plan import Block
from dpscale.tables import ExactMarginal

Integers = NDArray[np.int64]
LIMB = 24
MASK = (1 << LIMB) - 1
SAFE = 1 << 61


def measure_block(
    block: Block, draw: Draw, marginal: ExactMarginal, secret: bytes, record: Mapping[str, Any]
) -> NDArray[np.float64]:
    """The noisy values of a block, of the shape `block.rows`, in units of multiplier · K · marginal.

    `marginal` covers the block's attributes at least; `record` names the measurement and, with the secret of the
    release, fixes its noise.
    """
    counts = project(marginal, block)
    size = math.prod(block.rows)
    noise = discrete_gaussian(open_stream(secret, "noise", record), draw.variance, size).reshape(block.rows)
    largest = math.prod(factor.largest for factor in block.factors) * draw.multiplier * int(counts.sum() + 1)
    if largest < SAFE and draw.variance < SAFE:
        return (_product(block, counts) * draw.multiplier + noise).astype(np.float64)
    high, low = _carry(np.zeros_like(counts), counts)
    for axis, factor in _axes(block):
        high, low = _carry(_apply(factor, high, axis), _apply(factor, low, axis))
    high, low = _carry(high * draw.multiplier, low * draw.multiplier)
    high, low = _carry(high.reshape(block.rows) + (noise >> LIMB), low.reshape(block.rows) + (noise & MASK))
    return np.ldexp(high.astype(np.float64), LIMB) + low


def project(marginal: ExactMarginal, block: Block) -> Integers:
    """The exact marginal on the block's own attributes."""
    others = tuple(i for i, name in enumerate(marginal.attributes) if name not in block.attributes)
    return np.asarray(marginal.counts.sum(axis=others, dtype=np.int64))


def _product(block: Block, counts: Integers) -> Integers:
    for axis, factor in _axes(block):
        counts = _apply(factor, counts, axis)
    return counts.reshape(block.rows)


def _axes(block: Block) -> list[tuple[int | None, Factor]]:
    return [(None if block.joint else axis, factor) for axis, factor in enumerate(block.factors)]


def _apply(factor: Factor, values: Integers, axis: int | None) -> Integers:
    """The factor along one axis, or on all cells when `axis` is None."""
    if axis is None:
        return np.asarray(factor.explicit() @ values.reshape(-1))
    if factor.kind == "identity":
        return values
    if factor.kind == "center":
        return values * factor.cells - values.sum(axis=axis, keepdims=True)
    return np.moveaxis(np.tensordot(factor.explicit(), values, axes=(1, axis)), 0, axis)


def _carry(high: Integers, low: Integers) -> tuple[Integers, Integers]:
    return high + (low >> LIMB), low & MASK
