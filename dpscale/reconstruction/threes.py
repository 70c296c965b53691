"""Sets of three attributes in flat arrays, one after another, and the pairs that are known (`triple_loops`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.base.names import AttributeSet
from dpscale.reconstruction.paired import Ones, Paired

Placed = tuple[Floats, Integers, Integers, Integers, Integers, Floats]  # as the loops take it


@dataclass(frozen=True, eq=False)
class Threes:
    """What sets of three are made of: 1-ways and known pairs."""

    ones: Ones
    place: Integers
    cells: Floats

    @classmethod
    def of(cls, ones: Ones, tables: Mapping[AttributeSet, Floats]) -> Threes:
        """Of the pairs among some tables."""
        paired, count = Paired(ones, [names for names in tables if len(names) == 2]), len(ones.number)
        place = np.full((count, count), -1)
        place[paired.pairs[:, 0], paired.pairs[:, 1]] = paired.starts[:-1]
        cells = [np.zeros(0), *(np.asarray(tables[names]).reshape(-1) for names in paired.names)]
        return cls(ones, place, np.concatenate(cells))

    def expected(self, sets: Sequence[AttributeSet], rounds: int, tolerance: float) -> dict[AttributeSet, Floats]:
        """Of largest entropy given the pairs."""
        from dpscale.reconstruction import triple_loops

        placed = self._placed(sets)
        tables = np.empty(placed[3][-1])
        triple_loops.multiply(tables, self.ones.total, *placed)
        triple_loops.fit_all(tables, False, rounds, tolerance, *placed)
        return self._apart(sets, tables, placed)

    def fitted(self, given: Mapping[AttributeSet, Floats], rounds: int, tolerance: float) -> dict[AttributeSet, Floats]:
        """Copies of tables, scaled to 1-ways and pairs."""
        from dpscale.reconstruction import triple_loops

        placed, tables = self._placed(list(given)), np.concatenate([table.reshape(-1) for table in given.values()])
        triple_loops.fit_all(tables, True, rounds, tolerance, *placed)
        return self._apart(list(given), tables, placed)

    @cached_property
    def _sizes(self) -> Integers:
        return np.diff(self.ones.at)

    def _placed(self, sets: Sequence[AttributeSet]) -> Placed:
        number = self.ones.number
        threes = np.array([[number[name] for name in names] for names in sets], np.int64).reshape(-1, 3)
        starts = np.cumsum(np.append(0, self._sizes[threes].prod(axis=1)))
        return self.ones.values, self.ones.at, threes, starts, self.place, self.cells

    def _apart(self, sets: Sequence[AttributeSet], tables: Floats, placed: Placed) -> dict[AttributeSet, Floats]:
        shapes, ends = self._sizes[placed[2]].tolist(), pairwise(placed[3].tolist())
        return {names: tables[first:end].reshape(shape)
                for names, shape, (first, end) in zip(sets, shapes, ends, strict=True)}  # fmt: skip
