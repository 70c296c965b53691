"""Simultaneous confidence intervals: their half widths in standard errors, by simulation of the plan's noise.

Least squares is linear, so the error of every answer is the answer computed from the noise alone. If all noise of the
plan is redrawn, max |error_i / std_error_i| over the queries has the same distribution as in the release; its quantile
at a level is the half width (max-|Z| intervals, Westfall and Young 1993). No covariance matrix is built, no data is
used, and these random streams are not part of any privacy argument.

Simulated errors of models have too few draws for this. With m queries each interval covers with probability
1 − (1 − level)/m, so all cover together under any dependence (Bonferroni), if their distribution is normal; `simulated`
handles the heavier tail.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.display import AttributeSet
from dpscale.plans.blocks import Block
from dpscale.privacy.accounting import LAPLACE
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.workload import Part, ProductPart
from dpscale.workload.residual import residual_of, smear, subsets

DRAWS = 2000  # the width's own standard error is then about a hundredth of it
MOST_JOINT = 100_000  # queries of a set: of more it would take minutes
BATCH = 1 << 22  # numbers of a batch of draws: 32 MB


def half_width(level: float, noise: str) -> float:
    """Return the half width of one interval in standard errors.

    For Laplace noise it is wide enough for any sum of such noise.
    """
    normal = NormalDist().inv_cdf((1 + level) / 2)
    return max(normal, -math.log1p(-level) / math.sqrt(2)) if noise == LAPLACE else normal


def bonferroni(level: float, queries: int) -> float:
    """Return the half width of simultaneous intervals in standard errors, valid under any dependence of the errors."""
    return NormalDist().inv_cdf(1 - (1 - level) / (2 * queries))


def joint_width(estimates: LeastSquaresEstimates, part: Part, names: AttributeSet, level: float, seed: str) -> float:
    """Return the half width, in standard errors, of simultaneous intervals for all queries of a part over one set.

    Parameters
    ----------
    estimates : LeastSquaresEstimates
    part : Part
    names : AttributeSet
    level : float
        Probability that all intervals cover.
    seed : str
        Any public text.
    """
    errors = np.sqrt(estimates.part_variances(part, names)).reshape(-1)
    told = errors > 0
    if not told.any():
        return half_width(level, estimates.noise)
    most = [np.abs(some[:, told] / errors[told]).max(axis=1) for some in drawn(estimates, part, names, seed)]
    return float(np.quantile(np.concatenate(most), level, method="higher"))


def drawn(estimates: LeastSquaresEstimates, part: Part, names: AttributeSet, seed: str) -> Iterator[Floats]:
    """Yield batches of errors of a part's answers over one set under redrawn noise, shape (draws, queries).

    The batch size follows from the set alone; another one would draw other noise.
    """
    words = np.frombuffer(hashlib.sha256(f"{seed} {names} {part.name}".encode()).digest(), np.uint32)
    rng = np.random.Generator(np.random.PCG64(words.tolist()))
    most = max(BATCH // max(part.count(names), estimates.plan.domain.cells(names)), 1)
    for start in range(0, DRAWS, most):
        yield _Noise(estimates, rng, min(most, DRAWS - start)).answers(part, names)


class _Noise:
    """Draws of a plan's whole noise, and the errors of answers; the first axis of every array is the draw."""

    def __init__(self, estimates: LeastSquaresEstimates, rng: np.random.Generator, draws: int) -> None:
        self.estimates, self.rng, self.draws = estimates, rng, draws
        self.plan, self.accuracy = estimates.plan, estimates.accuracy
        self._known: dict[int, Floats] = {}

    def answers(self, part: Part, names: AttributeSet) -> Floats:
        shape = self.plan.domain.shape(names)
        total = np.zeros((self.draws, *shape))
        profiles = {axis + 1: own for axis, own in (self.accuracy.axis_profiles(names) or {}).items()}
        for kept in subsets(names):
            if kept in self.accuracy.residuals:
                axes = [0, *(1 + names.index(name) for name in kept)]
                total += smear(self._residual(kept), axes, total.shape, profiles)
        return _answered(part, names, total).reshape(self.draws, -1)

    def _residual(self, kept: AttributeSet) -> Floats:
        sources = self.accuracy.residuals[kept].sources
        return np.asarray(sum(source.weight * self._told(source.block, kept) for source in sources))

    def _told(self, index: int, kept: AttributeSet) -> Floats:
        """Return the noise of a residual that comes from one block."""
        block, values = self.plan.blocks[index], self._read(index)
        if block.whole or block.residual_sets != [kept]:
            axes = [block.attributes.index(name) for name in kept]
            profiles = self.accuracy.axis_profiles(block.attributes)
            return residual_of(self._marginal(block, values), axes, profiles, lead=1)
        if block.joint:
            return self._joint(block, values, self.plan.domain.shape(kept))
        for factor in block.factors:  # each axis goes to the end, and so the draws come first
            values = factor.estimated(values)
        return values

    def _joint(self, block: Block, values: Floats, shape: Sequence[int]) -> Floats:
        return (block.factors[0].inverse @ values.reshape(-1, self.draws)).T.reshape(self.draws, *shape)

    def _marginal(self, block: Block, values: Floats) -> Floats:
        """Return the noise of the marginal of a whole block."""
        if block.joint:
            return self._joint(block, values, block.factors[0].shape)
        for axis, factor in enumerate(block.factors):
            if factor.kind == "full":
                values = np.moveaxis(np.tensordot(factor.inverse, values, axes=(1, axis)), 0, axis)
        return np.moveaxis(values, -1, 0)

    def _read(self, index: int) -> Floats:
        """Return a block's noise with draws last; it is drawn once because several residuals use it."""
        if index not in self._known:
            spread, shape = math.sqrt(self.estimates.variances[index]), (*self.plan.blocks[index].rows, self.draws)
            laplace = self.estimates.noise == LAPLACE
            self._known[index] = (
                self.rng.laplace(0, spread / math.sqrt(2), shape) if laplace else self.rng.normal(0, spread, shape)
            )
        return self._known[index]


def _answered(part: Part, names: AttributeSet, marginals: Floats) -> Floats:
    """Return a part's answers from a batch of marginals."""
    if not isinstance(part, ProductPart):
        return np.stack([part.answers(names, one) for one in marginals])
    for axis, family in enumerate(part.families(names)):
        marginals = family.answers(marginals, axis + 1)
    return marginals
