"""Matrix mechanisms: a function that plans blocks becomes a mechanism whose plan is fixed before any data are read.

*Refinement.* The plan of a release that refines earlier ones of the same records states what is measured again, and
what all of it gives. With one plan for all releases, every block is measured again and pooled. With another workload,
the plan of one release at the summed budget is the target. Its shares sₜ are the optimal division by the square root
rule, so the amounts that minimise the error given earlier precisions hₜ (in units of squared μ) are bₜ = max(0, sₜL −
hₜ), where the level L spends the budget: water filling.

*Pooling.* Evidence of several releases is pooled block by block with inverse-variance weights. Two measurements y₁, y₂
of one strategy with noise variances v₁, v₂ have the minimum-variance unbiased combination (y₁/v₁ + y₂/v₂) / (1/v₁ +
1/v₂), with variance 1 / (1/v₁ + 1/v₂). For blocks of one plan, or for plans whose blocks measure one residual each, the
combination is the generalised least squares estimate from both releases.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.base.settings import Settings
from dpscale.mechanisms.contract import Instalments, Mechanism, PlanningProblem, Tools, seconds_of_sets
from dpscale.mechanisms.fixed_plan import AllBlocks, FixedPlan
from dpscale.plans.accuracy import accuracy_of
from dpscale.plans.blocks import Block, Blocks
from dpscale.plans.measurement_plan import MeasurementPlan, make_schedule
from dpscale.plans.plan import BLOCKS, FACTORS, PLAN, Plan, read_plan, write_plan
from dpscale.privacy.accounting import LAPLACE, Budget
from dpscale.privacy.draws import variance_factor
from dpscale.reconstruction.base import Evidence, PlanEvidence
from dpscale.reconstruction.estimates import has_separate_residuals
from dpscale.reconstruction.low_order import fully_measured
from dpscale.storage.files import is_local, present, read_bytes, reading
from dpscale.workload import Workload
from dpscale.workload.residual.axes import water_fill

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


TARGET = "target"  # folder in that of the plan
LEAST = 1e-9  # share of the budget below which a block is not measured


@dataclass(frozen=True, eq=False, kw_only=True)
class RefinedPlan(FixedPlan):
    """Fixed plan whose values are pooled with those of earlier releases.

    Attributes
    ----------
    earlier : PlanEvidence
        Pooled evidence of the earlier releases.
    instalments : Instalments
    target : Plan or None
        Plan of one release at the summed budget; None if all releases have the same plan.
    """

    earlier: PlanEvidence
    instalments: Instalments
    target: Plan | None = None

    @cached_property
    def pool(self) -> PooledBlocks:
        """Blocks of all releases with their pooled variances."""
        new = self.schedule.draws.variances
        if self.target is None:
            # the pool of two releases of one plan, with the noise variances of its blocks in both
            places = np.arange(len(self.plan.blocks))
            return PooledBlocks(self.plan, places, places, np.asarray(self.earlier.variances), np.asarray(new))
        return pool_residual_plans(self.earlier.plan, self.earlier.variances, self.plan, new)

    @property
    def public_plan(self) -> Plan:
        """Plan of the pooled evidence."""
        return self.pool.plan

    @property
    def profiles(self) -> Mapping[str, Floats]:
        return self.pool.plan.accuracy.profiles

    def check_low_order(self) -> None:
        fully_measured(self.pool.plan)

    def summary(self, budget: Budget) -> dict[str, Any]:
        gap = self.pool.plan.optimality_gap
        return {"measurements": len(self.plan.blocks), "privacy_cost": budget.amount, "rmse": self._rmse(budget),
                "optimality_gap": gap if math.isfinite(gap) else None,
                "ratio_to_one_release": self.ratio_to_one_release,
                **self.instalments.to_dict(self.cost)}  # fmt: skip

    @property
    def ratio_to_one_release(self) -> float:
        """Root mean square error relative to one release at the summed budget."""
        one, whole = self.target or self.plan, self.instalments.budget(self.problem.budget)
        return self._rmse(whole) / (self.problem.rows_per_unit * one.rmse(whole.privacy_cost))

    def _rmse(self, budget: Budget) -> float:
        return self.pool.plan.rmse(self.pool.budget)

    def expected_errors(self, budget: Budget, most: int) -> list[Mapping[str, Any]]:
        pooled = FixedPlan(self.pool.plan, replace(self.problem, rows_per_unit=1))  # the variances are those of a unit
        return pooled.expected_errors(
            replace(budget, amount=self.pool.budget ** (0.5 if self.noise == LAPLACE else 1)), most
        )

    def cards(self, budget: Budget) -> list[tuple[str, str]]:
        cost, error, *others = super().cards(budget)
        ratio = "the root mean square error of one release at the summed privacy cost"
        own = [self.instalments.card(self.cost), (f"{self.ratio_to_one_release:.4g} ×", ratio)]
        return [cost, *own, error, *(others if self.target is None else [])]

    def write(self, folder: Path) -> None:
        super().write(folder)
        if self.target is not None:
            write_plan(folder / TARGET, self.target)

    def evidence(self, taken: Sequence[tuple[AllBlocks, Sequence[Floats]]]) -> PlanEvidence:
        """Return the pooled values of all releases, which are read on access."""
        (_, values), *_ = taken
        return self.pool.evidence(self.earlier.read, values.__getitem__)


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
    check_poolable(earlier.plan.blocks, target.blocks)
    blocks, budget = target.blocks, problem.budget.amount
    costs = make_schedule(target, budget, problem.rows_per_unit).draws.variances * blocks.share * budget
    known = {names: variance for names, variance in zip(earlier.plan.blocks.sets, earlier.variances, strict=True)}
    variances = np.array([known.get(names, math.inf) for names in blocks.sets])
    amounts = budget * water_fill(blocks.share**2, np.ones(len(blocks)), costs / variances / budget)
    places = np.flatnonzero(amounts > LEAST * budget)
    taken = blocks.take(places)
    shares = amounts[places] / amounts[places].sum()
    measured = Blocks(taken.sets, taken.strategies, taken.which, shares, taken.whole, taken.noise)
    made = Plan(target.workload, target.mechanism, measured, target.error, 0.0, target.notes)
    new = make_schedule(made, budget, problem.rows_per_unit).draws.variances
    pool = pool_residual_plans(earlier.plan, earlier.variances, made, new)

    return replace(made, error=pool.plan.error / pool.budget * budget / problem.rows_per_unit**2)


def refined_plan(
    plan: FixedPlan, earlier: PlanEvidence, instalments: Instalments, target: Plan | None = None
) -> RefinedPlan:
    """Return a fixed plan as one that refines earlier releases.

    Raises
    ------
    PlanError
        If the releases have the same plan according to `target` but other blocks.
    """
    if target is None and not _same_blocks(earlier.plan.blocks, plan.plan.blocks):
        raise PlanError("plan", "other measurements than those of the earlier releases", "the same plan", "start again")
    return RefinedPlan(plan.plan, plan.problem, earlier=earlier, instalments=instalments, target=target)


def _same_blocks(one: Blocks, other: Blocks) -> bool:
    """Return whether blocks measure the same strategies on the same sets."""
    strategies = [[[factor.digest for factor in strategy] for strategy in blocks.strategies] for blocks in (one, other)]
    same = [np.array_equal(a, b) for a, b in ((one.sets.members, other.sets.members), (one.sets.ends, other.sets.ends),
                                              (one.which, other.which), (one.whole, other.whole))]  # fmt: skip
    return all(same) and strategies[0] == strategies[1]


VALUES, VARIANCES, PLAN_FILES = "values.npy", "variances.npy", (PLAN, FACTORS, BLOCKS)


class FixedPooling:
    """Pooling of releases with fixed plans.

        plan.json, factors.npz, blocks.npz, values.npy, variances.npy      target/plan.json, …

    The first files have the pooled values and the blocks that they estimate. `target` is the plan of one release at the
    summed budget.
    """

    OTHER_WORKLOADS = True

    def accepts(self, plan: MeasurementPlan) -> bool:
        """Return whether the values of a plan can be pooled."""
        return isinstance(plan, FixedPlan)

    def pack(self, evidence: Evidence, workload: Workload, costs: Instalments, plan: Path | None) -> dict[str, bytes]:
        """Return files of the values of all releases so far; see `Pooling.pack`."""
        assert isinstance(evidence, PlanEvidence)
        own = evidence.plan
        packed = Plan(workload, own.mechanism, own.blocks, own.error, 0.0, own.notes)
        values = np.concatenate([np.asarray(evidence.read(index)).reshape(-1) for index in range(len(own.blocks))])

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_plan(folder, packed)
            np.save(folder / VALUES, values)
            np.save(folder / VARIANCES, np.asarray(evidence.variances))
            files = {one: (folder / one).read_bytes() for one in (*PLAN_FILES, VALUES, VARIANCES)}

        if plan is not None:
            source = plan / TARGET if present(plan / TARGET / PLAN) else plan
            files |= {f"{TARGET}/{one}": read_bytes(source / one) for one in PLAN_FILES}

        return files

    def plan(
        self,
        folder: Path,
        problem: PlanningProblem,
        costs: Instalments,
        completes: bool,
        make: Callable[[], MeasurementPlan],
    ) -> RefinedPlan:
        """Return the plan of the next release: the target again, or what completes the earlier ones to it."""
        earlier = read_evidence(folder, problem.workload)
        target = _read_target(folder, problem.workload) or make().public_plan
        if not isinstance(target, Plan):
            raise PlanError("mechanism", "a plan that is not fixed", "a mechanism with a fixed plan", "use another one")
        if not completes:
            return refined_plan(FixedPlan(target, problem), earlier, costs)
        return refined_plan(FixedPlan(completing_plan(target, problem, earlier), problem), earlier, costs, target)

    def read(self, plan: MeasurementPlan, stored: Path, folder: Path, costs: Instalments) -> RefinedPlan:
        """Return a stored plan as one that pools the values in `folder`."""
        assert isinstance(plan, FixedPlan)
        return refined_plan(plan, read_evidence(folder, plan.workload), costs, _read_target(stored, plan.workload))


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
    if is_local(path):
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    with reading(path) as file:
        return np.asarray(np.load(file, allow_pickle=False))


def _read_target(folder: Path, workload: Workload) -> Plan | None:
    return read_plan(folder / TARGET, workload) if present(folder / TARGET / PLAN) else None


FIXED_POOLING = FixedPooling()


FORMS = ("least_squares", "low_order", "measurements", "residuals")


def matrix_mechanism(
    name: str,
    options: type[Settings],
    plan: Callable[[PlanningProblem, Any, Tools], Plan],
    version: str = "1",
    resumes: frozenset[str] = frozenset(),
    seconds: Callable[[PlanningProblem, Any], float] = seconds_of_sets,
) -> Mechanism:
    """Return the mechanism of a function that plans blocks; see `Mechanism` for version, resumes and seconds."""
    return Mechanism(
        name,
        options,
        lambda problem, given, tools: FixedPlan(plan(problem, given, tools), problem),
        lambda folder, problem, given: FixedPlan(read_plan(folder, problem.workload), problem),
        lambda given: FORMS,
        version=version,
        resumes=resumes,
        aliases={"grem": "least-squares"},  # GReM-MLE of a plan; not GReM-LNN, its option
        seconds=seconds,
        pooling=FIXED_POOLING,
    )


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
    given = Blocks.of(workload.domain.axis_names, blocks)
    error = accuracy_of(workload.domain, given).total_error(workload)
    return Plan(workload, name, given, error, min(bound * variance_factor(given[0].noise), error), notes)


def check_cells(blocks: Iterable[Block], tools: Tools, name: str) -> None:
    """Raise PlanError if a block needs a marginal with more cells than the memory setting allows."""
    for block in blocks:
        cells = math.prod(math.prod(factor.shape) for factor in block.factors)
        if cells > tools.most_cells:
            raise PlanError(
                "engine.memory",
                f"a marginal of {cells} cells ({', '.join(block.attributes)}) for {name}",
                f"at most {tools.most_cells} cells under the memory setting",
                "increase it, use fewer attributes, or set mechanism query-smasher",
            )
