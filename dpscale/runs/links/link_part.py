"""Part of a link: read and checked with all links, measured between the synthetic rows of both tables, sampled."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpscale.base.numerics import ParallelMap, serial_map
from dpscale.job.allocation import budget
from dpscale.job.sections import LinkSection
from dpscale.privacy.accounting import Cost
from dpscale.runs.charge import check_unchanged
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.links.link_facts import link_facts, stored_draws_of
from dpscale.runs.links.link_parts import LinksByName
from dpscale.runs.links.link_sides import Drawn, LinkSides
from dpscale.runs.links.measuring import close_all, draws_of, measure_link, piece_of, read_all, snapshot_of
from dpscale.runs.links.public_tables import check_public
from dpscale.runs.run import Journaled, Part
from dpscale.storage.files import present, remove_partial

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
        """Read and check all links once, unless all noise was drawn before the key was destroyed.

        `exact` has the exact links by name. Stamps of the files are compared before and after the reading.
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
        ruled = [one.called for one in job.link if one.called in job.linked_rules and one.child == self.link.parent]
        ends = [name for name in (self.link.parent, self.link.child) if name in self.reader.run.tables]
        links = (*(self.link.counts or ()), *(self.link.parents or ()), *ruled)
        return *(f"tables.{name}" for name in dict.fromkeys(ends)), *(f"links.{name}" for name in links)

    def charges(self, entry: str) -> tuple[Cost, object] | None:
        """Return the budget of the link for the entry "privacy", exact and as text; None for other entries.

        Its draws divide the budget by released values while measuring.
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
        """Measure what is not stored, and return the sampled links, shape (links, 2).

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
