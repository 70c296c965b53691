"""How many links a row has, as an attribute of few values: 0, 1, 2-3, 4-7, … up to a bound that is public."""

from __future__ import annotations

import numpy as np

from dpscale.base.arrays import Integers


def buckets(bound: int) -> Integers:
    """The least number of links of every bucket, ascending: 0 and the powers of two that are at most the bound."""
    return np.array([0, *(1 << k for k in range(bound.bit_length()))], np.int64)


def bucket(degrees: Integers, bound: int) -> Integers:
    """The bucket of every row."""
    return np.searchsorted(buckets(bound), degrees, side="right").astype(np.int64) - 1
