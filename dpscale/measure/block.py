"""One measurement: an integer strategy applied to exact counts, plus keyed discrete Gaussian noise.

Integers until the noise is in. The product may not fit 64 bits (a fine strategy on a large table), so where it might
not, it is carried in two limbs, high · 2^24 + low, and where these might not hold it, in Python's own integers. Only
the noisy sum becomes a float, rounded once.
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
    if largest < SAFE:
        return (_product(block, counts) * draw.multiplier + noise).astype(np.float64)
    limbs = _limb_product(block, draw.multiplier, counts)
    if limbs is None:
        return (_product(block, counts.astype(object)) * draw.multiplier + noise).astype(np.float64)
    high, low = _carry(limbs[0].reshape(block.rows) + (noise >> LIMB), limbs[1].reshape(block.rows) + (noise & MASK))
    return np.ldexp(high.astype(np.float64), LIMB) + low


def _limb_product(block: Block, multiplier: int, counts: Integers) -> tuple[Integers, Integers] | None:
    """multiplier · K · counts in two limbs; None where a limb might not hold it (Python's integers then do)."""
    high, low = _carry(np.zeros_like(counts), counts)
    for axis, factor in _axes(block):
        if factor.reach * max(1 << LIMB, int(np.abs(high).max(initial=0))) >= SAFE:
            return None
        high, low = _carry(_apply(factor, high, axis), _apply(factor, low, axis))
    if multiplier * max(1 << LIMB, int(np.abs(high).max(initial=0))) >= SAFE:
        return None
    return _carry(high * multiplier, low * multiplier)


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
