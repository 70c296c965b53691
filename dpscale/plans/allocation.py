"""How the privacy cost is divided over blocks, for both kinds of noise.

Gaussian: a block with error coefficient c costs share · β and leaves error c / (share · β); the shares that minimise
the sum are √c / Σ√c, the minimum (Σ√c)² / β (QuerySmasher, theorem on the closed-form allocation). Laplace: it costs
share · ε and leaves c / (share · ε)², so shares ∝ c^⅓ and the minimum is (Σ c^⅓)³ / ε² (HDMM, section 6.2). So
"privacy cost 1" is β = 1 or ε = 1, and errors scale with 1/β or 1/ε².
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpscale.privacy.budget import GAUSSIAN, LAPLACE

__all__ = ["BELOW_ONE", "GAUSSIAN", "LAPLACE", "allocate", "rooted", "total_error", "variance_factor"]

BELOW_ONE = 1 - 1e-15


def allocate(coefficients: Sequence[float], noise: str = GAUSSIAN) -> tuple[list[float], float]:
    """Shares that sum to at most 1, and the total error at privacy cost 1."""
    roots = [value ** (1 / 3) if noise == LAPLACE else math.sqrt(value) for value in coefficients]
    total = math.fsum(roots)
    shares = [root / total * BELOW_ONE for root in roots]
    return shares, total_error(coefficients, shares, noise)


def rooted(noise: str) -> float:
    """The power of the coefficients by which shares go: the error is that power's sum, taken back."""
    return 1 / 3 if noise == LAPLACE else 1 / 2


def total_error(coefficients: Sequence[float], shares: Sequence[float], noise: str = GAUSSIAN) -> float:
    """The error at privacy cost 1 that shares leave."""
    power = 2 if noise == LAPLACE else 1
    return math.fsum(value / share**power for value, share in zip(coefficients, shares, strict=True))


def variance_factor(noise: str) -> int:
    """Variance of the noise in units of its squared scale: b ↦ 2b² for Laplace."""
    return 2 if noise == LAPLACE else 1
