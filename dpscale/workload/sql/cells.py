"""Values and conditions of one attribute, evaluated on the labels of its cells and never on records.

Conditions have three values, as in SQL: a comparison with a null is unknown. A cell of values outside the domain equals
no label; what else is true of it is unknown. An expression must select whole cells: a cut inside a bin or a month is
refused.

*Terms.* A `node` is a part of the syntax tree of sqlglot. The values of an expression are a list with one for each cell
of the attribute: None for nulls, and OUTSIDE for values outside the domain. A `Truth` has two masks of the cells: where
a condition is true, and where it is known.
"""

from __future__ import annotations

import calendar
import math
import operator
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Decimal
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from dpscale.base.errors import JobError
from dpscale.base.expressions import as_written, spelled
from dpscale.base.numerics import Flags
from dpscale.domain.attribute import OUTSIDE_LABEL, Attribute, cut_at, first_day, is_day, number_of
from dpscale.workload.predicates import LabelledCells
from dpscale.workload.sql.scope import Scope
from dpscale.workload.sql.statements import exp

SIGNS: Mapping[str, str] = {"EQ": "=", "NEQ": "!=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
MIRRORED: Mapping[str, str] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
# bounds of the absolute value of a whole number, such as a length, and of a number
MOST_WHOLE, MOST_NUMBER = 1000, 1e15
FUNCTIONS = (
    "CASE, CAST, substr, left, right, upper, lower, trim, length, ||, year, month, quarter, date_trunc, + - * / // %"
)
KINDS_OF_TEXT = ("TEXT", "VARCHAR", "CHAR", "NVARCHAR")
KINDS_OF_NUMBER = ("INT", "BIGINT", "SMALLINT", "TINYINT", "DOUBLE", "FLOAT", "DECIMAL", "HUGEINT", "UINT")


class Outside:
    """Value of the cell of values outside the domain."""

    def __repr__(self) -> str:
        return OUTSIDE_LABEL


OUTSIDE = Outside()


class Truth(NamedTuple):
    """Where a condition is true, and where it is known, for each cell of an attribute."""

    true: Flags
    known: Flags

    def __invert__(self) -> Truth:
        return Truth(self.known & ~self.true, self.known)

    def __and__(self, other: Truth) -> Truth:  # type: ignore[override]
        false = (self.known & ~self.true) | (other.known & ~other.true)
        true = self.true & other.true
        return Truth(true, true | false)

    def __or__(self, other: Truth) -> Truth:
        return ~(~self & ~other)


class CellValues:
    """Expressions on one attribute, or on none.

    Parameters
    ----------
    scope : Scope
    attribute : Attribute, optional
        None for expressions without a column; they have one value.
    """

    def __init__(self, scope: Scope, attribute: Attribute | None) -> None:
        self.scope, self.attribute = scope, attribute
        self.size = 1 if attribute is None else attribute.size

    def truth(self, node: Any) -> Truth:
        """Return where a condition is true and where it is known.

        `node` is the parsed condition. ~, & and | follow the logic of three values of SQL.

        Raises
        ------
        JobError
            If the condition is of another kind or divides a cell.
        """
        match node:
            case exp.Paren():
                return self.truth(node.this)
            case exp.Not():
                return ~self.truth(node.this)
            case exp.And() | exp.Or():
                word = operator.and_ if isinstance(node, exp.And) else operator.or_
                return reduce(word, map(self.truth, (node.left, node.right)))
            case exp.Between():
                self._check_plain(node)
                low, high = (self._compared(node, sign, node.this, node.args[end]) for sign, end in
                             ((">=", "low"), ("<=", "high")))  # fmt: skip
                return low & high
            case exp.In():
                return self._among(node)
            case exp.Is():
                return self._is(node)
            case exp.Like() | exp.ILike():
                return ~self._like(node) if node.args.get("negate") else self._like(node)
            case exp.StartsWith() | exp.Contains():
                return self._texts(node)
            case exp.Boolean() | exp.Null() | exp.Column():
                return self._flags(node, self.values(node))
            case exp.Cast() if node.to.this.name == "BOOLEAN":
                return self._flags(node, self.values(node))
        if type(node).__name__ in SIGNS:
            return self._compared(node, SIGNS[type(node).__name__], node.this, node.expression)
        self.scope.statement.refuse(node, "a condition: =, <>, <, <=, >, >=, BETWEEN, IN, LIKE, IS NULL, AND, OR, NOT",
                                    "rewrite the condition", "which is no condition that is known")  # fmt: skip

    def values(self, node: Any) -> list[Any]:
        """Return the value of an expression in each cell: None for null, OUTSIDE where it is not known.

        Raises
        ------
        JobError
            If the expression has a function that is not known, or does not fit the labels.
        """
        match node:
            case exp.Paren():
                return self.values(node.this)
            case exp.Column():
                return self._labels(node)
            case exp.Null():
                return [None] * self.size
            case exp.Boolean():
                return [bool(node.this)] * self.size
            case exp.Literal():
                return [_literal(node)] * self.size
            case exp.Case() | exp.If():
                return self._case(node)
            case exp.Coalesce():
                lists = [self.values(value) for value in (node.this, *node.expressions)]
                return [next((value for value in row if value is not None), None) for row in zip(*lists, strict=True)]
            case exp.Cast() | exp.TryCast():
                return self._cast(node)
        if isinstance(node, exp.Predicate | exp.Connector | exp.Not):
            truth = self.truth(node)
            return [bool(t) if k else None for t, k in zip(truth.true, truth.known, strict=True)]
        return self._applied(node)

    def compared(self, node: Any, left: list[Any], right: list[Any]) -> Truth:
        """Return the comparison `node` of two lists of values."""
        return self._by_value(node, SIGNS[type(node).__name__], left, right)

    def number(self, node: Any) -> float:
        """Return the value of an expression without columns that is a number."""
        value = self.values(node)[0]
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MOST_NUMBER:
            self.scope.statement.refuse(node, "a number", "write a number")
        return value

    def whole(self, node: Any) -> int:
        """Return the value of an expression without columns that is a small whole number."""
        value = self.number(node)
        if value != int(value) or abs(value) > MOST_WHOLE:
            self.scope.statement.refuse(node, "a whole number", "write a small number")
        return int(value)

    def _labels(self, node: Any) -> list[Any]:
        """Return the value of every cell, None for nulls and OUTSIDE for other values; refuse cells without one."""
        attribute = self.attribute
        if attribute is None:
            self.scope.statement.refuse(node, "a constant", "write a number or a text")
        if attribute.kind == "date" and attribute.by != "day" and not self._in_date_function(node):
            self.scope.statement.refuse(node, f"date_trunc('{attribute.by}', {attribute.name}) in an expression",
                                        "truncate it", f"whose cells are {attribute.by}s")  # fmt: skip
        if attribute.kind == "bins":
            numbers = [number.name for number in self.scope.domain.numbers if number.column == attribute.column]
            remedy = f"write CASE WHEN {attribute.name} < {attribute.edges[1]:g} THEN …, or in a sum or mean "
            declared = f'a number of the domain, [numbers.NAME] with from = "{attribute.column}"'
            remedy += f"the number {numbers[0]}" if numbers else declared
            self.scope.statement.refuse(node, "comparisons with the edges of its bins", remedy, "whose cells are bins")
        listed = [attribute.labels[cell] for cell in range(attribute.listed)]
        if attribute.kind == "date":
            listed = [first_day(attribute.by, attribute.low + cell) for cell in range(attribute.listed)]
        if attribute.kind == "boolean":
            listed = [bool(label) for label in listed]
        others = [None if cell == attribute.null_cell else OUTSIDE for cell in range(attribute.listed, attribute.size)]
        return listed + others

    @staticmethod
    def _in_date_function(node: Any) -> bool:
        """Return whether a column is the argument of a function of periods."""
        outer = node.parent
        while isinstance(outer, exp.Paren):
            outer = outer.parent
        return isinstance(outer, exp.DateTrunc | exp.TimestampTrunc | exp.Extract) or type(outer).__name__ in UNITS

    def _flags(self, node: Any, values: list[Any]) -> Truth:
        """Return values 0 and 1 as a condition, unknown for null. Raises JobError for other values."""
        if not all(value in (0, 1, None) or value is OUTSIDE for value in values):
            self.scope.statement.refuse(node, "a condition", "write a comparison, such as column = 1")
        known = np.array([value in (0, 1) for value in values])
        return Truth(np.array([value in (1,) for value in values]) & known, known)

    def _is(self, node: Any) -> Truth:
        """Return IS NULL, IS TRUE or IS FALSE, which are known in every cell.

        `everywhere` marks all cells as known; the null cell of an attribute is one of its cells.
        """
        everywhere = np.ones(self.size, np.bool_)
        if isinstance(node.expression, exp.Null):
            if isinstance(node.this, exp.Column) and self.attribute is not None:
                return Truth(np.arange(self.size) == self.attribute.null_cell, everywhere)
            return Truth(np.array([value is None for value in self.values(node.this)]), everywhere)
        if isinstance(node.expression, exp.Boolean):
            inner = self.truth(node.this)
            wanted = inner.true if node.expression.this else (~inner).true
            return Truth(wanted, everywhere)
        self.scope.statement.refuse(node, "IS NULL, IS TRUE or IS FALSE", "write IS NULL or =")

    def _compared(self, node: Any, sign: str, left: Any, right: Any) -> Truth:
        """Return a comparison of two expressions: of the attribute with a constant by labels, others by values.

        Parentheses are removed (`_inner`), and a column on the right is exchanged with the left side by mirroring the
        sign.
        """
        left, right = _inner(left), _inner(right)
        if isinstance(right, exp.Column) and not self.scope.columns(left):
            left, right, sign = right, left, MIRRORED.get(sign, sign)
        if isinstance(left, exp.Column) and self.attribute is not None and not self.scope.columns(right):
            [constant, *_] = CellValues(self.scope, None).values(right)
            if isinstance(right, exp.Literal) and not right.is_string:
                constant = as_written(constant, str(right.this))  # the number may denote a code
            return self._with_label(node, sign, constant)
        return self._by_value(node, sign, self.values(left), self.values(right))

    def _with_label(self, node: Any, sign: str, value: Any) -> Truth:
        """Return the comparison of the attribute itself with a constant, which is unknown for nulls.

        Cells of outside values differ from every label; their order is unknown. The first `listed` cells have labels;
        others are of nulls and outside values. Days are compared as midnight, and 0 or 1 as false or true.

        The truth of a comparison has two masks over the cells: those where it is true, and those where it is known.
        """
        attribute = self.attribute
        assert attribute is not None
        unknown = np.zeros(self.size, np.bool_)
        # a comparison with NULL is unknown everywhere
        if value is None:
            return Truth(unknown, unknown)
        known = np.arange(self.size) < attribute.listed
        if sign in ("=", "!=") and attribute.outside_cell >= 0:
            known = known | (np.arange(self.size) == attribute.outside_cell)
        if attribute.kind == "date":
            sign, value = self._period(node, sign, value)
        if attribute.kind == "boolean" and sign in ("=", "!="):
            value = bool(value) if value in (0, 1) else value
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day)
        try:
            # != is the negation of =, where known
            equal = LabelledCells(attribute, self.scope.statement.name).compared("=" if sign == "!=" else sign, value)
        except JobError as error:
            shown = repr(value) if isinstance(value, str) else spelled(value)
            unlike = f"where {shown} is no label of {attribute.name}"
            got = unlike if sign in ("=", "!=") else "which does not divide its cells"
            self.scope.statement.refuse(node, error.takes, error.remedy, got)
        true = np.asarray(equal) & known
        return Truth(known & ~true if sign == "!=" else true, known)

    def _period(self, node: Any, sign: str, value: Any) -> tuple[str, Any]:
        """Return a comparison with a day as one with the period that begins or ends there.

        `by` is the unit of the periods, such as month. A day cuts between two periods only if it is the first one (for
        < and >=) or the last one (for <= and >).
        """
        attribute = self.attribute
        assert attribute is not None
        day = value
        # a text that is a day is compared as a day
        if is_day(value):
            day = self._read_day(node, value)
        if isinstance(day, datetime):
            if day.time() != datetime.min.time():
                self.scope.statement.refuse(node, f"a {attribute.by}", "compare with a day", "a time of day")
            day = day.date()
        # days need no conversion; other texts name a period
        if not isinstance(day, date) or attribute.by == "day":
            return sign, day
        if (cut := cut_at(attribute.by, sign, day)) != day:
            first = first_day(attribute.by, number_of(attribute.by, day))
            equal = f"write date_trunc('{attribute.by}', {attribute.name}) = DATE '{first}'"
            self.scope.statement.refuse(node, f"a cut between two {attribute.by}s of {attribute.name}",
                                        equal if cut is None else f"write {cut}")  # fmt: skip
        return sign, day

    def _read_day(self, node: Any, text: str) -> date:
        """Return the day of a text such as 2026-01-31. Raises JobError if there is no such day."""
        try:
            return date.fromisoformat(text)
        except ValueError:
            self.scope.statement.refuse(node, "a day of the calendar", "correct the date")

    def _check_plain(self, node: Any) -> None:
        """Raise JobError for BETWEEN SYMMETRIC."""
        if node.args.get("symmetric"):
            self.scope.statement.refuse(node, "BETWEEN low AND high", "order the two ends")

    def _by_value(self, node: Any, sign: str, left: list[Any], right: list[Any]) -> Truth:
        """Return a comparison of two lists of values cell by cell; None of `_pair` stands for unknown."""
        results = [self._pair(node, sign, a, b) for a, b in zip(left, right, strict=True)]
        known = [result is not None for result in results]
        return Truth(np.array([result is True for result in results]), np.array(known))

    def _pair(self, node: Any, sign: str, a: Any, b: Any) -> bool | None:
        """Return the comparison of two values; None if it is unknown. Texts are read as days beside a day.

        OUTSIDE is a value outside the labels: it differs from any other, and its order is unknown.
        """
        if a is None or b is None:
            return None
        if a is OUTSIDE or b is OUTSIDE:
            return sign == "!=" if sign in ("=", "!=") else None
        # a date beside a text: the text is read as a day
        if isinstance(a, date) != isinstance(b, date):
            a, b = (self._read_day(node, value) if isinstance(value, str) else value for value in (a, b))
        # days as midnight, so that dates and times compare
        a, b = (datetime(day.year, day.month, day.day) if type(day) is date else day for day in (a, b))
        if isinstance(a, str) != isinstance(b, str) or isinstance(a, date) != isinstance(b, date):
            self.scope.statement.refuse(node, "values of one type", "write numbers plainly and texts in quotes")
        return bool(COMPARE[sign](a, b))

    def _among(self, node: Any) -> Truth:
        """Return IN with a list of values: whether one of them is equal."""
        listed = node.expressions
        if not listed:
            self.scope.statement.refuse(node, "IN with a list of values", "list the values")
        return reduce(operator.or_, [self._compared(node, "=", node.this, value) for value in listed])

    def _like(self, node: Any) -> Truth:
        """Return LIKE or ILIKE (without regard to case): % stands for any text, and _ for one letter."""
        pattern = CellValues(self.scope, None).values(node.expression)[0]
        if not isinstance(pattern, str):
            self.scope.statement.refuse(node, "LIKE with a text", "write LIKE 'A%'")
        written = "".join({"%": ".*", "_": "."}.get(letter, re.escape(letter)) for letter in pattern)
        compiled = re.compile(written, re.DOTALL | (re.IGNORECASE if isinstance(node, exp.ILike) else 0))
        return self._matching(node, lambda text: compiled.fullmatch(text) is not None)

    def _texts(self, node: Any) -> Truth:
        """Return STARTS_WITH or CONTAINS of a text."""
        part = CellValues(self.scope, None).values(node.expression)[0]
        if not isinstance(part, str):
            self.scope.statement.refuse(node, "a text", "write it in quotes")
        if isinstance(node, exp.StartsWith):
            return self._matching(node, lambda text: text.startswith(part))
        return self._matching(node, lambda text: part in text)

    def _matching(self, node: Any, test: Callable[[str], bool]) -> Truth:
        """Return where a text passes a test, unknown for null and outside values. Raises JobError for numbers."""
        values = self.values(node.this)
        if not all(isinstance(value, str) or value is None or value is OUTSIDE for value in values):
            self.scope.statement.refuse(node, "an attribute of texts", "compare numbers with <, =, > or BETWEEN")
        known = np.array([isinstance(value, str) for value in values])
        return Truth(np.array([isinstance(value, str) and test(value) for value in values]), known)

    def _case(self, node: Any) -> list[Any]:
        """Return the values of CASE or IF: of the first branch whose condition is true, else of ELSE, else null."""
        branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
        operand = node.this if isinstance(node, exp.Case) else None
        default = node.args.get("default") if isinstance(node, exp.Case) else node.args.get("false")
        values = [None] * self.size if default is None else self.values(default)
        for branch in reversed(branches):
            condition = branch.this
            truth = self.truth(condition) if operand is None else self._compared(branch, "=", operand, condition)
            of_branch = self.values(branch.args["true"])
            values = [new if flag else old for flag, new, old in zip(truth.true, of_branch, values, strict=True)]
        return values

    def _cast(self, node: Any) -> list[Any]:
        """Return the values of a cast to a text, number, date or boolean. Raises JobError for other types."""
        kind = node.to.this.name
        convert: Callable[[Any], Any] | None = None
        if kind in KINDS_OF_TEXT:
            convert = _written
        elif kind in KINDS_OF_NUMBER and not node.to.expressions:
            is_whole = kind not in ("DOUBLE", "FLOAT", "DECIMAL")
            convert = lambda value: _number(value, is_whole)  # noqa: E731
        elif kind in ("DATE", "TIMESTAMP", "DATETIME", "TIMESTAMPTZ"):
            convert = _day if kind == "DATE" else _moment
        elif kind == "BOOLEAN":
            convert = _boolean
        if convert is None:
            self.scope.statement.refuse(node, "a cast to a text, number, date or boolean", "leave the cast out")
        return self._mapped(node, convert, [self.values(node.this)])

    def _applied(self, node: Any) -> list[Any]:
        """Return the values of a function of values, one for each cell of the attribute.

        `node` is the function in the syntax tree of sqlglot. The operands are the values of its arguments; `plain`
        reads arguments that must be constants. Nulls and values outside the domain pass through `_mapped`.
        """
        plain, name = CellValues(self.scope, None), type(node).__name__
        if name == "Div" and node.args.get("typed"):  # a dialect whose quotient of integers is an integer
            sides = [self.values(node.left), self.values(node.right)]
            values = [value for side in sides for value in side]
            if all(isinstance(value, int) or value is None or value is OUTSIDE for value in values):
                return self._mapped(node, _whole_quotient, sides)
        if name in ARITHMETIC:
            return self._mapped(node, ARITHMETIC[name], [self.values(node.left), self.values(node.right)])
        if name in OF_ONE:
            # other arguments would change the function's meaning
            if any(value for key, value in node.args.items() if key not in ("this", "unit")):
                self.scope.statement.refuse(node, "the function of one argument", "leave the others out")
            if name in UNITS:
                self._check_period(node, UNITS[name])
            return self._mapped(node, OF_ONE[name], [self.values(node.this)])
        match node:
            case exp.Substring():
                start = plain.whole(node.args["start"])
                length = node.args.get("length")
                # SQL counts letters from 1; without a length the text runs to its end
                end = None if length is None else start - 1 + plain.whole(length)
                if start < 1 or (end is not None and end < start - 1):
                    self.scope.statement.refuse(node, "a first letter from 1 on", "count letters from 1")
                return self._mapped(node, lambda text: _text(text)[start - 1 : end], [self.values(node.this)])
            case exp.Left() | exp.Right():
                count = plain.whole(node.expression)
                # a slice from −0 would be the whole text, so a count of 0 gives "" below
                cut = slice(0, count) if isinstance(node, exp.Left) else slice(-count if count else count, None)
                return self._mapped(node, lambda text: _text(text)[cut] if count else "", [self.values(node.this)])
            case exp.DPipe():
                sides = [self.values(node.left), self.values(node.right)]
                return self._mapped(node, lambda *texts: "".join(map(_written, texts)), sides)
            case exp.Round():
                digits = 0 if node.args.get("decimals") is None else plain.whole(node.args["decimals"])
                return self._mapped(node, lambda value: _rounded(value, digits), [self.values(node.this)])
            case exp.DateTrunc() | exp.TimestampTrunc():
                return self._truncated(node, node.args["unit"].name.lower())
            case exp.Extract():
                return self._part(node, node.name.lower(), node.expression)
        remedy = "use one of these, or add an attribute to the domain file with map or from"
        self.scope.statement.refuse(node, f"an expression of {FUNCTIONS}", remedy)

    def _check_period(self, node: Any, unit: str) -> None:
        """Raise JobError if the cells of a date attribute are no parts of a calendar period."""
        by = self.attribute.by if self.attribute is not None and self.attribute.kind == "date" else "day"
        if unit not in WHOLE_IN[by]:
            self.scope.statement.refuse(node, f"periods that consist of whole {by}s: {', '.join(WHOLE_IN[by])}",
                                        f"use one of these, or state by = {unit!r} in the domain file"
                                        if unit in WHOLE_IN else "use one of these")  # fmt: skip

    def _truncated(self, node: Any, unit: str) -> list[Any]:
        self._check_period(node, unit)
        return self._mapped(node, lambda day: first_day(unit, number_of(unit, _day(day))), [self.values(node.this)])

    def _part(self, node: Any, unit: str, argument: Any) -> list[Any]:
        """Return EXTRACT of a part of a day, such as its month. Raises JobError for parts of the time of day."""
        if unit not in PARTS_OF_DAY:
            self.scope.statement.refuse(node, f"EXTRACT of {', '.join(PARTS_OF_DAY)}", "use one of these")
        self._check_period(node, "day" if unit in ("dow", "isodow") else unit)
        return self._mapped(node, PARTS_OF_DAY[unit], [self.values(argument)])

    def _mapped(self, node: Any, function: Callable[..., Any], lists: list[list[Any]]) -> list[Any]:
        """Return a function of values; null if one is null, and outside if one is outside."""
        results = list[Any]()
        for row in zip(*lists, strict=True):
            if any(value is None for value in row):
                results.append(None)
            elif any(value is OUTSIDE for value in row):
                results.append(OUTSIDE)
            else:
                try:
                    results.append(function(*row))
                except (TypeError, ValueError, ArithmeticError, AttributeError):
                    self.scope.statement.refuse(node, "values of the type that the function takes", "cast them",
                                                f"which does not fit {row[0]!r}")  # fmt: skip
        return results


