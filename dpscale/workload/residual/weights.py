"""Weights of an axis: whole numbers U, one a cell, whose sum M is a power of two; u = U/M is how a query is averaged.

For any whole row r the row M·r − (r·U)·1 is whole and orthogonal to U, exactly: so strategies on the lattice can be
centred by u as they can by the plain mean, which is M = n, U = 1 and is written None here. All strategies that touch an
attribute share its weights, for pieces on different residuals add up to the query only then.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.arrays import Floats, Integers

Weights = tuple[int, ...]


def profile_of(weights: Weights | None, size: int) -> Floats:
    """u, of shape (size,): sums to 1; plain where there are no weights."""
    return np.full(size, 1 / size) if weights is None else np.array(weights, dtype=np.float64) / sum(weights)


def whole_weights(profile: Floats, bits: int) -> Weights:
    """The whole numbers of sum 2^bits nearest to a profile; what rounding leaves over goes to the largest.

    Where the profile is the same from both ends it goes to the middle, so that it stays so.
    """
    numbers = [int(value) for value in np.rint(np.ldexp(profile, bits))]
    left, middle = (1 << bits) - sum(numbers), (len(numbers) - 1) // 2
    if not np.array_equal(profile, profile[::-1]):
        numbers[int(np.argmax(profile))] += left
    else:
        numbers[middle] += left - left // 2
        numbers[len(numbers) - 1 - middle] += left // 2
    return tuple(numbers)


def centred(rows: Integers, weights: Weights) -> Integers:
    """M·r − (r·U)·1 of rows along their last axis: whole, and orthogonal to U."""
    numbers = np.array(weights, dtype=np.int64)
    return np.asarray(rows * numbers.sum() - (rows @ numbers)[..., None])
