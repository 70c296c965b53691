"""Sets of three attributes over groups, laid out flat for the loops that polish rows.

Tables of a set i < j < k lie one after the other in vectors of `cells` entries, row-major. The loops keep every table
three times as float32, once by each attribute with its values last, so that what one attribute needs lies together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dpscale.reconstruct.pairwise.pairs import Layout

Array = NDArray[np.float64]
Whole = NDArray[np.int64]
BYTES_A_CELL = 48  # of all vectors of a sweep together
MOST_SETS = 2048


@dataclass(frozen=True, eq=False)
class Threes:
    """`sizes`: groups of every attribute; `sets`: (t, 3), rising in every row."""

    sizes: Whole
    sets: Whole

    @cached_property
    def ends(self) -> Whole:
        """(t + 1,): where each set's table begins, and where the last one ends."""
        return np.concatenate([[0], np.cumsum(self.sizes[self.sets].prod(axis=1))]).astype(np.int64)

    @property
    def cells(self) -> int:
        """Entries of a flat vector."""
        return int(self.ends[-1])

    def of(self, vector: Array, number: int) -> Array:
        """A view of a set's table."""
        shape = tuple(int(size) for size in self.sizes[self.sets[number]])
        return vector[self.ends[number] : self.ends[number + 1]].reshape(shape)

    @cached_property
    def degrees(self) -> Whole:
        """(d,): how many sets hold an attribute."""
        return np.bincount(self.sets.ravel(), minlength=len(self.sizes)).astype(np.int64)

    @cached_property
    def around(self) -> Whole:
        """(d, most, 11): of every attribute i its sets as the loops want them.

        The two others j and k, then where a cell lies in the loops' vectors, three times: by i, as its start and what
        the values of j and k are multiplied by (those of i are side by side); by j, of i and k; by k, of i and j.
        """
        found = np.zeros((len(self.sizes), max(1, self.degrees.max(initial=0)), 11), np.int64)
        filled = np.zeros(len(self.sizes), np.int64)
        for number, own in enumerate(self.sets.tolist()):
            for i in own:
                j, k = (other for other in own if other != i)
                by_i, by_j, by_k = (self._by(number, last) for last in (i, j, k))
                found[i, filled[i]] = [j, k, by_i[-1], by_i[j], by_i[k], by_j[-1], by_j[i], by_j[k],
                                       by_k[-1], by_k[i], by_k[j]]  # fmt: skip
                filled[i] += 1
        return found

    def _by(self, number: int, last: int) -> dict[int, int]:
        """What values are multiplied by where one attribute's are side by side; −1: where the table begins."""
        own = self.sets[number].tolist()
        one, other = (i for i in own if i != last)
        cells = int(self.ends[number + 1] - self.ends[number])
        start = 3 * int(self.ends[number]) + own.index(last) * cells
        size = int(self.sizes[last])
        return {-1: start, one: int(self.sizes[other]) * size, other: size, last: 1}


def sets_of(layout: Layout, memory: int) -> Whole:
    """(t, 3): the sets of attributes whose pairs are all held that fit the memory, small before large; MOST_SETS."""
    every = np.array(list(combinations(range(len(layout.sizes)), 3)), np.int64).reshape(-1, 3)
    i, j, k = every.T
    held = every[layout.used[i, j] & layout.used[i, k] & layout.used[j, k]]
    cells = layout.sizes[held].prod(axis=1)
    order = np.argsort(cells, kind="stable")[:MOST_SETS]
    kept = order[np.cumsum(cells[order]) * BYTES_A_CELL <= memory]
    return held[np.sort(kept)]
