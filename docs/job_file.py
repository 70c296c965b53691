"""A directive of the site: the reference of the job file, generated from the models that validate a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from dpscale.cli.schema import options_table
from dpscale.job import TableJob
from dpscale.job.tables import LinkSection, TableSection

HEAD = ["| key | takes | default |", "| --- | --- | --- |"]
KINDS = {"string": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
         "object": "a table", "array": "a list"}  # fmt: skip
BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
OWN = {"unit_through"}  # what a job of several tables says to those of its tables


def reference() -> Iterator[str]:
    """Yield Markdown: for every table of a job file its keys, their types and their defaults."""
    schema = TableJob.model_json_schema()
    for name, described in schema["properties"].items():
        model, many = _resolve_model(described, schema["$defs"])
        yield from _section(f"[[{name}]]" if many else f"[{name}]", model)
    for title, section in (("[tables.NAME]", TableSection), ("[[link]]", LinkSection)):
        yield from _section(title, section.model_json_schema())
    yield from ["", "## Options of mechanisms and reconstructions", "", options_table()]


def _section(title: str, model: Mapping[str, Any]) -> Iterator[str]:
    yield from ["", f"## `{title}`", "", model.get("description", "").replace("\n", " "), "", *HEAD]
    required = model.get("required", [])
    for key, described in model["properties"].items():
        if key not in OWN:
            default = "required" if key in required else _format_default(described.get("default"))
            yield f"| `{key}` | {_describe_type(described)} | {default} |"


def _resolve_model(described: Mapping[str, Any], models: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the model of a table, and whether the table may be repeated."""
    if "$ref" in described:
        return dict(models[described["$ref"].rsplit("/", 1)[1]]), False
    if described.get("type") == "array":
        return _resolve_model(described["items"], models)[0], True
    return _resolve_model(next(one for one in described["anyOf"] if one.get("type") != "null"), models)


def _describe_type(described: Mapping[str, Any]) -> str:
    """Return the type of a key in words."""
    if "anyOf" in described:
        return ", or ".join(dict.fromkeys(word for one in described["anyOf"] if (word := _describe_type(one))))
    if "enum" in described or "const" in described:
        return ", ".join(f"`{_format_default(one)}`" for one in described.get("enum", [described.get("const")]))
    inner = f" (of each: {of})" if "items" in described and (of := _describe_type(described["items"])) else ""
    return KINDS.get(described.get("type", ""), "") + inner + _describe_bounds(described)


def _describe_bounds(described: Mapping[str, Any]) -> str:
    return "".join(f" {word} {described[key]:g}" for key, word in BOUNDS.items() if key in described)


def _format_default(value: Any) -> str:
    if value is None or value == {}:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


class JobFile(SphinxDirective):
    """The directive `{job-file}`."""

    def run(self) -> list[Any]:
        lines = [line for block in reference() for line in block.splitlines() or [""]]
        return self.parse_text_to_nodes(StringList(lines, "job models"), allow_section_headings=True)


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("job-file", JobFile)
    return {"parallel_read_safe": True}
