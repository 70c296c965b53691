"""Aggregates of a statement: linear queries, ratios of two, variances and quantiles.

COUNT and SUM are linear. AVG is a ratio of a sum and a count, and so are quotients of sums and counts. A CASE inside an
aggregate divides the records: SUM(CASE WHEN c THEN x ELSE 0 END) is the sum over the records with c. With the centre c
of the values of a column and half of their range h, means and variances are those of (v − c)/h, whose sums t, numbers
of records n and sums of squares q are estimated:

    mean = c + h t/n,    variance of a sample = h² (q − t²/n)/(n − 1).

`scope` finds the attributes of columns, `conditions` reads conditions as sets of cells, and `where` is the condition of
the statement. A *piece* is a factor times a column, or a constant, on the records of a condition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpscale.base.numerics import Floats
from dpscale.domain.number import Number
from dpscale.workload.sql.cells import KINDS_OF_NUMBER, OUTSIDE, CellValues
from dpscale.workload.sql.conditions import ALWAYS, CellCondition, Conditions
from dpscale.workload.sql.scope import Scope
from dpscale.workload.sql.statements import exp
from dpscale.workload.sums import SUM, centred_rows, sum_queries

SAMPLE, POPULATION = ("Variance", "Stddev", "StddevSamp"), ("VariancePop", "StddevPop")
FORMS = "COUNT, SUM, AVG, VAR_SAMP, VAR_POP, STDDEV_SAMP, STDDEV_POP, MEDIAN or QUANTILE_CONT"
FRACTIONS = ("DOUBLE", "FLOAT", "DECIMAL")
# digits of ROUND, before or after the point; values of an attribute with quantiles
MOST_DIGITS, MOST_RANKED = 15, 1 << 12
SHARE_OF_COUNT = 1 / 3  # weight of the denominator of a ratio, see `workload.sums`


@dataclass(frozen=True, eq=False)
class Term:
    """Sum over the records that satisfy a condition: of 1, or of an entry for the cell of an attribute or number.

    Attributes
    ----------
    condition : CellCondition
    axis : str
        Attribute or number of the entries; empty for a number of records.
    row : ndarray, shape (cells,)
        Entries.
    text : str
        Name of the entries.
    unit : float
        Size of an answer that compares with one record.
    """

    condition: CellCondition
    axis: str = ""
    row: Floats = field(default_factory=lambda: np.ones(0))
    text: str = ""
    unit: float = 1.0

    @property
    def key(self) -> tuple[object, ...]:
        """Value that is equal for equal queries."""
        return self.axis, self.row.tobytes(), self.condition.key


@dataclass(frozen=True, eq=False)
class TermSum:
    """Constant plus a combination of terms."""

    terms: tuple[tuple[float, Term], ...]
    constant: float = 0.0

    def times(self, factor: float) -> TermSum:
        """Return the combination times a number."""
        terms = tuple((factor * weight, term) for weight, term in self.terms) if factor else ()
        return TermSum(terms, factor * self.constant)

    def plus(self, other: TermSum) -> TermSum:
        """Return the sum of two combinations."""
        return TermSum(self.terms + other.terms, self.constant + other.constant)


@dataclass(frozen=True, eq=False)
class Quotient:
    """shift + scale · above/below.

    Attributes
    ----------
    above, below : TermSum
    scale, shift : float
    ends : tuple of float
        Range of the ratio above/below.
    """

    above: TermSum
    below: TermSum
    scale: float = 1.0
    shift: float = 0.0
    ends: tuple[float, float] = (-math.inf, math.inf)


@dataclass(frozen=True, eq=False)
class RatioSum:
    """Sum of ratios, each times a factor."""

    ratios: tuple[Quotient, ...]

    def times(self, factor: float) -> RatioSum:
        """Return the sum times a number."""
        scaled = [replace(ratio, scale=factor * ratio.scale, shift=factor * ratio.shift) for ratio in self.ratios]
        return RatioSum(tuple(scaled))


@dataclass(frozen=True, eq=False)
class Spread:
    """Variance of a column, or its root: scale² (q − t²/n)/(n − 1), or /n of the records as a population."""

    squares: TermSum
    sums: TermSum
    counts: TermSum
    scale: float
    sample: bool
    root: bool


@dataclass(frozen=True, eq=False)
class Rank:
    """Quantile of an attribute over the records that satisfy a condition."""

    attribute: str
    q: float
    condition: CellCondition


@dataclass(frozen=True, eq=False)
class Units:
    """Number of distinct privacy units."""


@dataclass(frozen=True, eq=False)
class Rounded:
    """Value rounded to a number of digits."""

    value: Value
    digits: int


Value = TermSum | Quotient | RatioSum | Spread | Rank | Units | Rounded


@dataclass(frozen=True, eq=False)
class Piece:
    """Part of an argument of an aggregate: on the records with a condition it is factor · column, or a constant."""

    condition: CellCondition
    factor: float
    column: str = ""


class Aggregates:
    """Reader of the expressions of a statement whose records satisfy a condition.

    Parameters
    ----------
    scope : Scope
    conditions : Conditions
    where : CellCondition
    """

    def __init__(self, scope: Scope, conditions: Conditions, where: CellCondition) -> None:
        self.scope, self.conditions, self.where = scope, conditions, where
        self.refuse = scope.statement.refuse

    def value(self, node: Any) -> Value:
        """Return an expression of aggregates and numbers.

        The cases of SQL functions and operators come first; then a number without columns, which is a constant.

        Raises
        ------
        JobError
            For an expression whose interval is not known.
        """
        match node:
            case exp.Paren():
                return self.value(node.this)
            case exp.Cast() | exp.TryCast():
                return self._cast(node)
            case exp.Filter():
                return self._of_records(node.this, self.conditions.both(node, self.where, self._filter(node)))
            case exp.AggFunc() | exp.CountIf() | exp.WithinGroup():
                return self._of_records(node, self.where)
            case exp.Neg():
                return self._scaled(node, self.value(node.this), -1.0)
            case exp.Round():
                digits = 0.0 if node.args.get("decimals") is None else self._number(node.args["decimals"])
                if digits != int(digits) or abs(digits) > MOST_DIGITS or node.args.get("truncate"):
                    self.refuse(node, f"ROUND to at most {MOST_DIGITS} digits", "write ROUND(x, 2)")
                return Rounded(self.value(node.this), int(digits))
            case exp.Add() | exp.Sub():
                return self._sum(node)
            case exp.Mul() | exp.Div():
                return self._product(node)
        if not self.scope.columns(node) and node.find(exp.AggFunc) is None:
            return TermSum((), self._number(node))
        # without a function it is a column outside GROUP BY; any other expression has no known interval
        if node.find(exp.AggFunc, exp.WithinGroup) is None and node.find(exp.Func) is None:
            self.refuse(
                node, "an expression of GROUP BY, or an aggregate of it", f"write GROUP BY {node.sql()}, or AVG(…)"
            )
        self.refuse(node, f"sums, differences and ratios of {FORMS}", "ask for its parts, and compute it from them")

    def _cast(self, node: Any) -> Value:
        """Return a value that is cast to a type of fractions."""
        if node.to.this.name not in FRACTIONS or node.to.expressions:
            self.refuse(node, "a cast to DOUBLE", "write ROUND(…), or leave the cast out")
        return self.value(node.this)

    def _filter(self, node: Any) -> CellCondition:
        return self.conditions.read(node.expression.this)

    def _number(self, node: Any) -> float:
        return CellValues(self.scope, None).number(node)

    def _sum(self, node: Any) -> Value:
        """Return a sum or difference: of counts and sums, of ratios, or of a ratio and a number.

        The order: two combinations of terms add their terms; a ratio and a number shift the ratio; otherwise ratios add
        as a `RatioSum`, a number going to the shift of the first ratio.

        A Quotient is scale · a/b + shift, and a TermSum a combination of linear queries plus a constant.
        """
        left, right = self.value(node.left), self.value(node.right)
        sign = -1.0 if isinstance(node, exp.Sub) else 1.0
        if isinstance(left, TermSum) and isinstance(right, TermSum):
            return left.plus(right.times(sign))
        if isinstance(left, Quotient) and isinstance(right, TermSum) and not right.terms:  # a ratio and a number
            return replace(left, shift=left.shift + sign * right.constant)
        if isinstance(right, Quotient) and isinstance(left, TermSum) and not left.terms:
            return replace(right, scale=sign * right.scale, shift=left.constant + sign * right.shift)

        sides = [left, right if sign > 0 else self._scaled(node, right, sign)]
        kinds = [isinstance(side, Quotient | RatioSum) for side in sides]
        if all(kinds):
            return RatioSum(tuple(part for side in sides for part in _ratios(side)))
        if any(kinds) and all(kind or is_constant(side) for kind, side in zip(kinds, sides, strict=True)):
            ratios = [part for side in sides for part in _ratios(side)]
            added = sum(side.constant for side in sides if isinstance(side, TermSum))
            return RatioSum((replace(ratios[0], shift=ratios[0].shift + added), *ratios[1:]))
        self.refuse(node, "sums and differences of counts and sums, or of ratios and numbers",
                    "ask for the two values, and subtract them")  # fmt: skip

    def _product(self, node: Any) -> Value:
        """Return a product with a number, or the ratio of two counts or sums.

        Parentheses and NULLIF(x, 0) around the right side are removed. `terms` are the sums and counts of a value, so a
        TermSum without terms is a number; `ends` is the range of the ratio.
        """
        self._check_division(node)
        right = node.right
        while isinstance(right, exp.Paren):
            right = right.this
        if isinstance(right, exp.Nullif) and self._is_zero(right.expression):  # such a ratio is missing in any case
            right = right.this
        first, second = self.value(node.left), self.value(right)
        # one side must be a number
        if isinstance(node, exp.Mul):
            constant, value = (first, second) if is_constant(first) else (second, first)
            if not isinstance(constant, TermSum) or constant.terms:
                self.refuse(node, "a product with a number", "multiply by a number")
            return self._scaled(node, value, constant.constant)

        if isinstance(second, TermSum) and not second.terms:  # division by a number
            if not second.constant:
                self.refuse(node.right, "a number other than 0", "divide by another number")
            return self._scaled(node, first, 1 / second.constant)
        # a ratio over a sum has no linear numerator
        if isinstance(first, Quotient) and not first.shift and isinstance(second, TermSum):
            self.refuse(node, "a ratio of two sums or counts", "divide by one number of records")
        if not isinstance(first, TermSum) or not isinstance(second, TermSum):
            self.refuse(node, "a ratio of two sums or counts", "ask for the parts, and divide them")
        return Quotient(first, second, ends=_ends(first, second))

    def _is_zero(self, node: Any) -> bool:
        return isinstance(node, exp.Literal) and not node.is_string and self._number(node) == 0

    def _check_division(self, node: Any) -> None:
        """Raise JobError for a quotient of integers in a dialect that drops its fraction.

        `typed` is the parser's mark of a dialect whose division of integers drops the fraction. A cast to a type with a
        fraction or a number with a decimal point anywhere in the quotient shows that it is not one of integers.
        """
        has_cast = any(cast.to.this.name in FRACTIONS for cast in node.find_all(exp.Cast))
        numbers = [literal for literal in node.find_all(exp.Literal) if not literal.is_string]
        has_fraction = has_cast or any("." in str(literal.this) for literal in numbers)
        if isinstance(node, exp.Div) and node.args.get("typed") and not has_fraction:
            self.refuse(node, f"a quotient of fractions in {self.scope.statement.dialect}", "multiply by 1.0")

    def _scaled(self, node: Any, value: Value, factor: float) -> Value:
        """Return a value times a number. Raises JobError for a value that has no multiples."""
        if isinstance(value, TermSum):
            return value.times(factor)
        if isinstance(value, Quotient):
            return replace(value, scale=factor * value.scale, shift=factor * value.shift)
        if isinstance(value, RatioSum):
            return value.times(factor)
        self.refuse(node, "a product of a number with a count, sum or ratio", "multiply afterwards")

    def _of_records(self, node: Any, where: CellCondition) -> Value:
        """Return an aggregate over the records that satisfy a condition.

        `where` are the records that WHERE selects. A quantile is a rank; for a descending order, that of share q is the
        rank 1 − q.
        """
        match node:
            case exp.Count():
                return self._count(node, where)
            case exp.CountIf():
                return self._counted(self.conditions.both(node, where, self.conditions.read(node.this)))
            case exp.Sum() if not isinstance(node.this, exp.Distinct):
                return self._summed(node, self._pieces(node.this, where))
            case exp.Avg() if not isinstance(node.this, exp.Distinct):
                return self._mean(node, self._pieces(node.this, where))
            case exp.Median():
                return self._rank(node, 0.5, where)
            case exp.WithinGroup() if isinstance(node.this, exp.PercentileCont):
                (order,) = node.expression.expressions
                share = self._number(node.this.this)
                return self._rank(node, 1 - share if order.args.get("desc") else share, where, order.this)
            case exp.PercentileCont() | exp.Quantile() | exp.ApproxQuantile():
                q = node.expression if node.expression is not None else node.args.get("quantile")
                if q is None or self.scope.columns(q):
                    self.refuse(node, "QUANTILE_CONT(x, q) with a number q", "write QUANTILE_CONT(x, 0.9)")
                return self._rank(node, self._number(q), where)
        if type(node).__name__ in SAMPLE + POPULATION:
            return self._spread(node, self._pieces(node.this, where))
        if isinstance(node, exp.Min | exp.Max):
            self.refuse(node, "a statistic of many records", "write QUANTILE_CONT(…, 0.99), or 0.01",
                        "the value of a single record")  # fmt: skip
        self.refuse(node, FORMS, "use one of these, without DISTINCT")

    def _count(self, node: Any, where: CellCondition) -> Value:
        """Return COUNT(*), or COUNT of an argument: of the records on which it is not null, or of distinct units.

        DISTINCT is allowed for the columns of the privacy unit only.
        """
        if isinstance(node.this, exp.Star) or node.this is None:
            return self._counted(where)
        if node.expressions:
            self.refuse(node, "COUNT of one argument", "count one column")
        if isinstance(node.this, exp.Distinct):
            return self._units(node, where)
        pieces = self._pieces(node.this, where)
        return _total([self._records(piece) for piece in pieces])

    def _units(self, node: Any, where: CellCondition) -> Units:
        """Return COUNT(DISTINCT …) of the columns of the privacy unit.

        Raises JobError for other columns or a filter.
        """
        named = node.this.expressions
        unit = self.scope.unit
        columns = tuple(column.name for column in named if isinstance(column, exp.Column))
        if len(columns) != len(named) or not unit or set(columns) != set(unit):
            self.refuse(node, f"COUNT(DISTINCT {', '.join(unit) or 'privacy unit'})", "count the privacy unit of the"
                        " job, or leave DISTINCT out", "" if unit else "but a row is protected")  # fmt: skip
        if where.factors:
            self.refuse(node, "units of all records", "leave WHERE and FILTER out; group by the attribute instead")
        return Units()

    def _pieces(self, node: Any, where: CellCondition) -> list[Piece]:
        """Return the parts of an argument: a number, or a multiple of a column, on the records of a condition.

        On other records the argument is null. `where` are the records that are selected. A cast to a fraction changes
        nothing, a condition is 1 or 0, and an expression without columns is a number; any other one is evaluated on the
        cells of its attribute.
        """
        match node:
            case exp.Paren():
                return self._pieces(node.this, where)
            case exp.Cast() | exp.TryCast() if node.to.this.name in FRACTIONS and not node.to.expressions:
                return self._pieces(node.this, where)
            case exp.Cast() | exp.TryCast() if self._is_flag(node.this) and node.to.this.name in KINDS_OF_NUMBER:
                return self._pieces(node.this, where)
            case exp.Case() | exp.If():
                return list(self._branches(node, where))
            case exp.Null():
                return []
            case exp.Neg():
                return [replace(piece, factor=-piece.factor) for piece in self._pieces(node.this, where)]
            case exp.Mul() | exp.Div():
                return self._multiplied(node, where)
            case exp.Column():
                name = self.scope.name_of(node)
                known = ALWAYS if name in self.scope.domain.number_names else self.conditions.known(name)
                return [Piece(self.conditions.both(node, where, known), 1.0, name)]
        if isinstance(node, exp.Predicate | exp.Connector | exp.Not | exp.Boolean):
            true, false = (self.conditions.both(node, where, self.conditions.read(node, negated))
                           for negated in (False, True))  # fmt: skip
            return [Piece(true, 1.0), Piece(false, 0.0)]
        if not self.scope.columns(node):
            return [Piece(where, self._number(node))]
        return self._by_cells(node, where)

    def _is_flag(self, node: Any) -> bool:
        """Return whether an expression is a condition."""
        while isinstance(node, exp.Paren):
            node = node.this
        return isinstance(node, exp.Predicate | exp.Connector | exp.Not | exp.Boolean)

    def _by_cells(self, node: Any, where: CellCondition) -> list[Piece]:
        """Return an expression on one attribute as a piece for each of its values.

        OUTSIDE stands for the cell of values outside the domain, whose value is not known; null values have no piece.
        """
        names = self.scope.names(node)
        if len(names) != 1:
            self.refuse(node, "an argument with one column: x, 2 * x, or CASE WHEN … THEN x ELSE 0 END",
                        "sum the columns apart, and add the sums")  # fmt: skip
        values = CellValues(self.scope, self.scope.domain[names[0]]).values(node)
        if any(value is OUTSIDE for value in values):
            self.refuse(node, "an attribute without a cell of outside values", "state outside = 'clip'")
        pieces = []
        for value in dict.fromkeys(of_cell for of_cell in values if of_cell is not None):
            if not isinstance(value, int | float):
                self.refuse(node, "a numeric argument", "count it: COUNT(*) with GROUP BY or FILTER")
            cells = CellCondition({names: np.array([of_cell == value for of_cell in values])})
            pieces.append(Piece(self.conditions.both(node, where, cells), float(value)))
        return pieces

    def _multiplied(self, node: Any, where: CellCondition) -> list[Piece]:
        """Return the parts of a product with a number, a quotient by one, or a product of columns of one attribute.

        `constant` is the side that is a number; two columns of one attribute are a function of its cells.
        """
        self._check_division(node)
        constant, other = node.right, node.left
        if isinstance(node, exp.Mul) and self.scope.columns(constant):
            constant, other = other, constant
        named = {self.scope.name_of(column) for column in self.scope.columns(node)}
        if self.scope.columns(constant) and len(named) == 1 and not named & self.scope.domain.number_names:
            return self._by_cells(node, where)
        if self.scope.columns(constant):
            self.refuse(node, "a product with a number", 'ask for family = "moments" of the two numbers')
        factor = self._number(constant)
        if isinstance(node, exp.Div) and not factor:
            self.refuse(constant, "a number other than 0", "divide by another number")
        factor = 1 / factor if isinstance(node, exp.Div) else factor
        return [replace(piece, factor=factor * piece.factor) for piece in self._pieces(other, where)]

    def _branches(self, node: Any, where: CellCondition) -> Iterator[Piece]:
        """Yield the parts of CASE or IF: of each branch, on the records of its condition and of none before it.

        `remaining` are the records for which no earlier condition was true. They are computed for the next branch and
        for an ELSE with a value: a sum has no part of ELSE 0.
        """
        branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
        default = node.args.get("default") if isinstance(node, exp.Case) else node.args.get("false")
        operand = node.this if isinstance(node, exp.Case) else None
        if default is not None and self._is_idle(node, default):
            default = None
        remaining = where
        for place, branch in enumerate(branches, start=1):
            test = branch.this if operand is None else exp.EQ(this=operand.copy(), expression=branch.this.copy())
            yield from self._pieces(
                branch.args["true"], self.conditions.both(node, remaining, self.conditions.read(test))
            )
            if place < len(branches) or default is not None:
                remaining = self.conditions.both(node, remaining, self._not_true(node, test))
        if default is not None:
            yield from self._pieces(default, remaining)

    def _is_idle(self, node: Any, default: Any) -> bool:
        """Return whether ELSE adds nothing to an aggregate of CASE: a null, or 0 in the argument of SUM."""
        while isinstance(default, exp.Paren):
            default = default.this
        outer = node.parent
        while isinstance(outer, exp.Paren | exp.Neg | exp.Mul | exp.Div | exp.Case | exp.If):
            outer = outer.parent
        return isinstance(default, exp.Null) or (isinstance(outer, exp.Sum) and self._is_zero(default))

    def _not_true(self, node: Any, test: Any) -> CellCondition:
        """Return the records for which a condition is false or unknown.

        One factor is negated cell by cell, including unknown cells. Several factors have no such complement as a
        product, so they are refused if a cell may be unknown.
        """
        true, false = self.conditions.read(test), self.conditions.read(test, negated=True)
        if not true.factors:
            return self.conditions.nothing()
        if len(true.factors) == 1:
            ((names, flags),) = true.factors.items()
            return CellCondition({names: ~flags}) if not flags.all() else self.conditions.nothing()
        axes = [self.scope.domain[name] for name in true.names]
        if any(axis.null_cell >= 0 or axis.outside_cell >= 0 for axis in axes):  # for which the condition is unknown
            self.refuse(node, "a CASE on one attribute, or on attributes without cells of nulls and outside values",
                        "use one attribute in WHEN")  # fmt: skip
        return false

    def _term(self, term: Term) -> TermSum:
        """Return a term as a combination, which is empty if no record satisfies its condition."""
        is_empty = self.conditions.is_never(term.condition) or (term.axis and not term.row.any())
        return TermSum(() if is_empty else ((1.0, term),))

    def _counted(self, condition: CellCondition) -> TermSum:
        return self._term(Term(condition))

    def _records(self, piece: Piece) -> TermSum:
        """Return the number of records of a piece."""
        number = self._number_of(piece)
        if number is None or number.null_cell < 0:
            return self._counted(piece.condition)
        row = (np.arange(number.size) != number.null_cell).astype(np.float64)
        return self._term(
            Term(condition=piece.condition, axis=number.name, row=row, text=f"records with {number.name}")
        )

    def _number_of(self, piece: Piece) -> Number | None:
        axis = self.scope.domain[piece.column] if piece.column else None
        return axis if isinstance(axis, Number) else None

    def _summed(self, node: Any, pieces: Sequence[Piece]) -> TermSum:
        return _total([self._sum_of(node, piece) for piece in pieces])

    def _sum_of(self, node: Any, piece: Piece) -> TermSum:
        """Return the sum of a piece over its records: a multiple of a count, or a query on the cells of its column.

        Its unit is that of a number, or half the range of the values of an attribute's cells.
        """
        if not piece.column:
            return self._counted(piece.condition).times(piece.factor)
        number = self._number_of(piece)
        if number is not None:
            queries = sum_queries(number)
            row, unit = queries.array[0], queries.unit
        else:
            row = self._cell_values(node, piece.column)
            unit = max(float(np.ptp(row[~np.isnan(row)])) / 2, 1e-300)  # not 0
        row = np.where(np.isnan(row), 0.0, row)
        return self._term(
            Term(condition=piece.condition, axis=piece.column, row=row, text=f"{SUM} of {piece.column}", unit=unit)
        ).times(piece.factor)

    def _cell_values(self, node: Any, name: str) -> Floats:
        """Return the numbers that the cells of an attribute stand for; nan for nulls and outside values."""
        values = CellValues(self.scope, self.scope.domain[name]).values(exp.column(name))
        if not all(isinstance(value, int | float) or value is None or value is OUTSIDE for value in values):
            self.refuse(node, "a column of numbers", f"count it, or declare [numbers.{name}] in the domain file")
        if any(value is OUTSIDE for value in values):
            self.refuse(node, "an attribute without a cell of outside values", f"declare [numbers.{name}] in the domain"
                        " file, or outside = 'clip'")  # fmt: skip
        return np.array([np.nan if value is None else float(value) for value in values])

    def _centred(self, node: Any, pieces: Sequence[Piece]) -> tuple[dict[str, TermSum], float, float]:
        """Return t, n and q of an argument with one column or constants, its centre and half its range.

        With t = (x − centre) / half, these are the sums of t, of 1 and of t² over the records with a value.

        Constants have t and q directly from counts. A number has its `centred_rows`. The cells of an attribute have
        values, centred on the middle of their range; cells without a value have t = n = q = 0.
        """
        pieces = self._of_one_kind(node, pieces)
        columns = {piece.column for piece in pieces}
        if not pieces or len(columns) > 1 or (columns != {""} and len({piece.factor for piece in pieces}) > 1):
            self.refuse(node, "an argument with one column, or with constants", "average one column")
        (column,) = columns
        # constants: each piece is a condition and a value
        if not column:
            values = np.array([piece.factor for piece in pieces])
            low, high = float(values.min()), float(values.max())
            # 1e-300 avoids a division by 0 if all values are equal
            centre, half = (low + high) / 2, max((high - low) / 2, 1e-300)
            centred = (values - centre) / half
            counts = [self._counted(piece.condition) for piece in pieces]
            pairs = list(zip(counts, centred.tolist(), strict=True))
            figures = {"t": _total([count.times(value) for count, value in pairs]), "n": _total(counts),
                       "q": _total([count.times(value * value) for count, value in pairs])}  # fmt: skip
            return figures, centre, half

        # a column times a common factor, which scales centre and half range at the end
        number, factor = self._number_of(pieces[0]), pieces[0].factor
        if number is not None:
            low, high = number.cell_ends
            rows, centre, half = centred_rows(number), (low + high) / 2, number.half_range
        else:
            values = self._cell_values(node, column)
            low, high = float(np.nanmin(values)), float(np.nanmax(values))
            centre, half = (low + high) / 2, max((high - low) / 2, 1e-300)
            centred, known = np.nan_to_num((values - centre) / half), (~np.isnan(values)).astype(np.float64)
            rows = {"t": centred * known, "n": known, "q": centred**2 * known}
        figures = {
            name: _total(
                [
                    self._term(Term(condition=piece.condition, axis=column, row=row, text=f"{name} of {column}"))
                    for piece in pieces
                ]
            )
            for name, row in rows.items()
        }
        return figures, factor * centre, factor * half

    def _of_one_kind(self, node: Any, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Return pieces that are all of one column, or all constants: the cells of an attribute are constants.

        A piece is a factor times a column, or a constant without one, under a condition.
        """
        columns = {(piece.column, piece.factor if piece.column else 0.0) for piece in pieces}
        if len(columns) < 2:
            return pieces
        constants = list[Piece]()
        for piece in pieces:
            if self._number_of(piece) is not None:
                self.refuse(node, "an argument with one column, or with constants", "leave ELSE out")
            if not piece.column:
                constants.append(piece)
                continue
            values = self._cell_values(node, piece.column)
            for value in np.unique(values[~np.isnan(values)]).tolist():
                condition = self.conditions.both(
                    node, piece.condition, CellCondition({(piece.column,): values == value})
                )
                constants.append(Piece(condition, piece.factor * value))
        return constants

    def _mean(self, node: Any, pieces: Sequence[Piece]) -> Value:
        """Return the mean of an argument, a ratio: of a flag (0 or 1) the share of records, else of t and n.

        A flag has pieces of the constants 0 and 1 alone: its mean is the number of ones over all records, which lies in
        0 … 1. Several columns have the ratio of sum and count. With one column, t/n is scaled by half the range and
        shifted by the centre.
        """
        if {piece.column for piece in pieces} == {""} and {piece.factor for piece in pieces} <= {0.0, 1.0}:
            ones = _total([self._counted(piece.condition) for piece in pieces if piece.factor])
            return Quotient(ones, _whole([self._counted(piece.condition) for piece in pieces], pieces),
                            ends=(0.0, 1.0))  # fmt: skip
        if len({piece.column for piece in pieces}) > 1:
            return Quotient(self._summed(node, pieces), _total([self._records(piece) for piece in pieces]))
        figures, centre, half = self._centred(node, pieces)
        number = self._number_of(pieces[0]) if pieces[0].column else None
        limit = 1.0 if number is None else float(number.rows_per_unit)
        return Quotient(above=figures["t"], below=figures["n"], scale=half, shift=centre, ends=(-limit, limit))

    def _spread(self, node: Any, pieces: Sequence[Piece]) -> Value:
        """Return a variance or standard deviation. Raises JobError if the squares of the number are not measured."""
        figures, _, half = self._centred(node, pieces)
        if "q" not in figures:
            self.refuse(node, "a number whose squares are measured", "ask for STDDEV_SAMP in the workload of the job")
        kind = type(node).__name__
        return Spread(
            squares=figures["q"],
            sums=figures["t"],
            counts=figures["n"],
            scale=half,
            sample=kind in SAMPLE,
            root=kind.startswith("Stddev"),
        )

    def _rank(self, node: Any, q: float, where: CellCondition, argument: Any = None) -> Rank:
        """Return the q-quantile of a column. Raises JobError for anything but an ordered attribute of few values.

        `argument` is the column in WITHIN GROUP, otherwise the function has it.
        """
        column = node.this if argument is None else argument
        if not 0 <= q <= 1:
            self.refuse(node, "a quantile between 0 and 1", "0.5 is the median")
        if not isinstance(column, exp.Column):
            self.refuse(node, "a quantile of one column", "name the column alone")
        name = self.scope.name_of(column)
        attribute = self.scope.domain[name]
        if isinstance(attribute, Number) or attribute.kind not in ("integer", "coded", "bins"):
            self.refuse(node, "a quantile of an attribute of kind integer, coded or bins",
                        f"add an attribute of kind bins with from = {name!r} to the domain file")  # fmt: skip
        if attribute.listed > MOST_RANKED:
            self.refuse(node, f"a quantile of at most {MOST_RANKED:,} values", "use bins")
        return Rank(name, q, where)


