"""JSON Schema of a job file and the table of options, both from the models that validate a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from dpscale.base.errors import JobError
from dpscale.base.settings import Settings, rows_of
from dpscale.job.forms import DATA_KEYS, JOB_SECTIONS, TABLE_SECTIONS
from dpscale.job.sections import PREDICATES, MechanismTable, ReconstructTable, TableSection, TableShares
from dpscale.mechanisms import MECHANISMS, mechanism, mechanism_names
from dpscale.reconstruction import RECONSTRUCTIONS, reconstruction, reconstruction_names
from dpscale.workload import family_named, family_names

SECTIONS = JOB_SECTIONS | TABLE_SECTIONS  # of the short form, beside [data]
SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file; `name` and `method` determine the other keys of their tables.

    The options of every mechanism, reconstruction and family are alternatives by its name.
    """
    content = short_form()
    mechanisms = _options(mechanism_names(), mechanism)
    reconstructions = _options(reconstruction_names(), reconstruction)
    content["$defs"]["MechanismTable"] = _named("name", mechanisms, MechanismTable().name)
    content["$defs"]["ReconstructTable"] = _named("method", reconstructions | {"auto": None}, ReconstructTable().method)
    # the options of a family are keys of the part itself
    families = _options(family_names(), family_named)
    part = content["$defs"]["WorkloadSection"] | {"additionalProperties": False}
    part["properties"]["family"]["enum"] = [*families, PREDICATES]
    for model in families.values():
        part["properties"] = model.model_json_schema()["properties"] | part["properties"]
    content["$defs"]["WorkloadSection"] = part
    return {"$schema": SCHEMA, "title": "dpscale job", **{k: v for k, v in content.items() if k != "title"}}


def short_form() -> dict[str, Any]:
    """Return the JSON Schema of the short form of a job, without the options of methods."""
    table = TableSection.model_json_schema()
    models = table["$defs"] | {model.__name__: model.model_json_schema() for model in JOB_SECTIONS.values()}
    # one table has no table of units, and no share beside others
    del models["Privacy"]["properties"]["unit"]
    models["BudgetTable"] = TableShares.model_json_schema()
    del models["BudgetTable"]["properties"]["share"]
    data = {"type": "object", "description": "Location of the records and definition of the privacy unit.",
            "properties": {k: v for k, v in table["properties"].items() if k in DATA_KEYS},
            "required": ["domain"], "anyOf": [{"required": [name]} for name in ("path", "database")],
            "additionalProperties": False}  # fmt: skip
    sections: dict[str, Any] = {name: {"$ref": f"#/$defs/{model.__name__}"} for name, model in SECTIONS.items()}
    for name in ("workload", "totals"):
        sections[name] = {"type": "array", "items": sections[name]}
    properties = {"data": {"$ref": "#/$defs/Data"}, **sections}
    return {"type": "object", "$defs": models | {"Data": data}, "properties": properties,
            "required": ["data", "privacy", "workload"], "additionalProperties": False}  # fmt: skip


def _options(names: Sequence[str], load: Callable[[str], Any]) -> dict[str, type[Settings]]:
    """Return the model of the options of each method; a plug-in that cannot be loaded is named in a warning."""
    found = {}
    for name in names:
        try:
            found[name] = load(name).Options
        except JobError as error:
            click.echo(f"dpscale: warning: {error}", err=True)
    return found


def _named(key: str, kinds: Mapping[str, type[Settings] | None], default: str) -> dict[str, Any]:
    """Return the schema of a table whose other keys are the options of the method named by `key`.

    `kinds` has the model of the options of each method; None for a method whose options are not checked.
    """
    return {"type": "object", "oneOf": [_kind(key, name, model, name == default) for name, model in kinds.items()]}


def _kind(key: str, name: str, model: type[Settings] | None, default: bool) -> dict[str, Any]:
    """Return the JSON schema of a table whose `key` has the value `name`, with the options of its model.

    `default` states that this is the method of a table without the key.
    """
    properties = {} if model is None else model.model_json_schema()["properties"]
    for option in properties.values():
        if isinstance(option.get("default"), float) and math.isinf(option["default"]):
            del option["default"]  # JSON cannot represent infinity
    required = {} if default else {"required": [key]}
    return {"properties": {key: {"const": name}, **properties}, "additionalProperties": model is None, **required}


def options_table() -> str:
    """Return a Markdown table of the options of every mechanism and reconstruction."""
    lines = ["| in | option | takes | meaning | default |", "| --- | --- | --- | --- | --- |"]
    for name in MECHANISMS:
        lines += _lines(f'`mechanism.name = "{name}"`', mechanism(name).Options)
    for name in RECONSTRUCTIONS:
        lines += _lines(f'`reconstruct.method = "{name}"`', reconstruction(name).Options)
    return "\n".join(lines)


def _lines(where: str, model: type[Settings]) -> list[str]:
    """Return the rows of the Markdown table of options for one model; `where` is the section of the job file."""
    rows = [
        f"| {where} | `{name}` | {takes} | {meaning} | {_shown(value)} |"
        for name, takes, meaning, value in rows_of(model)
    ]
    return rows or [f"| {where} | | | no options | |"]


def _shown(value: Any) -> str:
    if value is None or value == {} or value == math.inf:
        return ""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else f"{value}"
