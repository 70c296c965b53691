"""A SELECT as a whole: the groups of its rows, the values of its columns, and what is done with the finished rows.

An expression of GROUP BY is evaluated on the cells of one attribute; cells with equal values are one group. Every group
that the domain and WHERE admit has a row, also if no record is in it. HAVING, ORDER BY and LIMIT follow from estimates.

*Terms.* A *key* is an expression of GROUP BY, and a *place* the number of a key, or of a column, in its list. A
grouping set is a tuple of places of keys. A `node` is a part of the syntax tree of sqlglot.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dpscale.base.errors import JobError
from dpscale.base.numerics import AttributeSet, Integers
from dpscale.domain import Domain
from dpscale.domain.attribute import OUTSIDE_LABEL
from dpscale.workload.sql.aggregates import (
    POPULATION,
    SAMPLE,
    Aggregates,
    Rounded,
    Term,
    TermSum,
    Units,
    Value,
    is_constant,
)
from dpscale.workload.sql.cells import OUTSIDE, CellValues
from dpscale.workload.sql.conditions import CellCondition, Conditions
from dpscale.workload.sql.scope import Scope, merged, tables_of
from dpscale.workload.sql.statements import Statement, exp

MOST_SETS = 4096  # grouping sets of a statement
SUFFIXES = ("low", "high", "std_error")
ANSWERED = {  # arguments of clauses
    "group": ("expressions", "rollup", "cube", "grouping_sets", "all"),
    "limit": ("expression", "count", "direction"), "offset": ("expression",), "order": ("expressions",),
}  # fmt: skip
NUMBER, TEXT = "number", "text"


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
    is_plain : bool
        Whether the groups are the cells.
    kind : {"number", "text", ""}
        Type of the labels that a condition compares.
    """

    text: str
    attribute: str
    labels: list[Any]
    groups: Integers
    is_plain: bool
    kind: str

    @property
    def ranks(self) -> list[Any]:
        """Value by which each group is sorted: texts by their letters, bins and dates in time and size.

        A text is ranked by (0, text) and the label of outside values by (1, ""), so that it is last; other labels are
        in order.
        """
        ranks: list[Any] = []
        for place, label in enumerate(self.labels):
            if label is None:
                ranks.append(None)
            elif self.kind != TEXT:
                ranks.append(place)
            else:
                ranks.append((1, "") if label == OUTSIDE_LABEL else (0, label))  # outside values last
        return ranks


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
    return _select(statement, domain, tuple(unit))


@lru_cache(maxsize=256)  # a run reads its statements at planning, for charges and for answers
def _select(statement: Statement, domain: Domain, unit: tuple[str, ...]) -> SelectQuery:
    """Return a statement evaluated on a domain; see `select`."""
    try:
        return _SelectReader(Scope(statement, domain, unit)).selection()
    except RecursionError:
        raise JobError(f"sql {statement.name}", "too many conditions or terms", "fewer", "write IN (…)") from None


def requested_tables(statement: Statement) -> list[str]:
    """Return the names of the tables that a statement reads, the first one that of FROM."""
    return list(tables_of(statement, merged(statement)).names.values())


def read_names(statement: Statement, domain: Domain) -> set[str]:
    """Return the attributes and numbers that a statement reads, without the columns of keys and units.

    A name after GROUP BY, ORDER BY or HAVING that is an alias is a column of the result, not of the table.
    """
    scope = Scope(statement, domain)
    aliases = {output.alias.lower() for output in scope.select.expressions if isinstance(output, exp.Alias)}
    names = set[str]()
    for column in scope.columns(scope.select):
        after = column.find_ancestor(exp.Group, exp.Order, exp.Having) is not None
        of_result = after and not column.table and column.name.lower() in aliases
        if not of_result and column.find_ancestor(exp.Join, exp.Distinct) is None:
            names.add(scope.name_of(column))
    return names


