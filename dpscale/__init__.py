"""dpscale: differentially private answers to very large workloads of counting queries, on Dask."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpscale.base import VERSION

if TYPE_CHECKING:
    from dpscale import privacy
    from dpscale.answers.regression.fit import RegressionResult
    from dpscale.answers.statistics import Estimate
    from dpscale.api.planning import ReleasePlan, plan
    from dpscale.api.public import refine, run, sql, table
    from dpscale.api.release import Release
    from dpscale.api.session import Session
    from dpscale.api.synthesizer import Synthesizer
    from dpscale.base.errors import (
        BudgetError,
        DataError,
        DomainError,
        DpscaleError,
        InternalError,
        JobError,
        PlanError,
        ReportError,
        TransientError,
    )
    from dpscale.counting import count_marginals
    from dpscale.domain import Attribute, Domain
    from dpscale.domain.domain import bins, dates, number
    from dpscale.ledger.book import PublicLedger as Ledger
    from dpscale.mechanisms import Plan
    from dpscale.records import Table
    from dpscale.records.sketch import Sketch, sketch_domain
    from dpscale.workload import Workload

__version__ = VERSION

_HOMES = {
    "Attribute": "dpscale.domain",
    "BudgetError": "dpscale.base.errors",
    "DataError": "dpscale.base.errors",
    "Domain": "dpscale.domain",
    "DomainError": "dpscale.base.errors",
    "DpscaleError": "dpscale.base.errors",
    "Estimate": "dpscale.answers.statistics",
    "InternalError": "dpscale.base.errors",
    "JobError": "dpscale.base.errors",
    "Ledger": "dpscale.ledger.book:PublicLedger",
    "Plan": "dpscale.plans.plan",
    "PlanError": "dpscale.base.errors",
    "RegressionResult": "dpscale.answers.regression.fit",
    "Release": "dpscale.api.release",
    "ReportError": "dpscale.base.errors",
    "Synthesizer": "dpscale.api.synthesizer",
    "Table": "dpscale.records",
    "TransientError": "dpscale.base.errors",
    "Workload": "dpscale.workload",
    "count_marginals": "dpscale.counting",
    "ReleasePlan": "dpscale.api.planning",
    "bins": "dpscale.domain.domain",
    "dates": "dpscale.domain.domain",
    "number": "dpscale.domain.domain",
    "plan": "dpscale.api.planning",
    "refine": "dpscale.api.public",
    "run": "dpscale.api.public",
    "Session": "dpscale.api.session",
    "Sketch": "dpscale.records.sketch",
    "sketch_domain": "dpscale.records.sketch",
    "sql": "dpscale.api.public",
    "table": "dpscale.api.public",
}

__all__ = [
    "Attribute",
    "BudgetError",
    "DataError",
    "Domain",
    "DomainError",
    "DpscaleError",
    "Estimate",
    "InternalError",
    "JobError",
    "Ledger",
    "Plan",
    "PlanError",
    "RegressionResult",
    "Release",
    "ReleasePlan",
    "ReportError",
    "Session",
    "Sketch",
    "Synthesizer",
    "Table",
    "TransientError",
    "Workload",
    "bins",
    "count_marginals",
    "dates",
    "number",
    "plan",
    "privacy",
    "refine",
    "run",
    "sketch_domain",
    "sql",
    "table",
]


def __getattr__(name: str) -> Any:
    """Import a public name where it is first used, so that `import dpscale` loads nothing heavy."""
    if name == "privacy":
        return import_module("dpscale.privacy")
    if name not in _HOMES:
        raise AttributeError(f"module 'dpscale' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    value = getattr(import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
