"""The plan stage: choice of the measurements and their cost. It reads no data and spends nothing."""

from __future__ import annotations

from dpscale.engine import Engine
from dpscale.engine.counting import FACTOR
from dpscale.job import Job
from dpscale.mechanisms import plan_problem
from dpscale.mechanisms.contract import PlanningProblem, Tools
from dpscale.optimize.plan_store import user_store
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.runs.run import Run
from dpscale.runs.stages.plan_cache import plan_once
from dpscale.runs.stages.preflight import check_memory


def perform(run: Run, engine: Engine) -> None:
    """Plan the measurements and write the plan."""
    run.write_plan(make_plan(run.job, run.planning_problem, engine))


def most_cells(job: Job, engine: Engine) -> int:
    """Return the largest number of cells of a marginal that can be counted in memory."""
    return job.engine.bytes // (8 * (engine.workers + FACTOR))


def make_plan(job: Job, problem: PlanningProblem, engine: Engine) -> MeasurementPlan:
    """Return the plan of a job; raise PlanError if it does not fit the memory or the requested reconstruction."""
    most = most_cells(job, engine)
    tools = Tools(engine.each("solve"), user_store(), most)
    planned = plan_once(job, problem, most, lambda named: plan_problem(named, problem, job.options, tools))
    check_memory(planned, job, engine)
    job.reconstruction.check(planned, job.estimating, job.engine.bytes)
    if job.synthesize is not None:
        planned.check_low_order()
    return planned
