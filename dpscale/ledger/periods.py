"""Periods of the data that a release reads, and the months or years of caps that renew.

A release names the periods whose records it reads by the labels of a date attribute: days, weeks, months, quarters or
years. A cap renews by month or by year. A label is in every month, or year, with which it has a day in common.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from functools import lru_cache

from dpscale.base.display import safe_repr
from dpscale.base.errors import JobError
from dpscale.domain.attribute import NAMES, first_day, name_of, number_of, read_period

RENEWALS = ("month", "year")  # periods by which a cap renews
TAKES = "labels of a date attribute, such as 2026-02-28, 2026-W09, 2026-02, 2026-Q1 or 2026"
Periods = tuple[str, ...]


def checked_periods(periods: object) -> Periods:
    """Return the labels of periods, sorted, each once. Raises JobError if one is not the name of a period."""
    if isinstance(periods, str) or not isinstance(periods, Sequence):
        raise JobError("periods", f"got {safe_repr(periods)}", f"a list of {TAKES}", 'pass a list, as ["2026-02"]')
    labels = [f"{one:04}" if isinstance(one, int) and not isinstance(one, bool) else one for one in periods]
    for label in labels:
        if not isinstance(label, str):
            raise _unknown(label)
        _days(label)
    return tuple(sorted(set(labels)))


def checked_renewal(period: object) -> str:
    """Return the period by which a cap renews. Raises JobError if caps do not renew by it."""
    if period not in RENEWALS:
        raise JobError("cap.period", f"got {safe_repr(period)}", " or ".join(RENEWALS),
                       "name one of them, or leave it out")  # fmt: skip
    return str(period)


def periods_to_text(periods: Periods) -> str:
    """Serialise labels as JSON; a release that reads no named period has an empty list."""
    return json.dumps(list(periods))


def periods_of_text(text: str | None) -> Periods:
    """Parse a text written by `periods_to_text`; rows of older ledgers have none."""
    return tuple(json.loads(text)) if text else ()


@lru_cache(maxsize=4096)
def renewals_of(periods: Periods, by: str) -> frozenset[int]:
    """Return the numbers of the months, or years, that have a day in common with one of the periods."""
    found = set[int]()
    for first, last in map(_days, periods):
        found.update(range(number_of(by, first), number_of(by, last) + 1))
    return frozenset(found)


def renewal_name(by: str, number: int) -> str:
    """Return the label of a month or year."""
    return str(name_of(by, number))


def shown_renewal(labels: Iterable[str]) -> str:
    """Return the period by which sums are shown without a cap by period: years if all labels are years."""
    return "year" if all(re.fullmatch(NAMES["year"][0], label) for label in labels) else "month"


@lru_cache(maxsize=16384)
def _days(label: str) -> tuple[date, date]:
    """Return the first and the last day of a period."""
    for by, (form, _) in NAMES.items():
        if re.fullmatch(form, label, re.ASCII):
            try:
                number = read_period(by, label)
            except ValueError:
                break
            return first_day(by, number), _last_day(by, number)
    raise _unknown(label)


def _unknown(label: object) -> JobError:
    return JobError("periods", f"got {safe_repr(label)}", TAKES, "name every period as the date attribute does")


def _last_day(by: str, number: int) -> date:
    try:
        return first_day(by, number + 1) - timedelta(days=1)
    except (ValueError, OverflowError):  # the calendar ends
        return date.max
