"""Dates of rows in the type of their column: days, times, or texts in the format of the attribute."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import numpy as np

from dpscale.base.arrow import is_text, pa
from dpscale.base.numerics import Flags, Integers
from dpscale.domain.attribute import EPOCH, Attribute
from dpscale.domain.schema_values import DAY, MONTH_NAMES
from dpscale.privacy.streams import PublicStream

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
LAST = (date.max - EPOCH).days
START = datetime(1970, 1, 1, tzinfo=UTC)  # seconds of days count from it


def date_column(
    attribute: Attribute, days: Integers, null: Flags, wanted: pa.DataType | None, stream: PublicStream | None = None
) -> pa.Array:
    """Return days since 1970 in the type `wanted` if they fit it, otherwise as date32.

    Parameters
    ----------
    attribute : Attribute
        A date.
    days : ndarray of int, shape (n,)
    null : ndarray of bool, shape (n,)
    wanted : pyarrow.DataType or None
        Times with a zone are those of the attribute's zone, or UTC, in which records are assigned to days.
    stream : PublicStream, optional
        Stream of uniform times of day; by default every time is the first of its day.
    """
    if wanted is not None and is_text(wanted):
        return pa.array(_texts(attribute.format, days), wanted, mask=null)
    if wanted is None or not pa.types.is_timestamp(wanted):
        plain = pa.array(days.astype(np.int32), pa.date32(), mask=null)
        return plain.cast(pa.date64()) if wanted == pa.date64() else plain
    begins, ends = _day_ends(days, attribute.zone if wanted.tz else "")
    unit = PER_SECOND[wanted.unit]
    if len(days) and max(-int(begins.min()), int(ends.max())) >= (1 << 63) // unit:
        return pa.array(days.astype(np.int32), pa.date32(), mask=null)
    ticks = begins * unit
    if stream is not None:
        ticks += np.floor(stream.uniforms(len(days)) * ((ends - begins) * unit)).astype(np.int64)
    return pa.array(ticks, pa.int64(), mask=null).cast(wanted)


def _texts(form: str, days: Integers) -> list[str]:
    distinct, rows = np.unique(days, return_inverse=True)
    texts = [_text(form or "%Y-%m-%d", EPOCH + timedelta(day)) for day in distinct.tolist()]
    return [texts[row] for row in rows.tolist()]


def _text(form: str, day: date) -> str:
    """Return a day in a format; names of months are English in every locale."""
    month = MONTH_NAMES[day.month - 1].capitalize()
    parts = {"%Y": f"{day.year:04}", "%y": f"{day.year % 100:02}", "%m": f"{day.month:02}", "%d": f"{day.day:02}",
             "%b": month[:3], "%B": month}  # fmt: skip
    for directive, text in parts.items():
        form = form.replace(directive, text)
    return form


def _day_ends(days: Integers, zone: str) -> tuple[Integers, Integers]:
    """Return the first second of each day in a zone, and that of the next day, since 1970 in UTC."""
    days = days.astype(np.int64)
    if zone in ("", "UTC"):
        return days * DAY, (days + 1) * DAY
    distinct, rows = np.unique(days, return_inverse=True)
    begins = np.array([max(_midnight(day, zone, fold) for fold in (0, 1)) for day in distinct.tolist()], np.int64)
    ends = np.array([_midnight(day + 1, zone, 0) for day in distinct.tolist()], np.int64)
    return begins[rows], np.maximum(begins, ends)[rows]


def _midnight(day: int, zone: str, fold: int) -> int:
    """Return the instant of a local midnight; the last second of the calendar for a day beyond it."""
    from zoneinfo import ZoneInfo

    known = EPOCH + timedelta(min(day, LAST))
    local = datetime(known.year, known.month, known.day, tzinfo=ZoneInfo(zone), fold=fold)
    return (local - START) // timedelta(seconds=1) + (day > LAST) * DAY
