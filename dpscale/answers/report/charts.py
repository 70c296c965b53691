"""One-way and two-way tables of the report: template values of bars, histograms and heat maps with their axes.

A chart is drawn in a box of 1000 x 100 units that the page stretches. A histogram has bars proportional to the widths
of the bins and shows the density, records per 1 on the axis. An estimate whose interval contains 0 is marked.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from dpscale.base.display import figure
from dpscale.base.numerics import Floats
from dpscale.domain.attribute import Attribute

FEW_CELLS = 24  # cells with a row each; more are drawn as a chart
LISTED_CELLS = 60  # cells of a chart with a list of values
WIDTH, HEIGHT = 1000, 100
NARROWEST = 1 / 300  # share of the axis below which a bin is not visible
TICKS = 4
Tick = tuple[str, float]  # text, and place in percent of the axis


def single(
    names: Sequence[str],
    labels: Sequence[Sequence[str]],
    values: Floats,
    half: Floats,
    attribute: Attribute | None,
    unit: str = "records",
) -> dict[str, Any]:
    """Return the template values of a one-way table.

    Parameters
    ----------
    names : sequence of str
        The attribute.
    labels : sequence of sequence of str
        Labels of its cells.
    values, half : ndarray, shape (cells,)
        Estimates and half widths of their intervals, nan if they are not known.
    attribute : Attribute or None
        Its bins give the axis of a histogram.
    unit : str
        What is counted.

    Returns
    -------
    dict
        names, labels, counts; low and high (None without errors); zero: whether intervals contain 0; ticks and top: the
        axis of records; chart: values of the chart, or None for a row per cell.
    """
    known = bool(np.isfinite(half).all())
    low, high = (values - half, values + half) if known else (values, values)
    edges = _edges(attribute)
    if edges is not None and len(edges) > len(values) + 1:  # a part of the cells
        edges = None
    found = {
        "names": names, "labels": labels, "counts": values.tolist(), "known": known, "unit": unit,
        "low": low.tolist() if known else [None] * len(values),
        "high": high.tolist() if known else [None] * len(values),
        "zero": contains_zero(values, half).tolist(), "chart": None, "listed": len(values) <= LISTED_CELLS,
    }  # fmt: skip
    if edges is None and len(values) <= FEW_CELLS:
        top = max(float(high.max()), 1e-9)
        return found | {"top": top, "ticks": ticks(top)}
    widths = half if known else np.zeros_like(half)
    return found | {"chart": _chart(labels[0], values, widths, edges, unit)}


def pair(
    names: Sequence[str], labels: Sequence[Sequence[str]], values: Floats, half: Floats | None = None
) -> dict[str, Any]:
    """Return the template values of a two-way table; `half` has the half widths of intervals."""
    known = half is not None and bool(np.isfinite(half).all())
    widths = half if half is not None and known else np.zeros_like(values)
    return {"names": names, "labels": labels, "counts": values.tolist(), "most": max(float(values.max()), 1e-9),
            "half": widths.tolist(), "known": known,
            "zero": (contains_zero(values, widths) if known else np.zeros_like(values, bool)).tolist(),
            "ends": (float(widths.min()), float(widths.max()))}  # fmt: skip


def contains_zero(values: Floats, half: Floats) -> Any:
    """Return whether the interval of an estimate contains 0, so that the estimate is indistinguishable from it."""
    return np.isfinite(half) & (half > 0) & (np.abs(values) <= np.nan_to_num(half))


def ticks(top: float, bottom: float = 0.0) -> list[Tick]:
    """Return round values between two ends of an axis, with their places in percent."""
    span = top - bottom
    power = 10.0 ** math.floor(math.log10(span / TICKS))
    step = next(one * power for one in (1, 2, 5, 10) if one * power * TICKS >= 0.8 * span)
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
    """Return the edges of bins of different visible widths; None for other attributes."""
    if attribute is None or attribute.kind != "bins" or attribute.listed < 2:
        return None
    edges = np.asarray(attribute.edges, np.float64)
    widths = np.diff(edges)
    if widths.max() <= widths.min() * (1 + 1e-9) or widths.min() < NARROWEST * (edges[-1] - edges[0]):
        return None
    return edges


def _chart(labels: Sequence[str], values: Floats, half: Floats, edges: Floats | None, unit: str) -> dict[str, Any]:
    """Return paths, axes and unit of a chart; cells beyond the bins are not on its axis."""
    if edges is None:
        edges = np.arange(len(values) + 1, dtype=np.float64)
        step = -(-len(values) // TICKS)
        shown = [(labels[cell], 100 * (cell + 0.5) / len(values)) for cell in range(0, len(values), step)]
    else:
        unit, shown = f"{unit} per 1 on the axis", ticks(float(edges[-1]), float(edges[0]))
    cells = len(edges) - 1
    widths = np.diff(edges)
    heights, spread = values[:cells] / widths, half[:cells] / widths
    top = max(float((heights + spread).max()), 1e-9)
    x = WIDTH * (edges - edges[0]) / (edges[-1] - edges[0])
    zero = contains_zero(values[:cells], half[:cells])
    level, low, high = (_height(one, top) for one in (heights, heights - spread, heights + spread))
    bars = [f"M{a:.0f} {HEIGHT}V{y:.1f}H{b:.0f}V{HEIGHT}" for a, b, y in zip(x[:-1], x[1:], level, strict=True)]
    return {
        "bars": "".join(bar for bar, own in zip(bars, zero, strict=True) if not own),
        "hollow": "".join(bar for bar, own in zip(bars, zero, strict=True) if own),
        "whiskers": "".join(f"M{(a + b) / 2:.0f} {p:.1f}V{q:.1f}" for a, b, p, q in zip(x[:-1], x[1:], low, high,
                                                                                       strict=True) if p != q),
        "unit": unit, "x": shown, "y": ticks(top), "cells": cells, "beyond": len(values) - cells,
    }  # fmt: skip


def _height(values: Floats, top: float) -> list[float]:
    return list((HEIGHT * (1 - np.clip(values / top, 0, 1))).tolist())
