"""Whom a job of several tables protects, and how many links or rows of each part one protected unit can move.

`protects = "both"` on every link: a neighbour has one row of any private table replaced, with all its links (at most
`max_degree` before and after: data with more are refused). A table's own run protects the adding or removing of a row;
a replacement is two of those steps. A link between rows of one table has a row at both of its ends.

Else: a neighbour has one row of the root added or removed, with its links and its children: the root is the private
table that is no private table's child. Links beyond `max_degree` are cut, per row of the root and by its own links.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpscale.database.job import DatabaseJob, LinkSection
from dpscale.errors import JobError
from dpscale.privacy.protection import REPLACE, Protection


@dataclass(frozen=True)
class Whom:
    """`root`: whose rows are protected, None for those of any table; `moved`: by link, how many links a neighbour
    moves; `steps`: by table, how many rows' comings and goings one neighbour is to the table's own run."""

    protects: Protection
    root: str | None
    steps: Mapping[str, int]
    moved: Mapping[str, int]

    @property
    def replaces(self) -> bool:
        return self.protects.relation == REPLACE


def whom(job: DatabaseJob) -> Whom:
    """JobError where the links and tables of a job protect nobody whom all of them can name."""
    both = [link for link in job.link if link.protects == "both"]
    if both and len(both) < len(job.link):
        other = next(link for link in job.link if link.protects != "both")
        raise JobError(f"link {other.called}", "protects the parent, another link both", "one protected unit in a job",
                       'set protects = "both" on all links, or on none')  # fmt: skip
    return _replaced(job) if both else _rooted(job)


def _replaced(job: DatabaseJob) -> Whom:
    steps = {name: 2 for name, one in job.tables.items() if not one.public}
    moved = {link.called: link.bound * (2 if link.parent == link.child else 1) for link in job.link}
    return Whom(Protection(relation=REPLACE), None, steps, moved)


def _rooted(job: DatabaseJob) -> Whom:
    root = _root(job)
    steps = {name: 1 for name, one in job.tables.items() if not one.public}
    reached = {root}
    for link in job.link:
        _check(job, link, root)
        reached |= {link.parent, link.child} if root in (link.parent, link.child) else set()
    if left := next((name for name in steps if name not in reached), None):
        raise JobError(f"tables.{left}", f"no link to {root}, whose rows are protected", "a link, or public = true",
                       'add the link, or set protects = "both"')  # fmt: skip
    moved = {link.called: _moved(link, root) for link in job.link}
    key = job.key(root)
    return Whom(Protection(key[0] if len(key) == 1 else None), root, steps, moved)


def _root(job: DatabaseJob) -> str:
    private = [name for name, one in job.tables.items() if not one.public]
    children = {link.child for link in job.link if link.parent in private and link.parent != link.child}
    roots = [name for name in private if name not in children]
    if not private:  # the links alone are private: a unit is a parent's row, with its links
        roots = list(dict.fromkeys(link.parent for link in job.link))
    if len(roots) != 1:
        got = ", ".join(roots) if roots else "a circle of parents"
        raise JobError("tables", f"rows of {got} to protect", "one private table that is no private table's child",
                       'set public = true where a table is a catalogue, or protects = "both" on all links')  # fmt: skip
    return roots[0]


def _check(job: DatabaseJob, link: LinkSection, root: str) -> None:
    if root not in (link.parent, link.child):
        raise JobError(f"link {link.called}", f"between {link.parent} and {link.child}",
                       f"a link of {root}, whose rows are protected",
                       "leave it out: chains of links are not built yet")  # fmt: skip
    other = link.child if link.parent == root else link.parent
    many = link.kind == "many-to-many"
    if many and other != root and not job.tables[other].public:
        got = f"{other}, a private table whose rows come with no row of {root}"
        raise JobError(f"link {link.called}", got, 'a public table, or protects = "both"', "set one of them")
    if many and link.parent != root:
        raise JobError(f"link {link.called}", f"parent = {link.parent!r}", f"{root}, which is protected, as its parent",
                       "swap parent and child")  # fmt: skip


def _moved(link: LinkSection, root: str) -> int:
    if link.parent != root:
        return 1  # a row of the root has one parent
    return link.bound * (2 if link.child == root else 1)
