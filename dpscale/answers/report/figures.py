"""Plots by matplotlib, as inline SVG: maps, degrees of links, and figures of tables for notebooks.

matplotlib is in the extra `dpscale[plot]`. Without it a page has a sentence in place of each plot.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from itertools import product
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from dpscale.answers.report.charts import pair
from dpscale.answers.statistics import cramers_v
from dpscale.answers.tables import title_of, words_of
from dpscale.base.errors import JobError
from dpscale.base.numerics import Floats, Integers
from dpscale.domain import Domain

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

LARGEST_CIRCLE, CIRCLES, MOST_LETTERS = 260, 16, 18  # area in square points, sizes, and letters of a name on a map
IDENTIFIER = re.compile(r'(?<=\bid=")[^"]+|(?<=url\(#)[^)]+|(?<=href="#)[^"]+')
GROUP = re.compile(r'<g id="[^"]*"')  # names of groups, which are equal in all figures of a page
COLOURS = ("#2f5d8a", "#c8553d", "#3d8a5f", "#8a6d2f", "#6d4b8a")
Arguments = ParamSpec("Arguments")


class MissingMatplotlib(JobError):
    """A plot is drawn without matplotlib."""


def drawing(draw: Callable[Arguments, str]) -> Callable[Arguments, str]:
    """Return a function that draws a plot of a page; without matplotlib it returns a sentence about the extra."""

    @wraps(draw)
    def drawn(*arguments: Arguments.args, **options: Arguments.kwargs) -> str:
        """Return the plot, or a paragraph with the reason if matplotlib is missing."""
        try:
            return draw(*arguments, **options)
        except MissingMatplotlib as error:
            return f"<p>No plot: {error.got}; {error.remedy}</p>"

    return drawn


@drawing
def place_map(points: Floats, sizes: Floats, names: Sequence[str], places: Floats) -> str:
    """Plot places as circles with areas in proportion to their sizes, and names at other places.

    Parameters
    ----------
    points : ndarray, shape (2, n)
        Latitudes and longitudes in degrees.
    sizes : ndarray, shape (n,)
        Above 0.
    names : sequence of str
    places : ndarray, shape (2, names)
        Latitudes and longitudes of the names.
    """
    figure, axes = new_figure(4.2)
    areas = LARGEST_CIRCLE * np.maximum(np.round(CIRCLES * np.sqrt(sizes / sizes.max())), 1) ** 2 / CIRCLES**2
    for area in np.unique(areas)[::-1]:  # circles of one size share a path
        axes.scatter(*points[::-1, areas == area], s=area, alpha=0.5, color=COLOURS[0], linewidths=0)
    for name, latitude, longitude in zip(names, *places, strict=True):
        axes.text(longitude, latitude, _plain(name[:MOST_LETTERS]), fontsize=8, ha="center", va="center")
    shrunk = max(np.cos(np.deg2rad(float(points[0].mean()))), 0.1)  # length of a degree of longitude
    axes.set(xlabel="longitude", ylabel="latitude", aspect=1 / shrunk, adjustable="datalim")

    return svg(figure)


def _plain(text: str) -> str:
    """Return a text in which matplotlib finds no formula."""
    return text.replace("$", r"\$")


def new_figure(height: float = 3.4, columns: int = 1) -> tuple[Figure, Any]:
    """Return a figure with the width of the page and its axes; an array of axes for several columns.

    Raises MissingMatplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise MissingMatplotlib("plot", "matplotlib is not installed", "the extra dpscale[plot]",
                                "pip install 'dpscale[plot]'") from None  # fmt: skip

    figure = Figure(figsize=(7, height), layout="constrained")
    axes = figure.subplots(1, columns)
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def svg(figure: Figure) -> str:
    """Return the figure as SVG text whose texts are not outlined and whose colours follow the page, light or dark.

    Equal figures are equal texts: the identifiers in it are hashes of what they name and of the figure, not random.
    """
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "dpscale"}):
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    drawn = GROUP.sub("<g", out.getvalue()[out.getvalue().index("<svg") :])
    digest = hashlib.sha256(drawn.encode()).hexdigest()[:8]  # figures of one page have markers and clips in common
    drawn = IDENTIFIER.sub(rf"\g<0>-{digest}", drawn)
    for number, colour in enumerate(COLOURS):
        drawn = drawn.replace(colour, f"var(--c{number})")

    return drawn.replace("#000000", "currentColor").replace("#262626", "currentColor")


