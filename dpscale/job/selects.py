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
from dpscale.workload.sql.statements import DIALECT, Statement, exp, read_statements

SQL, QUERY = "sql", "query"
MOST_BYTES = 1 << 20


def with_selects(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the content of a job with the text of its SQL files; relative paths start at `folder`.

    Raises
    ------
    JobError
        If a file cannot be read, or a statement reads a table that the job does not have or link.
    """
    found = dict(content)
    tables = content.get("tables")
    if isinstance(tables, Mapping):
        found["tables"] = {name: _with_texts(one, folder) for name, one in tables.items()}
    found = _with_texts(found, folder)
    parts = found.get("workload")
    if not isinstance(tables, Mapping) or not isinstance(parts, list):
        return found

    joins = [part for part in parts if not _is_select(part) or "attributes" in part]
    for part in parts:
        if not _is_select(part) or "attributes" in part:
            continue
        for statement in read_statements(part[QUERY], part.get("weight", 1.0), part.get("dialect", DIALECT)):
            named = _named(part, statement)
            several = requested_tables(statement)
            if len(several) == 1:
                table = _known(statement, several[0], found["tables"])
                section = found["tables"][table]
                found["tables"][table] = {**section, "workload": [*section.get("workload", []), named]}
            else:
                joins.append(named | _join(statement, several, found, folder))
    others = {key: value for key, value in found.items() if key != "workload"}
    return others | ({"workload": joins} if joins else {})


def _is_select(part: Any) -> bool:
    return isinstance(part, Mapping) and QUERY in part


def _with_texts(section: Any, folder: Path) -> Any:
    """Return a table with workload whose parts have the text of their SQL files."""
    if not isinstance(section, Mapping) or not isinstance(section.get("workload"), list):
        return section
    return {**section, "workload": [_with_text(part, folder) for part in section["workload"]]}


def _with_text(part: Any, folder: Path) -> Any:
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
    """Return a part with one statement of several, which keeps its name."""
    weight = {} if statement.weight == 1 else {"weight": statement.weight}
    lines = [line for line in statement.text.splitlines() if not line.strip().startswith(("-- weight:", "-- name:"))]
    kept = {key: value for key, value in part.items() if key not in (QUERY, "weight")}
    return {**kept, QUERY: "\n".join([f"-- name: {statement.name}", *lines]), **weight}


def _known(statement: Statement, table: str, tables: Mapping[str, Any]) -> str:
    alike = [name for name in tables if name.lower() == table.lower()]
    if not alike:
        raise JobError(f"sql {statement.name}", f"table {table!r}", ", ".join(tables), nearest(table, list(tables)))
    return alike[0]


def _join(statement: Statement, tables: Sequence[str], content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the attributes and links of a statement that joins tables."""
    own = content["tables"]
    pairs = {str(name): link for name, link in _links(content)}
    named = [_known(statement, one, {**own, **pairs}) for one in tables]
    domain = Domain([renamed(axis, f"{table}.{axis.name}") for table in named if table in own
                     for axis in Domain.read(located(folder, own[table]["domain"])).axes])  # fmt: skip
    used = read_names(statement, domain)
    joins = Scope(statement, domain).tables.joins
    through = list(dict.fromkeys(_link(statement, join, named, content) for join in joins))
    sets = [domain.ordered(used)] if used else [(domain.axes[0].name,)]
    return {"attributes": [list(names) for names in sets], "through": through}


def _links(content: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the links of a job by name."""
    for link in content.get("link", []):
        if isinstance(link, Mapping):
            yield link_name(link.get("name"), str(link.get("child")), link.get("via")), link


def _link(statement: Statement, join: Any, tables: Sequence[str], content: Mapping[str, Any]) -> str:
    """Return the link of a JOIN: between its table and an earlier one, by the columns of USING or ON."""
    table = _known(statement, join.this.name, {name: None for name in tables})
    columns = {one.name.lower() for one in join.args.get("using") or []}
    columns |= {one.name.lower() for one in (join.args["on"].find_all(exp.Column) if join.args.get("on") else [])}
    fitting = [name for name, link in _links(content)
               if table in _ends(name, link) and _ends(name, link) & set(tables) - {table}]  # fmt: skip
    exact = [name for name, link in _links(content) if name in fitting and columns & _columns(link)]
    if len(exact or fitting) != 1:
        known = ", ".join(name for name, _ in _links(content)) or "none"
        raise statement.error(join.this, f"a JOIN along one link of the job: {known}",
                              "join along a link, by its key", f"{len(exact or fitting)} links of {table}")  # fmt: skip
    return (exact or fitting)[0]


def _ends(name: str, link: Mapping[str, Any]) -> set[str]:
    return {str(link.get("parent")), str(link.get("child")), *([name] if link.get("via") else [])}


def _columns(link: Mapping[str, Any]) -> set[str]:
    """Return the columns of the keys of a link, in lower case."""
    keys = [link.get("parent_key"), link.get("child_key")]
    return {str(one).lower() for key in keys for one in (key if isinstance(key, list) else [key]) if one}
