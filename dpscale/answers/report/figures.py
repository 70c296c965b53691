"""Plots of the report, as inline SVG."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

LINES, MOST_POINTS = 8, 1000
PLACES = 2  # decimals of a logarithm, finer than a point is
COLOURS = ("#2f5d8a", "#c8553d", "#3d8a5f", "#8a6d2f", "#6d4b8a")


def error_plot(told: Mapping[str, tuple[Any, Any]]) -> str:
    """Root mean square standard errors of the answered sets against their numbers of queries, by family; "" for none.

    Points that would hide each other are drawn once.
    """
    if not told:
        return ""
    figure, axes = new_figure()
    for colour, (family, points) in zip(COLOURS * len(told), told.items(), strict=False):
        queries, errors = 10.0 ** np.unique(np.round(np.log10(np.array(points, float)), PLACES), axis=1)
        axes.scatter(queries, errors, s=14, alpha=0.7, color=colour, label=family, linewidths=0)
    axes.set(xscale="log", yscale="log", xlabel="queries of the attribute set", ylabel="standard error (records)")
    axes.legend(frameon=False)
    return svg(figure)


def share_plot(measured: Mapping[tuple[str, ...], float]) -> str:
    """The part of the budget that goes to measurements of each number of attributes; "" where it is not known."""
    shares: dict[int, float] = {}
    for attributes, share in measured.items():
        shares[len(attributes)] = shares.get(len(attributes), 0.0) + share
    if not shares:
        return ""
    degrees = sorted(shares)
    figure, axes = new_figure(height=0.7 + 0.4 * len(degrees))
    axes.barh([f"{degree}-way" for degree in degrees], [100 * shares[d] for d in degrees], color=COLOURS[0], height=0.6)
    for place, degree in enumerate(degrees):
        axes.text(100 * shares[degree] + 0.6, place, f"{100 * shares[degree]:.1f} %", va="center", fontsize=8)
    axes.set(xlabel="share of the budget (%)", xlim=(0, 110 * max(shares.values())))
    axes.invert_yaxis()
    return svg(figure)


def weight_plot(profiles: Mapping[str, Any]) -> str:
    """The weights by which attributes are averaged, times their number of cells, beside the plain mean's 1.

    Those of one kind are one line; "" where all take the plain mean.
    """
    alike: dict[bytes, list[str]] = {}
    for name, profile in profiles.items():
        alike.setdefault(profile.tobytes(), []).append(name)
    if not alike:
        return ""
    figure, axes = new_figure(height=2.6)
    for colour, names in zip(COLOURS * len(alike), list(alike.values())[:LINES], strict=False):
        profile = profiles[names[0]]
        cells = np.unique(np.linspace(0, len(profile) - 1, min(len(profile), MOST_POINTS)).astype(np.int64))
        places = [(cell + 0.5) / len(profile) for cell in cells.tolist()]
        label = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        axes.plot(places, profile[cells] * len(profile), marker=".", linewidth=1, color=colour, label=label)
    axes.axhline(1, color="#888888", linewidth=0.8, linestyle=":")
    axes.set(xlabel="place on the axis, first cell to last", ylabel="weight of a cell, in 1/n", xlim=(0, 1))
    axes.legend(frameon=False, fontsize=8)
    return svg(figure)


def trace_plot(trace: list[dict[str, Any]]) -> str:
    """How far each measurement moved the estimates, beside what its noise alone would do, by round; "" without any."""
    trace = [row for row in trace if row["attributes"]]
    if not trace:
        return ""
    figure, axes = new_figure()
    many = Counter(row["round"] for row in trace)
    places = [row["round"] - 0.3 + 0.6 * (row["rank"] + 0.5) / many[row["round"]] for row in trace]
    axes.scatter(places, [max(row["moved"], 1e-3) for row in trace], s=12, color=COLOURS[0], linewidths=0,
                 label="the estimate of the chosen marginal moved by")  # fmt: skip
    axes.scatter(places, [row["expected_noise"] for row in trace], s=12, color=COLOURS[1], marker="_",
                 label="noise of its measurement")  # fmt: skip
    axes.set(yscale="log", xlabel="round", ylabel="L1 distance (records)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, fontsize=8)
    return svg(figure)


def new_figure(height: float = 3.4, columns: int = 1) -> Any:
    """A figure as wide as the page and its axes, an array of them for several columns."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, height), layout="constrained")
    axes = figure.subplots(1, columns)
    for one in figure.axes:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def svg(figure: Any) -> str:
    """As text that a page holds: texts stay texts, and colours are the page's own, light or dark."""
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    drawn = out.getvalue()[out.getvalue().index("<svg") :]
    for number, colour in enumerate(COLOURS):
        drawn = drawn.replace(colour, f"var(--c{number})")
    return drawn.replace("#000000", "currentColor").replace("#262626", "currentColor")
