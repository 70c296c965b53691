"""Covers: how some sets are counted, each as a sum of axes of a joint marginal, by bit planes, or alone.

What `choice` gives and `program` compiles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dpscale.base.arrays import Integers
from dpscale.base.names import AttributeSet
from dpscale.domain import Domain

PLANES, DIRECT = -1, -2
ROWS = 1 << 20  # of a task, where nothing is known of the table


@dataclass(frozen=True)
class Saving:
    """Sets asked, joints counted, sets counted by bit planes; estimated nanoseconds set by set and by the cover."""

    asked: int
    joints: int
    planes: int
    alone: float
    covered: float

    @property
    def factor(self) -> float:
        """How many times less work the cover is than counting set by set."""
        return self.alone / self.covered if self.covered else 1.0


@dataclass(frozen=True)
class Cover:
    """How to count some sets: `owners[s]` is the joint that set s is summed from; -1: by bit planes, -2: directly."""

    domain: Domain
    sets: tuple[AttributeSet, ...]
    joints: tuple[AttributeSet, ...]
    owners: Integers = field(repr=False, compare=False)
    rows: int = ROWS
    saving: Saving = Saving(0, 0, 0, 0.0, 0.0)


def total(savings: Iterable[Saving]) -> Saving:
    """Several passes' savings as one."""
    rows = [(one.asked, one.joints, one.planes, one.alone, one.covered) for one in savings]
    return Saving(*(sum(column) for column in zip(*rows, strict=True)))
