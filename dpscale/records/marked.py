"""Some rows of a partition, a bit each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Flags


@dataclass(frozen=True, eq=False)
class Marked:
    """Which of a partition's first `count` rows are marked. Private, and never shown."""

    count: int = field(repr=False)
    bits: NDArray[np.uint8] = field(repr=False)

    @classmethod
    def of(cls, flags: Flags) -> Self:
        return cls(len(flags), np.packbits(flags))

    def within(self, first: int, rows: int) -> Flags:
        """Of the rows from the first on, so many."""
        start, end = first // 8, -(-min(first + rows, self.count) // 8)
        flags = np.zeros(rows, dtype=bool)
        found = np.unpackbits(self.bits[start:end]).view(bool)[first - 8 * start :][:rows]
        flags[: len(found)] = found
        return flags

    @property
    def places(self) -> NDArray[np.int64]:
        """The marked rows, ascending."""
        return np.flatnonzero(self.within(0, self.count))

    def __sizeof__(self) -> int:
        return self.bits.nbytes

    def __len__(self) -> int:
        return int(np.unpackbits(self.bits).sum())
