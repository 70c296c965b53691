"""Pictures of sheets: a cross table of two attributes, and lines over the periods of a growing release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpscale.answers.report.charts import COLOURS, PlotAxis, Series, Tick, pair, plot
from dpscale.answers.tables import SIDE
from dpscale.base.display import whole
from dpscale.base.numerics import Floats, Integers

MOST_TICKS = 6  # names of periods on the axis of a plot
APART = 0.06  # of the lines of a plot, in periods


@dataclass(frozen=True, eq=False)
class SheetLabels:
    """Labels of a column: its name and title, texts for readers in their order, and the place of each row's text."""

    name: str
    title: str
    shown: Sequence[str]
    codes: Integers


@dataclass(frozen=True)
class PeriodAxis(PlotAxis):
    """Axis of periods in their order."""

    labels: tuple[str, ...] = ()

    def ticks(self) -> list[Tick]:
        """Return the names of some periods with their places in percent."""
        step = -(-len(self.labels) // MOST_TICKS)
        places = np.arange(0, len(self.labels), step)
        return list(zip(self.labels[::step], (100 * self.places(places.astype(np.float64))).tolist(), strict=True))


def cross_table(labels: Sequence[SheetLabels], figures: Mapping[str, Floats | None]) -> dict[str, Any] | None:
    """Return the template values of a small table of counts with two attributes, one down and one across."""
    sizes = tuple(len(one.shown) for one in labels)
    counts = figures["count"]
    if len(sizes) != 2 or max(sizes) > SIDE or counts is None or counts.size != sizes[0] * sizes[1]:
        return None
    if figures["value"] is not None:
        return None
    drawn = pair([one.title for one in labels], [one.shown for one in labels], np.nan_to_num(counts).reshape(sizes))
    for cell, count in zip((cell for row in drawn["cells"] for cell in row), counts.tolist(), strict=True):
        cell["text"] = whole(count)
    return drawn


def series_plot(labels: Sequence[SheetLabels], figures: Mapping[str, Floats | None], unit: str) -> str:
    """Plot the cells that are largest in the last period over all periods; "" for a single period.

    Values have the period as the first axis. Lines of several cells are shifted by APART, so that their intervals do
    not cover each other.
    """
    periods = labels[0].shown
    # counts, or the values of sums and means
    value = figures["count"] if figures["value"] is None else figures["value"]
    assert value is not None
    if len(periods) < 2 or len(value) % len(periods) or not np.isfinite(value).any():
        return ""
    low, high = (value if own is None else own for own in (figures["low"], figures["high"]))
    values, low, high = (own.reshape(len(periods), -1) for own in (value, low, high))
    cells = np.argsort(-np.nan_to_num(values[-1], nan=-np.inf), kind="stable")[:COLOURS]
    names = [", ".join(one.shown[one.codes[cell]] for one in labels[1:]) or "all records" for cell in cells]
    places = np.arange(len(periods), dtype=np.float64)
    # shifts around 0
    apart = APART * (np.arange(len(cells)) - (len(cells) - 1) / 2)
    series = [
        Series(name=name, x=places + shift, y=values[:, cell], mark="line", ends=(low[:, cell], high[:, cell]))
        for name, cell, shift in zip(names, cells, apart, strict=True)
    ]
    # the axis includes 0
    ends = np.concatenate([np.zeros(1), low[:, cells].reshape(-1), high[:, cells].reshape(-1)])
    bottom, top = np.nanmin(ends), np.nanmax(ends)
    x = PeriodAxis(labels[0].title, -0.3, len(periods) - 0.7, labels=tuple(periods))
    return plot(x, PlotAxis(unit, float(bottom), float(top) * 1.03 or 1.0), series)
