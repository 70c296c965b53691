"""Prior of links before measurement: random links, and the expected departure of each kind of row from them.

Under random links the sum of a column over m links has mean z₀. A priori a cell departs by a factor of about 1 ± s,
where s is a relative scale for one-way (`ONES`) or pairwise (`PAIRS`) sums. All of this is public.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpscale.base.numerics import Floats, Integers
from dpscale.privacy.streams import Chance
from dpscale.relational.features import STEP, Features, Side

CHUNK = 1 << 15  # profiles whose features are in memory at once


@dataclass(frozen=True, eq=False)
class Expected:
    """Links' ends on one side under random links.

    Attributes
    ----------
    side : Side
    features : Features
    ends : ndarray, shape (profiles,)
        Expected number of links that end at each profile; they sum to m.
    """

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
        """Σ x, Σ x², Σ x y and Σ y² over the links' ends, with x the features and y the unclipped features."""
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
        """Variance of a column's sum under resampling of the links, shape (k,): the stiffness of the fit."""
        return np.asarray(self._moments[1] - self.sums**2 / self.links)

    @property
    def carried(self) -> Floats:
        """Change of a column's sum per relative departure of its value, shape (k,)."""
        return self._moments[2]

    @property
    def open(self) -> Floats:
        """The same change without clipping, shape (k,)."""
        return self._moments[3]

    @cached_property
    def blocks(self) -> NDArray[np.int64]:
        return self.features.attributes


def residual(carried: Floats, open_: Floats, scale: float, precision: float) -> Floats:
    """Return the expected error of a column after shrinkage, in links, for a prior of scale s and a noise precision."""
    prior = 1 / np.maximum(carried * scale, 1e-9) ** 2
    return np.asarray(np.sqrt(1 / (prior + precision)) * open_ / np.maximum(carried, 1e-9))


def objective(u: Expected, v: Expected, precisions: tuple[float, float, float], scales: tuple[float, float]) -> float:
    """Return the expected L1 error over all 3-way cross marginals, up to a factor; 2-way if a side has one."""
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
    """Return Σ over an attribute of one side and two of the other of √(sum of squared components)."""
    j, k = np.triu_indices(len(two), 1)
    squares = (one**2)[:, None] + (two[j] ** 2 + two[k] ** 2) + both[:, j] ** 2 + both[:, k] ** 2
    return float(np.sqrt(squares).sum())


ROWS, GROUPS, ROUNDS, SAMPLE = 1500, 256, 6, 50_000


def sample(side: Expected, chance: Chance) -> tuple[Floats, Floats]:
    """Return features of some rows, (k, columns), and weights, (k,), that sum to 1 and match the means of all rows."""
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
    """Return φΘ as float32, shape (profiles, columns)."""
    out = np.empty((len(side.side.profiles), theta.shape[1]), np.float32)
    for start in range(0, len(out), CHUNK):
        values = side.features.whole(side.side.profiles[start : start + CHUNK]) * STEP
        out[start : start + CHUNK] = values @ theta
    return out


def cluster(points: NDArray[np.float32], chance: Chance) -> tuple[Integers, Floats]:
    """Return the cluster of every point and the centres, by Lloyd's algorithm on a sample."""
    if len(points) <= GROUPS:
        return np.arange(len(points)), points.astype(float)
    points_sample = points[chance.permutation(len(points))[:SAMPLE]]
    centres = points_sample[:GROUPS].astype(float)
    for _ in range(ROUNDS):
        near = nearest(points_sample, centres)
        counts = np.maximum(np.bincount(near, minlength=GROUPS), 1)
        sums = np.stack([np.bincount(near, column, GROUPS) for column in points_sample.T], axis=1)
        centres = np.where(np.bincount(near, minlength=GROUPS)[:, None] > 0, sums / counts[:, None], centres)
    return nearest(points, centres), centres


def nearest(points: NDArray[np.float32], centres: Floats) -> Integers:
    """Return the nearest centre of each point."""
    half, out = 0.5 * (centres**2).sum(axis=1), np.empty(len(points), np.int64)
    for start in range(0, len(points), CHUNK):
        out[start : start + CHUNK] = np.argmax(points[start : start + CHUNK] @ centres.T - half, axis=1)
    return out
