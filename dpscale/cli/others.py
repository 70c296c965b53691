"""Commands beside a run: the ledger, job files, the self-test, the demo."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dpscale.base.errors import JobError
from dpscale.cli.group import json_option, main, quiet_option, scheduler_option
from dpscale.cli.progress import Bars


@main.group()
def ledger() -> None:
    """What was spent, and the caps."""


@ledger.command("show")
@click.argument("path")
@json_option
def ledger_show(path: str, as_json: bool) -> None:
    """Show spent, reserved and remaining budget, per release and in total."""
    from dpscale.cli.ledgertext import ledger_text
    from dpscale.ledger import Ledger

    with Ledger.open(path, create=False) as opened:
        summary = opened.summary()
    click.echo(json.dumps(summary) if as_json else ledger_text(summary))


@ledger.command("cap")
@click.argument("path")
@click.option("--dataset", required=True)
@click.option("--epsilon", type=float, required=True)
@click.option("--delta", type=float, required=True, help="0 for a cap on pure releases.")
@click.option("--currency", type=click.Choice(["gdp", "pure"]), help="What adds up; by default pure where delta is 0.")
@click.option("--unit", help="Whom its releases protect: row, or the column that names persons.")
@click.option("--table", help="With --unit, in a job of several tables: the table that the column is in.")
def ledger_cap(
    path: str, dataset: str, epsilon: float, delta: float, currency: str | None, unit: str | None, table: str | None
) -> None:
    """Cap what all releases of a dataset may cost together."""
    from dpscale.ledger import Ledger
    from dpscale.privacy.protection import Protection

    if unit is not None and not unit.strip():
        raise JobError("--unit", "got an empty name", "row, or the name of a column", "name one")
    if table is not None and (unit in (None, "row") or not table.strip()):
        raise JobError("--table", "got one without the column of a unit", "--unit COLUMN --table TABLE",
                       "name the column, or leave --table out")  # fmt: skip
    protects = None if unit is None else Protection(None if unit == "row" else unit, table=table)
    with Ledger.open(path) as opened:
        click.echo(str(opened.set_cap(dataset, epsilon, delta, currency, protects)))


@ledger.command("copy")
@click.argument("source")
@click.argument("target")
def ledger_copy(source: str, target: str) -> None:
    """Move a history to a new ledger, a file or postgresql://HOST/DATABASE, and close the old one for good."""
    from dpscale.ledger import Ledger

    with Ledger.open(source, create=False) as opened:
        count = opened.move(target)
    click.echo(f"{target} holds the history ({count} releases); {source} is closed for good")


@main.command()
@json_option
def selftest(as_json: bool) -> None:
    """Audit this installation: noise, stability, and what an attacker can learn, each with planted violations."""
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
@click.option("--folder", default="dpscale-demo", show_default=True, help="Where the demo is kept.")
@scheduler_option
@quiet_option
def demo(folder: str, scheduler: str | None, quiet: bool) -> None:
    """The main job on sample data: the RAND health insurance experiment."""
    from dpscale.cli.demo import run_demo

    with Bars(quiet) as progress:
        text = run_demo(Path(folder), scheduler, progress)
    click.echo(text)


@main.group()
def job() -> None:
    """Job files."""


@job.command("schema")
def job_schema() -> None:
    """Print the JSON Schema of a job file, by which editors complete and check it."""
    from dpscale.cli.schema import schema

    click.echo(json.dumps(schema(), indent=1))


@job.command("options")
def job_options() -> None:
    """Print the options of every mechanism and reconstruction as a table (Markdown)."""
    from dpscale.cli.schema import options_table

    click.echo(options_table())
