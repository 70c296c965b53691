"""A table as links see it: its rows' profiles, each distinct combination of values once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats, Integers


@dataclass(frozen=True, eq=False)
class Side:
    """`sizes`: values of every attribute; `profiles`: (k, d) distinct rows; `counts`: (k,) rows of each; `of`: (n,) the
    profile of every row."""

    sizes: tuple[int, ...]
    profiles: Integers
    counts: Floats
    of: Integers

    @classmethod
    def made(cls, rows: NDArray[np.integer], sizes: Sequence[int]) -> Side:
        """From rows, (n, d) codes."""
        profiles, of = distinct(rows, sizes)
        counts = np.bincount(of, minlength=len(profiles)).astype(float)
        return cls(tuple(map(int, sizes)), profiles, counts, of)

    @property
    def rows(self) -> int:
        return len(self.of)

    @cached_property
    def ones(self) -> tuple[Floats, ...]:
        """The share of every value, attribute by attribute."""
        return tuple(
            np.bincount(self.profiles[:, i], self.counts, minlength=size) / max(self.rows, 1)
            for i, size in enumerate(self.sizes)
        )

    @cached_property
    def shares(self) -> Floats:
        """(k,): of all rows."""
        return self.counts / max(self.rows, 1)


def distinct(rows: NDArray[np.integer], sizes: Sequence[int]) -> tuple[Integers, Integers]:
    """(k, d) the distinct rows, in order, and (n,) which of them each row is."""
    if math.prod(map(int, sizes)) >= 1 << 62:
        profiles, of = np.unique(rows, axis=0, return_inverse=True)
        return profiles.astype(np.int64), of.reshape(-1)
    codes = np.zeros(len(rows), np.int64)
    for i, size in enumerate(sizes):
        codes = codes * int(size) + rows[:, i]
    found, of = np.unique(codes, return_inverse=True)
    return np.stack(np.unravel_index(found, tuple(map(int, sizes))), axis=1).astype(np.int64), of.reshape(-1)
