"""Columns that are part of a table's key and of a foreign key."""

from __future__ import annotations

from dpscale.base.errors import JobError
from dpscale.job.table_sections import LinkedTables, LinkSection


def key_links(job: LinkedTables, name: str) -> list[LinkSection]:
    """Return the links of a private table's rows whose foreign key has a column of the table's own key."""
    own = set(job.key(name))
    return [link for link in job.link if link.via is None and link.child == name and own & set(job.ends(link)[0])]


def pair_links(job: LinkedTables, name: str) -> list[LinkSection]:
    """Return the two links whose foreign keys together are the key of a private table's rows; none for other keys."""
    links = key_links(job, name)
    covered = {column for link in links for column in job.ends(link)[0]}
    return links if len(links) == 2 and set(job.key(name)) <= covered else []


def check_key_columns(job: LinkedTables) -> None:
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
