"""Commands for jobs of several tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpscale.cli.group import json_option, main, scheduler_option
from dpscale.cli.progress import Bars

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Progress
    from dpscale.multitable.job import DatabaseJob


def run_several(
    job: DatabaseJob, run_dir: str | None, fresh: bool, scheduler: str | None, quiet: bool, as_json: bool
) -> None:
    """Run all stages of a job of several tables; an interrupted run resumes."""
    from dpscale.api.public import check_not_fresh
    from dpscale.multitable.run import DatabaseRun
    from dpscale.multitable.runner import charged, run_database
    from dpscale.runs.stages.runner import remove_on_error

    check_not_fresh(fresh)
    directory = DatabaseRun.create(job, run_dir)
    done = directory.done("report")
    with remove_on_error(directory, charged), Bars(quiet) as progress:
        run_database(directory, scheduler=scheduler, progress=progress)
    manifest, report = directory.manifest, directory.path / "report.html"
    summary = {"run_dir": str(directory.path), "report": str(report), "repeated": done,
               **{name: manifest[name] for name in ("release", "private", "privacy", "stages")}}  # fmt: skip
    if as_json:
        click.echo(json.dumps(summary))
        return
    if done:
        click.echo("dpscale: this job is already done: nothing was read, and nothing spent", err=True)
    if not manifest["private"]:
        click.echo("dpscale: this run has a seed and is not private", err=True)
    click.echo(f"report: {report}")


def plan_several(
    job: DatabaseJob, run_dir: str | None, scheduler: str | None, progress: Progress, as_json: bool
) -> None:
    """Print the protected unit and the division of the budget; with a run directory, store the plans there."""
    from dpscale.multitable.planning import summary
    from dpscale.multitable.run import DatabaseRun
    from dpscale.multitable.runner import charged, run_database
    from dpscale.runs.stages.runner import remove_on_error

    if run_dir is not None:
        directory = DatabaseRun.create(job, run_dir)
        with remove_on_error(directory, charged):
            run_database(directory, scheduler=scheduler, progress=progress, last="plan")
    plan_summary = summary(job)
    if as_json:
        click.echo(json.dumps(plan_summary))
        return
    click.echo(plan_summary["neighbours"])
    for piece in plan_summary["pieces"]:
        click.echo(_line(piece))


def _line(piece: dict[str, Any]) -> str:
    moved = f", at most {piece['moved']} rows or links differ between neighbours" if piece["moved"] else ""
    head = f"{piece['name']:>24}: {100 * piece['share']:.3g} % of the budget, mu {piece['mu']:.4g}{moved}"
    expected = piece["expected"]
    errors = _table_error(expected) if "rmse" in expected else _link_error(expected)
    return "\n".join([head, *(f"{'':>26}{one}" for one in errors)])


def _table_error(expected: dict[str, Any]) -> list[str]:
    if expected["rmse"] is None:
        return []
    return [f"expected error of a query: {expected['rmse']:.4g} records, by {expected['by']}"]


def _link_error(expected: dict[str, Any]) -> list[str]:
    labels = {"links": "the number of links", "degrees": "rows by degree", "siblings": "pairs of siblings"}
    noise = [f"{label} {expected[name]:.3g}" for name, label in labels.items() if expected[name] is not None]
    left = [f"{100 * one:.2g} % with {int(links):,}" for links, one in (expected["random"] or {}).items()]
    lines = [f"standard deviation of the noise: {', '.join(noise)}"] if noise else []
    return lines + ([f"expected error relative to random links, by number of links: {', '.join(left)}"] if left else [])


def end_several(run_dir: str) -> dict[str, Any]:
    """End a run of several tables and return how it ended and the spent budget."""
    from dpscale.multitable.run import DatabaseRun
    from dpscale.multitable.runner import end

    return end(DatabaseRun(run_dir))


def check_alone(run_dir: str) -> None:
    """Raise JobError for a run of several tables or for one of its tables, because they are charged together."""
    from dpscale.base.errors import JobError
    from dpscale.multitable.run import is_database_run
    from dpscale.runs.manifest import MANIFEST, read_manifest
    from dpscale.storage.files import present

    path = Path(run_dir)
    one = present(path / MANIFEST) and read_manifest(path).get("within")
    if one or is_database_run(path):
        got = f"{path} is {'one' if one else 'a run'} of several tables, which were charged together"
        raise JobError("run directory", got, "a run of a single table",
                       "see `dpscale ledger show` for the one charge")  # fmt: skip


def print_database_run(run_dir: str, as_json: bool) -> None:
    """Print the state of each stage, of the whole run and of every table."""
    from dpscale.multitable.run import DatabaseRun
    from dpscale.runs.run import Run

    run = DatabaseRun(run_dir)
    states = run.states()
    tables = {name: Run(path).states() for name, path in run.table_paths().items()}
    if as_json:
        click.echo(json.dumps(run.manifest | {"states": states, "tables": tables}))
        return
    for name, state in states.items():
        click.echo(f"{name:>24}: {state}")
    for name, own in tables.items():
        click.echo(f"{name:>24}: {', '.join(f'{stage} {state}' for stage, state in own.items())}")


@main.group()
def tables() -> None:
    """Several tables and their links."""


@tables.command("check")
@click.argument("job")
@scheduler_option
@json_option
def tables_check(job: str, scheduler: str | None, as_json: bool) -> None:
    """Count keys, orphans and degrees of a job's tables. The output is PRIVATE and not for publication."""
    from dpscale.base.error_redaction import discreetly
    from dpscale.engine import resolve
    from dpscale.multitable.job import DatabaseJob
    from dpscale.multitable.key_checks import WARNING, check

    read = DatabaseJob.read(job)
    click.echo(WARNING, err=True)
    engine = resolve(scheduler=scheduler or read.engine.scheduler)
    try:
        summary = discreetly("tables check", check, read, engine)
    finally:
        engine.close()
    click.echo(json.dumps(summary) if as_json else _text(summary))


