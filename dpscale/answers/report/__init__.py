"""The HTML report: what was asked, what it cost, how large the errors are. It is handed plans, never counts."""

from dpscale.answers.report.drawn import pair, single, strategy_picture
from dpscale.answers.report.figures import error_plot, share_plot, trace_plot, weight_plot
from dpscale.answers.report.page import figure, render
from dpscale.answers.report.sections import Section, check_rendered, render_sections

__all__ = [
    "Section",
    "check_rendered",
    "error_plot",
    "figure",
    "pair",
    "render",
    "render_sections",
    "share_plot",
    "single",
    "strategy_picture",
    "trace_plot",
    "weight_plot",
]