SIDE = 220  # of a strategy's picture, in pixels


def strategy_picture(matrix: Floats) -> str:
    """Return a matrix as an SVG of squares: blue for positive entries, red for negative, darker for larger ones."""
    rows, cells = matrix.shape
    strength = np.abs(matrix) / max(float(np.abs(matrix).max()), 1e-300)
    squares = [
        f'<rect x="{j}" y="{i}" width="1" height="1" fill="var(--c{int(matrix[i, j] < 0)})" '
        f'fill-opacity="{strength[i, j]:.2f}"/>'
        for i, j in zip(*np.nonzero(strength > 0.01), strict=True)
    ]
    return (
        f'<svg role="img" aria-label="strategy of {rows} rows and {cells} cells" viewBox="0 0 {cells} {rows}" '
        f'width="{SIDE}" height="{min(SIDE, max(SIDE * rows // cells, 24))}" preserveAspectRatio="none" '
        f'shape-rendering="crispEdges"><rect width="{cells}" height="{rows}" fill="var(--panel)"/>'
        f"{''.join(squares)}</svg>"
    )


MOST_BARS, MOST_TICKS = 60, 16  # values that have bars, more have a line; labels of an axis


def table_figure(table: pa.Table, domain: Domain, names: Sequence[str]) -> Figure:
    """Return the figure of an Arrow table of cells, row-major in the order of `names`. Notebooks show it.

    Raises
    ------
    JobError
        For more than two attributes, or without matplotlib.
    """
    if len(names) not in (1, 2):
        raise JobError("attributes", f"{len(names)} attributes", "one or two", "use Release.table for more")

    figure, axes = new_figure(3.0 if len(names) == 1 else 3.6)
    vars(figure)["_repr_png_"] = partial(_png, figure)  # figures without pyplot have no picture of their own
    values = table["estimate"].to_numpy()
    labels = [table[name].to_pylist() for name in table.column_names[: len(names)]]
    if len(names) == 1:
        _bars(axes, names[0], [str(label) for label in labels[0]], values, values - table["low"].to_numpy())
        return figure

    # row-major: a row's label repeats for each column, and the first row has the labels of all columns
    shape = domain.shape(names)
    shown = [list(map(str, labels[0][:: shape[1]])), list(map(str, labels[1][: shape[1]]))]
    _heat(figure, axes, names, shown, values.reshape(shape))
    return figure


def _png(figure: Figure) -> bytes:
    packed = io.BytesIO()
    figure.savefig(packed, format="png")
    return packed.getvalue()


def _bars(axes: Axes, name: str, labels: Sequence[str], values: Floats, half: Floats) -> None:
    """Draw counts with their intervals of ± half: bars with error bars for few values, a line with a band for many."""
    places = np.arange(len(values))
    if len(values) <= MOST_BARS:
        axes.bar(places, values, color=COLOURS[0], width=0.8)
        axes.errorbar(places, values, np.nan_to_num(half), fmt="none", ecolor=COLOURS[1], elinewidth=1.2, capsize=2)
    else:
        axes.plot(places, values, color=COLOURS[0], linewidth=1)
        axes.fill_between(places, values - half, values + half, color=COLOURS[1], alpha=0.35, linewidth=0)

    _ticks(axes.xaxis, labels)
    axes.set(xlabel=name, ylabel="records")


