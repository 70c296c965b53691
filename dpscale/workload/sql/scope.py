"""Tables and columns of a statement: aliases, subqueries and WITH that filter or rename, and attributes by name.

A subquery that only filters or renames is merged into the query around it: columns are replaced by the expressions
that they stand for, and its condition is added to WHERE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpscale.base.display import nearest
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from dpscale.workload.sql.statements import Statement, exp

UNUSED = ("distinct", "having", "qualify", "windows", "laterals", "limit", "offset", "order", "sample", "pivots")


@dataclass(frozen=True)
class Tables:
    """Tables of a statement: their names by alias, in lower case, and the conditions of its joins.

    Attributes
    ----------
    names : mapping of str to str
    joins : tuple of sqlglot.expressions.Join
    """

    names: Mapping[str, str]
    joins: tuple[Any, ...] = ()


def merged(statement: Statement) -> Any:
    """Return the SELECT of a statement with the subqueries and WITH queries that filter or rename merged into it.

    Raises
    ------
    JobError
        If the statement is no SELECT, or a subquery does more.
    """
    tree = statement.tree
    if not isinstance(tree, exp.Select):
        statement.refuse(tree, "a SELECT with counts or sums",
                         "write each table as a statement of its own; its sums can be added afterwards"
                         if isinstance(tree, exp.SetOperation) else "write SELECT … FROM … GROUP BY …")  # fmt: skip
    return _merged(statement, tree.copy(), {})


def _merged(statement: Statement, select: Any, known: Mapping[str, Any]) -> Any:
    known = dict(known)
    for query in (select.args.get("with_") or exp.With(expressions=[])).expressions:
        known[query.alias_or_name.lower()] = query.this
    if select.args.get("from_") is None:
        statement.refuse(select, "a table after FROM", "write FROM and the name of the table")

    source = select.args["from_"].this
    inner = known.get(source.name.lower()) if isinstance(source, exp.Table) else None
    if inner is None and isinstance(source, exp.Subquery):
        inner = source.this
    if inner is None:
        return select
    if not isinstance(inner, exp.Select):
        statement.refuse(source, "a table, or a subquery that filters or renames", "name the table itself")

    outer = {name: query for name, query in known.items() if query is not inner}  # a query does not contain itself
    inner = _merged(statement, inner.copy(), outer)
    _check_plain(statement, inner)
    columns, every = _columns(inner)
    select.set("from_", inner.args["from_"])
    select.set("joins", [*inner.args.get("joins", []), *select.args.get("joins", [])])
    alias = source.alias_or_name.lower()
    for column in [*select.find_all(exp.Column)]:
        if column.find_ancestor(exp.With) is None and column.table.lower() in ("", alias):
            _replace(statement, column, columns, every)

    if (where := inner.args.get("where")) is not None:
        own = select.args.get("where")
        both = (
            where.this if own is None else exp.And(this=exp.Paren(this=where.this), expression=exp.Paren(this=own.this))
        )
        select.set("where", exp.Where(this=both))
    return select


def _check_plain(statement: Statement, inner: Any) -> None:
    """Raise JobError unless a subquery only filters or renames."""
    wrong = inner.find(exp.AggFunc, exp.Window)
    wrong = (
        wrong or inner.args.get("group") or next((inner.args[name] for name in UNUSED if inner.args.get(name)), None)
    )
    if wrong is not None:
        statement.refuse(wrong if isinstance(wrong, exp.Expression) else inner, "a subquery that filters or renames",
                         "count and sum in the outermost query, which is the one that is answered")  # fmt: skip


def _columns(inner: Any) -> tuple[dict[str, Any], bool]:
    """Return the expressions of the columns of a subquery by name, and whether it has all columns of its table."""
    columns, every = {}, False
    for one in inner.expressions:
        if isinstance(one, exp.Star) or (isinstance(one, exp.Column) and isinstance(one.this, exp.Star)):
            every = True
        else:
            columns[one.alias_or_name.lower()] = one.unalias()
    return columns, every


def _replace(statement: Statement, column: Any, columns: Mapping[str, Any], every: bool) -> None:
    stands = columns.get(column.name.lower())
    if stands is None and not every:
        statement.refuse(column, f"a column of the subquery: {', '.join(columns)}", nearest(column.name, columns))
    if stands is None:
        column.set("table", None)
    elif column.parent is not None and isinstance(column.parent, exp.Select) and column.arg_key == "expressions":
        column.replace(exp.alias_(stands.copy(), column.name))
    else:
        column.replace(stands.copy() if isinstance(stands, exp.Column) else exp.Paren(this=stands.copy()))


def tables_of(statement: Statement, select: Any) -> Tables:
    """Return the tables of a merged SELECT.

    Raises
    ------
    JobError
        For a source that is no table, or another join than an inner one.
    """
    names: dict[str, str] = {}
    joins = tuple(select.args.get("joins") or ())
    for source in [select.args["from_"].this, *(join.this for join in joins)]:
        if not isinstance(source, exp.Table):
            statement.refuse(source, "the name of a table", "name a table of the job, or use a subquery after FROM")
        names[source.alias_or_name.lower()] = source.name
    for join in joins:
        kind = " ".join(str(join.args[name]).upper() for name in ("method", "side", "kind") if join.args.get(name))
        if kind not in ("", "INNER"):
            statement.refuse(join, "JOIN of rows with a partner", "write JOIN … USING (…)", f"a {kind} JOIN")
        if not join.args.get("using") and join.args.get("on") is None:
            statement.refuse(join, "JOIN along a link of the job", "write JOIN … USING (…)", "which has no key")
    return Tables(names, joins)


@dataclass(frozen=True, eq=False)
class Scope:
    """A statement with the domain of its tables.

    Attributes
    ----------
    statement : Statement
    domain : Domain
        With names `TABLE.ATTRIBUTE` if the statement joins tables.
    unit : sequence of str
        Columns of the privacy unit.
    """

    statement: Statement
    domain: Domain
    unit: tuple[str, ...] = ()

    @cached_property
    def select(self) -> Any:
        """The SELECT without subqueries."""
        return merged(self.statement)

    @cached_property
    def tables(self) -> Tables:
        """Tables of the statement."""
        return tables_of(self.statement, self.select)

    @cached_property
    def _names(self) -> dict[str, list[str]]:
        """Attributes and numbers by their names in lower case, also without the table."""
        found: dict[str, list[str]] = {}
        for axis in self.domain.axes:
            found.setdefault(axis.name.lower(), []).append(axis.name)
            if self.tables.joins:
                found.setdefault(axis.name.partition(".")[2].lower(), []).append(axis.name)
        return found

    def name_of(self, column: Any) -> str:
        """Return the attribute or number that a column names.

        Raises
        ------
        JobError
            If there is none, or if several tables have it.
        """
        table = self.tables.names.get(column.table.lower())
        if column.table and table is None:
            self.statement.refuse(column, f"a table of the query: {', '.join(self.tables.names)}",
                                  nearest(column.table, self.tables.names))  # fmt: skip
        name = f"{table}.{column.name}" if table and self.tables.joins else column.name
        if name in self.domain.axis_names:
            return name

        alike = self._names.get(name.lower(), [])
        if len(alike) == 1:
            return alike[0]
        if alike:
            self.statement.refuse(column, f"one of {', '.join(alike)}", "write the table before the column")
        if column.name in self.unit:
            self.statement.refuse(column, f"COUNT(DISTINCT {column.name})", "count the units, or leave it out",
                                  "which identifies the unit")  # fmt: skip
        known = [axis.name for axis in self.domain.axes]
        remedy = nearest(column.name, known)
        self.statement.refuse(column, "an attribute or number of the domain", remedy)

    def attribute(self, column: Any) -> Attribute:
        """Return the attribute that a column names; raise JobError for a number."""
        name = self.name_of(column)
        if name in self.domain.number_names:
            remedy = f"add an attribute of kind bins with from = {name!r} to the domain file"
            got = "a number, of which sums and means are known only"
            self.statement.refuse(column, "an attribute with cells", remedy, got)
        return self.domain[name]

    def columns(self, node: Any) -> list[Any]:
        """Return the columns that an expression reads."""
        return [one for one in node.find_all(exp.Column) if not isinstance(one.this, exp.Star)]

    def names(self, node: Any) -> tuple[str, ...]:
        """Return the attributes that an expression reads, in domain order; raise JobError for a number."""
        return self.domain.ordered({self.attribute(one).name for one in self.columns(node)})
