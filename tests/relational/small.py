"""Two small sides, and links between them that are wanted."""

from __future__ import annotations

import numpy as np

from dpscale.privacy.streams import PublicStream
from dpscale.relational.features import Side


def side(rows: int, sizes: tuple[int, ...], seed: int) -> Side:
    rng = np.random.default_rng(seed)
    return Side.made(np.stack([rng.integers(0, size, rows) for size in sizes], axis=1), sizes)


def wanted(u: Side, v: Side, links: float, seed: int, spread: float = 0.5) -> np.ndarray:
    """Links of every pair of profiles, far from even, none beyond its pairs of rows."""
    caps = np.multiply.outer(u.counts, v.counts)
    found = np.random.default_rng(seed).gamma(spread, size=caps.shape) * caps
    low, high = 0.0, 1e12
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(middle * found, caps).sum() < links else (low, middle)
    return np.minimum(high * found, caps)


def chance(number: int) -> PublicStream:
    return PublicStream(f"test {number}", "links")
