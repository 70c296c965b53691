"""Row filters such as `year = 2025 and town in ('Köln', 'Ulm')`.

A filter is public and judges each row independently: a row that does not match is treated as absent from the files.
One row more or less in the files is therefore at most one row more or less after the filter (stability 1). The text is
parsed by the grammar below and never executed.

    filter    = condition { "and" condition }
    condition = column ("=" | "!=" | "<" | "<=" | ">" | ">=") literal | column "in" "(" literal { "," literal } ")"
    literal   = number | 'text' | date, as 2025-01-31 or 2025-01-31T12:30:00 | true | false
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import NoReturn

from dpscale.base.display import shown
from dpscale.base.errors import DataError

FIELD = "data.where"
SIGNS = ("!=", "<=", ">=", "=", "<", ">")
TAKES = "column = value, joined by and (=, !=, <, <=, >, >=, in (…))"
KINDS = ("number", "text", "date")
TOKEN = re.compile(r"""
    (?P<blank>\s+)
  | (?P<date>\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d)?)?(?![\w-]))
  | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
  | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
  | (?P<quoted>`(?:[^`]|``)+`)
  | (?P<word>[^\W\d]\w*)
  | (?P<sign>==|<>|!=|<=|>=|=|<|>|&&|\|\||[&|])
  | (?P<mark>[(),])
""", re.VERBOSE)  # fmt: skip
INSTEAD = {"==": "write a single =", "<>": "write !=", "or": "for several values of a column write in (…)",
           "&&": "write and", "&": "write and", "not": "write !="}  # fmt: skip
MOST = 1 << 63  # smaller integers are compared exactly, as in columns
Literal = bool | int | float | str | datetime


@dataclass(frozen=True)
class Condition:
    """Condition on one column. `sign` is one of SIGNS with a single value, or `in`."""

    column: str
    sign: str
    values: tuple[Literal, ...]

    @property
    def kind(self) -> str:
        """Kind of the values: number, text or date."""
        return kind_of(self.values[0])

    def __str__(self) -> str:
        values = ", ".join(map(_spelled, self.values))
        return f"{_named(self.column)} {self.sign} {f'({values})' if self.sign == 'in' else values}"


@dataclass(frozen=True)
class Where:
    """Conjunction of conditions; without conditions every row matches."""

    conditions: tuple[Condition, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.conditions)

    def __str__(self) -> str:
        """Return the filter in canonical form."""
        return " and ".join(map(str, self.conditions))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the filter reads."""
        return tuple(dict.fromkeys(one.column for one in self.conditions))


EVERYTHING = Where()


def kind_of(value: Literal) -> str:
    """Return the kind of a literal: number (includes true and false), text or date."""
    return "text" if isinstance(value, str) else "date" if isinstance(value, datetime) else "number"


def read_where(text: str) -> Where:
    """Parse a filter. Raises DataError with the position of a syntax error."""
    return _Reader(text).whole()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int


class _Reader:
    """Recursive-descent parser of one filter."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0
        self.tokens = [one for one in _tokens(text) if one.kind != "blank"]

    def whole(self) -> Where:
        conditions = [self._condition()]
        while self._next.kind != "end":
            self._word("and")
            conditions.append(self._condition())
        return Where(tuple(conditions))

    @property
    def _next(self) -> _Token:
        return self.tokens[self.place]

    def _taken(self) -> _Token:
        self.place += 1
        return self.tokens[self.place - 1]

    def _word(self, *words: str) -> None:
        token = self._taken()
        if token.text.lower() not in words or token.kind not in ("word", "mark"):
            _refused(token, " or ".join(words))

    def _condition(self) -> Condition:
        token = self._taken()
        if token.kind not in ("word", "quoted") or token.text.lower() in ("and", "or", "not", "in"):
            _refused(token, "the name of a column, in `…` if it contains blanks")
        column = token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text
        sign = self._taken()
        if sign.text in SIGNS:
            return Condition(column, sign.text, (self._literal(),))
        if sign.text.lower() != "in" or sign.kind != "word":
            _refused(sign, "=, !=, <, <=, >, >= or in (…)")
        return Condition(column, "in", self._list())

    def _list(self) -> tuple[Literal, ...]:
        self._word("(")
        first = self._next
        values = [self._literal()]
        while self._next.text == ",":
            self._taken()
            values.append(self._literal())
        self._word(")")
        if len(kinds := {kind_of(value) for value in values}) > 1:
            got = f"{' and '.join(sorted(kinds))} together at character {first.at + 1}"
            raise DataError(FIELD, got, "values of one type in a list", "quote texts only")
        return tuple(values)

    def _literal(self) -> Literal:
        token = self._taken()
        if token.kind == "text":
            quote = token.text[0]
            return token.text[1:-1].replace(quote * 2, quote)
        if token.kind == "number":
            return _number(token)
        if token.kind == "date":
            return _date(token)
        if token.kind != "word" or token.text.lower() not in ("true", "false"):
            _refused(token, "a number, a 'text', a date such as 2025-01-31, true or false")
        return token.text.lower() == "true"


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            _refused(_Token("none", text[at], at), TAKES)
        found.append(_Token(str(match.lastgroup), match.group(), at))
        at = match.end()
    return [*found, _Token("end", "", len(text))]


def _refused(token: _Token, takes: str) -> NoReturn:
    got = f"{shown(token.text)} at character {token.at + 1}" if token.kind != "end" else "it ends too early"
    remedy = INSTEAD.get(token.text.lower())
    if remedy is None:
        open_quote = token.kind == "none" and token.text in "'\"`"
        remedy = "close the quote" if open_quote else f"write a filter as {_EXAMPLE}"
    raise DataError(FIELD, got, takes, remedy)


_EXAMPLE = "year = 2025 and town in ('Bonn', 'Ulm')"


def _number(token: _Token) -> int | float:
    """Return an int if the value is an integer in the int64 range, else a float."""
    value = float(token.text)
    if not math.isfinite(value):
        raise DataError(FIELD, f"{shown(token.text)} at character {token.at + 1}", "numbers below 1e308", "fix it")
    exact = Fraction(token.text) if abs(value) < 2 * MOST and abs(value) > 1e-300 else Fraction(value)
    return int(exact) if exact.denominator == 1 and abs(exact) < MOST else value


def _date(token: _Token) -> datetime:
    try:
        return datetime.fromisoformat(token.text)
    except ValueError:
        raise DataError(
            FIELD, f"{shown(token.text)} at character {token.at + 1}", "a valid date", "fix it, or quote a text"
        ) from None


def _named(column: str) -> str:
    plain = re.fullmatch(r"[^\W\d]\w*", column) and column.lower() not in ("and", "or", "not", "in")
    return column if plain else "`" + column.replace("`", "``") + "`"


def _spelled(value: Literal) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, datetime):
        return value.isoformat()[:10] if value == value.replace(hour=0, minute=0, second=0) else value.isoformat()
    return repr(value)
