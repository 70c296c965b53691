"""First measurement of tables and links, from which the stage `allocate` divides the budget.

    allocation/tables.NAME/      rows and sums of a private table whose rows have no private parent
    allocation/links.NAME/       number of links and sums of features, shares.json
    allocation/degrees.NAME/     degrees of the parents of a link before its bound
    allocation/allocation.json   the shares, written last

Its cost is one entry of the ledger, `RELEASE-allocation`, which is reserved before the first draw. Features are centred
uniformly, because no table is released yet, and attributes whose cells are not public are left out. A row of a table is
counted at most as often as a neighbour changes rows of the table; the rows of a child are those of its links. Degrees
before the bound give the share of links that the bound cuts, and the bounds that the job leaves open
(`max_degree = "private"`), each after those above it, because they determine how many rows a unit has below.

A `Split` has the squared μ of the number of links, of degrees, of siblings and of sums. A feature is an indicator of a
cell of an attribute, centred; the sums of a link are over the features of its parents, of its children and over their
products, in steps of STEP. *Likely* numbers combine a noisy number with a usual one.

*Stage.*
Everything that can be refused is checked before the charge: plans, keys, links and public tables. The division is
stored before its digest is recorded on the ledger; after a stop in between, the stored one is recorded.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.numerics import Floats, Integers, Integers32
from dpscale.job import Job
from dpscale.job.allocation import (
    FILE,
    LINK_SPREAD,
    OPEN,
    ROOT_SPREAD,
    USUAL_ROWS,
    Divisible,
    KnownSizes,
    LinkBudget,
    expected_job,
    first_amount,
    is_open,
    likely_rows,
    with_bounds,
)
from dpscale.job.join_job import join_jobs
from dpscale.job.neighbours import NeighbourRelation, neighbour_relation, table_jobs
from dpscale.job.sections import LinkSection
from dpscale.measurement.journal import Journal
from dpscale.privacy.accounting import Cost
from dpscale.privacy.draws import GaussianDraw, gaussian_draw
from dpscale.privacy.secret import snapshot_tag
from dpscale.records.origin import Stamps
from dpscale.relational.allocation import LinkStrength, NoisySums, even_side, one_way_blocks, pair_blocks
from dpscale.relational.budget_shares import Expected, LinkProblem, Shares, Split, first_shares
from dpscale.relational.degrees import bucket_starts, cut_share, proposed_bound
from dpscale.relational.features import BITS, STEP, Features, Side
from dpscale.runs.charge import (
    ALLOCATION,
    charge,
    check_unchanged,
    ensure_noise_key,
    open_ledger,
    publish_entry,
    release_of_entry,
)
from dpscale.runs.linked_tables import STARTED, LinkedTables, check_public, public_tables
from dpscale.runs.links.link_data import ExactLinks, check_orders
from dpscale.runs.links.link_facts import link_bounds, planned_features, sum_bounds
from dpscale.runs.links.link_parts import LinksByName, LinkStatistics
from dpscale.runs.links.measuring import (
    LEAST_LINKS,
    LinkDraws,
    LinkMeasurement,
    check_tables_have_rows,
    close_all,
    link_draws,
    read_all,
    read_link,
    snapshot_of,
)
from dpscale.runs.run import Run
from dpscale.runs.stages.plan import make_plan
from dpscale.runs.statement import Facts, bound_of
from dpscale.storage.files import read_bytes

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

# parts of the first measurement; the rest is of sums
ROWS = ONES = DEGREES = Fraction(1, 8)
LINKS = Fraction(1, 4)  # of the numbers of links
OPEN_DEGREES = Fraction(3, 8)  # in place of DEGREES if the job leaves a bound open


def job_of_public_cells(job: Job) -> Job:
    """Return the job with the attributes of public cells only, without counts of earlier links and histories."""
    domains = dict(job.declared)
    for name, domain in job.declared.items():
        for searched in domain.searches:
            domains[name] = domains[name].without(searched.name)
    links = [link.model_copy(update={"counts": None, "order_by": None, "parents": None}) for link in job.link]
    return job.with_domains(domains).model_copy(update={"link": links})


@dataclass(frozen=True, eq=False)
class FirstBudget(LinkBudget):
    """Budget of the first measurement of a link.

    Attributes
    ----------
    own : Split
    """

    own: Split = field(default_factory=lambda: Split(*[Fraction(0)] * 4))

    modelled = True
    loops = degrees = siblings = False

    @property
    def counted(self) -> bool:
        """Whether the number of links is measured: of the rows of a child, or of pairs without a public number."""
        return self.own.links > 0

    @property
    def parts(self) -> Split:
        return self.own

    def question(self, sides: tuple[Side, Side], links: float) -> LinkProblem:
        """Return the problem whose solution divides the budget of the sums; `links` is the likely number of links."""
        amount = float(self.own.sums) / self.moved**2  # squared μ for one changed link
        return LinkProblem(*sides, links, self.neighbours.protects.relation, amount)


class _FirstLink(LinkMeasurement):
    """First measurement of a link: the number of links, and the three sums at fixed shares."""

    def count(self) -> float | None:
        """Return the noisy number of links; None if it is not measured."""
        if not self.piece.counted:
            return None
        return float(self._drawn("links", self.piece.links_draw(), lambda exact: np.array([exact.count]))[0])

    def _plan(self, question: LinkProblem) -> Shares:
        return first_shares(question)


@dataclass(frozen=True, eq=False)
class FirstMeasurement:
    """First measurement of a run.

    Attributes
    ----------
    run : LinkedTables
    job : Job
        The job with the attributes that are measured.
    """

    run: LinkedTables
    job: Job

    @cached_property
    def neighbours(self) -> NeighbourRelation:
        return neighbour_relation(self.job)

    @cached_property
    def divisible(self) -> Divisible:
        return Divisible(self.job, self.neighbours)

    @property
    def cost(self) -> Cost:
        """Cost of all draws."""
        return Cost(gaussian=self.amount).coarsened()

    @property
    def terms(self) -> list[Any]:
        """Everything that determines the draws besides job, data and noise key."""
        return [str(self.amount), BITS]

    @cached_property
    def amount(self) -> Fraction:
        """Squared μ of the first measurement."""
        return first_amount(self.run.job)

    @cached_property
    def roots(self) -> list[str]:
        """Private tables whose rows have no private parent: their rows are counted on their own."""
        return [name for name in self.divisible.private if self.divisible.above(name) is None]

    @cached_property
    def counted_links(self) -> list[str]:
        """Links whose number is measured."""
        # their number is the number of rows of a private child
        above = {link.called for name in self.divisible.private if (link := self.divisible.above(name))}
        return [link.called for link in self.job.link if link.called in above or (link.via and link.links is None)]

    @property
    def bounds(self) -> dict[str, dict[str, Facts]]:
        """Bounds of the effect of a unit on each draw, by folder and name, once the job has all bounds of links.

        A bound is a pair of a number of counts and their largest change (`link_facts`). A unit changes `rows` rows of a
        table.
        """
        bounds = {f"links.{link.called}": self._link_bounds(self.piece(link)) for link in self.job.link}
        for name in self.roots:
            rows, features = self.divisible.unit_rows(name), Features(self.divisible.sizes(name), (), None)
            bounds[f"tables.{name}"] = {"rows": bound_of((1, rows), values=1)}
            if features.sizes:
                ones = bound_of((features.squared, rows), values=len(features.attributes))
                bounds[f"tables.{name}"]["ones"] = ones
        for link in self.bounded_links:
            rows = self.neighbours.rows[link.parent]
            bounds[f"degrees.{link.called}"] = {"degrees": bound_of((1, rows), values=len(bucket_starts()))}
        return bounds

    def _link_bounds(self, piece: FirstBudget) -> dict[str, Facts]:
        """Return the bounds of the draws of a link, and of its sums of features if both sides have attributes."""
        found = link_bounds(piece)
        if all(piece.sizes(end) for end in (piece.link.parent, piece.link.child)):
            relation = self.neighbours.protects.relation
            found |= sum_bounds(relation, *planned_features(piece), piece.moved)
        return found

    def piece(self, link: LinkSection) -> FirstBudget:
        """Return the budget of a link: equal shares of what all numbers of links cost, and of what the sums cost.

        The sums have the budget that the other kinds of draws leave; a kind of which nothing is measured needs none.
        """
        links = self.amount * LINKS / len(self.counted_links) if link.called in self.counted_links else Fraction(0)
        kinds = [
            (ROWS, self.roots),
            (ONES, self.roots),
            (LINKS, self.counted_links),
            (self.degrees_part, self.bounded_links),
        ]
        used = sum(part for part, measured in kinds if measured)
        sums = self.amount * (1 - used) / len(self.job.link)
        return FirstBudget(
            job=self.job,
            neighbours=self.neighbours,
            link=link,
            own=Split(links=links, degrees=Fraction(0), siblings=Fraction(0), sums=sums),
        )

    @cached_property
    def bounded_links(self) -> list[LinkSection]:
        """Links whose bound cuts the links of a private parent, the top first.

        There are none if neighbours replace rows; links of a table with itself are left out.
        """
        if self.neighbours.replaces:
            return []
        private = [link for link in self.job.link if link.parent in self.divisible.private]
        bounded = [link for link in private if link.parent in self.neighbours.rows and link.parent != link.child]
        return sorted(bounded, key=lambda link: self.divisible.depth(link.parent))

    def _place(self, link: LinkSection) -> tuple[int, bool]:
        """Return a key that sorts links so that the rows of both ends are counted before.

        It is the depth of the lower end below its root; of links with equal depth those that count the rows of their
        child come first.
        """
        depths = [self.divisible.depth(name) for name in (link.parent, link.child) if name in self.divisible.private]
        return max(depths, default=0), self.divisible.above(link.child) != link

    @cached_property
    def open_bounds(self) -> list[str]:
        """Links whose bound the job leaves open."""
        return [link.called for link in self.run.stated_job.link if link.max_degree == OPEN]

    @property
    def degrees_part(self) -> Fraction:
        """Part of the first measurement for degrees; a larger one if they choose a bound."""
        return OPEN_DEGREES if self.open_bounds else DEGREES

    def degrees_draw(self, link: LinkSection) -> GaussianDraw:
        amount = self.amount * self.degrees_part / len(self.bounded_links)
        return gaussian_draw(1, amount, self.neighbours.rows[link.parent], f"degrees of link {link.called}")

    def with_private_bounds(self, engine: Engine, check: Callable[[], None]) -> FirstMeasurement:
        """Return the measurement for the job with the bounds that it leaves open; `check` is called before a draw.

        A link with max_degree OPEN gets a bound from a noisy histogram of its degrees; if this proposes none, the bound
        of the link stays.
        """
        first = self
        for link in [link for link in self.bounded_links if link.max_degree == OPEN]:
            with closing(read_link(engine, first.job, link, first.neighbours)) as exact:
                check()
                noisy, draw = first.degrees(link, exact), first.degrees_draw(link)
            bound = proposed_bound(noisy, draw.lattice_variance**0.5) or link.bound
            first = replace(first, job=with_bounds(first.job, {link.called: bound}))
        return first

    def degrees(self, link: LinkSection, exact: LinkStatistics) -> Floats:
        """Return the noisy histogram of degrees before the bound, drawn once."""
        draws = self.draws(f"degrees.{link.called}", f"degrees of {link.called}")
        return self._drawn(draws, "degrees", self.degrees_draw(link), exact.degree_histogram)

    def cut_shares(self, exact: LinksByName) -> dict[str, float | None]:
        """Return the noisy share of links that each bound cuts; None if the noise hides all degrees."""
        shares = {}
        for link in self.bounded_links:
            noisy, error = self.degrees(link, exact[link.called]), self.degrees_draw(link).lattice_variance ** 0.5
            shares[link.called] = cut_share(noisy, error, link.bound)
        return shares

    def rows_draw(self, table: str) -> GaussianDraw:
        amount = self.amount * ROWS / len(self.roots)
        return gaussian_draw(1, amount, self.divisible.unit_rows(table), f"rows of table {table}")

    def ones_draw(self, table: str) -> GaussianDraw:
        squared = Features(self.divisible.sizes(table), (), None).squared
        amount = self.amount * ONES / len(self.roots)
        return gaussian_draw(squared, amount, self.divisible.unit_rows(table), f"attributes of table {table}")

    def measure(self, exact: LinksByName) -> KnownSizes:
        """Draw what is not stored, and return the numbers of rows and links and the strengths of the links.

        Public tables have exact means of features, and roots (private tables without a private parent) noisy ones. The
        rows of other private tables are measured through the links to their parents (`_linked`).
        """
        links = [_FirstLink(self.run, self.piece(link), self._sides(link), exact[link.called],
                            self.draws(f"links.{link.called}", link.called)) for link in self.job.link]  # fmt: skip
        rows, means = dict[str, float](), dict[str, NoisySums]()
        for name, public in public_tables(self.run).items():
            means[name] = self._public_mean(name, public[0])
        for name in self.roots:
            rows[name], means[name] = self._table(name, exact)
        return self._linked(links, rows, means)

    def _sides(self, link: LinkSection) -> tuple[Side, Side]:
        return even_side(self.divisible.sizes(link.parent)), even_side(self.divisible.sizes(link.child))

    def _table(self, name: str, exact: LinksByName) -> tuple[float, NoisySums]:
        """Return the likely number of rows of a root table, and the noisy means of its features.

        The rows are those of an end (`side`) of a link of the table, which has one row for each key.
        """
        (links, side), sizes = end_of(self.job, name, exact), self.divisible.sizes(name)
        draws = self.draws(f"tables.{name}", f"table {name}")
        draw = self.rows_draw(name)
        noisy = self._drawn(draws, "rows", draw, lambda: np.array([links.table_rows(side)], np.int64))
        count = likely_rows(float(noisy[0]), draw.lattice_variance**0.5, USUAL_ROWS, ROOT_SPREAD)
        if not sizes:
            return count, NoisySums(np.zeros(0), 0.0)
        ones = self.ones_draw(name)
        features = Features(sizes, (), None)
        sums = self._drawn(draws, "ones", ones, lambda: links.table_sums(side, features)) * STEP
        return count, NoisySums(sums / count, ones.lattice_variance * STEP**2 / count**2)

    def _public_mean(self, name: str, codes: Integers32) -> NoisySums:
        """Return the means of the features of a public table, exact and with variance 0.

        `codes` are the cells of its rows, (rows, attributes), with all attributes of the table as `self.run.job`
        declares them. `self.job` has only those that the first measurement uses: attributes whose cells a search finds
        are left out.
        """
        domain = self.run.job.declared[name]
        columns = [domain.names.index(attribute) for attribute in self.job.domains[name].names]
        # no public shares and no bound of the norm: one-hots are centred at 1/n, the same map as in `_table`
        values = Features(self.divisible.sizes(name), (), None).whole(codes[:, columns])
        return NoisySums(values.mean(axis=0) * STEP, 0.0)

    def _linked(self, links: list[_FirstLink], rows: dict[str, float], means: dict[str, NoisySums]) -> KnownSizes:
        """Return the sizes of all tables and links, and the strength of each link (how its ends depend on each other).

        `rows` and `means` (of features) are those of roots and public tables by name, and completed in place: each link
        is measured after its parent, and a child that has one link for each row has as many rows as links.
        """
        counts, strengths = dict[str, float](), dict[str, LinkStrength]()
        sums = dict[str, tuple[NoisySums, NoisySums, NoisySums]]()
        ordered = sorted(links, key=lambda first: self._place(first.link))
        for first in ordered:
            link, noisy = first.link, first.count()
            # the number of links that is assumed without a measurement
            usual = self.divisible.usual_links(link, rows | {link.child: self._usual_children(link, rows)})
            if noisy is not None:
                noise = first.piece.links_draw().lattice_variance ** 0.5
                counts[link.called] = likely_rows(noisy, noise, usual, LINK_SPREAD)
            else:
                counts[link.called] = usual if link.via else rows.get(link.child, usual)

            sums[link.called] = self._sums(first, counts[link.called])
            if self.divisible.above(link.child) == link:
                total = counts[link.called]
                _, of_child, _ = sums[link.called]
                rows[link.child] = total
                # means of features: sums divided by the number of rows, and variances by its square
                means[link.child] = NoisySums(of_child.values / total, of_child.variance / total**2)

        for first in ordered:
            called = first.link.called
            strengths[called] = self._strength(first, counts[called], sums[called], means)
        return KnownSizes(rows, counts, strengths)

    def _usual_children(self, link: LinkSection, rows: Mapping[str, float]) -> float:
        """Return the rows of a link's child: the likely ones, or an assumed √bound for each row of the parent."""
        return rows.get(link.child) or rows.get(link.parent, 0.0) * math.sqrt(link.bound) or LEAST_LINKS

    def _sums(self, first: _FirstLink, links: float) -> tuple[NoisySums, NoisySums, NoisySums]:
        """Return the three noisy sums over the links: of the parent's features, of the child's, and of their products.

        They are empty if a side has no attributes.
        """
        if not all(side.sizes for side in first.sides):
            empty = NoisySums(np.zeros(0), 0.0)
            return empty, empty, empty
        shares = first.shares(max(links, LEAST_LINKS))
        sums = first.sums(shares)
        # a sum that is not measured has an infinite variance
        variances = [1 / precision if precision > 0 else math.inf for precision in shares.precisions]
        u, v, both = (NoisySums(np.asarray(values), variance)
                      for values, variance in zip(sums, variances, strict=True))  # fmt: skip
        return u, v, both

    def _strength(self, first: _FirstLink, links: float, sums: tuple[NoisySums, NoisySums, NoisySums],
                  means: Mapping[str, NoisySums]) -> LinkStrength:  # fmt: skip
        """Return how much the sums of a link differ from those of random links, beyond their noise.

        A child with exactly one link for each row has the means of its table, so it shows no difference alone.
        """
        of_parent, of_child, _ = sums
        if not len(of_parent.values):
            return LinkStrength.prior()
        u, v = (Expected.random(side, Features.of_side(side, None), max(links, LEAST_LINKS)) for side in first.sides)
        one_way = one_way_blocks(u, of_parent, means[first.link.parent])
        if first.link.via is not None:
            one_way += one_way_blocks(v, of_child, means[first.link.child])
        return LinkStrength.of(one_way, pair_blocks(u, v, sums))

    def draws(self, folder: str, name: str) -> LinkDraws:
        """Return the draws of a table, of a link or of degrees, which are a part each on the ledger."""
        run = self.run
        release = release_of_entry(run.run, ALLOCATION)
        journal = Journal(
            part=folder,
            release=release,
            charge=lambda: charge(run.run, ALLOCATION),
            open_ledger=lambda: open_ledger(run.run),
        )
        return link_draws(run, run.path / "allocation" / folder, name, journal, release)

    def _drawn(self, draws: LinkDraws, name: str, draw: GaussianDraw, compute: Callable[[], Integers]) -> Floats:
        """Return a sum over the rows of a table, drawn once.

        `content` is the text that identifies the draw in the journal: a keyed digest of the exact sums, and the
        parameters of the noise. `compute` returns the exact sums, if they are not drawn yet.
        """
        manifest = self.run.manifest

        def content(exact: Callable[[], Integers]) -> dict[str, Any]:
            tag = snapshot_tag(self.run.run.secret.read(), hashlib.sha256(exact().tobytes()).hexdigest())
            return {"snapshot": manifest["snapshot"], "key": manifest["secret_tag"], "name": draws.name, "sums": tag,
                    "draw": name, "multiplier": str(draw.multiplier), "variance": str(draw.variance)}  # fmt: skip

        return draws.draw(name, name, draw, compute, content)


