"""Mechanisms: one module per name in the job file. A mechanism plans; it reads no data and spends no budget.

The table maps each name to its module, which is imported on first use.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dpscale.base.display import safe_repr
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import ParallelMap, one_thread, serial_map
from dpscale.base.plugins import all_names, distribution_of, load
from dpscale.base.settings import Settings, checked
from dpscale.mechanisms.contract import MOST_CELLS, Mechanism, PlanningProblem, Tools, too_extreme, user_store
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.plans.plan import Plan
from dpscale.privacy.accounting import GAUSSIAN, LAPLACE, Budget
from dpscale.workload import Workload

MECHANISMS = {
    "weighted-residuals": "dpscale.mechanisms.weighted_residuals",
    "query-smasher": "dpscale.mechanisms.query_smasher",
    "residual-planner": "dpscale.mechanisms.residual_planner",
    "residual-planner-plus": "dpscale.mechanisms.residual_planner_plus",
    "weighted-fourier": "dpscale.mechanisms.weighted_fourier",
    "hdmm": "dpscale.mechanisms.hdmm",
    "eigen-design": "dpscale.mechanisms.eigen_design",
    "identity": "dpscale.mechanisms.identity",
    "baseline": "dpscale.mechanisms.baseline",
    "auto": "dpscale.mechanisms.auto",
    "aim-grem": "dpscale.mechanisms.aim_grem",
    "aim-pgm": "dpscale.mechanisms.aim_pgm",
    "mst": "dpscale.mechanisms.mst",
}

GROUP = "dpscale.mechanisms"

# mechanisms with a role in other packages, which do not name them
DEFAULT, DEFAULT_OF_LINKED = "weighted-residuals", "aim-grem"  # of one table, and of a table of several
DEFAULT_OF_ROWS = DEFAULT_OF_LINKED  # of synthetic rows alone
COMPOSITE = "auto"  # the best of other mechanisms
FIXED_MARGINALS = "residual-planner"  # plans marginals of any size without a search
AUDITED = ("query-smasher", "residual-planner", "hdmm", "identity")  # one for each kind of block, the simplest last

__all__ = ["MECHANISMS", "Plan", "mechanism", "mechanism_names", "plan", "plan_problem"]


def mechanism_names() -> list[str]:
    """Return the names of all mechanisms, those of other distributions last."""
    return list(all_names(GROUP, MECHANISMS))


def mechanism(name: str) -> Mechanism:
    """Return the mechanism with a name in the table, or registered by another distribution.

    Raises
    ------
    JobError
        If the name is unknown.
    """
    named: Mechanism = load(GROUP, MECHANISMS, name, "MECHANISM", "mechanism.name")
    distribution = distribution_of(GROUP, MECHANISMS, name)
    return replace(named, distribution=distribution) if distribution else named


def plan(
    workload: Workload,
    mechanism: str = DEFAULT,
    each: ParallelMap = serial_map,
    noise: str = GAUSSIAN,
    most_cells: int = MOST_CELLS,
    **options: Any,
) -> Plan:
    """Plan a workload with a mechanism; reads no data and spends nothing.

    Problems that were solved before on this machine are read from the plan store (`dpscale.mechanisms.contract`).

    Parameters
    ----------
    workload : Workload
    mechanism : str
        Name in `MECHANISMS`.
    each : ParallelMap
        Map over independent problems.
    noise : {"gaussian", "laplace"}
        "laplace" gives pure ε-DP; the privacy cost is then ε² (`dpscale.privacy.draws`).
    most_cells : int
        Largest number of cells of a marginal that may be counted.
    **options
        Options of the mechanism.

    Returns
    -------
    Plan

    Raises
    ------
    JobError
        If the mechanism or an option is unknown, or the workload is empty.
    PlanError
        If the mechanism does not support the workload.
    """
    if not isinstance(workload, Workload):
        raise JobError("workload", safe_repr(workload), "a Workload", "plan a job file with `dpscale plan JOB.toml`,"
                       ' run it with dp.run(path), or write dp.Workload(domain).add("marginal", degree=2)')  # fmt: skip

    named = _data_independent(mechanism)
    if noise not in (GAUSSIAN, LAPLACE):
        raise JobError("noise", f"{noise!r}", f"{GAUSSIAN} or {LAPLACE}", "fix it, or leave it out")

    problem = PlanningProblem(workload, Budget(noise, 1.0))
    checked_options = checked(named.Options, options, "mechanism", mechanism)
    measurement_plan: Any = plan_problem(named, problem, checked_options, Tools(each, user_store(), most_cells))
    return measurement_plan.plan


def plan_problem(named: Mechanism, problem: PlanningProblem, options: Settings, tools: Tools) -> MeasurementPlan:
    """Return the measurement plan of a mechanism for a problem; the workload must have queries of positive weight.

    Raises
    ------
    JobError
        If the workload has no queries or no positive weight.
    PlanError
        If the mechanism does not support the workload, memory is insufficient, or the numbers are too extreme.
    """
    if named.data_independent:
        problem.workload.check_subsets()
    if problem.workload.query_count == 0:
        raise JobError("workload", "no queries", "at least one query", "add a [[workload]] table")
    weights = [weight for part in problem.workload.parts for weight in part.set_weights]
    if not problem.workload.weighs and problem.workload.domain.discovered and max(weights) > 0:
        raise JobError("workload", "conditions that no cell of a searched attribute satisfies, so every count is 0",
                       "a condition that such a cell satisfies, or the counts of all cells",
                       "read the cells in domain/domain.toml of the run; only the search was charged")  # fmt: skip
    if not problem.workload.weighs:
        raise JobError("workload.weight", "0 for every query that is not all zeros", "a weight above 0",
                       "give a weight above 0 to the queries to answer")  # fmt: skip
    if problem.workload.numbers and not named.data_independent:
        numbers = ", ".join(problem.workload.numbers)
        raise PlanError("workload.of", f"sums or means of {numbers} by {named.name}",
                        "a mechanism with a fixed plan", f"use {DEFAULT}, or ask for counts only")  # fmt: skip

    try:
        with one_thread():
            return named.plan(problem, options, tools)
    except MemoryError:
        raise PlanError("workload", "strategies that do not fit into memory",
                        "strategies within the memory of this machine",
                        "coarsen the widest attributes, or use sets of fewer attributes") from None  # fmt: skip
    except np.linalg.LinAlgError:
        raise too_extreme() from None


def _data_independent(name: str) -> Mechanism:
    """Return a mechanism. Raises JobError for one whose measurements depend on earlier noisy values."""
    named = mechanism(name)
    if not named.data_independent:
        raise JobError("mechanism.name", f"{name!r}, which selects measurements during the run",
                       "a mechanism with a fixed plan", "run it as a job: dp.run or `dpscale run`")  # fmt: skip
    return named
