"""Charging of a multi-table job: the total cost of tables and links is reserved before the first draw.

Before its first draw each component records on the ledger which data it draws from. A second directory that draws
something else under the same charge is refused, like a changed round of an adaptive release.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpscale.base.numerics import Integers
from dpscale.job.neighbours import NeighbourRelation
from dpscale.job.tables import LinkSection, MultiTableJob
from dpscale.privacy.accounting import Cost
from dpscale.privacy.draws import GaussianDraw, gaussian_draw
from dpscale.relational.assignment import PairTables
from dpscale.relational.budget_shares import MOST_SIBLINGS, LinkProblem, Split, degrees_squared, split
from dpscale.relational.degrees import thresholds
from dpscale.relational.features import Side
from dpscale.runs.links.run import MultiTableRun
from dpscale.runs.stages.budget import Charge, charge_release, open_ledger, publish_release

ALMOST = 1 - Fraction(1, 1 << 40)  # shares are floats, whose sum may exceed 1 by rounding


def budget(job: MultiTableJob, piece: str) -> Fraction:
    """Return the squared μ that a component may cost."""
    return Fraction(job.privacy.budget.amount) * Fraction(job.shares[piece]) * ALMOST


@dataclass(frozen=True, eq=False)
class LinkBudget:
    """Budget and sensitivities of a link."""

    job: MultiTableJob
    neighbours: NeighbourRelation
    link: LinkSection

    @property
    def known(self) -> bool:
        """Whether every row of the child has at most one link; its attributes are measured with its table."""
        return self.link.kind != "many-to-many"

    @property
    def moved(self) -> int:
        return self.neighbours.moved[self.link.called]

    @property
    def bounded(self) -> bool:
        """Whether the job bounds the number of links of a parent row."""
        return self.neighbours.replaces or self.link.parent in self.neighbours.rows

    @property
    def counted(self) -> bool:
        """Whether the number of links is measured; it is not if it is public or equals the number of children."""
        return self.link.nulls == "keep" if self.known else self.link.links is None

    @property
    def degrees(self) -> bool:
        """Whether degree histograms are measured; not for parents without a bound, nor with "published"."""
        return self.link.mechanism != "published" and self.bounded

    @property
    def siblings(self) -> bool:
        """Whether the sums over pairs of siblings are measured."""
        several = self.known and 1 < self.link.bound <= MOST_SIBLINGS
        return several and self.degrees and self.link.parent != self.link.child

    @property
    def parts(self) -> Split:
        return split(budget(self.job, f"links.{self.link.called}"), self.counted, self.degrees, self.siblings)

    @property
    def places(self) -> list[Integers]:
        """Degrees up to which rows are counted, of the parents and, unless each child has one link, the children."""
        children = [] if self.link.via is None else [thresholds(self.link.bound if self.neighbours.replaces else None)]
        return [thresholds(self.link.bound), *children]

    def question(self, sides: tuple[Side, Side], links: float) -> LinkProblem:
        """Return the planning problem of the three sums' shares."""
        amount = float(self.parts.sums) / self.moved**2
        return LinkProblem(*sides, links, self.neighbours.protects.relation, amount, self.known)

    def links_draw(self) -> GaussianDraw:
        return gaussian_draw(1, self.parts.links, self.moved, f"link {self.link.called}")

    def degrees_draw(self) -> GaussianDraw:
        """Return the draw of the degree histograms: of the parents up to their bound, of unbounded rows on a grid."""
        roles = 2 if self.link.parent == self.link.child else self.neighbours.rows.get(self.link.parent, 1)
        squared = degrees_squared(self.neighbours.protects.relation, self.link.bound, roles, len(self.places))
        return gaussian_draw(squared, self.parts.degrees, 1, f"degrees of link {self.link.called}")

    def siblings_draw(self, tables: PairTables) -> GaussianDraw:
        squared = tables.squared(self.link.bound, self.neighbours.rows[self.link.parent])
        return gaussian_draw(squared, self.parts.siblings, 1, f"siblings of link {self.link.called}")


def whole_cost(run: MultiTableRun) -> Cost:
    """Return the total cost: the tables' plans, scaled to a unit of the job, and the budgets of the links."""
    tables = [table.measurement_plan.cost.scaled(run.neighbours.steps[name]) for name, table in run.tables.items()]
    links = [Cost(gaussian=budget(run.job, f"links.{link.called}")) for link in run.job.link]
    return Cost.total([*tables, *links]).coarsened()


def entry(run: MultiTableRun) -> dict[str, Any]:
    """Return the ledger entry of the job; available after all tables are planned."""
    content = [run.manifest["job_sha256"], [table.measurement_plan.digest for table in run.tables.values()]]
    protects = run.neighbours.protects
    return {
        "release": run.manifest["release"],
        "cost": whole_cost(run).to_dict(),
        "digest": hashlib.sha256(json.dumps(content).encode()).hexdigest(),
        "epsilon": run.job.privacy.epsilon,
        "delta": run.job.privacy.delta,
        "protects": {
            "unit": protects.unit,
            "relation": protects.relation,
            "bound": protects.bound,
            "table": protects.table,
        },
    }


def charge_run(run: MultiTableRun, reserve: bool = True) -> str:
    """Reserve the total cost and return the release's state; a repeated call costs nothing."""
    own = entry(run)
    terms = own["release"], Cost.from_dict(own["cost"]), own["digest"], own["epsilon"], own["delta"]
    recorded = {"dataset": run.job.dataset, **own, **own["protects"]}
    return charge_release(run, Charge(*terms, run.neighbours.protects), recorded, reserve)


def record_draws(run: MultiTableRun, number: int, drawn: str) -> None:
    """Record on the ledger a digest of the data and the query of a link's draws."""
    with open_ledger(run) as ledger:
        ledger.decide(run.manifest["release"], number, drawn)


def assign_charges(run: MultiTableRun) -> None:
    """Record in every table's run the charge under which it draws."""
    for number, table in enumerate(run.tables.values()):
        within = {**entry(run), "piece": number}
        if table.manifest.get("within") != within:
            table.update(within=within)


def publish_run(run: MultiTableRun) -> None:
    """Publish the release of all tables and links, once all noise is drawn."""
    publish_release(run, run.manifest["release"], charge_run(run), drawn_folders(run))


def drawn_folders(run: MultiTableRun) -> tuple[Path, ...]:
    """Return the folders with drawn values of links."""
    return (*sorted((run.path / "links").glob("*/")), run.path / "links", run.path)
