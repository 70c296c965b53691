"""The page: one self-contained HTML text from what a run tells of itself."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from dpscale.plans.figures import figure, percent, power, whole

FILTERS = {"figure": figure, "whole": whole, "percent": percent, "power": power}


def render(content: Mapping[str, Any], room: str = "dpscale.report", name: str = "report.html") -> str:
    """The page as text, in the one look that all have; `content` holds what the page `name` of a room names."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, loader=FunctionLoader(_part),
                              trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    environment.filters.update(FILTERS)
    page = environment.from_string(files(room).joinpath(name).read_text())
    return page.render(style=_part("style.css"), script=_part("sort.js"), **content)


def _part(name: str) -> str:
    """A file that pages share."""
    return files("dpscale.report").joinpath(name).read_text()
