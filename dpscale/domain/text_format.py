"""Formats of texts: public patterns of the columns of synthetic rows that are no attributes, such as ids and free text.

A pattern is read as a regular expression of which only elements of fixed characters are accepted: a character, a class
such as `[A-Z0-9]`, or an escape, each once or repeated {m} or {m,n} times. The length of a repetition is told by the
characters that follow it, so different choices give different texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from dpscale.base.display import safe_repr
from dpscale.base.errors import DomainError
from dpscale.domain.schema_values import check_keys

FORMATS = "formats"
ESCAPES = {"d": "0123456789", "w": "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"}
SPECIAL = frozenset(".*+?()|^$]}{")
MOST_LETTERS = 1000  # characters of a text
TAKES = (
    "a pattern of characters, classes such as [A-Z0-9] and the escapes \\d, \\w or \\ with a punctuation mark, each"
    f" repeated {{m}} or {{m,n}} times, of at most {MOST_LETTERS:,} characters"
)
EXAMPLE = "[A-Z]{2}[0-9]{6}"


@dataclass(frozen=True)
class Repetition:
    """From `least` to `most` characters of some letters."""

    letters: str
    least: int = 1
    most: int = 1

    @property
    def texts(self) -> int:
        """Number of texts."""
        return sum(len(self.letters) ** length for length in range(self.least, self.most + 1))


@dataclass(frozen=True)
class TextFormat:
    """Public format of a column of texts.

    Attributes
    ----------
    name : str
        Column of the rows.
    pattern : str
    unique : bool
        Whether no two rows of a table have the same text.
    """

    name: str
    pattern: str
    unique: bool = True

    @cached_property
    def elements(self) -> tuple[Repetition, ...]:
        """Elements of the pattern in order. Raises DomainError for another pattern.

        The end of a repetition {m,n} must be determined by the next character, so its letters may not begin the rest of
        the text. MOST_LETTERS bounds the length of texts.
        """
        field = f"{FORMATS}.{self.name}.pattern"
        try:
            elements = tuple(_elements(self.pattern))
        except ValueError as error:
            raise DomainError(field, f"{safe_repr(self.pattern)}, with {error}", TAKES, f"write {EXAMPLE}") from None

        if not 0 < sum(element.most for element in elements) <= MOST_LETTERS:
            raise DomainError(field, f"{safe_repr(self.pattern)}, which is empty or too long", TAKES, "fix it")
        for place, element in enumerate(elements):
            if element.least < element.most and set(element.letters) & _next_letters(elements[place + 1 :]):
                raise DomainError(
                    field,
                    f"{safe_repr(self.pattern)}, in which letters of a repetition {{m,n}} may follow it",
                    "repetitions whose end is told by the next character",
                    "put a separator after it, or repeat it {m} times",
                )
        return elements

    @property
    def texts(self) -> int:
        """Number of texts of the pattern."""
        return math.prod(element.texts for element in self.elements)

    def describe(self) -> dict[str, object]:
        """Return the table of a domain file."""
        return {"pattern": self.pattern} | ({} if self.unique else {"unique": False})


def read_formats(tables: object) -> tuple[TextFormat, ...]:
    """Return formats from the tables [formats.NAME] of a domain file, or from patterns by name.

    Raises
    ------
    DomainError
        If a table or a pattern is invalid.
    """
    if not isinstance(tables, Mapping) or not all(isinstance(name, str) and name for name in tables):
        raise DomainError(FORMATS, safe_repr(tables), "patterns by column", f'write {{"id": "{EXAMPLE}"}}')

    formats = []
    for name, stated in tables.items():
        table = {"pattern": stated} if isinstance(stated, str) else stated
        field = f"{FORMATS}.{name}"
        if not isinstance(table, Mapping) or not isinstance(table.get("pattern"), str):
            raise DomainError(f"{field}.pattern", safe_repr(stated), TAKES, f"write {EXAMPLE}")
        check_keys(table, {"pattern", "unique"}, field)
        if not isinstance(unique := table.get("unique", True), bool):
            raise DomainError(f"{field}.unique", safe_repr(unique), "true or false", "fix it")
        text_format = TextFormat(name, table["pattern"], unique)
        # refuses an invalid pattern
        _ = text_format.elements
        formats.append(text_format)
    return tuple(formats)


def _next_letters(elements: tuple[Repetition, ...]) -> set[str]:
    """Return the letters with which texts of some elements may begin.

    Elements that may be empty (least = 0) are passed over, up to the first that is not.
    """
    letters = set[str]()
    for element in elements:
        letters |= set(element.letters)
        if element.least:
            break
    return letters


def _elements(pattern: str) -> Iterator[Repetition]:
    """Yield the elements of a pattern. Raises ValueError with what is not accepted.

    An element is a class [...] or a character, perhaps with a repetition {m} or {m,n} of at most four digits.
    """
    at = 0
    while at < len(pattern):
        if pattern[at] == "[":
            letters, at = _class(pattern, at + 1)
        else:
            letters, at = _character(pattern, at, SPECIAL)
        if not letters.isprintable():
            raise ValueError("a character that cannot be printed")
        # {m} has only the first number, which is then both limits
        counts = re.compile(r"\{(\d{1,4})(?:,(\d{1,4}))?\}", re.ASCII).match(pattern, at)
        if counts is None:
            yield Repetition(letters)
            continue
        least, most = int(counts[1]), int(counts[2] or counts[1])
        if most < max(least, 1):
            raise ValueError(f"the repetition {counts[0]}")
        yield Repetition(letters, least, most)
        at = counts.end()


def _character(pattern: str, at: int, special: frozenset[str]) -> tuple[str, int]:
    """Return the letters of a character or an escape, and the place after it.

    `special` are the characters that need an escape. ESCAPES maps letters after a backslash to their meaning; other
    escapes are punctuation of ASCII.
    """
    if pattern[at] != "\\":
        if pattern[at] in special:
            raise ValueError(f"{pattern[at]!r} at place {at + 1}")
        return pattern[at], at + 1

    escaped = pattern[at + 1 : at + 2]
    if not escaped or (escaped not in ESCAPES and (escaped.isalnum() or escaped.isspace() or not escaped.isascii())):
        raise ValueError(f"the escape {pattern[at : at + 2]!r}")
    return ESCAPES.get(escaped, escaped), at + 2


def _class(pattern: str, at: int) -> tuple[str, int]:
    """Return the letters of a class, each once, and the place after it.

    The class begins at `at`, after its bracket, and ends at "]". The letters before and after a hyphen are the ends of
    a range of code points; a hyphen at the end is a letter. A negated or nested class is refused. `_character` reads a
    letter or an escape, which may stand for several letters and then cannot end a range.
    """
    letters, begin, none = "", at, frozenset[str]()
    while pattern[at : at + 1] not in ("", "]"):
        if pattern[at] == "[" or (pattern[at] == "^" and at == begin):
            raise ValueError(f"{pattern[at]!r} in a class")
        low, after = _character(pattern, at, none)
        if pattern[after : after + 1] == "-" and pattern[after + 1 : after + 2] not in ("", "]"):
            high, end = _character(pattern, after + 1, none)
            if len(low) > 1 or len(high) > 1 or high < low:
                raise ValueError(f"the range {pattern[at:end]!r}")
            low, after = "".join(map(chr, range(ord(low), ord(high) + 1))), end
        letters, at = letters + low, after
    if not letters or at == len(pattern):
        raise ValueError("a class that is empty or has no end")
    return "".join(dict.fromkeys(letters)), at + 1
