"""What follows from a job alone: whether it adapts, its plan then, and by which method its estimates are made."""

from __future__ import annotations

from dpscale.adaptive.plan import AdaptivePlan, adaptive_plan
from dpscale.domain import Domain
from dpscale.errors import JobError
from dpscale.job import Job
from dpscale.mechanisms import ADAPTIVE
from dpscale.plans.allocation import LAPLACE


def is_adaptive(job: Job) -> bool:
    return job.mechanism.name in ADAPTIVE


def plan_of(job: Job, domain: Domain) -> AdaptivePlan:
    """JobError for a budget or an option that its mechanism does not take."""
    if job.privacy.noise == LAPLACE:
        raise JobError("privacy", "epsilon alone (pure) for an adaptive mechanism", "epsilon with delta, or rho",
                       "add delta")  # fmt: skip
    rows = job.data.max_rows_per_unit or 1
    return adaptive_plan(job.build_workload(domain), job.mechanism.name, job.mechanism.options, job.privacy.zcdp, rows)


def method_of(job: Job) -> str:
    """maxent, grem or least-squares: the job's own, or the best that its mechanism has. JobError for what it lacks."""
    method = _method(job)
    asked = job.reconstruct
    if asked.errors == "simulated" and (method != "maxent" or not is_adaptive(job)):
        raise JobError("reconstruct.errors", f"'simulated' for {job.mechanism.name} by {method}",
                       "an adaptive mechanism by maxent", "leave it out")  # fmt: skip
    if asked.agree and method != "maxent":
        raise JobError("reconstruct.agree", f"true for estimates by {method}, which agree as they are",
                       "true with method maxent", "leave it out")  # fmt: skip
    return method


def _method(job: Job) -> str:
    asked = job.reconstruct.method
    if not is_adaptive(job):
        return "least-squares" if asked in ("auto", "grem") else asked  # GReM-MLE of a plan is its least squares
    published = bool(job.mechanism.options.get("published"))
    if asked == "least-squares" or (asked == "grem" and not published):
        raise JobError("reconstruct.method", f"{asked!r} for {job.mechanism.name} as it runs here",
                       "auto or maxent (grem with mechanism.published = true)", "leave it out")  # fmt: skip
    return asked if asked != "auto" else "grem" if published else "maxent"
