"""Job of a join as a job of one table: the files of its base table, and the tables in which its rows are looked up.

A unit of the job is added or removed with its rows of the base table and their descendants. Every other row of the join
belongs to the same unit or is public, or the job declares the attributes that are looked up in it public
(`public_attributes`), so adding or removing a unit changes only its own rows of the join: at most as many as it has
rows in the base table, by the bounds of the links, or `max_rows_per_unit`. With `per` the base is the table of the
parents, whose number of children depends on the unit's own rows alone.

With `protects = "both"` one row of either end of a pair is replaced, with at most `max_degree` pairs before and after.
This changes twice as many rows of the join. Data beyond the bound are refused, so nothing is truncated.

An attribute of the join has the name `TABLE.ATTRIBUTE`. A lookup is a table in which a row finds values by a key.
Counted children have the attributes `CHILD.count` (their number, up to the bound) and `CHILD.cut` (whether there are
more).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpscale.base.errors import JobError
from dpscale.base.settings import Settings
from dpscale.contributions.joins import EXCESS, PAIR, REACH
from dpscale.domain import Attribute, Domain
from dpscale.domain.number import Number
from dpscale.job.data import Filed, Hop, Key, plain_key
from dpscale.job.job import Job
from dpscale.job.joins import COUNT, Edge, Join, ascents, renamed, split_name
from dpscale.job.neighbours import NeighbourRelation, part_job, unit_hops, unit_settings
from dpscale.job.sections import (
    CUT,
    JoinSection,
    JoinShare,
    LinkSection,
    MechanismTable,
    TableSection,
    TableShares,
)
from dpscale.job.table_job import TableJob
from dpscale.workload import MARGINAL
from dpscale.workload.sums import SUM


class LookupSection(Filed):
    """Table in which rows of another table of the join are looked up, or counted.

    `source` is the number of the section whose rows refer to it, −1 for the base table. `attributes` maps the
    attributes of the join to those of the table, or to "count" and "cut" if its rows are counted up to `bound`.
    """

    link: str
    domain: str | None = None
    source: int = -1
    at: list[str]
    key: list[str]
    attributes: dict[str, str]
    policies: list[str]
    bound: int | None = None
    through: list[Hop] | None = None


class JoinSettings(Settings):
    """Section [join] of the job of a join.

    `attributes` maps the attributes of the join to those of the base table. `bound` is the number of rows of a unit
    that are counted, which differs from `max_rows_per_unit` if a neighbour changes more. `owned` is a key of the base
    whose rows must belong to one unit, because the children of the key are counted.
    """

    attributes: dict[str, str]
    lookups: list[LookupSection]
    bound: int | None = None
    pair: list[str] | None = None
    numbers: list[str] | None = None
    owned: Key | None = None


@dataclass(frozen=True, eq=False)
class JoinJob(TableJob):
    """Job of a join.

    Attributes
    ----------
    join : JoinSettings
    """

    join: JoinSettings = field(kw_only=True)

    def budget_share(self, amount: float) -> float:
        """Return the share of the budget `amount` of the whole job."""
        return float(self.privacy.privacy_cost or 0.0) / amount

    def read_domain(self) -> Domain:
        """Return the attributes of the join; rules and public totals of the tables are left out.

        An attribute has the cells of its source. A lookup with a bound counts children, whose attributes are in no
        domain file.
        """
        attributes: dict[str, Attribute] = {}
        base = Domain.read(self.data.domain) if self.join.attributes else None
        for name, source in self.join.attributes.items():
            assert base is not None
            attributes[name] = renamed(base[source], name)

        for lookup in self.join.lookups:
            domain = None if lookup.domain is None else Domain.read(lookup.domain)
            for name, source in lookup.attributes.items():
                if lookup.bound is not None or domain is None:  # a number of children, or whether they are cut
                    is_number = name in (self.join.numbers or ())
                    attributes[name] = counting(name, source, lookup.bound or 0, is_number)
                else:
                    attributes[name] = renamed(domain[source], name)

        # numbers of which variances are asked need cells for squares
        squared = [name for part in self.workload for name in part.squared]
        return Domain(attributes.values()).for_rows_per_unit(self.data.max_rows_per_unit or 1).with_squares(squared)


def counting(name: str, kind: str, bound: int, number: bool) -> Attribute:
    """Return what is counted of the children of a row, as an attribute of the row.

    `kind` is CUT (whether there are more than the bound), EXCESS (how many there are beyond it) or another text for
    their number, which is a number to be summed or an attribute with a cell for each count.
    """
    if kind == CUT:
        return Attribute(name, "boolean", values=(False, True))
    if kind == EXCESS:
        return Number(name, "number", low=0, high=(REACH - 1) * bound, outside="clip")
    if number:
        return Number(name, "number", low=0, high=bound, outside="clip")
    return Attribute(name, "integer", low=0, high=bound, outside="clip")


def join_job(job: Job, neighbours: NeighbourRelation, name: str) -> JoinJob:
    """Return the job of a join at its share of the budget, or that of the rows beyond the bounds of all joins (CUT).

    The part `cut_share` of the join's budget is that of the rows beyond its bound. The settings (`JoinSettings`) are
    those of a job of one table that a job file cannot state.
    """
    if name == CUT:
        return cut_job(job, neighbours)
    join, section = job.joined[name], (job.joins or {}).get(name)
    _check_relation(job, neighbours, join)
    unit, bound = _unit(job, neighbours, join)
    attributes = {}  # of the base, by their name in the join
    for requested in join.requested:
        table, attribute = split_name(requested)
        if table == join.base and not _is_counted(join, requested):
            attributes[requested] = attribute
    lookups = _lookups(job, join)
    known = {*attributes, *(name for lookup in lookups for name in lookup["attributes"])}
    settings: dict[str, Any] = {
        "attributes": attributes,
        "lookups": lookups,
        "bound": bound,
        "pair": None if join.pairs is None else [column for key in job.ends(join.pairs) for column in key],
        "numbers": sorted(join.numbers & known),
        "owned": plain_key(job.key(join.base)) if join.counted and join.base != neighbours.root else None,
    }
    base = join.pairs.parent if join.pairs else join.base
    files = {"path": job.tables[base].path, **job.tables[base].format_settings}
    # the pairs are read from their own files, with the domain of the parent's table
    files = files if join.pairs is None else {"path": join.pairs.via}
    data = {**files, "domain": job.tables[base].domain, **unit}
    workload = [*(part.content for part in join.parts), *_cut_parts(join)]
    share = job.shares[f"joins.{name}"] * (1 - cut_share(job, neighbours, name))
    return _with_settings(job, data, settings, workload, share, section or JoinSection())


def _with_settings(
    job: Job,
    data: Mapping[str, Any],
    settings: Mapping[str, Any],
    workload: Sequence[Mapping[str, Any]],
    share: float,
    stated: JoinSection,
) -> JoinJob:
    """Return the job of a join at a share of the budget.

    `data` are the keys of its files and unit, `settings` those of the join; mechanism, reconstruction and output are
    those that the job states for the join.
    """
    section = TableSection.model_validate({**data, "workload": workload}).model_copy(
        update={"mechanism": stated.mechanism or MechanismTable(), "reconstruct": stated.reconstruct,
                "output": stated.output})  # fmt: skip
    part = part_job(job, section, job.total_budget.amount * share, TableShares())
    join = JoinSettings.model_validate({key: value for key, value in settings.items() if value is not None})
    return JoinJob(
        data=part.data, privacy=part.privacy, engine=part.engine, shares=part.shares, dataset=part.dataset, join=join
    )


def _is_counted(join: Join, name: str) -> bool:
    """Return whether an attribute of a join is the number of counted children, or whether they are cut."""
    table, attribute = split_name(name)
    names = {name_of_link for link in join.counted for name_of_link in (link.called, link.child)}
    return table in names and attribute in (COUNT, CUT)


def _cut_parts(join: Join) -> list[dict[str, Any]]:
    """Return the parts that count the parents whose children are cut, unless the job has them."""
    given = {tuple(names) for part in join.parts for names in part.attributes or []}
    cut = [name for name in join.requested if split_name(name)[1] == CUT and _is_counted(join, name)]
    return [{"family": MARGINAL.name, "attributes": [[name]]} for name in cut if (name,) not in given]


def _check_relation(job: Job, neighbours: NeighbourRelation, join: Join) -> None:
    """Raise JobError if rows of the join would belong to several units, or a bound does not fit.

    `neighbours.rows` has the tables whose rows belong to units, and `neighbours.above` the link by which the rows of a
    table belong to their parent. `join.counted` are the links whose children are counted (`per`), `join.edges` the
    steps from a table to the one that it refers to.
    """
    # protects = "both": a row of either end is replaced, and every bound is that of the link
    if neighbours.replaces:
        if join.counted:
            raise JobError("workload.per", 'a number of links that protect "both"', 'links that protect "parent"',
                           "remove it: replacing a row changes the numbers of many others")  # fmt: skip
        if join.bound is not None:
            raise JobError("workload.max_rows_per_unit", 'given with protects = "both"', "max_degree of the link",
                           "remove it: rows of both ends are bounded, and nothing is truncated")  # fmt: skip
        return
    if join.counted and join.base not in neighbours.rows:
        what = "a public table" if job.tables[join.base].public else "whose rows belong to no unit"
        raise JobError("workload.per", f"{join.base!r}, {what}", "a table of units, or below",
                       "remove it: the children of such a row belong to many units")  # fmt: skip
    # counted children must belong to the same unit as their row of the base, by a single path
    for link in join.counted:
        paths = ascents(job, link, join.base)
        if len(paths) > 1 or any(neighbours.above.get(edge.source) is not edge.link for edge in paths[0]):
            raise JobError("workload.per", f"rows of {link.called}, which belong to {join.base} in several ways or not"
                           " at all", "children of its rows, and their children", "remove it")  # fmt: skip
    if join.counted and join.base in (link.child for link in join.counted):
        raise JobError("workload.per", f"rows of {join.base} that refer to each other", "children in another table",
                       "remove it: their number depends on other units' rows")  # fmt: skip
    # two private tables of a join must be connected by the link that gives rows their unit
    for edge in join.edges:
        private = {edge.source, edge.target} <= set(neighbours.rows)
        if private and neighbours.above.get(edge.source) is not edge.link:
            raise JobError("workload.attributes", f"{edge.target}, rows of other units than those of {edge.source}",
                           "rows of one unit", "leave the table out")  # fmt: skip
    # a number is summed, so it cannot be a cell of the same join
    in_sets = {name for part in join.parts for names in part.attributes or [] for name in names}
    number = next((name for name in join.numbers if name in in_sets), None)
    if number is not None:
        raise JobError("workload.of", f"{number!r}, which is also an attribute of a set", "one of them in a join",
                       "set name for one of the parts, which is then a join of its own")  # fmt: skip


def _unit(job: Job, neighbours: NeighbourRelation, join: Join) -> tuple[dict[str, Any], int | None]:
    """Return the settings of the privacy unit of the join, and the number of its rows that are counted.

    If neighbours replace rows, a pair of keys is the unit, of which one row counts, and a replaced row changes up to
    twice its bound of pairs.
    """
    link = join.pairs
    if neighbours.replaces:
        assert link is not None  # other links do not protect both ends
        # a row is removed and one is added, each with at most the bound of pairs; within one table a row is at both
        # ends
        changed = 2 * link.bound * (2 if link.parent == link.child else 1)
        return {"privacy_unit": PAIR, "max_rows_per_unit": changed}, 1
    if link is None:
        unit = unit_settings(job, neighbours, join.base)
    else:
        hops = unit_hops(job, neighbours, link)
        rows = neighbours.rows[link.parent] * link.bound
        unit = {"privacy_unit": plain_key(job.ends(link)[0]), "max_rows_per_unit": rows}
        unit |= {"unit_through": hops} if hops else {}
        unit |= {"unit_nulls": "drop"} if hops or "drop" in (link.nulls, link.dangling) else {}
    if join.bound is not None:
        if not unit:
            raise JobError("workload.max_rows_per_unit", f"given for rows of {join.base} without a key", "a key",
                           f"set tables.{join.base}.key, or remove it")  # fmt: skip
        unit["max_rows_per_unit"] = join.bound
    return unit, unit.get("max_rows_per_unit")


def _lookups(job: Job, join: Join) -> list[dict[str, Any]]:
    """Return the sections of the tables that are looked up, and of those whose rows are counted."""
    found = [_row_lookup(job, join, edge) for edge in join.edges]
    for link in join.counted:
        found += _count_lookups(job, join, link, len(found))
    return found


def _row_lookup(job: Job, join: Join, edge: Edge) -> dict[str, Any]:
    """Return the section of the rows that an edge leads to; `source` is the number of the section before it, or -1."""
    sources, attributes = [other.target for other in join.edges], {}
    for name in join.requested:
        table, attribute = split_name(name)
        if table == edge.target and not _is_counted(join, name):
            attributes[name] = attribute
    return {"source": -1 if edge.source == join.base else sources.index(edge.source), "at": list(edge.at),
            "attributes": attributes, **_table(job, edge.link, edge.target)}  # fmt: skip


def _table(job: Job, link: LinkSection, name: str) -> dict[str, Any]:
    """Return the files of a table, its key, and the policies of a link to it."""
    section = job.tables[name]
    return {"link": link.called, "path": section.path, "domain": section.domain, "key": list(job.key(name)),
            "policies": [link.read_nulls, link.dangling, section.nulls, job.duplicates(name)],
            **section.format_settings}  # fmt: skip


def _count_lookups(job: Job, join: Join, link: LinkSection, number: int) -> list[dict[str, Any]]:
    """Return the section of the children of a link, after that of the other end of pairs.

    `number` is that of the first of these sections. A row of the base has at most the product of the bounds of all
    links between its children and itself.
    """
    # the only path from the parents of the counted children up to the base
    (to_parent, _), [path] = job.ends(link), ascents(job, link, join.base)
    hops = []  # tables between the child's parent and the base
    for edge in path:
        table = job.tables[edge.source]
        hops.append({"path": table.path, "key": plain_key(job.key(edge.source)), "unit": plain_key(edge.at),
                     **table.format_settings})  # fmt: skip
    bound = math.prod([link.bound, *(edge.link.bound for edge in path)])
    names = {}  # of the attributes of the join that count these children
    for name in join.requested:
        table_or_link, attribute = split_name(name)
        if _is_counted(join, name) and table_or_link in (link.called, link.child):
            names[name] = attribute
    content: dict[str, Any] = {"link": link.called, "at": list(job.key(join.base)), "key": list(to_parent),
                               "attributes": names, "bound": bound,
                               "policies": [job.tables[join.base].nulls, link.read_nulls],
                               **({"through": hops} if hops else {})}  # fmt: skip
    return [*_counted_files(job, link, number), content | _child_files(job, link)]


def _counted_files(job: Job, link: LinkSection, number: int) -> list[dict[str, Any]]:
    """Return the section of the other end of pairs that are counted, which precedes that of the pairs."""
    if link.via is None:
        return []
    second = job.ends(link)[1]
    return [{"at": list(second), "attributes": {}, "source": number + 1, **_table(job, link, link.child)}]


def _child_files(job: Job, link: LinkSection) -> dict[str, Any]:
    """Return the files with the children of a link."""
    child = job.tables[link.child]
    return {"path": link.via} if link.via else {"path": child.path, "domain": child.domain, **child.format_settings}


def join_jobs(job: Job, neighbours: NeighbourRelation) -> Mapping[str, JoinJob]:
    """Return the jobs of all joins by name, the last one that of the rows beyond their bounds if some are bounded."""
    names = [*job.joined, *([CUT] if cut_joins(job, neighbours) else [])]
    return {name: join_job(job, neighbours, name) for name in names}


CUT_SHARE = 0.05  # of a join's budget, for the rows beyond its bound, if the job states none


def cut_joins(job: Job, neighbours: NeighbourRelation) -> dict[str, float]:
    """Return the joins whose rows beyond the bound are counted, with the part of their share for it."""
    if neighbours.replaces:
        return {}
    shares = {}
    for name, join in job.joined.items():
        stated = job.budget.joins.get(name, JoinShare()).cut
        share = CUT_SHARE if stated is None else stated
        is_bounded = join.base not in (neighbours.root, *neighbours.sides)
        if share and not join.counted and is_bounded:
            shares[name] = share
    return shares


def cut_share(job: Job, neighbours: NeighbourRelation, name: str) -> float:
    """Return the part of a join's share for the number of its rows beyond the bound."""
    return cut_joins(job, neighbours).get(name, 0.0)