class _SelectReader:
    def __init__(self, scope: Scope) -> None:
        """Read WHERE, which all aggregates need; keys and columns follow in `selection`."""
        self.scope, self.statement, self.tree = scope, scope.statement, scope.select
        self.conditions = Conditions(scope)
        where = self.tree.args.get("where")
        self.where = CellCondition() if where is None else self.conditions.read(where)
        self.aggregates = Aggregates(scope, self.conditions, self.where)
        self.keys: list[Key] = []
        self.columns: list[OutputColumn] = []
        named = [output for output in self.tree.expressions if isinstance(output, exp.Alias)]
        self.aliases = {output.alias.lower(): output.this for output in named}

    def selection(self) -> SelectQuery:
        """Return the evaluated statement. Raises JobError for the first part that cannot be answered.

        `_output`, `_leaves` and `_order` append the columns that they need to `self.columns`. Those of the result come
        first, those that HAVING and ORDER BY alone need after them.
        """
        for clause, known in ANSWERED.items():
            self._check_clause(clause, known)
        if (window := self.tree.find(exp.Window)) is not None:
            self.statement.refuse(window, "aggregates without OVER", "compute it from the rows of the result")
        # no cell satisfies WHERE
        if self.conditions.is_never(self.where):
            self.statement.refuse(self.tree.args["where"].this, "a condition that some cell satisfies", "correct it")

        _ = self.scope.tables  # refuses joins that cannot be answered
        sets = list(self._sets())
        if len(sets) > MOST_SETS:
            self.statement.refuse(self.tree.args["group"], f"at most {MOST_SETS:,} grouping sets", "list the sets")

        for expression in self.tree.expressions:
            self.columns.append(self._output(expression))
        shown = len(self.columns)  # further columns are not in the result
        if all(column.value is None or is_constant(column.value) for column in self.columns):
            self.statement.refuse(self.tree, "a count, sum or mean", "add COUNT(*)")
        self._check_names()

        leaves, order = self._leaves(), tuple(self._order())
        limit, offset = self._whole_number("limit"), self._whole_number("offset")
        having = self.tree.args.get("having")
        return SelectQuery(
            statement=self.statement,
            domain=self.scope.domain,
            where=self.where,
            keys=tuple(self.keys),
            sets=tuple(sets),
            columns=tuple(self.columns),
            shown=shown,
            having=None if having is None else having.this,
            leaves=leaves,
            order=order,
            limit=limit,
            offset=offset or 0,
        )

    def _check_clause(self, clause: str, known: Sequence[str]) -> None:
        """Raise JobError for a part of a clause that is not answered."""
        node = self.tree.args.get(clause)
        for name, value in {} if node is None else node.args.items():
            empty = False  # GROUP BY … WITH ROLLUP, which lists no expressions
            if clause == "group" and name in known and isinstance(value, list):
                empty = any(isinstance(part, exp.Rollup | exp.Cube) and not part.expressions for part in value)
            if value and (name not in known or empty):
                words = f"{clause.upper()} without {name.replace('_', ' ').upper()}"
                remedy = "write GROUP BY ROLLUP (…)" if empty else "leave it out"
                self.statement.refuse(node, "GROUP BY ROLLUP (…)" if empty else words, remedy)

    def _sets(self) -> Iterator[tuple[int, ...]]:
        """Yield the keys of each grouping set: of each combination of one set of every part of GROUP BY.

        Each part of GROUP BY has a list of alternatives: an expression one, ROLLUP and others several. A grouping set
        joins one alternative of every part, without repeated keys.
        """
        group = self.tree.args.get("group")
        if group is None:
            yield ()
            return
        if group.args.get("all"):
            plain = [output.unalias() for output in self.tree.expressions
                     if output.find(exp.AggFunc, exp.CountIf) is None]  # fmt: skip
            yield tuple(self._place(node) for node in plain)
            return
        parts: list[list[tuple[int, ...]]] = [
            [self._members(node)] for node in group.expressions if not self._is_sets(node)
        ]
        parts += [self._several(node) for node in group.expressions if self._is_sets(node)]
        for kind in ("rollup", "cube", "grouping_sets"):
            parts += [self._several(node) for node in group.args.get(kind) or []]
        for chosen in itertools.product(*parts):
            yield tuple(dict.fromkeys(place for places in chosen for place in places))

    @staticmethod
    def _is_sets(node: Any) -> bool:
        return isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets)

    def _several(self, node: Any) -> list[tuple[int, ...]]:
        """Return the grouping sets of ROLLUP, CUBE or GROUPING SETS.

        A member is a tuple of places. ROLLUP (a, b) has the sets (a, b), (a), (); CUBE all subsets.
        """
        if isinstance(node, exp.GroupingSets):
            sets = []
            for part in node.expressions:
                sets += self._several(part) if self._is_sets(part) else [self._members(part)]
            return sets
        members = [self._members(part) for part in node.expressions]
        if isinstance(node, exp.Rollup):
            return [_flat(members[:count]) for count in range(len(members), -1, -1)]
        if len(members) > 12:
            self.statement.refuse(node, "CUBE of at most 12 expressions", "list GROUPING SETS")
        sets = []  # of CUBE: all subsets, the largest first
        for size in range(len(members), -1, -1):
            for chosen in itertools.combinations(range(len(members)), size):
                sets.append(_flat([members[place] for place in chosen]))
        return sets

    def _members(self, node: Any) -> tuple[int, ...]:
        if isinstance(node, exp.Tuple):
            return _flat([self._members(member) for member in node.expressions])
        return (self._place(node),)

    def _place(self, node: Any) -> int:
        """Return the place of an expression of GROUP BY among the keys.

        A number is the place of a column of SELECT. An alias stands for its expression unless the table has a column of
        this name. `_ordinal` is the number of the column; `text` identifies the expression, so that equal ones are one
        key.
        """
        if isinstance(node, exp.Literal) and not node.is_string:
            node = self.tree.expressions[self._ordinal(node)].unalias()
        elif isinstance(node, exp.Column) and not node.table and node.name.lower() in self.aliases:
            named = self.aliases[node.name.lower()]  # a column of the table comes before that of the result
            node = named if named.find(exp.AggFunc) is None and not self.scope.knows(node) else node
        node = _bare(node)
        if node.find(exp.AggFunc) is not None:
            self.statement.refuse(node, "expressions of attributes in GROUP BY", "group by attributes")

        text = self._text(node)
        known = self._key_of(text)
        if known is None:
            known = len(self.keys)
            self.keys.append(self._key(node, text))
        return known

    def _ordinal(self, node: Any) -> int:
        """Return the place of the column that a number in GROUP BY or ORDER BY names."""
        text, count = str(node.this), len(self.tree.expressions)
        if not text.isdecimal() or not 0 < int(text[:6]) <= count or len(text) > 5:
            self.statement.refuse(node, f"a column from 1 to {count}", "name the expression")
        return int(text) - 1

    def _text(self, node: Any) -> str:
        """Return an expression as a text that is equal for equal expressions."""
        copy = exp.Paren(this=node.copy())
        for column in [*copy.find_all(exp.Column)]:
            if not isinstance(column.this, exp.Star) and self.scope.knows(column):
                column.replace(exp.column(self.scope.name_of(column), quoted=True))
        return str(_bare(copy).sql(self.statement.dialect))

    def _key_of(self, text: str) -> int | None:
        return next((place for place, key in enumerate(self.keys) if key.text == text), None)

    def _key(self, node: Any, text: str) -> Key:
        """Return an expression of GROUP BY as a key: the values of an attribute, and the group of each of its cells.

        A column itself is the key of its cells. An expression has a group for each distinct value, in sorted order.
        `compared` says whether HAVING may compare the key with a constant; then its kind is that of its labels.
        """
        names = self.scope.names(node)
        if len(names) != 1:
            remedy = "group by several expressions, or add an attribute to the domain file"
            self.statement.refuse(
                node, "expressions of one attribute in GROUP BY", remedy, "" if names else "a constant"
            )
        attribute = self.scope.domain[names[0]]
        # a plain column has a group for each cell
        if isinstance(node, exp.Column):
            compared = attribute.kind not in ("bins", "date", "boolean")
            kind = _kind(attribute.labels) if compared else ""
            return Key(
                text=text,
                attribute=attribute.name,
                labels=list(attribute.labels),
                groups=np.arange(attribute.size),
                is_plain=True,
                kind=kind,
            )

        of_cells = CellValues(self.scope, attribute).values(node)
        values = [OUTSIDE_LABEL if value is OUTSIDE else value for value in of_cells]
        types = {type(value) for value in values if value is not None and value != OUTSIDE_LABEL}
        if _kind(values) == "" and len(types) > 1:
            self.statement.refuse(node, "groups of one type", "write all numbers, or all texts")
        # cells with equal values are one group
        labels = sorted(dict.fromkeys(values), key=_sorting)
        places = {label: place for place, label in enumerate(labels)}
        groups = np.array([places[value] for value in values], np.int64)
        return Key(
            text=text, attribute=attribute.name, labels=labels, groups=groups, is_plain=False, kind=_kind(values)
        )

    def _output(self, node: Any) -> OutputColumn:
        """Return an expression of SELECT as a column: a key, GROUPING of keys, or an expression of aggregates.

        `plain` is the expression without its alias and parentheses.
        """
        if isinstance(node, exp.Star):
            self.statement.refuse(node, "columns of groups and aggregates", "list GROUP BY columns and COUNT(*)")
        plain = _bare(node.unalias())
        name = node.alias or self._name(plain)
        if isinstance(plain, exp.Grouping | exp.GroupingId):
            places = tuple(self._place(key) for key in plain.expressions)
            return OutputColumn(name, grouping=places)
        place = self._key_of(self._text(plain))
        if place is not None:
            return OutputColumn(name, key=place)
        return OutputColumn(name, value=self.aggregates.value(plain))

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
        """Return the columns of HAVING by their SQL; those that are not selected are added.

        Raises
        ------
        JobError
            For a condition that is not evaluated on the rows of the result.
        """
        having, leaves = self.tree.args.get("having"), dict[str, int]()
        if having is not None:
            self._check_condition(having.this, leaves)
        return leaves

    def _check_condition(self, node: Any, leaves: dict[str, int]) -> None:
        """Add the columns that a condition of HAVING needs to `leaves`, by their SQL.

        Raises JobError for other conditions. `_operand` and `_check_types` add the columns; comparisons need operands
        of one type.
        """
        kind = type(node).__name__
        if isinstance(node, exp.Paren | exp.Not):
            self._check_condition(node.this, leaves)
        elif isinstance(node, exp.And | exp.Or):
            self._check_condition(node.left, leaves)
            self._check_condition(node.right, leaves)
        elif isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            self._operand(node.this, leaves)
        elif isinstance(node, exp.Between) and not node.args.get("symmetric"):
            self._check_types(node, [node.this, node.args["low"], node.args["high"]], leaves)
        elif isinstance(node, exp.In) and node.expressions:
            self._check_types(node, [node.this, *node.expressions], leaves)
        elif kind in COMPARISONS:
            self._check_types(node, [node.left, node.right], leaves)
        else:
            self.statement.refuse(node, "comparisons of aggregates and columns in HAVING", "write it in WHERE")

    def _check_types(self, node: Any, operands: Sequence[Any], leaves: dict[str, int]) -> None:
        """Raise JobError unless all operands of a comparison are numbers, or all texts.

        Their columns are added to `leaves`, by their SQL.
        """
        kinds = {self._operand(operand, leaves) for operand in operands}
        if len(kinds) > 1 or "" in kinds:
            self.statement.refuse(
                node, "numbers with numbers, and texts with texts", "write conditions on groups in WHERE"
            )

    def _operand(self, node: Any, leaves: dict[str, int]) -> str:
        """Return the type of an operand of HAVING, TEXT or NUMBER, and add its columns to `leaves`, by their SQL.

        An expression of numbers is a number if all its parts are; divisions that drop the fraction are refused.
        `of_key` is the place of the key if the node is an expression of GROUP BY.
        """
        if isinstance(node, exp.Paren):
            return self._operand(node.this, leaves)
        if isinstance(node, exp.Literal):
            return TEXT if node.is_string else NUMBER
        # an expression that GROUP BY has, or an aggregate, is a column of its own
        of_key = self._key_of(self._text(node)) if self.scope.columns(node) else None
        if of_key is not None or isinstance(
            node, exp.AggFunc | exp.Filter | exp.Column | exp.CountIf | exp.WithinGroup
        ):
            leaves[node.sql()] = place = self._column(node, of_table=True)
            output = self.columns[place]
            return NUMBER if output.key is None else self.keys[output.key].kind
        if isinstance(node, exp.Neg):
            parts = [node.this]
        elif isinstance(node, exp.Add | exp.Sub | exp.Mul | exp.Div) and not node.args.get("typed"):
            parts = [node.left, node.right]
        else:
            self.statement.refuse(
                node, "columns, aggregates, numbers and + - * / in HAVING", "select the expression by AS"
            )
        if any(self._operand(part, leaves) != NUMBER for part in parts):
            self.statement.refuse(node, "arithmetic of numbers", "write conditions on groups in WHERE")
        return NUMBER

    def _column(self, node: Any, of_table: bool = False) -> int:
        """Return the place of a column of the result that an expression names, which is added if there is none.

        With `of_table` a column of the table comes before that of the result.
        """
        if isinstance(node, exp.Column) and not node.table and not (of_table and self.scope.knows(node)):
            for place, output in enumerate(self.columns):
                if output.name.lower() == node.name.lower():
                    return place
        text = self._text(node)
        for place, expression in enumerate(self.tree.expressions):
            if self._text(_bare(expression.unalias())) == text:
                return place
        self.columns.append(self._output(node))
        return len(self.columns) - 1

    def _order(self) -> Iterator[Order]:
        """Yield the columns of ORDER BY, by their number in the result or by an expression, with their directions."""
        order = self.tree.args.get("order")
        for ordered in [] if order is None else order.expressions:
            node = ordered.this
            numbered = isinstance(node, exp.Literal) and not node.is_string
            place = self._ordinal(node) if numbered else self._column(node)
            yield Order(place, bool(ordered.args.get("desc")), bool(ordered.args.get("nulls_first")))

    def _whole_number(self, name: str) -> int | None:
        """Return the number of LIMIT or OFFSET; None if there is none."""
        node = self.tree.args.get(name)
        if node is None:
            return None
        inner = node.expression if node.expression is not None else node.args.get("count")
        value = None if inner is None else CellValues(self.scope, None).values(inner)[0]
        if not isinstance(value, int) or value < 0:
            self.statement.refuse(node, "a whole number", f"write {name.upper()} 10")
        return value


