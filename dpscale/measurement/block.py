"""One measurement: an integer strategy applied to exact counts, plus keyed discrete noise.

Integers until the noise is in. Where all fits 64 bits they are numpy's; where it does not, or where matrices are large,
`wide` has them in limbs up to 126 bits; beyond that they are Python's own. Only the noisy sum becomes a float, rounded
once, so the bytes do not depend on the way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Integers
from dpscale.base.errors import JobError
from dpscale.counting.count import ExactMarginal
from dpscale.plans.block import Block
from dpscale.plans.factor import Factor
from dpscale.privacy.draws import Draw
from dpscale.privacy.streams import KeyedStream, open_stream

SAFE = 1 << 61
MOST_COUNTS = 1 << 62
MOST_WIDE = 1 << 126
LARGE = 1 << 17  # from so many multiplications on limbs are faster, measured on one core


def measure_block(
    block: Block, draw: Draw, marginal: ExactMarginal, secret: bytes, record: Mapping[str, Any]
) -> NDArray[np.float64]:
    """The noisy values of a block, of the shape `block.rows`, in units of multiplier · K · marginal.

    `marginal` covers the block's attributes at least; `record` names the measurement and, with the secret of the
    release, fixes its noise.
    """
    counts, stream = project(marginal, block), open_stream(secret, "noise", record)
    total = draw.multiplier * int(counts.sum() + 1)
    largest = math.prod(factor.largest for factor in block.factors) * total
    if largest < SAFE and draw.fits_words and _multiplications(block) < LARGE:
        return _in_words(block, draw, counts, stream)
    if largest < MOST_WIDE and total < MOST_COUNTS:
        return _in_limbs(block, draw, counts, stream)
    return _unbounded(block, draw, counts, stream)


def _in_words(block: Block, draw: Draw, counts: Integers, stream: KeyedStream) -> NDArray[np.float64]:
    noise, values = draw.words(stream, math.prod(block.rows)).reshape(block.rows), _product(block, counts)
    values *= draw.multiplier
    values += noise
    floats = noise.view(np.float64)  # not anew: the pages of a large array cost more to get than to fill
    floats[...] = values
    return floats


def _in_limbs(block: Block, draw: Draw, counts: Integers, stream: KeyedStream) -> NDArray[np.float64]:
    from dpscale.measurement import wide  # as late as the noise loads its loops: it brings numba

    limbs, bits = wide.limb_product(block.factors, counts * draw.multiplier)
    high, low = draw.halves(stream, math.prod(block.rows))
    out = np.empty(block.rows)
    wide.noisy_floats(limbs, np.uint64(bits), high, low, out.reshape(-1))
    return out


def _unbounded(block: Block, draw: Draw, counts: Integers, stream: KeyedStream) -> NDArray[np.float64]:
    high, low = draw.halves(stream, math.prod(block.rows))
    noise = (high.astype(object) * 2**64 + low.astype(object)).reshape(block.rows)
    return np.asarray(_product(block, counts.astype(object)) * draw.multiplier + noise, dtype=np.float64)


def _multiplications(block: Block) -> int:
    """Of 64 bit integers that `_product` makes with matrices; numpy has no fast way for them."""
    done, left, number = 1, math.prod(factor.cells for factor in block.factors), 0
    for factor in block.factors:
        number += done * left * factor.rows * (factor.kind not in ("center", "identity"))
        done, left = done * factor.rows, left // factor.cells
    return number


def project(marginal: ExactMarginal, block: Block) -> Integers:
    """The exact marginal on the block's own attributes, as an array of its own."""
    others = tuple(i for i, name in enumerate(marginal.attributes) if name not in block.attributes)
    if len(marginal.attributes) - len(others) != len(block.attributes):
        got = f"{', '.join(block.attributes)} is to be measured from {', '.join(marginal.attributes)}"
        raise JobError("run directory", got, "the plan as it was made", "start a new run")
    if not others:
        return np.array(marginal.counts, dtype=np.int64)
    return np.asarray(marginal.counts.sum(axis=others, dtype=np.int64))


def _product(block: Block, counts: Integers) -> Integers:
    """K · counts; `counts` are used up."""
    for axis, factor in _axes(block):
        counts = _apply(factor, counts, axis)
    return counts.reshape(block.rows)


def _axes(block: Block) -> list[tuple[int | None, Factor]]:
    return [(None if block.joint else axis, factor) for axis, factor in enumerate(block.factors)]


def _apply(factor: Factor, values: Integers, axis: int | None) -> Integers:
    """The factor along one axis, or on all cells when `axis` is None; in place where the shape stays."""
    if axis is None:
        return np.asarray(factor.explicit() @ values.reshape(-1))
    if factor.kind == "identity":
        return values
    if factor.kind == "center":
        total = values.sum(axis=axis, keepdims=True)
        values *= factor.cells
        values -= total
        return values
    return np.moveaxis(factor.applied(np.moveaxis(values, axis, 0)), 0, axis)
