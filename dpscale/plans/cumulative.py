"""A strategy for cumulative queries of one attribute, in closed form: whole numbers alone, the same on every machine.

Of the matrix A of all prefix queries the lower triangular root, R R = A, has C(2k, k)/4^k down its diagonals
(Fichtenberger, Henzinger and Upadhyay, 2023), and measuring R·counts tells A·counts nearly as well as anything can. A
record in a late cell moves less of it, so such a cell is told alone besides, by as much as leaves every column the same
norm: that costs nothing. For ranges and arcs the same from both ends. What is lost to the optimum is in
tests/plans/test_cumulative.py.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb, isqrt

import numpy as np

from dpscale.base.arrays import Integers
from dpscale.plans.factor import Factor

BITS = 12
FEWEST, MOST = (
    3,
    512,
)  # cells: of two each is told as well alone; beyond these a matrix of cells × cells is long to invert


@lru_cache(maxsize=1024)
def cumulative_factor(size: int, both_ends: bool = False) -> Factor:
    """K with linearly independent columns of nearly one norm; `both_ends`: R from either end, for ranges."""
    root = _root(size)
    rows = np.vstack([root, root[::-1, ::-1]]) if both_ends else root
    squares = (rows**2).sum(axis=0).tolist()
    alone = np.diag([isqrt(max(squares) - square) for square in squares])
    return Factor("full", (size,), np.vstack([rows, alone[alone.any(axis=1)]]).astype(np.int64))


def _root(size: int) -> Integers:
    """2^BITS · R in whole numbers, (size, size)."""
    down = np.array([((comb(2 * k, k) << BITS + 1 >> 2 * k) + 1) >> 1 for k in range(size)], dtype=np.int64)
    behind = np.subtract.outer(np.arange(size), np.arange(size))
    return np.where(behind >= 0, down[np.abs(behind)], 0)