COMPARISONS = ("EQ", "NEQ", "LT", "LTE", "GT", "GTE")


def _kind(labels: Sequence[Any]) -> str:
    """Return the type of labels: number or text, without nulls and outside values; empty for others."""
    known = [label for label in labels if label is not None and label != OUTSIDE_LABEL]
    if known and all(isinstance(label, int | float) and not isinstance(label, bool) for label in known):
        return NUMBER
    return TEXT if known and all(isinstance(label, str) for label in known) else ""


def _bare(node: Any) -> Any:
    """Return an expression without parentheses around it."""
    return _bare(node.this) if isinstance(node, exp.Paren) else node


def _flat(parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(place for part in parts for place in part))


def _sorting(value: Any) -> tuple[int, str, Any]:
    """Return a key that sorts labels of one type, nulls and outside values last."""
    if value is None or value == OUTSIDE_LABEL:
        return (2 if value is None else 1, "", 0)
    return (0, "number" if isinstance(value, int | float) else type(value).__name__, value)


def terms_of(value: Value) -> list[Term]:
    """Return the terms of a value."""
    if isinstance(value, TermSum):
        pairs = list(value.terms)  # factors and terms
    else:
        pairs = [pair for part in vars(value).values() if isinstance(part, TermSum) for pair in part.terms]
    terms = [term for _, term in pairs]
    for inner in (getattr(value, "value", None), *getattr(value, "ratios", ())):
        if inner is not None:
            terms += terms_of(inner)
    return terms


