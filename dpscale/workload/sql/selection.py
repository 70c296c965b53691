"""A SELECT as a whole: the groups of its rows, the values of its columns, and what is done with the finished rows.

An expression of GROUP BY is evaluated on the cells of one attribute; cells with equal values are one group. Every group
that the domain and WHERE admit has a row, also if no record is in it. HAVING, ORDER BY and LIMIT follow from estimates.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dpscale.base.numerics import AttributeSet, Integers
from dpscale.domain import Domain
from dpscale.domain.attribute import OUTSIDE_LABEL
from dpscale.workload.sql.aggregates import POPULATION, SAMPLE, Aggregates, Term, TermSum, Units, Value
from dpscale.workload.sql.cells import OUTSIDE, CellValues
from dpscale.workload.sql.conditions import CellCondition, Conditions
from dpscale.workload.sql.scope import Scope, merged, tables_of
from dpscale.workload.sql.statements import Statement, exp

MOST_SETS = 4096  # grouping sets of a statement
SUFFIXES = ("low", "high", "std_error")
UNANSWERED = {
    "distinct": "GROUP BY, whose groups are distinct", "windows": "groups without windows",
    "qualify": "groups without windows", "sample": "all records", "pivots": "GROUP BY and CASE", "laterals": "a table",
}  # fmt: skip


class Key(NamedTuple):
    """Expression of GROUP BY.

    Attributes
    ----------
    text : str
        The expression as SQL.
    attribute : str
    labels : list
        Value of each group.
    groups : ndarray of int64, shape (cells,)
        Group of each cell of the attribute; −1 for none.
    """

    text: str
    attribute: str
    labels: list[Any]
    groups: Integers


class OutputColumn(NamedTuple):
    """Column of the result: a key by its place, whether a key is summed over, or a value."""

    name: str
    key: int | None = None
    value: Value | None = None
    grouping: tuple[int, ...] | None = None


class Order(NamedTuple):
    """Column by which rows are sorted."""

    column: int
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, eq=False)
class SelectQuery:
    """A statement whose parts are evaluated on a domain.

    Attributes
    ----------
    statement : Statement
    domain : Domain
    where : CellCondition
    keys : tuple of Key
    sets : tuple of tuple of int
        Places of the keys of each grouping set.
    columns : tuple of OutputColumn
        Columns of the result; those from `shown` on serve HAVING and ORDER BY only.
    shown : int
    having : sqlglot.expressions.Expression or None
    leaves : mapping of str to int
        Columns by the SQL of the expressions in HAVING.
    order : tuple of Order
    limit, offset : int
    """

    statement: Statement
    domain: Domain
    where: CellCondition
    keys: tuple[Key, ...]
    sets: tuple[tuple[int, ...], ...]
    columns: tuple[OutputColumn, ...]
    shown: int
    having: Any
    leaves: dict[str, int]
    order: tuple[Order, ...]
    limit: int | None
    offset: int

    @property
    def name(self) -> str:
        return self.statement.name


def select(statement: Statement, domain: Domain, unit: Sequence[str] = ()) -> SelectQuery:
    """Return a statement evaluated on a domain.

    Parameters
    ----------
    statement : Statement
    domain : Domain
    unit : sequence of str
        Columns of the privacy unit, which COUNT(DISTINCT …) counts.

    Raises
    ------
    JobError
        For what cannot be answered, with the part of the statement, the reason and the nearest form.
    """
    return _SelectReader(Scope(statement, domain, tuple(unit))).selection()


def requested_tables(statement: Statement) -> list[str]:
    """Return the names of the tables that a statement reads, the first one that of FROM."""
    return list(tables_of(statement, merged(statement)).names.values())


def read_names(statement: Statement, domain: Domain) -> set[str]:
    """Return the attributes and numbers that a statement reads, without the columns of keys and units."""
    scope = Scope(statement, domain)
    named = {one.alias.lower() for one in scope.select.expressions if isinstance(one, exp.Alias)}
    found = set[str]()
    for column in scope.columns(scope.select):
        after = column.find_ancestor(exp.Group, exp.Order, exp.Having) is not None
        of_result = after and not column.table and column.name.lower() in named
        if not of_result and column.find_ancestor(exp.Join, exp.Distinct) is None:
            found.add(scope.name_of(column))
    return found


class _SelectReader:
    def __init__(self, scope: Scope) -> None:
        self.scope, self.statement, self.tree = scope, scope.statement, scope.select
        self.conditions = Conditions(scope)
        where = self.tree.args.get("where")
        self.where = CellCondition() if where is None else self.conditions.read(where)
        self.aggregates = Aggregates(scope, self.conditions, self.where)
        self.keys: list[Key] = []
        self.columns: list[OutputColumn] = []
        self.aliases = {one.alias.lower(): one.this for one in self.tree.expressions if isinstance(one, exp.Alias)}

    def selection(self) -> SelectQuery:
        for name, takes in UNANSWERED.items():
            if (wrong := self.tree.args.get(name)) is not None and wrong != []:
                first = wrong if isinstance(wrong, exp.Expression) else wrong[0]
                self.statement.refuse(first, takes, "leave it out")
        if (window := self.tree.find(exp.Window)) is not None:
            self.statement.refuse(window, "aggregates without OVER", "compute it from the rows of the result")
        if self.where.never:
            self.statement.refuse(self.tree.args["where"].this, "a condition that some cell satisfies", "correct it")

        _ = self.scope.tables
        sets = list(dict.fromkeys(self._sets()))
        if len(sets) > MOST_SETS:
            self.statement.refuse(self.tree.args["group"], f"at most {MOST_SETS:,} grouping sets", "list the sets")
        for one in self.tree.expressions:
            self.columns.append(self._output(one))
        shown = len(self.columns)
        if all(one.value is None for one in self.columns):
            self.statement.refuse(self.tree, "a count, sum or mean", "add COUNT(*)")
        self._check_names()
        leaves, order = self._leaves(), tuple(self._order())
        limit, offset = (self._whole_number(name) for name in ("limit", "offset"))
        having = self.tree.args.get("having")
        return SelectQuery(self.statement, self.scope.domain, self.where, tuple(self.keys), tuple(sets),
                         tuple(self.columns), shown, None if having is None else having.this, leaves, order, limit,
                         offset or 0)  # fmt: skip

    def _sets(self) -> Iterator[tuple[int, ...]]:
        """Yield the keys of each grouping set."""
        group = self.tree.args.get("group")
        if group is None:
            yield ()
            return
        if group.args.get("all"):
            plain = [one.unalias() for one in self.tree.expressions if one.find(exp.AggFunc, exp.CountIf) is None]
            yield tuple(self._place(one) for one in plain)
            return
        parts: list[list[tuple[int, ...]]] = [
            [(self._place(one),)] for one in group.expressions if not self._is_sets(one)
        ]
        parts += [self._several(one) for one in group.expressions if self._is_sets(one)]
        for kind in ("rollup", "cube", "grouping_sets"):
            parts += [self._several(one) for one in group.args.get(kind) or []]
        for chosen in itertools.product(*parts):
            yield tuple(dict.fromkeys(place for places in chosen for place in places))

    @staticmethod
    def _is_sets(node: Any) -> bool:
        return isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets)

    def _several(self, node: Any) -> list[tuple[int, ...]]:
        """Return the grouping sets of ROLLUP, CUBE or GROUPING SETS."""
        if isinstance(node, exp.GroupingSets):
            return [own for one in node.expressions for own in
                    (self._several(one) if self._is_sets(one) else [self._members(one)])]  # fmt: skip
        members = [self._members(one) for one in node.expressions]
        if isinstance(node, exp.Rollup):
            return [_flat(members[:count]) for count in range(len(members), -1, -1)]
        if len(members) > 12:
            self.statement.refuse(node, "CUBE of at most 12 expressions", "list GROUPING SETS")
        count = len(members)
        return [_flat([members[place] for place in chosen])
                for size in range(count, -1, -1) for chosen in itertools.combinations(range(count), size)]  # fmt: skip

    def _members(self, node: Any) -> tuple[int, ...]:
        if isinstance(node, exp.Tuple):
            return _flat([self._members(one) for one in node.expressions])
        return (self._place(node.this if isinstance(node, exp.Paren) else node),)

    def _place(self, node: Any) -> int:
        """Return the place of an expression of GROUP BY among the keys."""
        if isinstance(node, exp.Literal) and not node.is_string:
            number = int(float(node.this))
            if not 0 < number <= len(self.tree.expressions):
                self.statement.refuse(node, f"a column from 1 to {len(self.tree.expressions)}", "name the expression")
            node = self.tree.expressions[number - 1].unalias()
        elif isinstance(node, exp.Column) and not node.table and node.name.lower() in self.aliases:
            named = self.aliases[node.name.lower()]
            node = named if named.find(exp.AggFunc) is None else node
        if node.find(exp.AggFunc) is not None:
            self.statement.refuse(node, "expressions of attributes in GROUP BY", "group by attributes")

        text = node.sql(self.statement.dialect).lower()
        known = next((place for place, key in enumerate(self.keys) if key.text == text), None)
        if known is None:
            known = len(self.keys)
            self.keys.append(self._key(node, text))
        return known

    def _key(self, node: Any, text: str) -> Key:
        names = self.scope.names(node)
        if len(names) != 1:
            remedy = "group by several expressions, or add an attribute to the domain file"
            self.statement.refuse(
                node, "expressions of one attribute in GROUP BY", remedy, "" if names else "a constant"
            )
        attribute = self.scope.domain[names[0]]
        inner = node
        while isinstance(inner, exp.Paren):
            inner = inner.this
        if isinstance(inner, exp.Column):
            return Key(text, attribute.name, list(attribute.labels), np.arange(attribute.size))

        values = [OUTSIDE_LABEL if one is OUTSIDE else one for one in CellValues(self.scope, attribute).values(node)]
        labels = sorted(dict.fromkeys(values), key=lambda one: _sorting(one))
        places = {label: place for place, label in enumerate(labels)}
        return Key(text, attribute.name, labels, np.array([places[one] for one in values], np.int64))

    def _output(self, node: Any) -> OutputColumn:
        if isinstance(node, exp.Star):
            self.statement.refuse(node, "columns of groups and aggregates", "list GROUP BY columns and COUNT(*)")
        plain = node.unalias()
        name = node.alias or self._name(plain)
        if isinstance(plain, exp.Grouping | exp.GroupingId):
            places = tuple(self._place(one) for one in plain.expressions)
            return OutputColumn(name, grouping=places)
        text = plain.sql(self.statement.dialect).lower()
        place = next((place for place, key in enumerate(self.keys) if key.text == text), None)
        if place is None and isinstance(plain, exp.Column):
            same = [place for place, key in enumerate(self.keys)
                    if key.attribute == self._named(plain) and len(key.labels) == len(key.groups)]  # fmt: skip
            place = same[0] if same else None
        if place is not None:
            return OutputColumn(name, key=place)
        return OutputColumn(name, value=self.aggregates.value(plain))

    def _named(self, column: Any) -> str | None:
        name = self.scope.name_of(column)
        return None if name in self.scope.domain.number_names else name

    def _name(self, node: Any) -> str:
        """Return the name of a column without an alias."""
        if isinstance(node, exp.Column):
            return str(node.name)
        inner = node.this if isinstance(node, exp.Filter) else node
        if isinstance(inner, exp.Count) and isinstance(inner.this, exp.Star):
            return "count"
        if isinstance(inner, exp.AggFunc) and isinstance(inner.this, exp.Column):
            return f"{inner.sql_name().lower()}_{inner.this.name}"
        return str(node.sql(self.statement.dialect))

    def _check_names(self) -> None:
        """Raise JobError if two columns of the result have one name."""
        taken = set[str]()
        for node, output in zip(self.tree.expressions, self.columns, strict=True):
            extra = [f"{output.name}_{suffix}" for suffix in SUFFIXES] if output.value is not None else []
            for name in [output.name, *extra]:
                if name in taken:
                    self.statement.refuse(node, "different names of columns", "write AS and another name",
                                          f"whose column {name} exists twice")  # fmt: skip
                taken.add(name)

    def _leaves(self) -> dict[str, int]:
        """Return the columns of HAVING by their SQL; those that are not selected are added."""
        having, found = self.tree.args.get("having"), dict[str, int]()
        if having is None:
            return found
        waiting = [having.this]
        while waiting:
            node = waiting.pop()
            if isinstance(node, exp.AggFunc | exp.Filter | exp.Column | exp.CountIf):
                found[node.sql()] = self._column(node)
            elif isinstance(node, exp.Not | exp.Paren | exp.Predicate | exp.Binary | exp.Neg | exp.Literal | exp.Null):
                waiting += [one for one in node.iter_expressions()]
            else:
                self.statement.refuse(
                    node, "comparisons of aggregates and columns in HAVING", "filter the result instead"
                )
        return found

    def _column(self, node: Any) -> int:
        """Return the place of a column of the result that an expression names, which is added if there is none."""
        if isinstance(node, exp.Column) and not node.table:
            for place, output in enumerate(self.columns):
                if output.name.lower() == node.name.lower():
                    return place
        text = node.sql(self.statement.dialect).lower()
        for place, one in enumerate(self.tree.expressions):
            if one.unalias().sql(self.statement.dialect).lower() == text:
                return place
        self.columns.append(self._output(node))
        return len(self.columns) - 1

    def _order(self) -> Iterator[Order]:
        order = self.tree.args.get("order")
        for one in [] if order is None else order.expressions:
            node = one.this
            if isinstance(node, exp.Literal) and not node.is_string:
                place = int(float(node.this)) - 1
                if not 0 <= place < len(self.tree.expressions):
                    self.statement.refuse(node, f"a column from 1 to {len(self.tree.expressions)}", "name the column")
            else:
                place = self._column(node)
            yield Order(place, bool(one.args.get("desc")), bool(one.args.get("nulls_first")))

    def _whole_number(self, name: str) -> int | None:
        node = self.tree.args.get(name)
        if node is None:
            return None
        value = CellValues(self.scope, None).values(node.expression)[0]
        if not isinstance(value, int) or value < 0:
            self.statement.refuse(node, "a whole number", f"write {name.upper()} 10")
        return value


def _flat(parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(place for part in parts for place in part))


def _sorting(value: Any) -> tuple[int, str, Any]:
    """Return a key that sorts labels of one type, nulls and outside values last."""
    if value is None or value == OUTSIDE_LABEL:
        return (2 if value is None else 1, "", 0)
    return (0, "number" if isinstance(value, int | float) else type(value).__name__, value)


def terms_of(value: Value) -> list[Term]:
    """Return the terms of a value."""
    linear = [one for one in vars(value).values() if isinstance(one, TermSum)]
    parts = value.terms if isinstance(value, TermSum) else [pair for one in linear for pair in one.terms]
    inner = getattr(value, "value", None)
    return [term for _, term in parts] + (terms_of(inner) if inner is not None else [])


def counts_units(statement: Statement) -> bool:
    """Return whether a statement counts distinct units."""
    return any(isinstance(one.this, exp.Distinct) for one in statement.tree.find_all(exp.Count))


def squared_columns(statements: Sequence[Statement]) -> list[str]:
    """Return the columns of which variances or standard deviations are asked."""
    found = [one for statement in statements for node in merged(statement).find_all(exp.AggFunc)
             if type(node).__name__ in SAMPLE + POPULATION for one in node.find_all(exp.Column)]  # fmt: skip
    return list(dict.fromkeys(str(one.name) for one in found))


def unit_sets(selection: SelectQuery) -> list[AttributeSet]:
    """Return the attribute sets by which a selection counts distinct units.

    Raises
    ------
    JobError
        If units are counted by groups that are not the cells of attributes.
    """
    counted = [one for one in selection.columns if isinstance(one.value, Units)]
    if not counted:
        return []
    for key in selection.keys:
        if len(key.labels) < len(key.groups):
            selection.statement.refuse(selection.statement.tree, "COUNT(DISTINCT …) by the values of attributes",
                                       f"group by {key.attribute}, or add an attribute to the domain file")  # fmt: skip
    return [
        selection.domain.ordered({selection.keys[place].attribute for place in places}) for places in selection.sets
    ]
