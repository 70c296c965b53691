"""Simultaneous confidence intervals: their half widths in standard errors, by simulation of the plan's noise.

Least squares is linear, so the error of every answer is the answer computed from the noise alone. If all noise of the
plan is redrawn, max |error_i / std_error_i| over the queries has the same distribution as in the release; its quantile
at a level is the half width (max-|Z| intervals, Westfall and Young 1993). No covariance matrix is built, no data is
used, and these random streams are not part of any privacy argument.

Simulated errors of models have too few draws for this. With m queries each interval covers with probability
1 − (1 − level)/m, so all cover together under any dependence (Bonferroni), if their distribution is normal;
`simulated_errors` handles the heavier tail.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats
from dpscale.plans.blocks import Block
from dpscale.privacy.accounting import LAPLACE
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.tree_estimates import TreeEstimates
from dpscale.workload import WorkloadPart
from dpscale.workload.residual import residual_of, smear, subsets

DRAWS = 2000  # the relative standard error of the width is then about 1 %
MOST_JOINT = 100_000  # queries of a set; more would take minutes
BATCH = 1 << 22  # numbers per batch of draws: 32 MB


def half_width(level: float, noise: str) -> float:
    """Return the half width of one interval in standard errors.

    For Laplace noise it is wide enough for any sum of such noise.

    The first number is the quantile of a normal variable, the limit of sums of many terms; the second is that of one
    Laplace variable, for which P(|X| > t σ) = e^(−t√2).
    """
    normal = NormalDist().inv_cdf((1 + level) / 2)
    return max(normal, -math.log1p(-level) / math.sqrt(2)) if noise == LAPLACE else normal


def bonferroni(level: float, queries: float) -> float:
    """Return the half width of simultaneous intervals in standard errors, valid under any dependence of the errors."""
    return NormalDist().inv_cdf(1 - (1 - level) / (2 * queries))


def simultaneous_width(
    estimates: LeastSquaresEstimates, part: WorkloadPart, names: AttributeSet, level: float, seed: str
) -> float:
    """Return the half width, in standard errors, of simultaneous intervals for all queries of a part over one set.

    Parameters
    ----------
    estimates : LeastSquaresEstimates
    part : WorkloadPart
    names : AttributeSet
    level : float
        Probability that all intervals cover.
    seed : str
        Any public text.
    """
    errors = np.sqrt(estimates.part_variances(part, names)).reshape(-1)
    noisy = errors > 0
    if not noisy.any():
        return half_width(level, estimates.noise)

    # of each simulated release the largest error of a query, in standard errors
    maxima = []
    for simulated in answer_errors(estimates, part, names, seed):
        maxima.append(np.abs(simulated[:, noisy] / errors[noisy]).max(axis=1))
    return float(np.quantile(np.concatenate(maxima), level, method="higher"))


def answer_errors(
    estimates: LeastSquaresEstimates, part: WorkloadPart, names: AttributeSet, seed: str, draws: int = DRAWS
) -> Iterator[Floats]:
    """Yield batches of errors of a part's answers over one set under redrawn noise, shape (draws, queries).

    The batch size follows from the set alone; another one would draw other noise.
    """
    rng = public_generator(f"{seed} {names} {part.name}")
    batch = max(BATCH // max(part.count(names), estimates.plan.domain.cells(names)), 1)
    source = estimates.source(part, names)
    for start in range(0, draws, batch):
        yield _Noise(source, rng, min(batch, draws - start)).answers(part, names)


def public_generator(text: str) -> np.random.Generator:
    """Return the random stream of a public text."""
    words = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint32)
    return np.random.Generator(np.random.PCG64(words.tolist()))


class _Noise:
    """Draws of a plan's whole noise, and the errors of answers; the first axis of every array is the draw."""

    def __init__(self, estimates: LeastSquaresEstimates, rng: np.random.Generator, draws: int) -> None:
        self.estimates, self.rng, self.draws = estimates, rng, draws
        self.plan, self.accuracy = estimates.plan, estimates.accuracy
        self._noise: dict[int, Floats] = {}

    def answers(self, part: WorkloadPart, names: AttributeSet) -> Floats:
        """Return simulated errors of the answers to a part's queries over one set, shape (draws, queries).

        A marginal over the set is a sum of residuals, one for each subset of its attributes: what the subset's marginal
        adds to those of fewer attributes. A residual is estimated by the weighted mean of the blocks that measure it
        (its sources), so its error is that mean of their noise. `smear` spreads the error over the cells of the set,
        evenly or by the profile of an axis. Answers are linear, so the answers from the marginal's error are the errors
        of the answers.
        """
        merged_part = self.plan.blocks.part(part)  # its queries on merged cells, if the strategies merge any
        if self.plan.blocks.has_trees:
            return self._tree_answers(merged_part, names)

        # the first axis is that of the draws, so an attribute has the axis after its place in the set
        marginal_errors = np.zeros((self.draws, *self.estimates.domain.shape(names)))
        profiles = {1 + place: profile for place, profile in self.accuracy.axis_profiles(names).items()}
        for subset in subsets(names):
            if subset not in self.accuracy.residuals:
                continue
            sources = self.accuracy.residuals[subset].sources
            residual_errors = sum(source.weight * self._block_noise(source.block, subset) for source in sources)
            axes = [0, *(1 + names.index(name) for name in subset)]  # of the residual
            marginal_errors += smear(np.asarray(residual_errors), axes, marginal_errors.shape, profiles)

        return merged_part.batch_answers(names, marginal_errors).reshape(self.draws, -1)

    def _tree_answers(self, part: WorkloadPart, names: AttributeSet) -> Floats:
        """Return the errors of answers over a level of a hierarchy, one draw after another.

        Each draw has estimates of its noise alone; `_read` gives the noise of a block with the draws on the last axis.
        """

        def errors_of(draw: int) -> Floats:
            redrawn = TreeEstimates(self.plan, self.estimates.variances, lambda index: self._read(index)[..., draw])
            return redrawn.span_answers(part, names).reshape(-1)

        return np.stack([errors_of(draw) for draw in range(self.draws)])

    def _block_noise(self, index: int, subset: AttributeSet) -> Floats:
        """Return the noise of a residual that comes from one block.

        A whole block has noise on its marginal, from which that of the residual follows; its first axis is that of the
        draws.
        """
        block, values = self.plan.blocks[index], self._read(index)
        if block.whole or block.residual_sets != [subset]:
            axes = [block.attributes.index(name) for name in subset]
            profiles = self.accuracy.axis_profiles(block.attributes)
            return residual_of(self._marginal(block, values), axes, profiles, lead=1)

        if block.joint:
            return self._joint(block, values, self.estimates.domain.shape(subset))

        for factor in block.factors:  # each axis moves to the end, so that finally the draws come first
            values = factor.estimate(values)
        return values

    def _joint(self, block: Block, values: Floats, shape: Sequence[int]) -> Floats:
        return block.factors[0].joint_estimate(values.reshape(-1, self.draws)).T.reshape(self.draws, *shape)

    def _marginal(self, block: Block, values: Floats) -> Floats:
        """Return the noise of the marginal of a whole block."""
        if block.joint:
            return self._joint(block, values, block.factors[0].shape)
        for axis, factor in enumerate(block.factors):
            if factor.kind == "full":
                values = np.moveaxis(np.tensordot(factor.inverse, values, axes=(1, axis)), 0, axis)
            elif not factor.commutes:
                values = np.moveaxis(factor.estimate(values, axis), -1, axis)
        return np.moveaxis(values, -1, 0)

    def _read(self, index: int) -> Floats:
        """Return a block's noise with draws last; it is drawn once because several residuals use it."""
        if index not in self._noise:
            spread, shape = math.sqrt(self.estimates.variances[index]), (*self.plan.blocks[index].rows, self.draws)
            laplace = self.estimates.noise == LAPLACE
            self._noise[index] = (
                self.rng.laplace(0, spread / math.sqrt(2), shape) if laplace else self.rng.normal(0, spread, shape)
            )
        return self._noise[index]
