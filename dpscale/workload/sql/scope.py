"""Tables and columns of a statement: aliases, subqueries and WITH that filter or rename, and attributes by name.

A subquery that only filters or renames is merged into the query around it: columns are replaced by the expressions
that they stand for, and its condition is added to WHERE.

*Terms.* `select`, `source` and `column` are parts of the syntax tree of sqlglot. `statement.refuse` raises a JobError
that points at a part.
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

CLAUSES = (  # that are answered
    "expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset", "with_",
)  # fmt: skip
BEYOND_FILTERS = ("group", "having", "order", "limit", "offset", "distinct")
PLAIN_TABLE = ("this", "alias", "db", "catalog")  # parts of a table's name in FROM


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


def merged(statement: Statement, taken: frozenset[str] = frozenset()) -> Any:
    """Return the SELECT of a statement with the subqueries and WITH queries that filter or rename merged into it.

    `taken` are the columns of the table in lower case, which a column beside `*` may not be named after.

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
    return _merged(statement, tree.copy(), {}, taken)


def _merged(statement: Statement, select: Any, known: Mapping[str, Any], taken: frozenset[str]) -> Any:
    """Return a SELECT without subqueries; `known` has the merged WITH queries around it, by name.

    `taken` are the names of the table's columns. The subquery after FROM is merged itself first, so that only a SELECT
    from a table is left; WITH queries are found in `known`. Merged: a subquery is replaced by its own FROM, and its
    columns by their expressions (`_joined` does that). A WITH query is a subquery with a name.
    """
    known = _with_queries(statement, select, known, taken)
    _check_clauses(statement, select)
    if select.args.get("from_") is None:
        statement.refuse(select, "a table after FROM", "write FROM and the name of the table")
    source, joins = select.args["from_"].this, select.args.get("joins") or []
    for join in joins:
        if join.this.name.lower() in known:
            statement.refuse(join.this, "a table after JOIN", "filter its rows by WHERE, and join the table itself")

    if isinstance(source, exp.Subquery):
        inner = source.this
        inner = _merged(statement, inner.copy(), known, taken) if isinstance(inner, exp.Select) else inner
    else:
        inner = known.get(source.name.lower()) if isinstance(source, exp.Table) else None
    if inner is None:
        return select
    if not isinstance(inner, exp.Select):
        statement.refuse(source, "a table, or a subquery that filters or renames", "name the table itself")
    _check_alias(statement, source)
    _check_plain(statement, inner)
    return _joined(statement, select, inner.copy(), source.alias_or_name.lower(), taken)


def _with_queries(statement: Statement, select: Any, known: Mapping[str, Any], taken: frozenset[str]) -> dict[str, Any]:
    """Return the WITH queries that a SELECT knows; each is bound to those before it.

    `known` are those around the SELECT; `taken` are the names of the table's columns.
    """
    queries, clause = dict(known), select.args.get("with_")
    if clause is not None and clause.args.get("recursive"):
        statement.refuse(clause, "WITH without RECURSIVE", "leave it out")
    for query in [] if clause is None else clause.expressions:
        _check_alias(statement, query)
        if not isinstance(query.this, exp.Select):
            statement.refuse(query, "WITH a SELECT that filters or renames", "name the table itself")
        queries[query.alias_or_name.lower()] = _merged(statement, query.this.copy(), queries, taken)
    return queries


def _check_alias(statement: Statement, source: Any) -> None:
    alias = source.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        statement.refuse(source, "an alias without names of columns", "rename columns by AS in the subquery")


def _check_clauses(statement: Statement, select: Any) -> None:
    """Raise JobError for a clause of a SELECT that is not answered."""
    for name, value in select.args.items():
        if value and name not in CLAUSES:
            first = value[0] if isinstance(value, list) else value
            where = first if isinstance(first, exp.Expression) else select
            takes = "SELECT, FROM, WHERE, GROUP BY, HAVING, ORDER BY and LIMIT"
            statement.refuse(where, takes, "leave it out", f"with {name.strip('_').upper()}")


def _joined(statement: Statement, select: Any, inner: Any, alias: str, taken: frozenset[str]) -> Any:
    """Return a SELECT with the subquery after FROM merged into it.

    Its columns stand for the expressions of the subquery, whose WHERE is added. `taken` are the names that the
    columns of the table may have.

    Columns in clauses that refer to results (GROUP BY, ORDER BY, HAVING) and are results of this SELECT stay as they
    are. `has_star` says whether the subquery has all columns of its table (`*`).

    `inner` is the subquery and `alias` its name. Both conditions become one, in parentheses, because OR binds more
    weakly than AND.
    """
    columns, has_star = _columns(statement, inner, taken)
    results = {output.alias.lower() for output in select.expressions if isinstance(output, exp.Alias)}
    select.set("from_", inner.args["from_"])
    select.set("joins", [*(inner.args.get("joins") or []), *(select.args.get("joins") or [])])
    for column in [*select.find_all(exp.Column)]:
        of_subquery = column.table.lower() in ("", alias) and not isinstance(column.this, exp.Star)
        # columns of other subqueries and of joins keep their meaning
        if column.find_ancestor(exp.With, exp.Join) is not None or not of_subquery:
            continue
        after = column.find_ancestor(exp.Group, exp.Order, exp.Having) is not None and not column.table
        if after and column.name.lower() in results and column.name.lower() not in columns:
            continue
        _replace(statement, column, columns, has_star)

    select.set("with_", None)
    where, outer = inner.args.get("where"), select.args.get("where")
    if where is not None and outer is None:
        select.set("where", exp.Where(this=exp.Paren(this=where.this)))
    elif where is not None:
        conjunction = exp.And(this=exp.Paren(this=where.this), expression=exp.Paren(this=outer.this))
        select.set("where", exp.Where(this=conjunction))
    return select


