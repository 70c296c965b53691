"""The job of one table among several: at its share of the budget, for units of the rows that come with a root's row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpscale.base.errors import JobError
from dpscale.job import Job
from dpscale.multitable.job import DatabaseJob, LinkSection
from dpscale.multitable.whom import Whom

DEGREE = 3


def table_job(job: DatabaseJob, protects: Whom, name: str, folder: Path) -> Job:
    """The job of one table, at its share of the budget."""
    one, steps = job.tables[name], protects.steps[name]
    budget = job.privacy.budget.amount * job.shares[f"tables.{name}"] / steps**2
    degree = min(DEGREE, len(job.domains[name].names))
    workload = [part.model_dump(exclude_none=True) for part in one.workload or []]
    content = {
        "data": {"path": one.path, "domain": one.domain, **one.said, **_unit(job, protects, name)},
        "privacy": {"privacy_cost": budget, "ledger": job.privacy.ledger, "dataset": job.dataset, "careless": True},
        "workload": workload or [{"family": "marginal", "degree": degree}],
        "mechanism": {"name": one.mechanism, **one.given},
        "engine": job.engine.model_dump(exclude_none=True),
        "synthesize": {"types": job.synthesize.types} | ({"rows": one.rows} if one.rows else {}),
    }
    return Job.parse(content, folder)


def _unit(job: DatabaseJob, whom: Whom, name: str) -> dict[str, Any]:
    """Whose rows are bounded in a table: a row's own key, or the row of the root that it comes with."""
    link = whom.above.get(name)
    columns, bound = (job.key(name), 1) if link is None else (job.ends(link)[0], whom.rows[name])
    if len(columns) > 1:
        raise JobError(f"tables.{name}.key", f"{len(columns)} columns for a private table", "one column",
                       "make one of them")  # fmt: skip
    hops = _hops(job, whom, link)
    drops = hops or "drop" in (job.tables[name].nulls, *((link.nulls, link.dangling) if link else ()))
    extra: dict[str, Any] = {"unit_through": hops} if hops else {}
    extra |= {"unit_nulls": "drop"} if drops else {}
    return {"privacy_unit": columns[0], "max_rows_per_unit": bound, **extra} if columns else {}


def _hops(job: DatabaseJob, whom: Whom, link: LinkSection | None) -> list[dict[str, Any]]:
    """The tables between a child and the root."""
    hops = []
    while link is not None and (above := whom.above.get(link.parent)) is not None:
        key, unit = job.key(link.parent)[0], job.ends(above)[0][0]
        table = job.tables[link.parent]
        hops.append({"path": table.path, "key": key, "unit": unit, **table.said})
        link = above
    return hops
