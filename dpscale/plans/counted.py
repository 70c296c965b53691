"""Which attribute sets are counted for a plan's blocks, and from which of them each block is measured.

Counted are the blocks' sets that lie in no larger one; a block is measured from the smallest that holds its attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpscale.domain import Domain
from dpscale.names import AttributeSet
from dpscale.plans.sets import Sets
from dpscale.residual import subsets


@dataclass(frozen=True, eq=False)
class Counted:
    """The sets to count, in the domain's order; `source[i]`: from which of them block i is measured."""

    sets: Sets
    source: NDArray[np.int32]


def counted_for(domain: Domain, sets: Sets) -> Counted:
    """What is counted for blocks over these sets."""
    asked = list(sets)
    kept = _largest(asked)
    place = {name: i for i, name in enumerate(domain.names)}
    kept.sort(key=lambda names: [place[name] for name in names])
    smallest: dict[AttributeSet, int] = {}
    for number in sorted(range(len(kept)), key=lambda number: domain.cells(kept[number]), reverse=True):
        smallest.update(dict.fromkeys(subsets(kept[number]), number))
    return Counted(Sets.of(domain.names, kept), np.array([smallest[names] for names in asked], np.int32))


def _largest(sets: Sequence[AttributeSet]) -> list[AttributeSet]:
    """Those that lie in no other."""
    covered: set[AttributeSet] = set()
    kept = []
    for attributes in sorted(set(sets), key=len, reverse=True):
        if attributes not in covered:
            kept.append(attributes)
            covered.update(subsets(attributes))
    return kept