def _inner(node: Any) -> Any:
    return _inner(node.this) if isinstance(node, exp.Paren) else node


def _literal(node: Any) -> Any:
    """Return a constant as a text, integer or float."""
    if node.is_string:
        return str(node.this)
    text = str(node.this)
    try:
        return int(text) if re.fullmatch(r"\d+", text) else float(text)
    except ValueError:
        return math.nan


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _number(value: Any, is_whole: bool) -> float:
    """Return a value as a number. Raises an error for a day, or for a fraction if only whole numbers are permitted."""
    if isinstance(value, date):
        raise TypeError
    number = float(value)
    if is_whole and number != int(number):
        raise ValueError
    return int(value) if is_whole else number


def _boolean(value: Any) -> bool:
    if not isinstance(value, int | float):
        raise TypeError
    return value != 0


def _day(value: Any) -> date:
    if isinstance(value, datetime):
        return value.date()
    return value if isinstance(value, date) else date.fromisoformat(_text(value)[:10])


def _moment(value: Any) -> datetime:
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)
    return value if isinstance(value, datetime) else datetime.fromisoformat(_text(value))


def _rounded(value: float, digits: int) -> float:
    """Return a number rounded half away from zero, as SQL does."""
    rounded = Decimal(str(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return int(rounded) if digits <= 0 else float(rounded)


def _remainder(a: Any, b: Any) -> Any:
    return int(math.fmod(a, b)) if isinstance(a, int) and isinstance(b, int) else math.fmod(a, b)


def _whole_quotient(a: Any, b: Any) -> int:
    """Return the quotient of two integers without its fraction."""
    if not isinstance(a, int) or not isinstance(b, int):
        raise TypeError
    return int(math.copysign(abs(a) // abs(b), a * b))


def _weekday(day: Any) -> int:
    return _day(day).isoweekday() % 7


WHOLE_IN: Mapping[str, tuple[str, ...]] = {  # periods that consist of whole periods of a length
    "day": ("day", "week", "month", "quarter", "year"),
    "week": ("week",),
    "month": ("month", "quarter", "year"),
    "quarter": ("quarter", "year"),
    "year": ("year",),
}
UNITS: Mapping[str, str] = {
    "Year": "year", "Month": "month", "Quarter": "quarter", "Day": "day", "DayOfMonth": "day", "DayOfWeek": "day",
    "WeekOfYear": "week", "Week": "week", "LastDay": "month",
}  # fmt: skip
ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": operator.truediv, "Mod": _remainder,
    "IntDiv": _whole_quotient,
}  # fmt: skip
OF_ONE: Mapping[str, Callable[[Any], Any]] = {
    "Neg": operator.neg, "Abs": abs, "Floor": math.floor, "Ceil": math.ceil, "Length": lambda text: len(_text(text)),
    "Upper": lambda text: _text(text).upper(), "Lower": lambda text: _text(text).lower(),
    "Trim": lambda text: _text(text).strip(), "Year": lambda day: _day(day).year, "Month": lambda day: _day(day).month,
    "Quarter": lambda day: (_day(day).month + 2) // 3, "Day": lambda day: _day(day).day,
    "DayOfMonth": lambda day: _day(day).day, "DayOfWeek": _weekday,
    "WeekOfYear": lambda day: _day(day).isocalendar()[1], "Week": lambda day: _day(day).isocalendar()[1],
    "TsOrDsToDate": lambda day: _day(day),
    "LastDay": lambda day: _day(day).replace(day=calendar.monthrange(_day(day).year, _day(day).month)[1]),
}  # fmt: skip
PARTS_OF_DAY: Mapping[str, Callable[[Any], int]] = {
    "year": lambda day: _day(day).year, "month": lambda day: _day(day).month,
    "quarter": lambda day: (_day(day).month + 2) // 3, "day": lambda day: _day(day).day, "dow": _weekday,
    "isodow": lambda day: _day(day).isoweekday(), "week": lambda day: _day(day).isocalendar()[1],
}  # fmt: skip
