"""The page: one self-contained HTML text from what a run tells of itself."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from dpscale.plans.figures import figure


def render(content: Mapping[str, Any], room: str = "dpscale.report", name: str = "report.html") -> str:
    """The page as text, in the one look that all have; `content` holds what the page `name` of a room names."""
    from jinja2 import Environment, StrictUndefined

    page, style = files(room).joinpath(name).read_text(), files("dpscale.report").joinpath("style.css").read_text()
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["figure"] = figure
    return environment.from_string(page).render(style=style, **content)
