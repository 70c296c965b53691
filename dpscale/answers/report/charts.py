"""Charts of the report, as template values or as compact SVG that is written directly.

*Tables.* A one-way table is drawn in a box of 1000 x 100 units that the page stretches. A histogram has bars
proportional to the widths of the bins and shows the density, records per 1 on the axis. An estimate whose interval
contains 0 is marked, and a count whose interval begins below it.

*Plots.* Points, lines and bars on linear or logarithmic axes. Importing matplotlib takes longer than the rest of a
small job, so only rarer figures (`figures`) use it. Colours and texts follow the page, light or dark.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import product
from typing import Any

import numpy as np

from dpscale.base.display import between, figure, rounded
from dpscale.base.numerics import Floats
from dpscale.domain.attribute import Attribute

FEW_CELLS = 24  # cells with a row each; more are drawn as a chart
LISTED_CELLS = 60  # cells of a chart with a list of values
BOX_WIDTH, BOX_HEIGHT = 1000, 100  # units of the box of a table, which the page stretches
NARROWEST = 1 / 300  # share of the axis below which a bin is not visible
TICKS = 4  # approximate number of steps of an axis of numbers; most labels of an axis of cells
WIDTH_OF_95 = 1.96  # standard errors in half an interval, for the digits that are shown
Tick = tuple[str, float]  # text, and place in percent of the axis


def single(
    names: Sequence[str],
    labels: Sequence[Sequence[str]],
    values: Floats,
    half: Floats,
    attribute: Attribute | None,
    unit: str = "records",
) -> dict[str, Any]:
    """Return the template values of a one-way table of counts.

    Parameters
    ----------
    names : sequence of str
        The attribute.
    labels : sequence of sequence of str
        Labels of its cells.
    values, half : ndarray, shape (cells,)
        Estimates and half widths of their intervals, nan if they are not known.
    attribute : Attribute or None
        Its bins give the axis of a histogram, unless they have labels for readers.
    unit : str
        What is counted.

    Returns
    -------
    dict
        Those of `statistic`, and `chart`: values of the chart, or None for a row per cell; `listed`: whether the values
        are listed below the chart.
    """
    edges = _edges(attribute)
    is_part = edges is not None and len(edges) > len(values) + 1
    if is_part or (attribute is not None and attribute.words.labels):  # labels are clearer than an axis
        edges = None
    widths = half if np.isfinite(half).all() else np.zeros_like(half)
    chart = None if edges is None and len(values) <= FEW_CELLS else _chart(labels[0], values, widths, edges, unit)
    template_values = statistic(names[0], labels[0], values, values - half, values + half, half / WIDTH_OF_95, unit, 0)
    return template_values | {"chart": chart, "listed": len(values) <= LISTED_CELLS}


def statistic(
    name: str,
    labels: Sequence[str],
    values: Floats,
    low: Floats,
    high: Floats,
    errors: Floats,
    unit: str,
    decimals: int = 12,
) -> dict[str, Any]:
    """Return the template values of estimates with intervals, a row with a bar each.

    Bars start at 0. The axis of a count (`decimals` = 0) starts at 0 too; others start at the least value or end below
    0.

    Parameters
    ----------
    name : str
        The attribute, or another title.
    labels : sequence of str
    values, low, high, errors : ndarray
        Estimates, ends of their intervals and standard errors, nan if they are not known.
    unit : str
    decimals : int
        Largest number of decimals.

    Returns
    -------
    dict
        name; unit; known: whether there are intervals; zero: whether an interval contains 0, or of a count begins below
        it; `rows` with label, text, interval, zero, and the ends of bar and interval in percent of the axis; ticks: the
        axis.
    """
    known = bool(np.isfinite(low).any())
    is_count = decimals == 0
    zero = np.isfinite(low) & (low <= 0) & ((high >= 0) | is_count) & (low < high)
    ends = np.nan_to_num(np.concatenate([values, high] if is_count else [values, low, high]))
    bottom, top = min(float(ends.min(initial=0)) if decimals else 0.0, 0.0), float(ends.max(initial=0))
    top = max(top, bottom + 1e-9)

    def places(a: Floats, b: Floats) -> list[tuple[float, float]]:
        """Return the starts and lengths of spans in percent of the axis; (0, 0) for unknown ones."""
        first, last = (100 * (np.clip(np.nan_to_num(end), bottom, top) - bottom) / (top - bottom) for end in (a, b))
        return list(zip(np.minimum(first, last).tolist(), np.abs(last - first).tolist(), strict=True))

    rows = [
        {"label": label, "text": rounded(value, error, decimals), "interval": between(a, b, error, decimals),
         "zero": hollow, "bar": bar, "line": line if math.isfinite(a) else None}
        for label, value, a, b, error, hollow, bar, line in zip(
            labels, values.tolist(), low.tolist(), high.tolist(), errors.tolist(), zero.tolist(),
            places(np.zeros_like(values), values), places(low, high), strict=True)
    ]  # fmt: skip
    return {"name": name, "unit": unit, "known": known, "zero": zero.tolist(), "rows": rows,
            "ticks": ticks(top, bottom), "chart": None, "download": None}  # fmt: skip


def pair(
    names: Sequence[str], labels: Sequence[Sequence[str]], values: Floats, half: Floats | None = None
) -> dict[str, Any]:
    """Return the template values of a two-way table; `half` has the half widths of intervals.

    `share` of a cell is the percentage of colour in its background. Without known errors no half width is shown.
    """
    known = half is not None and bool(np.isfinite(half).all())
    widths = half if half is not None and known else np.zeros_like(values)
    errors = widths / WIDTH_OF_95
    zero = may_be_zero(values, widths) if known else np.zeros_like(values, bool)
    most = max(float(values.max()), 1e-9)
    cells = []
    for row in zip(values.tolist(), widths.tolist(), errors.tolist(), zero.tolist(), strict=True):
        cells.append([{"text": rounded(value, error, 0), "half": rounded(width, error, 0) if known else "",
                       "zero": hollow, "share": 45 * max(value, 0.0) / most}
                      for value, width, error, hollow in zip(*row, strict=True)])  # fmt: skip
    return {"names": names, "labels": labels, "cells": cells, "known": known, "zero": zero.tolist(), "download": None}


def may_be_zero(values: Floats, half: Floats) -> Any:
    """Return whether the interval of a count begins at 0 or below, so that the count may be 0."""
    return np.isfinite(half) & (half > 0) & (values <= np.nan_to_num(half))


def ticks(top: float, bottom: float = 0.0) -> list[Tick]:
    """Return round values between two ends of an axis, with their places in percent.

    The step is 1, 2 or 5 times a power of 10, with about TICKS steps over the span.
    """
    span = top - bottom
    power = 10.0 ** math.floor(math.log10(span / TICKS))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power * TICKS >= 0.8 * span)
    first, last = math.ceil(bottom / step - 1e-9), math.floor(top / step + 1e-9)
    return [(figure(number * step), 100 * (number * step - bottom) / span) for number in range(first, last + 1)]


def csv_text(names: Sequence[str], labels: Sequence[Sequence[str]], values: Floats, half: Floats) -> str:
    """Return a table of cells, row-major, as CSV with the columns estimate, low and high."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "estimate", "low", "high"])
    for cell, value, width in zip(product(*labels), values.ravel().tolist(), half.ravel().tolist(), strict=True):
        ends = (f"{value - width:.6g}", f"{value + width:.6g}") if math.isfinite(width) else ("", "")
        writer.writerow([*cell, f"{value:.6g}", *ends])
    return text.getvalue()


