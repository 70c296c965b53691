"""Numbers of synthetic rows of linked tables, from released values only, decided before any row is sampled.

The estimated sizes of two tables have noise of their own, but a parent has at most `max_degree` children. Estimates
that contradict this are adjusted together, by weighted least squares: the number of rows of a table per row of the root
decreases along a chain. What rounding and stated numbers leave over is cut where the rows of a child are sampled, after
those of its parents.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.job.protected_unit import pair_links
from dpscale.job.table_sizes import decreasing_sizes, least_rows, required_links, stated_rows
from dpscale.runs.estimates import estimates_of, low_order_tables
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.links.public_tables import public_tables
from dpscale.runs.stages.row_numbers import LIMITS
from dpscale.runs.table import TablePart
from dpscale.storage.files import read_text

MOVED = 1e-9  # relative difference of a size from its estimate above which it counts as adjusted


def describe_rows(table: TablePart) -> dict[str, Any]:
    """Return the description of a table's synthetic rows."""
    found: dict[str, Any] = json.loads(read_text(table.path / "synthetic" / "_rows.json"))
    return found


def record_limits(run: LinkedTables, name: str) -> None:
    """Record the limits of a table in its manifest, unless its rows are sampled.

    Parameters
    ----------
    run : LinkedTables
        All tables are measured, and those above this one have synthetic rows.
    name : str
    """
    table = run.tables[name]
    if not table.done("synthesize") and LIMITS not in table.manifest:
        if "joint_sizes" not in vars(run):
            vars(run)["joint_sizes"] = joint_sizes(run)
        sizes: dict[str, float] = vars(run)["joint_sizes"]
        table.update(**{LIMITS: {**row_limits(run, name), "estimate": sizes.get(name)}})


def row_limits(run: LinkedTables, name: str) -> dict[str, int | None]:
    """Return the least and the largest number of synthetic rows of a private table.

    A table whose every row has a parent has at most the parents' rows times the bound.

    Parameters
    ----------
    run : LinkedTables
        Its tables above this one have synthetic rows.
    name : str

    Returns
    -------
    dict
        `least` and `most`; `most` is None if its parents have no bound.
    """

    def rows(parent: str) -> int:
        public = run.job.tables[parent].public
        return len(public_tables(run)[parent][0]) if public else int(describe_rows(run.tables[parent])["rows"])

    others = [link for link in required_links(run.job, name) if link.parent != name]
    limits = [rows(link.parent) * link.bound for link in others]
    ends = pair_links(run.job, name)
    if ends:  # each pair of ends occurs once
        limits.append(math.prod(rows(link.parent) for link in ends))
    most = min(limits, default=None)
    least = least_rows(run.job, name)
    return {"least": least if most is None else min(least, most), "most": most}


def joint_sizes(run: LinkedTables) -> dict[str, float]:
    """Return the sizes of tables whose estimates contradict the bounds of their links, changed so that they agree.

    A child has at most `rows` rows for each row of the root, so sizes divided by `rows` must not increase from a table
    to its child; the closest such sizes are the result. A table is weighted by its cost: the variance of its estimated
    rows per row of the root is inversely proportional. Tables whose rows are stated are left out.
    """
    stated = {name for name in run.tables if stated_rows(run.job, name)}
    above = {name: link.parent for name, link in run.neighbours.above.items()
             if link.parent != name and not {name, link.parent} & stated}  # fmt: skip
    names = sorted({*above, *above.values()})
    rows = np.array([run.neighbours.rows[name] for name in names], dtype=np.float64)
    weights = {name: float(run.tables[name].measurement_plan.cost.squared_mu) for name in names}
    estimates = dict(zip(names, np.array([_total(run.tables[name]) for name in names]) / rows, strict=True))
    sizes = decreasing_sizes(estimates, weights, above)
    moved = {name for name in names if abs(sizes[name] - estimates[name]) > MOVED * max(abs(estimates[name]), 1.0)}
    return {name: sizes[name] * run.neighbours.rows[name] for name in sorted(moved)}


def _total(table: TablePart) -> float:
    """Return the estimated number of records of a table."""
    try:
        return float(np.asarray(estimates_of(table).marginal(())).sum())
    except PlanError:  # outside the span of the measurements
        return float(low_order_tables(table).total)
