"""Budget and sensitivities of a link: the share of the budget of each measurement, and the noise that it permits."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from dpscale.base.numerics import Integers
from dpscale.job.neighbours import NeighbourRelation
from dpscale.job.tables import CompositeJob, LinkSection
from dpscale.privacy.draws import GaussianDraw, gaussian_draw
from dpscale.relational.assignment import PairTables
from dpscale.relational.budget_shares import MOST_SIBLINGS, LinkProblem, Split, degrees_squared, split
from dpscale.relational.degrees import buckets, thresholds
from dpscale.relational.features import Side
from dpscale.relational.history import HistoryTables

ALMOST = 1 - Fraction(1, 1 << 40)  # shares are floats, whose sum may exceed 1 by rounding


def budget(job: CompositeJob, piece: str) -> Fraction:
    """Return the squared μ that a component may cost."""
    return Fraction(job.budget.amount) * Fraction(job.shares[piece]) * ALMOST


@dataclass(frozen=True, eq=False)
class LinkBudget:
    """Budget and sensitivities of a link."""

    job: CompositeJob
    neighbours: NeighbourRelation
    link: LinkSection

    @property
    def known(self) -> bool:
        """Whether every row of the child has at most one link; its attributes are measured with its table."""
        return self.link.kind != "many-to-many"

    @property
    def modelled(self) -> bool:
        """Whether the link has a share of the budget; otherwise nothing is measured, and its links are random."""
        return self.job.shares[f"links.{self.link.called}"] > 0

    @property
    def moved(self) -> int:
        return self.neighbours.moved[self.link.called]

    @property
    def bounded(self) -> bool:
        """Whether the job bounds the number of links of a parent row."""
        return self.neighbours.replaces or self.link.parent in self.neighbours.rows

    @property
    def loops(self) -> bool:
        """Whether the links are measured in the rounds of a published loop."""
        return self.modelled and self.link.mechanism == "published"

    @property
    def every_child(self) -> bool:
        """Whether there is exactly one link for every row of the child."""
        return self.known and self.link.nulls != "keep"

    @property
    def counted(self) -> bool:
        """Whether the number of links is measured; it is not if it is public or equals the number of children."""
        return self.modelled and (self.link.nulls == "keep" if self.known else self.link.links is None)

    @property
    def degrees(self) -> bool:
        """Whether degree histograms are measured; not for parents without a bound, nor with "published"."""
        return self.modelled and not self.loops and self.bounded

    @property
    def siblings(self) -> bool:
        """Whether the sums over pairs of siblings are measured."""
        several = self.known and 1 < self.link.bound <= MOST_SIBLINGS and not self.link.order
        return several and self.degrees and self.link.parent != self.link.child

    @property
    def history(self) -> HistoryTables | None:
        """Tables of consecutive children; None without an order of the children of a parent, or for one child each."""
        if not self.link.order or not self.degrees or self.link.bound < 2:  # a private bound may be 1
            return None
        names = list(self.job.domains[self.link.child].names)
        return HistoryTables(self.sizes(self.link.child), names.index(self.link.order[0]), self.link.bound)

    @property
    def parts(self) -> Split:
        """Parts of the budget; histories have that of the siblings."""
        among = self.siblings or self.history is not None
        return split(budget(self.job, f"links.{self.link.called}"), self.counted, self.degrees, among)

    @property
    def places(self) -> list[Integers]:
        """Degrees up to which rows are counted, of the parents and, unless each child has one link, the children."""
        children = [] if self.link.via is None else [thresholds(self.link.bound if self.neighbours.replaces else None)]
        return [thresholds(self.link.bound), *children]

    @property
    def roles(self) -> int:
        """Number of parent rows of a unit; a row at both ends of links counts twice."""
        return 2 if self.link.parent == self.link.child else self.neighbours.rows.get(self.link.parent, 1)

    def sizes(self, table: str) -> tuple[int, ...]:
        """Return the number of values of every attribute of a table's rows in this link."""
        job, domains = self.job, [self.job.domains[table]]
        domains += [job.domains[one.parent] for one in job.other_parents(self.link)] if table == self.link.child else []
        counts = [len(buckets(one.bound)) for one in job.counted(self.link, table)]
        return *(domain[one].size for domain in domains for one in domain.names), *counts

    def question(self, sides: tuple[Side, Side], links: float) -> LinkProblem:
        """Return the planning problem of the three sums' shares."""
        amount = float(self.parts.sums) / self.moved**2
        return LinkProblem(*sides, links, self.neighbours.protects.relation, amount, self.known)

    def links_draw(self) -> GaussianDraw:
        return gaussian_draw(1, self.parts.links, self.moved, f"link {self.link.called}")

    def degrees_draw(self) -> GaussianDraw:
        """Return the draw of the degree histograms: of the parents up to their bound, of unbounded rows on a grid."""
        relation, sides = self.neighbours.protects.relation, len(self.places)
        squared = degrees_squared(relation, self.link.bound, self.roles, sides)
        return gaussian_draw(squared, self.parts.degrees, 1, f"degrees of link {self.link.called}")

    def siblings_draw(self, tables: PairTables) -> GaussianDraw:
        squared = tables.squared(self.link.bound, self.neighbours.rows[self.link.parent])
        return gaussian_draw(squared, self.parts.siblings, 1, f"siblings of link {self.link.called}")

    def steps_draw(self, tables: HistoryTables) -> GaussianDraw:
        """Return the draw of the tables of consecutive children."""
        squared = tables.steps_squared(self.neighbours.rows[self.link.parent])
        return gaussian_draw(squared, self.parts.siblings / 2, 1, f"steps of link {self.link.called}")

    def parents_draw(self, tables: HistoryTables) -> GaussianDraw:
        """Return the draw of the tables of parents of histories."""
        squared = tables.parents_squared(self.neighbours.rows[self.link.parent])
        return gaussian_draw(squared, self.parts.siblings / 2, 1, f"histories of link {self.link.called}")
