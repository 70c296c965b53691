"""Table whose rows are the privacy units of a job, and the links by which rows of other tables belong to them.

The root is the private table that is not the child of a private table, or the table that `privacy.unit` names. A row of
another private table belongs to a row of the root through its parent, the parent's parent and so on. A side table is a
private table whose rows belong to no unit: `privacy.unit` permits it. Adding or removing a unit changes none of its
rows, so links treat it as they treat a public table, and its own table protects one of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.job.sections import LinkSection, TablesOfJob


def private_tables(job: TablesOfJob) -> list[str]:
    """Return the names of the private tables, in the order of the job."""
    return [name for name, one in job.tables.items() if not one.public]


def root_table(job: TablesOfJob) -> str:
    """Return the table whose rows are protected.

    Raises JobError if the job names none and there is not exactly one.
    """
    private = private_tables(job)
    if (named := job.privacy.unit) is not None:
        if named not in private:
            raise JobError("privacy.unit", repr(named), f"a private table: {', '.join(private) or 'none'}",
                           nearest(named, private) if private else "remove it")  # fmt: skip
        return named
    children = {link.child for link in _between_private(job)}
    roots = [name for name in private if name not in children]
    if not private:  # the links alone are private: a unit is a parent's row, with its links
        roots = list(dict.fromkeys(link.parent for link in job.link))
    if len(roots) != 1:
        got = ", ".join(roots) if roots else "a cycle of parents"
        raise JobError(
            "tables",
            f"rows of {got} to protect",
            "exactly one private table that is not the child of a private table, or the table that privacy.unit names",
            'set public = true for public tables, privacy.unit for the protected table, or protects = "both" on all'
            " links",
        )
    return roots[0]


def links_above(job: TablesOfJob, root: str) -> dict[str, LinkSection]:
    """Return for every table below the root the link by which its rows belong to a parent's, each after its parent.

    Raises JobError for a second such link of a table: its rows would belong to two units.
    """
    links = _between_private(job)
    below = {root}
    while more := {link.child for link in links if link.parent in below} - below:
        below |= more
    above: dict[str, LinkSection] = {}
    for link in links:
        if link.parent not in below or link.child == root:
            continue
        if link.child in above:
            raise JobError(f"link {link.called}", f"a second link of {link.child} to rows of {root}",
                           "one unit for each row: the bound of one unit would depend on the rows of the other",
                           "remove one, or set public = true for the parent")  # fmt: skip
        above[link.child] = link
    return {name: above[name] for name in _downwards(above, root)}


def side_tables(job: TablesOfJob) -> frozenset[str]:
    """Return the private tables whose rows belong to no unit; none unless the job names the unit's table."""
    if job.privacy.unit is None:
        return frozenset()
    root = root_table(job)
    return frozenset(private_tables(job)) - {root, *links_above(job, root)}


def has_bounded_parents(job: TablesOfJob, link: LinkSection) -> bool:
    """Return whether a row of the parent has at most `max_degree` links: not a public row, nor one of a side table."""
    return link.kind == "one-to-one" or not (job.tables[link.parent].public or link.parent in side_tables(job))


def _between_private(job: TablesOfJob) -> list[LinkSection]:
    """Return the links from rows of a private table to their parents in another private table."""
    private = private_tables(job)
    return [link for link in job.link if link.via is None and link.parent != link.child
            and {link.parent, link.child} <= set(private)]  # fmt: skip


def _downwards(above: Mapping[str, LinkSection], root: str) -> list[str]:
    """Return the tables below the root, each after its parent."""
    found = [root]
    while more := [name for name, link in above.items() if link.parent in found and name not in found]:
        found += more
    return found[1:]
