"""How far the rows' shares of cells are from the data's, set by set, and between what that lies.

Apart: Σ |p − q| over a set's cells, which is the usual L1/N where both tables have N rows. Beside it stand the same of
independent attributes (the product of the data's own shares of each) and of one half of the data against the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import nan
from typing import Any

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.base.names import AttributeSet
from dpscale.evaluation.dependence import cramers_v
from dpscale.evaluation.sets import Chosen

WORST = 5


@dataclass(frozen=True)
class Scored:
    """A set's figures; nan where a table has no row. `dependence`: of a pair in the data and in the rows."""

    attributes: AttributeSet
    rows: float
    independent: float
    halves: float
    dependence: tuple[float, float] = (nan, nan)


def scored(attributes: AttributeSet, first: Integers, second: Integers, drawn: Integers) -> Scored:
    """The figures from counts of the data's halves and of the rows, over the same cells."""
    data = first + second
    dependence = (cramers_v(data), cramers_v(drawn)) if data.ndim == 2 else (nan, nan)
    return Scored(attributes, apart(drawn, data), float(np.abs(independent(data) - shares(data)).sum()),
                  apart(first, second), dependence)  # fmt: skip


def apart(one: Integers, other: Integers) -> float:
    """Σ |p − q| of the shares of cells: 0 for the same, 2 for tables without a cell in common."""
    return float(np.abs(shares(one) - shares(other)).sum())


def shares(counts: Integers) -> Floats:
    """Counts as shares of their sum; nan where that is 0."""
    total = counts.sum()
    return counts / total if total else np.full(counts.shape, nan)


def independent(counts: Integers) -> Floats:
    """The shares of cells that attributes without dependence would have."""
    axes = range(counts.ndim)
    ones = [shares(counts.sum(tuple(other for other in axes if other != axis))) for axis in axes]
    return np.asarray(reduce(np.multiply.outer, ones))


def by_degree(found: Sequence[Scored], sets: dict[int, Chosen]) -> dict[str, dict[str, Any]]:
    """Means over the sets of each degree, the most, and the sets that are farthest off."""
    told = {}
    for degree, chosen in sets.items():
        mine = [one for one in found if len(one.attributes) == degree]
        worst = sorted(mine, key=lambda one: -one.rows)[:WORST]
        told[str(degree)] = {
            "sets": len(mine), "of": chosen.of, "too_large": chosen.too_large,
            "mean": _mean([one.rows for one in mine]), "max": worst[0].rows if worst else nan,
            "independent": _mean([one.independent for one in mine]), "halves": _mean([one.halves for one in mine]),
            "worst": [{"attributes": list(one.attributes), "apart": one.rows, "halves": one.halves} for one in worst],
        }  # fmt: skip
    return told


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else nan