def division_journal(run: Run) -> Journal:
    """Return the journal of the division of the budget: other shares under the same release are refused."""
    release = release_of_entry(run, ALLOCATION)
    return Journal(
        part="division", release=release, charge=lambda: charge(run, ALLOCATION), open_ledger=lambda: open_ledger(run)
    )


def division_digest(run: Run) -> str:
    """Return the digest of the stored division."""
    return hashlib.sha256(read_bytes(run.path / FILE)).hexdigest()


def end_of(job: Job, table: str, exact: LinksByName) -> tuple[LinkStatistics, int]:
    """Return a link and its side that has the rows of a table without a private parent, one for each key.

    Side 0 has the parents, side 1 the children. A table without links gets a link without rows.
    """
    for side, ends in enumerate(([link.parent for link in job.link], [link.child for link in job.link])):
        if table in ends:
            return exact[job.link[ends.index(table)].called], side
    width = len(job.domains[table].names)
    none = np.zeros((0, width), np.int32)
    return ExactLinks(np.zeros((0, 2), np.int64), none, none), 0


def perform(run: Run, engine: Engine) -> None:
    """Measure, divide the budget, and record the shares, which the run then has; publish the entry of the measurement.

    A division that is stored is not measured again.
    """
    whole = run.content
    assert isinstance(whole, LinkedTables)
    whole.pin_versions()
    if not whole.is_allocated:
        _measure_and_divide(FirstMeasurement(whole, job_of_public_cells(whole.job)), engine)
    charge(run, ALLOCATION)
    division_journal(run).record(0, division_digest(run))
    publish_entry(run, ALLOCATION)


