"""Component of a link: read and checked with all links, measured between the synthetic rows of both tables, sampled."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from dpscale.base.numerics import ParallelMap, serial_map
from dpscale.engine import Engine
from dpscale.job.link_budget import budget
from dpscale.job.tables import LinkSection
from dpscale.privacy.accounting import Cost
from dpscale.runs.composite import CompositeRun
from dpscale.runs.links.link_parts import LinksByName
from dpscale.runs.links.link_sides import Drawn, LinkSides
from dpscale.runs.links.measuring import check_unchanged, close_all, current_stamps, measure_link, read_all, snapshot_of
from dpscale.runs.links.public_tables import check_public
from dpscale.storage.files import present


@dataclass(eq=False)
class LinkReader:
    """Data that the links of a run share: the exact links, read together, and the rows of both ends.

    Attributes
    ----------
    run : CompositeRun
    exact : mapping of str to LinkStatistics
        Empty before they are read, and if all noise is drawn.
    """

    run: CompositeRun
    exact: LinksByName = field(default_factory=dict, repr=False)

    def read(self, engine: Engine) -> None:
        """Read and check all links once, unless all noise was drawn before the key was destroyed."""
        if self.exact or not present(self.run.secret_path):
            return
        stamps_before = current_stamps(self.run)
        snapshot_of(self.run, engine)
        check_public(self.run.job)
        self.exact = read_all(self.run.closed_job, self.run.neighbours, engine)
        check_unchanged(self.run, stamps_before)

    def close(self) -> None:
        """Remove the temporary files of the links."""
        close_all(self.exact)

    @cached_property
    def sides(self) -> LinkSides:
        return LinkSides(self.run)


@dataclass(frozen=True, eq=False)
class LinkComponent:
    """Component of a link.

    Attributes
    ----------
    reader : LinkReader
    link : LinkSection
    number : int
        Position of the link in the job; it numbers the records of its draws on the ledger.
    """

    reader: LinkReader
    link: LinkSection
    number: int
    plan_digest: None = None  # shares are planned from released values, while measuring

    @property
    def name(self) -> str:
        return f"links.{self.link.called}"

    @property
    def depends_on(self) -> tuple[str, ...]:
        """The private tables at both ends, and links whose numbers, parents or changed cells this link reads."""
        job = self.reader.run.job
        ruled = [one.called for one in job.link if one.called in job.linked_rules and one.child == self.link.parent]
        ends = [name for name in (self.link.parent, self.link.child) if name in self.reader.run.tables]
        links = (*(self.link.counts or ()), *(self.link.parents or ()), *ruled)
        return *(f"tables.{name}" for name in dict.fromkeys(ends)), *(f"links.{name}" for name in links)

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=budget(self.reader.run.job, self.name))

    def plan(self, engine: Engine) -> None:
        """Do nothing: the job determines the budget of every measurement."""

    def check(self, engine: Engine) -> None:
        self.reader.read(engine)

    def measure(self, engine: Engine) -> None:
        self._sample(engine.each("links"))

    def close(self) -> None:
        self.reader.close()

    def is_measured(self) -> bool:
        self._sample(serial_map)  # reads stored values only
        return True

    def reconstruct(self, engine: Engine) -> None:
        """Do nothing: a link has no answers of its own."""

    def synthesize(self, engine: Engine) -> dict[str, Drawn]:
        """Sample the links; they become columns of the tables, or a table of pairs, when all tables are written.

        Cells that rules across tables changed are returned by TABLE.ATTRIBUTE.
        """
        links = self._sample(engine.each("links"), wanted=True)
        return {self.link.called: links, **self.reader.sides.ruled.changes(self.link.child)}

    def report(self, engine: Engine) -> None:
        """Do nothing: the report of the job describes the links."""

    def _sample(self, each: ParallelMap, wanted: bool = False) -> Drawn:
        """Measure what is not stored, and return the sampled links if they are wanted or counted by a later link."""
        run, sides = self.reader.run, self.reader.sides
        exact = self.reader.exact.get(self.link.called)
        measured = measure_link(run, self.link, self.number, sides.of(self.link, each), exact)
        return sides.known(self.link, measured, each, wanted)


def link_components(run: CompositeRun) -> list[LinkComponent]:
    """Return the components of the links, in the order of the job."""
    reader = LinkReader(run)
    return [LinkComponent(reader, link, number) for number, link in enumerate(run.job.link)]
