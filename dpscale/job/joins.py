"""Joins of a job of several tables: the base table of each, and the links from its rows to the rows of other tables.

The parts [[workload]] of a job of several tables have attributes of several tables, `TABLE.ATTRIBUTE`. Every link
leads from a row to at most one row: from a child to its parent, or from a pair to either end. The base of a join is the
table (or table of pairs) from which all other tables are reached, so that the join has one row for each row of the
base. With `per` the base is the table of the parents, and `CHILD.count` is the number of children of a row.

Parts with the same base and the same links are answered by one component, whose name is that of the join; so are parts
to which the job gives the same name, over all their links.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.domain import Attribute
from dpscale.job.sections import CUT, JoinWorkload, LinkSection, TablesOfJob
from dpscale.workload.sums import SUM

COUNT = "count"  # pseudo-attribute of a child: the number of children of a row
FIELD = "workload.attributes"


@dataclass(frozen=True)
class Edge:
    """Link from the rows of a table, or of a table of pairs, to at most one row of a table.

    Attributes
    ----------
    link : LinkSection
    source, target : str
        Names of tables; the source may be a table of pairs.
    at : tuple of str
        Columns of the source with the key.
    """

    link: LinkSection = field(compare=False)
    source: str
    target: str
    at: tuple[str, ...]


@dataclass(frozen=True)
class Join:
    """A join and the parts of the workload over it.

    Attributes
    ----------
    name, base : str
        The base is a table, or a table of pairs.
    pairs : LinkSection, optional
        Link of the table of pairs, if that is the base.
    edges : tuple of Edge
        Links of the join, each after the one that leads to its source.
    counted : tuple of LinkSection
        Links whose numbers of children are attributes.
    bound : int, optional
        `max_rows_per_unit` of the parts.
    parts : list of JoinWorkload
    """

    name: str
    base: str
    pairs: LinkSection | None
    edges: tuple[Edge, ...]
    counted: tuple[LinkSection, ...] = ()
    bound: int | None = None
    parts: list[JoinWorkload] = field(default_factory=list)

    @property
    def requested(self) -> list[str]:
        """Attributes of all parts, and for counted children whether they are cut."""
        names = dict.fromkeys(name for part in self.parts for name in part.requested)
        cut = []
        for name in names:
            table, attribute = split_name(name)
            if attribute == COUNT and self.counted:
                cut.append(f"{table}.{CUT}")
        return list(names | dict.fromkeys(cut))

    @property
    def numbers(self) -> set[str]:
        """Numbers that parts sum."""
        return {part.number for part in self.parts if part.number is not None}


def split_name(name: str) -> tuple[str, str]:
    """Return table and attribute of a name; table names have no dot, so an attribute may have one."""
    table, _, attribute = name.partition(".")
    return table, attribute


def renamed(attribute: Attribute, name: str) -> Attribute:
    """Return an attribute of a table as one of the join; a level of a hierarchy becomes a list of its nodes."""
    if attribute.level is None:
        return replace(attribute, name=name, source="")
    policies = {"outside": attribute.outside, "nulls": attribute.nulls, "unparsable": attribute.unparsable}
    return Attribute(name, "categories", values=list(attribute.values), **policies)  # type: ignore[arg-type]


def resolve_joins(job: TablesOfJob) -> dict[str, Join]:
    """Return the joins of a job by name. Raises JobError for a part without exactly one join.

    Parts with the same name of a join are combined: they are answered by one component.
    """
    joins: dict[str, Join] = {}
    for part in job.workload or []:
        of_part = _join_of(job, part)
        name = of_part.name
        joins[name] = _combined(joins.get(name, of_part), of_part, named=part.name is not None)
        joins[name].parts.append(part)

    unknown = [name for name in job.joins or {} if name not in joins]
    if unknown:
        raise JobError(f"joins.{unknown[0]}", "no join of the workload", ", ".join(joins) or "a workload over tables",
                       nearest(unknown[0], list(joins)))  # fmt: skip
    return joins


def _combined(join: Join, added: Join, named: bool) -> Join:
    """Return the join of the links of two parts with the same name of their join.

    Raises JobError if the links differ, unless the job gives both parts that name (`named`). A table may be the target
    of a single edge only.
    """
    edges = tuple(dict.fromkeys([*join.edges, *added.edges]))
    counted = {link.called: link for link in join.counted + added.counted}
    same_base = (join.base, join.bound, bool(join.counted)) == (added.base, added.bound, bool(added.counted))
    adds_nothing = set(edges) == set(join.edges) and set(counted) == {link.called for link in join.counted}
    targets = [edge.target for edge in edges]
    if not (same_base and (named or adds_nothing)) or len(set(targets)) < len(targets):
        raise JobError("workload.name", f"the join {join.name!r} over different links, or with different bounds",
                       "a name for each join", "set name for one of the parts")  # fmt: skip
    return replace(join, edges=edges, counted=tuple(counted.values()))


def edges_of(job: TablesOfJob, through: Sequence[str] | None = None) -> list[Edge]:
    """Return the links of a job, or those named in `through`, from a row to the row that it refers to."""
    found = []
    for link in job.foreign_keys:
        first, second = job.ends(link)  # columns with the keys of the parent and, in a table of pairs, of the child
        if through is not None and link.called not in through:
            continue
        if link.via is not None:
            found += [
                Edge(link=link, source=link.called, target=link.parent, at=first),
                Edge(link=link, source=link.called, target=link.child, at=second),
            ]
        elif link.parent != link.child:
            found.append(Edge(link=link, source=link.child, target=link.parent, at=first))
    return found


def paths(edges: Sequence[Edge], source: str, target: str) -> Iterator[tuple[Edge, ...]]:
    """Yield all paths between two tables that visit no table twice; an edge leads from its source to its target.

    Edges of visited tables are left out of the rest of the path, which avoids circles.
    """
    if source == target:
        yield ()
        return
    for edge in edges:
        if edge.source == source:
            elsewhere = [other for other in edges if source not in (other.source, other.target)]
            yield from ((edge, *path) for path in paths(elsewhere, edge.target, target))


def _join_of(job: TablesOfJob, part: JoinWorkload) -> Join:
    """Return the join of one part: its base table, edges from there to the tables of its attributes, counted links.

    Its name is that of the part, or follows from the tables. There must be exactly one path from the base to each table
    (`_route`).
    """
    _check_through(job, part)
    edges = edges_of(job, part.through)
    tables, counted = _tables_of(job, part)
    base = part.per or _base(job, part, edges, tables)
    pairs = next((link for link in job.link if link.via and link.called == base), None)
    ends = [pairs.parent, pairs.child] if pairs else []
    routes = [_route(part, edges, base, table) for table in dict.fromkeys([*ends, *tables])]
    used = tuple(dict.fromkeys(edge for route in routes for edge in route))
    words = [f"per-{base}" if part.per else base, *(edge.target for edge in used), *(link.called for link in counted)]
    # a number that is summed cannot be an attribute of the same join, so the join of sums has another name
    words += [SUM] if counted and part.number and part.number not in _in_sets(part) else []
    return Join(part.name or "-".join(words)[:64], base, pairs, used, tuple(counted), part.max_rows_per_unit)


def _in_sets(part: JoinWorkload) -> list[str]:
    return [name for names in part.attributes or [] for name in names]


def _check_through(job: TablesOfJob, part: JoinWorkload) -> None:
    """Raise JobError if a part names an unknown link, or one within a table."""
    names = [link.called for link in job.foreign_keys]
    unknown = [name for name in part.through or [] if name not in names]
    if unknown:
        raise JobError("workload.through", f"{unknown[0]!r}", f"names of links: {', '.join(names)}",
                       nearest(unknown[0], names) if names else "remove it")  # fmt: skip
    within = [link for link in job.link if link.parent == link.child and link.via is None]
    chosen = next((link for link in within if link.called in (part.through or [])), None)
    if chosen is not None and part.per is None:
        raise JobError("workload.through", f"link {chosen.called} within {chosen.child}",
                       "links between different tables", "remove it: a removed row would change the join rows of all"
                       " rows that refer to it")  # fmt: skip


def _tables_of(job: TablesOfJob, part: JoinWorkload) -> tuple[list[str], list[LinkSection]]:
    """Return the tables of the attributes of a part, and the links whose children are counted.

    A part with `per` counts children: its attributes CHILD.count are numbers of children, not attributes of the table
    CHILD.
    """
    tables: dict[str, None] = {}
    counted: dict[str, LinkSection] = {}
    for name in part.requested:
        table, attribute = split_name(name)
        # CHILD.count or CHILD.cut, unless the table has an attribute of that name
        if part.per is not None and attribute in (COUNT, CUT) and attribute not in _names(job, table):
            link = _counted(job, part, name, table)
            counted[link.called] = link
        elif attribute not in _names(job, table):
            known = [f"{table}.{other}" for other in _names(job, table)] or [f"{each}.ATTRIBUTE" for each in job.tables]
            raise JobError(FIELD, f"{name!r}", f"TABLE.ATTRIBUTE: {', '.join(known)}", nearest(name, known))
        elif job.declared[table][attribute].search is not None:
            raise JobError(FIELD, f"{name!r}, whose cells are not public", "attributes with public cells",
                           f"state the cells of {attribute} in the domain file of {table}")  # fmt: skip
        else:
            tables[table] = None
    if part.per is not None and not counted:
        raise JobError("workload.per", f"{part.per!r} without a number of children", f"an attribute CHILD.{COUNT}",
                       "name one, or remove per")  # fmt: skip
    # a part of one table belongs to this table
    if part.per is None and len(tables) < 2 and part.through is None:
        raise JobError(FIELD, f"attributes of {', '.join(tables) or 'no table'} only", "attributes of several tables",
                       f"move the part to [[tables.{next(iter(tables), 'NAME')}.workload]]")  # fmt: skip
    return list(tables), list(counted.values())


def _names(job: TablesOfJob, table: str) -> tuple[str, ...]:
    return tuple(job.declared[table].axis_names) if table in job.tables else ()


def _counted(job: TablesOfJob, part: JoinWorkload, name: str, child: str) -> LinkSection:
    """Return the link whose children an attribute counts.

    `name` is the attribute, and `child` what it has before `.count`: the name of the link, or that of the child if only
    one link of the child is below `per`. A link is below `per` if its rows lead up to that table.
    """
    if part.per not in job.tables:
        raise JobError("workload.per", f"{part.per!r}", ", ".join(job.tables), nearest(str(part.per), list(job.tables)))
    below = [link for link in job.link if ascents(job, link, str(part.per))]
    if not below:
        above = [table for table in job.tables if any(ascents(job, link, table) for link in job.link)]
        raise JobError("workload.per", f"{part.per!r}, which has no children", ", ".join(above), "name one of them")
    matching = [link for link in below if child in (link.called, link.child)]
    # the name of a link is unique; several links may have the same child
    exact = [link for link in matching if link.called == child]
    if len(exact or matching) != 1:
        number = f"{len(matching)} links" if matching else "no link"
        known = ", ".join(sorted(link.called for link in below))
        raise JobError(FIELD, f"{name!r}, {number} below {part.per}", f"the name of a link: {known}",
                       f"write LINK.{COUNT}")  # fmt: skip
    return (exact or matching)[0]


def ascents(job: TablesOfJob, link: LinkSection, table: str) -> list[tuple[Edge, ...]]:
    """Return the paths from the parents of a link to a table, each from child to parent."""
    edges = [edge for edge in edges_of(job) if edge.link.via is None]
    return list(paths(edges, link.parent, table))


def _base(job: TablesOfJob, part: JoinWorkload, edges: Sequence[Edge], tables: Sequence[str]) -> str:
    """Return the base of a part: the table from which all requested tables are reached.

    Of several such tables it is the one that reaches no other of them, so the nearest to the requested tables. If the
    job names the links of the join, it is the table whose rows are at their beginning.
    """
    if part.through is not None:
        targets = {edge.target for edge in edges}
        first = list(dict.fromkeys(edge.source for edge in edges if edge.source not in targets))
        if len(first) != 1:
            raise JobError("workload.through", f"links that begin at {' and '.join(first) or 'no table'}",
                           "links that begin at one table, or one table of pairs",
                           "name the links of one path")  # fmt: skip
        return first[0]

    public = [name for name, section in job.tables.items() if section.public]
    nodes = dict.fromkeys([*job.tables, *(edge.source for edge in edges)])
    reach = {}  # for each table, the tables to which there is a path of edges
    for name in nodes:
        reach[name] = {other for other in nodes if any(True for _ in paths(edges, name, other))}
    bases = [name for name in nodes if name not in public and reach[name] >= set(tables)]
    deepest = [name for name in bases if not any(other in reach[name] for other in bases if other != name)]
    over = ", ".join(tables)
    if not deepest:
        raise JobError(FIELD, f"attributes of {over}", "tables that the rows of one private table refer to, by links"
                       " from child to parent and from pairs to both ends", "leave one table out")  # fmt: skip
    # neither of two bases reaches the other: the job must name the links
    if len(deepest) > 1:
        ways = "; ".join(_described(_routes(edges, base, tables)) for base in deepest)
        raise JobError(FIELD, f"{over}, which are joined through {ways}", "one path",
                       f'name its links, for example through = ["{_links(edges, deepest[0], tables)[0]}"]')  # fmt: skip
    return deepest[0]


def _routes(edges: Sequence[Edge], base: str, tables: Sequence[str]) -> list[tuple[Edge, ...]]:
    return [next(paths(edges, base, table)) for table in tables]


def _links(edges: Sequence[Edge], base: str, tables: Sequence[str]) -> list[str]:
    return [edge.link.called for route in _routes(edges, base, tables) for edge in route] or [base]


def _described(routes: Sequence[tuple[Edge, ...]]) -> str:
    return " and ".join(dict.fromkeys(edge.link.called for route in routes for edge in route))


def _route(part: JoinWorkload, edges: Sequence[Edge], base: str, table: str) -> tuple[Edge, ...]:
    """Return the only path of `edges` from the base to a table. Raises JobError if there is none, or several."""
    routes = list(paths(edges, base, table))
    if len(routes) != 1:
        ways = "; ".join(_described([path]) for path in routes)
        got = f"{table}, to which the rows of {base} refer through {ways}" if routes else (
            f"{table}, to which no row of {base} refers")  # fmt: skip
        takes = "one path" if routes else f"{base} and the tables to which its rows refer"
        # two paths with the same links: both ends of a table of pairs are rows of this table
        if len({tuple(edge.link.called for edge in path) for path in routes}) < len(routes):
            raise JobError(FIELD, got, takes, "leave the table out: both ends of the link are its rows")
        remedy = f'name its links: through = ["{routes[0][0].link.called}"]' if routes else "leave the table out"
        raise JobError(FIELD, got, takes, remedy)
    return routes[0]
