"""SELECT statements of a job: the text of their file, and the tables and joins that they read.

The content of a job has the text of its statements, so another text is another job and evidence contains it. In a job
of several tables each statement becomes a part of the table that it reads, or of the join along the links that its JOIN
names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.domain import Domain
from dpscale.job.joins import renamed
from dpscale.job.sections import link_name
from dpscale.storage.files import place, read_bytes
from dpscale.storage.objects import located
from dpscale.workload.sql.scope import Scope
from dpscale.workload.sql.selection import read_names, requested_tables
from dpscale.workload.sql.statements import DIALECT, SETTINGS, Statement, exp, read_statements

SQL, QUERY = "sql", "query"
MOST_BYTES = 1 << 20  # of workload.sql


def with_selects(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the content of a job with the text of its SQL files; relative paths start at `folder`.

    Only statements need the tables of the job, so parts of other families stay as they are.

    Raises
    ------
    JobError
        If a file cannot be read, or a statement reads a table that the job does not have or link.
    """
    read = dict(content)
    tables = content.get("tables")  # none in the short form of one table
    if isinstance(tables, Mapping):
        read["tables"] = {name: _with_texts(section, folder) for name, section in tables.items()}
    read = _with_texts(read, folder)
    parts = read.get("workload")
    if not isinstance(tables, Mapping):
        _check_names(parts if isinstance(parts, list) else [])
        return read
    parts = parts if isinstance(parts, list) else []

    # a statement that reads one table moves to its workload, one that reads several becomes a join
    for name, section in read["tables"].items():
        _check_table(name, section)
    # parts of joins that are no statements, or name their attributes, stay
    joins = [part for part in parts if not _is_select(part) or "attributes" in part]
    for part in parts:
        if not _is_select(part) or "attributes" in part:
            continue
        weight = part.get("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise JobError("workload.weight", "several for SELECT statements", "one weight", "write -- weight: 2")
        for statement in read_statements(part[QUERY], float(weight), str(part.get("dialect", DIALECT))):
            named = _named(part, statement)
            named_tables = requested_tables(statement)
            if len(named_tables) == 1:
                table = _known(statement, named_tables[0], read["tables"])
                section = read["tables"][table]
                read["tables"][table] = {**section, "workload": [*section.get("workload", []), named]}
            else:
                joins.append(named | _join(statement, named_tables, read, folder))

    read = {key: value for key, value in read.items() if key != "workload"}
    if joins:
        read["workload"] = joins
    _check_names([part for section in (read, *read["tables"].values()) for part in section.get("workload") or ()])
    return read


def _check_names(parts: Sequence[Any]) -> None:
    """Raise JobError if two statements of a job have one name."""
    names = list[str]()
    for part in parts:
        if _is_select(part) and isinstance(part[QUERY], str):
            statements = read_statements(part[QUERY], 1.0, str(part.get("dialect", DIALECT)))
            names += [statement.name for statement in statements]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise JobError("workload.query", f"two statements named {twice[0]}", "a name of its own for each statement",
                       "write -- name: before one of them")  # fmt: skip


def _check_table(name: str, section: Any) -> None:
    """Raise JobError if a statement of a table reads another one."""
    parts = section.get("workload") if isinstance(section, Mapping) else None
    for part in parts if isinstance(parts, list) else []:
        text = part[QUERY] if _is_select(part) else None
        if not isinstance(text, str):
            continue
        for statement in read_statements(text, 1.0, str(part.get("dialect", DIALECT))):
            if [table.lower() for table in requested_tables(statement)] != [name.lower()]:
                raise JobError(f"sql {statement.name}", f"other tables than {name}, whose workload it is in",
                               f"FROM {name}", "move it to the [[workload]] of the job")  # fmt: skip


def _is_select(part: Any) -> bool:
    return isinstance(part, Mapping) and QUERY in part


def _with_texts(section: Any, folder: Path) -> Any:
    """Return a table with workload whose parts have the text of their SQL files."""
    if not isinstance(section, Mapping) or not isinstance(section.get("workload"), list):
        return section
    return {**section, "workload": [_with_text(part, folder) for part in section["workload"]]}


def _with_text(part: Any, folder: Path) -> Any:
    """Return a part of a workload with the text of its SQL file in place of the file's name; others as they are."""
    if not isinstance(part, Mapping) or not isinstance(part.get(SQL), str):
        return part
    if QUERY in part:
        raise JobError("workload.query", "given together with sql", "the text, or the file sql", "remove one")
    return {QUERY: text_of(located(folder, part[SQL])), **{key: value for key, value in part.items() if key != SQL}}


def text_of(file: str) -> str:
    """Return the text of a file of SELECT statements.

    Raises
    ------
    JobError
        If the file cannot be read, or is large.
    """
    try:
        text = read_bytes(place(file, "workload.sql"))
        if len(text) > MOST_BYTES:
            raise JobError("workload.sql", f"{len(text):,} bytes", f"at most {MOST_BYTES:,}", "divide the file")
        return text.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise JobError("workload.sql", f"{file}, which cannot be read", "a file of SELECT statements in UTF-8",
                       "correct the path") from None  # fmt: skip


def _named(part: Mapping[str, Any], statement: Statement) -> dict[str, Any]:
    """Return a copy of a part with only one of its statements, which keeps its name and weight."""
    weight = {} if statement.weight == 1 else {"weight": statement.weight}
    lines = [line for line in statement.text.splitlines() if not SETTINGS.fullmatch(line)]
    kept = {key: value for key, value in part.items() if key not in (QUERY, "weight")}
    return {**kept, QUERY: "\n".join([f"-- name: {statement.name}", *lines]), **weight}


def _known(statement: Statement, table: str, tables: Mapping[str, Any]) -> str:
    """Return the name in the job of a table that a statement reads; upper and lower case are the same there."""
    alike = [name for name in tables if name.lower() == table.lower()]
    if not alike:
        raise JobError(f"sql {statement.name}", f"table {table!r}", ", ".join(tables), nearest(table, list(tables)))
    return alike[0]


def _join(statement: Statement, tables: Sequence[str], content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the keys `attributes` and `through` (names of links) of a statement that joins tables.

    A statement may name tables, and tables of pairs by their links, and gives them aliases.
    """
    sections = content["tables"]
    pairs = {str(name): link for name, link in _links(content)}
    known = {**sections, **pairs}
    axes = []
    for table in [_known(statement, name, known) for name in tables]:
        if table in sections:
            domain_of_table = Domain.read(located(folder, sections[table]["domain"]))
            axes += [renamed(axis, f"{table}.{axis.name}") for axis in domain_of_table.axes]
    domain = Domain(axes)

    used, of_statement = read_names(statement, domain), Scope(statement, domain).tables
    by_alias = {alias: _known(statement, name, known) for alias, name in of_statement.names.items()}
    through = list(dict.fromkeys(_link(statement, join, by_alias, content) for join in of_statement.joins))
    if used <= domain.number_names:  # a join has an attribute, too
        used = used | {domain.names[0]}
    return {"attributes": [list(domain.ordered(used))], "through": through}


def _links(content: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the links of a job by name."""
    for link in content.get("link", []):
        if isinstance(link, Mapping):
            yield link_name(link.get("name"), str(link.get("child")), link.get("via")), link


def _link(statement: Statement, join: Any, tables: Mapping[str, str], content: Mapping[str, Any]) -> str:
    """Return the name of the link of a JOIN, whose condition is the equality of its key and nothing else.

    `tables` has the names of the tables by their aliases in lower case. The JOIN must equate all columns of the key of
    a step of the link (`_ends`).
    """
    table, known = tables[join.this.alias_or_name.lower()], [name for name, _ in _links(content)]
    matching = []
    for name, link in _links(content):
        for ends in _ends(name, link, content):
            # both tables of the link are in the statement
            if table in ends and {*ends} <= {*tables.values()} and _is_key(join, tables, ends):
                matching.append(name)
    if len(matching) != 1:
        number = f"{len(matching)} links of {table} with this key"
        got = number if matching else f"no link of {table} with this key alone"
        takes = f"a JOIN by the key of one link of the job: {', '.join(known) or 'none'}"
        remedy = "write USING or ON with the columns of the key; conditions belong to WHERE"
        raise statement.error(join, takes, remedy, got)
    return matching[0]


Ends = dict[str, tuple[str, ...]]  # the two tables of a link with the columns of its key


def _ends(name: str, link: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[Ends]:
    """Yield each step of a link: from the table of the foreign key, or of the pairs, to the table with the key.

    A step maps the names of both tables to the columns of the key in them. A link by a table of pairs has two steps,
    from the pairs to each end.
    """
    parent, child = str(link.get("parent")), str(link.get("child"))
    keys = {}
    for table in (parent, child):
        section = content["tables"].get(table)
        keys[table] = _key(section.get("key")) if isinstance(section, Mapping) else ()
    if not link.get("via"):
        yield {child: _key(link.get("child_key")), parent: keys[parent]}
        return
    yield {name: _key(link.get("parent_key")) or keys[parent], parent: keys[parent]}
    yield {name: _key(link.get("child_key")), child: keys[child]}


def _key(columns: Any) -> tuple[str, ...]:
    stated = columns if isinstance(columns, list | tuple) else [columns]
    return tuple(str(column).lower() for column in stated if column)


def _is_key(join: Any, tables: Mapping[str, str], ends: Ends) -> bool:
    """Return whether the condition of a JOIN is that the keys of two tables are equal.

    `tables` has the names of the tables by their aliases. `ends` has, for the table that refers and the one that is
    referred to, the columns of the key, in the same order.
    """
    (one, first), (other, second) = ends.items()  # both tables, with the columns of the key
    using = [column.name.lower() for column in join.args.get("using") or []]
    if using:
        return set(using) == set(first) == set(second) and len(using) == len(first)

    # the equalities of the key's columns, without an order of the sides
    wanted = {frozenset({(one, a), (other, b)}) for a, b in zip(first, second, strict=True)}
    stated = list[Any]()  # the equalities of the condition, in the same form
    for equality in _conjuncts(join.args["on"]):
        sides: list[Any] = [equality.left, equality.right] if isinstance(equality, exp.EQ) else []
        if not sides or not all(isinstance(side, exp.Column) for side in sides):
            return False
        stated.append(frozenset((tables.get(side.table.lower(), ""), side.name.lower()) for side in sides))
    return len(stated) == len(wanted) and set(stated) == wanted


def _conjuncts(node: Any) -> Iterator[Any]:
    """Yield the parts of a condition that AND joins."""
    if isinstance(node, exp.Paren):
        yield from _conjuncts(node.this)
    elif isinstance(node, exp.And):
        yield from _conjuncts(node.left)
        yield from _conjuncts(node.right)
    else:
        yield node