def _edges(attribute: Attribute | None) -> Floats | None:
    """Return the edges of bins of different visible widths; None for other attributes.

    None also for bins of equal width, and if the narrowest is too narrow to be visible.
    """
    if attribute is None or attribute.kind != "bins" or attribute.listed < 2:
        return None
    edges = np.asarray(attribute.edges, np.float64)
    widths = np.diff(edges)
    if widths.max() <= widths.min() * (1 + 1e-9) or widths.min() < NARROWEST * (edges[-1] - edges[0]):
        return None
    return edges


def _chart(labels: Sequence[str], values: Floats, half: Floats, edges: Floats | None, unit: str) -> dict[str, Any]:
    """Return paths, axes and unit of a chart; cells beyond the bins are not on its axis.

    `shown` has labels and places on the axis in percent; `bars` are SVG paths. Hollow bars may be zero.

    A histogram has `edges`, whose cells are the first of `values`; cells of nulls and outside values follow and are not
    drawn. Without edges every cell has the width 1. `half` is half the width of the intervals, drawn as whiskers.
    """
    if edges is None:
        edges = np.arange(len(values) + 1, dtype=np.float64)
        step = -(-len(values) // TICKS)
        shown = [(labels[cell], 100 * (cell + 0.5) / len(values)) for cell in range(0, len(values), step)]
    else:
        unit, shown = f"{unit} per 1 on the axis", ticks(float(edges[-1]), float(edges[0]))

    cells = len(edges) - 1
    widths = np.diff(edges)
    # density: a bar's area is the number of records
    heights, spread = values[:cells] / widths, half[:cells] / widths
    top = max(float((heights + spread).max()), 1e-9)
    x = BOX_WIDTH * (edges - edges[0]) / (edges[-1] - edges[0])
    zero = may_be_zero(values[:cells], half[:cells])
    level, low, high = (_height(values_at, top) for values_at in (heights, heights - spread, heights + spread))
    # a and b are the left and right end of a bar, y its top; p and q below the ends of a whisker
    bars = [f"M{a:.0f} {BOX_HEIGHT}V{y:.1f}H{b:.0f}V{BOX_HEIGHT}" for a, b, y in zip(x[:-1], x[1:], level, strict=True)]

    return {
        "bars": "".join(bar for bar, is_hollow in zip(bars, zero, strict=True) if not is_hollow),
        "hollow": "".join(bar for bar, is_hollow in zip(bars, zero, strict=True) if is_hollow),
        "whiskers": "".join(f"M{(a + b) / 2:.0f} {p:.1f}V{q:.1f}" for a, b, p, q in zip(x[:-1], x[1:], low, high,
                                                                                       strict=True) if p != q),
        "unit": unit, "x": shown, "y": ticks(top), "cells": cells, "beyond": len(values) - cells,
    }  # fmt: skip


def _height(values: Floats, top: float) -> list[float]:
    return list((BOX_HEIGHT * (1 - np.clip(values / top, 0, 1))).tolist())


WIDTH, HEIGHT = 640, 310  # pixels of a plot; the height is a default
LEFT, RIGHT, TOP, BOTTOM = 76, 20, 8, 44  # margins
BAR = 30  # height of a bar with its gap
# lines of the plot of weights; points of such a line; colours of the page, --c0 to --c4, which curves use in turn
LINES, MOST_POINTS, COLOURS = 8, 1000, 5
PLACES = 2  # decimals of a logarithm, finer than a point is
LEAST_RATIO = 4.0  # of the ends of a logarithmic axis
FEW_DECADES = 2.5  # below which 2 and 5 have ticks too
SIZES = {"point": 4.5, "dash": 1.5, "line": 1.5}
TEXT = 'font-size="12" fill="currentColor"'


@dataclass(frozen=True)
class PlotAxis:
    """Linear or logarithmic axis between two values."""

    name: str
    low: float
    high: float
    logarithmic: bool = False
    whole: bool = False  # ticks at integers alone

    def places(self, values: Floats) -> Floats:
        """Return the places of values on the axis, between 0 and 1."""
        if self.logarithmic:
            span = math.log10(self.high / self.low)
            return np.asarray(np.log10(np.asarray(values) / self.low) / span)
        return np.asarray((np.asarray(values) - self.low) / (self.high - self.low))

    def ticks(self) -> list[Tick]:
        """Return texts and places in percent; those of a logarithmic axis are powers of 10, or also 2 and 5 times."""
        if self.whole:
            step = max(math.ceil((self.high - self.low) / 8), 1)
            numbers = np.arange(math.ceil(self.low), math.floor(self.high) + 1, step, dtype=np.float64)
            return [
                (f"{number:.0f}", at) for number, at in zip(numbers, (100 * self.places(numbers)).tolist(), strict=True)
            ]

        if not self.logarithmic:
            return ticks(self.high, self.low)

        low, high = math.log10(self.low), math.log10(self.high)
        # at most about eight powers of 10
        step = max(math.ceil((high - low) / 8), 1)
        factors = (1, 2, 5) if high - low < FEW_DECADES else (1,)
        powers = range(math.floor(low), math.ceil(high) + 1)
        values = [factor * 10.0**power for power in powers if power % step == 0 for factor in factors]
        shown = [value for value in values if self.low <= value <= self.high]
        places = 100 * self.places(np.array(shown))

        return [(_power_text(value), place) for value, place in zip(shown, places.tolist(), strict=True)]


def _power_text(value: float) -> str:
    """Return 1, 2 or 5 times a power of 10 as a short text."""
    if 1e-4 < value < 1e6:
        return f"{value:,g}"
    factor, power = f"{value:.0e}".split("e")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if factor == "1" else f"{factor}·10{raised}"


@dataclass(frozen=True, eq=False)
class Series:
    """Values of a plot with one colour: mark is "point", "dash" or "line"; `ends` are those of their intervals."""

    name: str
    x: Floats
    y: Floats
    mark: str = "point"
    ends: tuple[Floats, Floats] | None = None


def logarithmic_axis(name: str, values: Iterable[Floats]) -> PlotAxis:
    """Return a logarithmic axis around positive values."""
    numbers = np.concatenate([np.asarray(value, np.float64) for value in values])
    low, high = float(numbers.min()), float(numbers.max())
    room = max((LEAST_RATIO * low / high) ** 0.5, (high / low) ** 0.04)
    return PlotAxis(name, low / room, high * room, logarithmic=True)


def linear_axis(name: str, values: Iterable[Floats]) -> PlotAxis:
    """Return a linear axis around values."""
    numbers = np.concatenate([np.asarray(value, np.float64) for value in values])
    low, high = float(numbers.min()), float(numbers.max())
    room = 0.05 * (high - low) or 0.5
    return PlotAxis(name, low - room, high + room)


def plot(x: PlotAxis, y: PlotAxis, series: Sequence[Series], height: int = HEIGHT, level: float | None = None) -> str:
    """Return a plot of series as SVG.

    Parameters
    ----------
    x, y : PlotAxis
    series : sequence of Series
        One colour each, in turn.
    height : int
        In pixels of a page of 640 pixels.
    level : float, optional
        A dotted horizontal line.
    """
    bottom = height - BOTTOM
    drawn = [_path(curve, x, y, bottom, number % COLOURS) for number, curve in enumerate(series)]
    if level is not None:
        at = _y(y, np.array([level]), bottom)[0]
        drawn.insert(0, f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="var(--soft)" stroke-dasharray="2 3"/>')

    legend, above = _legend(series), 16 * len(series)
    body = f'<g transform="translate(0 {above})">{_frame(x, y, bottom)}{"".join(drawn)}</g>'
    return _figure(f"{y.name} by {x.name}", height + above, [legend, body])


def error_plot(errors_by_set: Mapping[str, tuple[Floats, Floats]]) -> str:
    """Plot root mean square standard errors of sets against their numbers of queries, by family; "" without any.

    Points that would cover each other are drawn once; sets without error are left out.

    `errors_by_set` has (queries, errors) of the sets by family. Points are rounded to PLACES decimals of their
    logarithms.
    """
    series = []
    for family, points in errors_by_set.items():
        known = np.array(points, float)[:, np.isfinite(points[1]) & (points[1] > 0)]
        queries, errors = 10.0 ** np.unique(np.round(np.log10(known), PLACES), axis=1)
        series += [Series(family, queries, errors)] if len(queries) else []

    if not series:
        return ""

    x = logarithmic_axis("queries of the attribute set", [curve.x for curve in series])
    y = logarithmic_axis("standard error (records)", [curve.y for curve in series])
    return plot(x, y, series)


def share_plot(measured: Mapping[tuple[str, ...], float]) -> str:
    """Plot the budget share of measurements by number of attributes; "" if it is unknown."""
    shares: dict[int, float] = {}
    for attributes, share in measured.items():
        shares[len(attributes)] = shares.get(len(attributes), 0.0) + share
    if not shares:
        return ""

    most, bars = max(shares.values()) or 1.0, []
    for row, degree in enumerate(sorted(shares)):
        # the longest bar fills the width between the labels and the figures
        top, length = BAR * row + TOP, (WIDTH - 2 * LEFT - RIGHT) * shares[degree] / most
        middle = f'y="{top + 14}"'
        bars.append(
            f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="20" fill="var(--c0)"/>'
            f'<text x="{LEFT - 8}" {middle} text-anchor="end" {TEXT}>{degree}-way</text>'
            f'<text x="{LEFT + length + 6:.1f}" {middle} {TEXT}>{100 * shares[degree]:.1f} %</text>'
        )

    return _figure("share of the budget by number of attributes", BAR * len(shares) + 2 * TOP, bars)


def weight_plot(profiles: Mapping[str, Floats]) -> str:
    """Plot the weights of each attribute's average, times the number of cells; the plain mean is 1.

    Attributes with equal weights share a line; "" if all attributes use the plain mean.
    """
    groups: dict[bytes, list[str]] = {}
    for name, profile in profiles.items():
        groups.setdefault(profile.tobytes(), []).append(name)
    series = [_weights(profiles[names[0]], names) for names in list(groups.values())[:LINES]]
    if not series:
        return ""

    x = PlotAxis("place on the axis, first cell to last", 0.0, 1.0)
    y = linear_axis("weight of a cell, in 1/n", [np.ones(1), *(curve.y for curve in series)])
    return plot(x, y, series, 250, level=1.0)


def _weights(profile: Floats, names: Sequence[str]) -> Series:
    """Return the weights of at most `MOST_POINTS` cells in the middle of each."""
    cells = np.unique(np.linspace(0, len(profile) - 1, min(len(profile), MOST_POINTS)).astype(np.int64))
    label = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    return Series(name=label, x=(cells + 0.5) / len(profile), y=profile[cells] * len(profile), mark="line")


def trace_plot(trace: Sequence[Mapping[str, Any]]) -> str:
    """Plot the change of the estimates by each measurement and its expected noise, by round; "" without any.

    Rows of a round are spread over 0.6 of its width by their rank.
    """
    trace = [row for row in trace if row["attributes"] and 0 < row["expected_noise"] < math.inf > row["moved"]]
    if not trace:
        return ""

    many = Counter(row["round"] for row in trace)
    places = np.array([row["round"] - 0.3 + 0.6 * (row["rank"] + 0.5) / many[row["round"]] for row in trace])
    moved = np.array([max(row["moved"], 1e-3) for row in trace])
    noise = np.array([row["expected_noise"] for row in trace])
    series = [
        Series("change of the selected marginal's estimate", places, moved),
        Series(name="expected noise of its measurement", x=places, y=noise, mark="dash"),
    ]
    y = logarithmic_axis("L1 distance (records)", [moved, noise])

    return plot(replace(linear_axis("round", [places]), whole=True), y, series)


def _x(axis: PlotAxis, values: Floats) -> Floats:
    return np.asarray(LEFT + (WIDTH - LEFT - RIGHT) * axis.places(values))


def _y(axis: PlotAxis, values: Floats, bottom: int) -> Floats:
    return np.asarray(bottom - (bottom - TOP) * axis.places(values))


def _path(series: Series, x: PlotAxis, y: PlotAxis, bottom: int, colour: int) -> str:
    """Return the marks of a series as one path; a point is a line of length 0 with round ends.

    In a path M moves to a place, h and V draw a horizontal and a vertical line. A line joins the known values, a dash
    is 6 pixels wide, and the `ends` of an interval are joined by a vertical line. `bottom` is the margin below the
    axis.
    """
    known = np.isfinite(series.y)
    at = zip(_x(x, series.x[known]).tolist(), _y(y, series.y[known], bottom).tolist(), strict=True)
    if series.mark == "line":
        steps = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in at) if known.any() else ""
    elif series.mark == "dash":
        steps = "".join(f"M{a - 3:.1f} {b:.1f}h6" for a, b in at)
    else:
        steps = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in at)
    if series.ends is not None:
        places = (_x(x, series.x), *(_y(y, end, bottom) for end in series.ends))
        steps += "".join(f"M{a:.1f} {p:.1f}V{q:.1f}" for a, p, q in zip(*places, strict=True) if np.isfinite(p + q))

    return (
        f'<path d="{steps}" fill="none" stroke="var(--c{colour})" stroke-width="{SIZES[series.mark]}" '
        f'stroke-linecap="round" stroke-linejoin="round" stroke-opacity=".8"/>'
    )


