"""Report of a run of several components: costs, tables, degrees and associations of links. It reads no record."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import tomli_w

from dpscale.answers.report.figures import Association, degree_shares, strongest_associations
from dpscale.answers.report.page import Section, check_rendered, frame, redacted, render_sections
from dpscale.base.arrow import pq
from dpscale.base.display import figure
from dpscale.base.numerics import Floats, Integers, Integers32
from dpscale.counting.count import encode_batch
from dpscale.job.neighbours import describe_neighbours, refusals
from dpscale.job.sections import LinkSection
from dpscale.privacy.accounting import GDP, Cost, Spending, float_above
from dpscale.runs.charge import ALLOCATION, SEARCHES, UNITS, parts_of_entry
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.links.measuring import SIDES, piece_of, stored_draws
from dpscale.runs.links.released_keys import ReleasedEnds, files_of, released_ends
from dpscale.runs.links.statements import (
    describe_allocation,
    describe_bound,
    describe_size,
    not_reproduced,
    reproduced,
)
from dpscale.runs.stages.report import remaining
from dpscale.storage.files import present, read_bytes, write_whole

COST = ("epsilon", "delta", "mu", "additive", "period")


@dataclass(frozen=True, eq=False)
class ReleasedLink:
    """Released link of a synthesised run."""

    run: LinkedTables
    link: LinkSection

    @cached_property
    def ends(self) -> ReleasedEnds:
        """What its files contain."""
        return released_ends(self.run, self.link, MOST_LINKS)

    @property
    def degrees(self) -> list[Integers32]:
        """Number of links of every row: of the parents and, of a table of pairs, of the children."""
        return self.ends.degrees

    @property
    def whole(self) -> bool:
        """Whether every end exists unless it may be null, no pair is repeated, and bounds and `loops` are respected.

        `ends` counts links by the state of their ends: null, absent from the parent's table, or repeated pairs.
        `bounds` has the largest number of links of either side, or None; `loops` counts links of a row to itself that
        the job excludes.
        """
        refused_null = self.ends.null and self.link.nulls != "keep"
        if refused_null or self.ends.absent or self.ends.repeated or self.loops:
            return False
        for degrees, bound in zip(self.degrees, self.bounds, strict=False):
            if bound is not None and int(degrees.max(initial=0)) > bound:
                return False
        return True

    @property
    def loops(self) -> int:
        """Number of links of a row to itself that the job excludes."""
        return self.ends.loops if self.link.loops is False else 0

    @property
    def rows(self) -> int:
        """Number of rows of the parent and of the child."""
        children = self.ends.links + self.ends.missing if self.link.via is None else len(self.degrees[1])
        return len(self.degrees[0]) + children

    @property
    def bounds(self) -> list[int | None]:
        """Largest number of links of a row on each side; None without a bound."""
        neighbours, link = self.run.neighbours, self.link
        bounded = neighbours.replaces or link.parent in neighbours.rows or link.kind == "one-to-one"
        return [link.bound if bounded else None, link.bound if neighbours.replaces else None]

    def measured(self) -> list[tuple[Integers, Floats]]:
        """Return for each measured side the degrees d and the noisy share of rows with at most d links; [] if none.

        `places` has the degrees at which a side's distribution was measured; the noisy counts of both sides follow each
        other.
        """
        noisy = stored_draws(self.run, self.link).measured("degrees")
        if noisy is None:
            return []
        degrees_of_sides = piece_of(self.run, self.link).places
        counts_of_sides = np.split(noisy, np.cumsum([len(degrees) for degrees in degrees_of_sides])[:-1])
        rows_of_sides = [max(len(degrees), 1) for degrees in self.degrees]
        return [(degrees, counts / rows) for degrees, counts, rows
                in zip(degrees_of_sides, counts_of_sides, rows_of_sides, strict=False)]  # fmt: skip

    @property
    def expected(self) -> float | None:
        """Expected error of cross marginals relative to random links, by the plan's priors; None if not measured.

        The file shares.json has the expected error of the plan and that of random links; a published loop predicts its
        error from the number of links.
        """
        piece = piece_of(self.run, self.link)
        if piece.loops:
            return piece.loop_error(max(self.ends.links, 1))
        path = stored_draws(self.run, self.link).folder / "shares.json"
        if not present(path):
            return None
        content = json.loads(read_bytes(path))
        return content["expected"] / content["random"] if content.get("random") else None

    @property
    def associations(self) -> list[Association]:
        """Strongest associations of an attribute of the parent with one of the child, over the released links.

        Of many links, a regular sample is used.
        """
        domains, names = self.run.closed_job.domains, (self.link.parent, self.link.child)
        above, below = (codes_at(self.run, name, rows) for name, rows in zip(names, self.ends.sample, strict=True))
        one, two = (domains[name] for name in (self.link.parent, self.link.child))
        return strongest_associations(one, two, above, below)

    @property
    def is_sampled(self) -> bool:
        """Whether associations are computed from a part of the links."""
        return self.ends.links + self.ends.missing > MOST_LINKS

    def context(self) -> dict[str, Any]:
        """Return the values for the report and `_links.json`."""
        sides = {}
        for side, degrees in zip(SIDES, self.degrees, strict=False):
            mean = float(degrees.sum() / max(len(degrees), 1))
            sides[side] = {"rows": len(degrees), "mean": mean, "most": int(degrees.max(initial=0))}
        return {"name": self.link.called, "kind": self.link.kind, "parent": self.link.parent, "child": self.link.child,
                "links": self.ends.links, "without": self.ends.missing, "degrees": sides,
                "bound": self.bounds[0], "whole": self.whole, "expected": self.expected,
                "counts": self.link.counts or []}  # fmt: skip


def codes_at(run: LinkedTables, name: str, rows: Integers) -> Integers:
    """Return the cells of some rows of a released table, shape (attributes, rows).

    `rows` are numbered across the files; those that a file has are taken from it.
    """
    domain, first = run.closed_job.domains[name], 0
    codes = np.zeros((len(domain.names), len(rows)), np.int64)
    for file in files_of(run, name):
        table = pq.read_table(file, columns=list(domain.columns(domain.names)))
        in_file = np.flatnonzero((rows >= first) & (rows < first + table.num_rows))
        if len(in_file):
            batch = table.take(rows[in_file] - first)
            arrays = {column: batch.column(column).combine_chunks() for column in batch.column_names}
            codes[:, in_file] = encode_batch(domain, arrays, domain.names)[0]
        first += table.num_rows
    return codes


DELTA = 1e-9  # δ at which ε is stated if the job has none
MOST_LINKS = 100_000  # links from which associations are computed


TABLE = (
    Section("summary", "Summary", listed=False),
    Section("tables", "Tables"),
    Section("links", "Links"),
    Section("joins", "Joins", module="dpscale.runs.joins.report"),
    Section("cost", "How it was protected"),
    Section("limits", "What is not protected"),
    Section("read", "Read the answers", folded=True),
    Section("job", "The job", folded=True),
)
SECTIONS: dict[str, Section] = {section.name: section for section in TABLE}  # one line per section


def write_report(run: LinkedTables) -> None:
    """Write report.html, and synthetic/_links.json with its statistics of links.

    Raises ReportError, after both are written, if a section could not be rendered.
    """
    released = [ReleasedLink(run, link) for link in run.job.link]
    links = [link.context() for link in released]
    write_whole(run.path / "synthetic" / "_links.json", json.dumps(links, indent=1).encode())
    framed = frame(run.manifest, run.job.about)
    cost, left = cache(lambda: _cost(run)), cache(lambda: remaining(run.run))
    values: dict[str, Callable[[], Any]] = {
        **{name: partial(framed.__getitem__, name) for name in framed},
        **{name: lambda name=name: cost()[name] for name in COST},  # type: ignore[misc]
        "neighbours": lambda: describe_neighbours(run.neighbours),
        "components": lambda: _components(run),
        "guarantees": lambda: [(run.run.spent.epsilon_or_inf(delta), delta)
                               for delta in dict.fromkeys([cost()["delta"], 1e-6, 1e-9]) if delta > cost()["additive"]],
        "remaining": lambda: left()["remaining"],
        "capless": lambda: left()["capless"],
        "tables": lambda: _tables(run),
        "protects": lambda: run.protects.words,
        "risk": lambda: run.run.attack_risk,
        "refusals": lambda: refusals(run.job, run.neighbours),
        "links": lambda: [content | _shown(link) for link, content in zip(released, links, strict=True)],
        "job_text": lambda: tomli_w.dumps(redacted(run.job.to_dict())),
    }  # fmt: skip
    page, failed = render_sections(framed, SECTIONS.values(), values, "dpscale.runs.links", run)
    write_whole(run.path / "report.html", page.encode())
    check_rendered(failed, run.path)


def _cost(run: LinkedTables) -> dict[str, Any]:
    """Return the values of the sections on the cost: ε and its δ, μ, additive δ and the period.

    COST names these values in order. DELTA is the δ at which ε is stated if the job has none.
    """
    delta = run.job.privacy.delta or DELTA
    spent = run.run.spent
    figures = Spending().plus(spent).epsilon(GDP, delta), delta, float(spent.squared_mu) ** 0.5
    return dict(zip(COST, (*figures, float_above(spent.delta), spent.period), strict=True))


def _components(run: LinkedTables) -> list[dict[str, Any]]:
    """Return share, μ and ε of every component alone, and of searches and numbers of units; their squared μ add.

    Each entry has `name`, `share`, `mu` and `epsilon` at the δ of the job.
    """
    delta = run.job.privacy.delta or DELTA
    costs = dict[str, Cost]()
    allocation = run.manifest.get(ALLOCATION)
    if allocation:
        costs["first measurement"] = Cost.from_dict(allocation["cost"])
    for entry, title in ((SEARCHES, "searches for cells"), (UNITS, "numbers of distinct units")):
        parts = parts_of_entry(run.run, entry)
        if parts:
            tables = ", ".join(name.partition(".")[2] for name in parts)
            costs[f"{title} of {tables}"] = Cost.total([cost for cost, _ in parts.values()]).coarsened()
    # tables, links and joins, charged with the release
    costs |= {name: cost for name, (cost, _) in parts_of_entry(run.run, "privacy").items()}
    return [{"name": name, "share": _share(run, name), "mu": float(cost.squared_mu) ** 0.5,
             "epsilon": Spending().plus(cost).epsilon(GDP, delta)} for name, cost in costs.items()]  # fmt: skip


def _tables(run: LinkedTables) -> list[dict[str, Any]]:
    """Return the rows of the table of tables; `most` is the largest number of rows of a unit."""
    most = {**run.neighbours.rows, **dict.fromkeys(run.neighbours.sides, "no unit")}
    return [{"name": name, "rows": _count(run, name), "share": _share(run, f"tables.{name}"), "public": section.public,
             "attributes": len(run.job.domains[name].names), "most": most.get(name),
             "size": "" if section.public else describe_size(run, name)}
            for name, section in run.job.tables.items()]  # fmt: skip


def _shown(released: ReleasedLink) -> dict[str, Any]:
    """Return the values of a link that the page has and `_links.json` has not.

    `share` is the percentage of the budget for the link, `at_bound` states how many rows of the parent have as many
    links as the bound permits, and `sampled` whether associations are computed from a part of the links.
    """
    run, link = released.run, released.link
    return {"share": _share(run, f"links.{link.called}"), "plot": degree_plot(released), "sampled": released.is_sampled,
            "associations": [association.picture() for association in released.associations],
            "reproduced": reproduced(run, link, released.rows), "missing": not_reproduced(run, link, released.rows),
            "allocation": describe_allocation(run, released.link, released.expected),
            "at_bound": describe_bound(run, link, len(released.degrees[0]))}  # fmt: skip


def _share(run: LinkedTables, piece: str) -> str:
    share = run.job.shares.get(piece)
    return "" if share is None else f"{figure(100 * share)} %"


def _count(run: LinkedTables, name: str) -> int:

    return sum(pq.read_metadata(file).num_rows for file in files_of(run, name))


def degree_plot(released: ReleasedLink) -> str:
    """Return a plot of the share of rows with at most d links: as released with noise, and of the synthetic rows.

    A side is drawn only if there is a measured side with more than one degree.
    """
    measured = released.measured()
    if not any(len(degrees) > 1 for degrees, _ in measured):
        return ""
    tables = released.link.parent, released.link.child
    sides = [(name, degrees, noisy_shares, synthetic.astype(float)) for name, (degrees, noisy_shares), synthetic
             in zip(tables, measured, released.degrees, strict=False)]  # fmt: skip
    return degree_shares(sides)
