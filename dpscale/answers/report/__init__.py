"""HTML report: results, errors and cost of a release. It receives plans and estimates, never counts."""

from dpscale.answers.report.charts import error_plot, pair, share_plot, single, trace_plot, weight_plot
from dpscale.answers.report.figures import strategy_picture
from dpscale.answers.report.page import Section, check_rendered, figure, render, render_sections

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
