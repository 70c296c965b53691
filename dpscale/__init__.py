"""dpscale: differentially private answers to very large workloads of counting queries, on Dask."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpscale import privacy
    from dpscale.database.release import DatabaseRelease
    from dpscale.domain import Attribute, Domain
    from dpscale.errors import (
        BudgetError,
        DataError,
        DomainError,
        DpscaleError,
        JobError,
        PlanError,
        ReportError,
        TransientError,
    )
    from dpscale.mechanisms import Plan, plan
    from dpscale.public import run
    from dpscale.release import Release
    from dpscale.tables import Table, count_marginals
    from dpscale.workload import Workload

_HOMES = {
    "Attribute": "dpscale.domain",
    "BudgetError": "dpscale.errors",
    "DataError": "dpscale.errors",
    "DatabaseRelease": "dpscale.database.release",
    "Domain": "dpscale.domain",
    "DomainError": "dpscale.errors",
    "DpscaleError": "dpscale.errors",
    "JobError": "dpscale.errors",
    "Plan": "dpscale.plans.plan",
    "PlanError": "dpscale.errors",
    "Release": "dpscale.release",
    "ReportError": "dpscale.errors",
    "Table": "dpscale.tables",
    "TransientError": "dpscale.errors",
    "Workload": "dpscale.workload",
    "count_marginals": "dpscale.tables",
    "plan": "dpscale.mechanisms",
    "run": "dpscale.public",
}

__all__ = [
    "Attribute",
    "BudgetError",
    "DataError",
    "DatabaseRelease",
    "Domain",
    "DomainError",
    "DpscaleError",
    "JobError",
    "Plan",
    "PlanError",
    "Release",
    "ReportError",
    "Table",
    "TransientError",
    "Workload",
    "count_marginals",
    "plan",
    "privacy",
    "run",
]


def __getattr__(name: str) -> Any:
    """Import a public name where it is first used, so that `import dpscale` loads nothing heavy."""
    if name == "privacy":
        return import_module("dpscale.privacy")
    if name not in _HOMES:
        raise AttributeError(f"module 'dpscale' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
