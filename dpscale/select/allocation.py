"""How the privacy cost is divided over blocks: shares ∝ √coefficient.

A block with error coefficient L costs share · β and leaves error L / (share · β); the shares that minimise the sum are
√L / Σ√L, the minimum (Σ√L)² / β (QuerySmasher, theorem on the closed-form allocation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

BELOW_ONE = 1 - 1e-15


def allocate(coefficients: Sequence[float]) -> tuple[list[float], float]:
    """Shares that sum to at most 1, and the total error at privacy cost 1."""
    roots = [math.sqrt(value) for value in coefficients]
    total = math.fsum(roots)
    shares = [root / total * BELOW_ONE for root in roots]
    return shares, total_error(coefficients, shares)


def total_error(coefficients: Sequence[float], shares: Sequence[float]) -> float:
    """The error at privacy cost 1 that shares leave."""
    return math.fsum(value / share for value, share in zip(coefficients, shares, strict=True))