def _text(summary: dict[str, Any]) -> str:
    return "\n".join([*map(_table, summary["tables"]), *(line for link in summary["links"] for line in _link(link))])


def _table(one: dict[str, Any]) -> str:
    keys = "no key"
    if one["null_keys"] is not None:
        keys = f"{one['null_keys']:,} null keys, {one['duplicate_keys']:,} rows with a duplicate key"
    return f"table {one['name']}{' (public)' if one['public'] else ''}: {one['rows']:,} rows, {keys}"


def _link(one: dict[str, Any]) -> list[str]:
    ends = f"{one['null_ends']:,} with a null key, {one['dangling']:,} with a key of no row"
    lines = [f"link {one['name']}: {one['rows']:,} rows, {ends}"]
    for side, of in one["degrees"].items():
        spread = ", ".join(f"{name} {of[name]:g}" for name in ("50%", "90%", "99%", "max"))
        lines.append(f"    {side} degree: mean {of['mean']:.3g}, {spread}; {of['none']:,} of {of['rows']:,} have none")
    over = f"{one['links_beyond']:,} links of {one['rows_beyond']:,} rows exceed it and would be {one['beyond_is']}"
    lines.append(f"    max_degree {one['max_degree']}: {over}" if one["beyond_is"] != "any number" else
                 "    unlimited degree of a parent")  # fmt: skip
    return lines


@tables.command("from-sdv")
@click.argument("metadata")
@click.option("--data", default=".", show_default=True, help="The folder of the tables' files.")
def tables_from_sdv(metadata: str, data: str) -> None:
    """Print a draft of a job from SDV's metadata of several tables. Reads no data."""
    from dpscale.multitable.sdv import draft, read_metadata

    click.echo(draft(read_metadata(metadata), data))


@tables.command("to-sdv")
@click.argument("job")
def tables_to_sdv(job: str) -> None:
    """Print SDV's metadata of the tables that a job releases. Reads no data."""
    from dpscale.multitable.job import DatabaseJob
    from dpscale.multitable.sdv import metadata

    click.echo(json.dumps(metadata(DatabaseJob.read(job)), indent=1))
