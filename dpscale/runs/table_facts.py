"""Public facts of a table that bound the effect of a unit on its draws: a contribution bound, and cells of attributes.

A record counts once in every marginal, or in parts of 1/R along a number with R steps. So the k rows of a unit change
the counts by at most k in L1, which is also their largest change in L2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpscale.contributions.joins import REACH
from dpscale.domain.number import TOTAL, Number
from dpscale.plans.factor_fields import packed
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.privacy.accounting import LAPLACE
from dpscale.runs.statement import Facts, bound_of, domain_name
from dpscale.workload.merging import MergedCells

ROWS, UNITS, CUT = "rows", "units", "cut"  # names of bounds; the last two are counts of draws of units
SENSITIVITY = "largest column norms of integer matrices, exactly: strategies.json"


def table_facts(table: Any, plan: MeasurementPlan, rows: int) -> Facts:
    """Return the facts of a table.

    Parameters
    ----------
    table : TablePart
    plan : MeasurementPlan
        Plan of the measurements.
    rows : int
        Largest number of rows of a unit that are counted.

    Returns
    -------
    dict
        For JSON.
    """
    bounded = table.job.data.max_rows_per_unit
    contribution = f"at most {bounded} of its rows are counted" if bounded else "one row"
    twice = f"; neighbours of the release are {table.steps} steps apart" if table.steps > 1 else ""
    delta = {"delta": str(plan.cost.delta)} if plan.cost.delta else {}
    searches = _searches(table)
    return {
        "axes": _axes(table.domain, None if plan.evidence_plan is None else plan.evidence_plan.blocks.merged),
        "bounds": {ROWS: bound_of((1, rows)), **_unit_bounds(table, rows), **_vote_bounds(searches)},
        "contribution": contribution + twice,
        "domain": domain_name(table.name, table.folder),
        "law": "laplace" if table.job.privacy.noise == LAPLACE else "gaussian",
        "mechanism": plan.mechanism,
        "post_processing": f"{table.job.reconstruction.name}: from released values alone",
        "sensitivity": SENSITIVITY,
        "steps": table.steps,
        "thresholds": sum("threshold" in one for one in searches),
        **delta,
    }


def votes_on(attribute: str) -> str:
    """Return the name of the bound of votes for the values of an attribute."""
    return f"votes on {attribute}"


def _unit_bounds(table: Any, rows: int) -> dict[str, Facts]:
    """Return by how much a unit of at most `rows` counted rows changes the draws of units; none without such draws.

    A pair of `bound_of` is (number of counts, largest change of each). UNITS are numbers of distinct units by cells: a
    unit adds 1 to the cell of each of its rows. CUT is the number of rows beyond the bound.
    """
    if not table.requests("unit_counts"):
        return {}
    # rows of a unit are counted up to REACH · rows; the first `rows` of them are within the bound
    return {UNITS: bound_of((rows, 1)), CUT: bound_of((1, (REACH - 1) * rows))}


def _searches(table: Any) -> list[dict[str, Any]]:
    """Return the records of the searches for cells that are not public."""
    if not table.requests("discovery"):
        return []
    records: list[dict[str, Any]]
    _, records = table.stages["discover"].function("terms")(table)
    return records


def _vote_bounds(searches: Sequence[dict[str, Any]]) -> dict[str, Facts]:
    """Return the bounds of votes, whose squares sum to at most that of the vote of a unit with one value."""
    return {votes_on(one["attribute"]): bound_of((1, int(one["vote"]))) for one in searches if "vote" in one}


def _axes(domain: Any, merged: MergedCells | None) -> dict[str, Facts]:
    """Return the cells of attributes and numbers, the parts of a record, and the rows over which a total is bounded.

    An attribute whose cells are summed over classes before they are measured has the class of each cell.
    """
    axes = dict[str, Facts]()
    for name in domain.axis_names:
        axis = domain[name]
        axes[name] = {"cells": axis.size}
        if isinstance(axis, Number):
            axes[name]["parts"] = axis.denominator
            if axis.per_unit == TOTAL:
                axes[name]["total_of"] = axis.rows_per_unit
        if merged is not None and name in merged.classes:
            axes[name]["classes"] = packed(merged.classes[name])
    return axes