def _measure_and_divide(first: FirstMeasurement, engine: Engine) -> None:
    """Charge and make the first measurement (sizes of tables and links), and record the shares that follow from it.

    Everything that can refuse the data is checked before the first draw. Bounds of links that the job leaves open are
    chosen from a measurement of degrees, after which the links are read again with these bounds.
    """
    whole, run = first.run, first.run.run
    charge(run, ALLOCATION, reserve=False)
    check_plans(whole, engine)
    ensure_noise_key(run)
    before = whole.file_stamps()
    snapshot_of(whole, engine)
    check_public(whole.job)
    check_tables_have_rows(whole, engine)
    check_orders(engine, whole.job)
    if any(domain.searches for domain in whole.job.declared.values()):
        # later stages read the links with attributes whose cells are not known yet
        close_all(read_all(whole.job, whole.neighbours, engine))
    with ExitStack() as ending:
        exact = _read(first, engine, before, ending)
        whole.run.update(divides=STARTED)
        if first.open_bounds:
            first = first.with_private_bounds(engine, lambda: check_unchanged(run, before))
            ending.close()
            exact = _read(first, engine, before, ending)
        known, cut = first.measure(exact), first.cut_shares(exact)

    bounds = {link.called: link.bound for link in first.job.link if is_open(whole.job, link)}
    divisible = Divisible(with_bounds(whole.job, bounds), first.neighbours)
    content = divisible.divide(known, measured=True).to_dict()
    whole.record_allocation(content | {"bounds": bounds, "cut": cut})


def _read(first: FirstMeasurement, engine: Engine, before: list[Stamps], ending: ExitStack) -> LinksByName:
    """Read and check all links; `ending` closes them.

    `before` are size and time of the files before the reading; a file that changed since is refused.
    """
    exact = read_all(first.job, first.neighbours, engine)
    ending.callback(close_all, exact)
    check_unchanged(first.run.run, before)
    return exact


def check_plans(run: LinkedTables, engine: Engine) -> None:
    """Raise an error for tables and joins that cannot be planned, before the first measurement is charged.

    They are planned for the expected shares; cells that are not public are those that the domain files assume.
    """
    job, _ = expected_job(run.job)
    for part in (*table_jobs(job).values(), *join_jobs(job, neighbour_relation(job)).values()):
        make_plan(part, part.planning_problem(part.build_workload(part.read_domain())), engine)
