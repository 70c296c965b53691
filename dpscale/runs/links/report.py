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
        """Whether every end exists unless it may be null, no pair is repeated, and bounds and `loops` are respected."""
        found, null = self.ends, self.ends.null and self.link.nulls != "keep"
        if null or found.absent or found.repeated or self.loops:
            return False
        return all(most is None or int(own.max(initial=0)) <= most
                   for own, most in zip(self.degrees, self.bounds, strict=False))  # fmt: skip

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
        """Return for each measured side the degrees and the noisy share of rows of at most this degree; [] if none."""
        noisy = stored_draws(self.run, self.link).measured("degrees")
        if noisy is None:
            return []
        places = piece_of(self.run, self.link).places
        parts = np.split(noisy, np.cumsum([len(one) for one in places])[:-1])
        rows = [max(len(own), 1) for own in self.degrees]
        return [(at, part / count) for at, part, count in zip(places, parts, rows, strict=False)]

    @property
    def expected(self) -> float | None:
        """Expected error of cross marginals relative to random links, by the plan's priors; None if not measured."""
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
        sides = {side: {"rows": len(own), "mean": float(own.sum() / max(len(own), 1)), "most": int(own.max(initial=0))}
                 for side, own in zip(SIDES, self.degrees, strict=False)}  # fmt: skip
        return {"name": self.link.called, "kind": self.link.kind, "parent": self.link.parent, "child": self.link.child,
                "links": self.ends.links, "without": self.ends.missing, "degrees": sides,
                "bound": self.bounds[0], "whole": self.whole, "expected": self.expected,
                "counts": self.link.counts or []}  # fmt: skip


def codes_at(run: LinkedTables, name: str, rows: Integers) -> Integers:
    """Return the cells of some rows of a released table, shape (attributes, rows)."""
    domain, begun = run.closed_job.domains[name], 0
    codes = np.zeros((len(domain.names), len(rows)), np.int64)
    for file in files_of(run, name):
        table = pq.read_table(file, columns=list(domain.columns(domain.names)))
        mine = np.flatnonzero((rows >= begun) & (rows < begun + table.num_rows))
        if len(mine):
            batch = table.take(rows[mine] - begun)
            arrays = {one: batch.column(one).combine_chunks() for one in batch.column_names}
            codes[:, mine] = encode_batch(domain, arrays, domain.names)[0]
        begun += table.num_rows
    return codes


DELTA = 1e-9
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
    found = [ReleasedLink(run, link) for link in run.job.link]
    links = [one.context() for one in found]
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
        "links": lambda: [content | _shown(one) for one, content in zip(found, links, strict=True)],
        "job_text": lambda: tomli_w.dumps(redacted(run.job.to_dict())),
    }  # fmt: skip
    page, failed = render_sections(framed, SECTIONS.values(), values, "dpscale.runs.links", run)
    write_whole(run.path / "report.html", page.encode())
    check_rendered(failed, run.path)


def _cost(run: LinkedTables) -> dict[str, Any]:
    delta = run.job.privacy.delta or DELTA
    spent = run.run.spent
    figures = Spending().plus(spent).epsilon(GDP, delta), delta, float(spent.squared_mu) ** 0.5
    return dict(zip(COST, (*figures, float_above(spent.delta), spent.period), strict=True))


def _components(run: LinkedTables) -> list[dict[str, Any]]:
    """Return share, μ and ε of every component alone, and of searches and numbers of units; their squared μ add."""
    delta = run.job.privacy.delta or DELTA
    first = {"first measurement": Cost.from_dict(one["cost"])} if (one := run.manifest.get(ALLOCATION)) else {}
    costs = dict(first)
    for entry, title in ((SEARCHES, "searches for cells"), (UNITS, "numbers of distinct units")):
        if parts := parts_of_entry(run.run, entry):
            tables = ", ".join(name.partition(".")[2] for name in parts)
            costs[f"{title} of {tables}"] = Cost.total([cost for cost, _ in parts.values()]).coarsened()
    costs |= {name: cost for name, (cost, _) in parts_of_entry(run.run, "privacy").items()}
    return [{"name": name, "share": _share(run, name), "mu": float(own.squared_mu) ** 0.5,
             "epsilon": Spending().plus(own).epsilon(GDP, delta)} for name, own in costs.items()]  # fmt: skip


def _tables(run: LinkedTables) -> list[dict[str, Any]]:
    most = {**run.neighbours.rows, **dict.fromkeys(run.neighbours.sides, "no unit")}
    return [{"name": name, "rows": _count(run, name), "share": _share(run, f"tables.{name}"), "public": one.public,
             "attributes": len(run.job.domains[name].names), "most": most.get(name),
             "size": "" if one.public else describe_size(run, name)}
            for name, one in run.job.tables.items()]  # fmt: skip


def _shown(one: ReleasedLink) -> dict[str, Any]:
    """Return the values of a link that only the page has."""
    run, link = one.run, one.link
    return {"share": _share(run, f"links.{link.called}"), "plot": degree_plot(one), "sampled": one.is_sampled,
            "associations": [each.picture() for each in one.associations],
            "reproduced": reproduced(run, link, one.rows), "missing": not_reproduced(run, link, one.rows),
            "allocation": describe_allocation(run, one.link, one.expected),
            "at_bound": describe_bound(run, link, len(one.degrees[0]))}  # fmt: skip


def _share(run: LinkedTables, piece: str) -> str:
    share = run.job.shares.get(piece)
    return "" if share is None else f"{figure(100 * share)} %"


def _count(run: LinkedTables, name: str) -> int:

    return sum(pq.read_metadata(file).num_rows for file in files_of(run, name))


def degree_plot(one: ReleasedLink) -> str:
    """Return a plot of the share of rows by largest degree: as released with noise, and of the synthetic rows."""
    measured = one.measured()
    if not any(len(at) > 1 for at, _ in measured):
        return ""
    sides = [(name, at, shares, own.astype(float)) for name, (at, shares), own
             in zip((one.link.parent, one.link.child), measured, one.degrees, strict=False)]  # fmt: skip
    return degree_shares(sides)
