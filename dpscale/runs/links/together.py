"""What linked tables do together: checks before their first charge, the division of the budget, rows and report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpscale.job.allocation import FILE
from dpscale.privacy.accounting import Cost
from dpscale.runs.charge import ALLOCATION, charge, check_total, cost_of_entry, ensure_noise_key, parts_of_entry
from dpscale.runs.linked_tables import INDEX, LinkedTables
from dpscale.runs.links.first_measurement import (
    FirstMeasurement,
    division_digest,
    division_journal,
    job_of_public_cells,
)
from dpscale.runs.links.link_facts import SENSITIVITY, draw_name
from dpscale.runs.links.link_part import LinkPart
from dpscale.runs.links.link_sampling import remove_profiles
from dpscale.runs.links.measuring import SUMS, check_tables_have_rows, close_all, read_all
from dpscale.runs.links.public_tables import check_public
from dpscale.runs.links.report import write_report
from dpscale.runs.links.table_writer import write_tables
from dpscale.runs.run import ENTRIES, DrawFacts, Journaled, Part
from dpscale.storage.files import present, write_whole

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine


class TablesTogether(Part):
    """Part of a run that its tables and links share.

    Attributes
    ----------
    whole : LinkedTables
    """

    def __init__(self, whole: LinkedTables) -> None:
        super().__init__(whole.run, "together")
        self.whole = whole

    def charges(self, entry: str) -> tuple[Cost, object] | None:
        if entry != ALLOCATION or self.whole.allocation is None:
            return None
        return self.first.cost, self.first.terms

    def facts_of_draws(self) -> dict[str, Any]:
        """Return the bounds of the first measurement, with the folder of a draw before its name.

        `decided.bounds` has the bounds of each folder of draws, by name.
        """
        if self.whole.allocation is None:
            return {}
        bounds = {}
        for folder, by_name in self.decided.bounds.items():
            for name, bound in by_name.items():
                bounds[f"{folder}/{name}"] = bound
        return {
            "bounds": bounds,
            "contribution": "neighbours as in the other parts, before the bounds of links",
            "law": "gaussian",
            "mechanism": "first measurement of tables and links",
            "post_processing": "shares of the budget: from released values alone",
            "sensitivity": SENSITIVITY,
            "steps": 1,
        }

    @property
    def first(self) -> FirstMeasurement:
        """First measurement of the run."""
        return FirstMeasurement(self.whole, job_of_public_cells(self.whole.stated_job))

    @property
    def decided(self) -> FirstMeasurement:
        """First measurement of the run with the bounds of links that it chose."""
        return FirstMeasurement(self.whole, job_of_public_cells(self.whole.job))

    @property
    def journaled(self) -> list[Journaled]:
        """The draws that each folder of the first measurement must have; the sums of a link change together.

        SUMS are the draws of sums of features, which one group of the journal has together.
        """
        if self.whole.allocation is None:
            return []
        journaled = list[Journaled]()
        for folder, bounds in self.decided.bounds.items():
            draws = {name: DrawFacts(f"{folder}/{name}", bound["values"], group=folder if name in SUMS else None)
                     for name, bound in bounds.items()}  # fmt: skip
            place = self.run.path / "allocation" / folder
            journaled.append(
                Journaled(
                    entry="allocation", folder=place, name=draw_name, draws=draws, selections=(), others=["shares.json"]
                )
            )
        return journaled

    def check_charge(self, entry: str) -> None:
        """Raise BudgetError for another division of the budget than the ledger has, or for too high a cost in total.

        `entry` names a charge on the ledger; that of the job is "privacy". A recorded division must have the same
        digest.
        """
        journal = division_journal(self.run)
        if present(self.run.path / FILE) and journal.is_decided(0):
            journal.record(0, division_digest(self.run))
        if entry == "privacy":
            self._check_total()

    def _check_total(self) -> None:
        costs = [cost_of_entry(self.run, entry) for entry in ENTRIES if entry != "privacy"]
        planned = [cost for cost, _ in parts_of_entry(self.run, "privacy").values()]
        check_total(self.run, Cost.total([*costs, *planned]), self.whole.job.total_budget.amount)

    def check_data(self, engine: Engine) -> None:
        """Check public tables, that all tables have rows, and that keys and links are accepted."""
        check_public(self.whole.job)
        check_tables_have_rows(self.whole, engine)
        # refuses keys and links; attributes whose cells are not known are left out
        close_all(read_all(self.whole.closed_job, self.whole.neighbours, engine))

    def plan(self, engine: Engine) -> None:
        """Refuse parts that cost more than the job permits in total."""
        self._check_total()
        if not self.whole.tables:  # links between public tables: the folder is the output of the stage
            write_whole(self.path / "tables" / INDEX, b"{}")

    def begin(self, engine: Engine) -> None:
        ensure_noise_key(self.run)
        charge(self.run, reserve=False)
        check_tables_have_rows(self.whole, engine)

    def synthesize(self, engine: Engine) -> None:
        """Write every table with its keys, once all rows and links are sampled."""
        links: dict[str, Any] = {}
        for part in self.whole.parts.values():
            links |= part.sampled(engine) if isinstance(part, LinkPart) else {}
        write_tables(self.whole, links, engine)
        remove_profiles(self.whole)

    def report(self, engine: Engine) -> None:
        write_report(self.whole)

    @property
    def drawn_folders(self) -> list[Path]:
        return [self.path]


def whole_parts(whole: LinkedTables) -> list[TablesTogether]:
    """Return the part that follows all others."""
    return [TablesTogether(whole)]
