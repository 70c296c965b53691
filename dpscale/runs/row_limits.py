"""Limits of the number of synthetic rows of a table, from released values only, recorded before its rows are sampled.

The estimated sizes of two tables have noise of their own. A child table has at most as many rows as its parents, whose
rows are sampled before, may have children.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dpscale.job.table_sizes import least_rows, required_links
from dpscale.runs.table import TableRun
from dpscale.storage.files import read_text

if TYPE_CHECKING:
    from dpscale.runs.composite import CompositeRun

ENTRY = "row_limits"  # in the manifest of a table's run; runs of earlier versions have none


def describe_rows(table: TableRun) -> dict[str, Any]:
    """Return the description of a table's synthetic rows."""
    found: dict[str, Any] = json.loads(read_text(table.path / "synthetic" / "_rows.json"))
    return found


def row_limits(run: CompositeRun, name: str) -> tuple[int, int | None]:
    """Return the least and the largest number of synthetic rows of a private table.

    Parameters
    ----------
    run : CompositeRun
        Its tables above this one have synthetic rows.
    name : str

    Returns
    -------
    least : int
    most : int or None
        None if its parents have no bound.
    """
    from dpscale.runs.links.writer import public_tables

    def rows(parent: str) -> int:
        public = run.job.tables[parent].public
        return len(public_tables(run)[parent][0]) if public else int(describe_rows(run.tables[parent])["rows"])

    others = [link for link in required_links(run.job, name) if link.parent != name]
    most = min((rows(link.parent) * link.bound for link in others), default=None)
    least = least_rows(run.job, name)
    return (least if most is None else min(least, most)), most


def record_limits(run: CompositeRun, name: str) -> None:
    """Record the limits of a table in its manifest, unless its rows are sampled."""
    table = run.tables[name]
    if not table.done("synthesize") and ENTRY not in table.manifest:
        table.update(**{ENTRY: list(row_limits(run, name))})


def limited_rows(table: TableRun, total: float) -> int:
    """Return the number of synthetic rows for an estimated number of records, within the limits of the table."""
    least, most = table.manifest.get(ENTRY, (1, None))
    rows = max(least, round(total))
    return rows if most is None else min(rows, most)
