"""What is expected of links before any is seen: random ones, and by how much a kind of row departs from them.

Under random links the sum of a column over m links has mean z₀ and its cells carry weight; a priori a cell departs by a
factor of about 1 ± s, s a relative scale of one's (`ONES`) or of pairs' (`PAIRS`) size. All of this is public.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats
from dpscale.relational.features import STEP, Features
from dpscale.relational.sides import Side

CHUNK = 1 << 15  # profiles whose features are held at once


@dataclass(frozen=True, eq=False)
class Expected:
    """Of the links' ends on one side: `values` (profiles, k), the features in natural units; `ends`: (profiles,), links
    that are expected to end at each profile, m together."""

    side: Side
    features: Features
    ends: Floats

    @classmethod
    def random(cls, side: Side, features: Features, links: float) -> Expected:
        return cls(side, features, side.shares * links)

    @property
    def links(self) -> float:
        return float(self.ends.sum())

    @cached_property
    def values(self) -> Floats:
        return np.asarray(self.features.whole(self.side.profiles) * STEP)

    @cached_property
    def _moments(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Σ x, Σ x², Σ x y and Σ y² over the links' ends, x the features and y what they would be unclipped."""
        totals = [np.zeros(len(self.blocks)) for _ in range(4)]
        for start in range(0, len(self.ends), CHUNK):
            some, ends = self.side.profiles[start : start + CHUNK], self.ends[start : start + CHUNK]
            x, y = self.features.whole(some) * STEP, self.features.centred(some)
            for total, values in zip(totals, (x, x * x, x * y, y * y), strict=True):
                total += values.T @ ends
        one, two, three, four = totals
        return one, two, three, four

    @property
    def sums(self) -> Floats:
        """z₀."""
        return self._moments[0]

    @property
    def curvature(self) -> Floats:
        """(k,): variance of a column's sum when links are redrawn: how stiff the fit is."""
        return np.asarray(self._moments[1] - self.sums**2 / self.links)

    @property
    def carried(self) -> Floats:
        """(k,): what a relative departure of a column's value moves in its sum."""
        return self._moments[2]

    @property
    def open(self) -> Floats:
        """(k,): what it would move, were nothing clipped."""
        return self._moments[3]

    @cached_property
    def blocks(self) -> NDArray[np.int64]:
        return self.features.attributes


def residual(carried: Floats, open_: Floats, scale: float, precision: float) -> Floats:
    """Expected error of a column after shrinking: prior of scale s, noise of a precision; as links of the column."""
    prior = 1 / np.maximum(carried * scale, 1e-9) ** 2
    return np.asarray(np.sqrt(1 / (prior + precision)) * open_ / np.maximum(carried, 1e-9))


def objective(u: Expected, v: Expected, precisions: tuple[float, float, float], scales: tuple[float, float]) -> float:
    """Expected L1 error over all 3-way cross marginals, up to a factor; 2-way where a side has one attribute."""
    pu, pv, puv = precisions
    ones, pairs = scales
    eu = residual(u.carried, u.open, ones, pu) * u.features.cells
    ev = residual(v.carried, v.open, ones, pv) * v.features.cells
    joint = residual(np.outer(u.carried, v.carried) / u.links, np.outer(u.open, v.open) / u.links, pairs, puv)
    joint = joint * np.outer(u.features.cells, v.features.cells)
    nu, nv = len(u.side.sizes), len(v.side.sizes)
    lu, lv = (np.asarray(np.bincount(*one), dtype=np.float64) for one in ((u.blocks, eu, nu), (v.blocks, ev, nv)))
    both = np.zeros((nu, nv))
    np.add.at(both, np.ix_(u.blocks, v.blocks), joint)
    return _triples(lu, lv, both) + _triples(lv, lu, both.T) or float(
        np.sqrt(lu[0] ** 2 + lv[0] ** 2 + both[0, 0] ** 2)
    )


def _triples(one: Floats, two: Floats, both: Floats) -> float:
    """Σ over an attribute of the one side and two of the other of √(sum of what they are made of, squared)."""
    j, k = np.triu_indices(len(two), 1)
    squares = (one**2)[:, None] + (two[j] ** 2 + two[k] ** 2) + both[:, j] ** 2 + both[:, k] ** 2
    return float(np.sqrt(squares).sum())