def counts_units(statement: Statement) -> bool:
    """Return whether a statement counts distinct units."""
    return any(isinstance(count.this, exp.Distinct) for count in statement.tree.find_all(exp.Count))


def squared_columns(statements: Sequence[Statement]) -> list[str]:
    """Return the columns of which variances or standard deviations are asked."""
    names = list[str]()
    for statement in statements:
        for aggregate in merged(statement).find_all(exp.AggFunc):
            if type(aggregate).__name__ in SAMPLE + POPULATION:
                names += [str(column.name) for column in aggregate.find_all(exp.Column)]
    return list(dict.fromkeys(names))


def unit_sets(selection: SelectQuery) -> list[AttributeSet]:
    """Return the attribute sets by which a selection counts distinct units.

    Raises
    ------
    JobError
        If units are counted by groups that are not the cells of attributes.
    """
    values = [column.value.value if isinstance(column.value, Rounded) else column.value for column in selection.columns]
    if not any(isinstance(value, Units) for value in values):
        return []
    used = {key.attribute for key in selection.keys} | selection.where.names
    for value in values:
        for term in [] if value is None else terms_of(value):
            used |= {*term.condition.names, term.axis}
    several_levels = any(len(used.intersection(hierarchy.names)) > 1 for hierarchy in selection.domain.hierarchies)
    for key in selection.keys:
        if not key.is_plain or several_levels:
            selection.statement.refuse(selection.statement.tree, "COUNT(DISTINCT …) by the values of attributes",
                                       f"group by {key.attribute}, or add an attribute to the domain file")  # fmt: skip
    return [
        selection.domain.ordered({selection.keys[place].attribute for place in places}) for places in selection.sets
    ]
