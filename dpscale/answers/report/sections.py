"""Sections of a page, each rendered by itself: one that fails leaves the others as they are.

A section is a template, `section-NAME.html`, and the values that it names. A value is computed when the first section
asks for it. In the place of a section that fails stands a sentence that names it; an error's own text is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dpscale.answers.report.page import page_environment, render, shared_file
from dpscale.base.discreet import kind_and_place, out_of_memory
from dpscale.base.errors import ReportError, TransientError


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Parameters
    ----------
    name : str
        Its anchor, and the name of its template.
    title : str
        Its heading.
    listed : bool
        Whether the page's navigation lists it.
    """

    name: str
    title: str
    listed: bool = True


@dataclass(frozen=True)
class Rendered:
    """A section as HTML. `failure`: the kind of the error that it failed with and its place; empty for none."""

    name: str
    title: str
    listed: bool
    html: str
    failure: str = ""


def render_sections(
    frame: Mapping[str, Any],
    sections: Sequence[Section],
    values: Mapping[str, Callable[[], Any]],
    package: str = "dpscale.answers.report",
) -> tuple[str, list[Rendered]]:
    """Render a page from its sections, and return the sections that failed.

    Parameters
    ----------
    frame : mapping
        What the page names beside its sections.
    sections : sequence of Section
        In the order of the page. One that renders to nothing is left out.
    values : mapping of str to callable
        What the templates name, each computed once, and only where a section names it.
    package : str
        Where the templates are, and that of the page, `report.html`.
    """
    computed = {name: cache(compute) for name, compute in values.items()}
    rendered = [one for section in sections if (one := _rendered(section, computed, package)).html.strip()]
    return render({**frame, "sections": rendered}, package), [one for one in rendered if one.failure]


def check_rendered(failed: Sequence[Rendered], folder: Path) -> None:
    """Raise ReportError where sections of a run's report failed."""
    if failed:
        raise ReportError(
            "report",
            "; ".join(f"section {one.title!r} failed with {one.failure}" for one in failed),
            "",
            f"this is a fault of dpscale: the answers in {folder} and the other sections are complete, Release.open "
            "reads them, and to run the same command again makes the report again and charges nothing",
        )


def _rendered(section: Section, values: Mapping[str, Callable[[], Any]], package: str) -> Rendered:
    try:
        html, failure = _html(section, values, package), ""
    except (TransientError, OSError):  # the same command may succeed later
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        failure = kind_and_place(error)
        html = page_environment().from_string(shared_file("section-failed.html")).render(section=section, why=failure)
    return Rendered(section.name, section.title, section.listed, html, failure)


def _html(section: Section, values: Mapping[str, Callable[[], Any]], package: str) -> str:
    from jinja2.meta import find_undeclared_variables

    environment, source = page_environment(), shared_file(f"section-{section.name}.html", package)
    named = sorted(find_undeclared_variables(environment.parse(source)))
    return environment.from_string(source).render({name: values[name]() for name in named})
