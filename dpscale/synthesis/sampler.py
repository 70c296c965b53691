"""The sampler as a way to draw: rows over groups held to all pairs at once, then cells inside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpscale.base.arrays import Floats, Integers32
from dpscale.reconstruction.pairwise.chance import Chance
from dpscale.reconstruction.pairwise.learn import Learnt
from dpscale.reconstruction.pairwise.pairs import Spread
from dpscale.synthesis.cells import spread
from dpscale.synthesis.draw import Part, draw
from dpscale.synthesis.polish import Told
from dpscale.synthesis.raking import raked
from dpscale.synthesis.settle import settled


class Way(Protocol):
    """How rows are drawn. `total`: about how many records were released; `ones`: every attribute's 1-way."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def ones(self) -> dict[str, Floats]: ...
    @property
    def total(self) -> float: ...
    @property
    def held(self) -> int:
        """How many pairs of attributes rows are held to."""

    def rows(self, part: Part, release: str) -> Integers32:
        """(count, d): the part's rows over cells."""


def sizes_of(way: Way) -> list[int]:
    """Cells of every attribute."""
    return [len(way.ones[name]) for name in way.names]


@dataclass(frozen=True, eq=False)
class Sampler:
    """`learnt`: of all pairs over groups; `cells`: what spreads groups over cells; `told`: what polish holds to."""

    learnt: Learnt
    cells: Spread
    total: float
    told: Told | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self.learnt.wanted.layout.names

    @property
    def ones(self) -> dict[str, Floats]:
        return dict(self.cells.ones)

    @property
    def held(self) -> int:
        return len(self.learnt.wanted.layout.pairs)

    def rows(self, part: Part, release: str) -> Integers32:
        groups = draw(self.learnt, part, release, self.told)
        chance = Chance(release, "cells", *part.key)
        return settled(self.learnt.wanted, self.cells, spread(self.learnt.wanted, self.cells, groups, chance))

    def weights(self, rows: Integers32, part: Part) -> Floats:
        """(count,): how many records each of the part's rows stands for."""
        labels = [self.cells.groups[name].labels for name in self.names]
        groups = np.stack([own[rows[:, i]] for i, own in enumerate(labels)], axis=1).astype(np.int32)
        return raked(self.learnt.wanted, groups, part, self.total)
