"""Tokens, literals and the recursive-descent readers that row filters, predicates and rules share."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Any, ClassVar, NoReturn, Protocol

from dpscale.base.display import safe_repr
from dpscale.base.errors import DataError, DpscaleError

SIGNS = ("!=", "<=", ">=", "=", "<", ">")
TOKEN = re.compile(r"""
    (?P<blank>\s+)
  | (?P<date>\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d)?)?(?![\w-]))
  | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?!\w|\.(?!\.)))
  | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
  | (?P<quoted>`(?:[^`]|``)+`)
  | (?P<word>[^\W\d]\w*)
  | (?P<sign>==|<>|!=|<=|>=|=|<|>|&&|\|\||[&|])
  | (?P<mark>\.\.|[(),\[\]])
  | (?P<arithmetic>[.+*-])
""", re.VERBOSE)  # fmt: skip
INSTEAD = {"==": "write a single =", "<>": "write !=", "&&": "write and", "&": "write and"}
MOST = 1 << 63  # smaller integers are compared exactly, as in columns
Literal = bool | int | float | str | datetime
_is_former: ContextVar[bool] = ContextVar("_is_former", default=False)


class WrittenInteger(int):
    """Integer with its text in an expression, `written`."""

    written: str


class WrittenNumber(float):
    """Number with its text in an expression, `written`."""

    written: str


@contextmanager
def former_reading(is_charged: bool) -> Iterator[None]:
    """Accept conditions of a charged run that are refused in new jobs, with their former meaning.

    A day denotes its whole period, a number the code that is written like the integer without leading zeros, and a
    condition that no cell satisfies counts 0. Conditions of new jobs have the same meaning in both readings.

    Parameters
    ----------
    is_charged : bool
        Whether the run is charged; the conditions of other runs are refused.
    """
    token = _is_former.set(is_charged)
    try:
        yield
    finally:
        _is_former.reset(token)


def is_former_reading() -> bool:
    """Return whether conditions are read as in versions before their checks."""
    return _is_former.get()


def as_written(value: float, text: str) -> int | float:
    """Return a number that keeps its text: 01 and 1 are one number but may be two codes."""
    found = WrittenInteger(value) if isinstance(value, int) else WrittenNumber(value)
    found.written = text
    return found


def kind_of(value: Literal) -> str:
    """Return the kind of a literal: number (includes true and false), text or date."""
    return "text" if isinstance(value, str) else "date" if isinstance(value, datetime) else "number"


@dataclass(frozen=True)
class Token:
    """Token of an expression: its kind (a group of TOKEN, "none" or "end"), its text, and its position."""

    kind: str
    text: str
    at: int


class ExpressionReader:
    """Recursive-descent reader of one expression; a grammar adds its rules as methods.

    Attributes
    ----------
    field, takes, example : str
        Field, accepted syntax and remedy of the errors.
    words : tuple of str
        Words that are no names.
    instead : mapping of str to str
        Remedies by wrong token.
    error : type of DpscaleError
    sums : bool
        Whether the grammar has sums and qualified names.
    keeps_texts : bool
        Whether numbers keep their texts, `as_written`, because they may denote codes.
    """

    field: ClassVar[str]
    takes: ClassVar[str]
    example: ClassVar[str]
    words: ClassVar[tuple[str, ...]] = ("and", "or", "not", "in")
    instead: ClassVar[Mapping[str, str]] = INSTEAD
    error: ClassVar[type[DpscaleError]] = DataError
    sums: ClassVar[bool] = False
    keeps_texts: ClassVar[bool] = False

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0
        self.tokens = [one for one in self._split(text) if one.kind != "blank"]

    def _split(self, text: str) -> list[Token]:
        """Return the tokens of a text with their places, and a last token "end"; refuse what is no token."""
        tokens, at = [], 0
        while at < len(text):
            match = TOKEN.match(text, at)
            if match is None or (match.lastgroup == "arithmetic" and not self.sums):
                self.refuse(Token("none", text[at], at), self.takes)
            tokens.append(Token(str(match.lastgroup), match.group(), at))
            at = match.end()
        return [*tokens, Token("end", "", len(text))]

    @property
    def next(self) -> Token:
        return self.tokens[self.place]

    def take(self) -> Token:
        """Return the next token and move past it."""
        self.place += 1
        return self.tokens[self.place - 1]

    def take_if(self, *words: str) -> bool:
        """Move past the next token if it is one of some words or marks; return whether it is."""
        found = self.next.kind in ("word", "mark", "arithmetic") and self.next.text.lower() in words
        self.place += found
        return found

    def expect(self, *words: str) -> None:
        """Move past a token that must be one of some words or marks."""
        if not self.take_if(*words):
            self.refuse(self.next, " or ".join(words))

    def name(self, takes: str) -> str:
        """Return a name, without its quotes."""
        token = self.take()
        if token.kind not in ("word", "quoted") or token.text.lower() in self.words:
            self.refuse(token, takes)
        return token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text

    def literals(self, start: str = "(", end: str = ")") -> tuple[Literal, ...]:
        """Return a list of literals of one kind, in brackets."""
        self.expect(start)
        first = self.next
        values = [self.literal()]
        while self.take_if(","):
            values.append(self.literal())
        self.expect(end)
        if len(kinds := {kind_of(value) for value in values}) > 1:
            got = f"{' and '.join(sorted(kinds))} together at character {first.at + 1}"
            raise self.error(self.field, got, "values of one type in a list", "quote texts only")
        return tuple(values)

    def literal(self) -> Literal:
        """Read a literal: a text in quotes (doubled inside), a number, a date, true or false."""
        token = self.take()
        if token.kind == "text":
            quote = token.text[0]
            return token.text[1:-1].replace(quote * 2, quote)
        if token.kind == "number":
            number = self._number(token)
            return as_written(number, token.text) if self.keeps_texts else number
        if token.kind == "date":
            return self._date(token)

        if token.kind != "word" or token.text.lower() not in ("true", "false"):
            self.refuse(token, "a number, a 'text', a date such as 2025-01-31, true or false")
        return token.text.lower() == "true"

    def _number(self, token: Token) -> int | float:
        """Return an int if the value is an integer in the int64 range, else a float."""
        value = float(token.text)
        if not math.isfinite(value):
            got = f"{safe_repr(token.text)} at character {token.at + 1}"
            raise self.error(self.field, got, "numbers below 1e308", "fix it")
        exact = Fraction(token.text) if abs(value) < 2 * MOST and abs(value) > 1e-300 else Fraction(value)
        return int(exact) if exact.denominator == 1 and abs(exact) < MOST else value

    def _date(self, token: Token) -> datetime:
        """Return the date and time of a token. Raises the error of the grammar for an invalid date."""
        try:
            return datetime.fromisoformat(token.text)
        except ValueError:
            got = f"{safe_repr(token.text)} at character {token.at + 1}"
            raise self.error(self.field, got, "a valid date", "fix it, or quote a text") from None

    def refuse(self, token: Token, takes: str) -> NoReturn:
        """Raise the error of an unexpected token."""
        got = f"{safe_repr(token.text)} at character {token.at + 1}" if token.kind != "end" else "it ends too early"
        remedy = self.instead.get(token.text.lower())
        if remedy is None:
            open_quote = token.kind == "none" and token.text in "'\"`"
            remedy = "close the quote" if open_quote else f"write {self.example}"
        raise self.error(self.field, got, takes, remedy)


