"""Blocks of earlier releases that a fixed plan starts from, pooled with its own.

*Refinement.* The plan of a release that refines earlier ones of the same records states what is measured again, and
what all of it gives. With one plan for all releases, every block is measured again and pooled. With another workload,
the plan of one release at the summed budget is the target. Its shares sₜ are the optimal division by the square root
rule, so the amounts that minimise the error given earlier precisions hₜ (in units of squared μ) are bₜ = max(0, sₜL −
hₜ), where the level L spends the budget: water filling.

*Pooling.* Evidence of several releases is pooled block by block with inverse-variance weights. Two measurements y₁, y₂
of one strategy with noise variances v₁, v₂ have the minimum-variance unbiased combination (y₁/v₁ + y₂/v₂) / (1/v₁ +
1/v₂), with variance 1 / (1/v₁ + 1/v₂). For blocks of one plan, or for plans whose blocks measure one residual each, the
combination is the generalised least squares estimate from both releases.

The values of earlier releases are files:

    plan.json, factors.npz, blocks.npz, values.npy, variances.npy      target/plan.json, …

The first files have the pooled values and the blocks that they estimate. `target` is the plan of one release at the
summed budget.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.mechanisms.contract import Instalments, PlanningProblem
from dpscale.plans.accuracy import accuracy_of
from dpscale.plans.blocks import Blocks
from dpscale.plans.measurement_plan import plan_draws
from dpscale.plans.plan import BLOCKS, FACTORS, PLAN, Plan, read_plan, write_plan
from dpscale.privacy.accounting import LAPLACE
from dpscale.reconstruction.base import Evidence, PlanEvidence
from dpscale.reconstruction.estimates import has_separate_residuals
from dpscale.storage.files import is_local, present, read_bytes, reading
from dpscale.workload import Workload
from dpscale.workload.residual import water_fill

Variances = Sequence[float] | Floats
Read = Callable[[int], Floats]
NEITHER = -1  # place of a set that a plan does not measure


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
        """Return the pooled evidence; `earlier` and `new` return the values of a block of either plan.

        A value is the average of both measurements with the weights 1/variance, or the only one.
        """

        def read(index: int) -> Floats:
            """Return the pooled values of a block of the target plan: the average of its measurements, or the only one.

            `places[index]` is the number of the block in the earlier or the new plan, NEITHER if that plan does not
            have it.
            """
            sources = ((self.earlier, self.earlier_variances, earlier), (self.new, self.new_variances, new))
            found = [(1 / variances[places[index]], values(int(places[index])))
                     for places, variances, values in sources if places[index] != NEITHER]  # fmt: skip
            if len(found) == 1:
                return found[0][1]
            return np.asarray(sum(weight * own for weight, own in found) / sum(weight for weight, _ in found))

        return PlanEvidence(self.plan, self.variances.tolist(), read)


def _precisions(places: Integers, variances: Floats) -> Floats:
    return np.where(places == NEITHER, 0.0, 1 / variances[places])


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
    pool = PooledBlocks(
        plan=new,
        earlier=old,
        new=own,
        earlier_variances=np.asarray(earlier_variances),
        new_variances=np.asarray(new_variances),
    )
    columns = with_precisions(Blocks.of(new.domain.axis_names, blocks), pool.variances)
    error = accuracy_of(new.domain, columns).total_error(new.workload)

    return replace(pool, plan=replace(new, blocks=columns, error=error, bound=0.0, stationary=None, floor=0.0))


def with_precisions(blocks: Blocks, variances: Floats) -> Blocks:
    """Return blocks whose shares are proportional to the privacy costs of their noise variances."""
    costs = blocks.unit_variances * blocks.share / variances
    shares = costs / costs.sum()
    return Blocks(
        sets=blocks.sets,
        strategies=blocks.strategies,
        which=blocks.which,
        share=shares,
        whole=blocks.whole,
        noise=blocks.noise,
        merged=blocks.merged,
    )


def check_poolable(earlier: Blocks, new: Blocks) -> None:
    """Raise PlanError unless plans measure separate residuals, and a common one by equal strategies and weights.

    Blocks that measure one residual each can be averaged block by block if strategies and axis weights agree.
    """
    for blocks in (earlier, new):
        if not has_separate_residuals(blocks) or blocks.has_trees or blocks[0].noise == LAPLACE:
            how = "by Laplace noise" if blocks[0].noise == LAPLACE else "that measures several residuals together"
            raise PlanError("mechanism", f"a plan {how}, which another workload cannot refine exactly",
                            "the job of the run, or plans with Gaussian noise by query-smasher, residual-planner,"
                            " weighted-fourier or weighted-residuals", "refine without --job")  # fmt: skip

    weights = [dict(blocks.weights()) for blocks in (earlier, new)]
    # attributes that either plan measures
    used = [set(blocks.sets.names[place] for place in np.unique(blocks.sets.members)) for blocks in (earlier, new)]
    for name in sorted(used[0] & used[1]):
        if weights[0].get(name) != weights[1].get(name):
            raise _differing(name, "axis weights")

    # a set that only one plan measures has nothing to agree with
    digests = {names: block.digest for names, block in zip(earlier.sets, earlier, strict=True)}
    for block in new:
        if digests.get(block.attributes, block.digest) != block.digest:
            raise _differing(", ".join(block.attributes), "a strategy")


def _differing(names: str, what: str) -> PlanError:
    return PlanError("workload", f"queries on {names} with {what} other than that of the run that it refines",
                     "the same families on the attribute sets that both workloads contain",
                     "use the families of the first job, or start a new run")  # fmt: skip


LEAST = 1e-9  # share of the budget below which a block is not measured
LEAST_MISSING = 1e-6  # share of the budget below which nothing is missing: more than the rounding of variances


@dataclass(frozen=True, eq=False)
class EarlierBlocks:
    """Blocks of earlier releases that a plan starts from.

    Attributes
    ----------
    evidence : PlanEvidence
        Pooled evidence of the earlier releases.
    instalments : Instalments
    target : Plan or None
        Plan of one release at the summed budget; None if all releases have the same plan.
    """

    evidence: PlanEvidence
    instalments: Instalments
    target: Plan | None = None

    def check(self, plan: Plan) -> None:
        """Raise PlanError if the releases have one plan according to the target, but other blocks."""
        if self.target is None and not _same_blocks(self.evidence.plan.blocks, plan.blocks):
            got = "other measurements than those of the earlier releases"
            raise PlanError("plan", got, "the same plan", "start again")

    def pooled(self, plan: Plan, variances: Floats) -> PooledBlocks:
        """Return the blocks of all releases, the last of which has a plan with such noise variances."""
        earlier = self.evidence
        if self.target is not None:
            return pool_residual_plans(earlier.plan, earlier.variances, plan, variances)
        places = np.arange(len(plan.blocks))
        return PooledBlocks(
            plan=plan,
            earlier=places,
            new=places,
            earlier_variances=np.asarray(earlier.variances),
            new_variances=variances,
        )


def _same_blocks(one: Blocks, other: Blocks) -> bool:
    """Return whether blocks measure the same strategies on the same sets."""
    strategies = [[[factor.digest for factor in strategy] for strategy in blocks.strategies] for blocks in (one, other)]
    same = [np.array_equal(a, b) for a, b in ((one.sets.members, other.sets.members), (one.sets.ends, other.sets.ends),
                                              (one.which, other.which), (one.whole, other.whole))]  # fmt: skip
    return all(same) and strategies[0] == strategies[1]


def completing_plan(target: Plan, problem: PlanningProblem, earlier: PlanEvidence) -> Plan:
    """Return the plan that completes earlier releases to a target.

    Parameters
    ----------
    target : Plan
        Plan of one release at the summed budget.
    problem : PlanningProblem
        Workload, and the budget of the new release.
    earlier : PlanEvidence

    Raises
    ------
    PlanError
        If the plans cannot be pooled.
    """
    blocks, budget = target.blocks, problem.budget.amount
    had = _shares_spent(target, problem, earlier)
    amounts = budget * water_fill(blocks.share**2, np.ones(len(blocks)), had)
    places = np.flatnonzero(amounts > LEAST * budget)
    taken = blocks.take(places)
    shares = amounts[places] / amounts[places].sum()
    measured = Blocks(
        sets=taken.sets,
        strategies=taken.strategies,
        which=taken.which,
        share=shares,
        whole=taken.whole,
        noise=taken.noise,
        merged=taken.merged,
    )
    made = Plan(
        workload=target.workload,
        mechanism=target.mechanism,
        blocks=measured,
        error=target.error,
        bound=0.0,
        notes=target.notes,
    )
    new = plan_draws(made, budget, problem.rows_per_unit).variances
    pool = pool_residual_plans(earlier.plan, earlier.variances, made, new)

    return replace(made, error=pool.plan.error / pool.budget * budget / problem.rows_per_unit**2)


def missing_budget(target: Plan, problem: PlanningProblem, earlier: PlanEvidence) -> float:
    """Return the budget that completes earlier releases to one of the whole budget: Σ max(0, sₜB − hₜ).

    Parameters
    ----------
    target : Plan
        Plan of that release.
    problem : PlanningProblem
        Workload, and the budget B of that release.
    earlier : PlanEvidence

    Raises
    ------
    PlanError
        If the plans cannot be pooled.
    """
    missing = np.maximum(target.blocks.share - _shares_spent(target, problem, earlier), 0)
    total = float(missing[missing > LEAST * target.blocks.share].sum())
    return problem.budget.amount * total if total > LEAST_MISSING else 0.0


def _shares_spent(target: Plan, problem: PlanningProblem, earlier: PlanEvidence) -> Floats:
    """Return the share of the budget that earlier releases spent on each block.

    A block's cost is inverse to its variance: variance at the whole budget times its share, over the earlier variance.
    """
    check_poolable(earlier.plan.blocks, target.blocks)
    blocks = target.blocks
    costs = plan_draws(target, problem.budget.amount, problem.rows_per_unit).variances * blocks.share
    known = {names: variance for names, variance in zip(earlier.plan.blocks.sets, earlier.variances, strict=True)}
    return np.asarray(costs / np.array([known.get(names, math.inf) for names in blocks.sets]))


TARGET = "target"  # folder in that of the plan
VALUES, VARIANCES, PLAN_FILES = "values.npy", "variances.npy", (PLAN, FACTORS, BLOCKS)


def pack(evidence: Evidence, workload: Workload, costs: Instalments, plan: Path | None) -> dict[str, bytes]:
    """Return files of the values of all releases so far; see `Pooling.pack`.

    `plan` is the folder of a plan; the plan in its folder TARGET is packed, or without one the plan itself. `costs` is
    not used.
    """
    assert isinstance(evidence, PlanEvidence)
    pooled = evidence.plan
    packed = Plan(
        workload=workload,
        mechanism=pooled.mechanism,
        blocks=pooled.blocks,
        error=pooled.error,
        bound=0.0,
        notes=pooled.notes,
    )
    values = np.concatenate([np.asarray(evidence.read(index)).reshape(-1) for index in range(len(pooled.blocks))])

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_plan(folder, packed)
        np.save(folder / VALUES, values)
        np.save(folder / VARIANCES, np.asarray(evidence.variances))
        files = {file: (folder / file).read_bytes() for file in (*PLAN_FILES, VALUES, VARIANCES)}

    if plan is not None:
        source = plan / TARGET if present(plan / TARGET / PLAN) else plan
        files |= {f"{TARGET}/{file}": read_bytes(source / file) for file in PLAN_FILES}

    return files


def read_earlier(folder: Path, stored: Path, workload: Workload, costs: Instalments) -> EarlierBlocks:
    """Return the blocks in a folder that `pack` wrote, and the target in the folder of a stored plan."""
    return EarlierBlocks(read_evidence(folder, workload), costs, read_target(stored, workload))


def read_evidence(folder: Path, workload: Workload) -> PlanEvidence:
    """Return the pooled values of the earlier releases; values on a disk are read on access."""
    plan = read_plan(folder, workload)
    with reading(folder / VARIANCES) as file:
        variances: Floats = np.load(file, allow_pickle=False)
    values = _open_values(folder / VALUES)
    starts = np.concatenate([[0], np.cumsum(plan.blocks.rows)])

    def value(index: int) -> Floats:
        return np.asarray(values[starts[index] : starts[index + 1]]).reshape(plan.blocks[index].rows)

    return PlanEvidence(plan, variances.tolist(), value)


def _open_values(path: Path) -> Floats:
    """Return the values of a file; a local one is mapped into memory, one in a store is read."""
    if is_local(path):
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    with reading(path) as file:
        return np.asarray(np.load(file, allow_pickle=False))


def read_target(folder: Path, workload: Workload) -> Plan | None:
    """Return the plan of one release at the summed budget; None if all releases have the same plan."""
    return read_plan(folder / TARGET, workload) if present(folder / TARGET / PLAN) else None
