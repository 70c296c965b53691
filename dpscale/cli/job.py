"""Commands for job files, the self-test of an installation, and the demo."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from dpscale.base.errors import JobError
from dpscale.base.settings import Settings, rows_of
from dpscale.cli.group import Bars, json_option, main, quiet_option, scheduler_option
from dpscale.job import TableJob
from dpscale.job.sections import PREDICATES, MechanismTable, ReconstructTable
from dpscale.mechanisms import MECHANISMS, mechanism, mechanism_names
from dpscale.reconstruction import RECONSTRUCTIONS, reconstruction, reconstruction_names
from dpscale.workload import family_named, family_names


@main.command()
@json_option
def selftest(as_json: bool) -> None:
    """Audit this installation: noise, stability and attacks, each with planted violations."""
    from dpscale.audit.selftest import selftest as audit

    results = audit()
    if as_json:
        click.echo(json.dumps([{"name": name, "passed": passed, "detail": detail} for name, passed, detail in results]))
    else:
        for name, passed, detail in results:
            click.echo(f"{'ok' if passed else 'FAILED':<6} {name}: {detail}")
    if not all(passed for _, passed, _ in results):
        raise click.exceptions.Exit(1)


@main.command()
@click.option("--folder", default="dpscale-demo", show_default=True, help="The folder of the demo.")
@scheduler_option
@quiet_option
def demo(folder: str, scheduler: str | None, quiet: bool) -> None:
    """Run the main job on sample data: the RAND health insurance experiment."""
    from dpscale.cli.demo import run_demo

    with Bars(quiet) as progress:
        text = run_demo(Path(folder), scheduler, progress)
    click.echo(text)


@main.group()
def job() -> None:
    """Job files."""


@job.command("schema")
def job_schema() -> None:
    """Print the JSON Schema of a job file, for completion and checks in editors."""
    click.echo(json.dumps(schema(), indent=1))


@job.command("options")
def job_options() -> None:
    """Print the options of every mechanism and reconstruction as a table (Markdown)."""
    click.echo(options_table())


SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file; `name` and `method` determine the other keys of their tables."""
    content = TableJob.model_json_schema()
    kinds, ways = _options(mechanism_names(), mechanism), _options(reconstruction_names(), reconstruction)
    content["$defs"]["MechanismTable"] = _named("name", kinds, MechanismTable().name)
    content["$defs"]["ReconstructTable"] = _named("method", ways | {"auto": None}, ReconstructTable().method)
    families = _options(family_names(), family_named)
    part = content["$defs"]["Part"] | {"additionalProperties": False}
    part["properties"]["family"]["enum"] = [*families, PREDICATES]
    for model in families.values():
        part["properties"] = model.model_json_schema()["properties"] | part["properties"]
    content["$defs"]["Part"] = part
    return {"$schema": SCHEMA, "title": "dpscale job", **{k: v for k, v in content.items() if k != "title"}}


def _options(names: Sequence[str], load: Callable[[str], Any]) -> dict[str, type[Settings]]:
    """Return the options of all methods; those of other distributions that cannot be loaded are named in a warning."""
    found = {}
    for name in names:
        try:
            found[name] = load(name).Options
        except JobError as error:
            click.echo(f"dpscale: warning: {error}", err=True)
    return found


def _named(key: str, kinds: Mapping[str, type[Settings] | None], default: str) -> dict[str, Any]:
    """Return the schema of a table whose other keys are the options of the method named by `key`."""
    return {"type": "object", "oneOf": [_kind(key, name, model, name == default) for name, model in kinds.items()]}


def _kind(key: str, name: str, model: type[Settings] | None, default: bool) -> dict[str, Any]:
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
    rows = [
        f"| {where} | `{name}` | {takes} | {meaning} | {_shown(value)} |"
        for name, takes, meaning, value in rows_of(model)
    ]
    return rows or [f"| {where} | | | no options | |"]


def _shown(value: Any) -> str:
    if value is None or value == {} or value == math.inf:
        return ""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else f"{value}"
