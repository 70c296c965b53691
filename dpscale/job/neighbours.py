"""Neighbouring relation of a multi-table job, and the sensitivity of every table and link to one protected unit.

With `protects = "both"` on every link, a neighbour has one row of any private table replaced with all its links (at
most `max_degree` before and after: data with more are refused). A table's own run protects the addition or removal of a
row; a replacement is two of those steps. A link between rows of one table has a row at both of its ends.

Otherwise a neighbour has one row of the root added or removed, with its links, its children, and their descendants. The
root is the private table that is not the child of a private table. For each root row at most `max_degree` rows of a
child table count, `max_degree` times as many of a grandchild table, and so on; which ones is determined by the root
row's own rows. The links of a row with public rows are bounded likewise. If a removed root row is a child of another
root row (an employee's manager), it frees a place among that row's children: this changes two more links.

A row of a side table belongs to no unit. A join or link that looks up its attributes changes in as many rows as refer
to it, and no noise covers them: only attributes that are public anyway may be used there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.job.data import plain_key
from dpscale.job.forms import ONLY
from dpscale.job.job import Job
from dpscale.job.joins import split_name
from dpscale.job.protected_unit import links_above, private_tables, root_table
from dpscale.job.sections import (
    LinkSection,
    Privacy,
    TableSection,
    TableShares,
)
from dpscale.job.table_job import SHARE, TableJob, step_delta
from dpscale.job.table_sizes import check_stated_rows
from dpscale.privacy.protection import REPLACE, Protection
from dpscale.workload import MARGINAL


@dataclass(frozen=True)
class NeighbourRelation:
    """Neighbouring relation of a job.

    Attributes
    ----------
    protects : Protection
    root : str or None
        Table whose rows are protected; None if rows of any table are.
    steps : mapping of str to int
        By table, the number of row additions and removals in the table's own run that one neighbour amounts to.
    moved : mapping of str to int
        By link, the number of links that a neighbour changes.
    rows : mapping of str to int
        By private table, the number of its rows that belong to a row of the root.
    above : mapping of str to LinkSection
        By private table, the link to its parent.
    public_attributes : tuple of str
        Attributes `TABLE.ATTRIBUTE` of side tables that the job declares public.
    """

    protects: Protection
    root: str | None
    steps: Mapping[str, int]
    moved: Mapping[str, int]
    rows: Mapping[str, int] = field(default_factory=dict)
    above: Mapping[str, LinkSection] = field(default_factory=dict)
    public_attributes: tuple[str, ...] = ()

    @property
    def replaces(self) -> bool:
        return self.protects.relation == REPLACE

    @property
    def sides(self) -> tuple[str, ...]:
        """Private tables whose rows belong to no row of the root."""
        return () if self.replaces else tuple(name for name in self.steps if name not in self.rows)


def neighbour_relation(job: Job) -> NeighbourRelation:
    """Return the neighbouring relation of a job.

    Raises JobError if its tables and links have no common privacy unit.

    Guarantee
    ---------
    Protected: rows of the root with everything that links lead to; the tables of a job are charged for it together.
    Cost: counted rows of each table and link for one step, from the bounds of the links.
    Neighbours: one row of the root added or removed, with its linked rows.
    Proof: docs/privacy.md, Several tables; tests/links/test_neighbours.py.
    """
    both = [link for link in job.link if link.protects == "both"]
    if both and len(both) < len(job.link):
        other = next(link for link in job.link if link.protects != "both")
        raise JobError(
            f"link {other.called}",
            "protects the parent, but another link protects both",
            "one privacy unit in a job",
            'set protects = "both" on all links, or on none',
        )
    return _replaced(job) if both else _rooted(job)


def _replaced(job: Job) -> NeighbourRelation:
    """Return the relation of a job whose links protect both ends: neighbours replace a row and all its links.

    Raises JobError for settings with which replacing a row would change other rows.
    """
    if job.privacy.unit is not None:
        raise JobError("privacy.unit", f"{job.privacy.unit!r}, but neighbours replace a row of any table", "no unit",
                       'remove it, or protects = "both"')  # fmt: skip
    private = {name: section for name, section in job.tables.items() if not section.public}
    keeping = next((name for name, section in private.items() if section.duplicates == "keep"), None)
    if keeping:
        raise JobError(f"tables.{keeping}.duplicates", '"keep", but neighbours replace a row', '"reject"',
                       "remove it: duplicate keys are then refused")  # fmt: skip
    filtered = next((name for name, section in private.items() if section.where), None)
    if filtered:
        raise JobError(
            f"tables.{filtered}.where",
            "a filter, but neighbours replace a row",
            "all rows of a private table",
            "remove it, or protect the parent: replacing a row could add or remove it",
        )
    counting = next((link for link in job.link if link.counts), None)
    if counting:
        raise JobError(f"link {counting.called}.counts", 'a link that protects "both"', 'links that protect "parent"',
                       "remove it: replacing a row changes the degrees of other rows")  # fmt: skip
    # neighbours replace single rows, not all rows of a unit
    with_unit = next((name for name, section in job.tables.items() if section.privacy_unit is not None), None)
    if with_unit:
        raise JobError(f"tables.{with_unit}.privacy_unit", "a column, but neighbours replace a row",
                       "rows as privacy units", "remove it, or protect the parent")  # fmt: skip

    steps = dict.fromkeys(private, 2)  # one row removed and one added
    moved = {link.called: link.bound * (2 if link.parent == link.child else 1) for link in job.link}
    return NeighbourRelation(protects=Protection(relation=REPLACE), root=None, steps=steps, moved=moved)


def _rooted(job: Job) -> NeighbourRelation:
    """Return the relation of a job with a protected table, the root: neighbours add or remove one unit of it.

    Every private table has one addition or removal (`steps`), which its own run bounds by the rows of a unit.
    """
    root = root_table(job)
    above = links_above(job, root)
    _check_units(job, root)
    # most rows of one unit, by table: the product of the bounds of the links from the root
    rows = {root: job.tables[root].max_rows_per_unit or 1}
    for name, link in above.items():
        rows[name] = rows[link.parent] * link.bound
    private = private_tables(job)
    _check_sides(job, [name for name in private if name not in rows], root)
    for link in job.link:
        _check(job, link, rows, root)
        _check_counts(job, link, rows)
    optional = next((link for link in above.values() if link.nulls == "keep"), None)
    if optional:
        raise JobError(
            f"link {optional.called}.nulls",
            f'"keep", but rows of {optional.child} belong to their parent',
            '"reject" or "drop"',
            "set one of them: a row without a parent would have no privacy unit",
        )
    moved = {link.called: _moved(link, rows) for link in job.link}
    unit = job.tables[root].unit_name or ", ".join(job.key(root)) or None
    protects = Protection(unit, bound=rows[root], table=None if unit is None else root)
    public = check_public_attributes(job, [name for name in private if name not in rows])
    return NeighbourRelation(
        protects=protects,
        root=root,
        steps=dict.fromkeys(private, 1),
        moved=moved,
        rows=rows,
        above=above,
        public_attributes=public,
    )


def _check_sides(job: Job, sides: Sequence[str], root: str) -> None:
    """Raise JobError for tables whose rows belong to no unit, unless the job names the table of the units.

    `sides` are the private tables whose rows belong to no unit.
    """
    if sides and job.privacy.unit is None:
        raise JobError(f"tables.{sides[0]}", f"no link to the protected table {root}", "a link, or public = true",
                       f'add the link, or set protects = "both", or privacy.unit = "{root}"')  # fmt: skip
    for name in sides:
        if not job.key(name):
            raise JobError(f"tables.{name}.key", f"missing, but rows of {name} belong to no row of {root}",
                           "the key by which a row is protected in its own table", "set it")  # fmt: skip

    # tables are placed after those to which their rows refer; what cannot be placed is in a circle
    placed: set[str] = set()

    def is_ready(name: str) -> bool:
        """Return whether all side tables to which the rows of a table refer are placed."""
        parents = [link.parent for link in job.link if link.child == name and not link.via]
        return all(parent in placed or parent not in sides for parent in parents)

    ready = {name for name in sides if is_ready(name)}
    while ready:
        placed |= ready
        ready = {name for name in sides if name not in placed and is_ready(name)}
    circular = next((name for name in sides if name not in placed), None)
    if circular:
        raise JobError(f"tables.{circular}", f"links of its rows that lead back to {circular}",
                       f"rows that refer to rows of other tables, beside those of {root}",
                       "remove one of the links")  # fmt: skip


def _check_units(job: Job, root: str) -> None:
    """Raise JobError for a unit of its own in a linked table: units of linked tables are rows of the root."""
    for name, section in job.tables.items():
        if section.privacy_unit is not None and (name != root or job.link):
            raise JobError(f"tables.{name}.privacy_unit", "a unit of its own in a job with links",
                           f"units that are rows of {root}, which links and keys define",
                           "remove it, or add a table with one row per unit as the parent of a link")  # fmt: skip


def _check(job: Job, link: LinkSection, rows: Mapping[str, int], root: str) -> None:
    """Raise JobError for a link of which one unit of the root could have any number.

    `root` is the table whose rows are the units, and `rows` has the tables whose rows belong to these. With `via` a
    link is a table of pairs.
    """
    if link.parent == link.child != root:  # within another table than the root
        whose = f"belong to those of {root}" if link.child in rows else f"belong to no row of {root}"
        raise JobError(f"link {link.called}", f"within {link.child}, whose rows {whose}",
                       f"links within {root} only", "remove it")  # fmt: skip
    if link.via is None and link.child == root and link.parent in rows and link.parent != root:
        raise JobError(f"link {link.called}", f"from rows of {root} to rows of {link.parent}, which belong to others"
                       f" of {root}", "rows that refer to rows of one unit, or of no unit", "remove it")  # fmt: skip
    if link.via is None:
        if job.tables[link.child].public:
            raise JobError(f"link {link.called}", f"{link.child}, a public table, as the child",
                           "a private child, or a table of pairs", "change the link to one of them")  # fmt: skip
        return
    if link.parent not in rows:
        what = "a public table" if job.tables[link.parent].public else f"whose rows belong to no row of {root}"
        raise JobError(f"link {link.called}", f"{link.parent}, {what}, as the parent", "the table whose rows"
                       " belong to units", "exchange parent and child")  # fmt: skip
    if link.child in rows:
        got = f"{link.child}, a private table whose rows may have any number of links"
        raise JobError(f"link {link.called}", got, 'a public table, or protects = "both"', "set one of them")


def _check_counts(job: Job, link: LinkSection, rows: Mapping[str, int]) -> None:
    """Raise JobError if a counted degree depends on other units: removing a unit would change other units' links.

    `counts` of a link names other links whose degrees are attributes of its rows; `rows` has the tables whose rows
    belong to units.
    """
    for counted in job.link:
        has_no_units = counted.parent not in rows
        if counted.called in (link.counts or ()) and (has_no_units or counted.parent == counted.child):
            whose = "a table without units" if has_no_units else "their own table, to which other rows refer"
            raise JobError(f"link {link.called}.counts", f"{counted.called!r}, links of rows of {whose}",
                           "links of a private parent with its children or with public rows",
                           "remove it: their number depends on other units' rows")  # fmt: skip


def _moved(link: LinkSection, rows: Mapping[str, int]) -> int:
    """Return the number of links that one unit of the root changes, given its numbers of rows by table.

    A unit with n rows of the parent has n · bound links.
    """
    if link.parent == link.child:  # those as a parent, the one to its parent, and one that takes its place there
        return link.bound + 2
    if link.parent in rows:
        return rows[link.parent] * link.bound
    return rows.get(link.child, 1)  # a row of a side table refers to one row


DEGREE = 3  # most attributes of a marginal of a table for which the job states no workload


def table_job(job: Job, protects: NeighbourRelation, name: str) -> TableJob:
    """Return the job of one table of a job of several, at its share of the budget.

    Neighbouring data sets differ in up to `steps` units of the table, so noise for one unit is scaled by `steps`,
    which is a budget of squared μ divided by steps². What the table's section leaves open follows from the common
    sections.
    """
    section, steps = job.tables[name], protects.steps[name]
    budget = job.total_budget.amount * job.shares[f"tables.{name}"] / steps**2
    unit = unit_settings(job, protects, name)
    if any(part.counts_units for part in section.workload or ()) and not unit:
        raise JobError(f"tables.{name}.workload", "count = 'units', but the unit is a row", "rows",
                       f"set tables.{name}.key, or privacy_unit and max_rows_per_unit, or leave it out")  # fmt: skip

    degree = min(DEGREE, len(job.declared[name].names))
    stated = {} if section.synthesize is None else section.synthesize.model_dump(exclude_unset=True)
    synthesize = {"types": job.synthesize.types, "rows": section.rows} | stated
    # a key becomes part of `unit`, and a number of rows part of `synthesize`
    content = section.model_dump() | {"key": None, "rows": None, "synthesize": synthesize} | unit
    if section.workload is None:
        content["workload"] = [{"family": MARGINAL.name, "degree": degree}]
    return part_job(job, TableSection.model_validate(content), budget, _table_shares(job, name, budget, steps))


def part_job(job: Job, section: TableSection, amount: float, shares: TableShares) -> TableJob:
    """Return the job of a part with this squared μ and its division."""
    privacy = Privacy(privacy_cost=amount, ledger=job.privacy.ledger, dataset=job.dataset, allow_weak_privacy=True)
    return TableJob(data=section, privacy=privacy, engine=job.engine, shares=shares, dataset=job.dataset).checked()


def _table_shares(job: Job, name: str, step_budget: float, steps: int) -> TableShares:
    """Return how the budget of a table's run is divided, with what its searches cost.

    Searches find cells of the domain that are not public. Their share of the squared μ is the one that the job states,
    or SHARE. A search for values costs an additive delta, too. `job.search_deltas` has it for neighbours of the job;
    the table's run needs it for one step, the addition or removal of one row or unit.

    Parameters
    ----------
    job : Job
    name : str
        Table.
    step_budget : float
        Squared μ of the table's run, for one step.
    steps : int
        Number of steps between neighbours of the job, in this table.
    """
    shares = job.budget.tables.get(name, TableShares())  # as the job states them
    if not job.declared[name].searches:
        return shares

    search_share = shares.discover or SHARE
    delta_of_step = None
    if name in job.search_deltas:
        # the delta over all steps is that of the job, and depends on the squared μ of the searches too
        delta_of_step = step_delta(job.search_deltas[name], step_budget * search_share, steps)
    return shares.model_copy(update={"discover": search_share, "discover_delta": delta_of_step})


def table_jobs(job: Job) -> dict[str, TableJob]:
    """Return the jobs of the private tables.

    Raises JobError if their stated numbers of rows do not fit together.
    """
    if job.is_short:
        return {ONLY: job.table}
    protects = neighbour_relation(job)
    check_stated_rows(job)
    private = [name for name, table in job.tables.items() if not table.public]
    return {name: table_job(job, protects, name) for name in private}


def check_whole_rows(job: Job) -> None:
    """Raise JobError for a linked table whose workload counts no set with an attribute: links are between whole rows.

    A table without a workload has every attribute in its sets.
    """
    linked = {end for link in job.link for end in (link.parent, link.child)}
    for name, of_table in table_jobs(job).items():
        if name not in linked or not any(part.counts_rows for part in job.tables[name].workload or ()):
            continue
        domain = of_table.read_domain()
        counted = {attribute for names in of_table.build_workload(domain).sets for attribute in names}
        missing = [attribute for attribute in domain.names if attribute not in counted]
        if missing:
            raise JobError(f"tables.{name}.workload", f"no set with {missing[0]!r}",
                           "every attribute and level in a set, because links are between whole rows",
                           f'add a set with it, for example [["{missing[0]}"]] of family "marginal"')  # fmt: skip


def unit_settings(job: Job, neighbours: NeighbourRelation, name: str) -> dict[str, Any]:
    """Return the privacy unit of a table, as keys of its section; empty if a row without a key is the unit.

    It is the row by its key or, below the root, the row of the root to which the parent's key leads over the tables
    between (`unit_hops`).
    """
    link = neighbours.above.get(name)  # by which the rows belong to their parent
    if job.tables[name].privacy_unit is not None:
        return job.tables[name].unit_settings
    columns, bound = (job.key(name), 1) if link is None else (job.ends(link)[0], neighbours.rows[name])
    hops = unit_hops(job, neighbours, link)
    # a key may lead to no unit, whose rows are then dropped
    drops = hops or "drop" in (job.tables[name].nulls, *((link.nulls, link.dangling) if link else ()))
    extra: dict[str, Any] = {"unit_through": hops} if hops else {}
    extra |= {"unit_nulls": "drop"} if drops else {}
    return {"privacy_unit": plain_key(columns), "max_rows_per_unit": bound, **extra} if columns else {}


def unit_hops(job: Job, neighbours: NeighbourRelation, link: LinkSection | None) -> list[dict[str, Any]]:
    """Return the tables between the child of a link and the root, from the child upwards.

    A hop has the key of its rows (`key`) and the column that refers to the next table or the root (`unit`).
    """
    hops = []
    while link is not None:
        above = neighbours.above.get(link.parent)
        if above is None:
            break
        to_parent, _ = job.ends(above)
        table = job.tables[link.parent]
        hops.append({"path": table.path, "key": plain_key(job.key(link.parent)), "unit": plain_key(to_parent),
                     **table.format_settings})  # fmt: skip
        link = above
    return hops


def describe_neighbours(neighbours: NeighbourRelation) -> str:
    """Return a sentence that describes the neighbouring relation.

    A job without links has nothing `moved`, and one whose tables are all public has no `steps`.
    """
    protects, root = neighbours.protects, neighbours.root
    if neighbours.replaces:
        unit = "one row of any private table, replaced together with all its links" if neighbours.steps else (
            "all links of one row of either table, replaced by others")  # fmt: skip
        return f"Neighbours differ by {unit}, whose number is at most the bound in the job."
    if not neighbours.moved:
        unit = f"one row of {root}" if protects.bound == 1 else (
            f"the rows of {root} with one {protects.unit}, at most {protects.bound},")  # fmt: skip
        return f"Neighbours differ by {unit} added or removed."
    unit = f"one row of {root}, added or removed together with all its links and children" if neighbours.steps else (
        f"all links of one row of {root}, added or removed")  # fmt: skip
    limits = "their numbers are limited by the bounds in the job."
    return f"Neighbours differ by {unit}; {limits}{describe_sides(neighbours)}"


def describe_sides(neighbours: NeighbourRelation) -> str:
    """Return what is protected of rows that belong to no unit; "" if there are none."""
    if not neighbours.sides:
        return ""
    public = neighbours.public_attributes
    return (
        f" Rows of {' and '.join(neighbours.sides)} belong to no row of {neighbours.root}: each is protected in its"
        f" own table, added or removed, but links to it protect rows of {neighbours.root} only."
    ) + (f" {describe_public(public)}" if public else "")


def describe_public(attributes: Sequence[str]) -> str:
    """Return what is not protected of attributes of side tables that the job declares public."""
    return (f"The job declares {', '.join(attributes)} public: joins and links use their values without protection of"
            " the rows that have them.")  # fmt: skip


def refusals(job: Job, neighbours: NeighbourRelation) -> list[str]:
    """Return the data that a job refuses before its charge, besides values outside a domain.

    `keyed` are the private tables with a key.
    """
    keyed = {name: section for name, section in job.tables.items() if section.key and not section.public}
    refused = {
        "a null key": [name for name, section in keyed.items() if section.nulls == "reject"],
        "two rows with one key": [name for name in keyed if job.duplicates(name) == "reject"],
        "a null at an end of a link": [link.called for link in job.link if link.nulls == "reject"],
        "a key without a row": [link.called for link in job.link if link.dangling == "reject"],
        "more links of a row than max_degree": [link.called for link in job.link if neighbours.replaces],
    }
    return [f"{fault} ({', '.join(names)})" for fault, names in refused.items() if names]


def check_public_attributes(job: Job, sides: Sequence[str]) -> tuple[str, ...]:
    """Return the attributes `TABLE.ATTRIBUTE` that the job declares public.

    Raises JobError for a declaration of another table or attribute, and for an attribute of a side table that a join or
    link looks up without a declaration: it would be released without noise.

    `sides` are the side tables: private tables whose rows belong to no unit.
    """
    stated = {}
    for table, section in job.tables.items():
        if section.public_attributes is not None:
            stated[table] = section.public_attributes
    for table, names in stated.items():
        if table not in sides:
            raise JobError(f"tables.{table}.public_attributes", "given for a public table, or for rows that belong to a"
                           " unit", "a private table whose rows belong to no unit", "remove it")  # fmt: skip
        known = job.declared[table].axis_names
        unknown = [name for name in names if name not in known]
        if unknown:
            raise JobError(f"tables.{table}.public_attributes", repr(unknown[0]), ", ".join(known),
                           nearest(unknown[0], known))  # fmt: skip

    for where, table, used in _uses(job, sides):
        missing = [name for name in used if name not in stated.get(table, ())]
        if missing:
            wanted = ", ".join(f'"{name}"' for name in (*stated.get(table, ()), *missing))
            raise JobError(where, f"{', '.join(missing)} of {table}, whose rows belong to no unit: it would be released"
                           " without protection", "public attributes of such a table",
                           f"if they are public anyway, set tables.{table}.public_attributes = [{wanted}]; or leave the"
                           " table out")  # fmt: skip
    return tuple(f"{table}.{name}" for table, names in stated.items() for name in names)


def public_attributes_of(job: Job, name: str) -> list[str]:
    """Return the declared attributes of a table, or those that a join uses, as `TABLE.ATTRIBUTE`."""
    declared = []
    for table, section in job.tables.items():
        declared += [f"{table}.{attribute}" for attribute in section.public_attributes or ()]
    if name in job.joined:
        return [attribute for attribute in declared if attribute in job.joined[name].requested]
    return [attribute for attribute in declared if split_name(attribute)[0] == name]


def _uses(job: Job, sides: Sequence[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield where attributes of side tables are looked up, the table, and the attributes.

    `sides` are tables whose rows belong to no unit. A triple is (description of the place, table, attributes).
    """
    for link in job.link:
        for table in _looked_up(job, link):
            if table in sides:
                yield f"link {link.called}", table, list(job.declared[table].names)
    for name, join in job.joined.items():
        targets = {edge.target for edge in join.edges}
        for table in sides:
            if table in targets and table != join.base:
                requested = map(split_name, join.requested)
                used = [attribute for of_table, attribute in requested if of_table == table]
                yield f"join {name}", table, used


def _looked_up(job: Job, link: LinkSection) -> list[str]:
    """Return the tables whose rows a link looks up: the parent or the far end of pairs, and other parents."""
    far_end = link.parent if link.via is None else link.child
    return [far_end, *(other.parent for other in job.other_parents(link))]
