"""A table as links see it: its rows' profiles, each distinct combination of values once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Side:
    """`sizes`: values of every attribute; `profiles`: (k, d) distinct rows; `counts`: (k,) rows of each; `of`: (n,) the
    profile of every row."""

    sizes: tuple[int, ...]
    profiles: Codes
    counts: Array
    of: Codes

    @classmethod
    def made(cls, rows: NDArray[np.integer], sizes: Sequence[int]) -> Side:
        """From rows, (n, d) codes."""
        profiles, of = np.unique(rows, axis=0, return_inverse=True)
        of = of.reshape(-1)
        return cls(
            tuple(map(int, sizes)),
            profiles.astype(np.int64),
            np.bincount(of, minlength=len(profiles)).astype(float),
            of,
        )

    @property
    def rows(self) -> int:
        return len(self.of)

    @cached_property
    def ones(self) -> tuple[Array, ...]:
        """The share of every value, attribute by attribute."""
        return tuple(
            np.bincount(self.profiles[:, i], self.counts, minlength=size) / max(self.rows, 1)
            for i, size in enumerate(self.sizes)
        )

    @cached_property
    def shares(self) -> Array:
        """(k,): of all rows."""
        return self.counts / max(self.rows, 1)
