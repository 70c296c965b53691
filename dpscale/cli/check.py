"""Commands that check a job, a domain file, the tables of a job, or the installation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dpscale.base import LazyModule
from dpscale.cli.domains import format_options, read_origin
from dpscale.cli.group import Bars, json_option, main, quiet_option, scheduler_option

if TYPE_CHECKING:
    from dpscale.domain import Attribute, Domain
    from dpscale.records.origin import Origin

opening = LazyModule("dpscale.runs.opening")


@main.group()
def check() -> None:
    """Check a job, a domain file, or the tables of a job, at no cost."""


@check.command("job")
@click.argument("job_file", metavar="JOB")
@json_option
def check_job(job_file: str, as_json: bool) -> None:
    """Read a job file with its domain files and workloads, without its data."""
    from dpscale.job.allocation import planned_jobs

    read = opening.read_job(job_file)
    tables = planned_jobs(read)
    queries = {name: table.build_workload(table.read_domain()).query_count for name, table in tables.items()}
    click.echo(json.dumps({"queries": queries}) if as_json else
               "\n".join(f"{name}: {count:,} queries" for name, count in queries.items()))  # fmt: skip


@check.command("domain")
@click.argument("file")
@click.argument("data", required=False)
@format_options
@scheduler_option
@json_option
def check_domain(file: str, data: str | None, scheduler: str | None, as_json: bool, **written: Any) -> None:
    """Read a domain file and list its attributes; with DATA list every fault of the data. That output is PRIVATE."""
    from dpscale.domain import Domain

    read = Domain.read(file, draft=True)
    checked = _checked(read, data, scheduler, read_origin(data, written)) if data is not None else {}
    faults = checked.get("faults", [])
    attributes = [attribute_facts(one) for one in read.attributes]
    if as_json:
        click.echo(json.dumps({"attributes": attributes, "reviewed": read.reviewed, **checked}))
    else:
        click.echo("\n".join([*_fault_lines(checked), *(() if faults else map(_attribute_line, attributes))]))
    if faults:
        raise click.exceptions.Exit(2)


def _checked(read: Domain, data: str, scheduler: str | None, origin: Origin) -> dict[str, Any]:
    """Return the faults that one pass over the data finds."""
    from dpscale.base.error_redaction import discreetly
    from dpscale.engine.contribution_bounds import WARNING, find_faults
    from dpscale.engine.schedulers import resolve

    click.echo(WARNING, err=True)
    engine = resolve(scheduler=scheduler)
    try:
        found: dict[str, Any] = discreetly("check domain", lambda: find_faults(engine, origin.table(data, read)))
    finally:
        engine.close()
    return found


def attribute_facts(one: Attribute) -> dict[str, Any]:
    assumed = {} if one.search is None else {"assumed": True}
    columns = {"columns": list(one.columns)} if len(one.columns) > 1 else {}
    return {"name": one.name, "kind": one.kind, "cells": one.size, "column": one.column, **columns, **assumed}


def _attribute_line(one: dict[str, Any]) -> str:
    """Return a line with the kind, number of cells and columns of an attribute."""
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


@check.command("tables")
@click.argument("job_file", metavar="JOB")
@scheduler_option
@json_option
def check_tables(job_file: str, scheduler: str | None, as_json: bool) -> None:
    """Count keys, orphans and degrees of a job's tables. The output is PRIVATE and not for publication."""
    from dpscale.base.error_redaction import discreetly
    from dpscale.engine.schedulers import resolve
    from dpscale.evaluation.inputs import WARNING, check_keys
    from dpscale.job import Job

    read = Job.read(job_file)
    click.echo(WARNING, err=True)
    engine = resolve(scheduler=scheduler or read.engine.scheduler)
    try:
        summary = discreetly("check tables", check_keys, read, engine)
    finally:
        engine.close()
    click.echo(json.dumps(summary) if as_json else _tables_text(summary))


def _tables_text(summary: dict[str, Any]) -> str:
    return "\n".join([*map(_table, summary["tables"]), *(line for link in summary["links"] for line in _link(link))])


def _table(one: dict[str, Any]) -> str:
    """Return a line with the rows of a table, and its null and duplicate keys if it has a key."""
    keys = "no key"
    if one["null_keys"] is not None:
        keys = f"{one['null_keys']:,} null keys, {one['duplicate_keys']:,} rows with a duplicate key"
    return f"table {one['name']}{' (public)' if one['public'] else ''}: {one['rows']:,} rows, {keys}"


OTHERS = {"loops": "from a row to itself", "repeated": "that repeat a link"}


def _link(link: dict[str, Any]) -> list[str]:
    """Return the lines on one link: rows with faulty keys, degrees of both sides, and what max_degree would drop.

    The figures are those of `evaluation.inputs`; `beyond_is` states what happens to links beyond the bound.
    """
    ends = f"{link['null_ends']:,} with a null key, {link['dangling']:,} with a key of no row"
    others = [f"{link[name]:,} {text}" for name, text in OTHERS.items() if link[name]]
    lines = [f"link {link['name']}: {link['rows']:,} rows, {', '.join([ends, *others])}"]
    for side, degrees in link["degrees"].items():
        spread = ", ".join(f"{name} {degrees[name]:g}" for name in ("50%", "90%", "99%", "max"))
        without = f"{degrees['none']:,} of {degrees['rows']:,} have none"
        lines.append(f"    {side} degree: mean {degrees['mean']:.3g}, {spread}; {without}")
    over = f"{link['links_beyond']:,} links of {link['rows_beyond']:,} rows exceed it and would be {link['beyond_is']}"
    lines.append(f"    max_degree {link['max_degree']}: {over}" if link["beyond_is"] != "any number" else
                 "    unlimited degree of a parent")  # fmt: skip
    return lines


@main.command()
@click.option(
    "--full", is_flag=True, help="Also attack adaptive mechanisms and synthetic rows, in about twenty minutes."
)
@quiet_option
@json_option
def selftest(full: bool, quiet: bool, as_json: bool) -> None:
    """Audit this installation: noise, stability and attacks, each with planted violations; `evidence` uses it."""
    checks = installation_checks(quiet, fresh=True)
    if full:
        from dpscale.audit.adaptive_attack import full_selftest

        checks += _named(full_selftest())
    if as_json:
        click.echo(json.dumps(checks))
    else:
        for check in checks:
            click.echo(f"{'ok' if check['passed'] else 'FAILED':<6} {check['name']}: {check['detail']}")
    if not all(check["passed"] for check in checks):
        raise click.exceptions.Exit(1)


def installation_checks(quiet: bool, fresh: bool = False) -> list[dict[str, Any]]:
    """Return the checks of the self-test, which are stored for this installation if all pass.

    Parameters
    ----------
    quiet : bool
    fresh : bool
        Test the installation even if a result is stored.
    """
    from dpscale.audit.selftest import selftest as audit
    from dpscale.runs.manifest import versions
    from dpscale.runs.stages.plan import cached_summary

    def tested() -> dict[str, Any]:
        with Bars(quiet) as progress:
            return {"checks": _named(audit(progress))}

    known = cached_summary(
        ["selftest", versions()], tested, lambda made: all(check["passed"] for check in made["checks"]), fresh
    )
    return list(known["checks"])


def _named(results: Sequence[tuple[str, bool, str]]) -> list[dict[str, Any]]:
    return [{"name": name, "passed": bool(passed), "detail": detail} for name, passed, detail in results]
