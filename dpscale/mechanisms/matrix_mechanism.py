"""Matrix mechanisms: a function that plans blocks becomes a mechanism whose plan is fixed before any data are read.

The measurement plan has a `Plan` that fixes all measurements in one decision without selection.

*Earlier releases.* A fixed plan starts from their blocks, which are pooled with its own.

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
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.display import figure, percent
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.base.settings import Settings
from dpscale.mechanisms.contract import (
    Instalments,
    Mechanism,
    PlanningProblem,
    Pooling,
    Tools,
    seconds_of_sets,
)
from dpscale.mechanisms.largest_error import USUAL_ROUNDS, least_largest
from dpscale.optimize.long_axis import rooted_weights
from dpscale.plans.accuracy import accuracy_of
from dpscale.plans.blocks import Block, Blocks
from dpscale.plans.measurement_plan import BlockRequests, Draws, plan_draws
from dpscale.plans.plan import BLOCKS, FACTORS, PLAN, Plan, content_of, digest_of, read_plan, write_plan
from dpscale.privacy.accounting import LAPLACE, Budget, Cost
from dpscale.privacy.draws import variance_factor
from dpscale.reconstruction.base import Evidence, PlanEvidence
from dpscale.reconstruction.estimates import LeastSquaresEstimates, has_separate_residuals
from dpscale.reconstruction.guessed import NO_SHARES, GuessedValues, Shares
from dpscale.storage.files import is_local, present, read_bytes, reading
from dpscale.workload import Family, Workload, WorkloadPart
from dpscale.workload.merging import MergedCells, merge_cells
from dpscale.workload.residual import Weights, water_fill
from dpscale.workload.wide import is_wide

Variances = Sequence[float] | Floats
Read = Callable[[int], Floats]
NEITHER = -1  # place of a set that a plan does not measure

GROUP = 1000  # records of a group whose mean's error is stated


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
            weighted = [(1 / variances[places[index]], values(int(places[index])))
                        for places, variances, values in sources if places[index] != NEITHER]  # fmt: skip
            if len(weighted) == 1:
                return weighted[0][1]
            total = sum(weight for weight, _ in weighted)
            return np.asarray(sum(weight * measured for weight, measured in weighted) / total)

        return PlanEvidence(self.plan, self.variances.tolist(), read)


def _precisions(places: Integers, variances: Floats) -> Floats:
    """Return the precision that a plan gives to each pooled block, 0 where it does not measure the block."""
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
    in_earlier: dict[AttributeSet, int] = {names: index for index, names in enumerate(earlier.blocks.sets)}
    in_new: dict[AttributeSet, int] = {names: index for index, names in enumerate(new.blocks.sets)}
    sets = [*in_earlier, *(names for names in in_new if names not in in_earlier)]
    blocks = [earlier.blocks[in_earlier[names]] if names in in_earlier else new.blocks[in_new[names]] for names in sets]
    pool = PooledBlocks(
        plan=new,
        earlier=np.array([in_earlier.get(names, NEITHER) for names in sets], np.int64),
        new=np.array([in_new.get(names, NEITHER) for names in sets], np.int64),
        earlier_variances=np.asarray(earlier_variances),
        new_variances=np.asarray(new_variances),
    )
    columns = with_precisions(Blocks.of(new.domain.axis_names, blocks), pool.variances)
    error = accuracy_of(new.domain, columns).total_error(new.workload)

    return replace(pool, plan=replace(new, blocks=columns, error=error, bound=0.0, stationary=None, floor=0.0))


def with_precisions(blocks: Blocks, variances: Floats) -> Blocks:
    """Return blocks whose shares are proportional to the privacy costs of their noise variances."""
    costs = blocks.unit_variances * blocks.share / variances
    return replace(blocks, share=costs / costs.sum())


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


def _differing(names: str, difference: str) -> PlanError:
    return PlanError("workload", f"queries on {names} with {difference} other than that of the run that it refines",
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
        """Raise PlanError if all releases have the same plan (no target), but `plan` has other blocks than they."""
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


def _same_blocks(first: Blocks, second: Blocks) -> bool:
    """Return whether blocks measure the same strategies on the same sets."""
    digests = [[[factor.digest for factor in strategy] for strategy in blocks.strategies] for blocks in (first, second)]
    columns = [(first.sets.members, second.sets.members), (first.sets.ends, second.sets.ends),
               (first.which, second.which), (first.whole, second.whole)]  # fmt: skip
    return all(np.array_equal(a, b) for a, b in columns) and digests[0] == digests[1]


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
    spent = _shares_spent(target, problem, earlier)
    amounts = budget * water_fill(blocks.share**2, np.ones(len(blocks)), spent)  # squared μ of each block
    places = np.flatnonzero(amounts > LEAST * budget)
    measured = replace(blocks.take(places), share=amounts[places] / amounts[places].sum())
    completing = Plan(
        workload=target.workload,
        mechanism=target.mechanism,
        blocks=measured,
        error=target.error,
        bound=0.0,
        notes=target.notes,
    )
    new_variances = plan_draws(completing, budget, problem.rows_per_unit).variances
    pool = pool_residual_plans(earlier.plan, earlier.variances, completing, new_variances)

    # the pool's error at its own cost, in units of a plan at the budget for one row of a unit
    return replace(completing, error=pool.plan.error / pool.budget * budget / problem.rows_per_unit**2)


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


def _sample_evenly(part: WorkloadPart, most: int) -> Sequence[AttributeSet]:
    """Return at most `most` evenly spaced sets of a part among those with positive weight."""
    sets = [names for names, weight in zip(part.sets, part.weights, strict=True) if np.any(weight)]
    return sets[:: -(-len(sets) // most)] if sets else sets


@dataclass(frozen=True, eq=False)
class AllBlocks:
    """The single decision of a fixed plan: all blocks."""

    requests: BlockRequests
    round: int = 0
    selection_cost: Fraction = Fraction(0)

    def to_dict(self) -> dict[str, Any]:
        return {"round": self.round, "measurements": len(self.requests)}

    def fits(self, other: object) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class FixedPlan:
    """Measurement plan of a matrix mechanism: a `Plan` at the budget of a problem, with exact noise and cost.

    Attributes
    ----------
    plan : Plan
    problem : PlanningProblem
    earlier : EarlierBlocks or None
        Blocks of earlier releases of the same records, with which those of the plan are pooled.
    """

    plan: Plan
    problem: PlanningProblem
    earlier: EarlierBlocks | None = None
    rounds: None = None

    def starting_from(self, earlier: EarlierBlocks) -> FixedPlan:
        """Return the plan with earlier releases; raise PlanError if their blocks do not fit."""
        earlier.check(self.plan)
        return replace(self, earlier=earlier)

    @property
    def workload(self) -> Workload:
        return self.plan.workload

    @property
    def mechanism(self) -> str:
        return self.plan.mechanism

    @property
    def counted_sets(self) -> tuple[AttributeSet, ...]:
        return self.plan.counted_sets

    @cached_property
    def draws(self) -> Draws:
        """Noise of every block and its cost."""
        return plan_draws(self.plan, self.problem.budget.amount, self.problem.rows_per_unit)

    @property
    def cost(self) -> Cost:
        """Privacy cost of the whole release, exact and rounded up."""
        return self.draws.cost

    @cached_property
    def pool(self) -> PooledBlocks | None:
        """Blocks of all releases with their pooled variances; None without earlier ones."""
        return None if self.earlier is None else self.earlier.pooled(self.plan, self.draws.variances)

    @property
    def evidence_plan(self) -> Plan:
        return self.plan if self.pool is None else self.pool.plan

    def forecast(self, budget: Budget) -> FixedForecast:
        return FixedForecast(self, budget)

    def write(self, folder: Path) -> None:
        write_plan(folder, self.plan)
        if self.earlier is not None and self.earlier.target is not None:
            write_plan(folder / TARGET, self.earlier.target)

    @cached_property
    def digest(self) -> str:
        return digest_of(content_of(self.plan))

    @cached_property
    def _first(self) -> AllBlocks:
        return AllBlocks(BlockRequests(self.plan.blocks, self.draws, self.plan.sources))

    def first_decision(self) -> AllBlocks:
        """Return the decision: all blocks, each from the smallest counted set that contains its attributes."""
        return self._first

    def evidence(self, taken: Sequence[tuple[AllBlocks, Sequence[Floats]]]) -> PlanEvidence:
        """Return the blocks of all releases, the variances of their noise, and the values, which are read on access.

        `taken` has the decisions and their values; a plan without rounds has one decision. With `pool`, the values of
        earlier releases are averaged with these by block.
        """
        (_, values), *_ = taken
        if self.pool is not None and self.earlier is not None:
            return self.pool.evidence(self.earlier.evidence.read, values.__getitem__)
        return PlanEvidence(self.plan, self.draws.variances.tolist(), values.__getitem__)


@dataclass(frozen=True, eq=False)
class FixedForecast:
    """Errors and optimality gap of a fixed plan at a budget, known before any data are read.

    Attributes
    ----------
    measured : FixedPlan
    budget : Budget
        Not used with earlier releases, whose noise is known.
    """

    measured: FixedPlan
    budget: Budget

    @property
    def notes(self) -> tuple[str, ...]:
        return self.measured.plan.notes

    @property
    def plan(self) -> Plan:
        """Blocks from which queries are estimated."""
        return self.measured.evidence_plan

    @cached_property
    def _noise(self) -> tuple[int, float]:
        """Rows of a unit, and the privacy cost at which a plan for that many rows has the noise of the blocks."""
        pool = self.measured.pool  # its variances are those of a unit
        return (self.measured.problem.rows_per_unit, self.budget.privacy_cost) if pool is None else (1, pool.budget)

    @cached_property
    def rmse(self) -> float:
        """Expected root mean square error of a query."""
        rows, cost = self._noise
        return rows * self.plan.rmse(cost)

    @property
    def ratio_to_one_release(self) -> float:
        """Root mean square error relative to one release at the budget of all.

        A root mean square error is rows per unit times the plan's at the privacy cost of all releases.
        """
        problem, earlier = self.measured.problem, self.measured.earlier
        if earlier is None:
            return 1.0
        single, whole = earlier.target or self.measured.plan, earlier.instalments.budget(problem.budget)
        return self.rmse / (problem.rows_per_unit * single.rmse(whole.privacy_cost))

    @property
    def summary(self) -> dict[str, Any]:
        """Errors and optimality gap; of a release that refines others also the figures of all together."""
        gap, earlier = self.plan.optimality_gap, self.measured.earlier
        figures = {"measurements": len(self.measured.plan.blocks), "privacy_cost": self.budget.amount,
                   "rmse": self.rmse, "optimality_gap": gap if math.isfinite(gap) else None}  # fmt: skip
        if earlier is None:
            return figures | self._certified()
        together = earlier.instalments.to_dict(self.measured.cost)
        return {**figures, "ratio_to_one_release": self.ratio_to_one_release, **together}

    def _certified(self) -> dict[str, float]:
        """Return the fields that only some plans have: the bound over all mechanisms and the stationarity."""
        floor = {"rmse_bound_all": self.rmse * (self.plan.floor / self.plan.error) ** 0.5}
        flat = {} if self.plan.stationary is None else {"stationary": self.plan.stationary}
        return (floor if self.plan.floor > 0 else {}) | flat

    def errors(self, most: int) -> list[Mapping[str, Any]]:
        """Return the root mean square error in records of at most `most` sets of each part."""
        rows, cost = self._noise
        scale = rows / math.sqrt(cost)
        parts = self.measured.workload.parts
        return [self._error(part, names, scale) for part in parts for names in _sample_evenly(part, most)]

    def estimates_of_guess(self, rows: float, shares: Shares = NO_SHARES) -> LeastSquaresEstimates:
        """Return estimates of a guessed table with the errors of the release.

        The variance of a block is its variance at unit cost times rows per unit squared, over the privacy cost.
        """
        per_unit, cost = self._noise
        variances = self.plan.blocks.unit_variances * (per_unit**2 / cost)
        guessed = GuessedValues(domain=self.plan.domain, blocks=self.plan.blocks, rows=rows, shares=shares)
        return PlanEvidence(self.plan, variances.tolist(), guessed.__getitem__).least_squares()

    def _error(self, part: WorkloadPart, attributes: AttributeSet, scale: float) -> Mapping[str, Any]:
        """Return the expected error of a part on a set: root mean square over its queries, with its unit.

        Errors of statistics of a number are those of GROUP records.

        `scale` is rows per unit over √cost, by which errors at privacy cost 1 are multiplied.
        """
        accuracy, queries, shown = self.plan.accuracy, part.count(attributes), part.shown(attributes)
        error, unit = scale * math.sqrt(accuracy.summed_variance(part, attributes) / queries), part.unit(attributes)
        if part.statistic is not None:
            error = part.statistic.half_range**part.statistic.power * error / GROUP
            unit = f"{unit}, of {GROUP:,} records"
        return {"name": f"{part.name}-{len(shown)}", "attributes": shown, "queries": queries, "error": error,
                "unit": unit}  # fmt: skip

    @property
    def cards(self) -> list[tuple[str, str]]:
        """Figures of the report with their descriptions."""
        workload, earlier = self.measured.workload, self.measured.earlier
        cost = (("Laplace", "noise: discrete, exact; pure differential privacy, δ = 0") if self.plan.noise == LAPLACE
                else (figure(float(self.measured.cost.gaussian)), "privacy cost (squared Gaussian-DP μ)"))  # fmt: skip
        weighted = any(weight != 1.0 for part in workload.parts for weight in part.weights)
        words = "expected root mean square error of a query (records)" + (", weighted as the job says" * weighted)
        error = figure(self.rmse), words + ", of sums relative to half their range" * bool(workload.numbers)
        certified = [self._certificate(), *self._floor()]
        if earlier is None:
            return [cost, error, *certified]

        ratio = "the root mean square error of one release at the summed privacy cost"
        together = [earlier.instalments.card(self.measured.cost), (f"{self.ratio_to_one_release:.4g} ×", ratio)]
        return [cost, *together, error, *(certified if earlier.target is None else [])]

    def _floor(self) -> list[tuple[str, str]]:
        """Return the ratio of the error to the bound over all matrix mechanisms, if known."""
        if self.plan.floor <= 0:
            return []
        ratio = (self.plan.error / self.plan.floor) ** 0.5
        return [
            (f"{ratio:.3g} ×", "the root mean square error over a lower bound for all matrix mechanisms (may be loose)")
        ]

    def _certificate(self) -> tuple[str, str]:
        """Return (figure, meaning): how far the plan is above a lower bound on its error."""
        gap = self.plan.optimality_gap
        if gap > 1e6:
            return "—", "no bound known for this mechanism"
        if self.plan.blocks[0].whole:
            bound = "the SVD bound, loose for Laplace noise" if self.plan.noise == LAPLACE else "the SVD bound"
            return (
                f"{(1 + gap) ** 0.5:.3g} ×",
                f"the lower bound on the root mean square error of any strategy ({bound})",
            )

        least = "the minimum over all plans of this kind"
        return percent(gap), f"certified: the squared error is at most this far above {least}"


def next_plan(
    folder: Path, problem: PlanningProblem, costs: Instalments, completes: bool, make: Callable[[], Any]
) -> FixedPlan:
    """Return the plan of the next release: the target again, or what completes the earlier ones to it.

    The target is the plan of one release at the summed budget. `completes` measures only what earlier releases lack of
    it; otherwise the target is measured again and pooled.
    """
    evidence = read_evidence(folder, problem.workload)
    target = read_target(folder, problem.workload) or make().evidence_plan
    if target is None:
        raise PlanError("mechanism", "a plan that is not fixed", "a mechanism with a fixed plan", "use another one")
    if not completes:
        return FixedPlan(target, problem).starting_from(EarlierBlocks(evidence, costs))
    measured = completing_plan(target, problem, evidence)
    return FixedPlan(measured, problem).starting_from(EarlierBlocks(evidence, costs, target))


def pooling_plan(plan: Any, stored: Path, folder: Path, costs: Instalments) -> FixedPlan:
    """Return a stored plan as one that starts from the values in `folder`."""
    started: FixedPlan = plan.starting_from(read_earlier(folder, stored, plan.workload, costs))
    return started


POOLING = Pooling(pack, next_plan, pooling_plan, missing=missing_budget)
FORMS = ("least_squares", "low_order", "measurements", "residuals")


def matrix_mechanism(
    name: str,
    options: type[Settings],
    plan: Callable[[PlanningProblem, Any, Tools], Plan],
    version: str = "1",
    resumes: frozenset[str] = frozenset(),
    seconds: Callable[[PlanningProblem, Any], float] = seconds_of_sets,
    minimises_largest: Callable[[Workload], bool] = lambda workload: False,
) -> Mechanism:
    """Return the mechanism of a function that plans blocks; see `Mechanism` for version, resumes and seconds.

    Where `minimises_largest` is not true of the workload, the plan of least largest error is found by weights of the
    queries (`largest_error`).
    """

    def iterates(problem: PlanningProblem, given: Any) -> bool:
        return getattr(given, "objective", "sum") == "max" and not minimises_largest(problem.workload)

    def planned(problem: PlanningProblem, given: Any, tools: Tools) -> Plan:
        """Return the plan, by weights of the queries if the largest error is minimised and no other way is known."""
        if not iterates(problem, given):
            return _plan_classes(plan, problem, given, tools)
        summed = given.model_copy(update={"objective": "sum"})
        unstored = replace(tools, store=None)  # the weights of a round do not occur again
        return least_largest(problem, lambda weighted: _plan_classes(plan, weighted, summed, unstored))

    def predicted(problem: PlanningProblem, given: Any) -> float:
        return (USUAL_ROUNDS if iterates(problem, given) else 1) * seconds(_on_classes(problem)[0], given)

    return Mechanism(
        name=name,
        Options=options,
        plan=lambda problem, given, tools: FixedPlan(planned(problem, given, tools), problem),
        read=lambda folder, problem, given: FixedPlan(read_plan(folder, problem.workload), problem),
        forms=lambda given: FORMS,
        version=version,
        resumes=resumes,
        aliases={"grem": "least-squares"},  # GReM-MLE of a plan; not GReM-LNN, its option
        seconds=predicted,
        pooling=POOLING,
    )


def _on_classes(problem: PlanningProblem) -> tuple[PlanningProblem, MergedCells | None]:
    """Return a problem on the classes of cells that its queries distinguish, with the classes; None if not merged."""
    merged = merge_cells(problem.workload)
    if merged is None:
        return problem, None
    return replace(problem, workload=merged.workload(problem.workload)), merged


def _plan_classes(
    plan: Callable[[PlanningProblem, Any, Tools], Plan], problem: PlanningProblem, options: Any, tools: Tools
) -> Plan:
    """Return the plan of a problem, made on the classes of cells that its queries distinguish.

    The plan is made on a domain whose cells are the classes; its blocks record the classes (`merging`).
    """
    merged_problem, merged = _on_classes(problem)
    merged_plan = plan(merged_problem, options, tools)
    if merged is None:
        return merged_plan
    blocks, notes = merged_plan.blocks.merging(merged), (*merged_plan.notes, merged.note)
    return replace(merged_plan, workload=problem.workload, blocks=blocks, notes=notes)


def marginal_plan(
    workload: Workload, name: str, blocks: Iterable[Block], bound: float, notes: tuple[str, ...] = ()
) -> Plan:
    """Return the plan of blocks that measure marginals.

    Parameters
    ----------
    workload : Workload
    name : str
        Name of the mechanism.
    blocks : iterable of Block
    bound : float
        Lower bound on tr(G (AᵀA)⁺) over all strategies of sensitivity 1, or 0.
    notes : tuple of str
        Remarks for the user.
    """
    columns = Blocks.of(workload.domain.axis_names, blocks)
    error = accuracy_of(workload.domain, columns).total_error(workload)
    return Plan(
        workload=workload,
        mechanism=name,
        blocks=columns,
        error=error,
        bound=min(bound * variance_factor(columns[0].noise), error),
        notes=notes,
    )


def wide_attribute(workload: Workload) -> str | None:
    """Return the only attribute of a workload of one-way families if it is wide; else None."""
    names = {name for names in workload.sets for name in names}
    if len(names) != 1 or not all(part.factorizes for part in workload.parts):
        return None
    [name] = names
    return name if is_wide(workload.domain[name].size) else None


def weights_of_roots(workload: Workload) -> dict[str, Weights]:
    """Return the wide attributes whose queries have a root in closed form, with the weights of their cells.

    These are attributes with prefix queries or with range queries alone; see `WideRoot`.

    `asked` has the families on each attribute, and `refused` the attributes with queries that are no products.
    """
    wide = {axis.name for axis in workload.domain.axes if is_wide(axis.size)}
    asked, refused = defaultdict[str, set[Family]](set), set[str]()
    for part in workload.parts if wide else ():
        for names in part.sets:
            refused.update(() if part.factorizes else names)
            for name, family in zip(names, part.families(names) if part.factorizes else (), strict=False):
                asked[name].add(family)

    sizes = {name: workload.domain[name].size for name in wide & asked.keys() - refused}
    roots = {name: rooted_weights(asked[name], size, len(asked) == 1) for name, size in sizes.items()}
    return {name: weights for name, weights in roots.items() if weights is not None}


def check_cells(blocks: Iterable[Block], tools: Tools, name: str) -> None:
    """Raise PlanError if a block needs a marginal with more cells than the memory setting allows.

    `name` is that of the strategy, for the message.
    """
    for block in blocks:
        cells = math.prod(math.prod(factor.shape) for factor in block.factors)
        if cells > tools.most_cells:
            raise PlanError(
                "engine.memory",
                f"a marginal of {cells} cells ({', '.join(block.attributes)}) for {name}",
                f"at most {tools.most_cells} cells under the memory setting",
                "increase it, use fewer attributes, or set mechanism query-smasher",
            )
