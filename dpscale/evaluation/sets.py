"""Which attribute sets are compared: all of one, two and three attributes, or MOST of a degree where there are more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from dpscale.base.names import AttributeSet
from dpscale.domain import Domain
from dpscale.reconstruction.pairwise.chance import Chance
from dpscale.synthesis.quality import unranked

DEGREES, MOST, MOST_CELLS = (1, 2, 3), 500, 1 << 22


@dataclass(frozen=True)
class Chosen:
    """The sets of one degree that are compared, of how many, and how many drawn ones have too many cells for it."""

    sets: tuple[AttributeSet, ...]
    of: int
    too_large: int


def chosen(domain: Domain, names: Sequence[str], release: str) -> dict[int, Chosen]:
    """By degree. What is drawn follows from the release's public name, and never from the data."""
    return {degree: _of_degree(domain, domain.ordered(names), degree, release) for degree in DEGREES}


def _of_degree(domain: Domain, names: AttributeSet, degree: int, release: str) -> Chosen:
    every = comb(len(names), degree)
    numbers = range(every) if every <= MOST else _drawn(every, Chance(release, "compared sets", degree))
    sets = [tuple(names[i] for i in unranked(number, len(names), degree)) for number in numbers]
    small = tuple(one for one in sets if domain.cells(one) <= MOST_CELLS)
    return Chosen(small, every, len(sets) - len(small))


def _drawn(every: int, chance: Chance) -> list[int]:
    """MOST numbers below `every`, which are more than that."""
    found: list[int] = []
    while len(found) < MOST:
        more = (chance.uniforms(MOST) * every).astype(np.int64).tolist()
        found = list(dict.fromkeys([*found, *more]))[:MOST]
    return sorted(found)
