"""Commands that draft a domain file, or check a job, a domain file, the tables of a job, or the installation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from dpscale.base import LazyModule
from dpscale.base.display import display_path
from dpscale.base.errors import JobError
from dpscale.cli.group import Bars, json_option, main, quiet_option, scheduler_option
from dpscale.storage.objects import relative_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dpscale.domain import Attribute, Domain
    from dpscale.records.origin import Origin
    from dpscale.records.sketch import Sketch

BUDGET = {"epsilon": 1.0, "delta": 1e-9}  # of a draft

opening = LazyModule("dpscale.runs.opening")


@main.group()
def domain() -> None:
    """Domain files."""


def format_options(command: Callable[..., None]) -> Callable[..., None]:
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


def read_origin(path: str, written: dict[str, Any]) -> Origin:
    """Return the options of file formats as the origin of data. Raises JobError if a job would not accept them."""
    from pydantic import ValidationError

    from dpscale.job.data import Filed
    from dpscale.job.forms import job_sentence

    try:
        return Filed(path=path, **{**written, "null_values": list(written["null_values"])}).origin
    except ValidationError as error:
        raise job_sentence(error, False, []) from None


@domain.command("sketch")
@click.argument("data")
@click.option("--columns", multiple=True, metavar="A,B", help="Only these columns; repeatable.")
@click.option("--output", metavar="FILE", help="Write the draft to a new file.")
@click.option(
    "--job", "job_file", metavar="FILE", help="With --output: also write a job of one-way tables to a new file."
)
@format_options
def domain_sketch(
    data: str, columns: tuple[str, ...], output: str | None, job_file: str | None, **written: Any
) -> None:
    """Draft a domain file from data. The draft is PRIVATE: it contains values of single records.

    It proposes a privacy unit, and omits names and free text with a reason. Review it and set reviewed = true: a job
    refuses it before.
    """
    from dpscale.records.sketch import WARNING, make_sketch
    from dpscale.storage.files import write_private

    _check_new("--output", output)
    _check_new("--job", job_file)
    if job_file and output and Path(job_file).absolute() == Path(output).absolute():
        raise JobError("--job", "the file of --output", "another file", "name two files")
    if job_file and not output:
        raise JobError("--job", "given without --output", "--output FILE as well", "name the domain file")
    click.echo(WARNING, err=True)
    origin = read_origin(data, written)
    draft = make_sketch(data, origin.dialect, origin.format, _names(columns))
    if output is None:
        click.echo(draft.text())
        return
    write_private(output, draft.text())
    click.echo(f"domain: {output}; review it, then set reviewed = true")
    if job_file:
        folder = Path(job_file).absolute().parent
        Path(job_file).write_text(
            draft_job(draft, near_job(data, folder), near_job(output, folder), dataset_of(data), written),
            "utf-8", newline="\n",
        )  # fmt: skip
        click.echo(f"job: {job_file}; next: dpscale plan {job_file}, then dpscale run {job_file}")


def draft_job(
    draft: Sketch,
    path: str,
    domain: str,
    dataset: str,
    written: Mapping[str, Any],
    chosen: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Return the draft of a job, by default with all one-way tables of a sketch.

    Parameters
    ----------
    draft : Sketch
    path, domain : str
        Data and domain file, as the job names them.
    dataset : str
        Name of the data in the ledger.
    written : mapping
        Options that state how files are written, which are keys of [data].
    chosen : mapping
        Content of the sections that a person has decided: `about`, `data` with the protected unit, `privacy` with the
        budget, and `workload`.
    """
    from dpscale.job.sections import AboutTable
    from dpscale.records.sketch import toml_value

    def line(key: str, value: Any) -> str:
        return f"{key} = {toml_value(value).replace('e-0', 'e-') if isinstance(value, float) else toml_value(value)}"

    about, protected = chosen.get("about", {}), chosen.get("data", {})
    given = {key: list(value) if isinstance(value, tuple) else value for key, value in written.items() if value}
    unit = draft.units[0] if draft.units else ""
    # a column that looks like an id is proposed in comments
    if unit and not protected:
        proposal = [
            "# A proposal, if a person (or household, …) may have several rows; "
            "max_rows_per_unit from public knowledge:",
            f"# privacy_unit = {toml_value(unit)}",
            "# max_rows_per_unit = 1",
        ]
    else:
        row = "# one row is protected; privacy_unit and max_rows_per_unit protect persons"
        proposal = [line(key, value) for key, value in protected.items()] or [row]
    workload = chosen.get("workload", [one_way()])
    part_lines = [text for part in workload for text in ("", "[[workload]]", *_part_lines(part, line))]
    return "\n".join([
        "# A draft: choose the budget, the protected unit and the queries. `dpscale plan` prints the errors.",
        "[about]", *(line(key, about[key]) if key in about else f'# {key} = ""' for key in AboutTable.model_fields), "",
        "[data]", *(line(*item) for item in {"path": path, "domain": domain, **given}.items()), *proposal, "",
        "[privacy]", *(line(*item) for item in chosen.get("privacy", BUDGET).items()), line("dataset", dataset),
        *part_lines, "",
    ])  # fmt: skip


