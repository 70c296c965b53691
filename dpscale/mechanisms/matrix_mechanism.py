"""Matrix mechanisms: a function that plans blocks becomes a mechanism whose plan is fixed before any data are read."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpscale.base.errors import PlanError
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
    EarlierBlocks,
    completing_plan,
    missing_budget,
    pack,
    read_earlier,
    read_evidence,
    read_target,
)
from dpscale.mechanisms.fixed_plan import FixedPlan
from dpscale.mechanisms.largest_error import USUAL_ROUNDS, least_largest
from dpscale.optimize.long_axis import rooted_weights
from dpscale.plans.accuracy import accuracy_of
from dpscale.plans.blocks import Block, Blocks
from dpscale.plans.plan import Plan, read_plan
from dpscale.privacy.draws import variance_factor
from dpscale.workload import Family, Workload
from dpscale.workload.merging import MergedCells, merge_cells
from dpscale.workload.residual import Weights
from dpscale.workload.wide import is_wide


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
