"""Evidence of several releases of the same records, pooled block by block with inverse-variance weights.

Two measurements y₁, y₂ of one strategy with noise variances v₁, v₂ have the minimum-variance unbiased combination
(y₁/v₁ + y₂/v₂) / (1/v₁ + 1/v₂), with variance 1 / (1/v₁ + 1/v₂). For blocks of one plan, or for plans whose blocks
measure one residual each, the combination is the generalised least squares estimate from both releases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.plans.accuracy import accuracy_of
from dpscale.plans.blocks import Blocks
from dpscale.plans.plan import Plan
from dpscale.privacy.accounting import LAPLACE
from dpscale.reconstruction.base import PlanEvidence
from dpscale.reconstruction.estimates import has_separate_residuals

Variances = Sequence[float] | Floats
Read = Callable[[int], Floats]
NEITHER = -1


@dataclass(frozen=True, eq=False)
class PooledBlocks:
    """Blocks of an earlier and of a new plan, each with its place in both.

    Attributes
    ----------
    plan : Plan
        Blocks that either plan measures; the share of a block is proportional to its pooled precision.
    earlier, new : ndarray of int, shape (blocks,)
        Place of each block in either plan; -1 if the plan does not measure it.
    earlier_variances, new_variances : ndarray of float
        Noise variance of the blocks of either plan.
    """

    plan: Plan
    earlier: Integers
    new: Integers
    earlier_variances: Floats
    new_variances: Floats

    @cached_property
    def variances(self) -> Floats:
        """Noise variance of each pooled block."""
        precisions = _precisions(self.earlier, self.earlier_variances) + _precisions(self.new, self.new_variances)
        return np.asarray(1 / precisions)

    @cached_property
    def budget(self) -> float:
        """Privacy cost at which `plan` has these variances for one record of a unit: squared μ, or ε²."""
        return float((self.plan.blocks.unit_variances / self.variances).mean())

    def evidence(self, earlier: Read, new: Read) -> PlanEvidence:
        """Return the pooled evidence; `earlier` and `new` return the values of a block of either plan."""

        def read(index: int) -> Floats:
            sources = ((self.earlier, self.earlier_variances, earlier), (self.new, self.new_variances, new))
            found = [(1 / variances[places[index]], values(int(places[index])))
                     for places, variances, values in sources if places[index] != NEITHER]  # fmt: skip
            if len(found) == 1:
                return found[0][1]
            return np.asarray(sum(weight * own for weight, own in found) / sum(weight for weight, _ in found))

        return PlanEvidence(self.plan, self.variances.tolist(), read)


def _precisions(places: Integers, variances: Floats) -> Floats:
    return np.where(places == NEITHER, 0.0, 1 / variances[places])


def pool_equal_plans(plan: Plan, earlier: Variances, new: Variances) -> PooledBlocks:
    """Return the pool of two releases of one plan, with the noise variances of its blocks in both."""
    places = np.arange(len(plan.blocks))
    return PooledBlocks(plan, places, places, np.asarray(earlier), np.asarray(new))


def pool_residual_plans(
    earlier: Plan, earlier_variances: Variances, new: Plan, new_variances: Variances
) -> PooledBlocks:
    """Return the pool of two plans whose blocks measure one residual each.

    Parameters
    ----------
    earlier : Plan
        Blocks of the earlier releases, with the workload of the new one.
    earlier_variances, new_variances : sequence of float
        Noise variance of each block.
    new : Plan

    Raises
    ------
    PlanError
        If a plan measures several residuals together, or the plans measure a residual by different strategies.
    """
    check_poolable(earlier.blocks, new.blocks)
    there: dict[AttributeSet, int] = {names: index for index, names in enumerate(earlier.blocks.sets)}
    here: dict[AttributeSet, int] = {names: index for index, names in enumerate(new.blocks.sets)}
    sets = [*there, *(names for names in here if names not in there)]
    old, own = (np.array([places.get(names, NEITHER) for names in sets], np.int64) for places in (there, here))
    blocks = [earlier.blocks[there[names]] if names in there else new.blocks[here[names]] for names in sets]
    pool = PooledBlocks(new, old, own, np.asarray(earlier_variances), np.asarray(new_variances))
    columns = with_precisions(Blocks.of(new.domain.axis_names, blocks), pool.variances)
    error = accuracy_of(new.domain, columns).total_error(new.workload)

    return replace(pool, plan=replace(new, blocks=columns, error=error, bound=0.0, stationary=None, floor=0.0))


def with_precisions(blocks: Blocks, variances: Floats) -> Blocks:
    """Return blocks whose shares are proportional to the privacy costs of their noise variances."""
    costs = blocks.unit_variances * blocks.share / variances
    return Blocks(blocks.sets, blocks.strategies, blocks.which, costs / costs.sum(), blocks.whole, blocks.noise)


def check_poolable(earlier: Blocks, new: Blocks) -> None:
    """Raise PlanError unless plans measure separate residuals, and a common one by equal strategies and weights."""
    for blocks in (earlier, new):
        if not has_separate_residuals(blocks) or blocks.has_trees or blocks[0].noise == LAPLACE:
            how = "by Laplace noise" if blocks[0].noise == LAPLACE else "that measures several residuals together"
            raise PlanError("mechanism", f"a plan {how}, which another workload cannot refine exactly",
                            "the job of the run, or plans with Gaussian noise by query-smasher, residual-planner,"
                            " weighted-fourier or weighted-residuals", "refine without --job")  # fmt: skip

    weights = [dict(blocks.weights()) for blocks in (earlier, new)]
    used = [set(blocks.sets.names[place] for place in np.unique(blocks.sets.members)) for blocks in (earlier, new)]
    for name in sorted(used[0] & used[1]):
        if weights[0].get(name) != weights[1].get(name):
            raise _differing(name, "axis weights")

    digests = {names: block.digest for names, block in zip(earlier.sets, earlier, strict=True)}
    for block in new:
        if digests.get(block.attributes, block.digest) != block.digest:
            raise _differing(", ".join(block.attributes), "a strategy")


def _differing(names: str, what: str) -> PlanError:
    return PlanError("workload", f"queries on {names} with {what} other than that of the run that it refines",
                     "the same families on the attribute sets that both workloads contain",
                     "use the families of the first job, or start a new run")  # fmt: skip