def one_way() -> dict[str, Any]:
    """Return the content of [[workload]] that asks for a table of counts for each attribute."""
    from dpscale.workload import MARGINAL

    return {"family": MARGINAL.name, "degree": 1}


def _part_lines(part: Mapping[str, Any], line: Callable[[str, Any], str]) -> list[str]:
    """Return the lines of a table [[workload]]; `line` writes a key with its value."""
    note = "  # a table for each attribute; 2 for each pair"
    return [line(key, value) + (note if key == "degree" else "") for key, value in part.items()]


def dataset_of(data: str) -> str:
    """Return the name of data in the ledger, by their path."""
    return Path(data.rstrip("/")).name.split(".")[0] or "data"


def _check_new(option: str, path: str | None) -> None:
    """Raise JobError for a file that exists."""
    if path is not None and Path(path).exists():
        raise JobError(option, f"{display_path(path)}, which exists", "a new file", "name another one, or remove it")
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise JobError(option, f"{display_path(path)}, whose folder does not exist", "a new file", "create the folder")


def _names(columns: tuple[str, ...]) -> list[str]:
    """Return the names in lists that are separated by commas."""
    return [name.strip() for names in columns for name in names.split(",") if name.strip()]


def near_job(path: str, folder: Path) -> str:
    """Return a path as a job in a folder names it: relative, unless it is an address."""
    return path if "://" in path else relative_path(path, folder)


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
    attributes = [attribute_facts(attribute) for attribute in read.attributes]
    if as_json:
        click.echo(json.dumps({"attributes": attributes, "reviewed": read.reviewed, **checked}))
    else:
        click.echo("\n".join([*_fault_lines(checked), *(() if faults else map(_attribute_line, attributes))]))
    if faults:
        raise click.exceptions.Exit(2)


def _checked(read: Domain, data: str, scheduler: str | None, origin: Origin) -> dict[str, Any]:
    """Return the faults of the data that one pass over them finds, as `find_faults` does."""
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


def attribute_facts(attribute: Attribute) -> dict[str, Any]:
    """Return the facts of an attribute for JSON; its cells are assumed if a private search will find them."""
    assumed = {} if attribute.search is None else {"assumed": True}
    columns = {"columns": list(attribute.columns)} if len(attribute.columns) > 1 else {}
    return {"name": attribute.name, "kind": attribute.kind, "cells": attribute.size, "column": attribute.column,
            **columns, **assumed}  # fmt: skip


def _attribute_line(facts: dict[str, Any]) -> str:
    """Return a line with the kind, number of cells and columns of an attribute."""
    columns = ", ".join(facts.get("columns", [facts["column"]]))
    made = "" if columns == facts["name"] else f", from {columns}"
    assumed = " (assumed: they are not public)" if facts.get("assumed") else ""
    return f"{facts['name']:>16}: {facts['kind']}, {facts['cells']} cells{assumed}{made}"


def _fault_lines(checked: dict[str, Any]) -> list[str]:
    """Return a line for all columns and one for each fault; none if no data were checked.

    `checked` is the result of `find_faults`.
    """
    if not checked:
        return []
    rows = f"{checked['columns_affected']} of {checked['columns']} columns have faults, in {checked['rows']:,} rows"
    return [rows, *(f"{fault['column']!r}: {fault['fault']}{_count(fault)}" for fault in checked["faults"])]


def _count(fault: dict[str, Any]) -> str:
    """Return the number of files or rows with a fault, and a few values."""
    # "in 1 row", but "in 2 rows"
    places = [f"in {fault[name]:,} {name[:-1] if fault[name] == 1 else name}"
              for name in ("rows", "files") if name in fault]  # fmt: skip
    values = [f"for example {', '.join(map(repr, fault['examples']))}"] if fault.get("examples") else []
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


def _table(table: dict[str, Any]) -> str:
    """Return a line with the rows of a table, and its null and duplicate keys if it has a key."""
    keys = "no key"
    if table["null_keys"] is not None:
        keys = f"{table['null_keys']:,} null keys, {table['duplicate_keys']:,} rows with a duplicate key"
    return f"table {table['name']}{' (public)' if table['public'] else ''}: {table['rows']:,} rows, {keys}"


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

    summary = cached_summary(
        ["selftest", versions()], tested, lambda made: all(check["passed"] for check in made["checks"]), fresh
    )
    return list(summary["checks"])


def _named(results: Sequence[tuple[str, bool, str]]) -> list[dict[str, Any]]:
    return [{"name": name, "passed": bool(passed), "detail": detail} for name, passed, detail in results]