def _frame(x: PlotAxis, y: PlotAxis, bottom: int) -> str:
    """Return the lines, ticks and names of both axes."""
    end, middle = WIDTH - RIGHT, (bottom + TOP) / 2
    parts = [f'<path d="M{LEFT} {TOP}V{bottom}H{end}" fill="none" stroke="var(--soft)"/>']
    for text, share in x.ticks():
        at = LEFT + (end - LEFT) * share / 100
        parts.append(
            f'<path d="M{at:.1f} {bottom}v4" stroke="var(--soft)"/>'
            f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="middle" {TEXT}>{text}</text>'
        )

    for text, share in y.ticks():
        at = bottom - (bottom - TOP) * share / 100
        parts.append(
            f'<path d="M{LEFT} {at:.1f}h-4" stroke="var(--soft)"/>'
            f'<text x="{LEFT - 7}" y="{at + 4:.1f}" text-anchor="end" {TEXT}>{text}</text>'
        )

    parts.append(f'<text x="{(LEFT + end) / 2}" y="{bottom + 36}" text-anchor="middle" {TEXT}>{escape(x.name)}</text>')
    parts.append(
        f'<text transform="translate(13 {middle}) rotate(-90)" text-anchor="middle" {TEXT}>{escape(y.name)}</text>'
    )
    return "".join(parts)


def _legend(series: Sequence[Series]) -> str:
    """Return the names of series with their colours, above the axes."""
    rows = []
    for number, curve in enumerate(series):
        at = 10 + 16 * number
        colour = f'stroke="var(--c{number % COLOURS})" stroke-width="4"'
        rows.append(
            f'<path d="M{LEFT} {at}h10" {colour}/><text x="{LEFT + 16}" y="{at + 4}" {TEXT}>{escape(curve.name)}</text>'
        )
    return "".join(rows)


def _figure(label: str, height: int, parts: Iterable[str]) -> str:
    """Return an SVG element of width WIDTH with the given parts; `label` is its text for screen readers."""
    return (
        f'<svg role="img" aria-label="{escape(label)}" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}">{"".join(parts)}</svg>'
    )
