"""Intervals that hold all at once: how many standard errors wide they are, by simulation of the plan's noise.

Least squares is linear, so the error of every answer is the answer that the noise alone would give. With all noise of
the plan drawn anew, max |error_i / std_error_i| over the queries has the distribution that it has in the release; its
quantile at a level is the width (max-|Z| intervals, Westfall and Young 1993). No covariance is ever built, nothing of
the data is in it, and the streams here are no part of any privacy argument. Simulated errors have too few draws for
that: of m queries each holds with probability 1 − (1 − level)/m, so all do, however they hang together (Bonferroni),
as far as their law is normal; what it is beyond that `simulated` knows.
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
    """Of one interval, in standard errors; for Laplace noise as wide as a sum of such noise may need."""
    normal = NormalDist().inv_cdf((1 + level) / 2)
    return max(normal, -math.log1p(-level) / math.sqrt(2)) if noise == LAPLACE else normal


def bonferroni(level: float, queries: int) -> float:
    """Of intervals that hold all at once, in standard errors, whatever their errors have to do with each other."""
    return NormalDist().inv_cdf(1 - (1 - level) / (2 * queries))


def joint_width(estimates: LeastSquaresEstimates, part: Part, names: AttributeSet, level: float, seed: str) -> float:
    """Of intervals for all queries of a part over one set that hold at once. `seed`: any public text."""
    errors = np.sqrt(estimates.part_variances(part, names)).reshape(-1)
    told = errors > 0
    if not told.any():
        return half_width(level, estimates.noise)
    most = [np.abs(some[:, told] / errors[told]).max(axis=1) for some in drawn(estimates, part, names, seed)]
    return float(np.quantile(np.concatenate(most), level, method="higher"))


def drawn(estimates: LeastSquaresEstimates, part: Part, names: AttributeSet, seed: str) -> Iterator[Floats]:
    """Errors of a part's answers over one set as other noise would have left them, batches of shape (draws, queries).

    How large a batch is follows from the set alone: another one would draw other noise.
    """
    words = np.frombuffer(hashlib.sha256(f"{seed} {names} {part.name}".encode()).digest(), np.uint32)
    rng = np.random.Generator(np.random.PCG64(words.tolist()))
    most = max(BATCH // max(part.count(names), estimates.plan.domain.cells(names)), 1)
    for start in range(0, DRAWS, most):
        yield _Noise(estimates, rng, min(most, DRAWS - start)).answers(part, names)


class _Noise:
    """Some draws of a plan's whole noise, the first axis of every array, and what they make of answers."""

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
        """What one block's noise makes of a residual."""
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
        """The marginal as a whole block tells it."""
        if block.joint:
            return self._joint(block, values, block.factors[0].shape)
        for axis, factor in enumerate(block.factors):
            if factor.kind == "full":
                values = np.moveaxis(np.tensordot(factor.inverse, values, axes=(1, axis)), 0, axis)
        return np.moveaxis(values, -1, 0)

    def _read(self, index: int) -> Floats:
        """A block's noise, draws last: drawn once, for several residuals are told by it."""
        if index not in self._known:
            spread, shape = math.sqrt(self.estimates.variances[index]), (*self.plan.blocks[index].rows, self.draws)
            laplace = self.estimates.noise == LAPLACE
            self._known[index] = (
                self.rng.laplace(0, spread / math.sqrt(2), shape) if laplace else self.rng.normal(0, spread, shape)
            )
        return self._known[index]


def _answered(part: Part, names: AttributeSet, marginals: Floats) -> Floats:
    """A part's answers from a batch of marginals."""
    if not isinstance(part, ProductPart):
        return np.stack([part.answers(names, one) for one in marginals])
    for axis, family in enumerate(part.families(names)):
        marginals = family.answers(marginals, axis + 1)
    return marginals
