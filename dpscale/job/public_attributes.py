"""Attributes of side tables in joins and links, which the job has to declare public.

A row of a side table belongs to no unit. A join or link that looks up its attributes changes in as many rows as refer
to it, and no noise covers them: only attributes that are public anyway may be used there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.job.job import CompositeJob, LinkSection
from dpscale.job.joins import split_name


def check_public_attributes(job: CompositeJob, sides: Sequence[str]) -> tuple[str, ...]:
    """Return the attributes `TABLE.ATTRIBUTE` that the job declares public.

    Raises JobError for a declaration of another table or attribute, and for an attribute of a side table in a join or
    link that is not declared.
    """
    stated = {name: one.public_attributes for name, one in job.tables.items() if one.public_attributes is not None}
    for table, names in stated.items():
        if table not in sides:
            raise JobError(f"tables.{table}.public_attributes", "given for a public table, or for rows that belong to a"
                           " unit", "a private table whose rows belong to no unit", "remove it")  # fmt: skip
        known = job.declared[table].axis_names
        if strange := next((one for one in names if one not in known), None):
            raise JobError(f"tables.{table}.public_attributes", repr(strange), ", ".join(known),
                           nearest(strange, known))  # fmt: skip
    for where, table, used in _uses(job, sides):
        missing = [one for one in used if one not in stated.get(table, ())]
        if missing:
            wanted = ", ".join(f'"{one}"' for one in (*stated.get(table, ()), *missing))
            raise JobError(where, f"{', '.join(missing)} of {table}, whose rows belong to no unit: it would be released"
                           " without protection", "public attributes of such a table",
                           f"if they are public anyway, set tables.{table}.public_attributes = [{wanted}]; or leave the"
                           " table out")  # fmt: skip
    return tuple(f"{table}.{name}" for table, names in stated.items() for name in names)


def public_attributes_of(job: CompositeJob, name: str) -> list[str]:
    """Return the declared attributes of a table, or those that a join uses, as `TABLE.ATTRIBUTE`."""
    declared = [f"{table}.{one}" for table, own in job.tables.items() for one in own.public_attributes or ()]
    if name in job.joined:
        return [one for one in declared if one in job.joined[name].requested]
    return [one for one in declared if split_name(one)[0] == name]


def _uses(job: CompositeJob, sides: Sequence[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield where attributes of side tables are looked up, the table, and the attributes."""
    for link in job.link:
        for table in _looked_up(job, link):
            if table in sides:
                yield f"link {link.called}", table, list(job.declared[table].names)
    for name, join in job.joined.items():
        targets = {edge.target for edge in join.edges}
        for table in sides:
            if table in targets and table != join.base:
                used = [split_name(one)[1] for one in join.requested if split_name(one)[0] == table]
                yield f"join {name}", table, used


def _looked_up(job: CompositeJob, link: LinkSection) -> list[str]:
    """Return the tables whose rows a link looks up: the parent of children, or the far end of pairs."""
    found = [link.parent if link.via is None else link.child]
    return [*found, *(one.parent for one in job.other_parents(link))]
