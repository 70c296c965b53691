"""Where profiles are many: a few rows that stand for all in the fit, and groups of rows that links are drawn between.

The sample's weights are those nearest to even (relative entropy) under which every feature has its mean over all
rows, so sums of the fit are calibrated. Groups are of rows that the fit links alike: k-means of φΘ, what a row of the
one side is multiplied with on the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats, Integers
from dpscale.reconstruction.pairwise.chance import Chance
from dpscale.relational.expected import CHUNK, Expected
from dpscale.relational.features import STEP

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
