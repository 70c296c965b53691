"""Data-independent strategies: one module a method, each returning the same kind of Plan.

A method is a function `(workload, setting) -> Plan` in METHODS. `setting.each(function, items)` maps over independent
problems: the builtin `map` in a plain loop, Dask tasks when the engine plans.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpscale.blas import one_thread
from dpscale.errors import JobError
from dpscale.mechanisms.auto import best_plan
from dpscale.mechanisms.baseline import plan_baseline
from dpscale.mechanisms.eigen_design import plan_eigen_design
from dpscale.mechanisms.hdmm import plan_hdmm
from dpscale.mechanisms.identity import plan_identity
from dpscale.mechanisms.query_smasher import plan_query_smasher
from dpscale.mechanisms.residual_planner import plan_residual_planner
from dpscale.mechanisms.residual_planner_plus import plan_residual_planner_plus
from dpscale.mechanisms.setting import MOST_CELLS, Each, Setting
from dpscale.mechanisms.weighted_fourier import plan_weighted_fourier
from dpscale.names import nearest
from dpscale.plans.allocation import GAUSSIAN, LAPLACE
from dpscale.plans.block import Block
from dpscale.plans.plan import Plan
from dpscale.solve.store import user_store
from dpscale.workload import Workload

METHODS: dict[str, Callable[[Workload, Setting], Plan]] = {
    "query-smasher": plan_query_smasher,
    "residual-planner": plan_residual_planner,
    "residual-planner-plus": plan_residual_planner_plus,
    "weighted-fourier": plan_weighted_fourier,
    "hdmm": plan_hdmm,
    "eigen-design": plan_eigen_design,
    "identity": plan_identity,
    "baseline": plan_baseline,
}

AUTO, ADAPTIVE = "auto", ("aim-grem",)

__all__ = ["ADAPTIVE", "AUTO", "METHODS", "Block", "Plan", "Setting", "choose", "plan", "user_store"]


def plan(
    workload: Workload,
    mechanism: str = "query-smasher",
    each: Each = map,
    noise: str = GAUSSIAN,
    most_cells: int = MOST_CELLS,
    **options: Any,
) -> Plan:
    """Plan a workload with a mechanism and its options; reads no data and spends nothing.

    `noise`: "gaussian", or "laplace" for pure ε-DP (where "privacy cost" means ε²: `dpscale.plans.allocation`).
    `most_cells`: of a marginal that may be counted and held.
    Raises JobError for an unknown mechanism or option or an empty workload, PlanError where the mechanism cannot take
    it. What was solved before on this machine is taken from the store (`dpscale.solve.store`).
    """
    return choose(workload, mechanism, Setting(each, options, user_store(), noise, most_cells))


def choose(workload: Workload, mechanism: str, setting: Setting) -> Plan:
    """The same with all else in a setting: for job files, whose options may have any name."""
    known = [*METHODS, AUTO]
    if mechanism in ADAPTIVE:
        raise JobError("mechanism.name", f"{mechanism!r}, which chooses what to measure as it goes",
                       "a mechanism that plans beforehand", "run it as a job: dp.run or `dpscale run`")  # fmt: skip
    if mechanism not in known:
        raise JobError("mechanism.name", f"{mechanism!r}", ", ".join([*known, *ADAPTIVE]),
                       nearest(mechanism, [*known, *ADAPTIVE]))  # fmt: skip
    if setting.noise not in (GAUSSIAN, LAPLACE):
        raise JobError("noise", f"{setting.noise!r}", f"{GAUSSIAN} or {LAPLACE}", "mend it, or leave it out")
    if workload.query_count == 0:
        raise JobError("workload", "no queries", "at least one query", "add a [[workload]] table")
    if not workload.weighs:
        raise JobError("workload.weight", "0 for every query that is not all zeros", "a weight above 0",
                       "weigh what should be answered")  # fmt: skip
    with one_thread():
        if mechanism != AUTO:
            return METHODS[mechanism](workload, setting)
        return best_plan({name: method for name, method in METHODS.items() if name != "baseline"}, workload, setting)
