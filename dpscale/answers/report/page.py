"""The page: one self-contained HTML text from what a run tells of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpscale.base.display import figure, percent, power, whole
from dpscale.base.error_redaction import kind_and_place, out_of_memory
from dpscale.base.errors import ReportError, TransientError

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


HIDDEN = "(not shown)"
PLACES = ("path", "domain", "ledger", "file", "via", "scheduler")
TOLD = ("threads", "processes", "synchronous")  # schedulers that are no address


def redacted(content: Any, name: str = "") -> Any:
    """The content of a job file without what tells where things are."""
    if isinstance(content, Mapping):
        return {key: redacted(value, key) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [redacted(one, name) for one in content]
    if isinstance(content, str) and content not in TOLD and (name in PLACES or is_place(content)):
        return HIDDEN
    return content


def is_place(text: str) -> bool:
    """Whether a text looks like a path or an address."""
    return "://" in text or text.startswith(("/", "~", "\\\\", "./", "../")) or text[1:3] in (":\\", ":/")


def public_name(dataset: str | None) -> str:
    """The name of a dataset, unless it is the path that stands for one."""
    return "the dataset" if dataset is None or is_place(dataset) else dataset
