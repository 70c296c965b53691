"""Growing tables in an evidence bundle: the draws of every released period, and their cost over the horizon.

All periods have the same draws: those of one table at a fraction of the budget. Their cost over the horizon is that of
one period times the factor of `plans.time_plan`. Answers are combinations of the drawn values and contain no draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from dpscale.base.errors import JobError
from dpscale.runs.manifest import check_output
from dpscale.runs.periods.growing import FOLDER, ROWS, GrowingPart
from dpscale.runs.run import Run

EventCounts = Counter[tuple[str, Fraction]]
ANSWERS = ("answers", "synthetic")  # folders of each kind of answers at a period


def measured_tables(run: Run) -> Mapping[str, Any]:
    """Return the runs whose draws a bundle lists: of tables and joins, or of the released periods of a growing table.

    Parameters
    ----------
    run : Run

    Returns
    -------
    mapping of str to TablePart
    """
    if (table := growing_table(run)) is None:
        return {**run.tables, **{f"joins.{name}": one for name, one in run.joins.items()}}
    return {label: table.part_at(f"{FOLDER}/{label}") for label in table.released}


def growing_table(run: Run) -> GrowingPart | None:
    """Return the growing table of a run; None of another run."""
    table = run.tables.get("data")
    return table if isinstance(table, GrowingPart) else None


def time_fields(run: GrowingPart) -> dict[str, Any]:
    """Return the field `time` of draws.json."""
    plan = run.time_plan
    return {"factor": str(plan.factor), "periods_per_unit": plan.periods_per_unit, "periods": run.labels}


def horizon_costs(run: GrowingPart, parts: Sequence[EventCounts]) -> EventCounts:
    """Return the costs of the whole horizon from the costs of each released period.

    Raises JobError if the periods have different costs.
    """
    if any(one != parts[0] for one in parts):
        raise JobError("measurements", "periods with different draws", "the unmodified files of the run",
                       "restore them")  # fmt: skip
    return EventCounts({(kind, cost * run.time_plan.factor): count for (kind, cost), count in parts[0].items()})


def check_fixed(run: GrowingPart) -> None:
    """Raise JobError for a growing table whose measurements follow from the values of its first period."""
    if run.released and run.structure is not None:
        raise JobError("mechanism.name", f"{run.job.method.name} on a growing table, whose first period selects the"
                       " measurements of the later ones", "a mechanism with a fixed plan",
                       "see plan/time.json and the ledger for the cost of all periods")  # fmt: skip


def check_periods(run: GrowingPart) -> None:
    """Raise JobError if files of a released period, of its answers or of its rows were changed."""
    for label in run.released:
        for folder in ("", *(f"/{name}" for name in (*run.kinds, ROWS))):
            part = run.part_at(f"{FOLDER}/{label}{folder}")
            stages = part.manifest["stages"]
            for stage in (one for one in stages if stages[one]["state"] == "done"):
                check_output(part.path, stage, stages[stage])


def public_folders(run: Run) -> list[str]:
    """Return the folders of released values of each period of a growing table; none of other runs."""
    if (table := growing_table(run)) is None:
        return []
    found = []
    for label in table.released:
        place = f"{FOLDER}/{label}"
        found += [f"{place}/measurements", *(f"{place}/{kind}/{name}" for kind in (*table.kinds, ROWS)
                                             for name in ANSWERS)]  # fmt: skip
    return found


def secret_state(run: Run) -> str | None:
    """Return "destroyed" if the secrets of all noise that was drawn are destroyed."""
    drawn = measured_tables(run).values() if growing_table(run) is not None else [run]
    states = {one.manifest["secret"] for one in drawn}
    return "destroyed" if states == {"destroyed"} else None
