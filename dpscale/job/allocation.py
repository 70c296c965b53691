"""Division of the budget of a job over its tables and links, before they are planned.

A first measurement at a small part of the budget has the number of rows of every private table, the number of links,
and sums of features over rows and over links. The expected errors of all tables and links follow from it, and the
shares minimise the errors of linked rows (`relational.allocation`). A link whose share is 0 is not measured: its links
are random. Without the first measurement the same is planned for usual numbers of rows and usual associations.

The budget of a link is divided over its measurements, whose sensitivities and noise follow from its bounds. A
component is a table or a link (`tables.NAME`, `links.NAME`), and a share is its part of the squared μ of the job.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.errors import JobError
from dpscale.base.numerics import Integers
from dpscale.job.job import Job
from dpscale.job.neighbours import NeighbourRelation, neighbour_relation, table_jobs
from dpscale.job.protected_unit import side_tables
from dpscale.job.sections import MOST_ROUNDS, LinkSection
from dpscale.job.table_job import TableJob
from dpscale.privacy.draws import GaussianDraw, gaussian_draw
from dpscale.relational.allocation import (
    AllocationProblem,
    ChainErrors,
    LinkErrors,
    LinkStrength,
    TableErrors,
    allocate,
    cross_cells,
    even_side,
)
from dpscale.relational.assignment import PairTables
from dpscale.relational.budget_shares import MOST_SIBLINGS, LinkProblem, Split, degrees_squared, split
from dpscale.relational.degrees import buckets, thresholds
from dpscale.relational.features import Side
from dpscale.relational.history import HistoryTables
from dpscale.relational.published import LoopSize, Rounds, chosen_rounds, moved_entries, round_errors
from dpscale.storage.files import read_text

FILE = "allocation/allocation.json"
LEAST_SHARE = 1e-9  # least share of a stored division other than 0
OPEN = "private"  # a bound that the first measurement chooses
USUAL_ROWS = 10_000.0  # of the root before data
# numbers of rows between which the posterior is computed, at points of equal ratio
LEAST_ROWS, MOST_ROWS, POINTS = 10.0, 1e10, 2000
ROOT_SPREAD, LINK_SPREAD = 3.0, 1.5  # log-spreads of numbers of rows around the usual ones
ALMOST = 1 - Fraction(1, 1 << 40)  # shares are floats, whose sum may exceed 1 by rounding


LOSES = 'the published loop is expected to be worse than random links (mechanism = "maxent" is not)'
DEPARTURE = 0.08  # expected total variation of random links: 0.4 times the prior departures of a cell of a marginal
FIRST = 0.02  # of the budget of the parts that state no share, for the first measurement


def is_divided(job: Job) -> bool:
    """Return whether the shares of some parts are planned; not if they are equal, or only one part states none."""
    unstated = [name for name in job.shares if name not in job.given_shares]
    return bool(job.link) and job.budget.method != "equal" and len(unstated) > 1


def has_first_measurement(job: Job) -> bool:
    """Return whether the division is preceded by a measurement, which needs a public attribute in every table.

    Attributes whose cells are not public must not be in a rule, because they are left out.
    """
    for domain in job.declared.values():
        searched = {attribute.name for attribute in domain.searches}
        has_public = not searched.issuperset(domain.names)
        if not has_public or any(searched & set(rule.names) for rule in domain.rules):
            return False
    return is_divided(job)


def first_share(job: Job) -> float:
    """Return the share of the first measurement in the budget of the job."""
    if not has_first_measurement(job):
        return 0.0
    return (job.budget.first or FIRST) * (1 - sum(job.given_shares.values()))


def first_amount(job: Job) -> Fraction:
    """Return the squared μ of the first measurement."""
    return Fraction(job.total_budget.amount) * Fraction(first_share(job)) * ALMOST


def check_division(job: Job, content: Mapping[str, Any]) -> None:
    """Raise JobError for a stored division that no stage has written.

    Shares are 0 or between LEAST_SHARE and 1, one for each part of the job.
    """
    shares = content.get("shares")
    valid = isinstance(shares, dict) and set(shares) == set(job.shares) and all(
        isinstance(share, float | int) and math.isfinite(share) and (share == 0 or LEAST_SHARE <= share <= 1)
        for share in shares.values()
    )  # fmt: skip
    if not valid:
        raise JobError("run directory", f"{FILE} has other shares than a stage wrote", "the unmodified file",
                       "restore it, or start a new run")  # fmt: skip


def with_shares(job: Job, shares: Mapping[str, float]) -> Job:
    """Return the job with these shares of its tables and links."""
    job = job.model_copy()
    vars(job)["shares"] = dict(shares)
    return job


def is_open(job: Job, link: LinkSection) -> bool:
    """Return whether the job leaves the bound of a link open."""
    return any(other.called == link.called and other.max_degree == OPEN for other in job.link)


def with_bounds(job: Job, bounds: Mapping[str, int]) -> Job:
    """Return the job with these bounds of some links."""
    links = [link.model_copy(update={"max_degree": bounds[link.called]}) if link.called in bounds else link
             for link in job.link]  # fmt: skip
    job = job.model_copy(update={"link": links})
    vars(job).pop("joined", None)  # the cached joins have the sections of the links
    return job


def check_open_bounds(job: Job) -> None:
    """Raise JobError for a bound that no first measurement can choose.

    OPEN is the bound "private", which a first measurement of degrees decides. This requires a private parent with units
    and another table as child.
    """
    link = next((section for section in job.link if section.max_degree == OPEN), None)
    if link is None:
        return
    has_no_units = job.tables[link.parent].public or link.parent in side_tables(job)
    impossible = has_no_units or link.parent == link.child or link.protects == "both"
    if impossible or not has_first_measurement(job):
        raise JobError(f"link {link.called}.max_degree", '"private"', "an integer, or a link of a private parent with"
                       " another table in a job whose budget is divided (budget.method = \"planned\")",
                       "state a bound that does not come from the data")  # fmt: skip


@dataclass(frozen=True)
class KnownSizes:
    """Numbers of rows and links, and strengths of links, measured or usual.

    Attributes
    ----------
    rows : mapping of str to float
        By private table.
    links : mapping of str to float
    strengths : mapping of str to LinkStrength
    """

    rows: Mapping[str, float]
    links: Mapping[str, float]
    strengths: Mapping[str, LinkStrength]


@dataclass(frozen=True, eq=False)
class Allocation:
    """Shares of the components of a job, and the errors that they are expected to have.

    Attributes
    ----------
    shares : mapping of str to float
        Of the budget of the job; with that of a first measurement they sum to 1.
    known : KnownSizes
    errors, random : mapping of str to float
        By link, the expected total variation of cross marginals, and that of random links between tables with equal
        shares of the whole budget.
    measured : bool
        Whether a first measurement was made.
    """

    shares: Mapping[str, float]
    known: KnownSizes
    errors: Mapping[str, float]
    random: Mapping[str, float]
    measured: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the division as it is stored; strengths of links are scales of one-way and of pairwise effects."""
        strengths = {name: dict(zip(("ones", "pairs"), strength.scales, strict=True))
                     for name, strength in self.known.strengths.items()}  # fmt: skip
        return {"measured": self.measured, "shares": dict(self.shares), "rows": dict(self.known.rows),
                "links": dict(self.known.links), "strengths": strengths, "errors": dict(self.errors),
                "random_links": dict(self.random)}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Divisible:
    """A job whose budget is divided, with its neighbouring relation.

    Attributes
    ----------
    job : Job
    neighbours : NeighbourRelation
    """

    job: Job
    neighbours: NeighbourRelation

    @cached_property
    def private(self) -> list[str]:
        return [name for name, table in self.job.tables.items() if not table.public]

    def sizes(self, table: str) -> tuple[int, ...]:
        """Return the number of cells of every attribute."""
        domain = self.job.domains[table]
        return tuple(domain[name].size for name in domain.names)

    def unit_rows(self, table: str) -> int:
        """Return the number of rows of a table that a neighbour changes: rows of a unit, for each step apart."""
        return self.neighbours.steps.get(table, 1) * self.neighbours.rows.get(table, 1)

    def above(self, table: str) -> LinkSection | None:
        """Return the link that assigns the rows of a table to a private parent."""
        return self.neighbours.above.get(table)

    def depth(self, table: str) -> int:
        """Return the number of private tables above the rows of a table."""
        link = self.above(table)
        return 0 if link is None else 1 + self.depth(link.parent)

    def usual(self) -> KnownSizes:
        """Return usual numbers of rows and links, with prior strengths of links.

        A table has √bound rows for each row of its parent: the middle of 1 and the bound on a logarithmic scale. A
        table without a parent has USUAL_ROWS. Tables are visited from the top.
        """
        rows: dict[str, float] = {}
        for name in sorted(self.private, key=self.depth):
            link = self.above(name)
            rows[name] = USUAL_ROWS if link is None else rows[link.parent] * math.sqrt(link.bound)
        links = {link.called: self.usual_links(link, rows) for link in self.job.link}
        return KnownSizes(rows, links, {name: LinkStrength.prior() for name in links})

    def usual_links(self, link: LinkSection, rows: Mapping[str, float]) -> float:
        """Return the usual number of links, from the numbers of rows of the tables that are known.

        A foreign key has one link for each row of the child.
        """
        if link.via is None:
            return rows.get(link.child, USUAL_ROWS)
        return float(link.links or rows.get(link.parent, USUAL_ROWS) * math.sqrt(link.bound))

    def divide(self, known: KnownSizes, measured: bool) -> Allocation:
        """Return the best shares of the budget for these numbers of rows and links.

        The first measurement, if they were `measured`, has used a part of the budget; the problem divides the rest.
        Shares that the job states are fixed.
        """
        job, first = self.job, first_share(self.job) if measured else 0.0
        rest = 1 - first
        problem = self._problem(known, job.total_budget.amount * rest)
        # shares of the rest, then of the whole budget
        fixed = {name: share / rest for name, share in job.given_shares.items()} | self._equal_parts()
        best = allocate(problem, fixed)
        shares = {name: job.given_shares.get(name, best[name] * rest) for name in job.shares}
        whole = self._problem(known, job.total_budget.amount)
        return Allocation(
            shares=shares, known=known, errors=problem.errors(best), random=whole.random_error(), measured=measured
        )

    def _equal_parts(self) -> dict[str, float]:
        """Return the shares of links with `counts` or an order: those of an equal division of the budget.

        The expected errors do not contain what these links gain, so they cannot be planned.
        """
        names = [f"links.{link.called}" for link in self.job.link if link.counts or link.order]
        return {name: self.job.shares[name] for name in names if name not in self.job.given_shares}

    def divide_by_usual_sizes(self) -> Allocation:
        """Return the best shares for usual numbers of rows and links."""
        return self.divide(self.usual(), measured=False)

    def _problem(self, known: KnownSizes, amount: float) -> AllocationProblem:
        tables = {name: TableErrors(self.sizes(name), known.rows[name], self.unit_rows(name)) for name in self.private}
        links = {link.called: self._link(link, known, amount) for link in self.job.link}
        return AllocationProblem(tables=tables, links=links, amount=amount, chains=self.chains)

    @property
    def chains(self) -> dict[str, ChainErrors]:
        """Pairs of links from a private table to the children of its children, by a description.

        The errors of rows of the upper and the lower table follow from both links.
        """
        links = [link for link in self.neighbours.above.values() if link.parent != link.child]
        chains = {}
        for upper in links:
            for lower in links:
                if upper.child == lower.parent:
                    name = f"{upper.parent} to {lower.child} ({upper.called}, {lower.called})"
                    cells = cross_cells(self.sizes(upper.parent), self.sizes(lower.child))
                    chains[name] = ChainErrors(upper.called, lower.called, cells)
        return chains

    def _link(self, link: LinkSection, known: KnownSizes, amount: float) -> LinkErrors:
        """Return the expected errors of a link by its share of the squared μ `amount`.

        They are expected total variations (`departures`) at ascending amounts, from the planning problem of the link
        with the whole budget. Rows are assumed about evenly distributed over the cells, and at least 2 links.
        """
        name, ends = link.called, (self.sizes(link.parent), self.sizes(link.child))
        whole = LinkBudget(with_shares(self.job, {f"links.{name}": 1.0}), self.neighbours, link.model_copy(
            update={"counts": None, "order_by": None, "parents": None}))  # fmt: skip
        question = whole.question((even_side(ends[0]), even_side(ends[1])), max(known.links[name], 2.0))
        amounts, departures = known.strengths[name].departures(
            question, amount, self.job.total_budget.amount / question.amount
        )
        return LinkErrors(
            parent=link.parent,
            child=link.child,
            links=known.links[name],
            cells=cross_cells(*ends),
            amounts=amounts,
            departures=departures,
        )


