"""Measure links: read and check them, charge the budget, then add noise to three kinds of sums, each exactly once.

Few links are pairs of rows in the driver's memory, many are parts that tasks read and sum. Sums are integers until the
noise is added. The split of the budget between the sums is planned from public or released inputs only: the synthetic
rows of the tables and the noisy number of links.

*Draws of a link.*
Each is a decision of the link's part and has a name. It is drawn once and stored. SUMS are the sums of the features of
parents (u), of children (v) and of their products over all links; the budget of each is planned from released values.

*Published loop.*
Every selection is stored and recorded on the ledger before its noise is drawn. A selection uses exact counts: integer
distances, the exponential mechanism and a keyed stream. The ledger first records the inputs of the selection (earlier
rounds and the rows of both sides). The selection is stored in `round-NN.json`, and the ledger records its digest. A
copy of the directory therefore cannot select or draw differently.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.errors import BudgetError, JobError
from dpscale.base.numerics import Floats, Integers
from dpscale.contributions.links import with_key_ids
from dpscale.job import Job
from dpscale.job.allocation import LinkBudget
from dpscale.job.neighbours import NeighbourRelation
from dpscale.job.sections import LinkSection
from dpscale.measurement.adaptive import distance
from dpscale.measurement.journal import Journal, StoredDraws
from dpscale.measurement.measurement import draw_of_precision
from dpscale.plans.measurement_plan import SCALE
from dpscale.privacy.draws import GaussianDraw, gaussian_draw
from dpscale.privacy.secret import snapshot_tag
from dpscale.privacy.selection import draw_index, scale_for
from dpscale.privacy.streams import PublicStream, open_stream
from dpscale.records.origin import fingerprints, joint_digest
from dpscale.relational.assignment import PairTables
from dpscale.relational.budget_shares import (
    LinkProblem,
    Shares,
    plan_shares,
    precisions_in_steps,
    random_error,
    sums_cost,
)
from dpscale.relational.features import BITS, Features, Side
from dpscale.relational.history import NoisyHistory, parent_counts, step_counts
from dpscale.relational.published import Fit, Rounds, moved_entries, run_rounds
from dpscale.relational.rounding import Cross
from dpscale.runs.charge import journal_of, release_of_entry
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.links.link_data import ExactLinks, keyed, read_links, with_counts
from dpscale.runs.links.link_parts import LinksByName, LinkStatistics, PartedLinks, number_of_parts, read_parts
from dpscale.runs.run import Part
from dpscale.runs.source import check_rows_exist, check_same_files, is_open_to_no_rows, record_tags
from dpscale.storage.files import present, read_bytes, writing

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

SUMS = ("u", "v", "both")
ROUNDS = "rounds.json"  # number of rounds of a published loop that the job leaves open
VERSION = 1  # of the mechanism in noise labels: another number gives other noise
# draws of a link, and in the first measurement of a table, by their numbers
NAMES = ("links", "degrees", "siblings", "steps", "histories", *SUMS, "rows", "ones")

LEAST_LINKS = 2.0  # least number of links after noise
SIDES = ("parent", "child")


@dataclass(frozen=True, eq=False)
class LinkDraws:
    """Draws of a link, or of a table or a histogram of degrees in the first measurement.

    Attributes
    ----------
    values : StoredDraws
    name : str
        Name in the labels of noise.
    journal : Journal
    secret : callable
        secret() returns the noise key.
    """

    values: StoredDraws
    name: str
    journal: Journal = field(repr=False)
    secret: Callable[[], bytes] = field(repr=False)

    @property
    def folder(self) -> Path:
        return self.values.folder

    @staticmethod
    def number(name: str) -> int:
        """Return the number of a draw: selections and values of the rounds of a published loop follow the others.

        NAMES are the draws with a fixed number. "KIND-NUMBER" is a draw of a round: the selection of a round precedes
        its values ("round").
        """
        if name in NAMES:
            return NAMES.index(name)
        kind, _, round_number = name.partition("-")
        return len(NAMES) + 2 * int(round_number) + (kind == "round")

    def has(self, name: str) -> bool:
        """Return whether a draw is stored."""
        return self.values.path(self.number(name)) is not None

    def measured(self, name: str) -> Floats | None:
        """Return the stored noisy sums in units of the query, or None if they are not measured yet."""
        found = self.values.read(self.number(name))
        return None if found is None else found[0]

    def draw(
        self,
        name: str,
        query: str,
        draw: GaussianDraw,
        counts: Callable[[], Integers],
        content: Callable[[Callable[[], Integers]], Mapping[str, Any]],
    ) -> Floats:
        """Return noisy sums in units of the query, drawn once.

        Parameters
        ----------
        name : str
            Name of the draw.
        query : str
            Text that identifies the sums among those of the same name: a digest of the features that are summed.
        draw : GaussianDraw
        counts : callable
            counts() returns the exact sums.
        content : callable
            Content of the decision, given `counts`.
        """
        request = draw, self.label(name, query, draw)
        # one draw of several in general, hence lists of requests, of exact sums and of results
        [noisy] = self.values.draw(self.journal, self.number(name), [request], lambda: [counts()], self.secret,
                                   lambda exact: content(lambda: exact()[0]))  # fmt: skip
        return noisy

    def label(self, name: str, query: str, draw: GaussianDraw) -> dict[str, Any]:
        """Return the fields of a noise label beside release and snapshot."""
        identity = {"link": self.name, "sum": name, "asked": query}
        noise = {**draw.noise_spec, "multiplier": str(draw.multiplier)}
        return {"mechanism": f"links/{VERSION}", "round": 0, "query": identity, "noise": noise}


def link_draws(run: LinkedTables, folder: Path, name: str, journal: Journal, release: str) -> LinkDraws:
    """Return the draws in a folder under a release."""
    head = {"release": release, "snapshot": str(run.manifest["snapshot"])}
    return LinkDraws(values=StoredDraws(folder, head), name=name, journal=journal, secret=run.run.secret.read)


@dataclass(frozen=True, eq=False)
class MeasuredLinks:
    """Noisy measurements of one link.

    Attributes
    ----------
    links : number of links.
    by_degree : noisy numbers of rows by degree, for each side that has a degree histogram.
    shares, sums : budget shares and noisy feature sums, the inputs of `relational.link_estimation`.
    sigma : standard deviation of the noise of `by_degree`.
    siblings, sibling_sigma : noisy sums over children of the same parent, and the standard deviation of their noise.
    history : noisy tables of histories.
    chances : probability of a link for every pair of profiles; only with the mechanism "published".
    """

    links: float
    by_degree: Mapping[str, Floats]
    shares: Shares | None = None
    sums: tuple[Floats | None, ...] = ()
    sigma: float = 0.0
    siblings: Floats | None = None
    sibling_sigma: float = 0.0
    history: NoisyHistory | None = None
    chances: Floats | None = None


def measure_link(
    run: LinkedTables, link: LinkSection, sides: tuple[Side, Side], exact: LinkStatistics | None, draws: LinkDraws
) -> MeasuredLinks:
    """Return all measurements of a link; what is not stored is drawn. `exact` may be None if everything is stored."""
    return LinkMeasurement(run=run, piece=piece_of(run, link), sides=sides, exact=exact, draws=draws).all()


def piece_of(run: LinkedTables, link: LinkSection) -> LinkBudget:
    return LinkBudget(run.closed_job, run.neighbours, link)


def draws_of(part: Part, run: LinkedTables) -> LinkDraws:
    """Return the draws of the part of a link."""
    release = release_of_entry(run.run, "privacy")
    return link_draws(run, part.path, part.name.partition(".")[2], journal_of(part), release)


def stored_draws(run: LinkedTables, link: LinkSection) -> LinkDraws:
    """Return the draws of a link, to be read."""
    return draws_of(Part(run.run, f"links.{link.called}", f"links/{link.called}"), run)


@dataclass(frozen=True, eq=False)
class LinkMeasurement:
    """Measurements of a link; each is drawn once, and then read from its file.

    Attributes
    ----------
    run : LinkedTables
    piece : LinkBudget
    sides : tuple of Side
    exact : LinkStatistics or None
        None if all measurements are stored.
    draws : LinkDraws
    stored : dict
        Exact sums, computed once.
    """

    run: LinkedTables
    piece: LinkBudget
    sides: tuple[Side, Side]
    exact: LinkStatistics | None
    draws: LinkDraws
    stored: dict[str, Any] = field(default_factory=dict)

    @property
    def link(self) -> LinkSection:
        return self.piece.link

    def all(self) -> MeasuredLinks:
        """Return all measurements of the link; what is not stored is drawn.

        A link that is not modelled has no sums: its shares are 0 and its children are linked with random parents.
        """
        links = self._links()
        if self.piece.loops:
            return self._published(links)

        by_degree, sigma = self._degrees() if self.piece.degrees else ({}, 0.0)
        if not self.piece.modelled:
            return MeasuredLinks(
                links=links,
                by_degree={},
                shares=Shares(*self._features((None, None)), (0.0, 0.0, 0.0), 0.0),
                sums=(None,) * 3,
            )
        shares = self.shares(links)
        sums = self.sums(shares)
        return MeasuredLinks(links, by_degree, shares, sums, sigma, *self._siblings(), self._history())

    def _siblings(self) -> tuple[Floats | None, float]:
        """Return the sibling sums in natural units and the standard deviation of their noise.

        They are contingency tables over pairs of children of the same parent, measured in steps of 2^-BITS.
        """
        if not self.piece.siblings:
            return None, 0.0
        tables = PairTables(self.sides[1].sizes)
        draw = self.piece.siblings_draw(tables)
        sums = self._drawn("siblings", draw, lambda exact: exact.siblings(tables))
        return sums * 2.0**-BITS, draw.lattice_variance**0.5 * 2.0**-BITS

    def _history(self) -> NoisyHistory | None:
        """Return the noisy tables of histories, the children of a parent in order; None without an order.

        They count steps (pairs of consecutive children) and parents (by their first child and number of children).
        """
        tables = self.piece.history
        if tables is None:
            return None
        steps_draw, parents_draw = self.piece.steps_draw(tables), self.piece.parents_draw(tables)
        steps = self._drawn("steps", steps_draw, lambda exact: step_counts(*_ordered(exact), tables))
        parents = self._drawn("histories", parents_draw, lambda exact: parent_counts(*_ordered(exact), tables))
        sigmas = steps_draw.lattice_variance**0.5, parents_draw.lattice_variance**0.5
        return NoisyHistory(tables=tables, steps=steps, parents=parents, sigmas=sigmas)

    def _published(self, links: float) -> MeasuredLinks:
        """Return the probabilities of links that a published loop fits, in rounds that each measure some marginals.

        u and v are both sides of the link. Without links the probabilities are 0.
        """
        u, v = self.sides
        fit = Fit(u=u, v=v, links=float(min(round(links), u.rows * v.rows)), known=self.piece.known)
        if fit.links == 0:
            return MeasuredLinks(0.0, {}, chances=np.zeros(fit.cap.shape))
        piece, relation = self.piece, self.run.neighbours.protects.relation
        rounds = self._rounds(fit.links)
        loop = PublishedLoop(
            draws=self.draws,
            rounds=rounds,
            amount=piece.parts.sums,
            relation=relation,
            moved=piece.moved,
            exact=self._entries,
            sign=self._sign,
        )
        return MeasuredLinks(fit.links, {}, chances=loop.run_rounds(fit))

    def _rounds(self, links: float) -> Rounds:
        """Return the options of the loop, whose number of rounds is stored for readers if the job leaves it open.

        ROUNDS is the file with the number of rounds, which depends on the released number of links.
        """
        rounds, path = self.piece.loop(links), self.draws.folder / ROUNDS
        if self.link.rounds is None and not present(path):
            with writing(path) as file:
                file.write(json.dumps(rounds.rounds).encode())
        if self.link.rounds is None and json.loads(read_bytes(path)) != rounds.rounds:
            raise JobError("run directory", f"{ROUNDS} of link {self.link.called} has another number",
                           "the unmodified directory of the run", "restore it, or start a new run")  # fmt: skip
        return rounds

    def _entries(self) -> Integers:
        """Return the exact entries of all cross marginals, one after the other; computed once.

        A cross marginal is a table of links by attributes of both ends, up to `order` attributes.
        """
        if self.exact is None:
            raise self._missing("rounds")
        if "entries" not in self.stored:
            parent, child = self.sides
            self.stored["entries"] = self.exact.entry_sums((parent.sizes, child.sizes), order=self.link.loop.order)
        return self.stored["entries"]

    def shares(self, links: float) -> Shares:
        """Return the planned shares, stored before any sum is sampled: another machine's solver may differ.

        They have the limit of the norm of features of each side (`clips`), and the precision, 1 / variance, of each of
        the three sums: 0 if a sum is not measured.
        """
        path = self.draws.folder / "shares.json"
        if not present(path):
            question = self.piece.question(self.sides, links)
            planned = self._plan(question)
            content = {"clips": [planned.u.clip, planned.v.clip], "precisions": planned.precisions,
                       "expected": planned.expected, "random": random_error(question)}  # fmt: skip
            with writing(path) as file:
                file.write(json.dumps(content).encode())
        stored = json.loads(read_bytes(path))
        return Shares(*self._features(stored["clips"]), tuple(stored["precisions"]), stored["expected"])

    def _plan(self, question: LinkProblem) -> Shares:
        return plan_shares(question)

    def _features(self, clips: Sequence[float | None]) -> tuple[Features, Features]:
        u, v = (Features.of_side(side, clip) for side, clip in zip(self.sides, clips, strict=True))
        return u, v

    def _links(self) -> float:
        """Return the number of links: noisy if it is counted, otherwise allocated, stated, or that of the children.

        A known link has one parent for each child, so that there are at most as many links as children.
        """
        if not self.piece.counted:
            # the first measurement knows the number of links that are neither modelled nor one for each child
            allocated = None if self.piece.modelled or self.piece.every_child else self.run.allocated["links"]
            return float(allocated[self.link.called] if allocated else self.link.links or max(self.sides[1].rows, 1))
        noisy = self._drawn("links", self.piece.links_draw(), lambda exact: np.array([exact.count], np.int64))
        largest = self.sides[1].rows if self.piece.known else math.inf  # a child has at most one link
        return float(max(min(noisy[0], largest), LEAST_LINKS))

    def _degrees(self) -> tuple[dict[str, Floats], float]:
        """Return noisy numbers of rows by degree, for each side, and the standard deviation of their noise.

        Degrees are numbers of links. Sides without a bound have a grid of degrees in place of every degree.
        """
        degrees_of_sides, draw = self.piece.places, self.piece.degrees_draw()

        def counts(exact: LinkStatistics) -> Integers:
            return np.concatenate([exact.by_degree(side, degrees) for side, degrees in enumerate(degrees_of_sides)])

        noisy = self._drawn("degrees", draw, counts)
        by_side = np.split(noisy, np.cumsum([len(degrees) for degrees in degrees_of_sides])[:-1])
        return dict(zip(SIDES, by_side, strict=False)), draw.lattice_variance**0.5  # the children may be missing

    def sums(self, shares: Shares) -> tuple[Floats | None, ...]:
        """Return the noisy sums of the parent's features, the child's and their products, in natural units.

        A sum of precision 0 is not measured: None. The total cost is checked before any noise is sampled. Features are
        integers in steps of 2^-BITS, products in the square of it.
        """
        label = f"link {self.link.called}"
        draws = [draw_of_precision(precision, label) if precision > 0 else None
                 for precision in precisions_in_steps(shares)]  # fmt: skip
        precisions = tuple(Fraction(0) if draw is None else draw.cost for draw in draws)
        relation = self.run.neighbours.protects.relation
        if sums_cost(relation, shares, precisions, self.piece.moved) > self.piece.parts.sums:  # type: ignore[arg-type]
            raise BudgetError("privacy", f"sums of link {self.link.called} that cost more than their share",
                              "at most the charge", "report this as a bug; nothing was drawn")  # fmt: skip
        widths = len(shares.u.attributes), len(shares.v.attributes)
        units_and_shapes = ((2.0**-BITS, widths[:1]), (2.0**-BITS, widths[1:]), (4.0**-BITS, widths))
        sums: list[Floats | None] = []
        for number, (name, draw, (unit, shape)) in enumerate(zip(SUMS, draws, units_and_shapes, strict=True)):
            if draw is None:
                sums.append(None)
            else:
                sums.append(unit * self._drawn(name, draw, partial(self._exact_sum, shares, number)).reshape(shape))
        return tuple(sums)

    def _exact_sum(self, shares: Shares, at: int, _: LinkStatistics) -> Integers:
        return self._exact(shares)[at]

    def _exact(self, shares: Shares) -> tuple[Integers, ...]:
        """Return the exact three sums of features over all links, in steps; computed once."""
        if "sums" not in self.stored:
            assert self.exact is not None
            self.stored["sums"] = self.exact.sums(shares.u, shares.v)
        return tuple(self.stored["sums"])

    def _drawn(self, name: str, draw: GaussianDraw, compute: Callable[[LinkStatistics], Integers]) -> Floats:
        """Return the noisy values of a draw: the stored ones, or compute(links) with new noise, which is stored."""
        query = self._query_text(late=name in SUMS)  # sums are planned from released values

        def counts() -> Integers:
            if self.exact is None:
                raise self._missing(name)
            return compute(self.exact)

        return self.draws.draw(name, query, draw, counts, lambda _: self._sign([name, query]))

    def _missing(self, name: str) -> JobError:
        return JobError("run directory", f"{name} of link {self.link.called} and the noise secret are missing",
                        "the unmodified directory of the run", "restore it, or start a new run")  # fmt: skip

    def _query_text(self, late: bool) -> str:
        """Return the text that identifies a query in labels and in the journal.

        It is the degree bound, or a digest of the features of both sides for queries that are planned late, from
        released values.
        """
        if not late:
            return f"bound {self.link.bound}"
        shares = read_bytes(self.draws.folder / "shares.json")
        return hashlib.sha256(shares + self._ones().encode()).hexdigest()

    def _ones(self) -> str:
        """Return a digest of the value shares of both sides, which determine the features."""
        parts = [shares.tobytes() for side in self.sides for shares in side.ones]
        return hashlib.sha256(b"".join(parts)).hexdigest()

    def _tag(self) -> str:
        """Return a keyed digest of the links as read; files may change after they were hashed."""
        if self.exact is None:
            raise self._missing("draws")
        if "tag" not in self.stored:
            self.stored["tag"] = snapshot_tag(self.run.run.secret.read(), self.exact.digest())
        return str(self.stored["tag"])

    def _sign(self, records: list[str]) -> dict[str, Any]:
        """Return what determines a draw, as the journal records it: the data, link, budget and noise key of the run.

        `records` are texts that say which sums are drawn.
        """
        manifest = self.run.manifest
        return {
            "records": records,
            "snapshot": manifest["snapshot"],
            "key": manifest["secret_tag"],
            "link": self.link.called,
            "links": self._tag(),
            "sides": self._ones(),
            "shares": [str(part) for part in vars(self.piece.parts).values()],
        }


def _ordered(exact: ExactLinks | PartedLinks) -> tuple[Integers, Integers]:
    """Return children by parent and in order; histories are not divided into parts."""
    assert isinstance(exact, ExactLinks)
    return exact.history()


def read_all(job: Job, neighbours: NeighbourRelation, engine: Engine) -> LinksByName:
    """Read and check every link of the job before any budget is spent; close them at the end."""
    if neighbours.replaces:  # duplicate keys are refused, also in tables that no link reads
        for name in neighbours.steps:
            if job.key(name):
                keyed(engine, job, name)
    links_by_name: dict[str, ExactLinks | PartedLinks] = {}
    with ExitStack() as ending:
        for link in job.link:
            exact = read_link(engine, job, link, neighbours)
            if isinstance(exact, ExactLinks):
                counted = {name: links for name, links in links_by_name.items() if isinstance(links, ExactLinks)}
                exact = with_counts(job, link, exact, counted)
            ending.callback(exact.close)  # if a later link is refused
            links_by_name[link.called] = exact
        ending.pop_all()  # the caller closes them
    return links_by_name


def close_all(exact: LinksByName) -> None:
    """Remove the temporary files of links."""
    with ExitStack() as ending:
        for links in exact.values():
            ending.callback(links.close)


def read_link(engine: Engine, job: Job, link: LinkSection, neighbours: NeighbourRelation) -> ExactLinks | PartedLinks:
    """Return the links that count, in parts if they are many; close them at the end."""
    if (parts := number_of_parts(job, link, neighbours)) > 1:
        return read_parts(engine, job, link, neighbours, parts)
    return read_links(engine, job, link, neighbours)


def check_tables_have_rows(run: LinkedTables, engine: Engine) -> None:
    """Raise DataError before the first charge if a private table has no row that is counted, unless that is allowed."""
    if is_open_to_no_rows(run.run):
        return
    data = run.open_data()
    for name, domain in run.job.declared.items():
        if not run.job.tables[name].public:
            # attributes whose values can drop a row; otherwise one suffices to count rows
            names = [attribute for attribute in domain.axis_names if domain[attribute].drops] or list(
                domain.axis_names[:1]
            )
            section, table = run.job.tables[name], data[f"tables.{name}.path"]
            unit = None
            # rows without a unit are dropped too
            if section.privacy_unit is not None and section.unit_nulls == "drop":
                columns, rule = section.unit_columns, section.unit_type or ""
                table, unit = with_key_ids(table, columns, rule=rule), section.unit_column
            check_rows_exist(table, names, engine, f"tables.{name}.path", unit)


def snapshot_of(run: LinkedTables, engine: Engine) -> str:
    """Return the keyed snapshot tag of the data; raise DataError if the data changed since the release started."""
    each, recorded = engine.each("snapshot"), run.manifest["snapshot"]
    prints = {name: (table, fingerprints(table, footers=False, each=each)) for name, table in run.open_data().items()}
    content = json.dumps([joint_digest(table, of_files) for table, of_files in prints.values()])
    tag = snapshot_tag(run.run.secret.read(), hashlib.sha256(content.encode()).hexdigest())
    if recorded not in (None, tag):
        check_same_files(run, prints, run.run.is_charged)
        tag = str(recorded)
    record_tags(run, prints)
    run.run.update(snapshot=tag, data=run.layouts())
    return tag


@dataclass(frozen=True, eq=False)
class PublishedLoop:
    """Published loop for one link.

    Attributes
    ----------
    draws : LinkDraws
    rounds : Rounds
    amount : Fraction
        Squared μ.
    relation : str
    moved : int
        Number of links that a neighbour changes.
    exact : callable
        exact() returns the entries of all cross marginals.
    sign : callable
        sign(records) returns the content of a decision with some records.
    """

    draws: LinkDraws
    rounds: Rounds
    amount: Fraction
    relation: str
    moved: int
    exact: Callable[[], Integers] = field(repr=False)
    sign: Callable[[list[str]], dict[str, Any]] = field(repr=False)

    def run_rounds(self, fit: Fit) -> Floats:
        """Return the fitted numbers b of links for every pair of profiles (distinct rows), shape (parents, children).

        Each round selects the marginals that the estimates fit worst, measures them with noise, and fits b again.
        """
        cross = Cross.of(fit.u, fit.v, self.rounds.order)
        return run_rounds(
            fit,
            self.rounds,
            cross,
            lambda number, estimates, left, count: self._chosen(cross, number, estimates, left, count),
            lambda number, chosen: self._measured(cross, number, chosen),
            PublicStream(str(self.draws.values.head["release"]), f"slices {self.draws.name}"),
        )

    def _chosen(self, cross: Cross, number: int, estimates: Floats, left: Sequence[int], count: int) -> list[int]:
        """Return the marginals of round `number`: the stored ones, or `count` that are selected now and stored."""
        path = self._stored_path(number)
        if not present(path):
            self.draws.journal.decide(self.draws.number(f"selection-{number:02d}"), self.sign([self._before(number)]))
            drawn = self._drawn(cross, number, estimates, left, count)
            with writing(path) as file:
                file.write(json.dumps(drawn).encode())
        return [int(k) for k in json.loads(read_bytes(path))]

    def _drawn(self, cross: Cross, number: int, estimates: Floats, left: Sequence[int], count: int) -> list[int]:
        """Return `count` marginals selected by successive exponential mechanisms among those that are `left`.

        Marginals are chosen one after the other without replacement. The score of a marginal is the distance of its
        exact entries from the estimated ones, in steps of 1/SCALE. Its sensitivity is the number of entries that one
        moved link changes, times the links that a neighbour moves.
        """
        exact = self.exact()
        scores = {k: distance(exact[cross.entries(k)], estimates[cross.entries(k)]) for k in left}
        of_selection, _ = self.rounds.costs(self.amount)
        scale = scale_for(of_selection, SCALE * moved_entries(self.relation) * self.moved)
        chosen: list[int] = []
        for rank in range(count):
            others = [k for k in left if k not in chosen]
            stream = open_stream(self.draws.secret(), "selection", self._record(number, rank))
            chosen.append(others[draw_index(stream, [scores[k] for k in others], scale)])
        return chosen

    def _record(self, number: int, rank: int) -> dict[str, object]:
        return {**self.draws.values.head, "mechanism": "published/1", "link": self.draws.name, "round": number,
                "rank": rank}  # fmt: skip

    def _measured(self, cross: Cross, number: int, chosen: Sequence[int]) -> Floats:
        """Return the noisy entries of the chosen marginals, at their places among the entries of all; others are 0.

        `costs` divides the budget of a round between its selection and its noise.
        """
        name, noisy = f"round-{number:02d}", np.zeros(cross.size)
        _, of_noise = self.rounds.costs(self.amount)
        draw = gaussian_draw(moved_entries(self.relation), of_noise, self.moved, f"link {self.draws.name}")

        def entries() -> Integers:
            exact = self.exact()
            return np.concatenate([exact[cross.entries(k)] for k in chosen])

        selection = hashlib.sha256(read_bytes(self._stored_path(number))).hexdigest()
        drawn = self.draws.draw(name, json.dumps(list(chosen)), draw, entries, lambda _: self.sign([selection]))
        start = 0
        for k in chosen:
            place = cross.entries(k)
            length = place.stop - place.start
            noisy[place] = drawn[start : start + length]
            start += length
        return noisy

    def _before(self, number: int) -> str:
        """Return a digest of all earlier rounds, which determine the current estimates and the scores of this round."""
        files = list[Path]()
        for earlier in range(number):
            values = self.draws.values.path(self.draws.number(f"round-{earlier:02d}"))
            assert values is not None
            files += [self._stored_path(earlier), values]
        return hashlib.sha256(b"".join(hashlib.sha256(read_bytes(file)).digest() for file in files)).hexdigest()

    def _stored_path(self, number: int) -> Path:
        return self.draws.folder / f"round-{number:02d}.json"
