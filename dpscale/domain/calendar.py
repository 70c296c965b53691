"""Periods of the calendar by number: days, ISO weeks (from Monday), months, quarters and years, in the order of time.

Number 0 has 1 January 1970 in it. Names sort as numbers do: 2025-01-31, 2025-W05, 2025-01, 2025-Q1, 2025.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

PERIODS = ("day", "week", "month", "quarter", "year")
MONTHS = {"month": 1, "quarter": 3, "year": 12}
EPOCH = date(1970, 1, 1)
NAMES = {
    "day": (r"(\d{4})-(\d\d)-(\d\d)", "a day, as 2025-01-31"),
    "week": (r"(\d{4})-W(\d\d)", "a week, as 2025-W05, or a day of it"),
    "month": (r"(\d{4})-(\d\d)", "a month, as 2025-01, or a day of it"),
    "quarter": (r"(\d{4})-Q([1-4])", "a quarter, as 2025-Q1, or a day of it"),
    "year": (r"(\d{4})", "a year, as 2025, or a day of it"),
}


def numbered(by: str, days: NDArray[np.int64]) -> NDArray[np.int64]:
    """The periods that days are in. `days`: since 1 January 1970."""
    if by == "day":
        return days
    if by == "week":
        return (days + 3) // 7
    return days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) // MONTHS[by]


def number_of(by: str, day: date) -> int:
    """The period that a day is in."""
    return int(numbered(by, np.array([(day - EPOCH).days]))[0])


def first_day(by: str, number: int) -> date:
    """The day that a period begins with; a week of the year 1 may begin before it, and has its first day."""
    if by in MONTHS:
        year, month = divmod(number * MONTHS[by], 12)
        return date(1970 + year, month + 1, 1)
    days = number if by == "day" else 7 * number - 3
    return EPOCH + timedelta(max(days, (date.min - EPOCH).days))


def name_of(by: str, number: int) -> str | int:
    """What a period is called: a year by its number, the others by a text."""
    day = first_day(by, number)
    if by == "day":
        return day.isoformat()
    if by == "week":
        year, week, _ = day.isocalendar()
        return f"{year:04}-W{week:02}"
    if by == "year":
        return day.year
    return f"{day.year:04}-{day.month:02}" if by == "month" else f"{day.year:04}-Q{(day.month + 2) // 3}"


def read_period(by: str, told: Any) -> int:
    """The number of a period that is told by its name or a day of it; ValueError for what is neither."""
    if isinstance(told, date):
        return number_of(by, date(told.year, told.month, told.day))
    text = str(told) if isinstance(told, str | int) and not isinstance(told, bool) else ""
    own, day = re.fullmatch(NAMES[by][0], text), re.fullmatch(NAMES["day"][0], text)
    if own is None and day is None:
        raise ValueError(NAMES[by][1])
    if own is None:
        return number_of(by, date.fromisoformat(text))
    return number_of(by, _begins(by, [int(part) for part in own.groups()]))


def _begins(by: str, parts: list[int]) -> date:
    if by == "week":
        return date.fromisocalendar(parts[0], parts[1], 1)
    if by == "quarter":
        return date(parts[0], 3 * parts[1] - 2, 1)
    return date(*[*parts, 1, 1][:3])
