"""Plots of the report: the number of plotted points is bounded for attributes with many cells."""

import numpy as np

from dpscale.answers.report import figures


def test_weight_plot_samples_large_attributes(monkeypatch):
    drawn = []

    def record_line(figure):
        line = figure.axes[0].lines[0]
        drawn.append((line.get_xdata(), line.get_ydata()))
        return "drawn"

    monkeypatch.setattr(figures, "svg", record_line)
    for cells in (7, 1000, 1_000_000):
        profile = np.linspace(1, 3, cells) / (2 * cells)
        assert figures.weight_plot({"a": profile, "b": profile}) == "drawn"
        places, weights = drawn[-1]
        assert len(places) == min(cells, figures.MOST_POINTS)
        np.testing.assert_allclose(weights, np.interp(places, (np.arange(cells) + 0.5) / cells, profile * cells))
        assert weights[0] == profile[0] * cells
        assert weights[-1] == profile[-1] * cells


def test_equal_figures_are_equal_texts():
    """A report written again, on another machine or after a kill, has the same bytes."""
    levels = np.linspace(0.1, 0.9, 5)
    assert draw_line(levels) == draw_line(levels)
    assert draw_line(levels) != draw_line(levels[::-1])


def draw_line(levels):
    figure, axes = figures.new_figure()
    axes.plot(levels, marker="o")
    return figures.svg(figure)
