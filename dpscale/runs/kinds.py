"""Tables of the kinds of runs and of parts: one line each, `module:name`, imported at the first use.

Links load compiled loops, and a run of one table needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# content of a run, by the kind of its job
CONTENTS: dict[str, str] = {
    "": "dpscale.runs.table:OneTable",
    "database": "dpscale.runs.linked_tables:LinkedTables",
    "periods": "dpscale.runs.periods.growing:GrowingTable",
}
# neighbouring relation of a job and the division of its budget, before data are read; not of an undivided budget
OVERVIEWS: dict[str, str] = {"database": "dpscale.runs.links.planning:overview"}
# parts of linked tables: functions of the linked tables that return a list of parts
PARTS: dict[str, str] = {
    "tables": "dpscale.runs.linked_part:table_parts",
    "links": "dpscale.runs.links.link_part:link_parts",
    "joins": "dpscale.runs.join_part:join_parts",
    "together": "dpscale.runs.links.together:whole_parts",
}
# parts of a growing table
PERIOD_PARTS: dict[str, str] = {
    "table": "dpscale.runs.periods.stages:ReleasedTable",
    "period": "dpscale.runs.periods.stages:PeriodPart",
    "answers": "dpscale.runs.periods.answers:AnswersPart",
    "rows": "dpscale.runs.periods.answers:RowsPart",
}


def load_kind(place: str) -> Any:
    """Return what a line of a table names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def overview(job: Any) -> dict[str, Any]:
    """Return the neighbouring relation of a job and the division of its budget; empty if it is not divided."""
    return dict(load_kind(OVERVIEWS[job.kind])(job)) if job.kind in OVERVIEWS else {}
