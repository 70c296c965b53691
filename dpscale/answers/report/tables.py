"""Answers as pictures: bars with intervals of one attribute, heat maps of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpscale.answers.report.figures import COLOURS, new_figure
from dpscale.base.errors import JobError
from dpscale.domain import Domain

MOST_BARS, MOST_TICKS, MOST_SIDE = 60, 16, 64


def table_figure(table: Any, domain: Domain, names: Sequence[str]) -> Any:
    """The figure of an Arrow table of cells, row-major in the order of `names`; JobError for three attributes."""
    if len(names) not in (1, 2):
        raise JobError("attributes", f"{len(names)} of them", "one or two", "ask for the table of more")
    figure, axes = new_figure(3.0 if len(names) == 1 else 3.6)
    values = table["estimate"].to_numpy()
    labels = [table[name].to_pylist() for name in table.column_names[: len(names)]]
    if len(names) == 1:
        _bars(axes, names[0], [str(one) for one in labels[0]], values, values - table["low"].to_numpy())
        return figure
    shape = domain.shape(names)
    told = [[str(one) for one in own] for own in (labels[0][:: shape[1]], labels[1][: shape[1]])]
    _heat(figure, axes, names, told, values.reshape(shape))
    return figure


def _bars(axes: Any, name: str, labels: Sequence[str], values: Any, half: Any) -> None:
    places = np.arange(len(values))
    if len(values) <= MOST_BARS:
        axes.bar(places, values, color=COLOURS[0], width=0.8)
        axes.errorbar(places, values, np.nan_to_num(half), fmt="none", ecolor=COLOURS[1], elinewidth=1.2, capsize=2)
    else:
        axes.plot(places, values, color=COLOURS[0], linewidth=1)
        axes.fill_between(places, values - half, values + half, color=COLOURS[1], alpha=0.35, linewidth=0)
    _ticks(axes.xaxis, labels)
    axes.set(xlabel=name, ylabel="records")


def _heat(figure: Any, axes: Any, names: Sequence[str], labels: Any, values: Any) -> None:
    image = axes.imshow(np.maximum(values, 0), aspect="auto", cmap="Blues", interpolation="nearest")
    _ticks(axes.yaxis, labels[0])
    _ticks(axes.xaxis, labels[1])
    axes.set(ylabel=names[0], xlabel=names[1])
    figure.colorbar(image, ax=axes, label="records")


def _ticks(axis: Any, labels: Sequence[str]) -> None:
    step = -(-len(labels) // MOST_TICKS)
    places = range(0, len(labels), step)
    axis.set_ticks(list(places), [labels[place][:18] for place in places], fontsize=8)
