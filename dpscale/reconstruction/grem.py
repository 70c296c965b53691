"""GReM (AIM+GReM, algorithm 3; Mullins et al., 2024): sums of residuals, uniform where nothing was measured.

GReM-MLE is the estimate that AIM+GReM uses between rounds. With `non_negative` its marginals have no negative cell
(GReM-LNN): the residuals nearest in the metric of their noise whose sums over the requested sets are non-negative.
"""

from __future__ import annotations

from pathlib import Path

from dpscale.base.display import format_bytes
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, ParallelMap, one_thread
from dpscale.base.settings import setting
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.reconstruction.base import BasicOptions, Estimates, Evidence, Reconstruction, check_no_trees
from dpscale.reconstruction.model_answers import NO_ERRORS, RESIDUALS, ModelEstimates, read_residuals, write_residuals
from dpscale.workload.residual import non_negative, subsets

BYTES = 64  # per cell of a requested marginal: the cell, its bound, its multiplier and temporary arrays
EVEN = 1e-9  # relative range of axis weights up to which the mean counts as plain
BIASED = "No standard errors are available: the constraint makes them depend on the true counts."


class Options(BasicOptions):
    """Options of GReM."""

    non_negative: bool = setting(
        False, "true or false", "true: no negative estimated cell in requested sets (GReM-LNN)"
    )


def check(measurement_plan: MeasurementPlan, options: Options, memory: int) -> None:
    """Raise PlanError if the requested marginals cannot be made non-negative, or not within the memory.

    The method (`non_negative`) has all requested marginals in memory, spreads residuals evenly over the cells of a
    marginal, and reads a value of every cell of a measured residual. It does not know levels of hierarchies.
    """
    if not options.non_negative:
        return

    check_no_trees(measurement_plan, "reconstruct.non_negative", "true")
    workload, plan = measurement_plan.workload, measurement_plan.evidence_plan
    requested = [names for names in workload.sets if names]
    needed = BYTES * sum(workload.domain.cells(names) for names in requested)
    if needed > memory:
        raise PlanError("reconstruct.non_negative", f"marginals that need {format_bytes(needed)} together",
                        f"the {format_bytes(memory)} of engine.memory", "raise it, or use maxent")  # fmt: skip
    if plan is None:  # an adaptive mechanism: residuals that are not measured are free
        return

    # with weighted means, a residual would be spread by the weights, and `non_negative` spreads it evenly
    profiles = plan.accuracy.profiles
    weighted = [name for name, profile in profiles.items() if profile.max() - profile.min() > EVEN * profile.max()]
    if weighted:
        raise PlanError("reconstruct.non_negative", f"true for a plan of {plan.mechanism} with weighted means of "
                        f"{', '.join(weighted[:3])}", "a plan of plain means",
                        "use maxent, or mechanism residual-planner or query-smasher")  # fmt: skip

    # a residual with cells outside the span of the queries has no value there, and its precision is not one number
    complete = set(plan.accuracy.complete_sets())
    for names in requested:
        if not complete.issuperset(subsets(names)):
            raise PlanError("reconstruct.non_negative", f"true, but {', '.join(names)} is not measured completely",
                            "a workload whose sets have every cell in the span of their queries",
                            "add a marginal over these attributes, or use least-squares")  # fmt: skip


def prepare(evidence: Evidence, options: Options, folder: Path, release: str, each: ParallelMap) -> None:
    """Compute non-negative residuals once, since they need an optimization, for the tasks that answer from them."""
    if options.non_negative and not (folder / RESIDUALS).exists():
        with one_thread():
            write_residuals(folder / RESIDUALS, non_negative(evidence.residuals(), _requested_sets(evidence)))


def estimates(evidence: Evidence, options: Options, folder: Path) -> Estimates:
    """Return estimates, without errors, of every set that was measured or lies inside a measured one."""
    residuals = evidence.residuals()
    if options.non_negative:
        stored = (folder / RESIDUALS).exists()
        residuals = read_residuals(folder / RESIDUALS) if stored else non_negative(residuals, _requested_sets(evidence))
    return ModelEstimates(evidence, residuals, tuple(residuals.sizes))


def _requested_sets(evidence: Evidence) -> list[AttributeSet]:
    return [names for names in evidence.workload.sets if names]


def explain(options: Options) -> str:
    """Return the explanation of these estimates for readers."""
    if options.non_negative:
        return f"Estimates are from GReM with local non-negativity: no requested marginal has a negative cell. {BIASED}"
    return f"Estimates are from GReM: residuals that were not measured are uniform. {NO_ERRORS}"


RECONSTRUCTION = Reconstruction(
    name="grem", Options=Options, form="residuals", explain=explain, estimates=estimates, check=check, prepare=prepare
)
