"""Checks of single values, of names and of formats of dates, which the parsers of a domain file share.

A format, such as %d/%m/%Y, has the directives of `strptime` for a year (%Y, %y), a month (%m, %b or %B, in English) and
a day (%d). A time may follow the date; it decides nothing but the day of a time with a zone. Without a day the text
names its month.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import DomainError
from dpscale.domain.attribute import EXACT

MOST = (1 << 63) - 1  # larger integers of a column are read as this number
EXAMPLE = "%d/%m/%Y"
EXPECTED = f"%Y or %y, %m or %b, and %d, with separators, as {EXAMPLE!r}"
DIRECTIVES = {
    "Y": r"(?P<y>\d{4})",
    "y": r"(?P<y>\d{2})",
    "m": r"(?P<m>\d{1,2})",
    "b": r"(?P<b>[A-Za-z]{3,9})\.?",
    "B": r"(?P<b>[A-Za-z]{3,9})\.?",
    "d": r"(?P<d>\d{1,2})",
}
TIME = (
    r"(?:[T, ]+(?P<h>\d{1,2}):(?P<i>\d\d)(?::(?P<s>\d\d)(?:[.,]\d+)?)?"
    r"(?: ?[AaPp]\.?[Mm]\.?|(?P<z>[Zz]|[+-]\d\d:?\d\d))?)?"
)
CENTURY = 69  # two digits from 69 are years of the 20th century, as in POSIX
MONTH_NAMES = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
               "november", "december")  # fmt: skip
WITHOUT_DAY = ("month", "quarter", "year")
DAY = 86_400  # seconds


def read_exact(field: str, value: object) -> Fraction:
    """Return a number of a domain file exactly as its decimal digits."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < EXACT:
        raise DomainError(field, safe_repr(value), "a number between -2^53 and 2^53", "fix it")
    return Fraction(repr(value))


def check_keys(table: Mapping[str, Any], known: set[str], where: str) -> None:
    """Raise DomainError if the table has an unknown key."""
    for key in sorted(map(str, set(table) - known)):
        raise DomainError(where, f"unknown key {key!r}", ", ".join(sorted(known)), nearest(key, known))


def read_policy(field: str, key: str, value: object, known: Sequence[str]) -> str:
    """Return the value of a policy; raise DomainError unless it is known."""
    if not isinstance(value, str) or value not in known:
        text = value if isinstance(value, str) else ""
        raise DomainError(f"{field}.{key}", safe_repr(value), ", ".join(known), nearest(text, known))
    return value


def read_source(field: str, name: str, table: Mapping[str, Any]) -> str:
    """Return the column that a table names with `from`; empty if it is `name`."""
    text = table.get("from", "")
    if not isinstance(text, str) or ("from" in table and not text):
        raise DomainError(f"{field}.from", safe_repr(text), "the name of a column", "name a column, or leave it out")
    return "" if text == name else text


def check_values(field: str, values: object) -> None:
    """Raise DomainError unless the values are a list of distinct texts, distinct numbers, or booleans."""
    if not isinstance(values, list | tuple) or not values or not all(isinstance(v, str | int | float) for v in values):
        got = "an empty list" if isinstance(values, list | tuple) and not values else "not such a list"
        raise DomainError(field, got, "a list of texts or numbers", "fix it")
    # a boolean is an int in Python, and 1 equals 1.0 and True
    if len({bool if isinstance(v, bool) else str if isinstance(v, str) else float for v in values}) > 1:
        raise DomainError(field, "texts, numbers and booleans mixed", "values of one type", "quote the numbers")
    if not isinstance(values[0], str) and not all(abs(v) < (MOST if isinstance(v, int) else EXACT) for v in values):
        takes = "integers of 64 bits, and other numbers between -2^53 and 2^53"
        raise DomainError(field, "a number too large or not finite", takes, "fix it")
    if len(set(values)) != len(values):
        raise DomainError(field, "a value twice", "distinct values", "drop the repeat")


def check_names_list(names: object) -> None:
    """Raise DomainError for a text, whose letters would be taken for names, and for anything that is not iterable."""
    if isinstance(names, str):
        raise DomainError("attributes", safe_repr(names), "a list of names", f"write ({names!r},)")
    if not isinstance(names, Iterable):
        raise DomainError("attributes", safe_repr(names), "a list of names", 'write ("age", "sex")')


def check_names(names: Sequence[Any]) -> None:
    """Raise DomainError unless all names of attributes are distinct valid texts."""
    for name in names:
        if not isinstance(name, str) or not name:
            raise DomainError("attributes", f"the name {safe_repr(name)}", "texts for names", "name every attribute")
        if any("\ud800" <= letter <= "\udfff" for letter in name):  # not encodable in UTF-8
            raise DomainError("attributes", f"the name {name!a}", "valid Unicode texts", "fix its encoding")
    if len(set(names)) != len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise DomainError("attributes", f"a name twice, {safe_repr(twice)}", "distinct names", "drop the repeat")


@cache
def date_pattern(form: str) -> str:
    """Return a regular expression with the groups y, m or b, d, h, i, s and z.

    DIRECTIVES has the pattern of each directive, a named group whose letter is its fifth character, as in (?P<y>.

    Parameters
    ----------
    form : str
        A format such as "%d/%m/%Y".

    Returns
    -------
    str

    Raises
    ------
    ValueError
        If the format has another directive, or lacks a year or a month.

    Examples
    --------
    >>> bool(re.match(date_pattern("%b %d %Y"), "Jun 12 1998"))
    True
    """
    parts = re.split(r"%(.)", form)
    literals, directives = parts[::2], parts[1::2]
    if any(directive not in DIRECTIVES for directive in directives) or any("%" in literal for literal in literals):
        raise ValueError(form)

    groups = [DIRECTIVES[directive][4] for directive in directives]
    if len(set(groups)) != len(groups) or "y" not in groups or len({"m", "b"} & set(groups)) != 1:
        raise ValueError(form)

    written = [re.escape(literal).replace(r"\ ", " +") for literal in literals]
    inner = (
        "".join(text + DIRECTIVES[directive] for text, directive in zip(written, directives, strict=False))
        + written[-1]
    )
    return f"^{inner}{TIME}$"


def has_day(form: str) -> bool:
    """Return whether a format names a day."""
    return not form or "%d" in form


def month_numbers() -> dict[str, int]:
    """Return the number of each month by its name, and by its first three letters."""
    names = {name: number for number, name in enumerate(MONTH_NAMES, 1)}
    return {**names, **{name[:3]: number for name, number in names.items()}, "sept": 9}
