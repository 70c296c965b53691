"""Report of a run of several components: costs, tables, joins, degrees and associations of links. It reads no record.

*Sentences.*
Each depends on the measurements of a link, or on the job.

*Joins.*
The section has base, bound, error and the share of rows that the bound cuts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import tomli_w

from dpscale.answers.report.figures import Association, degree_shares, strongest_associations
from dpscale.answers.report.page import Section, check_rendered, frame, redacted, render_sections
from dpscale.answers.statistics import Estimate, TooFewRecords
from dpscale.answers.tables import LEVEL
from dpscale.answers.unit_counts import CUT_JOIN, excess_of, share_beyond
from dpscale.base.arrow import pq
from dpscale.base.display import figure
from dpscale.base.numerics import Floats, Integers, Integers32
from dpscale.counting.count import encode_batch
from dpscale.job.allocation import LOSES
from dpscale.job.join_job import cut_share
from dpscale.job.joins import split_name
from dpscale.job.neighbours import describe_neighbours, refusals
from dpscale.job.sections import CUT, LinkSection
from dpscale.job.table_sizes import required_links, stated_rows
from dpscale.privacy.accounting import GDP, STATED_DELTA, Cost, Spending, float_above
from dpscale.relational.assignment import MOST_WORDS
from dpscale.relational.budget_shares import MOST_SIBLINGS
from dpscale.relational.rounding import count_words
from dpscale.runs.charge import ALLOCATION, SEARCHES, UNITS, parts_of_entry
from dpscale.runs.estimates import estimates_of, number_of_rows
from dpscale.runs.linked_part import describe_rows
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.links.keys import ReleasedEnds, files_of, released_ends
from dpscale.runs.links.measuring import SIDES, piece_of, stored_draws
from dpscale.runs.stages.report import remaining
from dpscale.storage.files import listed, present, read_bytes, write_whole

COST = ("epsilon", "delta", "mu", "additive", "period")

SURE, MANY = 2.0, 0.1  # standard errors, and the share of rows at the bound from which a warning is given


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
        """Whether the files respect the job.

        Every end exists unless it may be null, no pair is repeated, no row exceeds its bound, and no row is linked with
        itself if the job excludes that.
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

        `places` of the link's budget are the degrees d of each side; the noisy counts of both sides follow each other.
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
        parents, children = (codes_at(self.run, name, rows) for name, rows in zip(names, self.ends.sample, strict=True))
        return strongest_associations(domains[self.link.parent], domains[self.link.child], parents, children)

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

    `rows` are numbered across the files.
    """
    domain, first = run.closed_job.domains[name], 0  # `first` is the number of the first row of a file
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


MOST_LINKS = 100_000  # links from which associations are computed


TABLE = (
    Section("summary", "Summary", listed=False),
    Section("tables", "Tables"),
    Section("links", "Links"),
    Section("joins", "Joins"),
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
        "joins": lambda: [_join(run, name, part) for name, part in run.joins.items() if name != CUT_JOIN],
        "job_text": lambda: tomli_w.dumps(redacted(run.job.to_dict())),
    }  # fmt: skip
    page, failed = render_sections(framed, SECTIONS.values(), values, "dpscale.runs.links", run)
    write_whole(run.path / "report.html", page.encode())
    check_rendered(failed, run.path)


def _cost(run: LinkedTables) -> dict[str, Any]:
    """Return the values of the sections on the cost: ε and its δ, μ, additive δ and the period.

    COST names these values in order.
    """
    delta = run.job.privacy.delta or STATED_DELTA
    spent = run.run.spent
    figures = Spending().plus(spent).epsilon(GDP, delta), delta, float(spent.squared_mu) ** 0.5
    return dict(zip(COST, (*figures, float_above(spent.delta), spent.period), strict=True))


def _components(run: LinkedTables) -> list[dict[str, Any]]:
    """Return share, μ and ε of every component alone, and of searches and numbers of units; their squared μ add.

    Each entry has `name`, `share`, `mu` and `epsilon` at the δ of the job.
    """
    delta = run.job.privacy.delta or STATED_DELTA
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


def reproduced(run: LinkedTables, link: LinkSection, rows: int) -> list[str]:
    """Return the properties that the synthetic links reproduce, because they were measured.

    Parameters
    ----------
    run : LinkedTables
    link : LinkSection
    rows : int
        Number of synthetic rows of the parent and of the child.

    Returns
    -------
    list of str
    """
    draws = stored_draws(run, link)
    folder = draws.folder
    found = []
    if draws.has("degrees"):
        sides = [link.parent] if link.via is None else list(dict.fromkeys((link.parent, link.child)))
        found.append(f"the distribution of the number of links of a row of {' and of '.join(sides)}")
    found += [f"the number of links by attributes of {table}" for table, name in _sides(link) if draws.has(name)]
    if draws.has("both"):
        found.append("which attributes of linked rows go together")
    # rounds of a published mechanism, whose marginals are selected
    if present(folder) and any(name.startswith("round-") for name in listed(folder)):
        found.append("the selected counts over attributes of both ends")
    if draws.has("siblings") and _fits(run, link, rows):
        found.append(f"the similarity of rows of {link.child} with one parent")
    if draws.has("steps"):
        found.append(f"which rows of {link.child} follow each other by {link.order[0]}, and the span of those of a"
                     f" row of {link.parent}")  # fmt: skip
    counts = ", ".join(link.counts or ())
    return found + ([f"the dependence on the number of links in {counts}"] if counts and found else [])


def not_reproduced(run: LinkedTables, link: LinkSection, rows: int) -> list[str]:
    """Return the properties that need not be reproduced, with reasons; the parameters are those of `reproduced`.

    A link with a share of the budget is `modelled`; it is `bounded` if the job limits the links of a parent.
    """
    draws, lines = stored_draws(run, link), []
    piece = piece_of(run, link)
    if not piece.modelled:
        return ["anything else, because no share of the budget would pay: links are random"]
    if not draws.has("degrees"):
        reason = f"rows of {link.parent} have no bound" if not piece.bounded else _unmeasured(link)
        lines.append(f"the distribution of the number of links of a row of {link.parent} ({reason})")
    if not draws.has("both") and link.mechanism != "published":
        lines.append("which attributes of linked rows go together (by the plan its measurement would add more noise "
                     "than it removes error)")  # fmt: skip
    # several children of a parent, which have an order or are alike
    if link.via is None and link.kind != "one-to-one" and not (link.bound == 1 and piece.bounded):
        if link.order:
            lines += [] if draws.has("steps") else [f"the order of rows of {link.child}"]
        elif not draws.has("siblings"):
            lines.append(f"the similarity of rows of {link.child} with one parent ({_reason(run, link)})")
        elif not _fits(run, link, rows):
            lines.append(f"the similarity of rows of {link.child} with one parent (attributes of both tables may have "
                         "too many combinations)")  # fmt: skip
    return lines


def _sides(link: LinkSection) -> list[tuple[str, str]]:
    """Return each table whose attributes are summed over links, with the name of the sum."""
    if link.parent == link.child or link.via is None:
        return [(link.parent, "u")]  # a row of a child has one link
    return [(link.parent, "u"), (link.child, "v")]


def _reason(run: LinkedTables, link: LinkSection) -> str:
    """Return why the similarity of siblings is not measured."""
    if link.parent == link.child:
        return "it is not measured within one table"
    if not piece_of(run, link).bounded:
        return f"rows of {link.parent} have no bound"
    if link.bound > MOST_SIBLINGS:
        return f"it is measured for at most {MOST_SIBLINGS} links of a row, and max_degree is {link.bound}"
    return _unmeasured(link)


def _unmeasured(link: LinkSection) -> str:
    return 'mechanism = "published"' if link.mechanism == "published" else "it has no share of the budget"


def _fits(run: LinkedTables, link: LinkSection, rows: int) -> bool:
    """Return whether the cross marginals of any such rows fit, so that children are exchanged between parents.

    `rows` is the number of rows of both tables, which bounds their distinct cells.
    """
    piece = piece_of(run, link)
    sizes = piece.sizes(link.parent), piece.sizes(link.child)
    return count_words(*sizes, min(rows, sum(map(math.prod, sizes)))) <= MOST_WORDS


def describe_size(run: LinkedTables, name: str) -> str:
    """Return why a private table has another number of rows than estimated; "" if it has not, or if it is stated.

    The estimate is the noisy total of the table, rounded, and at least 1.
    """
    table = run.tables[name]
    content = describe_rows(table)
    rows, estimate = int(content["rows"]), max(1, round(content["total"]))
    if rows == estimate or stated_rows(run.job, name):
        return ""
    text = f"{name} has {figure(rows)} rows, {{}} than the estimated {figure(estimate)}"
    if rows > estimate:
        return text.format("more") + ", because the rows of other tables in the job require them."
    parents = " and ".join(f"{link.parent} (at most {link.bound} for each row)"
                           for link in required_links(run.job, name) if link.parent != name)  # fmt: skip
    return text.format("fewer") + f", because every row needs a row of {parents}."


def describe_bound(run: LinkedTables, link: LinkSection, rows: int) -> dict[str, Any] | None:
    """Return how many of a parent's `rows` have as many links as the bound permits, from the released histogram.

    Parameters
    ----------
    run : LinkedTables
    link : LinkSection
    rows : int
        Number of synthetic rows of the parent.

    Returns
    -------
    dict, optional
        `rows`, `share` and `error`: the noisy number, its share and the share's standard error; `sure` and `warn`:
        whether the share is above 0, and is large, by more than its error. None if nothing is cut or measured.
    """
    noisy, piece = stored_draws(run, link).measured("degrees"), piece_of(run, link)
    if noisy is None or run.neighbours.replaces or link.bound == 1:
        return None
    below = float(noisy[len(piece.places[0]) - 1])
    share, error = 1 - below / max(rows, 1), math.sqrt(piece.degrees_draw().lattice_variance) / max(rows, 1)
    clipped = min(max(share, 0.0), 1.0)  # noise may lead out of the range
    least_share = share - SURE * error
    return {
        "rows": clipped * rows,
        "share": clipped,
        "error": error,
        "sure": least_share > 0,
        "warn": least_share > MANY,
    }


LITTLE, MUCH = 0.97, 0.1  # expected error relative to random links, and share of cut links, for a warning
LEAST_CUT = 0.01  # share of cut links that is stated


def describe_allocation(run: LinkedTables, link: LinkSection, expected: float | None) -> list[dict[str, Any]]:
    """Return sentences on the division of the budget for a link, each with whether it is a warning.

    Parameters
    ----------
    run : LinkedTables
    link : LinkSection
    expected : float or None
        Expected error of the link relative to random links by the plan of its measurement.
    """
    lines, name = [], link.called
    content = run.allocated_or_none
    if content:
        error, random = content["errors"][name], content["random_links"][name]
        source = "the first measurement" if content["measured"] else "usual numbers of rows"
        text = (f"By {source}, the expected total variation of marginals over both ends of {name} is"
                f" {figure(error)}; that of random links between tables with equal shares of the budget is"
                f" {figure(random)}.")  # fmt: skip
        # a warning if random links are expected to be more accurate
        lines.append({"text": text, "warn": error > random})
        if (cut := content.get("cut", {}).get(name)) is not None and cut >= LEAST_CUT:
            bound = "was chosen from this measurement" if name in content.get("bounds", {}) else "is that of the job"
            lines.append({"text": f"About {100 * cut:.0f} % of the links of {name} in the data are beyond the bound of"
                          f" {link.bound}, which {bound}, and were not counted.", "warn": cut > MUCH})  # fmt: skip
    if expected is not None and expected > 1 and link.mechanism == "published":
        text = f"By the noise of its marginals, {LOSES}: {name} has {figure(expected)} times their expected error."
        lines.append({"text": text, "warn": True})
    elif expected is not None and expected > LITTLE:
        lines.append({"text": f"The share of {name} is too small for a signal: its links are hardly better than random"
                      " ones.", "warn": True})  # fmt: skip
    return lines


def _join(run: LinkedTables, name: str, part: Any) -> dict[str, Any]:
    """Return the row of a join in the table of joins.

    Returns
    -------
    dict
        name, base, tables; share of the budget; bound: rows of a unit; sets: their number; rows and error: estimated
        number of rows and its standard error; cut: share beyond the bound, or None; parents: for counted children the
        number of parents with more than the bound, and its standard error.
    """
    join, estimates = run.job.joined[name], estimates_of(part)
    rows, error = number_of_rows(estimates)
    # attributes of a join are named "TABLE.ATTRIBUTE"; those of counted children have an attribute CUT
    tables = dict.fromkeys(split_name(attribute)[0] for attribute in part.domain.axis_names)
    beyond_bound = [attribute for attribute in part.domain.names if split_name(attribute)[1] == CUT and join.counted]
    return {
        "name": name,
        "base": join.base,
        "tables": ", ".join(tables),
        "share": run.job.shares[f"joins.{name}"] * (1 - cut_share(run.job, run.neighbours, name)),
        "bound": part.job.data.max_rows_per_unit or 1,
        "rows": rows,
        "error": error,
        "sets": len(part.workload.sets),
        "cut": _cut_share(run, name, (rows, error)),
        # cell 1 of such an attribute counts the parents with more children than the bound
        "parents": [(cut, *estimates.answer([cut], np.array([0.0, 1.0]))) for cut in beyond_bound],
    }


def _cut_share(run: LinkedTables, name: str, rows: tuple[float, float]) -> Estimate | None:
    """Return the share of the rows that is cut and its interval; None if it was not measured or has no interval.

    `rows` is the number of rows of the join with its standard error. CUT_JOIN measures the excess: the rows beyond the
    bound of a unit.
    """
    excess = excess_of(estimates_of(run.joins[CUT_JOIN]), name) if CUT_JOIN in run.joins else None
    if excess is None or np.isnan(rows[0]):
        return None
    try:
        return share_beyond(excess, rows, LEVEL)
    except TooFewRecords:
        return None
