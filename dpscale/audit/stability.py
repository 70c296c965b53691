"""How far one record moves what is measured, in exact arithmetic and by trying every record.

The strategies are taken as they are *applied*: the same table is measured with and without the record under the same
key, so that the noise cancels and the difference is multiplier · K · record. The squared distance in units of the
noise, summed over the blocks, is the squared Gaussian-DP mu of that record, and may not exceed the claim. Under Laplace
noise the L1 distance in units of the scale is its epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpscale.audit.releases import Case, one_more
from dpscale.base.arrays import Integers
from dpscale.privacy.draws import SMOOTHING, Draw, LaplaceDraw

Tables = Iterable[Integers]


def distance(case: Case, one: Integers, other: Integers) -> Fraction:
    """Σ over blocks of |K x − K x'|² m² / (v − 8), or of |K x − K x'|₁ m / s, exactly."""
    moved = case.release(one, seed=0) - case.release(other, seed=0)
    total, start = Fraction(0), 0
    for block, draw in zip(case.plan.blocks, case.schedule.draws, strict=True):
        part = moved[start : start + math.prod(block.rows)]
        start += len(part)
        if not (part == np.rint(part)).all():
            raise ValueError("the measured difference is no integer")
        total += _moved([int(value) for value in part], draw)
    return total


def _moved(part: list[int], draw: Draw) -> Fraction:
    if isinstance(draw, LaplaceDraw):
        return Fraction(sum(map(abs, part)), draw.scale)
    return Fraction(sum(value**2 for value in part), draw.variance - SMOOTHING)


def worst_record(case: Case, counts: Integers) -> Fraction:
    """The largest distance over every record that may be added to (or, turned round, removed from) a table."""
    return max(distance(case, counts, more) for _, more in one_more(counts))


def worst_neighbour(case: Case, counts: Integers, neighbours: Tables) -> Fraction | float:
    """The same over given neighbours; inf where one has another shape, as a domain read off the data makes it."""
    worst = Fraction(0)
    for other in neighbours:
        if other.shape != counts.shape:
            return math.inf
        worst = max(worst, distance(case, counts, other))
    return worst


def without_each(rows: NDArray, units: list[int], count: Callable[[NDArray, list[int]], Integers]) -> list[Integers]:
    """The counts of a table without each of its privacy units in turn."""
    counts = []
    for gone in dict.fromkeys(units):
        kept = [index for index, unit in enumerate(units) if unit != gone]
        counts.append(count(rows[kept], [units[index] for index in kept]))
    return counts
