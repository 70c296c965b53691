"""Checks of the sections of a job of several tables against each other: searches, counted links, public tables."""

from __future__ import annotations

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.job.protected_unit import has_bounded_parents
from dpscale.job.sections import LinkSection, TablesOfJob
from dpscale.relational.rounding import marginal_cells
from dpscale.workload.sql.selection import read_names

MOST_CELLS = 1 << 27  # of all cross marginals of a published loop: 1 GiB


def check_searches(job: TablesOfJob) -> None:
    """Raise JobError for cells that no budget finds, or that could leave a link without a row at its end.

    A search by values uses an additive delta and may miss a rare value, whose records are then dropped if `outside` is
    "drop".
    """
    for name, domain in job.declared.items():
        if job.tables[name].public and domain.searches:
            raise JobError(f"tables.{name}.domain", f"cells of {domain.searches[0].name} that are not public, in a"
                           " public table", "public cells, because a public table has no budget for a search",
                           "state the cells, or make the table private")  # fmt: skip
    _ = job.total_budget  # refuses additive deltas that do not fit the job
    for link in job.link:
        ends = [link.parent, *([link.child] if link.via else [])]
        names = list[str]()  # attributes of which some values may not be found, so that their rows are dropped
        for end in ends:
            for searched in job.declared[end].searches if end in job.tables else ():
                if searched.search and searched.search.uses_delta and searched.outside == "drop":
                    names.append(searched.name)
        if names and link.dangling != "drop":
            raise JobError(f"link {link.called}: dangling", f"{link.dangling!r}, but rows whose value of {names[0]}"
                           " is not found are dropped", '"drop"', "set it, or other = true in the domain"
                           " file")  # fmt: skip


def check_counts(job: TablesOfJob, link: LinkSection, before: list[str]) -> None:
    """Raise JobError unless counted links precede this link and have one of its tables as parent."""
    field, by_name, counts = f"link {link.called}", {other.called: other for other in job.link}, link.counts or []
    for name in counts:
        if name not in before:
            raise JobError(f"{field}: counts", f"{name!r}", "names of earlier links",
                           nearest(name, before) if before else "remove it")  # fmt: skip
    for name in counts:
        if by_name[name].parent not in (link.parent, link.child):
            raise JobError(f"{field}: counts", f"{name!r}, links of {by_name[name].parent}",
                           f"links whose parent is {link.parent} or {link.child}", "remove it")  # fmt: skip


def check_order(job: TablesOfJob, link: LinkSection) -> None:
    """Raise JobError for marginals of more attributes than both tables have, or of more cells than memory permits.

    `u` and `v` are the sizes of the attributes of both ends; the degree counts attributes of both ends and of counts.
    """
    if link.mechanism != "published":
        return
    field, order = f"link {link.called}: degree", link.loop.order
    ends = (job.declared[name] for name in (link.parent, link.child))
    u, v = ([domain[name].size for name in domain.names] for domain in ends)
    largest = len(u) + len(v) + len(link.counts or [])
    if link.degree is not None and order > largest:
        raise JobError(field, f"{order}, but the tables have {largest} attributes", f"from 2 to {largest}", "lower it")
    cells = sum(marginal_cells(u, v, order))
    if cells > MOST_CELLS:
        raise JobError(field, f"{order}, whose marginals have {cells:,} cells", f"at most {MOST_CELLS:,}", "lower it")


def check_history(job: TablesOfJob, link: LinkSection, before: list[str]) -> None:
    """Raise JobError for an order that is no attribute, or of children of a public table, and for other parents.

    `before` has the names of the links before this one, whose parents are known when the history is drawn.

    A history is the sequence of a parent's children in an order (`order_by`). Its model needs public cells of the
    order's attribute, and parents that are units or below, so that a bound limits how many children one unit adds.
    """
    field, names = f"link {link.called}", job.declared[link.child].names
    if link.order and link.order[0] not in names:
        raise JobError(f"{field}: order_by", f"{link.order[0]!r}", f"an attribute of {link.child}: {', '.join(names)}",
                       nearest(link.order[0], list(names)))  # fmt: skip
    if link.order and job.declared[link.child][link.order[0]].search is not None:
        raise JobError(f"{field}: order_by", f"{link.order[0]!r}, whose cells are not public", "public cells",
                       "state its cells in the domain file")  # fmt: skip
    if link.order and not has_bounded_parents(job, link):
        raise JobError(f"{field}: order_by", f"children of {link.parent}, whose rows have no bound", "a parent whose"
                       " rows belong to units", "set it for the link by which rows belong to their unit")  # fmt: skip

    by_name = {section.called: section for section in job.link}
    # further parents of a child, as attributes of the history: each child needs one, and it must be public
    for name in link.parents or []:
        if name not in before:
            raise JobError(f"{field}: parents", f"{name!r}", "names of earlier links",
                           nearest(name, before) if before else "remove it")  # fmt: skip
        other = by_name[name]
        if other.child != link.child or other.via or has_bounded_parents(job, other):
            raise JobError(f"{field}: parents", f"{name!r}, a link of {other.parent} and {other.child}",
                           f"links of {link.child} to a public or side table", "remove it")  # fmt: skip
        if (other.nulls, other.dangling) != ("reject", "reject"):
            raise JobError(f"{field}: parents", f"{name!r}, whose rows may lack a parent",
                           'nulls and dangling "reject"', "set them, or remove it")  # fmt: skip


def check_references(job: TablesOfJob) -> None:
    """Raise JobError for a setting of a link between public tables that has no effect: its rows stay as they are."""
    for link in job.foreign_keys[len(job.link) :]:
        changed: dict[str, object] = {name: getattr(link, name) for name in ("max_degree", "counts", "loops")}
        changed |= {name: "drop" if getattr(link, name) == "drop" else None for name in ("nulls", "dangling")}
        for name, value in changed.items():
            if value is not None:
                raise JobError(f"link {link.called}: {name}", f"{value!r} between two public tables",
                               "rows that are released unchanged", "remove it")  # fmt: skip


def check_whole_rows(job: TablesOfJob) -> None:
    """Raise JobError for a linked table whose workload leaves out an attribute: links are between whole rows.

    A part with a degree, or without stated sets and statements, has every attribute.
    """
    linked = {end for link in job.link for end in (link.parent, link.child)}
    for name in linked.intersection(job.tables):
        parts = [part for part in job.tables[name].workload or () if part.counts_rows]
        # nothing is counted, or everything is
        if not parts or any(part.degree or (part.attributes is None and not part.statements) for part in parts):
            continue
        requested = set[str]()
        for part in parts:
            for names in part.attributes or ():
                requested.update(names)
            for statement in part.statements:
                requested.update(read_names(statement, job.declared[name]))
        missing = [attribute for attribute in job.declared[name].names if attribute not in requested]
        if missing:
            raise JobError(f"tables.{name}.workload", f"no set with {missing[0]!r}",
                           "every attribute and level in a set, because links are between whole rows",
                           f'add a set with it, for example [["{missing[0]}"]] of family "marginal"')  # fmt: skip
