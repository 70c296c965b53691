"""Write reference/job-file.md, the reference of the job file, from the models that validate a job.

    python docs/job_file.py

`job_keys.toml` says what each key means; types, defaults and options come from the models. A test compares the page.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpscale.cli.schema import options_table, short_form
from dpscale.job.forms import SHORT_KEYS
from dpscale.job.sections import (
    BudgetTable,
    JoinSection,
    JoinShare,
    JoinWorkload,
    LinkSection,
    LinkShare,
    TableSection,
    TableShares,
)

DOCS = Path(__file__).parent
PAGE, MEANINGS = DOCS / "reference" / "job-file.md", DOCS / "job_keys.toml"
START = """# Job file

Every table and key of a job file, generated from the models that validate it (`python docs/job_file.py`).
Other keys are refused. [Jobs](../jobs.md) explains the work with them, and [databases](../databases.md)
the keys of several tables. `dpscale job schema` prints the same as JSON Schema, for editors."""
KINDS = {"string": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
         "object": "a table", "array": "a list"}  # fmt: skip
BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
SEVERAL_TABLES = {"[tables.NAME]": TableSection, "[[link]]": LinkSection,
                  "[[workload]] over several tables": JoinWorkload, "[joins.NAME]": JoinSection,
                  "[budget] of several tables": BudgetTable, "[budget.tables.NAME]": TableShares,
                  "[budget.links.NAME]": LinkShare, "[budget.joins.NAME]": JoinShare}  # fmt: skip
OWN = {"unit_through"}  # what a job of several tables says to those of its tables


def reference() -> str:
    """Return the page: for every table of a job file its keys, their types, defaults and meanings."""
    schema, meanings = short_form(), tomllib.loads(MEANINGS.read_text())
    lines = [START]
    for name, described in schema["properties"].items():
        model, many = _resolve_model(described, schema["$defs"])
        lines += _section(f"[[{name}]]" if many else f"[{name}]", model, meanings[name])
    for title, section in SEVERAL_TABLES.items():
        model = section.model_json_schema()
        keys = meanings[title.replace("[", "").replace("]", "")]
        if section is TableSection:
            model["properties"] = {key: one for key, one in model["properties"].items() if key not in SHORT_KEYS}
            keys = {key: (meanings["data"] | keys)[key] for key in model["properties"] if key not in OWN}
        if section is JoinWorkload:  # its other keys are those of a job of one table
            model["properties"] = {key: model["properties"][key] for key in keys}
        lines += _section(title, model, keys)
    return "\n".join([*lines, "", "## Options of mechanisms and reconstructions", "", options_table(), ""])


def _section(title: str, model: Mapping[str, Any], meanings: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of one table of a job; keys that only meanings name are parameters of query families."""
    yield from ["", f"## `{title}`", "", model.get("description", "").replace("\n", " "), ""]
    yield from ["| key | takes | default | meaning |", "| --- | --- | --- | --- |"]
    required = model.get("required", [])
    for key, described in model["properties"].items():
        if key not in OWN:
            default = "required" if key in required else _format_default(described.get("default"))
            yield f"| `{key}` | {_describe_type(described)} | {default} | {meanings[key]} |"
    for key in sorted(meanings.keys() - model["properties"].keys()):
        yield f"| `{key}` | | | {meanings[key]} |"


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


if __name__ == "__main__":
    PAGE.write_text(reference())