def expected_job(job: Job) -> tuple[Job, Allocation | None]:
    """Return the job with the shares that it is expected to have, and their division; None if it states them."""
    if not is_divided(job):
        return job, None
    divisible = Divisible(job, neighbour_relation(job))
    found = divisible.divide(divisible.usual(), measured=has_first_measurement(job))
    return with_shares(job, found.shares), found


def planned_jobs(job: Job) -> dict[str, TableJob]:
    """Return the jobs of the private tables by name, with the share of the budget that each is expected to have."""
    return table_jobs(expected_job(job)[0])


def likely_rows(noisy: float, sigma: float, usual: float, spread: float) -> float:
    """Return the posterior geometric mean of a number of rows n, whose prior is log-normal.

    With N = `noisy`, its density is proportional to exp(−(N − n)² / 2σ² − (ln n − ln usual)² / 2 spread²).

    Parameters
    ----------
    noisy : float
    sigma : float
        Standard deviation of the noise.
    usual, spread : float
        Centre of the prior, and its standard deviation on the logarithmic scale.
    """
    logs = np.linspace(np.log(LEAST_ROWS), np.log(MOST_ROWS), POINTS)
    log_density = -0.5 * ((noisy - np.exp(logs)) / max(sigma, 1.0)) ** 2
    log_density -= 0.5 * ((logs - np.log(usual)) / spread) ** 2
    weights = np.exp(log_density - log_density.max())
    return float(np.exp(weights @ logs / weights.sum()))


