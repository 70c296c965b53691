"""The page: one self-contained HTML text from what a run tells of itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from dpscale.plans.figures import figure, percent, power, whole

if TYPE_CHECKING:
    from jinja2 import Environment

FILTERS = {"figure": figure, "whole": whole, "percent": percent, "power": power}


def render(content: Mapping[str, Any], room: str = "dpscale.answers.report", name: str = "report.html") -> str:
    """The page as text, in the one look that all have; `content` holds what the page `name` of a room names."""
    page = page_environment().from_string(shared_file(name, room))
    return page.render(style=shared_file("style.css"), script=shared_file("sort.js"), **content)


@cache
def page_environment() -> Environment:
    """The environment that templates of pages are compiled in; a name that has no value is an error."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    loader = FunctionLoader(lambda name: shared_file(name))
    environment = Environment(autoescape=True, undefined=StrictUndefined, loader=loader,
                              trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    environment.filters.update(FILTERS)
    return environment


def shared_file(name: str, package: str = "dpscale.answers.report") -> str:
    """A file that pages share, or one of another package's."""
    return files(package).joinpath(name).read_text()
