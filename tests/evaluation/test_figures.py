"""Plots of the comparison with attribute names that contain TeX, HTML and letters without a glyph."""

from __future__ import annotations

import warnings
from xml.etree import ElementTree

import pytest

from dpscale.evaluation.comparison import plots

NAME = "<b>$x_1$ & 東京</b>"
MARGINALS = {
    "1": {"sets": 2, "mean": 0.1, "independent": 0.0, "halves": 0.2},
    "2": {"sets": 1, "mean": 0.1, "independent": 0.3, "halves": 0.2},
    "3": {"sets": 0, "mean": float("nan"), "independent": float("nan"), "halves": float("nan")},
}
WORST = {"attributes": [NAME, "b"], "data": 0.5, "rows": 0.4}


@pytest.fixture
def rendered_plots(with_plots: None) -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dependence = {"pairs": 1, "data": [0.5], "rows": [0.4], "worst": [WORST]}
        return plots(
            MARGINALS, dependence, {f"predicting {NAME}": {"data": ([0.0, 1.0], [0.0, 1.0]), "rows": ([], [])}}
        )


def test_attribute_names_are_plotted_as_plain_text(rendered_plots: dict[str, str]) -> None:
    texts = {name: "".join(ElementTree.fromstring(plot).itertext()) for name, plot in rendered_plots.items()}
    assert f"{NAME} × b" in texts["dependence_plot"]
    assert f"predicting {NAME}" in texts["curve_plot"]
    assert "3-way" not in texts["marginal_plot"]
    assert not any("<b>" in plot for plot in rendered_plots.values())


def test_empty_figures_give_no_plot(with_plots: None) -> None:
    nothing = plots(MARGINALS, {"pairs": 0, "worst": []}, {"rows or data": {"rows or data": ([], [])}, "none": {}})
    assert nothing["dependence_plot"] == nothing["curve_plot"] == ""
