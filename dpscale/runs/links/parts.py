"""Parts of links, and the part that linked tables share.

*Link.* It is read and checked with all links, measured between the synthetic rows of both tables, and sampled.

*Together.* Tables and links share the checks before their first charge, the division of the budget, rows and report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpscale.base.numerics import ParallelMap, serial_map
from dpscale.job.allocation import FILE, budget
from dpscale.job.sections import LinkSection
from dpscale.privacy.accounting import Cost
from dpscale.runs.charge import (
    ALLOCATION,
    charge,
    check_total,
    check_unchanged,
    cost_of_entry,
    ensure_noise_key,
    parts_of_entry,
)
from dpscale.runs.linked_tables import INDEX, LinkedTables, check_public
from dpscale.runs.links.first_measurement import (
    FirstMeasurement,
    division_digest,
    division_journal,
    job_of_public_cells,
)
from dpscale.runs.links.link_facts import SENSITIVITY, draw_name, link_facts, stored_draws_of
from dpscale.runs.links.link_parts import LinksByName
from dpscale.runs.links.link_sampling import remove_profiles
from dpscale.runs.links.link_sides import Drawn, LinkSides
from dpscale.runs.links.measuring import (
    SUMS,
    check_tables_have_rows,
    close_all,
    draws_of,
    measure_link,
    piece_of,
    read_all,
    snapshot_of,
)
from dpscale.runs.links.report import write_report
from dpscale.runs.links.table_writer import write_tables
from dpscale.runs.run import ENTRIES, DrawFacts, Journaled, Part
from dpscale.storage.files import present, remove_partial, write_whole

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine


@dataclass(eq=False)
class LinkReader:
    """Data that the links of a run share: the exact links, read together, and the rows of both ends.

    Attributes
    ----------
    run : LinkedTables
    exact : mapping of str to LinkStatistics
        Empty before they are read, and if all noise is drawn.
    """

    run: LinkedTables
    exact: LinksByName = field(default_factory=dict, repr=False)

    def read(self, engine: Engine) -> None:
        """Read and check all links once; nothing is read after the noise key is destroyed, because all noise is drawn.

        Files that change while they are read are refused.
        """
        if self.exact or not present(self.run.run.secret_path):
            return
        before = self.run.file_stamps()
        snapshot_of(self.run, engine)
        check_public(self.run.job)
        self.exact = read_all(self.run.closed_job, self.run.neighbours, engine)
        check_unchanged(self.run.run, before)

    def close(self) -> None:
        """Remove the temporary files of the links."""
        close_all(self.exact)

    @cached_property
    def sides(self) -> LinkSides:
        return LinkSides(self.run)


class LinkPart(Part):
    """Part of a link.

    Attributes
    ----------
    reader : LinkReader
    link : LinkSection
    """

    def __init__(self, reader: LinkReader, link: LinkSection) -> None:
        super().__init__(reader.run.run, f"links.{link.called}", f"links/{link.called}")
        self.reader, self.link = reader, link

    @property
    def depends_on(self) -> tuple[str, ...]:  # type: ignore[override]
        """The private tables at both ends, and links whose numbers, parents or changed cells this link reads.

        `counts` and `parents` of a link name other links that it reads.
        """
        job = self.reader.run.job
        # a rule across a link may change cells of its child, which is the parent of this link
        ruled = [link.called for link in job.link
                 if link.called in job.linked_rules and link.child == self.link.parent]  # fmt: skip
        ends = [name for name in (self.link.parent, self.link.child) if name in self.reader.run.tables]
        links = (*(self.link.counts or ()), *(self.link.parents or ()), *ruled)
        return *(f"tables.{name}" for name in dict.fromkeys(ends)), *(f"links.{name}" for name in links)

    def charges(self, entry: str) -> tuple[Cost, object] | None:
        """Return the budget of the link for the entry "privacy", exact and as text; None for other entries.

        The whole budget is charged, because its division over the draws follows from released values, while measuring.
        """
        if entry != "privacy":
            return None
        amount = budget(self.reader.run.job, self.name)
        return Cost(gaussian=amount), str(amount)

    def facts_of_draws(self) -> dict[str, Any]:
        return link_facts(piece_of(self.reader.run, self.link))

    @property
    def journaled(self) -> list[Journaled]:
        return [stored_draws_of(piece_of(self.reader.run, self.link), self.path)]

    def check(self, engine: Engine) -> None:
        self.reader.read(engine)

    def measure(self, engine: Engine) -> None:
        self._sample(engine.each("links"))
        remove_partial(self.path)

    def close(self) -> None:
        self.reader.close()

    def is_measured(self) -> bool:
        self._sample(serial_map)  # reads stored values only
        return True

    def sampled(self, engine: Engine) -> dict[str, Any]:
        """Return the sampled links by name: rows of both tables, or files of many links.

        Cells that rules across tables changed are returned by TABLE.ATTRIBUTE.
        """
        links = self._sample(engine.each("links"), wanted=True)
        return {self.link.called: links, **self.reader.sides.ruled.changes(self.link.child)}

    @property
    def drawn_folders(self) -> list[Path]:
        return [self.path, self.path.parent]

    def _sample(self, each: ParallelMap, wanted: bool = False) -> Drawn:
        """Measure what is not stored, and return the sampled links: rows of both tables, or files of many links.

        They are empty unless `wanted` or counted by a later link.
        """
        whole, sides = self.reader.run, self.reader.sides
        exact = self.reader.exact.get(self.link.called)
        measured = measure_link(whole, self.link, sides.of(self.link, each), exact, draws_of(self, whole))
        return sides.known(self.link, measured, each, wanted)


def link_parts(whole: LinkedTables) -> list[LinkPart]:
    """Return the parts of the links, in the order of the job."""
    reader = LinkReader(whole)
    return [LinkPart(reader, link) for link in whole.job.link]


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
        """Return the bounds of the first measurement by FOLDER/NAME of a draw; nothing without such a measurement."""
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
        """The draws that each folder of the first measurement must have.

        The sums of features of a link (SUMS) are a group, because a unit changes them together.
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

        The total cost is known with the entry "privacy", which is charged last.
        """
        journal = division_journal(self.run)
        if present(self.run.path / FILE) and journal.is_decided(0):
            journal.record(0, division_digest(self.run))  # refuses another digest than the recorded one
        if entry == "privacy":
            self._check_total()

    def _check_total(self) -> None:
        """Raise BudgetError if all entries cost more than the budget: charged ones, and "privacy" as it is planned."""
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
