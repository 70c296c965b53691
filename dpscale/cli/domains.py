"""Commands for domain files: a draft from data, and a check of data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from dpscale.cli.group import json_option, main, scheduler_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from dpscale.domain import Attribute, Domain
    from dpscale.records.origin import Origin


@main.group()
def domain() -> None:
    """Domain files."""


def _written(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of file formats."""
    for option in (
        click.option("--format", metavar="NAME", help="Format of the files, as in [data] (default: by the ending)."),
        click.option(
            "--null", "null_values", multiple=True, metavar="TEXT", help="A text that means missing; repeatable."
        ),
        click.option("--encoding", metavar="NAME", help="Encoding of CSV files (default: utf-8)."),
        click.option("--delimiter", metavar="CHARACTER", help="Delimiter (default: a comma; in .tsv a tab)."),
    ):
        command = option(command)
    return command


def _origin(path: str, written: dict[str, Any]) -> Origin:
    """Return the options of file formats as the origin of data. Raises JobError if a job would not accept them."""
    from pydantic import ValidationError

    from dpscale.job import job_sentence
    from dpscale.job.data import Data

    try:
        return Data(path=path, domain=".", **{**written, "null_values": list(written["null_values"])}).origin
    except ValidationError as error:
        raise job_sentence(error, lambda place: []) from None


@domain.command("sketch")
@click.argument("data")
@_written
def domain_sketch(data: str, **written: Any) -> None:
    """Draft a domain file from data. The draft is PRIVATE: it contains values of single records."""
    from dpscale.records.sketch import WARNING, sketch

    click.echo(WARNING, err=True)
    origin = _origin(data, written)
    click.echo(sketch(data, origin.dialect, origin.format))


@domain.command("check")
@click.argument("file")
@click.argument("data", required=False)
@_written
@scheduler_option
@json_option
def domain_check(file: str, data: str | None, scheduler: str | None, as_json: bool, **written: Any) -> None:
    """Read a domain file and list its attributes; with DATA list every fault of the data. That output is PRIVATE."""
    from dpscale.domain import Domain

    read = Domain.read(file)
    checked = _checked(read, data, scheduler, _origin(data, written)) if data is not None else {}
    faults = checked.get("faults", [])
    attributes = [_attribute(one) for one in read.attributes]
    if as_json:
        click.echo(json.dumps({"attributes": attributes, "reviewed": read.reviewed, **checked}))
    else:
        click.echo("\n".join([*_fault_lines(checked), *(() if faults else map(_line, attributes))]))
    if faults:
        raise click.exceptions.Exit(2)


def _checked(read: Domain, data: str, scheduler: str | None, origin: Origin) -> dict[str, Any]:
    """Return the faults that one pass over the data finds."""
    from dpscale.base.error_redaction import discreetly
    from dpscale.engine import resolve
    from dpscale.engine.contribution_bounds import WARNING, find_faults

    click.echo(WARNING, err=True)
    engine = resolve(scheduler=scheduler)
    try:
        found: dict[str, Any] = discreetly("domain check", lambda: find_faults(engine, origin.table(data, read)))
    finally:
        engine.close()
    return found


def _attribute(one: Attribute) -> dict[str, Any]:
    assumed = {} if one.search is None else {"assumed": True}
    columns = {"columns": list(one.columns)} if len(one.columns) > 1 else {}
    return {"name": one.name, "kind": one.kind, "cells": one.size, "column": one.column, **columns, **assumed}


def _line(one: dict[str, Any]) -> str:
    columns = ", ".join(one.get("columns", [one["column"]]))
    made = "" if columns == one["name"] else f", from {columns}"
    assumed = " (assumed: they are not public)" if one.get("assumed") else ""
    return f"{one['name']:>16}: {one['kind']}, {one['cells']} cells{assumed}{made}"


def _fault_lines(checked: dict[str, Any]) -> list[str]:
    """Return a line for all columns and one for each fault."""
    if not checked:
        return []
    rows = f"{checked['columns_affected']} of {checked['columns']} columns have faults, in {checked['rows']:,} rows"
    return [rows, *(f"{one['column']!r}: {one['fault']}{_count(one)}" for one in checked["faults"])]


def _count(one: dict[str, Any]) -> str:
    """Return the number of files or rows with a fault, and a few values."""
    places = [f"in {one[name]:,} {name[: -1 if one[name] == 1 else None]}" for name in ("rows", "files") if name in one]
    values = [f"for example {', '.join(map(repr, one['examples']))}"] if one.get("examples") else []
    return "".join(f", {part}" for part in (*places, *values))
