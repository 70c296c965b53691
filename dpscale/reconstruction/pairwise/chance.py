"""Randomness of rows: keyed by the release's public name and by what it is for, so that anyone draws the same."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats
from dpscale.privacy.streams import open_stream


class Chance:
    """A stream of one purpose; what is drawn follows from the order of the calls."""

    def __init__(self, release: str, purpose: str, *numbers: int) -> None:
        """`release`: its public name."""
        key = hashlib.sha256(b"dpscale rows, public: " + release.encode()).digest()
        self._stream = open_stream(key, "sampling", {"rows": purpose, "numbers": list(numbers)})

    def state(self) -> NDArray[np.uint64]:
        """A seed of the loops' own generator, which must not be 0."""
        return self._stream.words(1) | np.uint64(1)

    def uniforms(self, count: int) -> Floats:
        """(count,) numbers in [0, 1)."""
        return np.asarray((self._stream.words(count) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)

    def permutation(self, count: int) -> NDArray[np.int64]:
        """The numbers below count in random order."""
        return np.argsort(self._stream.words(count), kind="stable").astype(np.int64)

    def systematic(self, shares: Floats, count: int) -> NDArray[np.int32]:
        """`count` labels in random order, each as often as its share of them, rounded down or up."""
        ends = np.floor(np.cumsum(shares / shares.sum()) * count + self.uniforms(1)[0]).astype(np.int64)
        ends = np.minimum(ends, count)
        ends[-1] = count
        labels = np.repeat(np.arange(len(shares), dtype=np.int32), np.diff(ends, prepend=0))
        return labels[self.permutation(count)]