def stored_allocation(path: Path) -> dict[str, Any]:
    """Return the content of the file of a run directory."""
    return json.loads(read_text(path / FILE))


def budget(job: Job, piece: str) -> Fraction:
    """Return the squared μ that a component (`tables.NAME`, `links.NAME`) may cost."""
    return Fraction(job.total_budget.amount) * Fraction(job.shares[piece]) * ALMOST


@dataclass(frozen=True, eq=False)
class LinkBudget:
    """Budget and sensitivities of a link."""

    job: Job
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
        """Squared μ of the number of links, degrees, siblings and sums; histories have the part of the siblings."""
        compares_children = self.siblings or self.history is not None
        return split(budget(self.job, f"links.{self.link.called}"), self.counted, self.degrees, compares_children)

    @property
    def places(self) -> list[Integers]:
        """Thresholds d of the numbers of rows with at most d links: of the parents and, for pairs, of the children."""
        children = [] if self.link.via is None else [thresholds(self.link.bound if self.neighbours.replaces else None)]
        return [thresholds(self.link.bound), *children]

    @property
    def roles(self) -> int:
        """Number of parent rows of a unit; a row at both ends of links counts twice."""
        return 2 if self.link.parent == self.link.child else self.neighbours.rows.get(self.link.parent, 1)

    def sizes(self, table: str) -> tuple[int, ...]:
        """Return the number of values of every attribute of a table's rows in this link.

        Attributes of other parents of a child, and buckets of the degrees in counted links, belong to its rows.
        """
        job, domains = self.job, [self.job.domains[table]]
        if table == self.link.child:
            domains += [job.domains[other.parent] for other in job.other_parents(self.link)]
        counts = [len(buckets(counted.bound)) for counted in job.counted(self.link, table)]
        return *(domain[name].size for domain in domains for name in domain.names), *counts

    def question(self, sides: tuple[Side, Side], links: float) -> LinkProblem:
        """Return the problem of the shares of the three sums of features; `links` is a released or assumed number."""
        amount = float(self.parts.sums) / self.moved**2  # squared μ for one changed link
        return LinkProblem(*sides, links, self.neighbours.protects.relation, amount, self.known)

    def loop(self, links: float) -> Rounds:
        """Return the options of a published loop; a number of rounds that the job leaves open follows from its noise.

        Parameters
        ----------
        links : float
            Number of links, public or noisy.
        """
        loop = self.link.loop
        if self.link.rounds is not None:
            return loop
        return replace(loop, rounds=chosen_rounds(self._loop_size(links), loop, MOST_ROUNDS // loop.each))

    def loop_error(self, links: float) -> float:
        """Return the expected error of a published loop relative to random links; above 1 it is expected to lose.

        Parameters
        ----------
        links : float
            Number of links, public or noisy.
        """
        rounds, size = self.loop(links), self._loop_size(links)
        return round_errors(size, rounds, rounds.rounds)[-1] / size.departure

    def _loop_size(self, links: float) -> LoopSize:
        """Return the quantities that determine the rounds of a published loop.

        `sigma` is the standard deviation of the noise of a marginal that has the whole budget of the rounds. The loop
        spends the share alpha of its budget on selections, so 1 − alpha is left for measurements.
        """
        amount = float(self.parts.sums) * (1 - self.link.loop.alpha)
        sigma = math.sqrt(moved_entries(self.neighbours.protects.relation) * self.moved**2 / amount)
        return LoopSize(
            sizes=(self.sizes(self.link.parent), self.sizes(self.link.child)),
            links=links,
            sigma=sigma,
            departure=DEPARTURE,
        )

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
