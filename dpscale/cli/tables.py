"""Commands for jobs of several tables: what their keys are like, and metadata of other tools."""

from __future__ import annotations

import json
from typing import Any

import click

from dpscale.cli.group import json_option, main, scheduler_option


@main.group()
def tables() -> None:
    """Several tables and their links."""


@tables.command("check")
@click.argument("job")
@scheduler_option
@json_option
def tables_check(job: str, scheduler: str | None, as_json: bool) -> None:
    """Count keys, orphans and degrees of a job's tables. The output is PRIVATE: not to be published."""
    from dpscale.base.discreet import discreetly
    from dpscale.engine import resolve
    from dpscale.multitable.checking import WARNING, check
    from dpscale.multitable.job import DatabaseJob

    read = DatabaseJob.read(job)
    click.echo(WARNING, err=True)
    engine = resolve(scheduler=scheduler or read.engine.scheduler)
    try:
        told = discreetly("tables check", check, read, engine)
    finally:
        engine.close()
    click.echo(json.dumps(told) if as_json else _text(told))


def _text(told: dict[str, Any]) -> str:
    return "\n".join([*map(_table, told["tables"]), *(line for link in told["links"] for line in _link(link))])


def _table(one: dict[str, Any]) -> str:
    keys = "no key"
    if one["null_keys"] is not None:
        keys = f"{one['null_keys']:,} null keys, {one['duplicate_keys']:,} rows with a key that another has"
    return f"table {one['name']}{' (public)' if one['public'] else ''}: {one['rows']:,} rows, {keys}"


def _link(one: dict[str, Any]) -> list[str]:
    ends = f"{one['null_ends']:,} with a null end, {one['dangling']:,} whose key no row has"
    lines = [f"link {one['name']}: {one['rows']:,} rows, {ends}"]
    for side, of in one["degrees"].items():
        spread = ", ".join(f"{name} {of[name]:g}" for name in ("50%", "90%", "99%", "max"))
        lines.append(f"    of a {side}: mean {of['mean']:.3g}, {spread}; {of['none']:,} of {of['rows']:,} have none")
    over = f"{one['links_beyond']:,} links of {one['rows_beyond']:,} rows are beyond and {one['beyond_is']}"
    lines.append(f"    max_degree {one['max_degree']}: {over}" if one["beyond_is"] != "any number" else
                 "    a parent may have any number")  # fmt: skip
    return lines


@tables.command("from-sdv")
@click.argument("metadata")
@click.option("--data", default=".", show_default=True, help="The folder of the tables' files.")
def tables_from_sdv(metadata: str, data: str) -> None:
    """Print a draft of a job from SDV's metadata of several tables. No data are read."""
    from dpscale.multitable.sdv import draft, read_metadata

    click.echo(draft(read_metadata(metadata), data))


@tables.command("to-sdv")
@click.argument("job")
def tables_to_sdv(job: str) -> None:
    """Print SDV's metadata of the tables that a job releases. No data are read."""
    from dpscale.multitable.job import DatabaseJob
    from dpscale.multitable.sdv import metadata

    click.echo(json.dumps(metadata(DatabaseJob.read(job)), indent=1))