class Comparable(Protocol):
    """Operand of `in`, `between` and `is null`; results have the operators |, & and ~."""

    def compared(self, sign: str, value: Literal, /) -> Any:
        """Return where the operand is in a relation to a literal."""

    def nulls(self) -> Any:
        """Return where the operand is null."""


class ConditionReader(ExpressionReader, ABC):
    """Reader of conditions joined by and, or, not and parentheses.

    either     = both { "or" both }
    both       = single { "and" single }
    single     = "not" single | "(" either ")" | condition
    membership = operand ["not"] "in" ( "(" literals ")" | "[" literals "]" | literal ".." literal )
               | operand ["not"] "between" literal "and" literal | operand "is" ["not"] "null"
    """

    @abstractmethod
    def condition(self) -> Any:
        """Read a single condition."""

    @abstractmethod
    def joined(self, word: str, first: Any, second: Any) -> Any:
        """Return two conditions joined by "and" or "or"."""

    @abstractmethod
    def negated(self, one: Any) -> Any:
        """Return the negation of a condition."""

    def either(self) -> Any:
        """Read conditions joined by "or"; "and" binds more closely."""
        found = self.both()
        while self.take_if("or"):
            found = self.joined("or", found, self.both())
        return found

    def both(self) -> Any:
        """Read conditions joined by "and"."""
        found = self.single()
        while self.take_if("and"):
            found = self.joined("and", found, self.single())
        return found

    def single(self) -> Any:
        """Read a condition, `not` before one, or one in parentheses."""
        if self.take_if("not"):
            return self.negated(self.single())
        if self.take_if("("):
            condition = self.either()
            self.expect(")")
            return condition
        return self.condition()

    def membership(self, operand: Comparable) -> Any:
        """Read the rest of a condition after an operand that no sign follows."""
        if self.take_if("is"):
            negated = self.take_if("not")
            self.expect("null")
            return ~operand.nulls() if negated else operand.nulls()

        sign = self.take()
        negated = sign.text.lower() == "not" and sign.kind == "word"
        sign = self.take() if negated else sign
        if sign.kind != "word" or sign.text.lower() not in ("in", "between"):
            self.refuse(sign, "=, !=, <, <=, >, >=, in, between or is null")
        found = self._members(operand, sign)
        return ~found if negated else found

    def _members(self, operand: Comparable, sign: Token) -> Any:
        """Read the values after `in` or `between`."""
        for start, end in (("(", ")"), ("[", "]")):
            if sign.text.lower() == "in" and self.next.text == start:
                first, *others = [operand.compared("=", value) for value in self.literals(start, end)]
                for one in others:
                    first = first | one
                return first
        low = self.literal()
        self.expect(".." if sign.text.lower() == "in" else "and")
        return operand.compared(">=", low) & operand.compared("<=", self.literal())


def spelled_name(name: str, words: tuple[str, ...] = ExpressionReader.words) -> str:
    """Return a name as it is written in an expression."""
    plain = re.fullmatch(r"[^\W\d]\w*", name) and name.lower() not in words
    return name if plain else "`" + name.replace("`", "``") + "`"


def spelled(value: Literal) -> str:
    """Return a literal as it is written in an expression."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, datetime):
        return value.isoformat()[:10] if value == value.replace(hour=0, minute=0, second=0) else value.isoformat()
    return str(getattr(value, "written", repr(value)))
