"""Text of a rule between attributes, read into clauses.

    rule      = "if" either "then" either | either
    condition = sum { sign sum } | membership
    sum       = ["-"] term { ("+" | "-") term }
    term      = attribute | number ["*" attribute] | 'text' | date | true | false
    attribute = name | name "." name
    sign      = "=" | "!=" | "<" | "<=" | ">" | ">="

`either` and `membership` are those of `base.expressions.ConditionReader`. Rules have the logic of SQL's CHECK: a
comparison with a null is neither true nor false, and a rule is broken where it is false. Values outside the domain are
unknown like nulls, except that they are equal to no value of the domain.

A rule is brought into conjunctive form. A clause is a set of cells of some attributes, and linear comparisons of
values, of which at least one holds:

    x_1 in S_1  or  x_2 in S_2  or … or  Σ_j c_j v_j + d ≤ 0  or …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Self

import numpy as np

from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import DomainError
from dpscale.base.expressions import SIGNS, ConditionReader, Literal, spelled
from dpscale.base.numerics import Flags, Floats
from dpscale.domain.attribute import EPOCH, Attribute, cell_of_literal, first_day, is_day, read_period
from dpscale.domain.number import Number
from dpscale.domain.schema_values import DAY

FIELD = "rule"
WORDS = ("and", "or", "not", "in", "between", "is", "null", "if", "then")
SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
MOST_CLAUSES = 4096  # of a rule
Find = Callable[[str], Attribute]


@dataclass(frozen=True, eq=False)
class ValueRanges:
    """Values in the cells of an attribute.

    Attributes
    ----------
    low, high : ndarray, shape (cells,)
        Ends, which belong to the range.
    unknown : ndarray of bool, shape (cells,)
        Cells of nulls and of values outside the domain.
    step : float
        Distance of values; 0 for real numbers.
    """

    low: Floats
    high: Floats
    unknown: Flags
    step: float

    @property
    def are_values(self) -> bool:
        """Whether every cell is a single value."""
        return bool((self.low == self.high).all())

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest value."""
        known = ~self.unknown
        return float(self.low[known].min()), float(self.high[known].max())


def value_ranges(attribute: Attribute, step: float | None = None) -> ValueRanges:
    """Return the values in the cells of an attribute, dates as days since 1970, and 0 for texts.

    `low` and `high` are the ends of the values in each cell; `unknown` marks cells of outside values and nulls.

    Parameters
    ----------
    attribute : Attribute
        A number has a single cell, its range.
    step : float, optional
        Distance of the numbers in bins, as rows have them; by default any numbers, and the last bin is closed.
    """
    if isinstance(attribute, Number):
        ends = np.array([attribute.ends])
        return ValueRanges(low=ends[:, 0], high=ends[:, 1], unknown=np.zeros(1, np.bool_), step=float(attribute.unit))

    if attribute.kind == "bins":
        edges = np.asarray(attribute.edges, np.float64)
        # bins are open at the upper end: the last float below it
        low, high = edges[:-1], np.nextafter(edges[1:], edges[:-1])
        if step:
            first = np.ceil(low / step)
            # first and last multiple of the step in the bin, at least one
            low, high = first * step, (np.maximum(np.ceil(edges[1:] / step), first + 1) - 1) * step
        elif step is None:
            high[-1] = edges[-1]
    elif attribute.kind == "date":
        numbers = range(attribute.low, attribute.high + 2)
        days = np.array([(first_day(attribute.by, number) - EPOCH).days for number in numbers], np.float64)
        # first and last day of each period
        low, high, step = days[:-1], days[1:] - 1, 1.0
    else:
        labels = attribute.labels[: attribute.listed]
        texts = kind_of_values(attribute) == "text"
        values = [0.0 if texts else float(label) for label in labels]
        low = high = np.array(values)
        # whole labels have the step 1, others none
        step = float(all(value.is_integer() for value in values))

    # the cells after the listed ones are of outside values and nulls
    unknown = np.arange(attribute.size) >= attribute.listed
    padding = np.zeros(attribute.size - attribute.listed)
    return ValueRanges(low=np.append(low, padding), high=np.append(high, padding), unknown=unknown, step=step or 0.0)


