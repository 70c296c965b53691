"""Parts of the private tables of linked tables, which are also estimated and sampled while they are measured.

Links are measured between synthetic rows, so the measure stage of a table includes its estimates and its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpscale.domain.rules import ValueRule
from dpscale.job.neighbours import public_attributes_of, table_job
from dpscale.job.protected_unit import pair_links
from dpscale.job.table_sizes import required_links
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.links.row_limits import record_limits
from dpscale.runs.stages.plan import check_numbers
from dpscale.runs.table import TablePart

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

RELEASED = ("measure", "reconstruct", "synthesize")  # stages of a table whose output other parts read


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
        prefix, names = f"{self.table_name}.", set[str]()
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
        check_numbers(self, engine)

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
    return [LinkedTablePart(whole, name) for name, one in whole.job.tables.items() if not one.public]
