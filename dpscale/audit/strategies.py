"""The strategies of an adaptive run's 1-ways once more, in a few lines of its own: how far one record moves each.

C(2k, k)/4^k of 2^12, rounded, down the diagonals of a triangle, from one end or from both; then each cell alone by what
its column lacks of the longest.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from functools import lru_cache
from math import comb, floor, isqrt

import numpy as np

SCALE, MOST = 1 << 12, 512


@lru_cache(maxsize=64)
def reaches(size: int) -> dict[str, int]:
    """The largest squared norm of a column of each strategy on so many cells, by what records know the strategy by."""
    if not 0 < size <= MOST:
        return {}
    matrices = [_matrix(size, ends) for ends in (1, 2)]
    return {_named(one): max(sum(row[cell] ** 2 for row in one) for cell in range(size)) for one in matrices}


def _matrix(size: int, ends: int) -> list[list[int]]:
    down = [floor(Fraction(SCALE * comb(2 * k, k), 4**k) + Fraction(1, 2)) for k in range(size)]
    triangle = [[down[i - j] if i >= j else 0 for j in range(size)] for i in range(size)]
    rows = triangle + [row[::-1] for row in triangle[::-1]] * (ends - 1)
    squares = [sum(row[cell] ** 2 for row in rows) for cell in range(size)]
    alone = [isqrt(max(squares) - square) for square in squares]
    return rows + [[value if i == cell else 0 for i in range(size)] for cell, value in enumerate(alone) if value]


def _named(matrix: list[list[int]]) -> str:
    content = f"full({len(matrix[0])},)".encode() + np.array(matrix, dtype=np.int64).tobytes()
    return hashlib.sha256(hashlib.sha256(content).hexdigest().encode()).hexdigest()
