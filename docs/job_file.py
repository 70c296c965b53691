"""The job file's reference, from the models that check a job: a directive of the site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from dpscale.cli.schema import options_table
from dpscale.job import Job
from dpscale.multitable.job import LinkSection, TableSection

HEAD = ["| key | takes | default |", "| --- | --- | --- |"]
KINDS = {"string": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
         "object": "a table", "array": "a list"}  # fmt: skip
BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
OWN = {"unit_through"}  # what a job of several tables says to those of its tables


def reference() -> Iterator[str]:
    """Markdown: of every table of a job file its keys, what each takes, and what it is by default."""
    schema = Job.model_json_schema()
    for name, told in schema["properties"].items():
        model, many = _model(told, schema["$defs"])
        yield from _section(f"[[{name}]]" if many else f"[{name}]", model)
    for title, section in (("[tables.NAME]", TableSection), ("[[link]]", LinkSection)):
        yield from _section(title, section.model_json_schema())
    yield from ["", "## Options of mechanisms and reconstructions", "", options_table()]


def _section(title: str, model: Mapping[str, Any]) -> Iterator[str]:
    yield from ["", f"## `{title}`", "", model.get("description", "").replace("\n", " "), "", *HEAD]
    required = model.get("required", [])
    for key, told in model["properties"].items():
        if key not in OWN:
            yield f"| `{key}` | {_takes(told)} | {'required' if key in required else _shown(told.get('default'))} |"


def _model(told: Mapping[str, Any], models: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The model of a table, and whether there may be several of it."""
    if "$ref" in told:
        return dict(models[told["$ref"].rsplit("/", 1)[1]]), False
    if told.get("type") == "array":
        return _model(told["items"], models)[0], True
    return _model(next(one for one in told["anyOf"] if one.get("type") != "null"), models)


def _takes(told: Mapping[str, Any]) -> str:
    """What a key takes, in words."""
    if "anyOf" in told:
        return ", or ".join(dict.fromkeys(word for one in told["anyOf"] if (word := _takes(one))))
    if "enum" in told or "const" in told:
        return ", ".join(f"`{_shown(one)}`" for one in told.get("enum", [told.get("const")]))
    inner = f" (of each: {of})" if "items" in told and (of := _takes(told["items"])) else ""
    return KINDS.get(told.get("type", ""), "") + inner + _bounds(told)


def _bounds(told: Mapping[str, Any]) -> str:
    return "".join(f" {word} {told[key]:g}" for key, word in BOUNDS.items() if key in told)


def _shown(value: Any) -> str:
    if value is None or value == {}:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


class JobFile(SphinxDirective):
    """`{job-file}`"""

    def run(self) -> list[Any]:
        lines = [line for block in reference() for line in block.splitlines() or [""]]
        return self.parse_text_to_nodes(StringList(lines, "job models"), allow_section_headings=True)


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("job-file", JobFile)
    return {"parallel_read_safe": True}
