"""Parts of the private tables of linked tables, which are also estimated and sampled while they are measured.

Links are measured between synthetic rows, so the measure stage of a table includes its estimates and its rows.

*Numbers of synthetic rows.*
They follow from released values only, and are decided before any row is sampled. The estimated sizes of two tables have
noise of their own, but a parent has at most `max_degree` children. Estimates that contradict this are adjusted
together, by weighted least squares: the number of rows of a table per row of the root decreases along a chain. What
rounding and stated numbers leave over is cut where the rows of a child are sampled, after those of its parents.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.domain.rules import ValueRule
from dpscale.job.neighbours import public_attributes_of, table_job
from dpscale.job.protected_unit import pair_links
from dpscale.job.table_sizes import decreasing_sizes, least_rows, required_links, stated_rows
from dpscale.runs.estimates import estimates_of, low_order_tables
from dpscale.runs.linked_tables import LinkedTables, public_tables
from dpscale.runs.stages.plan import check_searched
from dpscale.runs.stages.row_numbers import LIMITS
from dpscale.runs.table import TablePart
from dpscale.storage.files import read_text

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

RELEASED = ("measure", "reconstruct", "synthesize")  # stages of a table whose output other parts read

MOVED = 1e-9  # relative difference of a size from its estimate above which it counts as adjusted


class LinkedTablePart(TablePart):
    """Part of a private table.

    Attributes
    ----------
    whole : LinkedTables
    """

    checks_rows = False

    def __init__(self, whole: LinkedTables, table: str) -> None:
        """Open the part of a table, with the job of this table alone and its share of the budget.

        `steps` is the number of row additions and removals in this table that one neighbour amounts to.
        """
        self.whole, self.table_name = whole, table
        job = table_job(whole.job, whole.neighbours, table)
        super().__init__(whole.run, f"tables.{table}", job, job.read_domain(), f"tables/{table}")
        self.steps = whole.neighbours.steps[table]

    @property
    def depends_on(self) -> tuple[str, ...]:  # type: ignore[override]
        """The private parents of the rows, whose sampled rows limit their number."""
        job, tables = self.whole.job, self.whole.tables
        limiting = [*required_links(job, self.table_name), *pair_links(job, self.table_name)]
        links = [link for link in limiting if link.parent in tables and link.parent != self.table_name]
        return tuple(dict.fromkeys(f"tables.{link.parent}" for link in links))

    @property
    def compared(self) -> frozenset[str]:
        """Attributes of the table whose values a rule compares, also with values of another table."""
        prefix, names = f"{self.table_name}.", set[str]()  # names are "table.attribute"
        for rules_of_link in self.whole.closed_job.linked_rules.values():
            for linked in rules_of_link:
                if isinstance(linked.rule, ValueRule):
                    names.update(name for linear in linked.rule.clause.linear for name in linear.names)
        return super().compared | {name.removeprefix(prefix) for name in names if name.startswith(prefix)}

    @property
    def public_attributes(self) -> list[str]:
        """Attributes of the table that the job declares public."""
        return public_attributes_of(self.whole.job, self.table_name)

    def check_data(self, engine: Engine) -> None:
        check_searched(self, engine)

    def measure(self, engine: Engine) -> None:
        """Perform the stages up to the sampling of rows, the earlier ones for all tables of the job.

        RELEASED are the stages measure, reconstruct and synthesize: the last runs for this table only, after
        `record_limits` has recorded the limits of its number of rows.
        """
        for table in self.whole.tables.values():  # the sizes of all tables are decided together
            for stage in RELEASED[:-1]:
                table.perform(stage, engine)
        record_limits(self.whole, self.table_name)
        self.perform(RELEASED[-1], engine)

    def is_measured(self) -> bool:
        return super().is_measured() and all(self.done(stage) for stage in RELEASED)


def table_parts(whole: LinkedTables) -> list[LinkedTablePart]:
    """Return the parts of the private tables."""
    return [LinkedTablePart(whole, name) for name, section in whole.job.tables.items() if not section.public]


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

    A table whose every row has a parent has at most the parents' rows times the bound. A row of a table of pairs links
    one row of each of two tables, so it has at most the product of their numbers of rows.

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

    to_others = [link for link in required_links(run.job, name) if link.parent != name]
    limits = [rows(link.parent) * link.bound for link in to_others]
    links_of_pair = pair_links(run.job, name)
    if links_of_pair:  # each pair of parents occurs once
        limits.append(math.prod(rows(link.parent) for link in links_of_pair))
    most = min(limits, default=None)
    least = least_rows(run.job, name)
    return {"least": least if most is None else min(least, most), "most": most}


def joint_sizes(run: LinkedTables) -> dict[str, float]:
    """Return the sizes of tables whose estimates contradict the bounds of their links, changed so that they agree.

    A table has at most `rows` rows for each row of the root, the table above all others, so sizes divided by `rows`
    must not increase from a table to its child; the closest such sizes are the result. A table is weighted by its cost:
    the variance of its estimated rows per row of the root is inversely proportional. Tables whose rows are stated are
    left out.
    """
    stated = {name for name in run.tables if stated_rows(run.job, name)}
    above = {name: link.parent for name, link in run.neighbours.above.items()
             if link.parent != name and not {name, link.parent} & stated}  # fmt: skip
    names = sorted({*above, *above.values()})
    rows = np.array([run.neighbours.rows[name] for name in names], dtype=np.float64)
    weights = {name: float(run.tables[name].measurement_plan.cost.squared_mu) for name in names}
    # sizes per row of the root, as they are estimated and as they agree
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