def _heat(figure: Figure, axes: Axes, names: Sequence[str], labels: Sequence[Sequence[str]], values: Floats) -> None:
    """Draw a table of two attributes as colours with labels and a colour bar; negative counts are drawn as 0."""
    image = axes.imshow(np.maximum(values, 0), aspect="auto", cmap="Blues", interpolation="nearest")
    _ticks(axes.yaxis, labels[0])
    _ticks(axes.xaxis, labels[1])
    axes.set(ylabel=names[0], xlabel=names[1])
    figure.colorbar(image, ax=axes, label="records")


def _ticks(axis: Axis, labels: Sequence[str]) -> None:
    step = -(-len(labels) // MOST_TICKS)
    places = range(0, len(labels), step)
    axis.set_ticks(list(places), [labels[place][:18] for place in places], fontsize=8)


SHOWN_DEGREES = 60  # degrees on a linear axis; with more the axis is logarithmic


@drawing
def degree_shares(sides: Sequence[tuple[str, Integers, Floats, Floats]]) -> str:
    """Return a plot of the cumulative share of rows by their number of links, with a panel for each side.

    Parameters
    ----------
    sides : sequence of (name, at, shares, degrees)
        Table, degrees with their measured shares of rows of at most so many links, and degrees of the synthetic rows.
    """
    picture, axes = new_figure(2.6, max(len(sides), 1))
    for panel, side in zip(np.atleast_1d(axes), sides, strict=True):
        _degrees_of_side(panel, *side)
    return svg(picture)


def _degrees_of_side(axes: Axes, name: str, at: Integers, shares: Floats, degrees: Floats) -> None:
    """Draw cumulative shares of the rows of a table by their links: of the synthetic rows, and as measured with noise.

    `at` has the degrees at which `shares` were measured, `degrees` the links of each synthetic row.
    """
    most = int(max(degrees.max(initial=0), 1))
    mask, steps = at <= max(2 * most, SHOWN_DEGREES), np.arange(most + 2)
    shown = np.searchsorted(np.sort(degrees), steps, side="right") / max(len(degrees), 1)
    axes.step(steps, shown, where="post", color=COLOURS[0], label="synthetic rows")
    axes.scatter(at[mask], shares[mask], s=12, color=COLOURS[1], linewidths=0, zorder=3, label="measured with noise")

    # many degrees: a logarithmic axis, linear near 0
    if max(most, at[mask].max(initial=0)) > SHOWN_DEGREES:
        axes.set(xscale="symlog", xlim=(-0.5, None))
    else:
        axes.locator_params(axis="x", integer=True)

    axes.set(xlabel=f"links of a row of {name}", ylabel="cumulative share", ylim=(min(0.0, shares[mask].min()), None))
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)


STRONGEST, MOST_CELLS = 3, 400  # pairs of attributes, and cells of a pair


@dataclass(frozen=True, eq=False)
class Association:
    """Counts of linked rows by an attribute of each end, and Cramér's V of the two."""

    names: tuple[str, str]
    labels: tuple[list[str], list[str]]
    counts: Integers
    strength: float

    def picture(self) -> dict[str, Any]:
        """Return the values of the report's two-way table."""
        return pair(self.names, self.labels, self.counts.astype(np.float64)) | {"strength": self.strength}


def strongest_associations(one: Domain, two: Domain, above: Integers, below: Integers) -> list[Association]:
    """Return the strongest associations of an attribute of each end of links.

    Parameters
    ----------
    one, two : Domain
        Domains of both tables.
    above, below : ndarray, shape (attributes, links)
        Cells of the rows at both ends.

    Returns
    -------
    list of Association
    """
    associations = []
    for a, b in product(one.attributes, two.attributes):
        if a.size * b.size <= MOST_CELLS:
            cells = above[one.names.index(a.name)] * b.size + below[two.names.index(b.name)]
            counts = np.bincount(cells, minlength=a.size * b.size).reshape(a.size, b.size)
            names = title_of(one, a.name), title_of(two, b.name)
            associations.append(
                Association(names=names, labels=(words_of(a), words_of(b)), counts=counts, strength=cramers_v(counts))
            )
    positive = [association for association in associations if association.strength > 0]
    return sorted(positive, key=lambda association: -association.strength)[:STRONGEST]
