"""Plots of the report: points are at their values, and their number is bounded for attributes with many cells."""

import re
import sys

import numpy as np
import pyarrow as pa
import pytest

from dpscale.answers.report import charts, figures
from dpscale.base.errors import JobError
from dpscale.domain import Domain
from dpscale.evaluation import comparison
from tests.messages import refused


def points_of(svg):
    """Return the points of every series of a plot, in pixels."""
    paths = re.findall(r'<path d="([^"]*)" fill="none" stroke="var\(--c', svg)
    return [np.array(re.findall(r"(-?[\d.]+) (-?[\d.]+)", path), float) for path in paths]


def ticks_of(svg, anchor):
    """Return values and places of the ticks of the axis whose texts have this anchor."""
    place = "x" if anchor == "middle" else "y"
    found = re.findall(rf'<text x="([\d.]+)" y="([\d.]+)" text-anchor="{anchor}"[^>]*>([\d.,]+)</text>', svg)
    values = np.array([text.replace(",", "") for *_, text in found], float)
    return values, np.array([x if place == "x" else float(y) - 4 for x, y, _ in found], float)


def test_weight_plot_samples_large_attributes():
    for cells in (7, 1000, 1_000_000):
        profile = np.linspace(1, 3, cells) / (2 * cells)
        svg = charts.weight_plot({"a": profile, "b": profile})
        (points,) = points_of(svg)
        assert len(points) == min(cells, charts.MOST_POINTS)
        values, at = ticks_of(svg, "end")
        slope, offset = np.polyfit(at, values, 1)
        places = (points[:, 0] - charts.LEFT) / (charts.WIDTH - charts.LEFT - charts.RIGHT)
        weights = np.interp(places, (np.arange(cells) + 0.5) / cells, profile * cells)
        np.testing.assert_allclose(slope * points[:, 1] + offset, weights, atol=0.01)
        assert "a and 1 more" in svg


@pytest.mark.parametrize(("low", "high"), [(3.0, 3.0), (1e-4, 2e-4), (0.7, 5e6), (1.0, 1e40), (1000.0, 1500.0)])
def test_points_are_at_their_values_on_logarithmic_axes(low, high):
    errors = np.geomspace(low, high, 9)
    svg = charts.error_plot({"marginal <&>": (errors[::-1], errors)})
    (points,) = points_of(svg)
    for column, anchor, expected in ((0, "middle", errors[::-1]), (1, "end", errors)):
        values, at = ticks_of(svg, anchor)
        assert 1 <= len(values) <= 10
        if len(values) > 1:
            slope, offset = np.polyfit(at, np.log10(values), 1)
            found = slope * points[:, column] + offset
            tolerance = 0.01 + abs(slope) * 0.2
            np.testing.assert_allclose(np.sort(np.unique(found.round(6))), np.unique(np.log10(expected).round(2)),
                                       atol=tolerance)  # fmt: skip
    assert "marginal &lt;&amp;&gt;" in svg


def test_sets_without_error_are_left_out():
    assert charts.error_plot({"marginal": (np.ones(2), np.zeros(2))}) == charts.error_plot({}) == ""
    (points,) = points_of(charts.error_plot({"marginal": (np.array([1.0, 2.0, 4.0]), np.array([0.0, 1.0, np.nan]))}))
    assert len(points) == 1


def test_shares_are_lengths_of_bars():
    svg = charts.share_plot({("a",): 0.2, ("b",): 0.1, ("a", "b"): 0.7})
    lengths = np.array(re.findall(r'<rect [^>]*width="([\d.]+)"', svg), float)
    np.testing.assert_allclose(lengths / lengths.sum(), [0.3, 0.7], atol=1e-3)
    assert "30.0 %" in svg
    assert "2-way" in svg


def test_equal_figures_are_equal_texts():
    """A report written again, on another machine or after a kill, has the same bytes."""
    levels = np.linspace(0.1, 0.9, 5)
    assert draw_line(levels) == draw_line(levels)
    assert draw_line(levels) != draw_line(levels[::-1])


def draw_line(levels):
    figure, axes = figures.new_figure()
    axes.plot(levels, marker="o")
    return figures.svg(figure)


def test_plots_without_matplotlib_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    values = np.array([1.0, 2.0])
    said = "<p>No plot: matplotlib is not installed; pip install 'dpscale[plot]'</p>"
    assert figures.place_map(np.ones((2, 2)), values, [], np.ones((2, 0))) == said
    assert comparison.curve_plot({"model": {"rows": ([0.0, 1.0], [0.0, 1.0])}}) == said
    table = pa.table({"a": ["x", "y"], "estimate": values, "low": values, "high": values})
    with refused(JobError):
        figures.table_figure(table, Domain(a=2), ["a"])
