"""Plots by matplotlib, which take most of the time of a small run: left out of runs of tests that do not read them."""

import importlib

PLOTS = {
    "dpscale.runs.links.report": ("degree_plot",),
    "dpscale.runs.periods.report": ("_total_plot", "_variance_plot"),
    "dpscale.answers.report.results": ("place_map",),
}
DRAWN = {}


def write_no_plots(patch):
    """Replace the functions that draw by an empty text, while `patch` lasts."""
    for place, names in PLOTS.items():
        module = importlib.import_module(place)
        for name in names:
            DRAWN.setdefault((place, name), getattr(module, name))
            patch.setattr(module, name, lambda *_, **__: "")


def write_plots(patch):
    """Draw again, while `patch` lasts."""
    for (place, name), own in DRAWN.items():
        patch.setattr(importlib.import_module(place), name, own)
