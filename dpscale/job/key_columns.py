"""Keys of the tables of a job and foreign keys of their links: columns of both, and their checks."""

from __future__ import annotations

from dpscale.base.errors import JobError
from dpscale.job.sections import LinkSection, TablesOfJob


def key_links(job: TablesOfJob, name: str) -> list[LinkSection]:
    """Return the links of a private table's rows whose foreign key has a column of the table's own key."""
    own = set(job.key(name))
    return [link for link in job.link if link.via is None and link.child == name and own & set(job.ends(link)[0])]


def pair_links(job: TablesOfJob, name: str) -> list[LinkSection]:
    """Return the two links whose foreign keys together are the key of a private table's rows; none for other keys."""
    links = key_links(job, name)
    covered = {column for link in links for column in job.ends(link)[0]}
    return links if len(links) == 2 and set(job.key(name)) <= covered else []


def check_key_columns(job: TablesOfJob) -> None:
    """Raise JobError for a key that foreign keys determine but that is not unique, or may be absent."""
    for name in job.tables:
        links = key_links(job, name)
        for link in links:
            if link.parent == name or link.nulls == "keep":
                what = f"a link within {name}" if link.parent == name else 'nulls = "keep"'
                raise JobError(f"link {link.called}", f"{what}, with a column of the key of {name}",
                               "a foreign key beside the key, because a key is never null",
                               "use another column")  # fmt: skip
        covered = {column for link in links for column in job.ends(link)[0]}
        if not links or set(job.key(name)) - covered:
            continue
        if len(links) == 1 and links[0].kind != "one-to-one":
            raise JobError(f"link {links[0].called}", f"{links[0].kind}, with the key of {name} as foreign key",
                           '"one-to-one", because each key occurs once', "set kind, or another key")  # fmt: skip
        if len(links) > 2:
            raise JobError(f"tables.{name}.key", f"columns of {len(links)} foreign keys", "a key of at most two foreign"
                           " keys, or with a column of its own", "add a column with a number")  # fmt: skip


def check_distinct(job: TablesOfJob, field: str, columns: tuple[str, ...], table: str) -> None:
    """Raise JobError if a key column is an attribute."""
    if overlap := [column for column in columns if column in job.domains[table].names]:
        raise JobError(field, f"{overlap[0]!r}, which is in the domain", "a column that is not an attribute",
                       "remove it from the domain file")  # fmt: skip


def check_columns(job: TablesOfJob) -> None:
    """Raise JobError if a column of a released table would contain the keys of two rows of other tables."""
    used: dict[str, list[str]] = {name: [] for name in job.tables}
    check_key_columns(job)
    for link in job.foreign_keys:
        first, second = job.ends(link)
        taken = used.get(link.child, []) if link.via is None else list(second)
        if both := next((column for column in first if column in taken), None):
            raise JobError(f"link {link.called}", f"column {both!r} for two keys", "a column for each key",
                           "add a copy of the column under another name")  # fmt: skip
        if link.via is None and link.child in used:
            used[link.child] += first


def check_keys(job: TablesOfJob, link: LinkSection) -> None:
    """Raise JobError for a link to a table without a key, or with another number of columns."""
    needs = [link.parent, *([link.child] if link.via else [])]
    for end in needs:
        if not job.key(end):
            raise JobError(f"tables.{end}.key", "missing", f"the key column to which link {link.called} refers",
                           "set it")  # fmt: skip
    if len(job.ends(link)[0]) != len(job.key(link.parent)):
        raise JobError(
            f"link {link.called}",
            "a foreign key that differs in length from the parent's key",
            f"{len(job.key(link.parent))} columns",
            "list a column for each one of the parent's key",
        )
