"""HTML page of a report: sections rendered from templates into one self-contained text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpscale.base.display import figure, percent, power, rounded, whole
from dpscale.base.error_redaction import kind_and_place, out_of_memory
from dpscale.base.errors import ReportError, TransientError

if TYPE_CHECKING:
    from jinja2 import Environment, Template

SHARED = __package__  # package of the page and of sections that several reports have
FILTERS = {"figure": figure, "whole": whole, "percent": percent, "power": power, "rounded": rounded}


def render(content: Mapping[str, Any], package: str = SHARED, name: str = "report.html") -> str:
    """Return the page `name` of a package as text; `content` has the values of its template."""
    page, _ = compile_template(shared_file(name, package))
    script = shared_file("page.js")
    return page.render(style=shared_file("style.css"), script=script, policy=security_policy(script), **content)


def security_policy(script: str) -> str:
    """Return the Content-Security-Policy of a page: its script by its hash, its styles, and nothing from elsewhere."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def page_environment() -> Environment:
    """Return the environment of page templates; an undefined name is an error."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    loader = FunctionLoader(lambda name: shared_file(name))
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, loader=loader, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(FILTERS)
    return environment


@cache
def compile_template(source: str) -> tuple[Template, list[str]]:
    """Return a template and the names of its values; compilation takes longer than rendering."""
    from jinja2.meta import find_undeclared_variables

    environment = page_environment()
    return environment.from_string(source), sorted(find_undeclared_variables(environment.parse(source)))


def shared_file(name: str, package: str = SHARED) -> str:
    """Return the text of a file of a package, by default one that all pages share."""
    return files(package).joinpath(name).read_text("utf-8")


def frame(manifest: Mapping[str, Any], about: Any) -> dict[str, Any]:
    """Return the values of a page outside its sections; `about` has the words of the job for readers."""
    return {"manifest": manifest, "dataset": public_name((manifest["privacy"] or {}).get("dataset")), "about": about}


@dataclass(frozen=True)
class Section:
    """Section of a page.

    Attributes
    ----------
    name : str
        Anchor, and name of the template.
    title : str
        Heading.
    listed : bool
        Whether the navigation of the page lists it.
    folded : bool
        Whether the section is folded below its title, which its template leaves out then.
    module : str
        Module of the section's `TEMPLATE` and `values(run)`, which returns a function for each value of the template;
        "" for sections of the page's package.
    """

    name: str
    title: str
    listed: bool = True
    folded: bool = False
    module: str = ""


@dataclass(frozen=True)
class Rendered:
    """Section as HTML. `failure` is the type and place of the error with which it failed; empty if it succeeded."""

    name: str
    title: str
    listed: bool
    folded: bool
    html: str
    failure: str = ""


def render_sections(
    frame: Mapping[str, Any],
    sections: Iterable[Section],
    values: Mapping[str, Callable[[], Any]],
    package: str = SHARED,
    run: object = None,
) -> tuple[str, list[Rendered]]:
    """Render a page from its sections, and return the sections that failed.

    Parameters
    ----------
    frame : mapping
        Values of the page template outside the sections.
    sections : iterable of Section
        In the order of the page. Empty sections are omitted.
    values : mapping of str to callable
        Values of the section templates; each is computed at most once, and only if a section uses it.
    package : str
        Package of the templates of the sections; the page around them is the same for all reports.
    run : object
        Run that sections with a module of their own describe.
    """
    computed = {name: cache(compute) for name, compute in values.items()}
    parts = [_rendered(section, partial(_html, section, computed, package, run)) for section in sections]
    rendered = [part for part in parts if part.html.strip()]
    return render({**frame, "sections": rendered}), [part for part in rendered if part.failure]


def check_rendered(failed: Sequence[Rendered], folder: Path) -> None:
    """Raise ReportError if sections of a run's report failed."""
    if failed:
        raise ReportError(
            "report",
            "; ".join(f"section {part.title!r} failed with {part.failure}" for part in failed),
            "",
            f"this is a fault of dpscale: the answers in {folder} and the other sections are complete, Release.open "
            "reads them, and the same command makes the report again without a charge",
        )


def _rendered(section: Section, render_html: Callable[[], str]) -> Rendered:
    """Return a section of the report; if it fails, a section that says so in its place."""
    try:
        html, failure = render_html(), ""
    except (TransientError, OSError):  # the same command may succeed later
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        failure = kind_and_place(error)
        html = compile_template(shared_file("section-failed.html"))[0].render(section=section, why=failure)
    return Rendered(
        name=section.name, title=section.title, listed=section.listed, folded=section.folded, html=html, failure=failure
    )


def _html(section: Section, values: Mapping[str, Callable[[], Any]], package: str, run: object) -> str:
    """Return the HTML of a section from its template and the values that the template names."""
    if section.module:
        module = import_module(section.module)
        source, values = module.TEMPLATE, module.values(run)
    else:
        name = f"section-{section.name}.html"
        source = shared_file(name, package if files(package).joinpath(name).is_file() else SHARED)

    template, named = compile_template(source)
    return template.render({name: values[name]() for name in named})


HIDDEN = "(not shown)"
PLACES = ("path", "domain", "ledger", "file", "via", "scheduler", "run_dir")
TEXTS = ("query", "title", "publisher", "contact", "licence", "notes")  # keys whose values may look like places
LOCAL = ("threads", "processes", "synchronous")  # schedulers that are not addresses


def redacted(content: Any, name: str = "", hidden: str = HIDDEN) -> Any:
    """Return the content of a job file without locations, recognised by the names of settings or by their form."""
    if isinstance(content, Mapping):
        return {key: redacted(value, key, hidden) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [redacted(item, name, hidden) for item in content]
    if not isinstance(content, str) or content in LOCAL or name in TEXTS:
        return content
    return hidden if name in PLACES or is_place(content) else content


def is_place(text: str) -> bool:
    """Return whether a text looks like a path or an address."""
    return "://" in text or text.startswith(("/", "~", "\\\\", "./", "../")) or text[1:3] in (":\\", ":/")


def public_name(dataset: str | None) -> str:
    """Return the name of a dataset, unless it is a path."""
    return "the dataset" if dataset is None or is_place(dataset) else dataset
