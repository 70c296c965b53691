"""Section of the report on joins: base, bound, error and the share of rows that the bound cuts. It reads no record."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.answers.statistics import Estimate, TooFewRecords
from dpscale.answers.unit_counts import CUT_JOIN, excess_of, share_beyond
from dpscale.job.join_job import cut_share
from dpscale.job.joins import split_name
from dpscale.job.sections import CUT
from dpscale.runs.estimates import estimates_of, number_of_rows

if TYPE_CHECKING:
    from dpscale.runs.linked_tables import LinkedTables

TEMPLATE = files("dpscale.runs.joins").joinpath("section-joins.html").read_text("utf-8")
LEVEL = 0.95  # confidence level of the share that a bound cuts


def values(run: LinkedTables) -> dict[str, Callable[[], Any]]:
    """Return a function for each value of the template."""
    return {"joins": lambda: [_context(run, name, one) for name, one in run.joins.items() if name != CUT_JOIN]}


def _context(run: LinkedTables, name: str, part: Any) -> dict[str, Any]:
    """Return the row of a join in the table of joins.

    Returns
    -------
    dict
        name, base, tables; share of the budget; bound: rows of a unit; sets: their number; rows and error: estimated
        number of rows and its standard error; cut: share beyond the bound, or None; parents: for counted children the
        number of parents with more than the bound, and its standard error.
    """
    join, estimates = run.job.joined[name], estimates_of(part)
    rows, error = number_of_rows(estimates)
    tables = dict.fromkeys(split_name(name)[0] for name in part.domain.axis_names)
    beyond_bound = [name for name in part.domain.names if split_name(name)[1] == CUT and join.counted]
    return {
        "name": name,
        "base": join.base,
        "tables": ", ".join(tables),
        "share": run.job.shares[f"joins.{name}"] * (1 - cut_share(run.job, run.neighbours, name)),
        "bound": part.job.data.max_rows_per_unit or 1,
        "rows": rows,
        "error": error,
        "sets": len(part.workload.sets),
        "cut": _cut(run, name, (rows, error)),
        # cell 1 of such an attribute counts the parents with more children than the bound
        "parents": [(name, *estimates.answer([name], np.array([0.0, 1.0]))) for name in beyond_bound],
    }


def _cut(run: LinkedTables, name: str, rows: tuple[float, float]) -> Estimate | None:
    """Return the share of the rows that is cut and its interval; None if it was not measured or has no interval.

    `rows` is the number of rows of the join with its standard error. CUT_JOIN measures the excess: the rows beyond the
    bound of a unit.
    """
    excess = excess_of(estimates_of(run.joins[CUT_JOIN]), name) if CUT_JOIN in run.joins else None
    if excess is None or np.isnan(rows[0]):
        return None
    try:
        return share_beyond(excess, rows, LEVEL)
    except TooFewRecords:
        return None
