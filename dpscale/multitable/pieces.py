"""What a link's share of the budget buys, before any data are read: which parts are measured, and with what noise."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from dpscale.base.arrays import Integers
from dpscale.multitable.job import DatabaseJob, LinkSection
from dpscale.multitable.whom import Whom
from dpscale.privacy.draws import GaussianDraw, gaussian_draw
from dpscale.relational.measured import MOST_SIBLINGS, Split, degrees_squared, split
from dpscale.relational.shares import Question
from dpscale.relational.siblings import Tables
from dpscale.relational.sides import Side
from dpscale.relational.unbounded import thresholds

ALMOST = 1 - Fraction(1, 1 << 40)  # shares are floats, whose sum may be a last bit above 1


def budget(job: DatabaseJob, piece: str) -> Fraction:
    """Squared μ that a piece may come to."""
    return Fraction(job.privacy.budget.amount) * Fraction(job.shares[piece]) * ALMOST


@dataclass(frozen=True, eq=False)
class Piece:
    """A link's."""

    job: DatabaseJob
    whom: Whom
    link: LinkSection

    @property
    def known(self) -> bool:
        """Whether every row of the child has one link at most, and its own values are measured with its table."""
        return self.link.kind != "many-to-many"

    @property
    def moved(self) -> int:
        return self.whom.moved[self.link.called]

    @property
    def bounded(self) -> bool:
        """Whether rows of the parent have no more links than the job's bound."""
        return self.whom.replaces or self.link.parent in self.whom.rows

    @property
    def counted(self) -> bool:
        """Whether the number of links is measured: where it is neither public nor that of the children."""
        return self.link.nulls == "keep" if self.known else self.link.links is None

    @property
    def degrees(self) -> bool:
        """Whether rows by degree are measured: not of parents that may have any number of children, and not as
        published."""
        return self.link.mechanism != "published" and self.bounded

    @property
    def siblings(self) -> bool:
        """Whether what children of one parent have in common is measured."""
        several = self.known and 1 < self.link.bound <= MOST_SIBLINGS
        return several and self.degrees and self.link.parent != self.link.child

    @property
    def parts(self) -> Split:
        return split(budget(self.job, f"links.{self.link.called}"), self.counted, self.degrees, self.siblings)

    @property
    def places(self) -> list[Integers]:
        """Up to which degrees rows are counted: of the parents, and where each child has not one link, of these."""
        children = [] if self.link.via is None else [thresholds(self.link.bound if self.whom.replaces else None)]
        return [thresholds(self.link.bound), *children]

    def question(self, sides: tuple[Side, Side], links: float) -> Question:
        """Of the three sums' shares."""
        amount = float(self.parts.sums) / self.moved**2
        return Question(*sides, links, self.whom.protects.relation, amount, self.known)

    def links_draw(self) -> GaussianDraw:
        return gaussian_draw(1, self.parts.links, self.moved, f"link {self.link.called}")

    def degrees_draw(self) -> GaussianDraw:
        """Of the parents up to their bound; of rows at the other ends too, on a grid where they have none."""
        roles = 2 if self.link.parent == self.link.child else self.whom.rows.get(self.link.parent, 1)
        squared = degrees_squared(self.whom.protects.relation, self.link.bound, roles, len(self.places))
        return gaussian_draw(squared, self.parts.degrees, 1, f"degrees of link {self.link.called}")

    def siblings_draw(self, tables: Tables) -> GaussianDraw:
        squared = tables.squared(self.link.bound, self.whom.rows[self.link.parent])
        return gaussian_draw(squared, self.parts.siblings, 1, f"siblings of link {self.link.called}")
