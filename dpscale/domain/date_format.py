"""Formats of dates in texts, such as %d/%m/%Y, for attributes of kind date.

A format has the directives of `strptime` for a year (%Y, %y), a month (%m, %b or %B, in English) and a day (%d). A time
may follow the date; it decides nothing but the day of a time with a zone. Without a day the text names its month.
"""

from __future__ import annotations

import re
from functools import cache

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


@cache
def date_pattern(form: str) -> str:
    """Return a regular expression with the groups y, m or b, d, h, i, s and z.

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
