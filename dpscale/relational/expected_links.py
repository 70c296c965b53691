"""What is expected of links before any is seen: random ones, and by how much a kind of row departs from them.

Under random links the sum of a column over m links has mean z₀ and its cells carry weight; a priori a cell departs by a
factor of about 1 ± s, s a relative scale of one's (`ONES`) or of pairs' (`PAIRS`) size. All of this is public.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats, Integers
from dpscale.privacy.streams import Chance
from dpscale.relational.features import STEP, Features, Side

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


ROWS, GROUPS, ROUNDS, SEEN = 1500, 256, 6, 50_000


def sample(side: Expected, chance: Chance) -> tuple[Floats, Floats]:
    """(k, columns) features of some rows and (k,) weights, 1 together."""
    from scipy.optimize import minimize

    drawn = chance.systematic(side.side.shares, min(ROWS, side.side.rows))
    profiles, counts = np.unique(drawn, return_counts=True)
    values = np.asarray(side.features.whole(side.side.profiles[profiles]) * STEP, dtype=np.float64)
    start, means = counts / counts.sum(), side.sums / side.links

    def dual(x: Floats) -> tuple[float, Floats]:
        energy = values @ x
        most = energy.max()
        weights = start * np.exp(energy - most)
        slope: Floats = values.T @ (weights / weights.sum()) - means
        return float(np.log(weights.sum()) + most - x @ means), slope

    found = minimize(dual, np.zeros(values.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 200})
    energy = values @ found.x
    weights: Floats = start * np.exp(energy - energy.max())
    return values, np.asarray(weights / weights.sum(), dtype=np.float64)


def directions(side: Expected, theta: Floats) -> NDArray[np.float32]:
    """(profiles, columns): φΘ, profile by profile, as float32."""
    out = np.empty((len(side.side.profiles), theta.shape[1]), np.float32)
    for start in range(0, len(out), CHUNK):
        values = side.features.whole(side.side.profiles[start : start + CHUNK]) * STEP
        out[start : start + CHUNK] = values @ theta
    return out


def grouped(points: NDArray[np.float32], chance: Chance) -> tuple[Integers, Floats]:
    """The group of every point, and the groups' centres: Lloyd's steps on a sample."""
    if len(points) <= GROUPS:
        return np.arange(len(points)), points.astype(float)
    seen = points[chance.permutation(len(points))[:SEEN]]
    centres = seen[:GROUPS].astype(float)
    for _ in range(ROUNDS):
        near = nearest(seen, centres)
        counts = np.maximum(np.bincount(near, minlength=GROUPS), 1)
        sums = np.stack([np.bincount(near, column, GROUPS) for column in seen.T], axis=1)
        centres = np.where(np.bincount(near, minlength=GROUPS)[:, None] > 0, sums / counts[:, None], centres)
    return nearest(points, centres), centres


def nearest(points: NDArray[np.float32], centres: Floats) -> Integers:
    """The centre that is nearest to each point."""
    half, out = 0.5 * (centres**2).sum(axis=1), np.empty(len(points), np.int64)
    for start in range(0, len(points), CHUNK):
        out[start : start + CHUNK] = np.argmax(points[start : start + CHUNK] @ centres.T - half, axis=1)
    return out