def _check_plain(statement: Statement, inner: Any) -> None:
    """Raise JobError unless a subquery only filters or renames."""
    wrong = inner.find(exp.AggFunc, exp.Window)
    named = (inner.args[name] for name in BEYOND_FILTERS if inner.args.get(name))
    wrong = wrong or next(named, None)
    if wrong is not None:
        statement.refuse(wrong if isinstance(wrong, exp.Expression) else inner, "a subquery that filters or renames",
                         "count and sum in the outermost query, which is the one that is answered")  # fmt: skip


def _columns(statement: Statement, inner: Any, taken: frozenset[str]) -> tuple[dict[str, Any], bool]:
    """Return the expressions of the columns of a subquery by name, and whether it has all columns of its table.

    `has_star` is True for *. A column that * has too may be listed under its own name only.
    """
    columns, has_star = {}, False
    for output in inner.expressions:
        star = output.this if isinstance(output, exp.Column) else output
        if isinstance(star, exp.Star):
            if any(star.args.values()):
                statement.refuse(output, "* without changes", "list the columns")
            has_star = True
            continue
        if output.alias_or_name.lower() in columns:
            statement.refuse(output, "columns of different names", "rename one")
        columns[output.alias_or_name.lower()] = output.unalias()

    # a name that * has too would be ambiguous
    for name, output in columns.items():
        if has_star and name in taken and not (isinstance(output, exp.Column) and output.name.lower() == name):
            statement.refuse(output, "another name beside *", f"rename {name}, or list the columns")
    return columns, has_star


def _replace(statement: Statement, column: Any, columns: Mapping[str, Any], has_star: bool) -> None:
    """Put the expression of a subquery's column in the place of the column, in the tree of the statement.

    With `has_star`, other columns are those of the table. Raises JobError for a column that the subquery lacks.

    In a list of results the column keeps its name as an alias; elsewhere an expression is put in parentheses.
    """
    stands = columns.get(column.name.lower())
    if stands is None and not has_star:
        statement.refuse(column, f"a column of the subquery: {', '.join(columns)}", nearest(column.name, columns))
    if stands is None:
        column.set("table", None)
    elif column.parent is not None and isinstance(column.parent, exp.Select) and column.arg_key == "expressions":
        column.replace(exp.alias_(stands.copy(), column.name))
    else:
        column.replace(stands.copy() if isinstance(stands, exp.Column) else exp.Paren(this=stands.copy()))


def tables_of(statement: Statement, select: Any) -> Tables:
    """Return the tables of a merged SELECT.

    `names` maps an alias to the name of its table. Only inner joins keep one row for each row of the base with its
    partners; a join must state a key.

    Raises
    ------
    JobError
        For a source that is no table, or another join than an inner one.
    """
    names: dict[str, str] = {}
    joins = tuple(select.args.get("joins") or ())
    for source in [select.args["from_"].this, *(join.this for join in joins)]:
        if not isinstance(source, exp.Table) or not isinstance(source.this, exp.Identifier):
            statement.refuse(source, "the name of a table", "name a table of the job, or use a subquery after FROM")
        _check_alias(statement, source)
        for name, value in source.args.items():
            if value and name not in PLAIN_TABLE:
                statement.refuse(source, "a whole table", "leave the rest out", f"with {name.upper()}")
        if source.alias_or_name.lower() in names or source.name.lower() in map(str.lower, names.values()):
            statement.refuse(source, "each table once", "join different tables", "a second time")
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
        return merged(self.statement, frozenset(name.lower() for name in self.domain.axis_names))

    @cached_property
    def tables(self) -> Tables:
        """Tables of the statement. Raises JobError for a join in a job of one table."""
        tables = tables_of(self.statement, self.select)
        prefixes = {name.partition(".")[0] for name in self.domain.axis_names if "." in name}
        if tables.joins and not prefixes & set(tables.names.values()):
            self.statement.refuse(tables.joins[0].this, "one table", "write a job with [tables.NAME] and [[link]]")
        return tables

    @cached_property
    def _names(self) -> dict[str, list[str]]:
        """Attributes and numbers by their names in lower case, also without the table."""
        by_name: dict[str, list[str]] = {}
        for axis in self.domain.axes:
            by_name.setdefault(axis.name.lower(), []).append(axis.name)
            if self.tables.joins:
                by_name.setdefault(axis.name.partition(".")[2].lower(), []).append(axis.name)
        return by_name

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

    def knows(self, column: Any) -> bool:
        """Return whether a column without a table is an attribute or number of the domain."""
        return column.name in self.domain.axis_names or len(self._names.get(column.name.lower(), [])) == 1

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
        return [column for column in node.find_all(exp.Column) if not isinstance(column.this, exp.Star)]

    def names(self, node: Any) -> tuple[str, ...]:
        """Return the attributes that an expression reads, in domain order; raise JobError for a number."""
        return self.domain.ordered({self.attribute(column).name for column in self.columns(node)})
