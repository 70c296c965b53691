"""Matrix mechanisms: a function that plans blocks becomes a mechanism whose plan is fixed before any data are read.

The measurement plan has a `Plan` that fixes all measurements in one decision without selection.
"""

from __future__ import annotations

import math
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
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.base.settings import Settings
from dpscale.mechanisms.contract import (
    Instalments,
    Mechanism,
    PlanningProblem,
    Pooling,
    Tools,
    seconds_of_sets,
)
from dpscale.mechanisms.earlier_blocks import (
    TARGET,
    EarlierBlocks,
    PooledBlocks,
    completing_plan,
    missing_budget,
    pack,
    read_earlier,
    read_evidence,
    read_target,
)
from dpscale.mechanisms.largest_error import USUAL_ROUNDS, least_largest
from dpscale.optimize.long_axis import rooted_weights
from dpscale.plans.accuracy import accuracy_of
from dpscale.plans.blocks import Block, Blocks
from dpscale.plans.measurement_plan import BlockRequests, Draws, plan_draws
from dpscale.plans.plan import Plan, content_of, digest_of, read_plan, write_plan
from dpscale.privacy.accounting import LAPLACE, Budget, Cost
from dpscale.privacy.draws import variance_factor
from dpscale.reconstruction.base import PlanEvidence
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.guessed import NO_SHARES, GuessedValues, Shares
from dpscale.workload import Family, Workload, WorkloadPart
from dpscale.workload.merging import MergedCells, merge_cells
from dpscale.workload.residual import Weights
from dpscale.workload.wide import is_wide

GROUP = 1000  # records of a group whose mean's error is stated


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
    plan: Callable[[PlanningProblem, Any, Tools], Plan], problem: PlanningProblem, given: Any, tools: Tools
) -> Plan:
    """Return the plan of a problem, made on the classes of cells that its queries distinguish.

    The plan is made on a domain whose cells are the classes; its blocks record the classes (`merging`).
    """
    merged_problem, merged = _on_classes(problem)
    made = plan(merged_problem, given, tools)
    if merged is None:
        return made
    blocks, notes = made.blocks.merging(merged), (*made.notes, merged.note)
    return replace(made, workload=problem.workload, blocks=blocks, notes=notes)


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
    return Plan(
        workload=workload,
        mechanism=name,
        blocks=given,
        error=error,
        bound=min(bound * variance_factor(given[0].noise), error),
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
    found = {name: rooted_weights(asked[name], size, len(asked) == 1) for name, size in sizes.items()}
    return {name: weights for name, weights in found.items() if weights is not None}


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
