"""Two small sides, and expected links between their profiles."""

from __future__ import annotations

import numpy as np

from dpscale.privacy.streams import PublicStream
from dpscale.relational.features import Side


def make_side(rows: int, sizes: tuple[int, ...], seed: int) -> Side:
    rng = np.random.default_rng(seed)
    return Side.made(np.stack([rng.integers(0, size, rows) for size in sizes], axis=1), sizes)


def draw_links(u: Side, v: Side, links: float, seed: int, spread: float = 0.5) -> np.ndarray:
    """Return random expected links of every pair of profiles, far from uniform, with at most one link per pair of
    rows.
    """
    caps = np.multiply.outer(u.counts, v.counts)
    found = np.random.default_rng(seed).gamma(spread, size=caps.shape) * caps
    low, high = 0.0, 1e12
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(middle * found, caps).sum() < links else (low, middle)
    return np.minimum(high * found, caps)


def make_stream(number: int) -> PublicStream:
    return PublicStream(f"test {number}", "links")