def cut_job(job: Job, neighbours: NeighbourRelation) -> JoinJob:
    """Return the job of the rows beyond the bounds of all joins: sums over the rows of the root.

    Each bounded join adds two queries: the sum of the numbers of rows beyond its bound, and the counts of rows of the
    root by whether join rows were cut. The number of rows of a unit beyond the bound D is counted up to (REACH − 1) D,
    which is the sensitivity of the sum. The whole job has the sum of the joins' shares for them.
    """
    root, lookups, parts = str(neighbours.root), list[dict[str, Any]](), list[dict[str, Any]]()
    shares = cut_joins(job, neighbours)
    for name in shares:
        lookups += _excess_lookups(job, neighbours, name, len(lookups))
        parts += [{"family": SUM, "of": f"{name}.{EXCESS}", "attributes": [[]]},
                  {"family": MARGINAL.name, "attributes": [[f"{name}.{CUT}"]]}]  # fmt: skip
    table, unit = job.tables[root], unit_settings(job, neighbours, root)
    data = {"path": table.path, "domain": table.domain, **table.format_settings, **unit}
    settings: dict[str, Any] = {"attributes": {}, "lookups": lookups, "bound": unit.get("max_rows_per_unit")}
    settings["numbers"] = [f"{name}.{EXCESS}" for name in shares]
    share = sum(job.shares[f"joins.{name}"] * share for name, share in shares.items())
    return _with_settings(job, data, settings, parts, share, JoinSection())


def _excess_lookups(job: Job, neighbours: NeighbourRelation, name: str, number: int) -> list[dict[str, Any]]:
    """Return the sections that count the rows of a join by the row of the root to which they belong."""
    join = job.joined[name]
    link = join.pairs or neighbours.above[join.base]
    root = str(neighbours.root)
    _, bound = _unit(job, neighbours, join)
    hops, (to_parent, _) = unit_hops(job, neighbours, link), job.ends(link)
    content: dict[str, Any] = {
        "link": link.called,
        "at": list(job.key(root)),
        "key": list(to_parent),
        "attributes": {f"{name}.{EXCESS}": EXCESS, f"{name}.{CUT}": CUT},
        "bound": bound,
        "policies": [job.tables[root].nulls, link.read_nulls],
        **({"through": hops} if hops else {}),
    }
    return [*_counted_files(job, link, number), content | _child_files(job, link)]
