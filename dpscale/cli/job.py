"""Commands for job files, the self-test of an installation, and the demo."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dpscale.cli.group import Bars, json_option, main, quiet_option, scheduler_option


@main.command()
@click.option(
    "--full", is_flag=True, help="Also attack adaptive mechanisms and synthetic rows, in about twenty minutes."
)
@json_option
def selftest(full: bool, as_json: bool) -> None:
    """Audit this installation: noise, stability and attacks, each with planted violations."""
    from dpscale.audit.selftest import selftest as audit

    results = audit()
    if full:
        from dpscale.audit.adaptive_audit import full_selftest

        results += full_selftest()
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
    from dpscale.cli.schema import schema

    click.echo(json.dumps(schema(), indent=1))


@job.command("options")
def job_options() -> None:
    """Print the options of every mechanism and reconstruction as a table (Markdown)."""
    from dpscale.cli.schema import options_table

    click.echo(options_table())
