"""The plan stage: what will be measured and what it will cost. It reads no data and spends nothing."""

from __future__ import annotations

from dpscale.domain import Domain
from dpscale.engine import Engine
from dpscale.engine.counting import FACTOR
from dpscale.errors import PlanError
from dpscale.job import Job
from dpscale.mechanisms import Plan, Setting, choose, user_store
from dpscale.plans.planfile import AnyPlan, write_plan
from dpscale.reconstruct.from_estimates import told_whole
from dpscale.runs.run import RunDirectory
from dpscale.stages.memory import check_room
from dpscale.stages.methods import is_adaptive, method_of, plan_of


def run_plan(run: RunDirectory, engine: Engine) -> None:
    """Choose the strategy; reads no data, spends nothing."""
    if run.done("plan"):
        return
    with run.stage("plan", "plan"):
        write_plan(run.path / "plan", make_plan(run.job, run.domain, engine))


def make_plan(job: Job, domain: Domain, engine: Engine) -> AnyPlan:
    """The plan of a job, refused where it cannot fit the memory setting."""
    method = method_of(job)
    made = plan_of(job, domain) if is_adaptive(job) else _chosen(job, domain, engine)
    check_room(made, job, engine)
    if method == "maxent" and isinstance(made, Plan):
        told_whole(made)
    if job.reconstruct.agree:
        _check_agreement(made, job.engine.bytes)
    return made


def _check_agreement(made: AnyPlan, memory: int) -> None:
    """PlanError where the targets, held together with one copy of them, do not fit the memory setting."""
    needed = 16 * sum(made.domain.cells(names) for names in made.workload.sets)
    if needed > memory:
        raise PlanError("reconstruct.agree", f"targets that need {needed / 2**30:.2f} GiB together",
                        f"the {memory / 2**30:.2f} GiB of engine.memory", "raise it, or leave agree out")  # fmt: skip


def _chosen(job: Job, domain: Domain, engine: Engine) -> Plan:
    most = job.engine.bytes // (8 * (engine.workers + FACTOR))
    setting = Setting(engine.each("solve"), job.mechanism.options, user_store(), job.privacy.noise, most)
    return choose(job.build_workload(domain), job.mechanism.name, setting)