def kind_of_values(attribute: Attribute) -> str:
    """Return how values of an attribute are compared: as a number, date or text."""
    if attribute.kind in ("integer", "coded", "bins", "number"):
        return "number"
    if attribute.kind == "date":
        return "date"
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in attribute.values)
    return "number" if numbers and attribute.kind == "categories" else "text"


@dataclass(frozen=True)
class CellTest:
    """Cells of an attribute in which a comparison is true, and those in which it is false; in others it is neither."""

    name: str
    true: frozenset[int]
    false: frozenset[int]

    def __invert__(self) -> CellTest:
        return CellTest(self.name, self.false, self.true)

    def __and__(self, other: Any) -> CompoundCondition:
        return CompoundCondition("and", (self, other))

    def __or__(self, other: Any) -> CompoundCondition:
        return CompoundCondition("or", (self, other))


@dataclass(frozen=True)
class Linear:
    """Comparison Σ_j c_j v_j + d (sign) 0 of values, with a sign <, <= or =."""

    terms: tuple[tuple[str, float], ...]
    constant: float
    sign: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.terms)

    def __invert__(self) -> Linear | CompoundCondition:
        """Return the negation, with the terms multiplied by −1: not (s ≤ 0) is −s < 0.

        The negation of s = 0 is s < 0 or −s < 0.
        """
        opposite = Linear(tuple((name, -factor) for name, factor in self.terms), -self.constant, "<")
        if self.sign == "=":
            return CompoundCondition("or", (Linear(self.terms, self.constant, "<"), opposite))
        return opposite if self.sign == "<=" else Linear(opposite.terms, opposite.constant, "<=")

    def __and__(self, other: Any) -> CompoundCondition:
        return CompoundCondition("and", (self, other))

    def __or__(self, other: Any) -> CompoundCondition:
        return CompoundCondition("or", (self, other))

    def permits(self, low: Any, high: Any) -> Any:
        """Return whether a sum between two ends can have the sign to 0."""
        if self.sign == "=":
            return (low <= 0) & (high >= 0)
        return low < 0 if self.sign == "<" else low <= 0

    def sums(self, low: Mapping[str, Any], high: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the least and greatest sum of values within ends.

        A term is (name, factor); `low` and `high` have the ends of values by name.
        """
        least = greatest = self.constant
        for name, factor in self.terms:
            ends = factor * low[name], factor * high[name]
            # with a negative factor the high end of the value gives the least product
            least = least + ends[factor < 0]
            greatest = greatest + ends[factor > 0]
        return least, greatest

    def fits(self, low: Mapping[str, Any], high: Mapping[str, Any]) -> Any:
        """Return where the comparison can be true for values within ends."""
        return self.permits(*self.sums(low, high))


Node = Any  # CellTest, Linear or CompoundCondition


@dataclass(frozen=True)
class CompoundCondition:
    """Conditions joined by "and" or "or"."""

    word: str
    parts: tuple[Node, ...]

    def __invert__(self) -> CompoundCondition:
        return CompoundCondition("or" if self.word == "and" else "and", tuple(~part for part in self.parts))

    def __and__(self, other: Any) -> CompoundCondition:
        return CompoundCondition("and", (self, other))

    def __or__(self, other: Any) -> CompoundCondition:
        return CompoundCondition("or", (self, other))


@dataclass(frozen=True)
class Clause:
    """Alternatives of which one holds: cells in which an attribute does not break the clause, and comparisons."""

    cells: tuple[tuple[str, frozenset[int]], ...] = ()
    linear: tuple[Linear, ...] = ()

    def or_else(self, other: Clause) -> Clause:
        """Return the clause of which either holds: unions of the cells of each attribute, and all comparisons."""
        cells = dict(self.cells)
        for name, allowed in other.cells:
            cells[name] = cells.get(name, frozenset()) | allowed
        return Clause(tuple(cells.items()), tuple(dict.fromkeys(self.linear + other.linear)))

    @property
    def names(self) -> tuple[str, ...]:
        """Attributes, and numbers, in the order of the text."""
        compared = [name for comparison in self.linear for name in comparison.names]
        return tuple(dict.fromkeys([*(name for name, _ in self.cells), *compared]))


def checked_text(text: object) -> str:
    """Return the text of a rule. Raises DomainError for another object."""
    if not isinstance(text, str):
        raise DomainError(FIELD, safe_repr(text), "a text", 'write a rule as "discharge >= admission"')
    return text


def read_rule(text: object, find: Find) -> tuple[Clause, ...]:
    """Return the clauses of a rule, all of which hold.

    Parameters
    ----------
    text : str
    find : callable
        find(name) returns an attribute or a number, or raises DomainError.

    Raises
    ------
    DomainError
        If the syntax is wrong, a name or value is unknown, or values cannot be compared.
    """
    try:
        reader = _Reader(checked_text(text), find)
        return tuple(clause for clause in reader.clauses(reader.whole()) if not _is_always_true(clause, find))
    except RecursionError:
        raise DomainError(FIELD, f"{safe_repr(text)}, with too many levels of ( or not", "fewer levels",
                          "remove parentheses") from None  # fmt: skip


def _is_always_true(clause: Clause, find: Find) -> bool:
    return any(len(cells) == find(name).size for name, cells in clause.cells)


@dataclass(frozen=True)
class _Operand:
    """Sum of values and a constant, or a single text."""

    reader: _Reader
    terms: tuple[tuple[str, float], ...] = ()
    constant: float = 0.0
    dates: int = 0  # number of dates of the sum
    literal: Literal | None = None  # of an operand that is only a literal

    @property
    def attribute(self) -> Attribute | None:
        """The attribute of an operand that is only an attribute."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and self.constant == 0:
            return self.reader.find(self.terms[0][0])
        return None

    def plus(self, other: Self, sign: int) -> Self:
        """Return the sum with another operand, times the sign.

        Terms that cancel are dropped; `dates` counts dates, so that a difference of two dates is a number.
        """
        terms = dict(self.terms)
        for name, factor in other.terms:
            terms[name] = terms.get(name, 0.0) + sign * factor
        left = tuple((name, factor) for name, factor in terms.items() if factor)
        return type(self)(self.reader, left, self.constant + sign * other.constant, self.dates + sign * other.dates)

    def times(self, factor: float) -> Self:
        """Return a multiple of an attribute."""
        if self.dates:
            raise self.reader.fault("a product of a date", "a number times an attribute", "fix it")
        return type(self)(self.reader, tuple((name, factor * coefficient) for name, coefficient in self.terms))

    def compared(self, sign: str, value: Literal) -> Node:
        return self.reader.compare(self, sign, self.reader.operand_of(value))

    def nulls(self) -> CellTest:
        """Return the test that the attribute is null.

        It has the cells in which this holds, and those in which it does not.
        """
        attribute = self.attribute
        if attribute is None or isinstance(attribute, Number):
            raise self.reader.fault("is null after a sum or a number", "an attribute", "name an attribute")
        null = frozenset({attribute.null_cell} if attribute.null_cell >= 0 else ())
        return CellTest(attribute.name, null, frozenset(range(attribute.size)) - null)


class _Reader(ConditionReader):
    """Reader of one rule."""

    field, takes = FIELD, "a comparison of attributes, joined by and, or, not, or if … then …"
    example = "a rule as discharge >= admission, or if age < 15 then status = 'single'"
    words, error, sums, keeps_texts = WORDS, DomainError, True, True

    def __init__(self, text: str, find: Find) -> None:
        self._find = find
        super().__init__(text)

    def find(self, name: str) -> Attribute:
        """Return an attribute. Raises DomainError for one whose values are not public."""
        attribute = self._find(name)
        if attribute.search is not None:
            raise self.fault(f"the attribute {name!r}, whose values are not known", "public attributes",
                             "remove the rule")  # fmt: skip
        return attribute

    def fault(self, got: str, takes: str, remedy: str) -> DomainError:
        return DomainError(FIELD, f"{safe_repr(self.text)}: {got}", takes, remedy)

    def whole(self) -> Node:
        """Read a whole rule, `condition` or `if condition then condition`, which is (not the first) or the second.

        `either` reads a condition with `and` and `or`; ~ is its negation and | the alternative.
        """
        if self.take_if("if"):
            premise = self.either()
            self.expect("then")
            rule = ~premise | self.either()
        else:
            rule = self.either()
        if self.next.kind != "end":
            self.refuse(self.next, "and, or, or the end")
        return rule

    def joined(self, word: str, first: Node, second: Node) -> Node:
        return CompoundCondition(word, (first, second))

    def negated(self, node: Node) -> Node:
        return ~node

    def condition(self) -> Node:
        """Read a comparison of sums, such as `a <= b + 1` or a chain `0 < a < b`, or a membership `a in (…)`.

        A chain is the conjunction of its comparisons. Without a sign the text must be a membership.
        """
        first = self._sum()
        if self.next.kind != "sign" or self.next.text not in SIGNS:
            return self.membership(first)

        sums, signs = [first], []
        while self.next.kind == "sign" and self.next.text in SIGNS:
            signs.append(self.take().text)
            sums.append(self._sum())
        pairs = zip(pairwise(sums), signs, strict=True)
        comparisons = [self.compare(left, sign, right) for (left, right), sign in pairs]
        return comparisons[0] if len(comparisons) == 1 else CompoundCondition("and", tuple(comparisons))

    def _sum(self) -> _Operand:
        """Read a sum of terms with signs: multiples of attributes, numbers and dates.

        The token of a number may include its sign, as in "a -1", which is a sum too.
        """
        negative = self._take_sign("-")
        total = self._term()
        # 0 less the first term
        total = _Operand(self).plus(total, -1) if negative else total
        while True:
            if self._take_sign("+", "-"):
                sign = -1 if self.tokens[self.place - 1].text == "-" else 1
            elif self.next.kind == "number" and self.next.text[0] in "+-":
                sign = 1  # the sign of the number itself
            else:
                return total
            other = self._term()
            if isinstance(total.literal, str) or isinstance(other.literal, str):
                raise self.fault("a text in a sum", "numbers and dates", "compare texts by = or !=")
            total = total.plus(other, sign)

    def _take_sign(self, *signs: str) -> bool:
        return self.next.kind == "arithmetic" and self.take_if(*signs)

    def _term(self) -> _Operand:
        """Read an attribute, a literal, or a number times an attribute."""
        if self.next.kind in ("word", "quoted") and self.next.text.lower() not in ("true", "false"):
            return self._attribute()
        operand = self.operand_of(self.literal())
        if self._take_sign("*"):
            if operand.dates or isinstance(operand.literal, str):
                raise self.fault("a product of a date or text", "a number times an attribute", "fix it")
            return self._attribute().times(operand.constant)
        return operand

    def _attribute(self) -> _Operand:
        """Read the name of an attribute, perhaps with the name of its table, as a sum of one term.

        `dates` counts the terms with dates.
        """
        name = self.name("the name of an attribute, in `…` if it contains blanks")
        if self._take_sign("."):
            name = f"{name}.{self.name('the name of an attribute')}"
        return _Operand(self, ((name, 1.0),), dates=int(kind_of_values(self.find(name)) == "date"))

    def operand_of(self, value: Literal) -> _Operand:
        """Return a literal as a sum without terms: dates as days since 1970, texts with the constant 0."""
        if isinstance(value, datetime):
            since = value - datetime(1970, 1, 1)
            return _Operand(self, constant=since.days + since.seconds / DAY, dates=1, literal=value)
        number = 0.0 if isinstance(value, str) else float(value)
        return _Operand(self, constant=number, literal=value)

    def compare(self, left: _Operand, sign: str, right: _Operand) -> Node:
        """Return the comparison of two operands.

        An operand is a sum of attributes and a constant, or a literal; `dates` counts its dates with their signs. A
        literal on the left is exchanged with the right side.

        Cases: an attribute and a literal; two attributes of labels, which are equal if their labels are; else the
        difference of two sums of numbers or dates, compared with 0. A sum of dates is a date only if their signs add up
        to 1.
        """
        if left.literal is not None and right.attribute is not None:
            left, sign, right = right, SWAPPED[sign], left
        first, second = left.attribute, right.attribute
        if first is not None and right.literal is not None:
            return self._compare_literal(first, left, sign, right)
        if first is not None and second is not None and sign in ("=", "!=") and _are_labels(first, second):
            return self._equal_labels(first, second, sign)

        texts = [name for name, _ in left.terms + right.terms if kind_of_values(self.find(name)) == "text"]
        if texts or isinstance(left.literal, str) or isinstance(right.literal, str):
            raise self.fault(f"{sign} of texts" if not texts else f"{sign} with the text {texts[0]}",
                             "numbers or dates, or = and != of two texts", "compare values of one kind")  # fmt: skip
        if left.dates != right.dates or left.dates not in (0, 1):
            raise self.fault("a date compared with a number", "values of one kind", "compare a date with a date")
        difference = left.plus(right, -1)
        if not difference.terms:
            raise self.fault("a comparison of constants", "an attribute on one side", "remove it")
        # the terms of the side with more terms come first in the text of the rule
        longer_first = difference.terms if len(left.terms) >= len(right.terms) else (
            *(term for term in difference.terms if term[0] not in dict(left.terms)),
            *(term for term in difference.terms if term[0] in dict(left.terms)),
        )  # fmt: skip
        return self._signed(longer_first, difference.constant, sign)

    def _signed(self, terms: tuple[tuple[str, float], ...], constant: float, sign: str) -> Node:
        """Return a comparison of a sum with 0; one that the cells of an attribute decide is a test of cells.

        A comparison of a single attribute is decided by its cells; an inequality (!=) is the negation of equality.
        """
        linear: Node = Linear(terms, constant, sign if sign in ("<", "<=", "=") else "<=")
        if sign in (">", ">="):
            linear = Linear(tuple((name, -factor) for name, factor in terms), -constant, "<" if sign == ">" else "<=")
        if len(terms) == 1 and sign != "!=":
            return self._decided(linear)
        return linear if sign != "!=" else ~Linear(terms, constant, "=")

    def _decided(self, linear: Linear) -> Node:
        """Return a linear condition on one attribute as the cells where it holds, if every cell decides it.

        The second set of a CellTest has the cells where the condition is false; nulls are in neither.
        """
        attribute = self.find(linear.names[0])
        if isinstance(attribute, Number):
            return linear
        ranges = value_ranges(attribute)
        opposite = ~linear
        parts = opposite.parts if isinstance(opposite, CompoundCondition) else (opposite,)
        ends = {attribute.name: ranges.low}, {attribute.name: ranges.high}
        cannot = np.any([part.fits(*ends) for part in parts], axis=0) & ~ranges.unknown
        can = linear.fits(*ends) & ~ranges.unknown
        if (can & cannot).any():
            return linear
        return CellTest(attribute.name, frozenset(np.flatnonzero(can).tolist()),
                        frozenset(np.flatnonzero(cannot).tolist()))  # fmt: skip

    def _compare_literal(self, attribute: Attribute, left: _Operand, sign: str, right: _Operand) -> Node:
        """Return the condition that an attribute compares with a literal: a date, a number or a label.

        `left` is the attribute as a sum. A number is compared by values, unless equality is a test of cells whose
        values are known exactly. Texts are compared by = and != only.
        """
        value, kind = right.literal, kind_of_values(attribute)
        if kind == "date" and attribute.by != "day" and is_day(value):
            right = self._day(attribute, str(value))  # a text of a day is that day, not its whole period
        elif kind == "date" and not isinstance(value, datetime):
            return self._compare_period(attribute, sign, value)
        if kind == "number" and isinstance(value, int | float) and (
            isinstance(attribute, Number) or sign not in ("=", "!=") or not value_ranges(attribute).are_values
        ):  # fmt: skip
            return self._signed(left.terms, -right.constant, sign)
        if kind == "date":
            return self._signed(left.terms, -right.constant, sign)
        if sign not in ("=", "!="):
            raise self.fault(f"{attribute.name} {sign} {value!r}", "= or != for texts", "list the values with in (…)")
        test = self._equal(attribute, value)
        return test if sign == "=" else ~test

    def _day(self, attribute: Attribute, text: str) -> _Operand:
        """Return the day of a text such as 2025-01-31. Raises DomainError if the calendar lacks it."""
        try:
            return self.operand_of(datetime.fromisoformat(text))
        except ValueError:
            raise self.fault(f"{text!r} for the date {attribute.name}", "a valid date", "fix it") from None

    def _compare_period(self, attribute: Attribute, sign: str, value: Literal | None) -> Node:
        """Return the comparison of a date with the name of a period: its first or last day.

        `first` is the first day of the period and `beyond` that of the next one. Equality means a day within the
        period.
        """
        try:
            number = read_period(attribute.by, value)
        except ValueError as error:
            raise self.fault(f"{value!r} for the date {attribute.name}", f"a date, or {error}", "fix it") from None
        first, beyond = (float((first_day(attribute.by, at) - EPOCH).days) for at in (number, number + 1))
        if sign in ("=", "!="):
            inside = self._compare_period(attribute, ">=", value) & self._compare_period(attribute, "<=", value)
            return inside if sign == "=" else ~inside
        # before or from the first day on; up to or after the last one
        return self._signed(((attribute.name, 1.0),), -(first if sign in ("<", ">=") else beyond - 1), sign)

    def _equal(self, attribute: Attribute, value: Literal | None) -> CellTest:
        """Return the test of one label.

        A `CellTest` has the cells for which it is true and those for which it is false; a null is in neither.
        """
        assert value is not None
        shown = repr(value) if isinstance(value, str) else spelled(value)
        try:
            cell = cell_of_literal(attribute, value)
        except ValueError as error:
            raise self.fault(f"{shown} for {attribute.name}", "a text in quotes for a code", f"write {error}") from None
        if cell is None or cell == attribute.null_cell:
            known = [str(label) for label in attribute.labels if label is not None]
            raise self.fault(shown, f"a value of {attribute.name}", nearest(shown.strip("'"), known))
        null = {attribute.null_cell} if attribute.null_cell >= 0 else set()
        return CellTest(attribute.name, frozenset({cell}), frozenset(range(attribute.size)) - {cell} - null)

    def _equal_labels(self, first: Attribute, second: Attribute, sign: str) -> CompoundCondition:
        """Return the equality of two attributes whose cells are labels.

        For each label of the first attribute: it differs, or the second attribute has the same label (or not, for !=).
        """

        def key(label: object) -> object:
            return label if isinstance(label, int | float) and not isinstance(label, bool) else str(label)

        cells = {key(label): cell for cell, label in enumerate(second.labels[: second.listed])}
        listed = frozenset(range(second.listed))
        parts = []
        for cell, label in enumerate(first.labels[: first.listed]):
            equal = frozenset({cells[key(label)]} if key(label) in cells else ())
            second_fits = CellTest(second.name, equal, listed - equal)
            differs = CellTest(first.name, frozenset(range(first.listed)) - {cell}, frozenset({cell}))
            parts.append(differs | (second_fits if sign == "=" else ~second_fits))
        return CompoundCondition("and", tuple(parts))

    def clauses(self, node: Node) -> list[Clause]:
        """Return a condition as clauses, all of which hold where it is not false.

        An alternative of conjunctions becomes the conjunction of all combinations of one clause of each.
        """
        if isinstance(node, CellTest):
            size = self.find(node.name).size
            return [Clause(((node.name, frozenset(range(size)) - node.false),))]
        if isinstance(node, Linear):
            return [Clause(linear=(node,))]
        parts = [self.clauses(part) for part in node.parts]
        if node.word == "and":
            return [clause for part in parts for clause in part]

        alternatives = parts[0]
        for part in parts[1:]:
            alternatives = [first.or_else(second) for first in alternatives for second in part]
            if len(alternatives) > MOST_CLAUSES:
                raise self.fault("too many alternatives", f"at most {MOST_CLAUSES:,} clauses", "divide the rule")
        return alternatives


def _are_labels(first: Attribute, second: Attribute) -> bool:
    """Return whether cells of both attributes are labels that can be compared.

    Cells of numbers and dates are labels only if each has a single value; those of periods longer than a day do not.
    """
    kinds = [kind_of_values(axis) for axis in (first, second)]
    if kinds[0] != kinds[1] or any(isinstance(axis, Number) for axis in (first, second)):
        return False
    return kinds[0] == "text" or all(
        value_ranges(axis).are_values and (axis.kind != "date" or axis.by == "day") for axis in (first, second)
    )
