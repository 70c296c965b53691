"""Plots of the private report, as inline SVG."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from dpscale.answers.report.figures import COLOURS, new_figure, svg
from dpscale.evaluation.models import Curve

Curves = Mapping[str, Mapping[str, Curve]]  # by question and by what is asked of it
BARS = {"halves": ("half of the data against the other half", "#bbbbbb"), "mean": ("rows", COLOURS[0]),
        "independent": ("independent attributes", COLOURS[1])}  # fmt: skip


def plots(marginals: Mapping[str, Any], dependence: Mapping[str, Any], curves: Curves) -> dict[str, str]:
    """All of them, by name. Texts stay texts, which a browser has letters for, whatever they are."""
    from matplotlib import rc_context

    with warnings.catch_warnings(), rc_context({"svg.fonttype": "none"}):
        warnings.simplefilter("ignore")
        return {
            "marginal_plot": marginal_plot(marginals),
            "dependence_plot": dependence_plot(dependence),
            "curve_plot": curve_plot(curves),
        }


def marginal_plot(marginals: Mapping[str, Mapping[str, Any]]) -> str:
    """By degree, how far rows are from the data, between what two halves of the data and independence come to."""
    marginals = {degree: one for degree, one in marginals.items() if one["sets"]}
    figure, axes = new_figure(2.8)
    for position, (key, (label, colour)) in enumerate(BARS.items()):
        at = [number + 0.26 * (position - 1) for number in range(len(marginals))]
        values = [one[key] for one in marginals.values()]
        axes.bar(at, values, width=0.24, color=colour, label=label)
        for where, value in zip(at, values, strict=True):
            axes.text(where, value, f"{value:.3f}" if value else "", ha="center", va="bottom", fontsize=7.5)
    axes.set_xticks(range(len(marginals)), [f"{degree}-way" for degree in marginals])
    axes.set(ylabel="L1 distance of shares")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return svg(figure)


def dependence_plot(dependence: Mapping[str, Any]) -> str:
    """Every pair of attributes: its dependence in the rows against that in the data; "" without pairs."""
    if not dependence["pairs"]:
        return ""
    figure, axes = new_figure(4.2)
    axes.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1, zorder=0)
    axes.scatter(dependence["data"], dependence["rows"], s=16, alpha=0.7, color=COLOURS[0], linewidths=0)
    for one in dependence["worst"][:3]:
        axes.annotate(" × ".join(one["attributes"]), (one["data"], one["rows"]), (4, -3), textcoords="offset points",
                      fontsize=7.5, color="#555", parse_math=False)  # fmt: skip
    axes.set(xlabel="Cramér's V in the data", ylabel="in the rows", xlim=(-0.02, 1.05), ylim=(-0.02, 1.05))
    axes.set_box_aspect(0.7)
    return svg(figure)


def curve_plot(told: Curves) -> str:
    """A panel for each question with its ROC curves; "" where there is none."""
    told = {title: {name: one for name, one in curves.items() if one[0]} for title, curves in told.items()}
    told = {title: curves for title, curves in told.items() if curves}
    if not told:
        return ""
    figure, _ = new_figure(3.2, len(told))
    for axes, (title, curves) in zip(figure.axes, told.items(), strict=True):
        axes.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1)
        for colour, (name, (alarms, hits)) in zip(COLOURS, curves.items(), strict=False):
            axes.plot(alarms, hits, color=colour, linewidth=1.5, label=name)
        axes.set_title(title, fontsize=9, parse_math=False)
        axes.set(xlabel="false alarms", ylabel="true alarms", aspect="equal")
        if len(curves) > 1:
            axes.legend(frameon=False, fontsize=8, loc="lower right")
    return svg(figure)
