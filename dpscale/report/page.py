"""The page: one self-contained HTML text from what a run tells of itself."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from dpscale.plans.figures import figure


def render(content: Mapping[str, Any]) -> str:
    """The page as text; `content` holds what report.html names."""
    from jinja2 import Environment, StrictUndefined

    page = files("dpscale.report").joinpath("report.html").read_text()
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["figure"] = figure
    return environment.from_string(page).render(**content)