def is_constant(value: Value) -> bool:
    """Return whether a value has no query."""
    return isinstance(value, TermSum) and not value.terms


def _ratios(value: Value) -> tuple[Quotient, ...]:
    return value.ratios if isinstance(value, RatioSum) else (value,) if isinstance(value, Quotient) else ()


def _total(parts: Sequence[TermSum]) -> TermSum:
    """Return the sum of sums of terms."""
    total = TermSum(())
    for part in parts:
        total = total.plus(part)
    return total


def _whole(parts: Sequence[TermSum], pieces: Sequence[Piece]) -> TermSum:
    """Return the number of records of disjoint pieces, whose numbers are `parts`.

    Two pieces that differ in one factor, such as a value and all others, are a single term, the union.
    """
    if len(pieces) == 2:
        joined = _joined_factors(pieces[0].condition, pieces[1].condition)
        if joined is not None:
            return TermSum(((1.0, Term(joined)),))
    return _total(parts)


def _joined_factors(first: CellCondition, second: CellCondition) -> CellCondition | None:
    """Return the union of two disjoint conditions that differ in one factor; None if they differ in more."""
    if first.factors.keys() != second.factors.keys():
        return None
    differing = [names for names, flags in first.factors.items() if not np.array_equal(flags, second.factors[names])]
    if len(differing) != 1:
        return None
    [names] = differing
    union = first.factors[names] | second.factors[names]
    equal = {others: flags for others, flags in first.factors.items() if others != names}
    return CellCondition(equal if union.all() else {**equal, names: union})


def _ends(above: TermSum, below: TermSum) -> tuple[float, float]:
    """Return the range of a ratio: 0 to 1 for the counts of a part of records and of all of them, or a multiple.

    A ratio has a range if both sides are one count each, and the records of the upper one are among those of the lower.
    """
    counts = []  # factor and term of each multiple of a count
    for value in (above, below):
        if len(value.terms) == 1 and not value.constant and not value.terms[0][1].axis:
            counts.append(value.terms[0])
    if len(counts) < 2:
        return -math.inf, math.inf
    (factor, part), (divisor, total) = counts
    if not part.condition.within(total.condition):
        return -math.inf, math.inf
    return min(0.0, factor / divisor), max(0.0, factor / divisor)
