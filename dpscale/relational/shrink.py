"""How much of what was measured is believed: spike and slab, a relative scale for every pair of attributes.

Of a block of cells (one attribute, or a pair of attributes across the link) the noisy sums depart from what is expected
by r with noise σ. Either the block has nothing (the spike) or its cells depart by X·s each, log s near a scale that all
blocks of a kind share and that is learnt from them; the whole kind may have nothing. What comes out is a ridge for
the fit: λ with C/(C + λ) the expected share of r that is real, C the curvature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats

SCALES = np.exp(np.linspace(math.log(0.005), math.log(1.5), 36))
LOGS = np.log(SCALES)
WIDTH, SPIKE, NOTHING = 0.7, 0.3, 0.7  # of a block's scale about the common one; probabilities a priori
SPREAD = 0.2  # of the common scale about where it is thought to be: noise alone seldom passes for a large one
FEW = 300.0


@dataclass(frozen=True, eq=False)
class Block:
    """`departed`: noisy sums less what is expected, (k,); `curvature`, `carried`: as `Expected` has them; `sigma`."""

    departed: Floats
    curvature: Floats
    carried: Floats
    sigma: float

    @property
    def evidence(self) -> Floats:
        """(scales,): the log-likelihood of every scale, less that of nothing."""
        noise = self.sigma**2
        spread = (self.carried * SCALES[:, None]) ** 2 + noise
        terms = np.log(spread / noise) + self.departed**2 * (1 / spread - 1 / noise)
        return np.asarray(-0.5 * terms.sum(axis=1))

    def ridge(self, weights: Floats) -> Floats:
        """(k,): λ, given the posterior of the scale."""
        real = (self.carried * SCALES[:, None]) ** 2
        believed = (weights[:, None] * real / (real + self.sigma**2)).sum(axis=0)
        return np.asarray(np.maximum(self.curvature, 1e-9) * (1 / np.clip(believed, 1e-4, 1 - 1e-9) - 1))


def ridges(blocks: Sequence[Block], prior: float) -> list[Floats]:
    """λ of every block of a kind. `prior`: where the common scale is thought to be."""
    near = -0.5 * ((LOGS[:, None] - LOGS) / WIDTH) ** 2
    near -= np.log(np.exp(near).sum(axis=0))
    slabs = [one.evidence[:, None] + near + math.log(1 - SPIKE) for one in blocks]
    likely = [np.logaddexp(_log_sum(slab, 0), math.log(SPIKE)) for slab in slabs]
    before = -0.5 * ((LOGS - math.log(prior)) / SPREAD) ** 2
    common = np.sum(likely, axis=0) + before
    odds = float(_log_sum(common, 0) - _log_sum(before, 0)) + math.log((1 - NOTHING) / NOTHING)
    something = 1 / (1 + math.exp(-min(max(odds, -50.0), 50.0)))
    weights = np.exp(common - _log_sum(common, 0)) * something
    return [one.ridge(np.exp(slab - all_) @ weights) for one, slab, all_ in zip(blocks, slabs, likely, strict=True)]


def _log_sum(values: Floats, axis: int) -> Floats:
    most = values.max(axis=axis)
    return np.asarray(np.log(np.exp(values - most).sum(axis=axis)) + most)


def shrunk(noisy: Floats, expected: Floats, curvature: Floats, carried: Floats, precision: float,
           kinds: NDArray[np.int64], prior: float) -> tuple[Floats, Floats]:  # fmt: skip
    """Sums to fit and their ridges, (k,) each: cells of next to no evidence are set to what is expected.

    `kinds`: the block of every cell.
    """
    names, sigma = np.unique(kinds), 1 / math.sqrt(precision)
    blocks = [Block((noisy - expected)[kinds == i], curvature[kinds == i], carried[kinds == i], sigma) for i in names]
    ridge, kept = np.zeros(len(noisy)), noisy.copy()
    for i, own in zip(names, ridges(blocks, prior), strict=True):
        ridge[kinds == i] = own
    few = ridge > FEW * curvature
    kept[few] = expected[few]
    return kept, ridge
