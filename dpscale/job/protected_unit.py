"""Table whose rows are the privacy units of a job, and the links by which rows of other tables belong to them.

The root is the private table that is not the child of a private table, or the table that `privacy.unit` names. A row of
another private table belongs to a row of the root through its parent, the parent's parent and so on. A side table is a
private table whose rows belong to no unit: `privacy.unit` permits it. Adding or removing a unit changes none of its
rows, so links treat it as they treat a public table, and its own table protects one of its rows.

Keys of tables and foreign keys of links are columns of the same number and kind.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.job.sections import LinkSection, TablesOfJob


def private_tables(job: TablesOfJob) -> list[str]:
    """Return the names of the private tables, in the order of the job."""
    return [name for name, table in job.tables.items() if not table.public]


def root_table(job: TablesOfJob) -> str:
    """Return the table whose rows are protected.

    Raises JobError if the job names none and there is not exactly one.

    Rows of a child belong to those of their parent, so the root is the only private table that is no child.
    """
    private = private_tables(job)
    named = job.privacy.unit
    if named is not None:
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
    # the root and all tables that are reached from it, from parent to child
    below, new = set[str](), {root}
    while new:
        below |= new
        new = {link.child for link in links if link.parent in below} - below

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
    """Return the private tables whose rows belong to no unit; none unless the job names the unit's table.

    The root is the table of the unit; tables linked below it belong to its units.
    """
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
    """Return the tables below the root, each after its parent.

    `above` maps a table to the link to its parent.
    """
    ordered, level = list[str](), [root]
    while level:
        ordered += level
        level = [name for name, link in above.items() if link.parent in ordered and name not in ordered]
    return ordered[1:]


def key_links(job: TablesOfJob, name: str) -> list[LinkSection]:
    """Return the links of a private table's rows whose foreign key has a column of the table's own key."""
    key = set(job.key(name))
    return [link for link in job.link if link.via is None and link.child == name and key & set(job.ends(link)[0])]


def pair_links(job: TablesOfJob, name: str) -> list[LinkSection]:
    """Return the two links whose foreign keys together are the key of a private table's rows; none for other keys."""
    links = key_links(job, name)
    covered = {column for link in links for column in job.ends(link)[0]}
    return links if len(links) == 2 and set(job.key(name)) <= covered else []


def check_key_columns(job: TablesOfJob) -> None:
    """Raise JobError for a key that foreign keys determine but that is not unique, or may be absent."""
    for name in job.tables:
        links = key_links(job, name)  # with columns of the table's key in their foreign key
        for link in links:
            if link.parent == name or link.nulls == "keep":
                what = f"a link within {name}" if link.parent == name else 'nulls = "keep"'
                raise JobError(f"link {link.called}", f"{what}, with a column of the key of {name}",
                               "a foreign key beside the key, because a key is never null",
                               "use another column")  # fmt: skip
        covered = set[str]()
        for link in links:
            to_parent, _ = job.ends(link)
            covered.update(to_parent)
        if not links or set(job.key(name)) - covered:
            continue  # a column of the key that no foreign key has makes it unique
        # a parent with several children would give each of them the same key
        if len(links) == 1 and links[0].kind != "one-to-one":
            raise JobError(f"link {links[0].called}", f"{links[0].kind}, with the key of {name} as foreign key",
                           '"one-to-one", because each key occurs once', "set kind, or another key")  # fmt: skip
        if len(links) > 2:
            raise JobError(f"tables.{name}.key", f"columns of {len(links)} foreign keys", "a key of at most two foreign"
                           " keys, or with a column of its own", "add a column with a number")  # fmt: skip


def check_distinct(job: TablesOfJob, field: str, columns: tuple[str, ...], table: str) -> None:
    """Raise JobError if a key column is an attribute."""
    overlap = [column for column in columns if column in job.domains[table].names]
    if overlap:
        raise JobError(field, f"{overlap[0]!r}, which is in the domain", "a column that is not an attribute",
                       "remove it from the domain file")  # fmt: skip


def check_columns(job: TablesOfJob) -> None:
    """Raise JobError if a column of a released table would contain the keys of two rows of other tables.

    `used` has the columns of a child that contain keys of its parents; a table of pairs (`via`) has the columns of both
    ends.
    """
    used: dict[str, list[str]] = {name: [] for name in job.tables}
    check_key_columns(job)
    for link in job.foreign_keys:
        to_parent, to_child = job.ends(link)
        taken = used.get(link.child, []) if link.via is None else list(to_child)
        both = [column for column in to_parent if column in taken]
        if both:
            raise JobError(f"link {link.called}", f"column {both[0]!r} for two keys", "a column for each key",
                           "add a copy of the column under another name")  # fmt: skip
        if link.via is None and link.child in used:
            used[link.child] += to_parent


def check_formats(job: TablesOfJob) -> None:
    """Raise JobError for a format of a column that has other values, or of a key with repeated texts.

    A format states the texts of a column; `unique` means that no text repeats. Formats of foreign keys follow from the
    parent's key.
    """
    for name in job.tables:
        foreign_keys = set[str]()
        for link in job.link:
            if link.via is None and link.child == name:
                to_parent, _ = job.ends(link)
                foreign_keys.update(to_parent)
        for form in job.domains[name].formats:
            field = f"tables.{name}.domain"
            # a format gives texts to synthetic rows, which a public table has none of
            if job.tables[name].public:
                raise JobError(field, f"a format of {form.name!r} in a public table", "formats of private tables",
                               "remove it: a public table is released unchanged")  # fmt: skip
            if form.name in foreign_keys:
                raise JobError(field, f"a format of the foreign key {form.name!r}",
                               "a format of the parent's key, which its foreign keys follow",
                               "state it in the domain of the parent")  # fmt: skip
            if form.name in job.key(name) and not form.unique:
                raise JobError(field, f"unique = false in the format of the key {form.name!r}", "unique keys",
                               "remove it")  # fmt: skip


def check_keys(job: TablesOfJob, link: LinkSection) -> None:
    """Raise JobError for a link to a table without a key, or with another number of columns."""
    needs = [link.parent, *([link.child] if link.via else [])]
    for end in needs:
        if not job.key(end):
            raise JobError(f"tables.{end}.key", "missing", f"the key column to which link {link.called} refers",
                           "set it")  # fmt: skip
    to_parent, _ = job.ends(link)
    if len(to_parent) != len(job.key(link.parent)):
        raise JobError(
            f"link {link.called}",
            "a foreign key that differs in length from the parent's key",
            f"{len(job.key(link.parent))} columns",
            "list a column for each one of the parent's key",
        )
